"""How often `kernelgauge history` raises a false alarm, and after how many nights it finds creep
and steps. Needs no GPU.

    python benchmarks/creep.py                     2000 series of each kind, in a minute
    python benchmarks/creep.py --series 200        quicker

Each series is one workload on one GPU, simulated night by night. The spread between nights is that
of MLPs on H200s (0.06 %, as the rule assumes), or twice as much.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernelgauge.judge.revisions import find_alarms, find_creep

_SPREAD = 0.0006
_YEAR = 365
_FLAT = (0, 5, 30)  # nights before the time changes
_TEN = 10
_LAST = 60  # nights that a change has
_CORRELATION = 0.3
_DOF = 5


def _gaussian(rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.gauss(0, 1)


def _student(rng: random.Random) -> Iterator[float]:
    """Yield values of Student's t, scaled to a standard deviation of 1."""
    while True:
        yield rng.gauss(0, 1) * math.sqrt((_DOF - 2) / rng.gammavariate(_DOF / 2, 2))


def _correlated(rng: random.Random) -> Iterator[float]:
    value = rng.gauss(0, 1)
    while True:
        yield value
        value = _CORRELATION * value + math.sqrt(1 - _CORRELATION**2) * rng.gauss(0, 1)


_NOISES = {
    "Gaussian": _gaussian,
    "Student's t, 5 degrees": _student,
    "correlated by 0.3": _correlated,
}
# of the logarithm, in the nights after the flat ones
_CHANGES: dict[str, Callable[[int], float]] = {
    "+0.05 % a night": lambda night: 0.0005 * night,
    "+0.02 % a night": lambda night: 0.0002 * night,
    "a step of +0.3 %": lambda _: 0.003,
    "a step of +0.15 %": lambda _: 0.0015,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=int, default=2000)
    count = parser.parse_args().series
    print("| noise | spread of a night | false alarms a year, of one series |\n|---|---|---|")
    for name, noise in _NOISES.items():
        for factor in (1, 2):
            alarms = sum(
                _alarms(noise, factor * _SPREAD, random.Random(f"{name} {number}"))
                for number in range(count)
            )
            print(f"| {name} | {100 * factor * _SPREAD:.2f} % | {alarms / count:.3f} |")
    print(
        "\n| change | unchanged nights before it | found in night: median | 95 % | within ten nights |\n|---|---|---|---|---|"
    )
    for name, change in _CHANGES.items():
        for flat in _FLAT[name.startswith("a step") :]:  # a step needs nights before it
            nights = sorted(
                _delay(change, flat, random.Random(f"{name} {number}")) for number in range(count)
            )
            shown = (nights[int(share * count)] for share in (0.5, 0.95))
            cells = [str(night) if night <= _LAST else f"over {_LAST}" for night in shown]
            print(
                f"| {name} | {flat} | {' | '.join(cells)} | {sum(each <= _TEN for each in nights) / count:.1%} |"
            )


def _alarms(
    noise: Callable[[random.Random], Iterator[float]], spread: float, rng: random.Random
) -> int:
    """Return how many alarms a year of unchanged nights raises."""
    values = noise(rng)
    return len(list(find_alarms([(spread * next(values), _SPREAD) for _ in range(_YEAR)])))


def _delay(change: Callable[[int], float], flat: int, rng: random.Random) -> int:
    """Return in which night of a change it is shown, counted from 1."""
    nights = [(_SPREAD * rng.gauss(0, 1), _SPREAD) for _ in range(flat)]
    for night in range(1, _LAST + 1):
        nights.append((change(night) + _SPREAD * rng.gauss(0, 1), _SPREAD))
        if find_creep(nights) is not None:
            return night
    return _LAST + 1


if __name__ == "__main__":
    main()
