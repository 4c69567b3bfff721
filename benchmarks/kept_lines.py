"""What lines of the L2 that a kernel asked to keep do to the workloads after it, with the flush as it is and without its release.

    python benchmarks/kept_lines.py --seconds 60

Workloads of the two suites take turns, in the order of their declaration, so that each follows the same one.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import fmean, stdev

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("src", "perf", "examples/gallery")]

import torch

from gallery import WORKLOADS as GALLERY
from kernelgauge.measure import Settings
from kernelgauge.measure.compiler import torch_set_up
from kernelgauge.measure.device import CudaDevice
from kernelgauge.measure.instance import build
from kernelgauge.measure.subject import Subject
from workloads import WORKLOADS

_MODULES = ("linear", "matmul_add", "mlp", "rms_norm", "rope", "block", "attention")
_FEWEST = 4  # rounds


class _WithoutRelease(CudaDevice):
    """Writes three times the size of the L2, and no more."""

    def flush_cache(self) -> None:
        self._flush_buffer.zero_()


class _WithLargeBuffer(_WithoutRelease):
    """Writes ten times the size of the L2."""

    def __init__(self) -> None:
        super().__init__()
        self._flush_buffer = torch.empty(10 * self.cache_bytes, dtype=torch.int8, device=self.torch_device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, metavar="S", help="begin no round after this")
    seconds = parser.parse_args().seconds
    ways = {"without release": _WithoutRelease(), "with release": CudaDevice(), "ten times the L2": _WithLargeBuffer()}
    device = ways["with release"]
    chosen = [
        each
        for each in (*WORKLOADS, *GALLERY)
        if each.matrix == "default" and each.module in _MODULES and each.pass_ == "forward" and "hub" not in each.id
    ]
    times: dict[tuple[str, str], list[float]] = {}
    with torch_set_up():
        subjects = [Subject(each, build(each, device), device, Settings()) for each in chosen]
        started, rounds = time.monotonic(), 0
        while rounds < _FEWEST or time.monotonic() - started < seconds:
            for way, on in ways.items():
                for each in subjects:
                    each.device = on
                    times.setdefault((each.workload.id, way), []).append(each.replicate(rounds).device_us)
            rounds += 1
    print(f"{torch.cuda.get_device_name()}, {rounds} rounds, mean of the replicates in us and its standard error")
    print(f"{'':40}" + "".join(f"{way:>26}" for way in ways))
    for workload in chosen:
        usual = fmean(times[workload.id, "without release"])
        found = [times[workload.id, way] for way in ways]
        cells = (
            f"{fmean(us):.2f} +- {stdev(us) / rounds**0.5:.2f} {100 * (fmean(us) / usual - 1):+6.2f} %" for us in found
        )
        print(f"{workload.id:40}" + "".join(f"{cell:>26}" for cell in cells))


if __name__ == "__main__":
    main()
