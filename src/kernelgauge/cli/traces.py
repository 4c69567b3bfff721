"""`kernelgauge trace` and `check-trace`: traces of torch.profiler, without a GPU."""

from __future__ import annotations

import argparse
import gc
import gzip
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BaselineError, KernelgaugeError, TraceError, printable
from ..trace import BLOCK_BYTES, Trace, read_blocks
from . import Commands, Exit, add_command, note, say, say_page
from .results import require_force_under_ci

if TYPE_CHECKING:
    from ..judge import Verdict
    from ..judge.trace_baseline import Job, TraceBaseline
    from ..report.text import Section
    from ..trace import StepTrace, Summary

_TOP = 20


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands,
        "trace",
        _trace,
        "explain a trace, or what differs between two",
        "Explain a trace of torch.profiler (.json, .json.gz): kernels, what launched them, "
        "why the GPU was idle. "
        "With another one: what differs, and what that costs.",
    )
    parser.add_argument("trace", metavar="TRACE")
    parser.add_argument("after", metavar="AFTER", nargs="?", help="compare TRACE with this one")
    groupings = ("launch", "config", "name", "op", "module")
    parser.add_argument(
        "--by", choices=groupings, metavar="ROW", help=f"of one trace: {', '.join(groupings)}"
    )
    parser.add_argument(
        "--fail-on-change",
        action="store_true",
        help=(
            "of two traces: exit with 1 if other kernels ran, or with another launch configuration"
        ),
    )
    about = f"rows of each table; 0 for all (default: {_TOP})"
    parser.add_argument("--top", type=int, default=_TOP, metavar="N", help=about)
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("--step", type=int, metavar="N", help="only ProfilerStep#N")
    selection.add_argument("--region", metavar="NAME", help="only record_function(NAME)")
    selection.add_argument(
        "--whole", action="store_true", help="the whole trace, not each profiler step"
    )
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument(
        "--json", action="store_true", help="print JSON, with times in microseconds and full names"
    )
    forms.add_argument("--markdown", action="store_true", help="print Markdown for a pull request")
    _add_check(commands)


def _trace(options: argparse.Namespace) -> Exit:
    """Explain one trace, or compare two. An option of the other use is refused."""
    misplaced = "--fail-on-change" if options.after is None else "--by"
    if getattr(options, misplaced.strip("-").replace("-", "_")):
        traces = "two traces" if options.after is None else "one trace"
        raise KernelgaugeError(
            f"{misplaced} is for {traces}",
            got=" ".join(filter(None, (options.trace, options.after))),
        )
    return _show(options) if options.after is None else _diff(options)


def _show(options: argparse.Namespace) -> Exit:
    from ..report.trace_json import json_text, show_data
    from ..report.traces import show_page

    summary = _summary(options.trace, options)
    if options.by == "module" and not any(kernel.module for kernel in summary.kernels):
        raise TraceError(
            "no kernel has a module",
            where=options.trace,
            got="no rows of nn.Module around the ops",
            expected="a trace of torch.profiler.profile(with_stack=True, with_modules=True)",
            next_command=f"kernelgauge trace {options.trace} --by op",
        )
    if options.json:
        say(json_text(show_data(summary, name=printable(options.trace), by=options.by)))
    else:
        _say_page(
            show_page(summary, name=Path(options.trace).name, top=_top(options), by=options.by),
            options,
        )
    return Exit.YES


def _diff(options: argparse.Namespace) -> Exit:
    from ..report.trace_json import compare_data, json_text
    from ..report.traces import TraceComparison, compare_page

    sides = [_summary(path, options) for path in (options.trace, options.after)]
    comparison = TraceComparison(*sides)
    if options.json:
        say(
            json_text(
                compare_data(comparison, names=(printable(options.trace), printable(options.after)))
            )
        )
    else:
        names = (Path(options.trace).name, Path(options.after).name)
        names = names if names[0] != names[1] else (options.trace, options.after)
        _say_page(compare_page(comparison, names=names, top=_top(options)), options)
    if options.fail_on_change and comparison.gpu_changed:
        return Exit.NO
    # Fail closed: an incomplete trace cannot show that nothing changed.
    is_incomplete = any(side.problems_inside or side.not_read or not side.kernels for side in sides)
    return Exit.TROUBLE if options.fail_on_change and is_incomplete else Exit.YES


def _top(options: argparse.Namespace) -> int:
    return options.top if options.top > 0 else sys.maxsize


def _say_page(page: list[Section], options: argparse.Namespace) -> None:
    from ..report.text import as_markdown

    if options.markdown:
        say(as_markdown(page))
    else:
        say_page(page)


def _summary(path: str, options: argparse.Namespace) -> Summary:
    """Summarize the selected windows: by default the profiler's steps, or the whole trace if there
    are none.
    """
    from ..trace import summarize_trace

    with uncollected():
        trace = read_trace(path)
        name = options.region if options.step is None else f"ProfilerStep#{options.step}"
        windows = (
            [trace.whole()] if options.whole else None if name is None else trace.regions(name)
        )
        if windows == []:
            there = sorted({mark.name for mark in trace.annotations})
            more = f" and {len(there) - _TOP} more" if len(there) > _TOP else ""
            got = f"{', '.join(there[:_TOP])}{more}" or "no annotations"
            raise TraceError(f"there is no {name} in the trace", where=path, got=got)
        return summarize_trace(trace, windows)


@contextmanager
def uncollected() -> Iterator[None]:
    """Read a trace in this.

    It is a million small objects without a cycle: looking for one takes a seventh of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def read_trace(path: Path | str) -> Trace:
    """Read a trace of torch.profiler or Nsight Systems, gzip or not. Raises `TraceError` for anything else."""
    try:
        with open(path, "rb") as file:
            stream = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
            return read_blocks(iter(partial(stream.read, BLOCK_BYTES), b""), str(path))
    # a NUL in the path is a ValueError
    except (OSError, EOFError, ValueError, zlib.error) as error:
        is_damaged = isinstance(error, (gzip.BadGzipFile, EOFError, zlib.error))
        raise TraceError(
            "cannot read the trace",
            where=str(path),
            got=f"damaged gzip: {error}" if is_damaged else str(error),
            expected="a whole gzip file" if is_damaged else "a file that can be read",
        ) from error


# -- traces and their baseline ---------------------------------------------------------------------

_BASELINES = Path("baselines")
_ENDING = re.compile(r"(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$")
# Parts of a file's name that do not name the job: numbers, and those of ranks.
_NUMBERS = re.compile(r"(?:rank|dp|tp|pp|ep|cp|dcp|iteration)?\d*")
_RANK = re.compile(r"(?:rank|TP)[-_]?(\d+)", re.IGNORECASE)
_APART_S = 60.0  # more than the clocks of the hosts of one job differ


def _add_check(commands: Commands) -> None:
    description = (
        "Compare the steady steps of traces of torch.profiler with a baseline: kernels by "
        "phase and module, their times, "
        "and communication. Traces of several ranks of a job are read together; several of "
        "one rank are several runs."
    )
    check = add_command(
        commands,
        "check-trace",
        _check,
        "compare traces of vLLM, SGLang, torchtitan, ... with a baseline",
        description,
    )
    check.epilog = (
        "Exits with 1 if a trace regressed or changed, and with 2 if it cannot be compared."
    )
    check.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    outputs = check.add_mutually_exclusive_group()
    outputs.add_argument(
        "--update", action="store_true", help="make the baseline of these traces of unchanged code"
    )
    outputs.add_argument("--html", metavar="FILE", help="also write one self-contained page")
    check.add_argument("--force", action="store_true", help="with --update: store under CI too")
    where = (
        "a folder, or a file that ends in .json (default: baselines/traces/NAME.json, by the "
        "names of the traces)"
    )
    check.add_argument("--baselines", type=Path, default=_BASELINES, metavar="PATH", help=where)


def check_trace(*traces: Path | str, baselines: Path | str = _BASELINES) -> list[Verdict]:
    """Compare traces of torch.profiler with their baseline, as `kernelgauge check-trace` does.
    Return the verdicts.

    Args:
        traces: of one run: of one rank or several. Of several runs: as many of each rank.
        baselines: the folder, or the file, that ``kernelgauge check-trace --update`` has written.

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
        require_force_under_ci(options, "check-trace --update")
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
    from ..judge import WORST_FIRST, Status
    from ..judge.steps import compare_phases, judge_traces
    from ..judge.trace_baseline import job_moves
    from ..report.text import counted, cut, short_commit

    name, file = _named(paths, baselines)
    option = "" if baselines == _BASELINES else f" --baselines {baselines}"
    update = printable(f"kernelgauge check-trace --update {' '.join(map(str, paths))}{option}")
    baseline = _read_baseline(file)
    if baseline is None:
        what = f"{Status.NO_BASELINE.value}: no baseline for these traces"
        raise BaselineError(
            what, where=str(file), next_command=f"{update}   (with traces of unchanged code)"
        )
    jobs = _read_jobs(paths, baseline.found_by)
    if moves := ", ".join(cut(str(each)) for each in job_moves(baseline, jobs[0])):
        what = f"{Status.INCOMPARABLE.value}: structure not compared: {moves}"
        raise BaselineError(what, where=str(file), next_command=update)
    verdicts = judge_traces(name, jobs, baseline)
    if not verdicts:
        kinds = printable(", ".join(next(iter(jobs[0].values())).steps))
        raise TraceError(
            "no steps of a kind in the baseline", where=str(file), got=kinds, next_command=update
        )

    def page() -> str:
        from ..report.html import as_html, check_page  # jinja2: only for a page

        recorded = baseline.recorded
        facts = {
            "traces": ", ".join(map(str, paths)),
            "baseline": (
                f"{file}, {counted(baseline.runs, 'run')} of {recorded.at[:10]}, commit "
                f"{short_commit(recorded.commit)}"
            ),
            "device": baseline.device,
            "steps found by": baseline.found_by,
        }
        status = min((each.status for each in verdicts), key=WORST_FIRST.index)
        page = check_page(verdicts, compare_phases(name, jobs, baseline))
        return as_html(
            page,
            title="Steps of traces against their baseline",
            status=f"{status.value}",
            facts=facts,
        )

    return verdicts, page


def _update(paths: Sequence[Path], baselines: Path) -> Exit:
    from ..baselines import BaselineStore
    from ..judge.baseline import Recorded
    from ..judge.trace_baseline import encode_trace_baseline, trace_baseline
    from ..results import __version__, nearest_tag, revision
    from ..results.files import write_atomically

    _, file = _named(paths, baselines)
    jobs = _read_jobs(paths)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    recorded = Recorded(now, revision(Path.cwd()), __version__, nearest_tag(Path.cwd()))
    try:
        made = trace_baseline(jobs, recorded)
    except ValueError as error:
        raise _of_different_jobs(paths, str(error)) from error
    with BaselineStore(file.parent if file == baselines else baselines).locked():
        _read_baseline(file)  # it raises for another file, which is not overwritten
        write_atomically(file, encode_trace_baseline(made))
    steps = sum(each.steps for kinds in made.ranks.values() for each in kinds.values())
    counts = f"runs {len(jobs)}, ranks {len(made.ranks)}, steps {steps}"
    say(printable(f"written: {file}   {made.device}, {counts}, found by {made.found_by}"))
    return Exit.YES


def _of_different_jobs(paths: Sequence[Path], got: str) -> TraceError:
    where = ", ".join(map(str, paths[:2])) + (", ..." if len(paths) > 2 else "")
    expected = (
        "one job of one minute, each rank as often as the others; of several runs, unchanged code"
    )
    return TraceError("the traces are of different jobs", where=where, got=got, expected=expected)


def _named(paths: Sequence[Path], baselines: Path) -> tuple[str, Path]:
    """Return the name of a job, and the file of its baseline."""
    if baselines.suffix == ".json":
        return baselines.stem, baselines
    words = [re.split(r"[^A-Za-z0-9]+", _ENDING.sub("", path.name)) for path in paths]
    shared = [
        word
        for word in words[0]
        if all(word in other for other in words) and not _NUMBERS.fullmatch(word)
    ]
    name = "-".join(shared) or "trace"
    return name, baselines / "traces" / f"{name}.json"


def _read_baseline(file: Path) -> TraceBaseline | None:
    from ..judge.trace_baseline import decode_trace_baseline
    from ..results.files import read_file, require_inside

    try:
        require_inside(file, file.parent)  # before it is written too
        return decode_trace_baseline(read_file(file), where=str(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError(
            "the baseline cannot be read", where=str(file), got=str(error)
        ) from error


def _read_jobs(paths: Sequence[Path], found_by: str | None = None) -> list[Job]:
    """Return the traces of each run, by rank, with steps `found_by` this.

    One trace is in memory at a time. Raises `TraceError`.
    """
    by_rank: dict[int, list[StepTrace]] = defaultdict(list)
    for path in paths:
        trace = _steps(path, found_by)
        named = _RANK.search(path.name)
        by_rank[trace.rank if trace.rank is not None else int(named[1]) if named else 0].append(
            trace
        )
    traces = [trace for each in by_rank.values() for trace in each]
    labels: dict[str, set[object]] = {
        "devices": {each.device for each in traces},
        "world sizes": {each.world_size for each in traces},
        "steps found by": {each.found_by for each in traces},
        "numbers of traces of a rank": {len(each) for each in by_rank.values()},
    }
    for label, values in labels.items():
        if len(values) > 1:
            raise _of_different_jobs(paths, f"{label} {', '.join(sorted(map(str, values)))}")
    runs = [sorted(by_rank[rank], key=lambda trace: trace.span_s) for rank in sorted(by_rank)]
    jobs = [dict(zip(sorted(by_rank), run, strict=True)) for run in zip(*runs, strict=True)]
    for job in jobs:
        gap_s = max(each.span_s[0] for each in job.values()) - min(
            each.span_s[1] for each in job.values()
        )
        if gap_s > _APART_S:
            raise _of_different_jobs(paths, f"one ended {gap_s:.0f} s before another began")
    return list(jobs)


def _steps(path: Path, found_by: str | None) -> StepTrace:
    from ..trace import find_steps

    try:
        with uncollected():
            return find_steps(read_trace(path), found_by)
    except ValueError as error:
        expected = (
            "two steps or more behind the warm-up, by torch.profiler.schedule or each in "
            'record_function("train_step")'
        )
        raise TraceError(
            "no steady step", where=str(path), got=str(error), expected=expected
        ) from error
