"""What each method caught of what was slowed down, on recorded processes: needs no GPU.

    python benchmarks/detection/run.py --evaluate benchmarks/data/detection_h200.xz --out DIR

Writes table.md and caught.svg to DIR.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[2] / "src"),
]

from detection.data import load_all
from detection.evaluate import evaluate, is_slower
from detection.table import markdown, plot


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--evaluate", type=Path, nargs="+", required=True, metavar="FILE")
    arguments = parser.parse_args()
    processes = load_all(arguments.evaluate)
    evaluation = evaluate(processes, is_slower)
    text = markdown(evaluation, processes)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    try:
        plot(evaluation, arguments.out / "caught.svg")
    except ImportError as error:
        print(f"no plot: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
