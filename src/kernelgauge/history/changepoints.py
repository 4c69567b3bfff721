"""Where the level of a series of times changed. Advisory: no verdict comes from it.

PELT (Killick, Fearnhead and Eckley, "Optimal detection of changepoints with a linear computational cost", 2012) with the
cost of a constant level, as ruptures has it compiled, on logarithms: a step of 1 % is the same at 3 and at 300 us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import ResultsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values: TypeAlias = "NDArray[np.float64]"
    Segmented: TypeAlias = Callable[[Values, float], list[int]]

__all__ = ["LEAST_NIGHTS", "changepoints"]

LEAST_NIGHTS = 3  # of one level: one or two bad nights are no new level
# A neighbourhood of five, so that one or two outliers are left out and a level of three is kept (Hampel's identifier: Davies
# and Gather, "The identification of multiple outliers", 1993).
_REACH = 2
_OUTLIER = 4.0  # standard deviations
# Of logarithms: how processes on one H200 differ beyond their replicates (docs/measuring.md). Fewer nights than it takes to
# know the noise may agree by chance; no series is steadier than this.
_LEAST_NOISE = 0.0005
# A change must gain this many times the noise's variance for each unit of log(n) (BIC has 2), and the noise of a short
# series, known only roughly, is taken larger by `_SHORT / n`: together at most one series of noise alone in a hundred has
# a false change, whether it has 6 nights or 365 (tests/history/test_changepoints.py).
_PENALTY = 4.0
_SHORT = 15.0


def changepoints(values: Sequence[float]) -> list[int]:
    """Indices at which a new level starts. `values`: positive times in order of time, in any unit.

    Raises `ResultsError` if ruptures is not installed, and `ValueError` for a time that is not positive.
    """
    times = np.asarray(values, dtype=np.float64)
    if not np.all((times > 0) & np.isfinite(times)):
        raise ValueError("times are positive and finite")
    if len(times) < 2 * LEAST_NIGHTS:
        return []
    logarithms = np.log(times)
    noise = _noise(logarithms)
    penalty = _PENALTY * math.log(len(values)) * (noise * (1 + _SHORT / len(values))) ** 2
    usual = _usual(logarithms, noise)
    if len(usual) < 2 * LEAST_NIGHTS:
        return []
    found = _segmentation()(logarithms[usual], penalty)
    levels = [float(np.median(part)) for part in np.split(logarithms[usual], found)]
    return [
        _first(logarithms, int(usual[index - 1]) + 1, int(usual[index]), before, after)
        for index, (before, after) in zip(found, pairwise(levels), strict=True)
    ]


def _first(values: Values, earliest: int, latest: int, before: float, after: float) -> int:
    """Where the new level starts: an outlier between the levels belongs to the nearer one."""
    first = latest
    while first > earliest and abs(values[first - 1] - after) < abs(values[first - 1] - before):
        first -= 1
    return first


def _noise(values: Values) -> float:
    """Standard deviation from night to night: steps and slow drifts hardly add to the differences of neighbours."""
    differences = np.diff(values)
    deviation = np.median(np.abs(differences - np.median(differences)))
    return max(_LEAST_NOISE, float(1.4826 * deviation / math.sqrt(2)))


def _usual(values: Values, noise: float) -> NDArray[np.intp]:
    """Indices without the outliers: what is far from the median of its neighbourhood, at an end of the five nights there.

    Left out and not replaced: the median of some good nights and two bad ones leans to the bad side.
    """
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, 2 * _REACH + 1), axis=1)
    medians = np.pad(medians, _REACH, mode="edge")
    return np.flatnonzero(np.abs(values - medians) <= _OUTLIER * noise)


@cache
def _segmentation() -> Segmented:
    """PELT of ruptures, in the way that is there."""
    package = find_spec("ruptures")
    if package is None:
        raise ResultsError(
            "change points cannot be found without ruptures",
            next_command="pip install 'kernelgauge[history]'",
        )
    compiled = _compiled(
        [str(Path(place, "detection", "_detection")) for place in package.submodule_search_locations or ()]
    )
    return _public if compiled is None else _direct(compiled)


def _compiled(folders: list[str]) -> Any:
    """The compiled function behind `ruptures.KernelCPD`; None where this version has it elsewhere.

    `import ruptures` imports scipy.stats, scipy.signal and scipy.spatial, none of which this needs: more than a second of a
    command that is to answer in two (docs/history.md).
    """
    spec = PathFinder.find_spec("ekcpd", folders)
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, "ekcpd_pelt_L2", None)


def _direct(pelt: Any) -> Segmented:
    """As `ruptures.KernelCPD.predict` calls it, and reads what it returns: where each best last segment starts."""

    def segmented(values: Values, penalty: float) -> list[int]:
        starts = pelt(np.ascontiguousarray(values.reshape(-1, 1)), penalty, LEAST_NIGHTS)
        found, end = [], int(starts[len(values)])
        while end > 0:
            found.append(end)
            end = int(starts[end])
        return found[::-1]

    return segmented


def _public(values: Values, penalty: float) -> list[int]:
    detector = import_module("ruptures").KernelCPD(kernel="linear", min_size=LEAST_NIGHTS)
    *found, _ = detector.fit(values.reshape(-1, 1)).predict(pen=penalty)
    return [int(index) for index in found]
