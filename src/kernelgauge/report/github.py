"""Failures as annotations of a workflow of GitHub Actions."""

from __future__ import annotations

from collections.abc import Sequence

from ..judge import Status
from ..results import Results
from .failures import Failure, cut, failures

__all__ = ["github_annotations"]

# GitHub shows 10 errors and 10 warnings of a step; here 10 together.
_MOST_ANNOTATIONS = 10
_LONGEST_TITLE = 200
_IN_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_A_PROPERTY = {**_IN_DATA, **str.maketrans({":": "%3A", ",": "%2C"})}


def github_annotations(results: Sequence[Results]) -> list[str]:
    """Workflow commands of GitHub Actions, one line each: an error for each failure, a warning for what is INVALID.

    At most 10, errors first; where there are more, the last one says how many.
    """
    found = sorted((failure for each in results for failure in failures(each)), key=_annotated_as)
    shown = found if len(found) <= _MOST_ANNOTATIONS else found[: _MOST_ANNOTATIONS - 1]
    lines = [
        _command(
            _annotated_as(failure),
            f"{failure.workload}: {failure.status}  {failure.about}",
            "\n".join((failure.headline, *failure.lines)),
        )
        for failure in shown
    ]
    if len(found) > len(shown):
        more = f"{len(found) - len(shown)} more failures"
        lines.append(_command(_annotated_as(found[len(shown)]), f"kernelgauge: {more}", f"{more}: see the summary"))
    return lines


def _annotated_as(failure: Failure) -> str:
    return "warning" if failure.status == Status.INVALID.value else "error"


def _command(name: str, title: str, text: str) -> str:
    """`::name title=...::text`, escaped as the toolkit of GitHub Actions does it (packages/core/src/command.ts)."""
    return f"::{name} title={cut(title, _LONGEST_TITLE).translate(_IN_A_PROPERTY)}::{text.translate(_IN_DATA)}"
