"""What one run of pytest is asked: the options of the command line and of the ini file, together."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from _pytest.mark.expression import Expression  # private, and the only implementation there is

from ..errors import KernelgaugeError
from ..judge.timing import Limits
from ..results import project_of, repeated_arguments, without_kinds
from ..run import TIMER_NAMES, Timer

if TYPE_CHECKING:
    from ..measure.device import DeviceChoice

_INI = "kernelgauge_"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Options:
    """What the command line and the ini file ask for.

    Attributes: root: of the project. calibrating: a process of `kernelgauge calibrate`: it
        measures, compares nothing and writes to `reports`. changed: time only workloads whose
        code differs from that of their baselines. compiles: measure how long workloads take to compile. tunes: let
        autotuners choose anew, whatever the baselines have. replicates: of each timer; None: as
        many as it takes. seed: of the random input that numerics are compared on; None: a new one
        for each test. arguments: all of pytest's, as they were given. repeated: those that a
        proposed command must repeat to measure the same. confirms: whether a fresh process must
        confirm a slower time before its test fails. process_arguments: those with which a fresh
        process measures the same, and writes none of this one's files. worker: of pytest-xdist;
        empty: the only process. `neighbours`: how many workers there are beside it.
        mark_expression: that of ``-m``. share: the part of the suite that this worker measures, and
        of how many: (2, 4) is the second of four. None: all.
    """

    root: Path
    baselines: Path
    reports: Path
    device: DeviceChoice = "auto"
    update: bool = False
    calibrating: bool = False
    strict: bool = False
    changed: bool = False
    compiles: bool = False
    tunes: bool = False
    replicates: int | None = None
    seed: int | None = None
    limits: Limits = field(default_factory=Limits)
    full_matrix: bool = False
    invoked_from: Path = Path()
    arguments: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    confirms: bool = True
    process_arguments: tuple[str, ...] = ()
    worker: str = ""
    mark_expression: str = ""
    share: tuple[int, int] | None = None
    neighbours: int = 0

    @cached_property
    def is_on_cpu(self) -> bool:
        """Whether the suite runs on a CPU. Imports torch unless the device was named."""
        if self.device != "auto":
            return self.device == "cpu"
        import torch

        return not torch.cuda.is_available()

    @property
    def accepts(self) -> bool:
        """Whether what is measured is taken as it is: what differs from the baseline fails nothing."""
        return self.update or self.calibrating

    def leaves_out_timing(self, marks: Sequence[pytest.Mark]) -> bool:
        """Return whether ``-m`` would deselect a test with these marks if it also had the mark
        `timing`.
        """

        def has(name: str, /, **arguments: object) -> bool:
            of_the_name = (each.kwargs.items() for each in marks if each.name == name)
            return name == "timing" or any(arguments.items() <= each for each in of_the_name)

        expression = self.mark_expression
        return bool(expression) and not Expression.compile(expression).evaluate(has)

    def shown(self, path: Path) -> str:
        """Return a path as messages say it: from the root of the project where it lies in it."""
        return (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()

    def accept_command(self, *arguments: str) -> str:
        """Return the command that stores this run as the baselines, without measuring again."""
        places = []
        # the command looks for its root
        is_known = project_of(self.invoked_from, self.root) == self.root
        if not is_known or self.reports != self.root / "reports":
            places = [os.path.relpath(self.reports / "latest", self.invoked_from)]
        # the results record one in the project
        if not (is_known and self.baselines.is_relative_to(self.root)):
            places += ["--baselines", str(self.baselines)]
        return shlex.join(["kernelgauge", "accept", *places, *arguments])


def options_of(config: pytest.Config) -> Options:
    """Read the options.

    Raises `pytest.UsageError` for a wrong one, and for what does not go together.
    """
    root, here, ask = config.rootpath, config.invocation_params.dir, config.getoption
    calibration, update = ask("--perf-calibrate"), ask("--perf-update")
    if update and ask("--perf-changed"):
        raise pytest.UsageError("--perf-update times everything: leave out --perf-changed")
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    # A worker's own are made up by pytest-xdist.
    arguments = tuple(worker.get(_INI + "arguments") or map(str, config.invocation_params.args))
    if update == "yes" and os.environ.get("CI"):
        forced = [*(each for each in arguments if each != "--perf-update"), "--perf-update=force"]
        refused = KernelgaugeError(
            "--perf-update is refused under CI: a job that accepts its own result gates nothing",
            got="the environment variable CI is set",
            next_command=f"{shlex.join(['pytest', *forced])}   (in a job whose purpose is to record)",
        )
        raise pytest.UsageError(str(refused))
    marks = ask("markexpr") or ""
    # in its addopts
    of_file = not any(each.startswith("-m") for each in arguments) and without_kinds(marks) != marks
    return Options(
        root=root,
        baselines=root / config.getini(f"{_INI}baselines"),
        reports=here / calibration if calibration else root / config.getini(f"{_INI}reports"),
        device=ask("--perf-device"),
        update=update is not None,
        calibrating=calibration is not None,
        strict=ask("--perf-strict"),
        changed=ask("--perf-changed") and calibration is None,
        compiles=ask("--perf-compile"),
        tunes=ask("--perf-tune"),
        replicates=_parsed(
            f"{_INI}replicates", config.getini(f"{_INI}replicates"), _replicates, "2 or more"
        ),
        seed=ask("--perf-seed"),
        limits=Limits(
            gate=_fractions(config, "gate"), sensitivity=_fractions(config, "sensitivity")
        ),
        full_matrix=ask("--perf-matrix") == "full",
        invoked_from=here,
        arguments=arguments,
        repeated=(
            *repeated_arguments(arguments),
            *(("-m", without_kinds(marks)) if of_file else ()),
        ),
        mark_expression=marks,
        confirms=not ask("--perf-no-confirm"),
        process_arguments=_process_arguments(config),
        worker=worker.get("workerid", ""),
        share=worker.get(f"{_INI}share"),
        neighbours=worker.get("workercount", 1) - 1,
    )


def _process_arguments(config: pytest.Config) -> tuple[str, ...]:
    ask, ini = config.getoption, config.inipath
    # reports, coverage, workers: this process's own
    overridden = [*(ask("override_ini") or ()), "addopts="]
    # A worker of pytest-xdist has no terminal, which writes the results.
    plugins = [each for each in ask("plugins") or () if each != "no:terminal"]
    return (
        *(("-c", str(ini)) if ini else ()),
        *(part for each in overridden for part in ("-o", each)),
        *(part for each in plugins for part in ("-p", each)),
        f"--rootdir={config.rootpath}",
        f"--import-mode={ask('importmode')}",
        f"--perf-matrix={ask('--perf-matrix')}",
        f"--perf-device={ask('--perf-device')}",
        *(("--perf-benchmark",) if ask("--perf-benchmark") else ()),
    )


def _parsed(name: str, text: str, parse: Callable[[str], _T], expected: str) -> _T:
    try:
        return parse(text)
    except ValueError:
        raise pytest.UsageError(f"{name}: got {text!r}, expected {expected}") from None


def _replicates(text: str) -> int | None:
    if text and int(text) < 2:
        raise ValueError("of one replicate no noise is known")
    return int(text) if text else None


def _fraction(line: str) -> tuple[Timer, float]:
    """Parse ``device_time = 2 %``."""
    timer, _, percent = line.partition("=")
    value = float(percent.strip().removesuffix("%")) / 100
    # 0.02 is 2 % to a `Workload`
    if not 0 < value < math.inf or not percent.rstrip().endswith("%"):
        raise ValueError("a positive number, and the unit")
    return Timer(timer.strip()), value


def _fractions(config: pytest.Config, name: str) -> dict[Timer, float]:
    expected = f"a line such as 'device_time = 2 %' ({TIMER_NAMES})"
    return dict(
        _parsed(_INI + name, line, _fraction, expected) for line in config.getini(_INI + name)
    )
