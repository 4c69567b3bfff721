"""Two readings of one trace: the reader's, and a plain one by `json.loads` to compare it with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
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
OLD = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memset": "gpu_memset",
    "Memcpy": "gpu_memcpy",
}
NOT_READ = {"mtia_runtime", "xpu_driver"}
OTHERS = {"ac2g", "fwdbwd", "overhead", "Trace", "gpu_user_annotation", "cpu_instant_event", "cuda_sync"}  # of PyTorch


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
    text = content.decode(errors="replace").removeprefix("\ufeff")
    for attempt in (text, mended(text)):
        try:
            found = json.loads(attempt, parse_constant=refuse, object_pairs_hook=Pairs)
            return _trace(*_rows_and_devices(found))
        except (ValueError, OverflowError):
            continue
    return None


def mended(text: str) -> str:
    """Return JSON for text with numbers that are none, and with line ends and single backslashes in strings."""
    parts: list[str] = []
    inside, at = False, 0
    while at < len(text):
        taken = 1
        part = text[at]
        if part == "\\" and inside:
            escape = re.match(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})', text[at:])
            taken = len(escape[0]) if escape else 1
            part = escape[0] if escape else "\\\\"
        elif inside and part < " ":
            part = " "
        elif part == '"':
            inside = not inside
        elif not inside and (word := re.match(r"[0-9A-Za-z_]+", text[at:])):
            taken, part = len(word[0]), word[0]
            if part in ("NaN", "Infinity", "nan", "inf"):
                part = "[{}]"
                if parts and parts[-1] == "-":
                    parts.pop()
        parts.append(part)
        at += taken
    return "".join(parts)


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
    lanes: dict[type, list[Any]] = {
        Op: [],
        Pairs: [],
        ApiCall: [],
        DeviceRecord: [],
        str: [],
    }  # Pairs: annotations, str: modules
    not_read: dict[str, int] = {}
    malformed: dict[str, int] = {}
    is_of_pytorch = is_of_another = False
    for row in rows:
        if not isinstance(row, Pairs):
            refuse("no object")
        category = row.get("cat") if is_text(row.get("cat")) else ""
        fits = row.fits(FIELDS)
        is_of_pytorch |= (fits or row.get("ph") == "X") and category in CATEGORIES | OLD.keys() | OTHERS
        is_of_pytorch |= fits and category == "python_function"
        is_of_another |= fits and row.get("ph", "") not in ("", "M")
        if category in NOT_READ and fits:
            not_read[category] = not_read.get(category, 0) + 1
        category = OLD.get(category, category)
        is_module = category == "python_function" and fits and str(row.get("name")).startswith("nn.Module: ")
        if row.get("ph") != "X" or not (category in CATEGORIES or is_module):
            continue
        is_step = row["cat"] == "Operator" and str(row.get("name")).startswith("ProfilerStep#")
        try:
            lane, read = _row(row, category) if fits else refuse("a field of another type")
            lanes[str if is_module else Pairs if is_step else lane].append(read)
        except ValueError:
            malformed[category] = malformed.get(category, 0) + 1
    if is_of_another and not (is_of_pytorch or malformed or not_read):
        refuse("of another program")
    if not isinstance(devices, list) or not all(isinstance(device, dict) for device in _finite(devices)):
        refuse("no list of devices")
    *ordered, modules = [
        tuple(sorted(lane, key=lambda row: (row.start_us, -row.duration_us))) for lane in lanes.values()
    ]
    return Trace(*ordered, device_properties=tuple(devices), not_read=not_read, malformed=malformed, modules=modules)


def _row(row: Pairs, category: str) -> tuple[type, Json]:
    args = row.get("args") or {}
    start = (row.get("name", ""), float(row.get("ts", 0)), float(row.get("dur", 0)))
    external = args.get("external id") if args.get("External id") is None else args["External id"]
    if category in API:
        return ApiCall, ApiCall(*start, args.get("correlation"), external)
    if category in DEVICE:
        if any(is_text(args.get(key)) for key in PLACE):
            refuse("a place in words")
        place = (args.get("device") or 0, args.get("stream") or 0, args.get("correlation"), external)
        sizes = [tuple(args[key]) if args.get(key) else None for key in ("grid", "block")]
        return DeviceRecord, DeviceRecord(category, *start, *place, *sizes, args.get("bytes"))
    chosen = (args.get(key) for key in ("kernel_kwargs", "num_warps", "num_stages", "kernel_hash"))
    inputs = (_listed(args, "Input Dims", _shape), _listed(args, "Input type", _type_name))
    return Op if category == "cpu_op" else Pairs, Op(*start, row.get("tid", 0), external, *inputs, *chosen)


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


# --- the plain calculation ---------------------------------------------------------------------------------------------


def plain_step_time(content: bytes) -> tuple[float, float]:
    """Return the time of a step and of it the GPU's busy time, of a trace whose steps all launch the same on one GPU."""
    rows = [row for row in json.loads(content)["traceEvents"] if row.get("ph") == "X"]
    spans = [(row["ts"], row["ts"] + row["dur"]) for row in rows if row["name"].startswith("ProfilerStep#")]
    spans = [(float(start), float(end)) for start, end in sorted(set(spans))]
    begin, end = spans[0][0], spans[-1][1]
    steps = {
        row["args"]["correlation"]
        for row in rows
        if row.get("cat") in API and "correlation" in row["args"] and begin <= row["ts"] < end
    }
    device = [row for row in rows if row.get("cat") in DEVICE]
    own = [row for row in device if row["args"]["correlation"] in steps]
    last = max(row["ts"] + row["dur"] for row in own)
    first = min(row["ts"] for row in own)
    earlier = [row["ts"] + row["dur"] for row in device if row not in own and row["ts"] < first]
    behind = max(0.0, last - end)
    begin, end = begin + min(behind, max(0.0, max(earlier, default=begin) - begin)), end + behind
    moments = sorted(
        {begin, end, *(min(max(at, begin), end) for row in device for at in (row["ts"], row["ts"] + row["dur"]))}
    )
    busy = sum(
        after - before
        for before, after in pairwise(moments)
        if any(row["ts"] <= before and after <= row["ts"] + row["dur"] for row in device)
    )
    return (end - begin) / len(spans), busy / len(spans)
