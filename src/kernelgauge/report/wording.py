"""How every form of report words numbers, names, machines and conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

from ..errors import printable
from ..judge.evidence import OtherHostSpeed, Unclear
from ..judge.verdict import TIME_LABELS, WORST_FIRST, Status, Verdict, worst
from ..results import Results, WorkloadResult
from ..run import Fingerprint, Run, Sample, Timer, observe
from .words import counted, headline, reasons

_QUIET = (Status.PASS, Status.NO_BASELINE, Status.NOT_JUDGED, None)
_NOT_TIMED = "time not judged"  # of a pass
_PASSES = (Status.PASS, Status.IMPROVED)
_NO_FAILURE = (0, 5)  # pytest.ExitCode: all passed; no test was collected
_LONGEST_LINE = 300  # characters of a name or a reason; results.json has all of it
_LONGEST_SHAPES = 100
_SHOWN_DIGITS = 10  # of a commit
_CONDITIONS: tuple[tuple[str, Callable[[list[float]], float], str], ...] = (
    ("median_sm_clock_mhz", median, "SM clock {:.0f} MHz"),
    ("lowest_sm_clock_mhz", min, "lowest {:.0f}"),
    ("max_temperature_c", max, "{:.0f} C"),
    ("max_power_watts", max, "{:.0f} W"),
)
_NOUNS = {"gemm": "GEMM", "other": "unknown kernel", "splitk_reduce": "split-K reduction"}

# -- numbers and names ------------------------------------------------------------------------------------------------


def us(value: float) -> str:
    """Return two decimals for a short time: a profiler tells 2.98 from 3.01 us, and so must its reader."""
    if abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 100_000 else f"{value:.0f}"


def time_text(value_us: float) -> str:
    """Return ``205.1 us``, ``98.59 ms`` or ``12.92 s``: four digits."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(value_us) >= size:
            value = value_us / size
            return f"{value:.2f} {unit}" if abs(value) < 100 else f"{value:.1f} {unit}"
    return f"{value_us:.1f} us"


def time_change(before_us: float, after_us: float) -> str:
    """Return ``175.0 -> 140.0 ms``; a unit that both have stands once, and so do two times that read the same."""
    old, new = time_text(before_us), time_text(after_us)
    return new if old == new else f"{old.removesuffix(new[new.index(' ') :])} -> {new}"


def relative_change(before: float, after: float) -> str:
    """Return `` (-20.0 %)``; nothing where nothing changed, or there was nothing before."""
    return f" ({100 * (after / before - 1):+.1f} %)" if before > 0 and before != after else ""


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


def kinds_text(kinds: Iterable[str]) -> str:
    """Return ``3 GEMMs, 2 pointwise kernels``, the most frequent first."""
    counts = Counter(kinds).most_common()
    return ", ".join(counted(count, _NOUNS.get(kind, f"{kind} kernel")) for kind, count in counts)


def times(names: Mapping[str, int]) -> str:
    """Return ``aten::t x3, aten::view``."""
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in names.items())


def shapes_text(shapes: Sequence[Any]) -> str:
    """Return ``[8192,768] [768,3072]``: tensors only, as an op was given them."""
    return cut(" ".join(_shape_text(shape) for shape in shapes if shape), _LONGEST_SHAPES)


def _shape_text(shape: Any) -> str:
    return f"[{','.join(map(_shape_text, shape))}]" if isinstance(shape, tuple) else str(shape)


def short_commit(commit: str | None) -> str:
    """Return a commit as reports show it, with the mark of local changes."""
    if not commit:
        return "not known"
    sha, changed, _ = commit.partition("+")
    return sha[:_SHOWN_DIGITS] + changed


# -- verdicts and workloads -------------------------------------------------------------------------------------------


def change_text(verdict: Verdict | None) -> str:
    """Return ``+8.1 %``, or nothing where nothing was compared or judged."""
    if verdict is None or verdict.change is None or verdict.status is Status.NOT_JUDGED:
        return ""
    return f"{100 * verdict.change.estimate:+.1f} %"


class Time(NamedTuple):
    """One of the times of a workload, of the replicates that are judged."""

    label: str
    sample: Sample
    us: str
    change: str  # against the baseline; empty if it is not judged
    verdict: Verdict | None


@dataclass(frozen=True)
class Row:
    """What a table says about one workload."""

    result: WorkloadResult

    @property
    def status(self) -> str:
        """Return the worst of its verdicts, or that there is none."""
        if self.result.status is not None:
            return self.result.status.value
        return "NOT RUN" if self.result.run is None else "NO VERDICT"

    @property
    def is_quiet(self) -> bool:
        """Whether no verdict needs a look."""
        return self.result.status in _QUIET

    @property
    def about(self) -> str:
        """Return the subjects of the verdicts that need a look, or that a pass has no GPU time; else nothing."""
        status, timed = self.result.status, self.result.time_verdict(Timer.DEVICE)
        if status in _PASSES and (timed is None or timed.status not in _PASSES):
            return _NOT_TIMED
        verdicts = [] if self.is_quiet else [each for each in self.result.verdicts if each.status is status]
        return ", ".join(dict.fromkeys(each.subject for each in verdicts))

    @cached_property
    def times(self) -> dict[Timer, Time]:
        """Return the times that were measured."""
        run, found = self.result.run, {}
        for timer in Timer:
            if run is not None and (sample := run.sample(timer)) is not None:
                time_us, verdict = us(observe(sample).mean_us), self.result.time_verdict(timer)
                found[timer] = Time(run.label(timer), sample, time_us, change_text(verdict), verdict)
        return found

    @property
    def device_time(self) -> Time | None:
        return self.times.get(Timer.DEVICE)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Return launches, the device's time, the baseline's, and the change; a dash for what is not known."""
        run, verdict = self.result.run, self.result.time_verdict(Timer.DEVICE)
        return (
            str(run.counts.launches) if run is not None else "-",
            self.device_time.us if self.device_time is not None else "-",
            us(verdict.before_us) if verdict is not None and verdict.before_us is not None else "-",
            change_text(verdict) or "-",
        )


def overall(results: Sequence[Results]) -> str:
    """Return the worst verdict of some runs. Where no verdict fails and pytest did, say so: that is no pass."""
    status = worst([each.status for each in results if each.status is not None])
    if status is not None and status.fails:
        return status.value
    if any(each.was_cut_short for each in results):
        return "CUT SHORT"
    if any(each.exit_status not in _NO_FAILURE or each.failed_tests for each in results):
        return "FAILED"
    if is_partial(results):
        return f"PASS, {_only_judged(results)} only"
    return status.value if status is not None else "NOTHING JUDGED"


def is_partial(results: Sequence[Results]) -> bool:
    """Whether runs pass of which most times were not judged."""
    is_green = all(each.exit_status in _NO_FAILURE and not each.failed_tests for each in results)
    status = worst([each.status for each in results if each.status is not None])
    return is_green and status in _PASSES and bool(_only_judged(results))


def _only_judged(results: Sequence[Results]) -> str:
    """Return ``structure``, or ``structure and GPU time``, if most times were not judged; empty if they were."""
    times = [each for one in results for each in one.verdicts if each.subject in TIME_LABELS]
    judged = [each for each in times if each.status is not Status.NOT_JUDGED]
    if times and 2 * len(judged) >= len(times):
        return ""
    label = Timer.DEVICE.labels[0]
    runs = sum(workload.run is not None for one in results for workload in one.workloads)
    return f"structure and {label}" if 2 * sum(each.subject == label for each in judged) > runs else "structure"


def unjudged_text(results: Sequence[Results]) -> str:
    """Return how many times were not judged, and the commonest reason; empty if all were."""
    times = [each for one in results for each in one.verdicts if each.subject in TIME_LABELS]
    unjudged = [each for each in times if each.status is Status.NOT_JUDGED]
    if not unjudged:
        return ""
    kinds = Counter(map(_kind_of_doubt, unjudged))
    first = next(each for each in unjudged if _kind_of_doubt(each) == kinds.most_common(1)[0][0])
    why = [line.text for line in reasons(first)] or [headline(first)]
    return f"{len(unjudged)} of {counted(len(times), 'time')} not judged: {printable(why[0])}"


def _kind_of_doubt(verdict: Verdict) -> tuple[object, ...]:
    """Return what tells reasons apart: hosts that were slower by different amounts are one reason."""
    first = next(iter(verdict.reasons), verdict.conclusion)
    is_slower = isinstance(first, OtherHostSpeed) and first.after_us > first.before_us
    return type(first), is_slower, first.why if isinstance(first, Unclear) else ""


def counts_text(results: Sequence[Results]) -> list[str]:
    """Return ``3 workloads (1 REGRESSED, 2 PASS)`` and ``9 tests (1 failed)``: numbers and words of our own only."""
    workloads = [workload for each in results for workload in each.workloads]
    statuses = Counter(workload.status for workload in workloads)
    untimed = sum(Row(workload).about == _NOT_TIMED for workload in workloads)
    judged = [f"{statuses[status]} {status.value}" for status in WORST_FIRST if statuses[status]]
    judged += [f"{statuses[None]} not judged"] if statuses[None] else []
    judged += [f"{_NOT_TIMED} in {untimed}"] if untimed else []
    unjudged = unjudged_text(results)
    outcomes = Counter(test.outcome for each in results for test in each.tests)
    ended = [f"{outcomes[outcome]} {outcome}" for outcome in ("failed", "skipped") if outcomes[outcome]]
    parts = ((len(workloads), "workload", judged), (outcomes.total(), "test", ended))
    texts = [counted(total, noun) + (f" ({', '.join(each)})" if each else "") for total, noun, each in parts]
    return [*texts, *([unjudged] if unjudged else [])]


# -- runs and machines ------------------------------------------------------------------------------------------------


def describe(fingerprint: Fingerprint) -> str:
    """Return the machine and the software in one line."""
    versions = [
        ("driver", fingerprint.driver),
        ("CUDA", fingerprint.cuda),
        ("torch", fingerprint.torch),
        ("triton", fingerprint.triton),
        ("liger-kernel", fingerprint.liger_kernel),
    ]
    return printable(", ".join([fingerprint.device, *(f"{name} {version}" for name, version in versions if version)]))


def device_name(results: Results) -> str:
    """Return whose time a table shows: ``CPU`` or ``GPU``; ``time`` where nothing was measured."""
    if results.fingerprint is None:
        return "time"
    return "CPU" if results.fingerprint.arch == "cpu" else "GPU"


def conditions_text(runs: Sequence[Run], not_watched: str = "") -> list[str]:
    """Return the conditions of the GPU during these runs in one line, or why nobody watched it; none if that is not known."""
    seen = [run.conditions for run in runs if run.conditions is not None]
    if not_watched and runs and not seen:
        return [printable(f"conditions not watched: {not_watched}")]

    def known(name: str) -> list[Any]:
        return [value for each in seen if (value := getattr(each, name)) is not None]

    parts = [form.format(sum_up(values)) for name, sum_up, form in _CONDITIONS if (values := known(name))]
    throttled: list[dict[str, float]] = known("throttled_ms")
    for cause in dict.fromkeys(cause for each in throttled for cause in each):
        milliseconds = sum(each.get(cause, 0.0) for each in throttled)
        parts += [f"{cause} for {milliseconds:.0f} ms"] if milliseconds >= 1 else []
    return [printable("conditions: " + ", ".join(parts))] if parts else []


def rows(results: Results) -> list[Row]:
    """Return what a table lists: all but the workloads that could not run."""
    return [Row(each) for each in results.workloads if each.run is not None or each.verdicts]


def notes(results: Results) -> list[str]:
    """Return one line for each reason why workloads did not run, with the workloads that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for workload in results.workloads:
        if workload.unavailable:
            by_reason.setdefault(cut(workload.unavailable), []).append(cut(workload.id))
    return [f"not run: {', '.join(workloads)}: {reason}" for reason, workloads in by_reason.items()]
