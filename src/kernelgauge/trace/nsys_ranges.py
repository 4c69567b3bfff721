"""NVTX ranges of an export of Nsight Systems: which are ops of torch, which annotations, and what a call was made in.

`torch.autograd.profiler.emit_nvtx` makes a range of each op, and of each `record_function` too. Its message is built by
`getNvtxStr` (torch/csrc/profiler/util.cpp):

    aten::mm, seq = 3, op_id = 12, sizes = [[8, 16], [16, 32]], input_op_ids = [(11, 0)]

with each part but the name only where there is something to say: `sizes` with `record_shapes`, no `op_id` in old torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from ..errors import TraceError
from .model import STEP_PREFIX, Op
from .nsys_tables import CallRow, Export, RangeRow
from .overlap import MOST_STEPS_AT_ONCE, too_many_steps_at

__all__ = ["Clock", "innermost", "ranges_of"]

# ENUM_NSYS_EVENT_TYPE: NvtxPushPopRange, of one thread and nested, and NvtxStartEndRange.
_NESTED, _FREE = 59, 60
# Beside what the dispatcher calls: rows that torch's profiler has as ops too. An autograd node has a number ("seq") or,
# as a Python function has, tensors. A `record_function` has neither: its argument is a string.
_OP = re.compile(r"\w+(?:::\w+)+|autograd::engine::evaluate_function: .+|triton_\w+", re.DOTALL)

_Size = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Shapes = tuple[tuple[int, ...], ...]
_decode_sizes = msgspec.json.Decoder(tuple[tuple[_Size, ...], ...]).decode


@dataclass(frozen=True)
class Clock:
    """Nanoseconds of the session as microseconds. `last_ns` ends what nobody ended."""

    origin_ns: int
    last_ns: int

    def us(self, moment_ns: int) -> float:
        return (moment_ns - self.origin_ns) / 1000


class _Range(msgspec.Struct, frozen=True, gc=False):
    name: str
    start_ns: int
    end_ns: int
    thread: int
    shapes: _Shapes = ()

    def op(self, clock: Clock, external_id: int | None = None) -> Op:
        duration_us = (self.end_ns - self.start_ns) / 1000
        return Op(self.name, clock.us(self.start_ns), duration_us, self.thread, external_id, self.shapes)


class _Message(msgspec.Struct, frozen=True, gc=False):
    """What a range says. `by_torch`: as emit_nvtx writes it."""

    name: str
    by_torch: bool = False
    has_sequence: bool = False
    sizes: str = ""


def ranges_of(export: Export, clock: Clock) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """(ops, annotations), each by start, a parent before its children. The external ids of ops count from 1.

    Raises `TraceError` if a message is missing, or if profiler steps that follow one another are open all at once.
    """
    texts = export.texts(RangeRow, "textId")
    names: dict[str, str] = {}
    known: dict[str, _Shapes] = {"": ()}
    ops: list[_Range] = []
    annotations: list[_Range] = []
    for row in export.rows(RangeRow, f'WHERE "eventType" IN ({_NESTED}, {_FREE})'):
        text = row.text or (export.text(texts, row.text_id, RangeRow) if row.text_id is not None else "")
        if not text:
            continue  # nobody can ask for it
        message = _parsed(text)
        if message.sizes not in known:
            known[message.sizes] = _shapes(message.sizes)
        shapes = known[message.sizes]
        # An end before the start is a default value: exports of 2021 have no NULL.
        end = row.end if row.end is not None and row.end >= row.start else max(row.start, clock.last_ns)
        name = names.setdefault(message.name, message.name)
        found = _Range(name, row.start, end, row.global_tid or 0, shapes)
        is_op = row.event_type == _NESTED and _is_op(message, shapes)
        (ops if is_op else annotations).append(found)
    for lane in (ops, annotations):
        lane.sort(key=lambda one: (one.start_ns, -one.end_ns))
    _refuse_overlap(annotations, export.where)
    return (
        tuple(one.op(clock, number) for number, one in enumerate(ops, start=1)),
        tuple(one.op(clock) for one in annotations),
    )


def innermost(ops: Sequence[Op], calls: Iterable[CallRow], clock: Clock) -> Iterator[int | None]:
    """The external id of the innermost op around each call, on the call's thread. Both are sorted by start."""
    stacks: dict[int | str, list[Op]] = {}
    following = 0
    for call in calls:
        start_us = clock.us(call.start)
        while following < len(ops) and ops[following].start_us <= start_us:
            stacks.setdefault(ops[following].thread, []).append(ops[following])
            following += 1
        stack = stacks.get(call.global_tid or 0, [])
        while stack and stack[-1].end_us <= start_us:
            stack.pop()
        yield stack[-1].external_id if stack else None


def _parsed(text: str) -> _Message:
    rest, _, _ = text.partition(", input_op_ids = ")
    rest, _, sizes = rest.partition(", sizes = ")
    rest, _, number = rest.partition(", op_id = ")
    name, _, sequence = rest.partition(", seq = ")
    numbers = number + sequence
    # In old torch, an op without autograd has its name alone.
    if name and (numbers.isdecimal() or (not numbers and name.startswith("aten::"))):
        return _Message(name, by_torch=True, has_sequence=bool(sequence), sizes=sizes)
    return _Message(text)


def _is_op(message: _Message, shapes: _Shapes) -> bool:
    if not message.by_torch:
        return False
    return message.has_sequence or any(shapes) or _OP.fullmatch(message.name) is not None


def _shapes(sizes: str) -> _Shapes:
    try:
        return _decode_sizes(sizes)
    except msgspec.DecodeError:
        return ()  # a message can be anybody's


def _refuse_overlap(annotations: Iterable[_Range], where: str) -> None:
    crowded = too_many_steps_at((each.name, each.start_ns, each.end_ns) for each in annotations)
    if crowded is not None:
        raise TraceError(
            "too many profiler steps at once",
            where=f"{where}: {RangeRow.TABLE}",
            got=f"more than {MOST_STEPS_AT_ONCE} ranges {STEP_PREFIX}N that are open {crowded:.0f} ns into the session",
            expected=f"at most {MOST_STEPS_AT_ONCE}: steps follow one another",
        )
