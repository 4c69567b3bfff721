"""How every form of report words numbers, names, machines and conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ..errors import printable
from ..judge import WORST_FIRST, Status, worst
from ..run import Timer

if TYPE_CHECKING:
    from ..judge import Reason, RelativeChange, Verdict
    from ..results import Results, WorkloadResult
    from ..run import Fingerprint, Run

__all__ = [
    "CUT_SHORT",
    "FAILED",
    "NOTHING_JUDGED",
    "NOT_RUN",
    "NO_VERDICT",
    "about",
    "bytes_text",
    "change_of_one",
    "change_text",
    "conditions_text",
    "counted",
    "counts_text",
    "cut",
    "describe",
    "device_name",
    "host_times_text",
    "kernel_us",
    "kinds_text",
    "notes",
    "overall",
    "percent",
    "relative_change",
    "run_conditions",
    "shapes_text",
    "short_commit",
    "shown_reasons",
    "status_text",
    "time_change",
    "time_text",
    "times",
    "us",
    "us_or_dash",
]

NOT_RUN, NO_VERDICT = "NOT RUN", "NO VERDICT"  # of a workload
CUT_SHORT, FAILED, NOTHING_JUDGED = "CUT SHORT", "FAILED", "NOTHING JUDGED"  # of a run
_PASSES = (Status.PASS, Status.IMPROVED)
_NO_FAILURE = (0, 5)  # pytest.ExitCode: all passed; no test was collected

_SHORT_US = 10.0
_LONGEST_LINE = 300  # characters of a name or a reason; results.json has all of it
_LONGEST_SHAPES = 100
_SHOWN_DIGITS = 10  # of a commit
_MOST_KINDS = 4
_NOUNS = {"gemm": "GEMM", "other": "kernel that no rule knows", "splitk_reduce": "split-K reduction"}


def us(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 100_000 else f"{value:.0f}"


def kernel_us(value: float) -> str:
    """Return two decimals for a short kernel: a profiler tells 2.98 from 3.01 us, and so must its reader."""
    return f"{value:.2f}" if abs(value) < _SHORT_US else us(value)


def time_text(value_us: float) -> str:
    """Return ``205.1 us``, ``98.59 ms`` or ``12.92 s``: four digits."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(value_us) >= size:
            value = value_us / size
            return f"{value:.2f} {unit}" if abs(value) < 100 else f"{value:.1f} {unit}"
    return f"{value_us:.1f} us"


def time_change(before_us: float, after_us: float) -> str:
    """Return ``175.0 -> 140.0 ms``; a unit that both have stands once, and so do two times that read the same."""
    (old, unit), new = time_text(before_us).split(), time_text(after_us)
    if new == f"{old} {unit}":
        return new
    return f"{old if new.endswith(f' {unit}') else f'{old} {unit}'} -> {new}"


def relative_change(before: float, after: float) -> str:
    """Return `` (-20.0 %)``; nothing where nothing changed, or there was nothing before."""
    return f" ({100 * (after / before - 1):+.1f} %)" if before > 0 and before != after else ""


def us_or_dash(value: float | None) -> str:
    return "-" if value is None else us(value)


def change_of_one(change: RelativeChange | None) -> str:
    """Return ``+0.3 %``; a dash where nothing was compared."""
    return "-" if change is None else f"{100 * change.estimate:+.1f} %"


def change_text(verdict: Verdict | None) -> str:
    """Return ``+8.1 %``, or nothing where nothing was compared or judged."""
    is_judged = verdict is not None and verdict.status is not Status.NOT_JUDGED
    return change_of_one(verdict.change) if verdict is not None and is_judged and verdict.change is not None else ""


def status_text(workload: WorkloadResult) -> str:
    """Return the worst of its verdicts, or why there is none. Of a pass without a time, say so: ``PASS (time not judged)``."""
    if workload.status is None:
        return NOT_RUN if workload.run is None else NO_VERDICT
    left = _not_judged(workload) if workload.status in _PASSES else ""
    return f"{workload.status.value} ({left})" if left else workload.status.value


def _not_judged(workload: WorkloadResult) -> str:
    """Return what a pass leaves out: the device's time. That a host's clock is not judged, the report says once for all."""
    timed = workload.time_verdict(Timer.DEVICE)
    return "" if timed is not None and timed.status in _PASSES else "time not judged"


def host_times_text(results: Results) -> list[str]:
    """Say once in how many workloads no clock of the host was judged, though the device's time was."""
    hosts = (Timer.HOST, Timer.END_TO_END)
    clocks = [
        [verdict.status for timer in hosts if (verdict := workload.time_verdict(timer)) is not None]
        for workload in results.workloads
        if workload.status in _PASSES and not _not_judged(workload)
    ]
    left = sum(Status.NOT_JUDGED in statuses for statuses in clocks)
    return (
        [f"host times not judged in {left} of {counted(len(results.workloads), 'workload')}: -rs says why"]
        if left
        else []
    )


def overall(results: Sequence[Results]) -> str:
    """Return the worst verdict of some runs. Where no verdict fails and pytest did, say so: that is no pass."""
    statuses = [each.status for each in results if each.status is not None]
    status = worst(statuses)
    if status is not None and status.fails:
        return status.value
    if any(each.was_cut_short for each in results):
        return CUT_SHORT
    if any(each.exit_status not in _NO_FAILURE or each.failed_tests for each in results):
        return FAILED
    return status.value if status is not None else NOTHING_JUDGED


def counts_text(results: Sequence[Results]) -> list[str]:
    """Return ``3 workloads (1 REGRESSED, 2 PASS)`` and ``9 tests (1 failed)``: numbers and words of our own only."""
    workloads = [workload for each in results for workload in each.workloads]
    judged = [(workload.status, status_text(workload)) for workload in workloads if workload.status is not None]
    statuses = Counter(text for _, text in sorted(judged, key=lambda each: WORST_FIRST.index(each[0])))
    outcomes = Counter(test.outcome for each in results for test in each.tests)
    counts = [f"{count} {text}" for text, count in statuses.items()]
    counts += [f"{len(workloads) - len(judged)} not judged"] if len(workloads) > len(judged) else []
    ends = [f"{outcomes[outcome]} {outcome}" for outcome in ("failed", "skipped") if outcomes[outcome]]
    parts = ((len(workloads), "workload", counts), (outcomes.total(), "test", ends))
    return [counted(total, noun) + (f" ({', '.join(each)})" if each else "") for total, noun, each in parts]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def bytes_text(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def cut(text: str, longest: int = _LONGEST_LINE) -> str:
    """Return `text` in one line, and not too long."""
    line = printable(text)
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def counted(count: int, noun: str) -> str:
    """Return ``1 kernel``, ``2 kernels``, ``2 kernels that no rule knows``."""
    first, space, rest = noun.partition(" that ")
    plural = "es" if first.endswith("ch") else "s"
    return f"{count} {first}" + ("" if count == 1 else plural) + (f"{space}{rest}" if rest else "")


def kinds_text(kinds: Iterable[str]) -> str:
    """Return ``3 GEMMs, 2 pointwise kernels``; of many kinds the most frequent."""
    counts = Counter(kinds).most_common()
    shown = [counted(count, _NOUNS.get(kind, f"{kind} kernel")) for kind, count in counts[:_MOST_KINDS]]
    left = sum(count for _, count in counts[_MOST_KINDS:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def times(names: Mapping[str, int]) -> str:
    """Return ``aten::t x3, aten::view``."""
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in names.items())


def shapes_text(shapes: Sequence[Any]) -> str:
    """Return ``[8192,768] [768,3072]``: tensors only, as an op was given them."""
    parts = [_shape_text(shape) for shape in shapes if shape]
    shown = " ".join(parts)
    return shown if len(shown) <= _LONGEST_SHAPES else f"{shown[: _LONGEST_SHAPES - 3]}..."


def _shape_text(shape: Any) -> str:
    if not isinstance(shape, tuple):
        return str(shape)
    return "[" + ",".join(_shape_text(item) if isinstance(item, tuple) else str(item) for item in shape) + "]"


def short_commit(commit: str | None) -> str:
    """Return a commit as reports show it, with the mark of local changes."""
    if not commit:
        return "not known"
    sha = commit.removesuffix("+")
    return sha[:_SHOWN_DIGITS] + commit[len(sha) :]


def describe(fingerprint: Fingerprint) -> str:
    """Return the machine and the software in one line."""
    versions = [
        ("driver", fingerprint.driver),
        ("CUDA", fingerprint.cuda),
        ("torch", fingerprint.torch),
        ("triton", fingerprint.triton),
        ("liger-kernel", fingerprint.liger_kernel),
    ]
    parts = [fingerprint.device, *(f"{name} {version}" for name, version in versions if version)]
    return printable(", ".join(parts))


def device_name(results: Results) -> str:
    """Return whose time a table shows: ``CPU``, else ``GPU``."""
    return "CPU" if results.fingerprint is not None and results.fingerprint.arch == "cpu" else "GPU"


def conditions_text(results: Results) -> list[str]:
    """Return the conditions of the GPU while it was measured, over all workloads; or why nobody watched it."""
    if results.not_watched and results.runs and not any(run.conditions for run in results.runs):
        return [printable(f"conditions not watched: {results.not_watched}")]
    return run_conditions(results.runs)


def run_conditions(runs: Sequence[Run]) -> list[str]:
    """Return one line for all of these runs; none where nobody watched."""
    seen = [run.conditions for run in runs if run.conditions is not None]

    def known(name: str) -> list[Any]:
        return [value for each in seen if (value := getattr(each, name)) is not None]

    parts: list[str] = []
    if medians := known("median_sm_clock_mhz"):
        usual = round(median(medians))
        lowest = min(known("lowest_sm_clock_mhz"), default=usual)
        parts.append(f"SM clock {usual} MHz" + (f", lowest {lowest}" if lowest < usual else ""))
    if temperatures := known("max_temperature_c"):
        parts.append(f"{max(temperatures)} C")
    if powers := known("max_power_watts"):
        parts.append(f"{max(powers):.0f} W")
    throttled: dict[str, float] = {}
    for cause, milliseconds in (item for times_ms in known("throttled_ms") for item in times_ms.items()):
        throttled[cause] = throttled.get(cause, 0.0) + milliseconds
    parts += [f"{cause} for {milliseconds:.0f} ms" for cause, milliseconds in throttled.items() if milliseconds >= 1]
    return [printable("conditions: " + ", ".join(parts))] if parts else []


def notes(results: Results) -> list[str]:
    """Return one line for each reason why workloads did not run, with the workloads that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for workload in results.workloads:
        if workload.unavailable:
            by_reason.setdefault(cut(workload.unavailable), []).append(cut(workload.id))
    return [f"not run: {', '.join(workloads)}: {reason}" for reason, workloads in by_reason.items()]


def shown_reasons(verdict: Verdict) -> list[Reason]:
    """Return its reasons, but for paths of the machine that measured; of a failure, without what the page begins with."""
    hidden = ("trace", "cause", "code", "accept") if verdict.status.fails else ("trace",)
    return [reason for reason in verdict.reasons if reason.label not in hidden]


def about(workload: WorkloadResult) -> str:
    """Return the subjects of the verdicts that need a look: "GPU time", "structure"; nothing where none does."""
    quiet = (Status.PASS, Status.NO_BASELINE, Status.NOT_JUDGED)
    verdicts = [each for each in workload.verdicts if each.status is workload.status and each.status not in quiet]
    return ", ".join(dict.fromkeys(each.subject for each in verdicts))
