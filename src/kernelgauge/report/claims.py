"""The numbered claims of a suite: what they say, and how their tests ended in a run.

A test is about claim 9 if its name begins with ``test_c09_``; the rest of the name is what it claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..results import TestResult
from .wording import counted

__all__ = ["Claim", "claims", "claims_title"]

_NAME = re.compile(r"test_c([0-9]{1,4})_(\w+)")


@dataclass(frozen=True)
class Claim:
    """One claim. `says`: of each test that is about it, once. The counts are of tests, over all workloads."""

    number: int
    says: tuple[str, ...]
    failed: int
    passed: int
    skipped: int

    @property
    def name(self) -> str:
        return f"C{self.number}"


def claims(tests: Iterable[TestResult]) -> tuple[Claim, ...]:
    """Those that the tests are about, in order of their numbers."""
    found: dict[int, list[tuple[str, TestResult]]] = {}
    for test in tests:
        if about := _NAME.fullmatch(test.name):
            found.setdefault(int(about[1]), []).append((about[2].replace("_", " "), test))
    return tuple(_claim(number, found[number]) for number in sorted(found))


def _claim(number: int, about: list[tuple[str, TestResult]]) -> Claim:
    ends = [test.outcome for _, test in about]
    return Claim(
        number,
        tuple(dict.fromkeys(sentence for sentence, _ in about)),
        ends.count("failed"),
        ends.count("passed"),
        ends.count("skipped"),
    )


def claims_title(found: Iterable[Claim]) -> str:
    """``27 claims: 1 with a failed test, 2 only skipped``: words and numbers of our own only."""
    listed = list(found)
    failed = sum(claim.failed > 0 for claim in listed)
    skipped = sum(not claim.failed and not claim.passed for claim in listed)
    said = [f"{failed} with a failed test"] if failed else []
    said += [f"{skipped} only skipped"] if skipped else []
    return counted(len(listed), "claim") + (f": {', '.join(said)}" if said else ": no test failed")
