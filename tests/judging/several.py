"""Judge several candidates by one reference, in short contests. Targets come on standard input, a line each.

`python several.py REFERENCE cpu|cuda [WITHOUT]` prints a line of JSON for each. WITHOUT: a defence that is left out.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from typing import Any

from kernelgauge.cli.compare import CONTESTS, decide_whole
from kernelgauge.errors import CandidateRefused
from kernelgauge.judge import Status
from kernelgauge.measure import contest, guest, memory
from kernelgauge.measure.device import choose_device
from kernelgauge.measure.oracle import NORMAL, Oracle


def _never_stop() -> None:
    guest.GuestProcess.stop = lambda _: None  # type: ignore[method-assign]


def _keep_addresses() -> None:
    memory._SLACK = 1  # type: ignore[misc]


def _draw_normal_values() -> None:
    legal_values = Oracle.legal_values

    def learned(self: Any, case: Any) -> list[str]:
        legal_values(self, case)
        return [NORMAL]

    Oracle.legal_values = learned  # type: ignore[method-assign]


WITHOUT = {
    "": lambda: None,
    "stop": _never_stop,
    "addresses": _keep_addresses,
    "values": _draw_normal_values,
}


def main(reference: str, device: str, without: str = "") -> None:
    WITHOUT[without]()
    contest._REPLICATES, contest._BATCHES, contest._PROCESSES = 2, {"cpu": 1, "cuda": 2}[device], 1
    contest._CALLS = {"cpu": (8, 8), "cuda": (8, 32)}
    contest.Referee._observed = lambda *_: None  # type: ignore[method-assign]
    with ExitStack() as stack, os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)  # a reference may print
        referee = contest.Referee(reference, choose_device(device), stack, lambda _: None)
        for line in sys.stdin:
            try:
                # As the command, which has other references too: a second contest confirms.
                for _ in range(CONTESTS):
                    found = referee.judge(line.strip())
                    status = decide_whole(found).status
                    if status is not Status.IMPROVED:
                        break
            except CandidateRefused as refusal:
                answer = {"correct": False, "faster": False, "refused": str(refusal)}
            else:
                answer = {"correct": True, "faster": status is Status.IMPROVED, "calls": found.checked_calls}
            output.write(json.dumps(answer) + "\n")
            output.flush()


main(*sys.argv[1:])
