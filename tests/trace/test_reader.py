"""From the bytes of a trace file to records: what the profiler wrote, and everything that is not a trace."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from kernelgauge.errors import TraceError
from kernelgauge.trace import parse, read
from tests.builders import (
    RECORDED,
    call,
    chrome,
    kernel,
    op,
    recorded,
    recorded_events,
    step,
    trace_of,
    waits_for_a_writer,
)

TRACES = sorted(path.name.removesuffix(".json.gz") for path in RECORDED.glob("*.json.gz"))
API = {"cuda_runtime", "cuda_driver"}
DEVICE = {"kernel", "gpu_memset", "gpu_memcpy"}


def test_there_are_recorded_traces() -> None:
    assert len(TRACES) == 14


@pytest.mark.parametrize("name", TRACES)
def test_every_row_of_a_recorded_trace_is_read_once(name: str) -> None:
    rows = Counter(row["cat"] for row in recorded_events(name))
    trace = recorded(name)
    assert len(trace.ops) == rows["cpu_op"]
    assert len(trace.annotations) == rows["user_annotation"]
    assert len(trace.calls) == sum(rows[category] for category in API)
    assert Counter(record.category for record in trace.records) == {key: rows[key] for key in DEVICE if rows[key]}


@pytest.mark.parametrize("name", TRACES)
def test_names_and_durations_are_those_of_the_file_in_order_of_start(name: str) -> None:
    rows = [row for row in recorded_events(name) if row["cat"] == "kernel"]
    records = [record for record in recorded(name).records if record.category == "kernel"]
    assert [record.name for record in records] == [row["name"] for row in rows]
    assert [record.duration_us for record in records] == [row["dur"] for row in rows]
    assert [record.correlation for record in records] == [row["args"]["correlation"] for row in rows]


def test_a_kernel_carries_its_launch_configuration() -> None:
    first = next(record for record in recorded("linear-eager").records if record.category == "kernel")
    assert (first.grid, first.block, first.device, first.stream) == ((2, 64, 1), (384, 1, 1), 0, 7)


def test_a_memset_carries_its_bytes_and_no_grid() -> None:
    memset = next(record for record in recorded("mlp-eager").records if record.category == "gpu_memset")
    assert (memset.name, memset.bytes, memset.grid) == ("Memset (Device)", 4, None)


def test_an_op_carries_its_input_shapes_as_nested_tuples() -> None:
    trace = recorded("mlp-cudagraph")
    copies = next(op for op in trace.ops if op.name == "aten::_foreach_copy_")
    assert copies.input_shapes == (((64, 128, 768),), ((64, 128, 768),), ())
    hash(copies)  # lists inside would not be hashable


@pytest.mark.parametrize(
    ("name", "kwargs", "warps"),
    [("mlp-compiled", "XBLOCK=1024", 4), ("mlp-compiled-other-autotune", "XBLOCK=512", 8)],
)
def test_the_op_of_a_triton_kernel_carries_what_the_autotuner_chose(name: str, kwargs: str, warps: int) -> None:
    triton = [op for op in recorded(name).ops if op.kernel_kwargs is not None]
    assert [op.name for op in triton] == ["triton_poi_fused__unsafe_view_gelu_mul_0"] * 3
    assert {(op.kernel_kwargs, op.num_warps, op.num_stages) for op in triton} == {(kwargs, warps, 1)}
    assert {op.kernel_hash for op in triton} == {"crp6dxk5nphodyk5oymrzgcw3cehyajdvjnp3t5k4e774karg5ms"}


def test_the_device_is_named_in_the_trace() -> None:
    (device,) = recorded("linear-eager").device_properties
    assert (device["name"], device["numSms"]) == ("NVIDIA H200", 132)


def test_a_trace_without_compression_reads_the_same(tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress((RECORDED / "mlp-compiled.json.gz").read_bytes()))
    assert read(plain) == recorded("mlp-compiled") == read(str(plain))


def test_rows_are_sorted_by_start_and_a_parent_precedes_its_child() -> None:
    trace = trace_of(op("aten::mul", 5, 1), op("child", 1, 2), op("parent", 1, 3), op("aten::add", 0, 1))
    assert [op.name for op in trace.ops] == ["aten::add", "parent", "child", "aten::mul"]


def test_rows_of_other_phases_and_categories_are_not_looked_into() -> None:
    foreign = {"cat": "new_in_some_version", "ph": "X", "name": "x", "ts": 0, "dur": 1, "args": {"correlation": "text"}}
    flow = {"ph": "s", "cat": "ac2g", "id": 7, "ts": 1, "name": "ac2g", "args": {"grid": "no"}}
    metadata = {"ph": "M", "name": "process_name", "pid": "Spans", "args": {"name": "python"}}
    trace = trace_of(foreign, flow, metadata, op("aten::mm", 0, 1))
    assert [op.name for op in trace.ops] == ["aten::mm"]
    assert trace.calls == trace.records == trace.annotations == ()


def test_on_rows_of_the_host_stream_and_grid_may_be_texts() -> None:
    launch = call(1, 0) | {"args": {"correlation": 1, "stream": "0x0", "grid": [3, 1, 1]}}  # as ROCm has them
    triton = op("triton_poi_fused_0", 0, 1) | {
        "args": {"grid": "grid(8192,)", "stream": 0, "num_warps": 4}
    }  # torch 2.6
    trace = trace_of(launch, triton)
    assert trace.calls[0].correlation == 1
    assert trace.ops[0].num_warps == 4


@pytest.mark.parametrize("field", ["device", "stream", "grid", "block"])
def test_on_a_record_of_the_device_they_may_not(field: str) -> None:
    row = kernel(1, 0)
    row["args"][field] = "0x0"
    with pytest.raises(TraceError) as caught:
        parse(chrome(step(1, 0, 9), row))
    assert f"traceEvents[1].args: {field}" in str(caught.value.got)


def test_unknown_fields_of_a_row_are_ignored() -> None:
    row = kernel(1, 0) | {"new": [1, {"deep": None}]}
    row["args"]["est. achieved occupancy %"] = 37
    assert trace_of(row).records[0].correlation == 1


def test_a_row_without_args_is_read() -> None:
    row = op("aten::mm", 0, 1)
    del row["args"]
    assert trace_of(row).ops[0].external_id is None


def test_a_trace_without_rows_is_a_trace() -> None:
    trace = parse(chrome())
    assert trace.steps() == []
    assert trace.pairing_problems() == ()


# -- what is not a trace --------------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file") as caught:
        read(tmp_path / "absent.json.gz")
    assert caught.value.where == str(tmp_path / "absent.json.gz")


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="not a regular file") as caught:
        read(tmp_path)
    assert caught.value.where == str(tmp_path)


WHOLE = (RECORDED / "linear-eager.json.gz").read_bytes()
PLAIN = gzip.decompress(WHOLE)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(gzip.compress(b""), id="gzip of nothing"),
        pytest.param(WHOLE[: len(WHOLE) // 2], id="truncated gzip"),
        pytest.param(WHOLE[:-1], id="gzip without its last byte"),
        pytest.param(WHOLE[:5], id="half a gzip header"),
        pytest.param(WHOLE[:100] + b"\xff" * 40 + WHOLE[140:], id="gzip damaged in the middle"),
        pytest.param(PLAIN[: len(PLAIN) // 2], id="truncated JSON"),
        pytest.param(PLAIN.rstrip()[:-1], id="JSON without its last brace"),
        pytest.param(PLAIN + b"{}", id="two JSON values"),
        pytest.param(b"\xff\xfe" + "{}".encode("utf-16-le"), id="UTF-16"),
        pytest.param(b"ph,cat,name\nX,kernel,gemm\n", id="CSV"),
        pytest.param(b"null", id="JSON null"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"schema_version": 1}', id="JSON of something else"),
        pytest.param(b'{"traceEvents": null}', id="no list of events"),
        pytest.param(b'{"traceEvents": {"ph": "X"}}', id="an object for the list"),
        pytest.param(b'{"traceEvents": [1, 2]}', id="numbers for events"),
        pytest.param(b'{"traceEvents": [], "deviceProperties": ["H200"]}', id="device as text"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_place(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert caught.value.where == str(path)
    assert caught.value.got


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"ts": "early"}, "ts", id="start as text"),
        pytest.param({"dur": None}, "dur", id="no duration"),
        pytest.param({"name": 5}, "name", id="a number for a name"),
        pytest.param({"tid": [1]}, "tid", id="a list for a thread"),
        pytest.param({"args": {"correlation": "one"}}, "correlation", id="correlation as text"),
        pytest.param({"args": {"correlation": 1.5}}, "correlation", id="correlation with a fraction"),
        pytest.param({"args": {"grid": [1, 2]}}, "grid", id="a grid of two"),
        pytest.param({"args": {"block": [1, 2, "x"]}}, "block", id="a block with text"),
        pytest.param({"args": {"bytes": "many"}}, "bytes", id="bytes as text"),
        pytest.param({"args": {"External id": {}}}, "External id", id="an object for an id"),
        pytest.param({"args": {"num_warps": "4"}}, "num_warps", id="warps as text"),
        pytest.param({"args": {"kernel_hash": 4}}, "kernel_hash", id="a number for a hash"),
    ],
)
def test_a_wrong_type_is_named_with_its_field(change: dict[str, object], named: str) -> None:
    with pytest.raises(TraceError, match="not a torch") as caught:
        parse(chrome(kernel(1, 0) | change), where="some.json")
    assert caught.value.where == "some.json"
    assert named in str(caught.value.got)
    assert "traceEvents" in str(caught.value.expected)


@pytest.mark.parametrize("field", ["Input Dims", "Input type"])
def test_shapes_or_types_that_are_no_list_are_named_with_their_row(field: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse(chrome(step(1, 0, 9), op("aten::mm", 0, 1) | {"args": {field: "all"}}))
    assert f"traceEvents[1].args: {field}" in str(caught.value.got)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_duration_that_is_no_finite_number_is_refused(number: str) -> None:
    content = json.dumps({"traceEvents": [kernel(1, 0, duration=12345)]}).replace("12345", number)
    with pytest.raises(TraceError):
        parse(content.encode())


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "trace.json"
    os.mkfifo(fifo)
    waits, caught = waits_for_a_writer(fifo, lambda: read(fifo))
    assert not waits
    assert isinstance(caught, TraceError)


NESTED = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"traceEvents": [], "x": ' + NESTED + b"}", id="beside the events"),
        pytest.param(
            chrome(op("aten::mm", 0, 1)).replace(b'"args": {}', b'"args": {"Input Dims": ' + NESTED + b"}"),
            id="in the shapes",
        ),
    ],
)
def test_json_nested_too_deeply_is_refused(content: bytes) -> None:
    with pytest.raises(TraceError):
        parse(content)


def test_a_wrong_type_is_named_with_its_row() -> None:
    with pytest.raises(TraceError) as caught:
        parse(chrome(step(1, 0, 9), kernel("one", 0)))  # type: ignore[arg-type]
    assert "traceEvents[1]" in str(caught.value.got)
