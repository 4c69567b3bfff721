"""How numbers and names are said in every report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..judge import RelativeChange
    from ..results import WorkloadResult

__all__ = [
    "NOT_RUN",
    "NO_VERDICT",
    "bytes_text",
    "change_of_one",
    "change_text",
    "counted",
    "kernel_us",
    "kinds_text",
    "percent",
    "shapes_text",
    "status_text",
    "times",
    "us",
    "us_or_dash",
]

NOT_RUN, NO_VERDICT = "NOT RUN", "NO VERDICT"

_SHORT_US = 10.0
_LONGEST_SHAPES = 100
_MOST_KINDS = 4
_NOUNS = {"gemm": "GEMM", "other": "kernel that no rule knows", "splitk_reduce": "split-K reduction"}


def us(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 100_000 else f"{value:.0f}"


def kernel_us(value: float) -> str:
    """Return two decimals for a short kernel: a profiler tells 2.98 from 3.01 us, and so must its reader."""
    return f"{value:.2f}" if abs(value) < _SHORT_US else us(value)


def us_or_dash(value: float | None) -> str:
    return "-" if value is None else us(value)


def change_of_one(change: RelativeChange | None) -> str:
    """``+0.3 %``; a dash where nothing was compared."""
    return "-" if change is None else f"{100 * change.estimate:+.1f} %"


def status_text(workload: WorkloadResult) -> str:
    """The worst of its verdicts, or why there is none."""
    if workload.status is not None:
        return workload.status.value
    return NOT_RUN if workload.run is None else NO_VERDICT


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def change_text(before: float, after: float) -> str:
    """``233.9 -> 205.1 us (-12.3 %)``."""
    relative = f" ({100 * (after / before - 1):+.1f} %)" if before > 0 else ""
    return f"{us(before)} -> {us(after)} us{relative}"


def bytes_text(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def counted(count: int, noun: str) -> str:
    """``1 kernel``, ``2 kernels``, ``2 kernels that no rule knows``."""
    first, space, rest = noun.partition(" that ")
    return f"{count} {first}" + ("" if count == 1 else "s") + (f"{space}{rest}" if rest else "")


def kinds_text(kinds: Iterable[str]) -> str:
    """``3 GEMMs, 2 pointwise kernels``; of many kinds the most frequent."""
    counts = Counter(kinds).most_common()
    shown = [counted(count, _NOUNS.get(kind, f"{kind} kernel")) for kind, count in counts[:_MOST_KINDS]]
    left = sum(count for _, count in counts[_MOST_KINDS:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


def times(names: Mapping[str, int]) -> str:
    """``aten::t x3, aten::view``."""
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in names.items())


def shapes_text(shapes: Sequence[Any]) -> str:
    """``[8192,768] [768,3072]``: tensors only, as an op was given them."""
    parts = [_shape_text(shape) for shape in shapes if shape]
    shown = " ".join(parts)
    return shown if len(shown) <= _LONGEST_SHAPES else f"{shown[: _LONGEST_SHAPES - 3]}..."


def _shape_text(shape: Any) -> str:
    if not isinstance(shape, tuple):
        return str(shape)
    return "[" + ",".join(_shape_text(item) if isinstance(item, tuple) else str(item) for item in shape) + "]"
