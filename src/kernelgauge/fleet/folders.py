"""Results of several folders in one: read, joined, and written with their traces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..baselines import is_file_name, slug, write_atomically
from ..errors import ResultsError
from ..printable import printable
from ..regular_file import regular_file
from ..results import Results, WorkloadResult, encode_results
from ..results_file import MOST_BYTES, NAME, find_results, is_of_something_else, read_results

__all__ = ["Found", "Written", "bring_together", "found_parts", "is_folder_of", "machine_names"]


@dataclass
class Found:
    """What was read. A trace of `parts` begins with the number of its part's folder in `folders`.

    So it stays known where a merged workload's trace is. Equal parts have the same number.
    """

    parts: list[Results] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # no results, in a folder that was named
    refused: list[str] = field(default_factory=list)  # what should be results, and cannot be read


@dataclass(frozen=True)
class Written:
    """One machine's results as they stand in `folder`, a part of the destination."""

    results: Results
    folder: str  # "": the destination itself

    @property
    def linked(self) -> Results:
        """As a page in the destination itself links to its traces."""
        if not self.folder:
            return self.results
        workloads = tuple(
            msgspec.structs.replace(each, trace=f"{self.folder}/{each.trace}") if each.trace else each
            for each in self.results.workloads
        )
        return msgspec.structs.replace(self.results, workloads=workloads)


def found_parts(paths: Sequence[Path]) -> Found:
    """Read all that is there. What cannot be read is named, and the others are read all the same."""
    found = Found()
    numbers: dict[bytes, int] = {}
    for path in paths:
        for file in find_results(path):
            try:
                results = read_results(file)
            except ResultsError as error:
                foreign = file != path and is_of_something_else(file)
                said = f"{printable(str(file))}: {error.what}" + (f" (got {error.got})" if error.got else "")
                (found.skipped if foreign else found.refused).append(said)
                continue
            number = numbers.setdefault(encode_results(results), len(found.folders))
            if number == len(found.folders):
                found.folders.append(file.parent)
            found.parts.append(_numbered(results, number))
    return found


def _numbered(results: Results, number: int) -> Results:
    workloads = tuple(
        msgspec.structs.replace(workload, trace=f"{number}/{workload.trace}")
        if workload.trace is not None
        else workload
        for workload in results.workloads
    )
    return msgspec.structs.replace(results, workloads=workloads)


def bring_together(merged: Sequence[Results], found: Found, destination: Path, *, traces: bool) -> list[Written]:
    """Write what `merge` made of the parts. Raises `StorageError` if it cannot be written."""
    written: list[Written] = []
    for results, name in zip(merged, machine_names(merged), strict=True):
        whole = _with_traces(results, found.folders, destination / name if traces else None)
        write_atomically(destination / name / NAME, encode_results(whole))
        written.append(Written(whole, name))
    return written


def machine_names(merged: Sequence[Results]) -> list[str]:
    """A folder for each machine's results; "" for the only one's."""
    if len(merged) == 1:
        return [""]
    names: list[str] = []
    for results in merged:
        twins = sum(is_folder_of(results, name) for name in names)
        names.append(f"{_name(results)}--{twins + 1}" if twins else _name(results))
    return names


def is_folder_of(results: Results, name: str) -> bool:
    """Whether a folder of this name, among those of several machines, may be that of these results."""
    return name == _name(results) or name.startswith(f"{_name(results)}--")  # a slug has no double dash


def _name(results: Results) -> str:
    device = results.fingerprint.device if results.fingerprint is not None else "nothing measured"
    return slug(" ".join([device, results.gpu or results.host]))[:100]


def _with_traces(results: Results, folders: Sequence[Path], into: Path | None) -> Results:
    """With the traces that are there copied, and those that are not named. `into`: None copies none."""
    lost: list[str] = []
    workloads: list[WorkloadResult] = []
    taken: set[str] = set()
    for workload in results.workloads:
        trace = None
        if workload.trace is not None and into is not None:
            number, _, path = workload.trace.partition("/")
            trace = _copied(folders[int(number)], path, into, taken)
            lost += [] if trace else [f"{workload.id}: {_why_lost(path)}"]
        workloads.append(msgspec.structs.replace(workload, trace=trace))
    return msgspec.structs.replace(results, workloads=tuple(workloads), warnings=(*results.warnings, *lost))


def _why_lost(path: str) -> str:
    if path and not _is_name(path.rpartition("/")[2]):
        return "its trace is left out: its name is too long, or has other characters than letters, digits, '_', '-' and '.'"
    return "its trace was not found beside its results"


def _is_name(name: str) -> bool:
    """Whether a trace may have it: a workload's id, and an ending."""
    return is_file_name(name.removesuffix(".json.gz"))


def _copied(folder: Path, path: str, into: Path, taken: set[str]) -> str | None:
    """The path of the copy, relative to `into`; None if there is no such file within the folder, or its name is none."""
    name = path.rpartition("/")[2]
    content = _content(folder, path) if _is_name(name) else None
    if content is None or name in taken:
        return None
    taken.add(name)
    write_atomically(into / "traces" / name, content)
    if name.endswith(".json.gz"):
        table = _content(folder, f"{path.removesuffix('.json.gz')}.txt")
        if table is not None:
            write_atomically(into / "traces" / f"{name.removesuffix('.json.gz')}.txt", table)
    return f"traces/{name}"


def _content(folder: Path, path: str) -> bytes | None:
    """A regular file below the folder, through no link that leads out of it: the path is a stranger's."""
    try:
        file = (folder / path).resolve(strict=True)
        if not file.is_relative_to(folder.resolve()):
            return None
        with regular_file(file) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as opened:
            content = opened.read(MOST_BYTES + 1)
    except (OSError, ValueError, RuntimeError):  # a loop of links is a RuntimeError before Python 3.13
        return None
    return content if len(content) <= MOST_BYTES else None
