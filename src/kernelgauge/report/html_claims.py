"""The claims of a suite in the HTML report, and what was published of its workloads beside this run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..results import Results
from .claims import Claim, claims, claims_title
from .html_runs import machine
from .html_tests import clipped
from .published import Figure, FigureTable, figure_tables

__all__ = ["ClaimsView", "claims_views"]

_LONGEST_CELL = 100
_MOST_ROWS = 200


@dataclass(frozen=True)
class ClaimsView:
    """Of one run. Texts are short enough to be shown."""

    machine: str
    title: str
    claims: tuple[Claim, ...]
    figures: tuple[FigureTable, ...]


def claims_views(shown: Sequence[Results]) -> Iterator[ClaimsView]:
    """One for each run that has claims or published figures."""
    for one in shown:
        found, figures = claims(one.tests), figure_tables(one)
        if found or figures:
            yield ClaimsView(
                clipped(machine(one)),
                claims_title(found),
                tuple(_short_claim(claim) for claim in found[:_MOST_ROWS]),
                tuple(_short_table(table) for table in figures),
            )


def _short_claim(claim: Claim) -> Claim:
    return replace(claim, says=tuple(clipped(sentence) for sentence in claim.says[:_MOST_ROWS]))


def _short_table(table: FigureTable) -> FigureTable:
    return FigureTable(
        clipped(table.source),
        clipped(table.url),
        clipped(table.device, _LONGEST_CELL),
        clipped(table.here, _LONGEST_CELL),
        tuple(_short_figure(figure) for figure in table.figures[:_MOST_ROWS]),
    )


def _short_figure(figure: Figure) -> Figure:
    return replace(
        figure,
        claim=clipped(figure.claim, _LONGEST_CELL),
        workload=clipped(figure.workload),
        figure=clipped(figure.figure),
    )
