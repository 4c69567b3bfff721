"""Referee several candidates by one reference, with few short batches: `python several.py REFERENCE CANDIDATE ...`, on a CPU."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

from kernelgauge.errors import CandidateRefused
from kernelgauge.measure import contest
from kernelgauge.measure.device import Device


def main(reference: str, *candidates: str) -> None:
    contest._REPLICATES, contest._BATCHES, contest._PROCESSES = 2, 1, 1
    contest._CALLS = {"cpu": (8, 8)}
    with ExitStack() as stack:
        judge = contest.Referee(reference, Device(), stack, lambda _: None)
        for candidate in candidates:
            try:
                found = judge.judge(candidate)
                answer = {"correct": True, "calls": found.checked_calls}
            except CandidateRefused as refusal:
                answer = {"correct": False, "refused": str(refusal)}
            print(json.dumps(answer), flush=True)  # noqa: T201


main(*sys.argv[1:])
