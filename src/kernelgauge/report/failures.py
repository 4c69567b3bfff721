"""What failed in a run, each thing once: verdicts that fail, and tests that failed without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..judge import Verdict
from ..printable import printable
from ..results import Results, TestResult, WorkloadResult
from ..trace.kernel import configuration_text
from .endings import ended_with, error_lines, shown_reasons
from .wording import counted

__all__ = ["Failure", "cut", "failures"]

_LONGEST_LINE = 300  # characters of a name or a reason; results.json has all of it
_MOST_LINES = 40  # of one failure


@dataclass(frozen=True)
class Failure:
    """What failed, in lines that can be shown. `subjects`: of the verdicts that say the same, or the names of tests."""

    workload: str
    status: str
    subjects: tuple[str, ...]
    headline: str
    lines: tuple[str, ...]

    @property
    def about(self) -> str:
        left = len(self.subjects) - 3
        return ", ".join(self.subjects[:3]) + (f" and {left} more" if left > 0 else "")


def failures(results: Results) -> list[Failure]:
    """Verdicts that fail, and tests that failed without one; what says the same of one workload is said once."""
    by_id = {workload.id: workload for workload in results.workloads}
    ends: list[tuple[TestResult, WorkloadResult | None, Verdict | None]] = []
    for test in results.tests:
        if test.outcome == "failed":
            of = by_id.get(test.workload or "")
            ends.append((test, of, ended_with(test, of.verdicts) if of is not None else None))
    found: dict[tuple[str, str, str], Failure] = {}
    for workload in results.workloads:
        failing = [verdict for verdict in workload.verdicts if verdict.status.fails]
        for verdict in sorted(failing, key=lambda each: (each.change is None, not each.reasons)):  # causes first
            _add(found, _of_verdict(workload, verdict, next((test for test, _, end in ends if end is verdict), None)))
    for test, of, end in ends:
        if of is None or end is None:
            _add(found, _of_test(test))
        elif not end.status.fails:  # strictness made it fail
            _add(found, _of_verdict(of, end, test))
    return list(found.values())


def _add(found: dict[tuple[str, str, str], Failure], new: Failure) -> None:
    key = (new.workload, new.status, new.headline)
    old = found.get(key)
    if old is not None:
        subjects = tuple(dict.fromkeys(old.subjects + new.subjects))
        new = replace(new, subjects=subjects, lines=old.lines or new.lines)
    found[key] = new


def _of_verdict(workload: WorkloadResult, verdict: Verdict, test: TestResult | None) -> Failure:
    """`test`: that ended with it. It says more than a verdict without reasons: a suite's own claim, or an error."""
    subjects = (cut(verdict.subject),)
    if test is not None and not verdict.reasons and not test.said.startswith(f"{verdict.workload}: "):
        said = _of_test(test)
        return Failure(workload.id, verdict.status.value, subjects, said.headline or verdict.headline, said.lines)
    lines: list[str] = []
    for reason in shown_reasons(verdict):
        first, *rest = reason.text.split("\n")
        lines += [f"{reason.label}: {first}", *rest, *_configurations(workload, first)]
    return Failure(workload.id, verdict.status.value, subjects, cut(verdict.headline), _fewer(lines))


def _of_test(test: TestResult) -> Failure:
    said = test.said.strip("\n").splitlines()
    headline, *rest = error_lines(test.said)[:1] or said or ["failed"]
    claim = [test.claim] if test.claim else []
    return Failure(test.workload or "", "FAILED", (cut(test.name),), cut(headline), _fewer([*claim, *rest]))


def _configurations(workload: WorkloadResult, reason: str) -> list[str]:
    """How the kernel that a reason begins with was launched: grid, block, and what was tuned."""
    kernels = workload.run.kernels if workload.run is not None else ()
    named = (kernel.identity for kernel in kernels if reason.startswith(f"{kernel.identity.shown}  "))
    return [f"launched with {text}" for text in dict.fromkeys(map(configuration_text, named)) if text][:2]


def cut(text: str, longest: int = _LONGEST_LINE) -> str:
    """In one line, and not too long."""
    line = printable(text)
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def _fewer(lines: Sequence[str]) -> tuple[str, ...]:
    shown = [cut(line) for line in lines if line.strip()]
    left = len(shown) - _MOST_LINES
    return (*shown[:_MOST_LINES], *([f"and {counted(left, 'more line')}"] if left > 0 else []))
