"""Rows of the host lane as `work_of` takes them: hand-built, and from the recorded traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernelgauge.trace.work import Work, work_of
from tests.builders import recorded_events

BF16, FP32, FP8 = "c10::BFloat16", "float", "c10::Float8_e4m3fn"
NONE: tuple[tuple[int, ...], str] = ((), "")
NUMBER: tuple[tuple[int, ...], str] = ((), "Scalar")
Argument = tuple[tuple[int, ...], str]


def work(name: str, *arguments: Argument) -> Work | None:
    return work_of(name, tuple(shape for shape, _ in arguments), tuple(type_name for _, type_name in arguments))


def known(name: str, *arguments: Argument) -> Work:
    found = work(name, *arguments)
    assert found is not None
    return found


def tupled(value: object) -> Any:
    return tuple(tupled(item) for item in value) if isinstance(value, list) else value


def recorded_work(trace: str) -> Iterator[tuple[str, Work | None]]:
    for row in recorded_events(trace):
        if row["cat"] == "cpu_op":
            args = row["args"]
            yield (
                row["name"],
                work_of(row["name"], tupled(args.get("Input Dims", [])), tupled(args.get("Input type", []))),
            )
