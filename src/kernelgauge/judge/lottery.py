"""The autotuner's lottery: what the configuration of a run costs against the others that were drawn."""

from __future__ import annotations

from ..trace.configuration import configuration_change
from ..trace.diff import align
from .baseline import Baseline, Entry

__all__ = ["choice", "odds"]


def odds(baseline: Baseline, entry: Entry) -> str:
    """How often an entry was drawn, for example ``drawn 3 of 4``."""
    return f"drawn {entry.draws} of {sum(each.draws for each in baseline.entries)}"


def choice(baseline: Baseline, entry: Entry) -> str | None:
    """What a run of this configuration pays for it; None if it is the fastest that was seen, or the only one."""
    fastest = min(baseline.entries, key=lambda each: each.device_time_us)
    cost = entry.device_time_us - fastest.device_time_us
    if entry is fastest or cost <= 0:
        return None
    differences = [
        f"{change.after.identity.shown}: {configuration}"
        for change in align(fastest.kernels, entry.kernels)
        if change.before is not None and change.after is not None
        if (configuration := configuration_change(change.before.identity, change.after.identity))
    ]
    return (
        f"{odds(baseline, entry)}; the fastest ({odds(baseline, fastest)}) takes {cost:.1f} us less "
        f"({-100 * cost / entry.device_time_us:.1f} %)\n" + "\n".join(differences)
    )
