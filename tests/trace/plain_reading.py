"""A trace read plainly: the whole document by `json.loads`, and then row by row. What the reader is held against."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from typing import Any, NoReturn

from kernelgauge.trace import (
    ApiCall,
    DeviceRecord,
    Op,
    Trace,
)

Json = Any

DEVICE = {"kernel", "gpu_memset", "gpu_memcpy"}
API = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"}
CATEGORIES = DEVICE | API | {"cpu_op", "user_annotation"}
NOT_READ = {"Kernel", "Memset", "Memcpy", "Runtime"}


class Pairs(dict[str, Json]):
    """An object with every pair of it: a key may come twice."""

    def __init__(self, pairs: list[tuple[str, Json]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def refuse(what: object = None) -> NoReturn:
    raise ValueError(what)


def whole(value: Json) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def number(value: Json) -> bool:
    return type(value) in (int, float) and isfinite(value)


def text(value: Json) -> bool:
    return isinstance(value, str)


def three(value: Json) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(whole, value))


ARGS: dict[str, Callable[[Json], bool]] = {
    **dict.fromkeys(["External id", "external id", "correlation", "device", "stream", "bytes"], whole),
    **dict.fromkeys(["num_warps", "num_stages"], whole),
    **dict.fromkeys(["grid", "block"], three),
    **dict.fromkeys(["kernel_kwargs", "kernel_hash"], text),
}
FIELDS: dict[str, Callable[[Json], bool]] = {
    **dict.fromkeys(["ph", "cat", "name"], text),
    **dict.fromkeys(["ts", "dur"], number),
    "tid": lambda value: whole(value) or text(value),
    "args": lambda value: value is None or (isinstance(value, Pairs) and fits(value, ARGS, none=True)),
}


PLACE = ("device", "stream", "grid", "block")  # of a device record; texts on rows of the host


def fits(value: Pairs, fields: dict[str, Callable[[Json], bool]], *, none: bool) -> bool:
    return all(
        key not in fields or fields[key](item) or (none and (item is None or (key in PLACE and text(item))))
        for key, item in value.pairs
    )


def finite(value: Json) -> Json:
    """Refuses what is read as it is, if it is no finite number."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        finite(item)
    return refuse("infinite") if isinstance(value, float) and not isfinite(value) else value


def strings_are_text(pairs: list[tuple[str, Json]]) -> Pairs:
    json.dumps(pairs, ensure_ascii=False).encode()  # a UnicodeEncodeError is a ValueError
    return Pairs(pairs)


def reference(content: bytes) -> Trace | None:
    """None: refused."""
    try:
        found = json.loads(content.decode(errors="replace"), parse_constant=refuse, object_pairs_hook=strings_are_text)
        return trace_from(*parts(found))
    except (ValueError, OverflowError):
        return None


def parts(found: Json) -> tuple[list[Json], Json]:
    """The events, and the devices."""
    if isinstance(found, list):
        if not any(isinstance(row, Pairs) and (not fits(row, FIELDS, none=False) or row.get("ph")) for row in found):
            refuse("no event")
        return found, []
    if not isinstance(found, Pairs):
        refuse("no object")
    values = [value for key, value in found.pairs if key == "traceEvents"]
    if not values or not isinstance(values[-1], list) or any(isinstance(value, list) for value in values[:-1]):
        refuse("not one list")
    return values[-1], found.get("deviceProperties", [])


def trace_from(rows: list[Json], devices: Json) -> Trace:
    ops: list[Op] = []
    annotations: list[Op] = []
    calls: list[ApiCall] = []
    records: list[DeviceRecord] = []
    not_read: dict[str, int] = {}
    for row in rows:
        if not isinstance(row, Pairs):
            refuse("no object")
        category = row.get("cat")
        if isinstance(category, str) and category in NOT_READ and fits(row, FIELDS, none=False):
            not_read[category] = not_read.get(category, 0) + 1
        if row.get("ph") != "X" or not isinstance(category, str) or category not in CATEGORIES:
            continue
        if not fits(row, FIELDS, none=False):
            refuse("a field of another type")
        args = row.get("args") or {}
        name, start, duration = row.get("name", ""), float(row.get("ts", 0)), float(row.get("dur", 0))
        external = args.get("external id") if args.get("External id") is None else args["External id"]
        if category in API:
            calls.append(ApiCall(name, start, duration, args.get("correlation"), external))
        elif category in DEVICE:
            if any(text(args.get(key)) for key in PLACE):
                refuse("a place in words")
            place = (args.get("device") or 0, args.get("stream") or 0, args.get("correlation"), external)
            sizes = (triple(args.get("grid")), triple(args.get("block")), args.get("bytes"))
            records.append(DeviceRecord(category, name, start, duration, *place, *sizes))
        else:
            chosen = (args.get(key) for key in ("kernel_kwargs", "num_warps", "num_stages", "kernel_hash"))
            shapes, types = listed(args, "Input Dims", shape), listed(args, "Input type", type_name)
            (ops if category == "cpu_op" else annotations).append(
                Op(name, start, duration, row.get("tid", 0), external, shapes, types, *chosen)
            )
    if not isinstance(devices, list) or not all(isinstance(device, dict) for device in finite(devices)):
        refuse("no list of devices")
    return Trace(
        *(by_start(lane) for lane in (ops, annotations, calls, records)),
        device_properties=tuple(devices),
        not_read=not_read,
    )


def by_start(lane: list[Any]) -> Any:
    return tuple(sorted(lane, key=lambda row: (row.start_us, -row.duration_us)))


def triple(value: Json) -> Any:
    return None if value is None else tuple(value)


def listed(args: dict[str, Json], key: str, of: Callable[[Json], Any]) -> tuple[Any, ...]:
    value = args.get(key)
    if value is not None and not isinstance(value, list):
        refuse("no list")
    return tuple(of(item) for item in value or ())


def shape(value: Json, depth: int = 1) -> Any:
    if depth > 16 or isinstance(value, dict) or (isinstance(value, int) and abs(value) >= 2**63):
        refuse("no shape")
    return tuple(shape(item, depth + 1) for item in value) if isinstance(value, list) else finite(value)


def type_name(value: Json) -> str:
    return value if isinstance(value, str) else refuse("no name of a type")
