"""The summary of a run: as text at the end of pytest, and as Markdown for a pull request."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from rich.text import Text

from ..errors import printable
from ..judge import RATIO, STRUCTURE, TIME_LABELS, WORST_FIRST, Status, Verdict, worst
from ..judge.baseline import compare
from ..judge.evidence import Choice
from ..results import Results, WorkloadResult
from ..run import Fingerprint, Run, Sample, Timer, observe
from .findings import (
    Finding,
    baseline_commits,
    brief,
    change_text,
    failing_verdicts,
    findings,
    in_full,
    is_unconfirmed,
    next_step,
    notable_verdicts,
    reasons,
)
from .text import Column, Section, as_markdown, counted, cut, fenced, render, sensitivity_text, short_commit, table, us
from .words import headline

_STYLES: dict[Status | None, str] = {
    Status.PASS: "green",
    Status.IMPROVED: "cyan",
    Status.REGRESSED: "bold red",
    Status.CHANGED: "bold red",
    Status.INVALID: "bold red",
    Status.UNDECIDED: "yellow",
    Status.INCOMPARABLE: "yellow",
    Status.NO_BASELINE: "yellow",
}
_QUIET = (Status.PASS, Status.NO_BASELINE, Status.NOT_JUDGED, None)
_PASSES = (Status.PASS, Status.IMPROVED)
_STRUCTURE_ONLY = "PASS, structure only"
_NO_FAILURE = (0, 5)  # pytest.ExitCode: all passed; no test was collected
_CONDITIONS: tuple[tuple[str, Callable[[list[float]], float], str], ...] = (
    ("median_sm_clock_mhz", median, "SM clock {:.0f} MHz"),
    ("lowest_sm_clock_mhz", min, "lowest {:.0f}"),
    ("max_temperature_c", max, "{:.0f} C"),
    ("max_power_watts", max, "{:.0f} W"),
)
_LONGEST_NOTE, _LONGEST_COMMAND = 1000, 4000
_CUT_OFF = "Not all of it fits into this page: results.json has the rest."


# -- what a run amounts to --------------------------------------------------------------------------------------------


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
        """Return the subjects of the verdicts that need a look, or which times of a pass were not judged; else nothing."""
        status = self.result.status
        if self.is_quiet and any(map(is_unconfirmed, self.result.verdicts)):
            return "time not confirmed"
        if status in _PASSES:
            times = [each for each in self.result.verdicts if each.subject in TIME_LABELS]
            unjudged = [_short(each.subject) for each in times if each.status not in _PASSES]
            names = "time" if len(unjudged) == len(times) else ", ".join(unjudged)
            return f"{names} not judged" if names else ""
        verdicts = [] if self.is_quiet else [each for each in self.result.verdicts if each.status is status]
        return ", ".join(dict.fromkeys(each.subject for each in verdicts))

    @cached_property
    def times(self) -> dict[Timer, Time]:
        """Return the times that were measured."""
        run, found = self.result.run, {}
        for timer in Timer:
            if run is not None and (sample := run.sample(timer)) is not None:
                time_us, verdict = us(observe(sample).mean_us), self.result.time_verdict(timer)
                found[timer] = Time(timer.label_on(run.fingerprint), sample, time_us, change_text(verdict), verdict)
        return found

    @property
    def device_time(self) -> Time | None:
        return self.times.get(Timer.DEVICE)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Return launches, the device's time, the baseline's, and the change; a dash for what is not known."""
        run, verdict, time = self.result.run, self.result.time_verdict(Timer.DEVICE), self.device_time
        before_us = verdict.before_us if verdict is not None else self._unjudged_before_us
        return (
            str(run.counts.launches) if run is not None else "-",
            time.us if time is not None else "-",
            us(before_us) if before_us is not None else "-",
            change_text(verdict) or "-",
        )

    @property
    def _unjudged_before_us(self) -> float | None:
        """Return the baseline's time of the ops of a CPU, which has no verdict."""
        run, baseline = self.result.run, self.result.baseline
        if run is None or baseline is None or self.device_time is None or Timer.DEVICE.is_judged_on(run.fingerprint):
            return None
        times = baseline.times(Timer.DEVICE, baseline.entry_like(run.kernels)[0])
        return geometric_mean(each.observation.mean_us for each in times) if times else None


def rows(results: Results) -> list[Row]:
    """Return what a table lists: all but the workloads that could not run."""
    return [Row(each) for each in results.workloads if each.run is not None or each.verdicts]


def overall(results: Sequence[Results]) -> str:
    """Return the worst verdict of some runs. Where no verdict fails and pytest did, say so: that is no pass."""
    status = worst([each.status for each in results if each.status is not None])
    if status is not None and status.fails:
        return status.value
    if any(each.was_cut_short for each in results):
        return "CUT SHORT"
    if any(each.exit_status not in _NO_FAILURE or each.failed_tests for each in results):
        return "FAILED"
    if status in _PASSES and all(each.status is Status.NOT_JUDGED for each in _time_verdicts(results)):
        return _STRUCTURE_ONLY
    return status.value if status is not None else "NOTHING JUDGED"


def scope(results: Sequence[Results]) -> str:
    """Return what a pass has judged, and how finely: ``(kernels, latency at +77 %); CPU time not judged``.

    Empty if it is no pass, or if its status says it.
    """
    if overall(results) not in _PASSES:
        return ""
    judged, unjudged, by_subject = [], [], dict[str, list[Verdict]]()
    for each in _time_verdicts(results):
        by_subject.setdefault(each.subject, []).append(each)
    for subject, times in by_subject.items():
        known = [each.change for each in times if each.status is not Status.NOT_JUDGED and each.change is not None]
        if not known:
            unjudged.append(_short(subject))
            continue
        seen = sorted((each for each in known if each.sensitivity is not None), key=attrgetter("sensitivity"))
        ends = list(dict.fromkeys(map(sensitivity_text, seen[:1] + seen[-1:])))
        at = f" at {' to '.join([*(text.removesuffix(' %') for text in ends[:-1]), *ends[-1:]])}" if ends else ""
        some = f" in {len(known)} of {len(times)}" if len(known) < len(times) else ""
        judged.append(f"{_short(subject)}{at}{some}")
    rest = f"; {', '.join(unjudged)} not judged" if unjudged else ""
    kernels = ["kernels"] if any(each.subject == STRUCTURE for one in results for each in one.verdicts) else []
    return f"({', '.join([*kernels, *judged])}){rest}"


def _short(subject: str) -> str:
    return "latency" if subject == Timer.END_TO_END.label else subject


def _time_verdicts(results: Sequence[Results]) -> list[Verdict]:
    return [each for one in results for each in one.verdicts if each.subject in TIME_LABELS]


def _unjudged(results: Sequence[Results]) -> tuple[str, str]:
    """Return how many times were not judged, and a reason of the commonest kind; empty if all were."""
    times = _time_verdicts(results)
    unjudged = [each for each in times if each.status is Status.NOT_JUDGED and not is_unconfirmed(each)]
    if not unjudged:
        return "", ""
    # By kind: of hosts that were slower, each was so by another factor.
    kinds = [
        (type(first), getattr(first, "why", "")) for each in unjudged for first in [*each.reasons, each.conclusion][:1]
    ]
    commonest = unjudged[kinds.index(Counter(kinds).most_common(1)[0][0])]
    why = [line.text for line in reasons(commonest)] or [headline(commonest)]
    return f"{len(unjudged)} of {counted(len(times), 'time')} not judged", printable(why[0])


def counts_text(results: Sequence[Results]) -> list[str]:
    """Return ``3 workloads (1 REGRESSED, 2 PASS)`` and ``9 tests (1 failed)``: numbers and words of our own only."""
    workloads = [workload for each in results for workload in each.workloads]
    statuses = Counter(workload.status for workload in workloads)
    judged = [f"{statuses[status]} {status.value}" for status in WORST_FIRST if statuses[status]]
    judged += [f"{statuses[None]} not judged"] if statuses[None] else []
    outcomes = Counter(test.outcome for each in results for test in each.tests)
    ended = [f"{outcomes[outcome]} {outcome}" for outcome in ("failed", "skipped") if outcomes[outcome]]
    parts = ((len(workloads), "workload", judged), (outcomes.total(), "test", ended))
    texts = [counted(total, noun) + (f" ({', '.join(each)})" if each else "") for total, noun, each in parts]
    unconfirmed = sum(map(is_unconfirmed, _time_verdicts(results)))
    texts += [f"{counted(unconfirmed, 'slower time')} not confirmed by a fresh process"] if unconfirmed else []
    return [*texts, *filter(None, [": ".join(filter(None, _unjudged(results)))])]


def describe(fingerprint: Fingerprint) -> str:
    """Return the machine and the software in one line."""
    fields = {"driver": "driver", "cuda": "CUDA", "torch": "torch", "triton": "triton", "liger_kernel": "liger-kernel"}
    versions = [f"{name} {version}" for field, name in fields.items() if (version := getattr(fingerprint, field))]
    return printable(", ".join([fingerprint.device, *versions]))


def conditions_text(runs: Sequence[Run], not_watched: str = "") -> list[str]:
    """Return the conditions of the GPU during these runs in one line, or why nobody watched it; none if that is not known."""
    seen = [run.conditions for run in runs if run.conditions is not None]
    if not_watched and runs and not seen:
        return [printable(f"conditions not watched: {not_watched}")]

    def known(name: str) -> list[Any]:
        return [value for each in seen if (value := getattr(each, name)) is not None]

    parts = [form.format(sum_up(values)) for name, sum_up, form in _CONDITIONS if (values := known(name))]
    throttled_ms = Counter[str]()
    for each in known("throttled_ms"):
        throttled_ms.update(each)
    parts += [f"{cause} for {total:.0f} ms" for cause, total in throttled_ms.items() if total >= 1]
    return [printable("conditions: " + ", ".join(parts))] if parts else []


def notes(results: Results) -> list[str]:
    """Return one line for each reason why workloads did not run, with the workloads that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for workload in results.workloads:
        if workload.unavailable:
            by_reason.setdefault(cut(workload.unavailable), []).append(cut(workload.id))
    return [f"not run: {', '.join(workloads)}: {reason}" for reason, workloads in by_reason.items()]


def unknown_machines(results: Results) -> list[str]:
    """Return the GPUs, or hosts of CPUs, that passed and that the baselines do not know."""
    if results.status is not None and (results.status.fails or results.status is Status.INCOMPARABLE):
        return []
    pairs = [(each.run, each.baseline) for each in results.workloads]
    judged = [(run, baseline) for run, baseline in pairs if run is not None and baseline is not None]
    if not all(compare(baseline.fingerprint, run.fingerprint).identical for run, baseline in judged):
        return []  # another software joins no baseline
    known = [(run.place, {each.place for entry in old.entries for each in entry.processes}) for run, old in judged]
    return sorted({place for place, places in known if place is not None and place not in places})


def _time_column(results: Results) -> str:
    """Return whose time a table shows: ``CPU us`` or ``GPU us``; ``time us`` where nothing was measured."""
    if results.fingerprint is None:
        return "time us"
    return "CPU us" if results.fingerprint.arch == "cpu" else "GPU us"


# -- on a terminal ----------------------------------------------------------------------------------------------------


def summary(results: Results, *, width: int, color: bool, failures: bool, recorded: Collection[str] = ()) -> str:
    """Return the machine, the table, and what the table has no room for.

    `failures`: every failing verdict, in full. `recorded`: workloads that had no baseline, and get this run as theirs.
    """
    lines: list[str] = []
    if results.fingerprint is not None and results.runs:  # without a device there is none, and the verdicts say so
        lines += [describe(results.fingerprint), *conditions_text(results.runs, results.not_watched)]
    if rows(results):
        lines.append(_table(results, recorded, width=width, color=color))
    if failures:
        lines += map(in_full, failing_verdicts(results))
    lines += _remarks(results)
    return "\n".join([*lines, *notes(results), *(f"warning: {printable(warning)}" for warning in results.warnings)])


def _table(results: Results, recorded: Collection[str], *, width: int, color: bool) -> str:
    """Return one line for each workload: launches, their time, baseline, change, verdict, and what the verdict is about.

    Where that would break lines, the last column is left out, since the failures name the tests.
    """
    # Titles of two lines: a default id and all columns fit in 80.
    titles = ("launches", _time_column(results).replace(" ", "\n"), "base-\nline us", "change")
    columns = [Column("workload"), *(Column(title, number=True) for title in titles), Column("verdict", is_whole=True)]
    cells = []
    for row in rows(results):
        is_recorded = row.result.status is Status.NO_BASELINE and row.result.id in recorded
        style = "green" if is_recorded else _STYLES.get(row.result.status, "dim")
        verdict = Text("RECORDED" if is_recorded else row.status, style=style)
        cells.append((row.result.id, *row.cells, verdict, row.about))
    if any(about for *_, about in cells):
        text = render(table([*columns, Column("about")], cells), width=width, color=color)
        if text.count("\n") == len(cells) + 2:  # one line each, below two of titles
            return text.removesuffix("\n")
    return render(table(columns, [row[:-1] for row in cells]), width=width, color=color).removesuffix("\n")


def _remarks(results: Results) -> Iterator[str]:
    """Yield what the table has no room for: verdicts that fail no test, and facts about the machine."""
    yield from map(brief, notable_verdicts(results))
    passing = [verdict for verdict in results.verdicts if verdict.status is Status.PASS]
    yield from (brief(each) for each in passing if each.subject == RATIO)
    for verdict in passing:
        choices = tuple(each for each in verdict.reasons if isinstance(each, Choice))
        if choices and verdict.subject == Timer.DEVICE.label:
            yield in_full(replace(verdict, reasons=choices))
    (unjudged, why), status = _unjudged([results]), overall([results])
    if status == _STRUCTURE_ONLY:
        unjudged = f"{status}: {unjudged or 'no time was measured'}"
    elif unjudged and (judged := scope([results])):
        unjudged = f"{status} {judged}"
    yield from filter(None, [": ".join(filter(None, [unjudged, why]))])
    lines = [line for verdict in passing for line in reasons(verdict) if line.label == "machine"]
    yield from dict.fromkeys(f"machine: {printable(line.text)}" for line in lines)


# -- in a pull request ------------------------------------------------------------------------------------------------


def summary_markdown(results: Sequence[Results], *, limit_bytes: int = 1_000_000) -> str:
    """Return GitHub's Markdown, at most `limit_bytes` long in UTF-8: what does not fit is cut off.

    One line with the verdict and the largest change; then of each run one row for each workload, the command that accepts
    the changes, and in folds the failures, the machine and notes. GitHub refuses more than 1 MiB for a step's summary, and
    more than 65536 characters in a comment.
    """
    counts = [f"{len(results)} runs"] if len(results) != 1 else []
    slowest = next((cases[0].slower for cases in findings(results)), None)
    counts += [f"at most {change_text(slowest)} {slowest.subject}"] if slowest is not None else []
    status = overall(results)
    doubt = "> [!WARNING]\n> " if status == _STRUCTURE_ONLY else ""  # GitHub shows it amber
    head = f"{doubt}**{f'{status} {scope(results)}'.strip()}**  {', '.join([*counts, *counts_text(results)])}\n"
    blocks = [block for each in results for block in _blocks(each)]
    page = "\n".join([head, *blocks])
    if len(page.encode()) <= limit_bytes:
        return page
    # At the top: what is folded and cut off ends with the page.
    page = "\n".join([head, f"{_CUT_OFF}\n", *blocks])
    return page.encode()[:limit_bytes].rpartition(b"\n")[0].decode() + "\n"


def _blocks(results: Results) -> Iterator[str]:
    found: dict[str, list[Finding]] = {}
    for finding in (finding for cases in findings([results]) for finding in cases):
        found.setdefault(finding.workload, []).append(finding)
    failing: list[tuple[str, ...]] = []
    quiet: list[tuple[str, ...]] = []
    for row in rows(results):
        causes = found.pop(row.result.id, [])
        worst = causes[0] if causes and row.is_quiet else row  # a test may have failed without a verdict
        cells = (cut(row.result.id), _lines(worst.status, worst.about), *row.cells, _causes(causes))
        (quiet if row.is_quiet and not causes else failing).append(cells)
    tests = [each for causes in found.values() for each in causes]  # of what was not measured
    failing += [(cut(each.workload or each.about), each.status, *"----", _causes([each])) for each in tests]
    numbers = [Column(title, number=True) for title in ("launches", _time_column(results), "baseline", "change")]
    columns = (Column("workload"), Column("verdict"), *numbers, Column("cause"))
    tables = [as_markdown([Section(columns=columns, rows=each)]) for each in (failing, quiet) if each]
    yield from tables[:1]
    words, command = next_step([results])
    if command:
        yield f"{words}\n\n{fenced(cut(command, _LONGEST_COMMAND) + chr(10))}"
    if failures := "\n".join(map(brief, failing_verdicts(results))):
        yield _folded("Failures", fenced("".join(f"{cut(line)}\n" for line in failures.split("\n"))))
    yield from (_folded(f"{len(quiet)} without a failure", table) for table in tables[1:])
    if lines := [*notes(results), *(f"warning: {' '.join(warning.split())}" for warning in results.warnings)]:
        yield "".join(f"- {as_markdown([Section(lines=(cut(line, _LONGEST_NOTE),))])}" for line in lines)
    yield _folded("Machine and command", as_markdown([Section(lines=tuple(map(cut, _machine(results))))]))


def _lines(*lines: str) -> str:
    """Return the lines of a cell, without those that are empty."""
    return "\n".join(cut(line) for line in lines if line)


def _causes(causes: Sequence[Finding]) -> str:
    """Return the sentence and the first line of code of each cause, as lines."""
    return _lines(*(line for each in causes for line in (each.headline, each.code.partition("\n")[0])))


def _folded(title: str, content: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n</details>\n"


def _machine(results: Results) -> Iterator[str]:
    gpu = f", GPU {results.gpu}" if results.gpu else ""
    yield f"{describe(results.fingerprint)}{gpu}" if results.fingerprint else "nothing was measured"
    yield from conditions_text(results.runs, results.not_watched)
    baselines = baseline_commits([results])
    yield f"commit {short_commit(results.commit)}" + (f", baselines of commit {baselines}" if baselines else "")
    run = f"{results.started_at}, {results.seconds:.0f} s, kernelgauge {results.kernelgauge}"
    yield f"{shlex.join(('pytest', *results.arguments))}  ({run})"
