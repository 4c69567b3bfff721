"""Draw docs/images/kernels-{light,dark}.svg from the committed baselines of the MLP.

python tools/pictures.py            write them
python tools/pictures.py --check    exit with 1 if they are not what the baselines say
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_BASELINES = ROOT / "baselines" / "nvidia-h200"
_SHAPE = "bf16-64x128x768x3072"
_WIDTH, _BAR, _STEP, _TOP, _MARGIN = 500, 30, 66, 56, 6  # pixels
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_THEMES = {
    "light": {
        "text": "#1f2328",
        "quiet": "#59636e",
        "gemm": "#b6cdf2",
        "other": "#b8e0c2",
    },
    "dark": {
        "text": "#f0f6fc",
        "quiet": "#9198a1",
        "gemm": "#27477a",
        "other": "#1f5c37",
    },
}


@dataclass(frozen=True)
class Lane:
    """The kernels of one variant, in order of launch: a short name, a colour and microseconds."""

    title: str
    kernels: tuple[tuple[str, str, float], ...]

    @property
    def total_us(self) -> float:
        return sum(us for _, _, us in self.kernels)


def lanes() -> list[Lane]:
    """Read the lanes from the baselines."""
    found = []
    for variant in ("eager", "liger", "compiled"):
        baseline = json.loads(
            (_BASELINES / f"mlp-{variant}-{_SHAPE}.json").read_text(encoding="utf-8")
        )
        (entry,) = baseline["entries"]
        kernels = tuple(_drawn(entry["kernels"][row]) for row in entry["sequence"])
        found.append(Lane(f"{variant}: {len(kernels)} launches", kernels))
    return found


def _us(kernel: dict[str, Any]) -> float:
    return float(kernel["device_time_us"])


def _drawn(kernel: dict[str, Any]) -> tuple[str, str, float]:
    name = kernel["identity"]["name"]
    if kernel["identity"]["kind"] == "gemm":
        return "GEMM", "gemm", _us(kernel)
    if name.startswith("triton_"):
        return "fused", "other", _us(kernel)
    short = next((each for each in ("Gelu", "Mul", "geglu") if each in name), name)
    return short.lower(), "other", _us(kernel)


def svg(theme: dict[str, str], shown: list[Lane]) -> str:
    """Draw the lanes on one scale."""
    scale = (_WIDTH - 2 * _MARGIN) / max(lane.total_us for lane in shown)
    height = _TOP + _STEP * len(shown) + 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="{_FONT}" role="img">',
        _line(
            _MARGIN,
            22,
            "Committed baselines of one MLP on an H200, in µs",
            theme["text"],
            16,
            bold=True,
        ),
        _line(
            _MARGIN,
            42,
            "A new kernel, or a slower one, fails the test.",
            theme["quiet"],
            14,
        ),
    ]
    for row, lane in enumerate(shown):
        y, x = _TOP + _STEP * row, float(_MARGIN)
        parts.append(_line(_MARGIN, y + 20, lane.title, theme["text"], 14))
        parts.append(
            _line(
                _WIDTH - _MARGIN,
                y + 20,
                f"{lane.total_us:.1f} µs",
                theme["text"],
                15,
                bold=True,
                end=True,
            )
        )
        for name, colour, us in lane.kernels:
            width = us * scale
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 28}" width="{width - 2:.1f}" height="{_BAR}" rx="3" fill="{theme[colour]}"/>'
            )
            parts.append(
                _line(x + width / 2 - 1, y + 48, f"{name} {us:.0f}", theme["text"], 13, middle=True)
            )
            x += width
    return "\n".join([*parts, "</svg>", ""])


def _line(
    x: float,
    y: float,
    text: str,
    colour: str,
    size: int,
    *,
    bold: bool = False,
    end: bool = False,
    middle: bool = False,
) -> str:
    anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{colour}"{weight}{anchor}>{escape(text)}</text>'


def main() -> int:
    """Write the pictures, or check them."""
    shown, stale = lanes(), []
    for name, theme in _THEMES.items():
        file, drawn = ROOT / "docs" / "images" / f"kernels-{name}.svg", svg(theme, shown)
        if "--check" not in sys.argv:
            file.write_text(drawn, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != drawn:
            stale.append(str(file))
    print("\n".join(stale) or "pictures: as the baselines say")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
