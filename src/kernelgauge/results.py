"""What one run of pytest observed and concluded: the one thing that every report is made from.

Plain data, the same in memory and in `reports/latest/results.json` (docs/results.md).
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Literal

import msgspec

from .errors import ResultsError
from .judge import Baseline, Status, Verdict, check_integers, worst
from .run import Fingerprint, Run, Timer

__all__ = [
    "SCHEMA_VERSION",
    "Results",
    "TestResult",
    "WorkloadResult",
    "decode_results",
    "encode_results",
    "moment",
]

SCHEMA_VERSION = 1
_CUT_SHORT = (2, 3)  # pytest.ExitCode: interrupted, internal error

Outcome = Literal["passed", "failed", "skipped"]


class TestResult(msgspec.Struct, frozen=True):
    """One test. `said`: why it failed or was skipped; `claim`: the first line of its docstring."""

    __test__ = False  # no test of pytest's

    node: str
    workload: str | None
    outcome: Outcome
    seconds: float
    claim: str = ""
    said: str = ""

    @property
    def name(self) -> str:
        """``test_device_time`` of ``perf/test_latency.py::test_device_time[mlp-eager]``."""
        return self.node.partition("[")[0].rpartition("::")[2]


class WorkloadResult(msgspec.Struct, frozen=True):
    """One workload: what was asked, what was observed, what it was compared with, what was concluded."""

    id: str
    suite: str
    module: str
    variant: str
    dtype: str
    pass_: str
    shape: tuple[int, ...]
    run: Run | None = None  # None: it could not be measured
    baseline: Baseline | None = None  # None: there is none, or it could not be read
    verdicts: tuple[Verdict, ...] = ()
    unavailable: str | None = None  # why it cannot run on this machine
    trace: str | None = None  # beside the results, with slashes
    sensitivity: dict[Timer, float] = {}  # the slowdown that a PASS may miss, as a fraction, where one was asked for

    @property
    def status(self) -> Status | None:
        return worst([verdict.status for verdict in self.verdicts])

    def verdict(self, subject: str) -> Verdict | None:
        return next((verdict for verdict in self.verdicts if verdict.subject == subject), None)


class Results(msgspec.Struct, frozen=True):
    """All of it. Times are UTC, as ISO 8601."""

    schema_version: int
    kernelgauge: str  # its version
    started_at: str
    seconds: float
    arguments: tuple[str, ...]  # of pytest
    fingerprint: Fingerprint | None  # None: nothing was measured
    gpu: str | None  # which one of its kind: a digest of its UUID
    not_watched: str  # why nothing is known of the GPU's clocks and other users; empty if it is
    workloads: tuple[WorkloadResult, ...]
    tests: tuple[TestResult, ...] = ()
    warnings: tuple[str, ...] = ()
    exit_status: int = 0  # of pytest
    host: str = ""  # its name
    commit: str | None = None  # of the working tree, with "+" behind it if that had changes; None: none, or not known
    timers: tuple[Timer, ...] = ()  # those that this device has
    comparisons: int = 0  # times that the suites of the run have, selected or not; 0: not known
    declared: dict[str, tuple[str, ...]] = {}  # ids of all workloads of each suite, by its folder, selected or not
    baselines: str = "baselines"  # their folder, with slashes, from the root of the project; absolute if not in it

    @property
    def was_cut_short(self) -> bool:
        """Whether the run of pytest was interrupted, or broke: what it lacks is not known."""
        return self.exit_status in _CUT_SHORT

    @property
    def status(self) -> Status | None:
        """The worst of all verdicts; None if nothing was judged."""
        return worst([verdict.status for workload in self.workloads for verdict in workload.verdicts])

    def machine_of(self, workload: WorkloadResult) -> tuple[Fingerprint | None, str | None]:
        """The fingerprint and the GPU that a workload ran on, which of merged results is not everybody's.

        Of one that could not run, those of the whole.
        """
        run = workload.run
        return (run.fingerprint, run.gpu) if run is not None else (self.fingerprint, self.gpu)


def moment(text: str) -> datetime | None:
    """A time in ISO 8601, in UTC; None: it is none. Saved results may come from anywhere."""
    try:
        read = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 knows no Z
        return read.astimezone(timezone.utc) if read.tzinfo else read.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        return None


class _Header(msgspec.Struct):
    schema_version: int


def encode_results(results: Results) -> bytes:
    return msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n"


def decode_results(content: bytes, *, where: str) -> Results:
    """Raises `ResultsError` if it is anything but results in this schema."""
    expected = f"results of kernelgauge, schema_version {SCHEMA_VERSION}"
    try:
        version = msgspec.json.decode(content, type=_Header).schema_version
        if version == SCHEMA_VERSION:
            check_integers(content)
            return msgspec.json.decode(content, type=Results)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        got = "an empty file" if not content.strip() else str(error)
        raise ResultsError("the results cannot be read", where=where, got=got, expected=expected) from error
    raise ResultsError(
        f"the results were written by {'a newer' if version > SCHEMA_VERSION else 'another'} version of kernelgauge",
        where=f"{where}, field schema_version",
        got=str(version),
        expected=str(SCHEMA_VERSION),
        next_command="pip install --upgrade kernelgauge" if version > SCHEMA_VERSION else None,
    )
