"""The summary of a run: as text at the end of pytest, and as Markdown for a pull request."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from statistics import median
from typing import Any

from rich.text import Text

from ..errors import printable
from ..judge import NUMERICS, RATIO, STRUCTURE, TIME_LABELS, WORST_FIRST, Status, Verdict, worst
from ..judge import evidence as e
from ..judge.baseline import compare_fingerprints
from ..judge.cause import at_edited_lines, compare_launches
from ..results import Results, WorkloadResult
from ..run import Fingerprint, Run, Sample, Timer, observe
from ..trace import grouped
from .findings import (
    Finding,
    baseline_commits,
    brief,
    change_text,
    failing_verdicts,
    findings,
    in_full,
    is_same_code,
    is_unconfirmed,
    next_step,
    notable_verdicts,
    only_reasons,
    reasons,
    uncompared_verdicts,
)
from .text import (
    Column,
    Section,
    as_markdown,
    counted,
    cut,
    first,
    named,
    sensitivity_text,
    short_commit,
    us,
)
from .text import (
    times as repeated,
)
from .words import baseline_us, headline, host_speed, reason_line, slower_host

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
_NO_FAILURE = (0, 5)  # pytest.ExitCode: all passed; no test was collected
_CONDITIONS: tuple[tuple[str, Callable[[list[float]], float], str], ...] = (
    ("median_sm_clock_mhz", median, "SM clock {:.0f} MHz"),
    ("lowest_sm_clock_mhz", min, "lowest {:.0f}"),
    ("max_temperature_c", max, "{:.0f} C"),
    ("max_power_watts", max, "{:.0f} W"),
)
_LONGEST_NOTE, _LONGEST_COMMAND, _LONGEST_KERNEL = 1000, 4000, 100
_MOST_KERNELS, _KERNELS_BEFORE = 30, 3  # lines of a diff, and those before the first change
_MOST_ANNOTATIONS = 10  # errors of a step that GitHub shows
_CUT_OFF = "Not all of it fits into this page: results.json has the rest."


# -- what a run amounts to -------------------------------------------------------------------------


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
        """Return the subjects of the verdicts that need a look, or which times of a pass were not
        judged; else nothing.
        """
        status = self.result.status
        if self.is_quiet and any(map(is_unconfirmed, self.result.verdicts)):
            return "time not confirmed"
        if status in _PASSES:
            times = [each for each in self.result.verdicts if each.subject in TIME_LABELS]
            unjudged = [each.subject for each in times if each.status not in _PASSES]
            names = "time" if len(unjudged) == len(times) else ", ".join(unjudged)
            return f"{names} not judged" if names else ""
        verdicts = (
            []
            if self.is_quiet
            else [each for each in self.result.verdicts if each.status is status]
        )
        return ", ".join(dict.fromkeys(each.subject for each in verdicts))

    @property
    def times(self) -> dict[Timer, Verdict | None]:
        """Return the times that were measured, with their verdicts."""
        run = self.result.run
        return (
            {}
            if run is None
            else {each: self.result.time_verdict(each) for each in Timer if each in run.samples}
        )

    @property
    def timer(self) -> Timer:
        """Return the time that a table shows."""
        run = self.result.run
        return _shown_timer(run.fingerprint) if run is not None else Timer.DEVICE

    @property
    def cells(self) -> tuple[str, ...]:
        """Return launches, the time that is judged first, the baseline's, and the change; a dash
        where one is unknown or was left unjudged.
        """
        run = self.result.run
        if run is None:
            return ("-",) * 4
        timer = self.timer
        verdict = self.result.time_verdict(timer)
        before_us, change = verdict and baseline_us(verdict), change_text(verdict)
        return (
            str(run.counts.launches),
            mean(run.samples[timer]) if timer in run.samples else "-",
            us(before_us) if before_us and change else "-",
            change or "-",
        )


def mean(sample: Sample) -> str:
    """Return the mean of the replicates that are judged, in microseconds."""
    return us(observe(sample).mean_us)


def rows(results: Results) -> list[Row]:
    """Return what a table lists: all but the workloads that could not run."""
    return [Row(each) for each in results.workloads if each.run is not None or each.verdicts]


def overall(results: Sequence[Results]) -> str:
    """Return the worst verdict of some runs.

    Where no verdict fails and pytest did, say so: that is no pass.
    """
    status = _worst(results)
    if status is not None and status.fails:
        return status.value
    if any(each.was_cut_short for each in results):
        return "CUT SHORT"
    if _has_failed(results):
        return "FAILED"
    if _is_structure_only(results):
        is_other = any(each.subject != NUMERICS for one in results for each in one.verdicts)
        return f"PASS, {'structure' if is_other else 'results'} only"
    return status.value if status is not None else "NOTHING JUDGED"


def _worst(results: Sequence[Results]) -> Status | None:
    return worst([each.status for each in results if each.status is not None])


def _has_failed(results: Sequence[Results]) -> bool:
    return any(each.exit_status not in _NO_FAILURE or each.failed_tests for each in results)


def _is_structure_only(results: Sequence[Results]) -> bool:
    """Whether it is a pass of which no time was judged."""
    is_pass = _worst(results) in _PASSES and not _has_failed(results)
    return is_pass and all(each.status is Status.NOT_JUDGED for each in _time_verdicts(results))


def scope(results: Sequence[Results]) -> str:
    """Return what a pass has judged, and how finely: ``(kernels, end to end at +77 %); CPU time
    not judged``.

    Empty if it is no pass, or if its status says it.
    """
    if _worst(results) not in _PASSES or _has_failed(results) or _is_structure_only(results):
        return ""
    judged, unjudged, by_subject = [], [], dict[str, list[Verdict]]()
    for each in _time_verdicts(results):
        if not is_same_code(each):
            by_subject.setdefault(each.subject, []).append(each)
    for subject, times in by_subject.items():
        known = [
            each.change
            for each in times
            if each.status is not Status.NOT_JUDGED and each.change is not None
        ]
        if not known:
            unjudged.append(subject)
            continue
        seen = sorted(
            (each for each in known if each.sensitivity is not None), key=attrgetter("sensitivity")
        )
        ends = list(dict.fromkeys(map(sensitivity_text, seen[:1] + seen[-1:])))
        at = (
            f" at {' to '.join([*(text.removesuffix(' %') for text in ends[:-1]), *ends[-1:]])}"
            if ends
            else ""
        )
        some = f" in {len(known)} of {len(times)}" if len(known) < len(times) else ""
        judged.append(f"{subject}{at}{some}")
    rest = f"; {', '.join(unjudged)} not judged" if unjudged else ""
    kernels = (
        ["kernels"]
        if any(each.subject == STRUCTURE for one in results for each in one.verdicts)
        else []
    )
    return f"({', '.join([*kernels, *judged])}){rest}"


def _time_verdicts(results: Sequence[Results]) -> list[Verdict]:
    return [each for one in results for each in one.verdicts if each.subject in TIME_LABELS]


def _unjudged(results: Sequence[Results]) -> tuple[str, str]:
    """Return how many times were not judged, and a reason of the commonest kind; empty if all
    were.
    """
    times = _time_verdicts(results)
    unjudged = [
        each for each in times if each.status is Status.NOT_JUDGED and not is_unconfirmed(each)
    ]
    if not unjudged:
        return "", ""
    # By kind: of hosts that were slower, each was so by another factor.
    found = grouped(
        ((it, (*it.reasons, it.conclusion)[0]) for it in unjudged),
        lambda pair: (type(pair[1]), getattr(pair[1], "why", "")),
    )
    commonest = max(found.values(), key=len)
    speeds = [it.after_us / it.before_us for _, it in commonest if isinstance(it, e.OtherHostSpeed)]
    verdict, _ = commonest[0]
    why = [line.text for line in reasons(verdict)] or [headline(verdict)]
    text = host_speed(speeds) if len(set(speeds)) > 1 else why[0]
    return f"{len(unjudged)} of {counted(len(times), 'time')} not judged", printable(text)


def recording_doubt(verdicts: Sequence[Verdict]) -> str:
    """Return which of the times that were recorded are too noisy to judge one like them, and the
    commonest reason; empty if none is. `verdicts`: on each, by itself.
    """
    doubts = [
        (each.workload, reason_line(doubt).text)
        for each in verdicts
        if each.status in (Status.NOT_JUDGED, Status.UNDECIDED)
        and (doubt := getattr(each.conclusion, "doubt", None)) is not None
    ]
    if not doubts:
        return ""
    why = Counter(why for _, why in doubts).most_common(1)[0][0]
    names = named(dict.fromkeys(name for name, _ in doubts))
    some = f"{len(doubts)} of {counted(len(verdicts), 'time')}"
    return (
        f"a run like this one cannot judge {some} that were recorded ({names}): {why}; record "
        "again on a quiet machine"
    )


def _kept(results: Sequence[Results]) -> list[str]:
    """Return how many times were not compared, since they are of the same code."""
    times = _time_verdicts(results)
    kept = sum(map(is_same_code, times))
    some = f"{kept} of {counted(len(times), 'time')}"
    return [f"{some} not compared: the same code"] if kept else []


def _uncompared(results: Sequence[Results]) -> list[str]:
    """Return how many results, and tensors of others, could not be compared with float64, by
    reason; empty if all could.
    """
    found = [each for one in results for each in one.verdicts if each.subject == NUMERICS]
    tensors = sum(getattr(each.conclusion, "unjudged", 0) for each in found)
    text = f"{counted(tensors, 'tensor')} not compared: rounding alone explains any error"
    texts = [text] * bool(tensors)
    if left := uncompared_verdicts(results):
        reasons = Counter(headline(each).partition(": ")[2] for each in left).most_common()
        shown = [f"{why} ({count})" if len(reasons) > 1 else why for why, count in reasons]
        texts.append(
            f"{len(left)} of {counted(len(found), 'result')} not compared: {', '.join(shown)}"
        )
    return texts


def counts_text(results: Sequence[Results]) -> list[str]:
    """Return ``3 workloads (1 REGRESSED, 2 PASS)`` and ``9 tests (1 failed)``: numbers and words of
    our own only.
    """
    workloads = [workload for each in results for workload in each.workloads]
    statuses = Counter(workload.status for workload in workloads)
    judged = [f"{statuses[status]} {status.value}" for status in WORST_FIRST if statuses[status]]
    judged += [f"{statuses[None]} not judged"] if statuses[None] else []
    outcomes = Counter(test.outcome for each in results for test in each.tests)
    ended = [
        f"{outcomes[outcome]} {outcome}" for outcome in ("failed", "skipped") if outcomes[outcome]
    ]
    parts = ((len(workloads), "workload", judged), (outcomes.total(), "test", ended))
    texts = [
        counted(total, noun) + (f" ({', '.join(each)})" if each else "")
        for total, noun, each in parts
    ]
    unconfirmed = sum(map(is_unconfirmed, _time_verdicts(results)))
    texts += (
        [f"{counted(unconfirmed, 'slower time')} not confirmed by a fresh process"]
        if unconfirmed
        else []
    )
    unjudged = ": ".join(filter(None, _unjudged(results)))
    return [*texts, *filter(None, [unjudged]), *_kept(results), *_uncompared(results)]


def describe(fingerprint: Fingerprint) -> str:
    """Return the machine and the software in one line."""
    fields = {
        "driver": "driver",
        "cuda": "CUDA",
        "torch": "torch",
        "triton": "triton",
        "liger_kernel": "liger-kernel",
    }
    versions = [
        f"{name} {version}"
        for field, name in fields.items()
        if (version := getattr(fingerprint, field))
    ]
    return printable(", ".join([fingerprint.device, *versions]))


def conditions_text(runs: Sequence[Run], not_watched: str = "") -> list[str]:
    """Return the conditions of the GPU during these runs in one line, or why nobody watched it;
    none if that is not known.
    """
    seen = [run.conditions for run in runs if run.conditions is not None]
    if not_watched and runs and not seen:
        return [printable(f"conditions not watched: {not_watched}")]

    def known(name: str) -> list[Any]:
        return [value for each in seen if (value := getattr(each, name)) is not None]

    parts = [
        form.format(sum_up(values)) for name, sum_up, form in _CONDITIONS if (values := known(name))
    ]
    throttled_ms = Counter[str]()
    for each in known("throttled_ms"):
        throttled_ms.update(each)
    parts += [f"{cause} for {total:.0f} ms" for cause, total in throttled_ms.items() if total >= 1]
    return [printable("conditions: " + ", ".join(parts))] if parts else []


def notes(results: Results) -> list[str]:
    """Return one line for each reason why workloads did not run, with the workloads that it holds
    for.
    """
    by_reason: dict[str, list[str]] = {}
    for workload in results.workloads:
        if workload.unavailable:
            by_reason.setdefault(cut(workload.unavailable), []).append(cut(workload.id))
    return [f"not run: {', '.join(workloads)}: {reason}" for reason, workloads in by_reason.items()]


def unknown_machines(results: Results) -> list[str]:
    """Return the GPUs, or hosts of CPUs, that passed and that the baselines do not know."""
    if results.status is not None and (
        results.status.fails or results.status is Status.INCOMPARABLE
    ):
        return []
    pairs = [(each.run, each.baseline) for each in results.workloads]
    judged = [
        (run, baseline)
        for run, baseline in pairs
        if run is not None and baseline is not None and run.samples
    ]
    if not all(
        compare_fingerprints(baseline.fingerprint, run.fingerprint).identical
        for run, baseline in judged
    ):
        return []  # another software joins no baseline
    known = [(run.place, {each.place for each in old.processes}) for run, old in judged]
    return sorted({place for place, places in known if place is not None and place not in places})


def _shown_timer(device: Fingerprint) -> Timer:
    return Timer.DEVICE if Timer.DEVICE.is_judged_on(device) else Timer.END_TO_END


def _time_column(results: Results) -> str:
    """Return whose time a table shows: ``GPU us``, or on a CPU ``end to end us``; ``time us`` where
    nothing was measured.
    """
    if results.fingerprint is None:
        return "time us"
    return "GPU us" if _shown_timer(results.fingerprint) is Timer.DEVICE else "end to end us"


# -- on a terminal ---------------------------------------------------------------------------------


def summary(
    results: Results, recorded: Collection[str] = (), *, is_verbose: bool = False
) -> list[Section]:
    """Return the machine, the table, and what the table has no room for.

    `recorded`: workloads that had no baseline, and get this run as theirs. `is_verbose`: also where
    each result that was not compared failed.
    """
    sections: list[Section] = []
    # without a device there is none, and the verdicts say so
    if results.fingerprint is not None and results.runs:
        machine = (
            describe(results.fingerprint),
            *conditions_text(results.runs, results.not_watched),
        )
        sections.append(Section(lines=machine))
    if rows(results):
        sections.append(_table(results, recorded))
    warnings = (f"warning: {warning}" for warning in results.warnings)
    sections += [
        Section(code=in_full(each)) for each in uncompared_verdicts([results] * is_verbose)
    ]
    return [*sections, *_remarks(results), Section(lines=[*notes(results), *warnings])]


def _table(results: Results, recorded: Collection[str]) -> Section:
    """Return one line for each workload: launches, their time, baseline, change, verdict, and what
    the verdict is about.

    On a narrow terminal the last column is left out, since the failures name the tests.
    """
    # Titles of two lines: a default id and all columns fit in 80.
    words = _time_column(results).split()
    half = len(words) // 2
    time_column = f"{' '.join(words[:half])}\n{' '.join(words[half:])}"
    titles = (
        "launches",
        time_column,
        "base-\nline us",
        "change",
    )
    numbers = (Column(title, number=True) for title in titles)
    columns = (
        Column("workload", is_cut=True),
        *numbers,
        Column("verdict", is_whole=True),
        Column("about", is_optional=True),
    )
    cells: list[Sequence[str | Text]] = []
    for row in rows(results):
        is_recorded = row.result.status is Status.NO_BASELINE and row.result.id in recorded
        style = "green" if is_recorded else _STYLES.get(row.result.status, "dim")
        verdict = Text("RECORDED" if is_recorded else row.status, style=style)
        cells.append((row.result.id, *row.cells, verdict, row.about))
    return Section(columns=columns, rows=cells, gap=1)


def _remarks(results: Results) -> Iterator[Section]:
    """Yield what the table has no room for: verdicts that fail no test, and facts about the
    machine.
    """
    passing = [verdict for verdict in results.verdicts if verdict.status is Status.PASS]
    ratios = (each for each in passing if each.subject == RATIO)
    yield from (Section(code=brief(each)) for each in (*notable_verdicts(results), *ratios))
    for verdict in results.verdicts:
        is_said = verdict.status not in (Status.PASS, Status.NO_BASELINE)
        if not is_said and only_reasons(verdict, e.ChoiceMoved).reasons:
            yield Section(code=in_full(only_reasons(verdict, e.ChoiceMoved)))
    (unjudged, why), status = _unjudged([results]), overall([results])
    judged = scope([results])
    if _is_structure_only([results]):
        unjudged = f"{status}: {unjudged or 'no time was measured'}"
    machine = (
        f"machine: {line.text}"
        for verdict in passing
        for line in reasons(only_reasons(verdict, e.Machine))
    )
    times = filter(None, (each.result.time_verdict(Timer.END_TO_END) for each in rows(results)))
    if _time_column(results).startswith(Timer.END_TO_END.label) and any(
        change_text(it) and slower_host(it) != 1 for it in times
    ):
        yield Section(lines=["baseline us: scaled to the speed of this host"])
    times_text = ": ".join(filter(None, [unjudged, why]))
    lines = [*([f"{status} {judged}"] if judged else []), *filter(None, [times_text])]
    lines += [*_kept([results]), *_uncompared([results])]
    yield Section(lines=[*lines, *dict.fromkeys(machine)])


# -- in a pull request -----------------------------------------------------------------------------


def summary_markdown(results: Sequence[Results], *, limit_bytes: int = 1_000_000) -> str:
    """Return GitHub's Markdown, at most `limit_bytes` long in UTF-8: what does not fit is cut off.

    One line with the verdict and the largest change; then of each run one row for each workload,
    the command that accepts the changes, and in folds the failures, the machine and notes. GitHub
    refuses more than 1 MiB for a step's summary, and more than 65536 characters in a comment.
    """
    counts = [f"{len(results)} runs"] if len(results) != 1 else []
    slowest = next((cases[0].slower for cases in findings(results)), None)
    counts += [f"at most {change_text(slowest)} {slowest.subject}"] if slowest is not None else []
    status = overall(results)
    doubt = "> [!WARNING]\n> " if _is_structure_only(results) else ""  # GitHub shows it amber
    head = (
        f"{doubt}**{f'{status} {scope(results)}'.strip()}**  "
        f"{', '.join([*counts, *counts_text(results)])}\n"
    )
    sections = [section for each in results for section in _blocks(each)]
    content = f"\n{as_markdown(sections)}" if sections else ""
    page = f"{head}{content}"
    if len(page.encode()) <= limit_bytes:
        return page
    # At the top: what is folded and cut off ends with the page.
    page = f"{head}\n{_CUT_OFF}\n{content}"
    return page.encode()[:limit_bytes].rpartition(b"\n")[0].decode() + "\n"


def error_commands(results: Results, place: Callable[[str], str | None] | None) -> Iterator[str]:
    """Yield a command of GitHub Actions for each cause of a failure: it marks a line of the diff.

    The line is the user's, or else the test is marked. `place`: the path of a file from the root of
    the repository; None for a file that is not there. Without it there is no command.
    """
    if place is None:
        return
    for cases in findings([results])[:_MOST_ANNOTATIONS]:
        found = cases[0]
        lines = [each.line for each in found.cause.places] if found.cause is not None else []
        tests = (
            each
            for each in results.failed_tests
            if (each.workload == found.workload if found.workload else each.name == found.about)
        )
        marked = [
            *((each.file, each.line) for each in lines),
            *((each.node.partition("::")[0], 0) for each in tests),
        ]
        file, line = next(((path, line) for file, line in marked if (path := place(file))), ("", 0))
        more = f" and {counted(len(cases) - 1, 'more workload')}" if len(cases) > 1 else ""
        name = found.workload or found.about
        title = f"kernelgauge: {name}{more}: {found.status} {found.change}".rstrip()
        properties = {"file": file, "line": str(line or ""), "title": title}
        shown = (f"{name}={_of_github(text, ':,')}" for name, text in properties.items() if text)
        yield f"::error {','.join(shown)}::{_of_github(found.headline)}"


def _of_github(text: str, separators: str = "") -> str:
    """Return a text as a command of GitHub Actions holds it (its toolkit, core/src/command.ts)."""
    for each in f"%\r\n{separators}":
        text = text.replace(each, f"%{ord(each):02X}")
    return printable(text)


def _blocks(results: Results) -> Iterator[Section]:
    found: dict[str, list[Finding]] = {}
    for finding in (finding for cases in findings([results]) for finding in cases):
        found.setdefault(finding.workload, []).append(finding)
    failing: list[tuple[str, ...]] = []
    quiet: list[tuple[str, ...]] = []
    for row in rows(results):
        causes = found.pop(row.result.id, [])
        # a test may have failed without a verdict
        worst = causes[0] if causes and row.is_quiet else row
        cells = (cut(row.result.id), _lines(worst.status, worst.about), *row.cells, _causes(causes))
        (quiet if row.is_quiet and not causes else failing).append(cells)
    tests = [each for causes in found.values() for each in causes]  # of what was not measured
    failing += [
        (cut(each.workload or each.about), each.status, *"----", _causes([each])) for each in tests
    ]
    numbers = [
        Column(title, number=True)
        for title in ("launches", _time_column(results), "baseline", "change")
    ]
    columns = (Column("workload"), Column("verdict"), *numbers, Column("cause"))
    tables = [Section(columns=columns, rows=each) for each in (failing, quiet) if each]
    yield from tables[:1]
    words, command = next_step([results])
    if command:
        yield Section(lines=[words], code=cut(command, _LONGEST_COMMAND))
    yield from islice(_kernel_diffs(results), 1)
    if failures := "\n".join(map(brief, failing_verdicts(results))):
        yield Section("Failures", code="\n".join(map(cut, failures.split("\n"))), is_folded=True)
    if uncompared := "\n".join(map(in_full, uncompared_verdicts([results]))):
        code = "\n".join(map(cut, uncompared.split("\n")))
        yield Section("Results not compared", code=code, is_folded=True)
    yield from (
        replace(each, title=f"{len(quiet)} without a failure", is_folded=True)
        for each in tables[1:]
    )
    warnings = (f"warning: {' '.join(warning.split())}" for warning in results.warnings)
    yield Section(lines=[cut(line, _LONGEST_NOTE) for line in (*notes(results), *warnings)])
    yield Section("Machine and command", lines=list(map(cut, _machine(results))), is_folded=True)


def _kernel_diffs(results: Results) -> Iterator[Section]:
    """Yield the kernels of each cause before and after, as a diff: GitHub colours it."""
    workloads = {each.id: each for each in results.workloads}
    for case in (case for cases in findings([results]) for case in cases):
        workload = workloads.get(case.workload)
        if workload is None or workload.run is None or not workload.baseline or not case.cause:
            continue
        run = at_edited_lines(workload.run, workload.baseline)
        stored = workload.baseline.kernels
        rows = [("", 0)]  # the mark and the name, and how often in a row
        for each in compare_launches(workload.baseline, stored, run):
            marks = (
                [(" ", each.after)]
                if each.what.is_pair
                else [("-", each.before), ("+", each.after)]
            )
            for mark, kernel in ((mark, kernel) for mark, side in marks for kernel in side):
                row = f"{mark} {cut(kernel.identity.shown, _LONGEST_KERNEL)}"
                rows = (
                    [*rows[:-1], (row, rows[-1][1] + 1)]
                    if rows[-1][0] == row
                    else [*rows, (row, 1)]
                )
        lines = repeated(rows[1:])
        marked = next((place for place, line in enumerate(lines) if line[0] != " "), None)
        if marked is not None:
            lines = lines[max(0, marked - _KERNELS_BEFORE) :]
            title = f"kernels of {case.workload}, before (-) and after (+)"
            yield Section(
                lines=[title], code="\n".join(first(lines, _MOST_KERNELS)), language="diff"
            )


def _lines(*lines: str) -> str:
    """Return the lines of a cell, without those that are empty."""
    return "\n".join(cut(line) for line in lines if line)


def _causes(causes: Sequence[Finding]) -> str:
    """Return the sentence and the first line of code of each cause, as lines."""
    return _lines(
        *(line for each in causes for line in (each.headline, each.code.partition("\n")[0]))
    )


def _machine(results: Results) -> Iterator[str]:
    gpu = f", GPU {results.gpu}" if results.gpu else ""
    yield f"{describe(results.fingerprint)}{gpu}" if results.fingerprint else "nothing was measured"
    yield from conditions_text(results.runs, results.not_watched)
    baselines = baseline_commits([results])
    yield f"commit {short_commit(results.commit)}" + (
        f", baselines of {baselines}" if baselines else ""
    )
    run = f"{results.started_at}, {results.seconds:.0f} s, kernelgauge {results.kernelgauge}"
    yield f"{shlex.join(('pytest', *results.arguments))}  ({run})"
