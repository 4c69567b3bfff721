"""What a test ended with: its verdict, or the words of a failure. Every form of report asks this."""

from __future__ import annotations

from collections.abc import Sequence

from ..judge import Reason, Verdict
from ..results import TestResult
from ..run import Timer

__all__ = ["ended_with", "error_lines", "first_error", "printed_verdict", "shown_reasons"]

# The subject of each standard test's verdict (kernelgauge.standard). A test that passed does not say it.
_SUBJECTS = {
    "test_device_time": Timer.DEVICE.label,
    "test_end_to_end_latency": Timer.END_TO_END.label,
    "test_host_dispatch_time": Timer.HOST.label,
    "test_kernels_and_graphs_are_as_declared": "declared structure",
    "test_result_matches_float64": "numerics",
    "test_structure_is_that_of_the_baseline": "structure",
}
_PATHS = ("trace",)  # a path of the machine that measured: it says nothing elsewhere


def printed_verdict(said: str, verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict that a test printed as its end."""
    first = said.lstrip("\n").partition("\n")[0]
    return next((verdict for verdict in verdicts if first and first == str(verdict).partition("\n")[0]), None)


def ended_with(test: TestResult, verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict of its workload that a test ended with: the one it printed, or the one on its subject."""
    printed = printed_verdict(test.said, verdicts)
    if printed is not None:
        return printed
    # A claim of a suite, or what could not be measured, has the test's own name.
    subjects = (test.name, _SUBJECTS.get(test.name))
    return next((verdict for verdict in verdicts if verdict.subject in subjects), None)


def error_lines(said: str) -> list[str]:
    """Of a traceback, what pytest marks: its last words."""
    return [line[1:].strip() for line in said.splitlines() if line.startswith("E ")]


def first_error(said: str) -> str:
    """What a traceback ends with; of anything else, all."""
    return next(iter(error_lines(said)), said)


def shown_reasons(verdict: Verdict) -> list[Reason]:
    """Its reasons, but for paths of the machine that measured."""
    return [reason for reason in verdict.reasons if reason.label not in _PATHS]
