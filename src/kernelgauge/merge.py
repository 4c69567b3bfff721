"""`kernelgauge merge`: the results of shards and machines in one folder, with the worst verdict of each workload."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec

from .artifacts import folder_names
from .baselines import is_file_name, write_atomically
from .commands.output import Commands, Exit, say, terminal
from .errors import ResultsError, StorageError
from .judge import Status, compare, worst
from .printable import printable
from .results import Results, WorkloadResult, encode_results, join, started
from .results_file import NAME, find_results, is_of_something_else, read_results
from .shares import Share

__all__ = ["add_commands", "merge"]

_SHARD_OPTION = "--perf-shard"
_MOST_SHARDS = 20  # missing ones that are named
_MOST_MACHINES = 4  # of one workload that are named
_MOST_WORKLOADS = 200  # that are listed
_LARGEST_PAGE_BYTES = 1_000_000  # GitHub takes a little more for the summary of a step
_QUIET = (Status.PASS, Status.IMPROVED)


# -- which parts become one -------------------------------------------------------------------------------------------


def merge(parts: Sequence[Results]) -> list[Results]:
    """Return one `Results` for each machine, in order of their starts.

    Parts join if they have the same software, the same kind of device and the same commit, and no workload of theirs was
    measured on two GPUs. A part that measured nothing joins if there is only one machine. `results.join` says which part
    counts where two have the same; merging merged results changes nothing.
    """
    ordered = sorted(parts, key=started)
    measured = [[part] for part in ordered if part.fingerprint is not None]
    for of_one_gpu in (True, False):  # first what one GPU measured, so that the order of shards changes nothing
        measured = _grouped(measured, of_one_gpu=of_one_gpu)
    empty = _grouped([[part] for part in ordered if part.fingerprint is None], of_one_gpu=False)
    apart = []
    for group in empty:
        if len(measured) == 1 and _fit(measured[0], group):
            measured[0] += group
        else:
            apart.append(group)
    merged = []
    for group in sorted([*measured, *apart], key=lambda group: min(map(started, group))):
        group.sort(key=started)
        arguments = _joined_arguments([part.arguments for part in group])
        merged.append(msgspec.structs.replace(join(group), arguments=arguments) if len(group) > 1 else group[0])
    return merged


def _grouped(groups: Sequence[list[Results]], *, of_one_gpu: bool) -> list[list[Results]]:
    joined: list[list[Results]] = []
    for group in groups:
        candidates = (each for each in joined if not of_one_gpu or _places(each) & _places(group))
        into = next((each for each in candidates if _fit(each, group)), None)
        if into is None:
            joined.append(list(group))
        else:
            into += group
    return joined


def _fit(one: Sequence[Results], other: Sequence[Results]) -> bool:
    """Return whether the two can be one, so that no measurement hides one of another machine."""
    prints = [part.fingerprint for part in (*one, *other) if part.fingerprint is not None]
    commits = {part.commit.removesuffix("+") for part in (*one, *other) if part.commit is not None}
    if len(commits) > 1 or not all(compare(prints[0], each).identical for each in prints[1:]):
        return False
    theirs: dict[str, set[str | None]] = {}
    for part, workload in _workloads(other):
        theirs.setdefault(workload.id, set()).add(_place(part, workload))
    return all(
        (place := _place(part, workload)) is not None and theirs[workload.id] == {place}
        for part, workload in _workloads(one)
        if workload.id in theirs
    )


def _workloads(parts: Iterable[Results]) -> Iterator[tuple[Results, WorkloadResult]]:
    return ((part, workload) for part in parts for workload in part.workloads)


def _places(parts: Sequence[Results]) -> set[str]:
    return {place for part, workload in _workloads(parts) if (place := _place(part, workload)) is not None}


def _place(part: Results, workload: WorkloadResult) -> str | None:
    """Return the GPU, or the host of a CPU. None is not known, and equals nothing."""
    host = f"host {part.host}" if part.host else None
    if part.fingerprint is None:
        return host
    gpu = workload.run.gpu if workload.run is not None else part.gpu
    return gpu or (host if part.fingerprint.arch == "cpu" else None)


# -- shards -----------------------------------------------------------------------------------------------------------


def _joined_arguments(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return those of the first part, with the option for each shard, and without it where all shards are there."""
    rest, _ = _split(parts[0])
    asked = [_split(arguments)[1] for arguments in parts]
    shards = sorted({share for some in asked for share in some}, key=lambda share: (share.count, share.index))
    if not all(asked) or not any(_missing(shards)):
        return tuple(rest)
    return (*rest, *(text for share in shards for text in (_SHARD_OPTION, str(share))))


def _missing(shards: Iterable[Share]) -> Iterator[str]:
    known: dict[int, set[int]] = {}
    for share in shards:
        known.setdefault(share.count, set()).add(share.index)
    for count, there in sorted(known.items()):
        missing = (index for index in range(1, count + 1) if index not in there)
        for index in islice(missing, _MOST_SHARDS):
            yield f"shard {index}/{count} is missing: no part says that it measured it"
        more = count - len(there) - _MOST_SHARDS
        if more > 0:
            yield f"{more} more of {count} shards are missing"


def _split(arguments: Sequence[str]) -> tuple[list[str], list[Share]]:
    """Return (all other arguments, the shards)."""
    rest: list[str] = []
    shards: list[Share] = []
    left = iter(arguments)
    for argument in left:
        option, equals, value = argument.partition("=")
        if option != _SHARD_OPTION:
            rest.append(argument)
            continue
        text = value if equals else next(left, "")
        try:
            shards.append(Share.parse(text))
        except ValueError:
            rest += [argument] if equals else [argument, text]
    return rest, shards


# -- what they say together -------------------------------------------------------------------------------------------


def _seen(merged: Sequence[Results]) -> dict[str, list[tuple[Results, WorkloadResult]]]:
    """Return each workload with every machine that was to measure it, by id."""
    seen: dict[str, list[tuple[Results, WorkloadResult]]] = {}
    for results, workload in _workloads(merged):
        seen.setdefault(workload.id, []).append((results, workload))
    return seen


def _worst(seen: Sequence[tuple[Results, WorkloadResult]]) -> Status | None:
    return worst([workload.status for _, workload in seen if workload.status is not None])


def _problems(merged: Sequence[Results]) -> Iterator[str]:
    """Yield what failed beside the workloads: shards that are missing, and runs that ended badly."""
    yield from _missing(share for each in merged for share in _split(each.arguments)[1])
    for each in merged:
        failed = sum(test.outcome == "failed" for test in each.tests)
        if (each.exit_status or failed) and (each.status is None or not each.status.fails):
            tests = f", {failed} of {len(each.tests)} tests failed" if failed else ""
            yield f"the run that started at {each.started_at} ended with exit status {each.exit_status}{tests}"


def _word(merged: Sequence[Results], problems: Sequence[str]) -> str:
    workloads = [workload for _, workload in _workloads(merged)]
    statuses = [workload.status for workload in workloads if workload.status is not None]
    if problems or any(status.fails for status in statuses):
        return "FAILED"
    if not statuses:
        return "NOTHING JUDGED"
    unjudged = any(workload.status is None and workload.unavailable is None for workload in workloads)
    return "UNDECIDED" if unjudged or not all(status.decided for status in statuses) else "PASS"


def _lines(word: str, merged: Sequence[Results], problems: Sequence[str]) -> list[str]:
    from .report.wording import counted, cut

    seen = _seen(merged)
    counts = Counter(_worst(each) for each in seen.values())
    said = [f"{counts[status]} {status.value}" for status in Status if counts[status]]
    said += [f"{counts[None]} not judged"] if counts[None] else []
    machines = len({_machine(results, workload) for results, workload in _workloads(merged)})
    workloads = counted(len(seen), "workload") + (f" ({', '.join(said)})" if said else "")
    told = [_verdicts(name, each) for name, each in seen.items() if _is_told(each)]
    more = [f"and {len(told) - _MOST_WORKLOADS} more workloads"] if len(told) > _MOST_WORKLOADS else []
    return [
        f"{word}  {counted(machines, 'machine')}, {workloads}",
        *(cut(f"failed: {problem}") for problem in problems),
        *(cut(line) for line in told[:_MOST_WORKLOADS]),
        *more,
    ]


def _is_told(seen: Sequence[tuple[Results, WorkloadResult]]) -> bool:
    return any(each.status not in _QUIET and not (each.status is None and each.unavailable) for _, each in seen)


def _verdicts(name: str, seen: Sequence[tuple[Results, WorkloadResult]]) -> str:
    """Return ``mlp: REGRESSED on NVIDIA H200 a1b2 (+8.1 %); PASS on NVIDIA H200 c3d4 (+0.1 %)``, the worst first."""
    from .report.wording import change_of_one, status_text

    by_status: dict[str, list[str]] = {}
    for results, workload in sorted(seen, key=lambda each: (each[1].status in _QUIET, not _fails(each[1]))):
        timed = sorted(
            (verdict for verdict in workload.verdicts if verdict.change is not None),
            key=lambda verdict: (not verdict.status.fails, verdict.subject != "device time"),
        )
        change = f" ({change_of_one(timed[0].change)})" if timed else ""
        by_status.setdefault(status_text(workload), []).append(_machine(results, workload) + change)
    return f"{name}: " + "; ".join(f"{status} on {_some(names)}" for status, names in by_status.items())


def _fails(workload: WorkloadResult) -> bool:
    return workload.status is not None and workload.status.fails


def _machine(results: Results, workload: WorkloadResult) -> str:
    fingerprint, gpu = results.machine_of(workload)
    device = fingerprint.device if fingerprint is not None else "nothing measured"
    return " ".join(part for part in (device, gpu, f"on {results.host}" if results.host else "") if part)


def _some(names: Sequence[str]) -> str:
    left = len(names) - _MOST_MACHINES
    return ", ".join(names[:_MOST_MACHINES]) + (f" and {left} more" if left > 0 else "")


# -- the command ------------------------------------------------------------------------------------------------------


def add_commands(commands: Commands) -> None:
    merging = commands.add_parser(
        "merge",
        help="results of shards and machines as one",
        description="Join the results of shards, and put those of other GPUs side by side. Writes results.json (one "
        "machine) or MACHINE/results.json (several), with their traces, report.html and report.md. "
        "Exit code: 0 if everything was decided and nothing failed, 1 if not, 2 if something could not be read.",
        allow_abbrev=False,
    )
    merging.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="a results.json, or a folder of it, or of such folders"
    )
    merging.add_argument("--to", required=True, type=Path, metavar="DIR", help="a folder that is new, or empty")
    merging.set_defaults(command=_merge)


@dataclass
class _Found:
    """What was read. A trace in `parts` begins with the number of its folder in `folders`."""

    parts: list[Results] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # a run without one of its parts is no pass


def _merge(options: argparse.Namespace) -> Exit:
    from .report.html import html
    from .report.markdown import summary_markdown
    from .report.page import Section, markdown, text, unlinked

    _check_destination(options.to)
    found = _read(options.results)
    if not found.parts:
        raise ResultsError(
            "there is nothing to merge",
            where=printable(", ".join(map(str, options.results))),
            expected="a results.json that a run has left, or folders that hold some",
            next_command="pytest perf",
        )
    merged = merge(found.parts)
    linked: list[Results] = []
    for place, (results, name) in enumerate(zip(merged, folder_names(merged), strict=True)):
        merged[place] = whole = _with_traces(results, found.folders, options.to / name)
        write_atomically(options.to / name / NAME, encode_results(whole))
        linked.append(_traces_renamed(whole, f"{name}/" if name else ""))
    problems = [*found.refused, *_problems(merged)]
    word = _word(merged, problems)
    page = [Section(lines=tuple(_lines(word, merged, problems)))]
    head = unlinked(markdown([Section(page[0].lines[0], page[0].lines[1:])]))
    rest = summary_markdown(linked, limit_bytes=_LARGEST_PAGE_BYTES - len(head.encode()))
    write_atomically(options.to / "report.md", f"{head}\n{rest}".encode())
    write_atomically(options.to / "report.html", html(linked).encode())
    width, color = terminal()
    say(text(page, width=width, color=color))
    _tell(*(f"warning: {warning}" for each in merged for warning in each.warnings), f"written: {options.to}")
    if found.refused:
        return Exit.TROUBLE
    return Exit.YES if word == "PASS" else Exit.NO


def _read(paths: Sequence[Path]) -> _Found:
    """Read all that is there, equal results once. What cannot be read is named, and the others are read all the same."""
    found = _Found()
    known: set[bytes] = set()
    for path in paths:
        for file in find_results(path):
            try:
                results = read_results(file)
            except ResultsError as error:
                foreign = file != path and is_of_something_else(file)
                said = f"{printable(str(file))}: {error.what}" + (f" (got {error.got})" if error.got else "")
                _tell(f"{'skipped' if foreign else 'refused'}: {said}")
                found.refused += [] if foreign else [said]
                continue
            content = encode_results(results)
            if content in known:
                _tell(f"skipped: {file}: the same results as in another folder")
                continue
            known.add(content)
            found.parts.append(_traces_renamed(results, f"{len(found.folders)}/"))
            found.folders.append(file.parent)
    return found


def _traces_renamed(results: Results, before: str) -> Results:
    workloads = (
        each if each.trace is None else msgspec.structs.replace(each, trace=before + each.trace)
        for each in results.workloads
    )
    return msgspec.structs.replace(results, workloads=tuple(workloads))


def _check_destination(folder: Path) -> None:
    """Raises `StorageError` if there is anything: what another merge has left would pass for this one's."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except (OSError, ValueError) as error:
        raise StorageError("cannot write", where=printable(str(folder)), got=printable(str(error))) from error
    if taken:
        raise StorageError(
            "the folder is not empty", where=printable(str(folder)), expected="a folder that is new, or empty"
        )


def _tell(*lines: str) -> None:
    for line in lines:
        print(printable(line), file=sys.stderr)  # noqa: T201


def _with_traces(results: Results, folders: Sequence[Path], into: Path) -> Results:
    """Copy the traces that are there, with their tables, and name those that are not."""
    lost: list[str] = []
    workloads: list[WorkloadResult] = []
    for workload in results.workloads:
        trace = None
        if workload.trace is not None:
            folder = folders[int(workload.trace.partition("/")[0])]
            trace = f"traces/{workload.id}.json.gz"
            if not is_file_name(workload.id) or not _copied(folder, trace, into):
                lost.append(f"{workload.id}: its trace was not found beside its results")
                trace = None
            else:
                _copied(folder, f"traces/{workload.id}.txt", into)
        workloads.append(msgspec.structs.replace(workload, trace=trace))
    return msgspec.structs.replace(results, workloads=tuple(workloads), warnings=(*results.warnings, *lost))


def _copied(folder: Path, name: str, into: Path) -> bool:
    try:
        content = (folder / name).read_bytes()
    except OSError:
        return False
    write_atomically(into / name, content)
    return True
