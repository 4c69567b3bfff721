"""`kernelgauge merge`: the results of shards and machines in one folder."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..errors import ResultsError, StorageError, printable
from ..judge import Status, worst
from ..results import Results, WorkloadResult
from .output import Commands, Exit, note, say, terminal

__all__ = ["add_commands"]

_LARGEST_PAGE_BYTES = 1_000_000  # GitHub takes a little more for the summary of a step
_MOST_MACHINES = 4  # listed for one workload
_MOST_WORKLOADS = 200  # listed
_QUIET = (Status.PASS, Status.IMPROVED)


def add_commands(commands: Commands) -> None:
    merging = commands.add_parser(
        "merge",
        help="combine the results of shards and machines",
        description="Join the results of shards, and put those of other GPUs side by side. Writes results.json (one "
        "machine) or MACHINE/results.json (several), with their traces, report.html and report.md. "
        "Exit code: 0 if everything was decided and nothing failed, 1 if not, 2 if something could not be read.",
        allow_abbrev=False,
    )
    merging.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="a results.json, or a folder with one or with folders of them",
    )
    merging.add_argument("--to", required=True, type=Path, metavar="DIR", help="a new or empty folder")
    merging.set_defaults(command=_merge)


def _merge(options: argparse.Namespace) -> Exit:
    from ..files import write_atomically
    from ..report.html import html
    from ..report.markdown import summary_markdown
    from ..report.page import Section, markdown, text, unlinked
    from ..results import NAME, encode_results, folder_names
    from ..results.merge import copy_traces, find_problems, merge, outcome, with_trace_prefix

    _check_destination(options.to)
    parts, folders, refused = _read(options.results)
    if not parts:
        raise ResultsError(
            "there is nothing to merge",
            where=printable(", ".join(map(str, options.results))),
            expected="a results.json of a run, or folders that hold some",
            next_command="pytest perf",
        )
    merged = merge(parts)
    linked: list[Results] = []
    for place, (results, name) in enumerate(zip(merged, folder_names(merged), strict=True)):
        merged[place] = whole = copy_traces(results, folders, options.to / name)
        write_atomically(options.to / name / NAME, encode_results(whole))
        linked.append(with_trace_prefix(whole, f"{name}/" if name else ""))
    problems = [*refused, *find_problems(merged)]
    headline, *lines = _summary_lines(merged, problems)
    head = unlinked(markdown([Section(headline, tuple(lines))]))
    rest = summary_markdown(linked, limit_bytes=_LARGEST_PAGE_BYTES - len(head.encode()))
    write_atomically(options.to / "report.md", f"{head}\n{rest}".encode())
    write_atomically(options.to / "report.html", html(linked).encode())
    width, color = terminal()
    say(text([Section(lines=(headline, *lines))], width=width, color=color))
    for each in merged:
        for warning in each.warnings:
            note(f"warning: {warning}")
    note(f"written: {options.to}")
    if refused:
        return Exit.TROUBLE
    return Exit.YES if outcome(merged, problems) == "PASS" else Exit.NO


def _read(paths: Sequence[Path]) -> tuple[list[Results], list[Path], list[str]]:
    """Return the parts, their folders, and the reasons why others were refused.

    The path of each trace gets the number of its folder as a prefix.
    """
    from ..results import find_results, is_of_something_else, read_results
    from ..results.merge import with_trace_prefix

    parts: list[Results] = []
    folders: list[Path] = []
    refused: list[str] = []
    for path in paths:
        for file in find_results(path):
            try:
                results = read_results(file)
            except ResultsError as error:
                reason = f"{file}: {error.what}" + (f" (got {error.got})" if error.got else "")
                is_foreign = file != path and is_of_something_else(file)
                note(f"{'skipped' if is_foreign else 'refused'}: {reason}")
                refused += [] if is_foreign else [reason]
                continue
            parts.append(with_trace_prefix(results, f"{len(folders)}/"))
            folders.append(file.parent)
    return parts, folders, refused


def _check_destination(folder: Path) -> None:
    """Raise `StorageError` if there is anything in the folder: files of an earlier merge would pass for new ones."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError("the folder is not empty", where=printable(str(folder)), expected="a new or empty folder")


def _summary_lines(merged: Sequence[Results], problems: Sequence[str]) -> list[str]:
    """Return the headline, the problems, and a line for each workload that did not pass everywhere."""
    from ..report.wording import counted, cut
    from ..results.merge import outcome

    workloads = [(results, workload) for results in merged for workload in results.workloads]
    by_workload: dict[str, list[tuple[Results, WorkloadResult]]] = {}
    for results, workload in workloads:
        by_workload.setdefault(workload.id, []).append((results, workload))
    counts = Counter(
        worst([workload.status for _, workload in each if workload.status is not None]) for each in by_workload.values()
    )
    parts = [f"{counts[status]} {status.value}" for status in Status if counts[status]]
    parts += [f"{counts[None]} not judged"] if counts[None] else []
    machines = len({_machine(results, workload) for results, workload in workloads})
    total = counted(len(by_workload), "workload") + (f" ({', '.join(parts)})" if parts else "")
    shown = [_workload_line(name, each) for name, each in by_workload.items() if any(not _passes(w) for _, w in each)]
    more = [f"and {counted(len(shown) - _MOST_WORKLOADS, 'more workload')}"] if len(shown) > _MOST_WORKLOADS else []
    headline = f"{outcome(merged, problems)}  {counted(machines, 'machine')}, {total}"
    return [headline, *(cut(f"failed: {each}") for each in problems), *map(cut, shown[:_MOST_WORKLOADS]), *more]


def _fails(status: Status | None) -> bool:
    return status is not None and status.fails


def _passes(workload: WorkloadResult) -> bool:
    return workload.status in _QUIET or (workload.status is None and bool(workload.unavailable))


def _workload_line(name: str, results: Sequence[tuple[Results, WorkloadResult]]) -> str:
    """Return ``mlp: REGRESSED on NVIDIA H200 a1b2 (+8.1 %); PASS on NVIDIA H200 c3d4 (+0.1 %)``, the worst first."""
    from ..report.wording import change_of_one, status_text

    machines: dict[str, list[str]] = {}
    for part, workload in sorted(results, key=lambda each: (each[1].status in _QUIET, not _fails(each[1].status))):
        timed = [verdict for verdict in workload.verdicts if verdict.change is not None]
        timed.sort(key=lambda verdict: (not verdict.status.fails, verdict.subject != "device time"))
        change = f" ({change_of_one(timed[0].change)})" if timed else ""
        machines.setdefault(status_text(workload), []).append(_machine(part, workload) + change)
    texts = []
    for status, names in machines.items():
        more = f" and {len(names) - _MOST_MACHINES} more" if len(names) > _MOST_MACHINES else ""
        texts.append(f"{status} on {', '.join(names[:_MOST_MACHINES])}{more}")
    return f"{name}: {'; '.join(texts)}"


def _machine(results: Results, workload: WorkloadResult) -> str:
    fingerprint, gpu = results.machine_of(workload)
    device = fingerprint.device if fingerprint is not None else "nothing measured"
    return " ".join(part for part in (device, gpu, f"on {results.host}" if results.host else "") if part)
