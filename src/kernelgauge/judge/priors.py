"""How noisy a time is before a baseline has shown it, and how large a change must be. Data: each row has a source.

`python benchmarks/unchanged.py --spread` prints the spreads and degrees of freedom; docs/design/times.md has the sources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from ..run import Fingerprint, Timer

__all__ = ["FALSE_ALARMS_PER_RUN", "POWER", "UNKNOWN_FACTOR", "Limits", "Prior", "prior_for"]

FALSE_ALARMS_PER_RUN = 0.01  # at most one run in a hundred may call unchanged code slower, however large its suite
POWER = 0.95  # the sensitivity of a verdict is the slowdown that would fail in this share of runs


@dataclass(frozen=True)
class Prior:
    """What is expected of one timer on one kind of machine. Spreads are standard deviations of logarithms (0.01 is 1 %).

    Attributes:
        gate: a smaller change is no finding, as a fraction.
        sensitivity: the default for the largest slowdown that a PASS may miss, as a fraction.
        process: spread between processes on one GPU.
        resolution_us: a part of each kernel's spread that does not shrink with its time. Between processes the parts are
            independent; between GPUs all kernels share one.
        gpu: spread between GPUs of one model, beyond what the reference GEMM explains.
        dof: degrees of freedom that these spreads count as, against those of the baseline.
    """

    gate: float
    sensitivity: float
    process: float
    dof: float
    resolution_us: float = 0.0
    gpu: float = 0.0


# GPU times of 96 processes of seven workloads on 37 H200s. The profiler's clock has steps of 0.032 us.
_H200 = Prior(gate=0.003, sensitivity=0.25, process=0.0006, dof=18.0, resolution_us=0.012, gpu=0.0025)
_MEASURED = {"NVIDIA H200": _H200}
# No data: four times as noisy, and soon overruled by what the baseline shows.
UNKNOWN_FACTOR = 4.0
_UNKNOWN_DOF = 4.0
_UNKNOWN_GPU = replace(_H200, process=UNKNOWN_FACTOR * _H200.process, gpu=UNKNOWN_FACTOR * _H200.gpu, dof=_UNKNOWN_DOF)
# Host clocks of the same processes. Latencies, and times of two CPU cores (benchmarks/data/cpu), spread by 2 to 5 %.
_HOST_DOF = 10.0
_HOST_SENSITIVITY = 1.0
_DISPATCH = Prior(gate=0.05, sensitivity=_HOST_SENSITIVITY, process=0.015, dof=_HOST_DOF)
_LATENCY = Prior(gate=0.25, sensitivity=_HOST_SENSITIVITY, process=0.05, dof=_HOST_DOF)


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a suite asks of verdicts on times, as fractions by timer. A timer that is missing has the default.

    Attributes:
        gate: a smaller change is no finding.
        sensitivity: the largest slowdown that a PASS may miss.
    """

    gate: dict[Timer, float] = {}
    sensitivity: dict[Timer, float] = {}


def prior_for(timer: Timer, fingerprint: Fingerprint, limits: Limits | None = None) -> Prior:
    """Return what to expect of a timer on this machine, with the limits that a suite asks for."""
    if timer is Timer.HOST:
        prior = _DISPATCH
    elif timer is Timer.END_TO_END or fingerprint.arch == "cpu":
        prior = _LATENCY
    else:
        prior = _MEASURED.get(fingerprint.device, _UNKNOWN_GPU)
    if limits is None:
        return prior
    return replace(
        prior,
        gate=limits.gate.get(timer, prior.gate),
        sensitivity=limits.sensitivity.get(timer, prior.sensitivity),
    )
