"""Histories -> trends: DuckDB groups what was measured into series, one for each workload, kind of machine and GPU.

DuckDB gets one stream of the columns that are asked for, not the files: each was found whole on its way, one that is none
would end the query without a name, and those of a bucket are fetched many at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import msgspec
import numpy as np

from ..errors import ResultsError
from ..judge import Status
from ..printable import printable
from ..report.trend import Chart, Environment, Moment, Series, Shift, Trends, marks
from ..report.wording import counted
from ..run import Fingerprint, Timer
from .changepoints import Segment, segment_series
from .correction import Context, correct
from .file import CONTEXT_NAMES, Stored
from .places import place
from .store import SetAside, whole_entries

__all__ = ["trends"]

_ROWS = """
CREATE TABLE rows AS
SELECT run, min(moment) AS moment, series, workload, min(us) AS us, count(DISTINCT us) AS versions,
  max_by(row, schema) AS row
FROM (
  SELECT run, moment, series, schema, unnest(workload) AS workload, unnest(us) AS us, unnest(row) AS row
  FROM read_json($path, format = 'newline_delimited', maximum_object_size = $longest, columns = {
    run: 'BIGINT', moment: 'BIGINT', series: 'BIGINT', schema: 'BIGINT', workload: 'VARCHAR[]', us: 'DOUBLE[]',
    row: 'BIGINT[]'})
)
WHERE us IS NOT NULL AND (len($globs) + len($parts) = 0
  OR list_bool_or([workload GLOB pattern FOR pattern IN $globs])
  OR list_bool_or([contains(workload, part) FOR part IN $parts]))
GROUP BY run, series, workload
"""
_SERIES = """
SELECT workload, series, list(moment ORDER BY moment), list(us ORDER BY moment), list(row ORDER BY moment)
FROM rows WHERE versions = 1 GROUP BY ALL ORDER BY ALL
"""
_CONTRADICTIONS = "SELECT moment, workload, versions FROM rows WHERE versions > 1 ORDER BY ALL"


@dataclass
class _Stream:
    """Entries written as lines for DuckDB, with numbers in place of what they are of."""

    timer: Timer
    runs: dict[tuple[datetime, str | None, str], int] = field(default_factory=dict)  # of pytest on one GPU
    moments: dict[tuple[Any, ...], int] = field(default_factory=dict)  # the same, with what else is told of it
    series: dict[tuple[str, str], int] = field(default_factory=dict)  # of a kind of machine and a GPU
    environments: dict[Environment, Environment] = field(default_factory=dict)
    known: list[Moment] = field(default_factory=list)  # by number
    context: dict[str, list[Any]] = field(default_factory=dict)  # columns, by number of the row
    codes: dict[str | None, int] = field(
        default_factory=lambda: defaultdict(count().__next__)
    )  # a number for each name
    rows: int = 0
    entries: int = 0
    untrusted: int = 0  # times whose verdict is INVALID
    longest_bytes: int = 1 << 20
    set_aside: list[str] = field(default_factory=list)

    def write(self, found: Iterable[tuple[str, Stored] | SetAside], file: IO[bytes]) -> None:
        for each in found:
            if isinstance(each, SetAside):
                self.set_aside.append(str(each))
                continue
            key, entry = each
            try:
                line = self._line(entry)
            except ValueError as error:
                self.set_aside.append(str(SetAside(key, str(error))))
                continue
            self.entries += 1
            self.longest_bytes = max(self.longest_bytes, len(line) + 1)
            file.write(line)

    def _line(self, entry: Stored) -> bytes:
        """Empty where nothing could be measured."""
        measured = entry.columns(self.timer)
        means_us, statuses = measured.mean_us, measured.status
        fingerprint = entry.fingerprint
        if fingerprint is None:
            return b""
        if Status.INVALID.value in statuses:
            pairs = list(zip(means_us, statuses, strict=True))
            means_us = [None if status == Status.INVALID.value else mean for mean, status in pairs]
            self.untrusted += sum(status == Status.INVALID.value and mean is not None for mean, status in pairs)
        one = Environment(fingerprint, entry.host, entry.kernelgauge)
        environment = self.environments.setdefault(one, one)
        moment = self.moments.setdefault((entry.started_at, entry.gpu, entry.commit, environment), len(self.moments))
        if moment == len(self.known):
            self.known.append(Moment(entry.started_at, entry.commit, environment))
        key = (_kind(fingerprint), entry.gpu or entry.host or "(not known)")
        run = (entry.started_at, entry.gpu, entry.host)
        for name, column in measured.context.items():
            values = map(self.codes.__getitem__, column) if name in CONTEXT_NAMES else column
            self.context.setdefault(name, []).extend(values)
        first, self.rows = self.rows, self.rows + len(measured.workload)
        line = {
            "run": self.runs.setdefault(run, len(self.runs)),
            "moment": moment,
            "series": self.series.setdefault(key, len(self.series)),
            "schema": entry.schema_version,
            "workload": measured.workload,
            "us": means_us,
            "row": list(range(first, self.rows)),
        }
        return msgspec.json.encode(line) + b"\n"


def trends(
    location: str,
    *,
    now: datetime,
    timer: Timer = Timer.DEVICE,
    patterns: Sequence[str] = (),
    since: datetime | None = None,
    gpu: str = "",
) -> Trends:
    """The charts of a history, in order of workload and kind of machine.

    Args:
        patterns: globs, or parts of an id where there is no ``*?[`` in it; none: every workload.
        since, now: files before and (but for a difference of clocks) after these are left out.
        gpu: how the digest of a GPU starts.

    Raises `ResultsError` if there is no history, a pattern is no text, or duckdb is not installed.
    """
    _check_patterns(patterns)
    duckdb = _duckdb()
    stream = _Stream(timer)
    with TemporaryDirectory(prefix="kernelgauge-") as folder, duckdb.connect() as connection:
        path = Path(folder) / "rows.ndjson"
        with path.open("wb") as file:
            stream.write(whole_entries(place(location), now=now, since=since, gpu=gpu), file)
        # One more than any line, or DuckDB refuses it; at its own default of 16 MB, it takes as much for each thread.
        parameters = {
            "path": str(path),
            "longest": stream.longest_bytes + 1,
            "globs": [each for each in patterns if set(each) & set("*?[")],
            "parts": [each for each in patterns if not set(each) & set("*?[")],
        }
        connection.execute(_ROWS, parameters)
        found = connection.execute(_SERIES).fetchall()
        contradictions = connection.execute(_CONTRADICTIONS).fetchall()
    told = [_contradiction(stream.known[moment], *what) for moment, *what in contradictions]
    told += [f"{counted(stream.untrusted, 'time')} whose verdict is INVALID"] if stream.untrusted else []
    return Trends(timer, _charts(stream, found), stream.entries, (*stream.set_aside, *told))


def _check_patterns(patterns: Sequence[str]) -> None:
    for each in patterns:
        try:
            each.encode()
        except UnicodeEncodeError as error:  # bytes of the command line that are not UTF-8
            raise ResultsError(
                "this is the name of no workload", got=printable(each), expected="a glob, or a part of an id, in UTF-8"
            ) from error


def _charts(stream: _Stream, found: Sequence[tuple[str, int, list[int], list[float], list[int]]]) -> tuple[Chart, ...]:
    columns: dict[str, Any] = {
        name: np.array(column, dtype=np.int64 if name in CONTEXT_NAMES else np.float64)
        for name, column in stream.context.items()
    }
    looked = [
        correct(values_us, Context(**{name: column[rows] for name, column in columns.items()}), stream.timer)
        for *_, values_us, rows in found
    ]
    numbered = list(stream.series)
    grouped: dict[tuple[str, str], list[Series]] = {}
    for (workload, number, moments, values_us, _), (logs, reasons), segments in zip(
        found, looked, segment_series([logs for logs, _ in looked]), strict=True
    ):
        kind, gpu = numbered[number]
        measured = tuple(map(stream.known.__getitem__, moments))
        levels = tuple(np.exp(logs).tolist())
        one = Series(gpu, measured, tuple(values_us), marks(measured), levels, reasons, tuple(_shifts(segments)))
        grouped.setdefault((workload, kind), []).append(one)
    return tuple(
        Chart(workload, kind, tuple(sorted(series, key=lambda each: each.gpu)))
        for (workload, kind), series in sorted(grouped.items())
    )


def _shifts(segments: Sequence[Segment]) -> Iterator[Shift]:
    for index, segment in enumerate(segments):
        if segment.jumps:
            yield Shift(segment.start, math.exp(segments[index - 1].last), math.exp(segment.first))
        if segment.drifts:
            nights = segment.end - segment.start
            yield Shift(segment.start, math.exp(segment.first), math.exp(segment.last), nights)


def _kind(fingerprint: Fingerprint) -> str:
    """Times of two kinds answer different questions (`judge.fingerprint`)."""
    parts = [fingerprint.device, fingerprint.arch]
    parts += [f"{fingerprint.sm_count} SMs"] if fingerprint.sm_count is not None else []
    parts += [f"{fingerprint.power_limit_watts:g} W"] if fingerprint.power_limit_watts is not None else []
    return ", ".join([*parts, *(["MIG"] if fingerprint.mig else [])])


def _contradiction(moment: Moment, workload: str, versions: int) -> str:
    when = moment.started_at.isoformat(timespec="seconds")
    return printable(f"{workload}: {versions} files say {versions} different times of the run that started at {when}")


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ImportError as error:
        raise ResultsError(
            "a history cannot be queried without duckdb",
            got=str(error),
            next_command="pip install 'kernelgauge[history]'",
        ) from error
