"""The runs of the HTML report and the machines that they ran on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..judge import compare
from ..results import Results
from ..run import Fingerprint
from .html_status import overall
from .html_tests import clipped

__all__ = ["RunView", "environment", "machine", "moment", "run_views"]


@dataclass(frozen=True)
class RunView:
    """One of the runs that the report is made from. `changed`: against the one before, of the same kind of machine."""

    started: str
    machine: str
    gpu: str
    status: str
    workloads: int
    changed: str


def machine(one: Results) -> str:
    """The kind of machine; empty where nothing was measured."""
    return one.fingerprint.device if one.fingerprint else ""


def environment(shown: Sequence[Results]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    known = [one.fingerprint for one in shown if one.fingerprint]
    if not known:
        return ()
    return tuple(
        (name.replace("_", " "), tuple(_value(name, getattr(each, name)) for each in known))
        for name in known[0].__struct_fields__
    )


def _value(name: str, value: object) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "memory_bytes" and isinstance(value, int):
        return f"{value / 2**30:.1f} GiB"
    return clipped(str(value))


def moment(started_at: str) -> str:
    """``2026-11-20 19:10`` of an ISO time, which is UTC."""
    return started_at[:16].replace("T", " ")


def run_views(results: Sequence[Results]) -> Iterator[RunView]:
    last: dict[str, Results] = {}
    for one in results:
        kind = machine(one)
        before = last.get(kind)
        yield RunView(
            moment(one.started_at),
            clipped(kind),
            clipped(one.gpu or "", 60),
            overall([one]),
            len(one.workloads),
            clipped(", ".join(_changed(before.fingerprint, one.fingerprint)) if before else "", 400),
        )
        last[kind] = one


def _changed(old: Fingerprint | None, new: Fingerprint | None) -> list[str]:
    """``driver 580.1 -> 580.2``: what differs between two machines; nothing where one is not known."""
    if old is None or new is None:
        return []
    comparison = compare(old, new)
    return [str(change).replace("_", " ") for change in (*comparison.foreign, *comparison.moved)]
