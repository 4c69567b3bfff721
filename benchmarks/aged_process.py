"""What an old process does to the profiler: many sessions, with idle gaps, each checked for lost records.

    python benchmarks/aged_process.py --sessions 2000

Each session profiles three calls of the eager MLP and is believed only if its records pair (`session_problems`). Counted
are sessions that were refused, and sessions that were believed although their kernels are not those of the first: the
second number must be 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("src", "perf")]

from kernelgauge.errors import MeasurementError
from kernelgauge.measure.device import choose_device
from kernelgauge.measure.instance import build, first_call
from kernelgauge.measure.profile import profile_session
from workloads import WORKLOADS

_WORKLOAD = "mlp-eager-bf16-64x128x768x3072"
_GAPS_S = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.0, 0.5)  # idle before a session, over and over
_LONG_GAP_EVERY, _LONG_GAP_S = 500, 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--gaps", type=float, default=1.0, help="idle gaps, as a multiple of the usual ones")
    arguments = parser.parse_args()
    device = choose_device("auto")
    workload = next(entry for entry in WORKLOADS if entry.id == _WORKLOAD)
    instance = build(workload, device)
    started = time.perf_counter()
    refused = wrong = 0
    expected: list[str] = []
    with instance.grad_mode():
        first_call(instance)
        for index in range(arguments.sessions):
            long = index % _LONG_GAP_EVERY == _LONG_GAP_EVERY - 1
            time.sleep(arguments.gaps * (_LONG_GAP_S if long else _GAPS_S[index % len(_GAPS_S)]))
            try:
                session = profile_session(device, instance, iterations=3, hold_us=300)
            except MeasurementError as error:
                refused += 1
                print(error)
                continue
            expected = expected or [execution.identity.name for execution in session.executions[0]]
            wrong += any([each.identity.name for each in executions] != expected for executions in session.executions)
    print(f"{arguments.sessions} sessions in {time.perf_counter() - started:.0f} s: {refused} refused, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
