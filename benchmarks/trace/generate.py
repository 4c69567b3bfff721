"""A large torch.profiler trace, made of a recorded one: its steps again and again, later each time.

    python benchmarks/trace/generate.py 200 /tmp/200mb.json
    python benchmarks/trace/generate.py 200 /tmp/200mb.json.gz --recorded tests/data/h200/mlp-liger-train.json.gz

Events keep the text that the profiler gave them. Times, correlation ids, external ids, flow ids and the numbers of the
profiler's steps move on, so that every copy pairs with itself alone. The same arguments give the same file.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["generate"]

RECORDED = Path(__file__).resolve().parents[2] / "tests" / "data" / "h200" / "mlp-liger-train.json.gz"

_MEGABYTE = 1_000_000
_TIME = re.compile(r'"ts": (\d+)\.(\d{3})')
_MOVING = re.compile(
    r'(?P<time>"ts": )(?P<us>\d+)(?P<ns>\.\d+)|(?P<id>"(?:correlation|External id|id)": )(?P<number>\d+)'
    r'|(?P<step>"ProfilerStep#)(?P<nth>\d+)(?=")'
)
_IDS_APART = 10_000_000
_GAP_US = 1000


def generate(megabytes: float, path: Path, recorded: Path = RECORDED) -> int:
    """Write a trace of about `megabytes` (uncompressed) to `path`; return how many copies of the recorded one it has."""
    text = gzip.decompress(recorded.read_bytes()).decode()
    head, events, tail = _parts(text)
    times = [int(match[1]) for match in _TIME.finditer(events)]
    apart_us = max(times) - min(times) + _GAP_US
    template = _template(events)
    copies = max(1, round(megabytes * _MEGABYTE / len(events.encode())))
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(head)
        for copy, part in enumerate(_copies(template, copies, apart_us)):
            file.write(part if copy == 0 else "," + part)
        file.write(tail)
    return copies


def _parts(text: str) -> tuple[str, str, str]:
    start = text.index("[", text.index('"traceEvents"')) + 1
    end = text.rindex("]")
    return text[:start], text[start:end].rstrip(), "\n" + text[end:]


def _template(events: str) -> list[str | tuple[str, int, str]]:
    """Return fixed texts, and what moves: (which, its first value, what follows it)."""
    parts: list[str | tuple[str, int, str]] = []
    at = 0
    for match in _MOVING.finditer(events):
        if match["time"]:
            fixed, moving = match["time"], ("time", int(match["us"]), match["ns"])
        elif match["id"]:
            fixed, moving = match["id"], ("id", int(match["number"]), "")
        else:
            fixed, moving = match["step"], ("step", int(match["nth"]), "")
        parts += [events[at : match.start()] + fixed, moving]
        at = match.end()
    return [*parts, events[at:]]


def _copies(template: list[str | tuple[str, int, str]], copies: int, apart_us: int) -> Iterator[str]:
    steps = {part[1] for part in template if isinstance(part, tuple) and part[0] == "step"}
    apart = {"time": apart_us, "id": _IDS_APART, "step": len(steps)}
    for copy in range(copies):
        yield "".join(
            part if isinstance(part, str) else f"{part[1] + copy * apart[part[0]]}{part[2]}" for part in template
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("path", type=Path)
    parser.add_argument("--recorded", type=Path, default=RECORDED)
    arguments = parser.parse_args()
    copies = generate(arguments.megabytes, arguments.path, arguments.recorded)
    print(f"{arguments.path}: {arguments.path.stat().st_size / _MEGABYTE:.1f} MB, {copies} copies")


if __name__ == "__main__":
    main()
