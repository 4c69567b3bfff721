"""Two readings of one trace: the reader's, and a plain one by `json.loads` to compare it with."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from typing import Any, NoReturn

import pytest

from kernelgauge.errors import TraceError
from kernelgauge.trace import ApiCall, DeviceRecord, Op, Trace, parse, reader
from kernelgauge.trace.summary import summarize_trace

Json = Any

DEVICE = {"kernel", "gpu_memset", "gpu_memcpy"}
API = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"}
CATEGORIES = DEVICE | API | {"cpu_op", "user_annotation"}
NOT_READ = {"Kernel", "Memset", "Memcpy", "Runtime"}


def read_in_blocks(content: bytes, block: int | None = None) -> Trace | None:
    """Return the trace, read `block` bytes at once and summarized; None if it is refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "BLOCK_BYTES", block or reader.BLOCK_BYTES)
        try:
            trace = parse(content, where="some.json")
        except TraceError as error:
            refused = (error.where, bool(error.got), bool(error.expected))
            return None if refused == ("some.json", True, True) else pytest.fail(f"{error!r}")
    summarize_trace(trace)
    summarize_trace(trace, [trace.whole(), *trace.regions(trace.annotations[0].name if trace.annotations else "")])
    return trace


# --- the plain reading -------------------------------------------------------------------------------------------------


class Pairs(dict[str, Json]):
    """An object with every pair of it: a key may come twice."""

    def __init__(self, pairs: list[tuple[str, Json]]) -> None:
        super().__init__(pairs)
        json.dumps(pairs, ensure_ascii=False).encode()  # half a surrogate is no text: a ValueError
        self.pairs = pairs

    def fits(self, fields: dict[str, Callable[[Json], bool]]) -> bool:
        return all(key not in fields or fields[key](value) for key, value in self.pairs)


def refuse(why: object) -> NoReturn:
    raise ValueError(why)


def is_whole(value: Json) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def is_number(value: Json) -> bool:
    return type(value) in (int, float) and isfinite(value)


def is_text(value: Json) -> bool:
    return isinstance(value, str)


def is_triple(value: Json) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(is_whole, value))


ARGS: dict[str, Callable[[Json], bool]] = {
    **dict.fromkeys(["External id", "external id", "correlation", "device", "stream", "bytes"], is_whole),
    **dict.fromkeys(["num_warps", "num_stages"], is_whole),
    **dict.fromkeys(["grid", "block"], is_triple),
    **dict.fromkeys(["kernel_kwargs", "kernel_hash"], is_text),
}
PLACE = ("device", "stream", "grid", "block", "bytes")  # of a device record; texts on rows of the host


def _optional(key: str, fits: Callable[[Json], bool]) -> Callable[[Json], bool]:
    return lambda value: value is None or fits(value) or (key in PLACE and is_text(value))


_ARGS = {key: _optional(key, fits) for key, fits in ARGS.items()}
FIELDS: dict[str, Callable[[Json], bool]] = {
    **dict.fromkeys(["ph", "cat", "name"], is_text),
    **dict.fromkeys(["ts", "dur"], is_number),
    "tid": lambda value: is_whole(value) or is_text(value),
    "args": lambda value: value is None or (isinstance(value, Pairs) and value.fits(_ARGS)),
}


def read_plainly(content: bytes) -> Trace | None:
    """Return the trace; None if it is to be refused."""
    try:
        found = json.loads(content.decode(errors="replace"), parse_constant=refuse, object_pairs_hook=Pairs)
        return _trace(*_rows_and_devices(found))
    except (ValueError, OverflowError):
        return None


def _rows_and_devices(found: Json) -> tuple[list[Json], Json]:
    if isinstance(found, list):
        if not any(isinstance(row, Pairs) and (not row.fits(FIELDS) or row.get("ph")) for row in found):
            refuse("no event")
        return found, []
    lists = [value for key, value in found.pairs if key == "traceEvents"] if isinstance(found, Pairs) else []
    if not lists or not isinstance(lists[-1], list) or any(isinstance(value, list) for value in lists[:-1]):
        refuse("not one list")
    return lists[-1], found.get("deviceProperties", [])


def _trace(rows: list[Json], devices: Json) -> Trace:
    lanes: dict[type, list[Any]] = {Op: [], Pairs: [], ApiCall: [], DeviceRecord: []}  # Pairs: annotations
    not_read: dict[str, int] = {}
    for row in rows:
        if not isinstance(row, Pairs):
            refuse("no object")
        category = row.get("cat") if is_text(row.get("cat")) else ""
        if category in NOT_READ and row.fits(FIELDS):
            not_read[category] = not_read.get(category, 0) + 1
        if row.get("ph") != "X" or category not in CATEGORIES:
            continue
        if not row.fits(FIELDS):
            refuse("a field of another type")
        args = row.get("args") or {}
        start = (row.get("name", ""), float(row.get("ts", 0)), float(row.get("dur", 0)))
        external = args.get("external id") if args.get("External id") is None else args["External id"]
        if category in API:
            lanes[ApiCall].append(ApiCall(*start, args.get("correlation"), external))
        elif category in DEVICE:
            if any(is_text(args.get(key)) for key in PLACE):
                refuse("a place in words")
            place = (args.get("device") or 0, args.get("stream") or 0, args.get("correlation"), external)
            sizes = [tuple(args[key]) if args.get(key) else None for key in ("grid", "block")]
            lanes[DeviceRecord].append(DeviceRecord(category, *start, *place, *sizes, args.get("bytes")))
        else:
            chosen = (args.get(key) for key in ("kernel_kwargs", "num_warps", "num_stages", "kernel_hash"))
            inputs = (_listed(args, "Input Dims", _shape), _listed(args, "Input type", _type_name))
            lane = Op if category == "cpu_op" else Pairs
            lanes[lane].append(Op(*start, row.get("tid", 0), external, *inputs, *chosen))
    if not isinstance(devices, list) or not all(isinstance(device, dict) for device in _finite(devices)):
        refuse("no list of devices")
    ordered = [tuple(sorted(lane, key=lambda row: (row.start_us, -row.duration_us))) for lane in lanes.values()]
    return Trace(*ordered, device_properties=tuple(devices), not_read=not_read)


def _finite(value: Json) -> Json:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _finite(item)
    return refuse("infinite") if isinstance(value, float) and not isfinite(value) else value


def _listed(args: dict[str, Json], key: str, read: Callable[[Json], Any]) -> tuple[Any, ...]:
    value = args.get(key)
    if value is not None and not isinstance(value, list):
        refuse("no list")
    return tuple(read(item) for item in value or ())


def _shape(value: Json, depth: int = 1) -> Any:
    if depth > 16 or isinstance(value, dict) or (isinstance(value, int) and abs(value) >= 2**63):
        refuse("no shape")
    return tuple(_shape(item, depth + 1) for item in value) if isinstance(value, list) else _finite(value)


def _type_name(value: Json) -> str:
    return value if isinstance(value, str) else refuse("no name of a type")
