"""What Inductor's autotuner times when it chooses a launch configuration, and what the chosen kernel then takes. Needs a GPU.

    python benchmarks/autotuner.py --processes 3

Compiles the MLP of `perf/` in new processes with empty compile caches, as a script of torch alone does: no part of
kernelgauge measures there. A line for each process: of each configuration what the autotuner timed, which one it chose,
and what the kernel takes by torch.profiler, in microseconds. The ways that it is compiled in:

    new         it is the first thing that the process does
    after       the same module was called without the compiler before, so that the process held more memory once
    not-inplace with torch._inductor.config.inplace_buffers off: the kernel writes to a buffer of its own
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("src", "perf")]

from kernelgauge.processes import compile_caches

WAYS = ("new", "after", "not-inplace")
SHAPE = (64, 128, 768)
HIDDEN = 3072


class Told(logging.Handler):
    """Keeps what torch/_inductor/runtime/triton_heuristics.py logs of the configurations of each kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.timed_us: dict[str, dict[str, float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if not isinstance(record.args, tuple):
            return
        if str(record.msg).startswith("Benchmark all input configs for"):
            self.timed_us[str(record.args[0])] = {}
        elif str(record.msg).startswith("%s: %f, nreg"):
            args: tuple[Any, ...] = record.args
            config, milliseconds = args[:2]
            said = f"XBLOCK={config.kwargs['XBLOCK']}/{config.num_warps}"
            self.timed_us[next(reversed(self.timed_us))][said] = 1000 * float(milliseconds)


def compile_and_call(way: str) -> None:
    import torch
    from torch.profiler import profile

    from modules import GegluMlp

    told = Told()
    log = logging.getLogger("torch._inductor.runtime.triton_heuristics")
    log.addHandler(told)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    torch.manual_seed(0)
    x = torch.randn(*SHAPE, device="cuda", dtype=torch.bfloat16)
    module = GegluMlp(SHAPE[-1], HIDDEN).to("cuda", torch.bfloat16)
    compiled = torch.compile(module, options={"inplace_buffers": False} if way == "not-inplace" else None)
    with torch.no_grad():
        if way == "after":
            module(x)
        for _ in range(20):
            compiled(x)
        torch.cuda.synchronize()
        with profile() as session:
            for _ in range(20):
                compiled(x)
            torch.cuda.synchronize()
    takes = {event.key: event.device_time_total / event.count for event in session.key_averages()}
    if len(told.timed_us) != 1:
        raise SystemExit(f"torch {torch.__version__} logged the timing of {len(told.timed_us)} kernels, expected one")
    ((kernel, timed_us),) = told.timed_us.items()
    print(json.dumps({"timed_us": timed_us, "takes_us": takes[kernel]}))


def in_a_new_process(way: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--way", way]
        environment = {**os.environ, **compile_caches(folder)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    timed: dict[str, float] = found["timed_us"]
    said = "  ".join(f"{config} {us:6.1f}" for config, us in timed.items())
    return f"{way:12} timed  {said}   chosen {min(timed, key=timed.__getitem__)}   takes {found['takes_us']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=3, help="in each way (default: 3)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        compile_and_call(arguments.way)
        return
    for way in WAYS:
        for _ in range(arguments.processes):
            print(in_a_new_process(way), flush=True)


if __name__ == "__main__":
    main()
