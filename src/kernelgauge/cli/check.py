"""`kernelgauge check`: hold traces that others recorded to a baseline. `check_trace` does the same in a test."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BaselineError, TraceError, printable
from . import Commands, Exit, add_command, note, say

if TYPE_CHECKING:
    from ..judge import Verdict
    from ..judge.trace_baseline import Job, TraceBaseline
    from ..trace.steps import StepTrace

_BASELINES = Path("baselines")
_ENDING = re.compile(r"(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$")
# Parts of a file's name that do not name the job: numbers, and those of ranks.
_NUMBERS = re.compile(r"(?:rank|dp|tp|pp|ep|cp|dcp|iteration)?\d*")
_RANK = re.compile(r"(?:rank|TP)[-_]?(\d+)", re.IGNORECASE)
_APART_S = 60.0  # more than the clocks of the hosts of one job differ


def add_commands(commands: Commands) -> None:
    description = (
        "Compare the steady steps of traces of torch.profiler with a baseline: kernels by phase and module, their times, "
        "and communication. Traces of several ranks of a job are read together; several of one rank are several runs."
    )
    check = add_command(
        commands, "check", _check, "hold traces of vLLM, SGLang, torchtitan, ... to a baseline", description
    )
    check.epilog = "Exits with 1 if a trace regressed or changed, and with 2 if it cannot be compared."
    check.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    outputs = check.add_mutually_exclusive_group()
    outputs.add_argument("--update", action="store_true", help="make the baseline of these traces of unchanged code")
    outputs.add_argument("--html", metavar="FILE", help="also write one self-contained page")
    where = "a folder, or a file that ends in .json (default: baselines/traces/NAME.json, by the names of the traces)"
    check.add_argument("-b", "--baselines", type=Path, default=_BASELINES, metavar="PATH", help=where)


def check_trace(*traces: Path | str, baselines: Path | str = _BASELINES) -> list[Verdict]:
    """Compare traces of torch.profiler with their baseline, as `kernelgauge check` does. Return the verdicts.

    Args:
        traces: of one run: of one rank or several. Of several runs: as many of each rank.
        baselines: the folder, or the file, that ``kernelgauge check --update`` has written.

    Raises:
        AssertionError: a trace regressed or changed; it says what did.
        KernelgaugeError: they cannot be compared.
    """
    from ..report.findings import in_full

    verdicts = _judge([Path(trace) for trace in traces], Path(baselines))[0]
    if any(each.status.fails for each in verdicts):
        raise AssertionError("\n\n".join(in_full(each) for each in verdicts if each.status.fails))
    return verdicts


def _check(options: argparse.Namespace) -> Exit:
    from ..report.findings import brief
    from ..results.files import write_atomically

    if options.update:
        return _update(options.traces, options.baselines)
    verdicts, page = _judge(options.traces, options.baselines)
    if options.html:
        write_atomically(Path(options.html), page().encode())
    say("\n".join(brief(each, more="on the page: --html FILE") for each in verdicts))
    if options.html:
        note(f"written: {options.html}")
    return Exit.NO if any(each.status.fails for each in verdicts) else Exit.YES


def _judge(paths: Sequence[Path], baselines: Path) -> tuple[list[Verdict], Callable[[], str]]:
    """Return the verdicts, and what makes their page."""
    from ..judge import Status
    from ..judge.steps import compare_phases, judge_traces
    from ..report.text import counted, short_commit

    name, file = _named(paths, baselines)
    update = printable(f"kernelgauge check --update {' '.join(map(str, paths[:1]))}")
    baseline = _read_baseline(file)
    if baseline is None:
        what = f"{Status.NO_BASELINE.value}: no baseline for these traces"
        raise BaselineError(what, where=str(file), next_command=f"{update}   (with traces of unchanged code)")
    jobs = _read_jobs(paths)
    first = next(iter(jobs[0].values()))
    old, new = (
        {
            "device": each.device,
            "world size": each.world_size,
            "ranks": sorted(ranks),
            # As the profiler was asked: other rows would count as other kernels.
            "modules": "recorded" if any(row.module for row in rows) else "not recorded",
            "ops of kernels": "recorded" if any(row.op for row in rows) else "not recorded",
        }
        for each, ranks, rows in ((baseline, baseline.ranks, baseline.rows), (first, jobs[0], first.places))
    )
    if moves := ", ".join(f"{label} {old[label]} -> {new[label]}" for label in old if old[label] != new[label]):
        what = f"{Status.INCOMPARABLE.value}: structure not compared: {moves}"
        raise BaselineError(what, where=str(file), next_command=update)
    verdicts = judge_traces(name, jobs, baseline)
    if not verdicts:
        kinds = printable(", ".join(next(iter(jobs[0].values())).steps))
        raise TraceError("no steps of a kind in the baseline", where=str(file), got=kinds, next_command=update)

    def page() -> str:
        from ..report.html import check_html  # jinja2: only for a page

        recorded = baseline.recorded
        facts = {
            "traces": ", ".join(map(str, paths)),
            "baseline": f"{file}, {counted(baseline.runs, 'run')} of {recorded.at[:10]}, commit {short_commit(recorded.commit)}",
            "device": baseline.device,
            "steps found by": baseline.found_by,
        }
        return check_html(verdicts, compare_phases(name, jobs, baseline), facts)

    return verdicts, page


def _update(paths: Sequence[Path], baselines: Path) -> Exit:
    from ..judge.baseline import Recorded
    from ..judge.trace_baseline import encode_trace_baseline, trace_baseline
    from ..results import __version__, nearest_tag, revision
    from ..results.files import write_atomically

    _, file = _named(paths, baselines)
    _read_baseline(file)  # what is no baseline of traces is not overwritten
    jobs = _read_jobs(paths)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    recorded = Recorded(now, revision(Path.cwd()), __version__, nearest_tag(Path.cwd()))
    try:
        made = trace_baseline(jobs, recorded)
    except ValueError as error:
        raise _of_different_jobs(paths, str(error)) from error
    write_atomically(file, encode_trace_baseline(made))
    steps = sum(each.steps for kinds in made.ranks.values() for each in kinds.values())
    counts = f"runs {len(jobs)}, ranks {len(made.ranks)}, steps {steps}"
    say(printable(f"written: {file}   {made.device}, {counts}, found by {made.found_by}"))
    return Exit.YES


def _of_different_jobs(paths: Sequence[Path], got: str) -> TraceError:
    where = ", ".join(map(str, paths[:2])) + (", ..." if len(paths) > 2 else "")
    expected = "one job of one minute, each rank as often as the others; of several runs, unchanged code"
    return TraceError("the traces are of different jobs", where=where, got=got, expected=expected)


def _named(paths: Sequence[Path], baselines: Path) -> tuple[str, Path]:
    """Return the name of a job, and the file of its baseline."""
    if baselines.suffix == ".json":
        return baselines.stem, baselines
    words = [re.split(r"[^A-Za-z0-9]+", _ENDING.sub("", path.name)) for path in paths]
    shared = [word for word in words[0] if all(word in other for other in words) and not _NUMBERS.fullmatch(word)]
    name = "-".join(shared) or "trace"
    return name, baselines / "traces" / f"{name}.json"


def _read_baseline(file: Path) -> TraceBaseline | None:
    from ..judge.trace_baseline import decode_trace_baseline

    try:
        return decode_trace_baseline(file.read_bytes(), where=str(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError("the baseline cannot be read", where=str(file), got=str(error)) from error


def _read_jobs(paths: Sequence[Path]) -> list[Job]:
    """Return the traces of each run, by rank. One trace is in memory at a time. Raises `TraceError`."""
    by_rank: dict[int, list[StepTrace]] = defaultdict(list)
    for path in paths:
        trace = _read(path)
        named = _RANK.search(path.name)
        by_rank[trace.rank if trace.rank is not None else int(named[1]) if named else 0].append(trace)
    traces = [trace for each in by_rank.values() for trace in each]
    labels: dict[str, set[object]] = {
        "devices": {each.device for each in traces},
        "world sizes": {each.world_size for each in traces},
        "numbers of traces of a rank": {len(each) for each in by_rank.values()},
    }
    for label, values in labels.items():
        if len(values) > 1:
            raise _of_different_jobs(paths, f"{label} {', '.join(sorted(map(str, values)))}")
    runs = [sorted(by_rank[rank], key=lambda trace: trace.span_s) for rank in sorted(by_rank)]
    jobs = [dict(zip(sorted(by_rank), run, strict=True)) for run in zip(*runs, strict=True)]
    for job in jobs:
        gap_s = max(each.span_s[0] for each in job.values()) - min(each.span_s[1] for each in job.values())
        if gap_s > _APART_S:
            raise _of_different_jobs(paths, f"one ended {gap_s:.0f} s before another began")
    return list(jobs)


def _read(path: Path) -> StepTrace:
    from ..trace.steps import find_steps
    from .traces import read_trace, uncollected

    try:
        with uncollected():
            return find_steps(read_trace(path))
    except ValueError as error:
        expected = "a profile of at least two steps behind the warm-up, of torch.profiler.schedule for example"
        raise TraceError("no steady step", where=str(path), got=str(error), expected=expected) from error
