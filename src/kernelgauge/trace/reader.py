"""A torch.profiler Chrome trace (`.json` or `.json.gz`) -> `Trace`."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import msgspec

from ..errors import TraceError
from .model import ApiCall, DeviceRecord, Op, Trace

__all__ = ["parse", "read"]

_API_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"})
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memset", "gpu_memcpy"})
_CATEGORIES = _API_CATEGORIES | _DEVICE_CATEGORIES | {"cpu_op", "user_annotation"}


class _Args(msgspec.Struct, rename={"external_id": "External id", "input_dims": "Input Dims"}):
    external_id: int | None = None
    input_dims: list[Any] | None = None
    correlation: int | None = None
    device: int | None = None
    stream: int | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    bytes: int | None = None
    kernel_kwargs: str | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    kernel_hash: str | None = None


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    # Raw: most events are never looked into, and their args differ by category and by torch version.
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815  (the format's own key)
    deviceProperties: list[dict[str, Any]] = []  # noqa: N815


_decode_file = msgspec.json.Decoder(_File).decode
_decode_args = msgspec.json.Decoder(_Args).decode


def read(path: Path | str) -> Trace:
    """Read a trace file.

    Raises `TraceError` if the file is missing, is not gzip or JSON, or is JSON of something else.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # a FIFO would block for ever
            raise TraceError("cannot read the trace", where=str(path), got="not a regular file", expected="a file")
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError("cannot read the trace", where=str(path), got=str(error)) from error
    return parse(content, where=str(path))


def parse(content: bytes, *, where: str = "<bytes>") -> Trace:
    """Parse the JSON of a Chrome trace. Raises `TraceError` with the place, what was got and what was expected."""
    try:
        file = _decode_file(content)
        return _build(file)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            "not a torch.profiler trace",
            where=where,
            got=str(error),
            expected="a JSON object with a list `traceEvents`, as export_chrome_trace writes it",
        ) from error


def _build(file: _File) -> Trace:
    ops: list[Op] = []
    annotations: list[Op] = []
    calls: list[ApiCall] = []
    records: list[DeviceRecord] = []
    for index, event in enumerate(file.traceEvents):
        if event.ph != "X" or event.cat not in _CATEGORIES:
            continue
        try:
            args = _decode_args(event.args)
        except msgspec.DecodeError as error:
            raise msgspec.DecodeError(f"traceEvents[{index}].args: {error}") from error
        if event.cat == "cpu_op":
            ops.append(_op(event, args))
        elif event.cat == "user_annotation":
            annotations.append(_op(event, args))
        elif event.cat in _API_CATEGORIES:
            calls.append(ApiCall(event.name, event.ts, event.dur, args.correlation, args.external_id))
        else:
            records.append(_record(event, args))
    return Trace(
        ops=tuple(sorted(ops, key=_by_start)),
        annotations=tuple(sorted(annotations, key=_by_start)),
        calls=tuple(sorted(calls, key=_by_start)),
        records=tuple(sorted(records, key=_by_start)),
        device_properties=tuple(file.deviceProperties),
    )


def _by_start(item: Op | ApiCall | DeviceRecord) -> tuple[float, float]:
    # Longest first at equal starts, so that a parent precedes its child.
    return item.start_us, -item.duration_us


def _op(event: _Event, args: _Args) -> Op:
    return Op(
        name=event.name,
        start_us=event.ts,
        duration_us=event.dur,
        thread=event.tid,
        external_id=args.external_id,
        input_shapes=tuple(_frozen(shape) for shape in args.input_dims or ()),
        kernel_kwargs=args.kernel_kwargs,
        num_warps=args.num_warps,
        num_stages=args.num_stages,
        kernel_hash=args.kernel_hash,
    )


def _frozen(value: object) -> object:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _record(event: _Event, args: _Args) -> DeviceRecord:
    return DeviceRecord(
        category=event.cat,
        name=event.name,
        start_us=event.ts,
        duration_us=event.dur,
        device=args.device or 0,
        stream=args.stream or 0,
        correlation=args.correlation,
        external_id=args.external_id,
        grid=args.grid,
        block=args.block,
        bytes=args.bytes,
    )
