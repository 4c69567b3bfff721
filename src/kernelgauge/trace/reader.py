"""A trace file -> `Trace`: the Chrome trace of torch.profiler (`.json`, `.json.gz`)."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import TraceError
from ..files import ChangedFileError, IrregularFileError, blocks_of_file
from .events import GZIP_BYTES, Args, Event, Piece, TraceParser, in_utf8, inflate
from .model import STEP_PREFIX, ApiCall, DeviceRecord, Op, Trace

__all__ = ["parse", "read"]

_API_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"})
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memset", "gpu_memcpy"})
_CATEGORIES = _API_CATEGORIES | _DEVICE_CATEGORIES | {"cpu_op", "user_annotation"}

# Devices and versions that nobody here has seen enough of: Kineto's other accelerators, and its names before torch 1.11.
_NOT_READ = frozenset(
    {"Kernel", "Memset", "Memcpy", "Runtime", "mtia_ccp_events", "mtia_runtime", "mtia_workloadd", "hpu_op",
     "xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver"}
)  # fmt: skip

# Steps follow one another. Each holds what happened in it: if all were open at once, the square of the trace.
_MOST_STEPS_AT_ONCE = 64

_Timed = TypeVar("_Timed", Op, ApiCall, DeviceRecord)
_NO_ARGS = Args()
# A list of tensors is a list of lists in the list of the arguments; what is deeper by far is no shape.
_DEEPEST_SHAPE = 16
_MOST_ELEMENTS = 2**63 - 1  # torch counts in int64
_decode_any = msgspec.json.Decoder(list[Any]).decode
_decode_types = msgspec.json.Decoder(list[str]).decode
_decode_devices = msgspec.json.Decoder(list[dict[str, Any]]).decode


def read(path: Path | str) -> Trace:
    """Read a trace of torch.profiler.

    Raises `TraceError` if the file is missing, changes while it is read, is not gzip or JSON, or is JSON of something
    else.
    """
    where, what = str(path), "cannot read the trace"
    try:
        return _read(inflate(blocks_of_file(path, GZIP_BYTES), where), where)
    except ChangedFileError as error:
        what, got, expected = "the trace changed while it was read", str(error), "a file that nobody writes to"
        raise TraceError(what, where=where, got=got, expected=expected) from error
    except IrregularFileError as error:
        raise TraceError(what, where=where, got=str(error), expected="a file") from error
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        raise TraceError(what, where=where, got=str(error), expected="a file that can be read") from error


def parse(content: bytes, *, where: str = "<bytes>") -> Trace:
    """Parse the JSON of a Chrome trace. Raises `TraceError` with the place, what was got and what was expected."""
    return _read([content], where=where)


def _read(blocks: Iterable[bytes], where: str) -> Trace:
    parser, rows = TraceParser(_is_looked_into), _Rows()
    try:
        for piece in parser.pieces(blocks):
            rows.add(piece)
        return rows.trace(_devices(parser.rest.get("deviceProperties", msgspec.Raw(b"[]"))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            "not a torch.profiler trace",
            where=where,
            got=str(error),
            expected="a JSON object with a list `traceEvents`, as export_chrome_trace writes it",
        ) from error


def _is_looked_into(phase: object, category: object) -> bool:
    return phase == "X" and isinstance(category, str) and category in _CATEGORIES


def _devices(raw: msgspec.Raw) -> tuple[dict[str, object], ...]:
    try:
        return tuple(_decode_devices(in_utf8(bytes(raw))))
    except msgspec.DecodeError as error:
        raise msgspec.DecodeError(f"deviceProperties: {error}") from error


class _Rows:
    """The rows of a trace as they come in. Names, threads, shapes and types are kept once: there are few of them."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._annotations: list[Op] = []
        self._calls: list[ApiCall] = []
        self._records: list[DeviceRecord] = []
        self._not_read: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._threads: dict[int | str, int | str] = {}
        self._lists: dict[bytes, tuple[Any, ...]] = {b"": (), b"null": ()}
        self._types: dict[bytes, tuple[str, ...]] = {b"": (), b"null": ()}

    def add(self, piece: Piece) -> None:
        ops, names = self._ops, self._names
        for index, event in enumerate(piece.events):
            category = event.cat
            if category not in _CATEGORIES or event.ph != "X":
                if category in _NOT_READ:
                    self._not_read[category] = self._not_read.get(category, 0) + 1
                continue
            name = names.setdefault(event.name, event.name)
            args = event.args or _NO_ARGS
            if category in _API_CATEGORIES:
                self._calls.append(ApiCall(name, event.ts, event.dur, args.correlation, _external_id(args)))
                continue
            try:
                if category in _DEVICE_CATEGORIES:
                    self._records.append(_record(event, name, args))
                else:
                    (ops if category == "cpu_op" else self._annotations).append(self._op(event, name, args))
            except msgspec.DecodeError as error:
                raise msgspec.DecodeError(f"traceEvents[{piece.first + index}].args: {error}") from error

    def trace(self, devices: tuple[dict[str, object], ...]) -> Trace:
        annotations = _by_start(self._annotations)
        _refuse_crowded_steps(annotations)
        return Trace(
            ops=_by_start(self._ops),
            annotations=annotations,
            calls=_by_start(self._calls),
            records=_by_start(self._records),
            device_properties=devices,
            not_read=self._not_read,
        )

    def _op(self, event: Event, name: str, args: Args) -> Op:
        return Op(
            name,
            event.ts,
            event.dur,
            self._threads.setdefault(event.tid, event.tid),
            _external_id(args),
            self._shapes(bytes(args.input_dims)),
            self._input_types(bytes(args.input_types)),
            args.kernel_kwargs,
            args.num_warps,
            args.num_stages,
            args.kernel_hash,
        )

    def _shapes(self, raw: bytes) -> tuple[Any, ...]:
        known = self._lists.get(raw)
        if known is None:
            try:
                known = tuple(_frozen(shape) for shape in _decode_any(in_utf8(raw)))
            except msgspec.DecodeError as error:
                raise msgspec.DecodeError(f"Input Dims: {error}") from error
            self._lists[raw] = known
        return known

    def _input_types(self, raw: bytes) -> tuple[str, ...]:
        known = self._types.get(raw)
        if known is None:
            try:
                known = tuple(_decode_types(in_utf8(raw)))
            except msgspec.DecodeError as error:
                raise msgspec.DecodeError(f"Input type: {error}") from error
            self._types[raw] = known
        return known


def _external_id(args: Args) -> int | None:
    return args.older_id if args.external_id is None else args.external_id


def _frozen(value: object, depth: int = 1) -> object:
    """Lists as tuples: what is shown and compared later is hashable, small and not deep, whatever the file holds."""
    if depth > _DEEPEST_SHAPE:
        raise msgspec.ValidationError("nested too deeply")
    if isinstance(value, list):
        return tuple(_frozen(item, depth + 1) for item in value)
    if isinstance(value, dict) or (isinstance(value, int) and abs(value) > _MOST_ELEMENTS):
        raise msgspec.ValidationError(f"Expected lists of sizes, got {type(value).__name__}")
    return value


def _record(event: Event, name: str, args: Args) -> DeviceRecord:
    device, stream, grid, block = args.device, args.stream, args.grid, args.block
    if isinstance(device, str) or isinstance(stream, str) or isinstance(grid, str) or isinstance(block, str):
        fields = {"device": device, "stream": stream, "grid": grid, "block": block}
        wrong = next(field for field, value in fields.items() if isinstance(value, str))
        raise msgspec.ValidationError(f"{wrong} of a device record: got `str`")
    return DeviceRecord(
        event.cat,
        name,
        event.ts,
        event.dur,
        device or 0,
        stream or 0,
        args.correlation,
        _external_id(args),
        grid,
        block,
        args.bytes,
    )


_START = attrgetter("start_us")


def _by_start(rows: list[_Timed]) -> tuple[_Timed, ...]:
    """Longest first at equal starts, so that a parent precedes its child."""
    rows.sort(key=_START)
    start = 0
    while start < len(rows) - 1:
        end = start + 1
        while end < len(rows) and rows[end].start_us == rows[start].start_us:
            end += 1
        if end - start > 1:
            rows[start:end] = sorted(rows[start:end], key=lambda row: -row.duration_us)
        start = end
    return tuple(rows)


def _refuse_crowded_steps(annotations: Iterable[Op]) -> None:
    """Raise where more steps are open at once than a profiler writes. `annotations`: in order of start."""
    ends: list[float] = []  # a heap
    for mark in annotations:
        if mark.name.startswith(STEP_PREFIX):
            while ends and ends[0] <= mark.start_us:
                heappop(ends)
            heappush(ends, mark.end_us)
            if len(ends) > _MOST_STEPS_AT_ONCE:
                raise msgspec.ValidationError(f"more than {_MOST_STEPS_AT_ONCE} steps at once, at {mark.start_us} us")
