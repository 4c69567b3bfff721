"""`kernelgauge calibrate`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ..argument_types import at_least
from ..errors import UpdateRefused
from .output import Commands, Exit, say, terminal

if TYPE_CHECKING:
    from ..calibrate import Calibration

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    calibrating = commands.add_parser(
        "calibrate",
        help="measure how noisy this machine is, and record baselines that know it",
        description="Run the suite in fresh processes with empty compile caches, print each workload's noise, the "
        "smallest change that is seen and what the autotuner chose, and store them with the baselines. Every second process on "
        "each GPU compiles with memory to spare, since the autotuner may choose otherwise then. Every other argument "
        "goes to pytest: kernelgauge calibrate perf -k mlp",
        allow_abbrev=False,
    )
    calibrating.add_argument(
        "--processes", type=at_least(2, "noise shows between processes"), default=10, metavar="N", help="default: 10"
    )
    calibrating.add_argument(
        "--gpus",
        type=_gpus,
        default=[],
        metavar="0,1,...",
        help="measure on these in parallel, one process at a time on each; shows how GPUs of one kind differ",
    )
    calibrating.add_argument(
        "--add",
        action="store_true",
        help="add to what is stored instead of replacing it: the GPUs of another host, or more processes",
    )
    calibrating.add_argument("--dry-run", action="store_true", help="print, and store nothing")
    calibrating.add_argument("--force", action="store_true", help="store under CI too")
    calibrating.set_defaults(command=_calibrate, passes_arguments_on=True)


def _gpus(text: str) -> list[str]:
    gpus = [gpu.strip() for gpu in text.split(",") if gpu.strip()]
    if len(set(gpus)) < len(gpus):
        raise argparse.ArgumentTypeError(f"each GPU once, got {text!r}: two processes on one disturb each other")
    return gpus


def _calibrate(options: argparse.Namespace) -> Exit:
    from ..calibrate import calibrate, draw, planned, store

    if os.environ.get("CI") and not (options.force or options.dry_run):
        raise UpdateRefused(
            "calibrate is refused under CI: a job that records its own baselines gates nothing",
            got="the environment variable CI is set",
            next_command="kernelgauge calibrate --force   (in a job whose purpose is to record)",
        )
    files = draw(
        options.pytest_arguments,
        processes=options.processes,
        gpus=options.gpus,
        progress=lambda what: print(what, file=sys.stderr, flush=True),  # noqa: T201
    )
    calibration = calibrate(files)
    if options.dry_run:
        plan = planned(calibration, add=options.add)
        _show(plan)
    else:
        plan = store(calibration, add=options.add, show=_show)
        say(f"{len(plan.baselines)} written to {plan.folder}")
    return Exit.NO if plan.refused else Exit.YES


def _show(calibration: Calibration) -> None:
    from ..report.calibration import calibration_text, choices_text

    width, color = terminal()
    lines = [
        calibration_text(calibration.baselines, comparisons=calibration.comparisons, width=width, color=color),
        *choices_text(calibration.baselines),
        *(f"not stored: {workload}: {why}" for workload, why in calibration.refused.items()),
    ]
    say("\n".join(lines))
