"""From the bytes of a trace to its records: what the profiler writes, and everything that is not a
trace or fills memory.
"""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import pytest

import kernelgauge
from kernelgauge.cli.traces import read_trace as read
from kernelgauge.errors import TraceError
from kernelgauge.trace import Trace, parse, reader
from kernelgauge.trace.summary import summarize_trace
from tests import builders
from tests.builders import Event, call, chrome, event, kernel, op, read_in_blocks, step, trace_of

TRACES = sorted(path.name.removesuffix(".json.gz") for path in builders.RECORDED.glob("*.json.gz"))
LANES = {
    "ops": {"cpu_op"},
    "annotations": {"user_annotation"},
    "calls": {"cuda_runtime", "cuda_driver"},
    "records": {"kernel", "gpu_memset", "gpu_memcpy"},
}


def refusal(content: bytes) -> str:
    with pytest.raises(TraceError) as caught:
        parse(content)
    assert caught.value.expected
    return f"{caught.value.got}; {caught.value.next_command}"


@pytest.mark.parametrize("name", TRACES)
def test_read_recorded_trace_keeps_every_row(name: str) -> None:
    trace, rows = builders.recorded(name), builders.recorded_events(name)
    for lane, categories in LANES.items():
        of_file = sorted(
            (row["ts"], row["dur"], row["name"]) for row in rows if row["cat"] in categories
        )
        assert (
            sorted((row.start_us, row.duration_us, row.name) for row in getattr(trace, lane))
            == of_file
        )
    launches = sorted(row["args"]["correlation"] for row in rows if row["cat"] == "kernel")
    assert sorted(row.correlation for row in trace.records if row.category == "kernel") == launches
    fused = next((op for op in trace.ops if op.kernel_kwargs), None)
    assert name != "mlp-compiled" or (fused.kernel_kwargs, fused.num_warps, fused.num_stages) == (
        "XBLOCK=1024",
        4,
        1,
    )
    assert len(TRACES) == 14
    assert (
        read_in_blocks(gzip.decompress((builders.RECORDED / f"{name}.json.gz").read_bytes()), 777)
        == trace
    )


HEAD = b'{"traceEvents":['
MM_ROW = op("aten::mm", 1, 2)
ROW, MM = json.dumps(MM_ROW).encode(), trace_of(MM_ROW)
OBJECTS = b'{"args":[' + b'{"a":{}},' * 30 + b"0]}"  # an event in which others seem to end
NO_TRACES = [
    *(
        b"",
        b"\xff\xfe" + "{}".encode("utf-16-le"),
        b"ph,cat,name\nX,kernel,gemm\n",
        b"null",
        b"[]",
        b"[{},{},{}]",
    ),
    *(
        b'{"schema_version": 1}',
        b'{"traceEvents": null}',
        b'{"traceEvents": {"ph": "X"}}',
        HEAD + b"1, 2]}",
    ),
    *(HEAD + b'],"deviceProperties":["H200"]}', b'{"traceEvents"\x0b:[' + ROW + b"]}"),
    *(HEAD + ROW + end for end in (b"}", b"]", b"}}", b"]}{}", b"]]}", b'],"traceEvents":[]}')),
    *(HEAD + ROW + between + ROW + b"]}" for between in (b",,", b" ", b"\x0b,")),
    *(b"[" + ROW + end for end in (b"", b"}")),
    *(HEAD + b"," + ROW + b"]}", b'{"a":{"traceEvents":[' + ROW + b"]}}"),
    *(HEAD + b"," + OBJECTS + b"," + ROW + b"]}", HEAD + OBJECTS + b" " + ROW + b"]}"),
    HEAD + OBJECTS + b"x" + OBJECTS + b"," + ROW + b"]}",
]
ODD_TRACES = [
    b'{"a":{},"traceEvents" :\n[' + ROW + b"]}",
    b'{"traceEvents":null,"traceEvents":[' + ROW + b"]}",
    b"[" + ROW + b"]",
    *(HEAD + ROW + end for end in (b",]}", b",\n]}")),
    HEAD + ROW + b'],"a":{"traceEvents":[{}]},"b":[[],"]"]}',
    HEAD + OBJECTS + b"," + ROW + b"]}",
    HEAD + b'{"name":"' + b"},{" * 30 + b'\\\\"},' + ROW + b"]}",
    HEAD + b'{"name":"' + b'\\"},{' * 30 + b'"},' + ROW + b"]}",
    b'{"\xff":1,"traceEvents":[' + ROW + b'],"\xe2\x82":2}',
    HEAD + ROW + b',{"ph":"X","cat":"\xff","name":5}]}',
]


@pytest.mark.parametrize(
    ("content", "trace"), [*zip(NO_TRACES, repeat(None)), *zip(ODD_TRACES, repeat(MM))]
)
def test_parse_of_odd_content_is_the_same_in_all_blocks(
    content: bytes, trace: Trace | None
) -> None:
    for block in range(1, len(content) + 2):
        assert read_in_blocks(content, block) == trace, block


ODD_FIELDS = [
    *((kernel(1, 0) | {field: value}, field) for field, value in {"ts": "early", "dur": None, "name": 5, "tid": [1]}.items()),
    *((kernel(1, 0) | {"args": {field: value}}, field) for field, value in (
        ("correlation", "one"), ("correlation", 1.5), ("grid", [1, 2]), ("block", [1, 2, "x"]), ("External id", {}),
        ("num_warps", "four"), ("kernel_hash", 4),
        *((field, "0x0") for field in ("device", "stream", "grid", "block", "bytes")),
    )),
    *((op("aten::mm", 0, 1) | {"args": {field: value}}, field) for field, value in (
        ("Input Dims", "all"), ("Input type", "all"), ("Input Dims", [{"a": 1}]), ("Input Dims", [["two"]]), ("Input Strides", "all"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("row", "named"), ODD_FIELDS)
def test_parse_odd_field_leaves_out_that_row(row: Event, named: str) -> None:
    trace = trace_of(step(1, 0, 9), row, op("aten::add", 1, 2))
    assert trace.malformed == {row["cat"]: 1}
    assert re.search(rf"traceEvents\[1\].*{named}", trace.first_malformed)
    assert [row.name for row in (*trace.annotations, *trace.ops)] == ["ProfilerStep#1", "aten::add"]
    assert trace.pairing_problems()[0].startswith(
        f"malformed: rows that were not read: 1 of {row['cat']}; the first: "
    )


def listed(name: str, start: float, **fields: object) -> Event:
    """Return a row as `prof.events().export_chrome_trace` writes it."""
    row: Event = {
        "name": name,
        "ph": "X",
        "ts": start,
        "dur": 5,
        "tid": 1,
        "pid": "CPU functions",
        "args": {},
    }
    return row | fields


def test_parse_list_of_a_cpu_has_its_ops_and_steps() -> None:
    trace = parse(
        json.dumps([listed("ProfilerStep#3", 0), listed('aten::"mm"', 1)])
        .replace('\\"', '"')
        .encode()
    )
    assert [row.name for row in (*trace.annotations, *trace.ops)] == [
        "ProfilerStep#3",
        'aten::"mm"',
    ]
    trace = trace_of(
        op("aten::mul", 5, 1), op("child", 1, 2), op("parent", 1, 3), op("aten::add", 0, 1)
    )
    # by start
    assert [op.name for op in trace.ops] == ["aten::add", "parent", "child", "aten::mul"]


OF_A_GPU = [
    listed("cudaLaunchKernel", 2),  # a call of the runtime
    listed("aten::mm", 1, ph="s", cat="cpu_to_xpu"),  # a flow to a device
    listed("gemm", 2, pid="CUDA functions"),  # a kernel of torch 1.8
]
OF_ANOTHER = (
    "no row of an op, a launch or a kernel, but rows of category 'ebpf'; .*export_chrome_trace"
)
WHY = [
    (b"[]", "an empty list"),
    (chrome(MM_ROW, step(1, 1, 2))[:-3], "the JSON has no end: the file was cut off"),
    (chrome(event("ebpf", "read", 1, 1, "main")), OF_ANOTHER),
    *(
        (json.dumps([listed("aten::mm", 1), row]).encode(), "do not say what the GPU ran")
        for row in OF_A_GPU
    ),
]


@pytest.mark.parametrize(("content", "got"), WHY)
def test_parse_of_what_is_no_trace_says_why(content: bytes, got: str) -> None:
    assert re.search(got, refusal(content))


NPU = [
    {"ph": "M", "name": "process_labels", "pid": 800, "args": {"labels": "NPU"}},
    {
        "ph": "X",
        "name": "aclnnMatMul",
        "pid": 800,
        "tid": 3,
        "ts": "12.5",
        "dur": 7.0,
        "args": {"Stream Id": 3},
    },
]
ACCELERATORS = {
    "Ascend, its process last": (NPU[::-1], "NPU"),
    "Gaudi": ([kernel(1, 5) | {"cat": "hpu_op"}], "hpu_op"),
    "a runtime of tomorrow": ([call(1, 2, category="musa_driver")], "musa_driver"),
}


@pytest.mark.parametrize(("rows", "not_read"), ACCELERATORS.values(), ids=ACCELERATORS)
def test_rows_of_other_accelerators_make_no_trace_of_a_cpu(
    rows: list[Event], not_read: str
) -> None:
    every = [MM_ROW, *rows]
    for content in (json.dumps(every).encode(), chrome(*every)):
        summary = summarize_trace(parse(content))
        assert (summary.not_read, summary.on_cpu) == ({not_read: 1}, False)


@pytest.mark.parametrize("depth", [3, 4, 300, 100_000])
@pytest.mark.parametrize("block", [64, 4096, None])
@pytest.mark.parametrize("field", ["more", "Input Dims"])
def test_parse_depth_of_json_is_limited(field: str, depth: int, block: int | None) -> None:
    nested = "[" * depth + "]" * depth
    row = json.dumps(op("aten::mm", 1, 2) | {"args": {field: 0}}).replace("0}}", nested + "}}")
    trace = read_in_blocks(HEAD + row.encode() + b"]}", block)
    assert (trace is not None) == (depth <= 300)
    assert trace is None or len(trace.ops) == (field == "more" or depth <= 3)
    assert read_in_blocks(HEAD + b'], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}") is None


@pytest.mark.parametrize("start", [HEAD, b'{"a": 1, "traceEvents" : ['])
@pytest.mark.parametrize("block", [10, 60, 200, 5000])
def test_parse_error_names_event(monkeypatch: pytest.MonkeyPatch, start: bytes, block: int) -> None:
    content = start + b", ".join([ROW, ROW, b'{"ph":"X",,}', ROW]) + b"]}"
    monkeypatch.setattr(reader, "BLOCK_BYTES", block)
    assert re.search(r"traceEvents\[[012]\] or later: JSON is malformed", refusal(content))


MEBIBYTE = 1 << 20
OBJECT = b'{"a":{}},'
LONG = {
    "a text before the events": b'{"a":"' + b"x" * (12 * MEBIBYTE) + b'","traceEvents":[',
    "one event of many objects": HEAD + b'{"args":[' + OBJECT * MEBIBYTE + b"0]},",
    "one text of many escapes": HEAD + b'{"args":"' + b'\\"},' * MEBIBYTE + b'"},',
    "empty events": HEAD + b"{}," * MEBIBYTE,
}


@pytest.mark.timeout(60)  # seconds each; what is not linear takes minutes
@pytest.mark.parametrize("start", LONG.values(), ids=LONG)
def test_parse_long_content_takes_linear_time(start: bytes) -> None:
    assert parse(start + ROW + b"]}") == MM


MANY = 30_000
ROWS = {
    "metadata ops and launches": lambda at: [op("aten::t", at, 1), call(at, at), kernel(at, at)],
    "one correlation": lambda at: [call(1, at), kernel(1, at, name="n" * 100)],
    "ops within ops": lambda at: [op("aten::mm", at, MANY - at)],
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("rows_at", ROWS.values(), ids=ROWS)
def test_summarize_many_rows_takes_linear_time(rows_at: Callable[[int], list[Event]]) -> None:
    trace = read_in_blocks(
        chrome(step(0, 0, MANY + 1), *(row for at in range(MANY) for row in rows_at(at)))
    )
    assert trace.steps()[0].name == "ProfilerStep#0"


def test_parse_longest_event_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BLOCK_BYTES", 100)
    spaces = chrome(MM_ROW)[:-2] + b" " * 5000 + b"]}"
    before = b'{"more":"' + b"x" * 5000 + b'",' + chrome(MM_ROW)[1:]
    for content in (
        chrome(op("x" * 5000, 1, 2), MM_ROW),
        spaces,
        chrome(MM_ROW, more="x" * 5000),
        before,
    ):
        monkeypatch.setattr(reader, "LONGEST_BYTES", 6000)
        assert parse(content).ops[-1].name == "aten::mm"
        monkeypatch.setattr(reader, "LONGEST_BYTES", 4000)
        assert "4000 bytes" in refusal(content)


# -- files -----------------------------------------------------------------------------------------

CONTENT = chrome(step(1, 0, 9), op("aten::mm", 1, 2), call(1, 2), kernel(1, 5), traceName="x")
WHOLE = gzip.compress(CONTENT, mtime=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json.gz"


def refused_file(path: Path, content: bytes | None = None) -> str:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert caught.value.where == str(path)
    assert caught.value.expected
    assert caught.value.got
    return caught.value.got


def test_read_file_that_is_not_whole_is_refused(path: Path) -> None:
    for name in ("absent.json.gz", "a\0b", "n" * 5000):
        refused_file(path.parent / name)
    for content in (WHOLE, CONTENT, gzip.compress(b"")):
        for length in range(len(content)):
            refused_file(path, content[:length])
    for garbage in (b"x", b"\x1f\x8b", bytes(3 * MEBIBYTE) + b"x", CONTENT):
        assert "gzip" in refused_file(path, WHOLE + garbage)


UNDER_A_LIMIT = """
import resource, sys
from kernelgauge.errors import TraceError
from kernelgauge.cli.traces import read_trace as read
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
try:
    read(sys.argv[1])
except TraceError as error:
    print(error.got)
"""


def test_read_gzip_bomb_is_refused_in_little_memory(path: Path) -> None:
    parts = [
        (b'{"traceEvents":[{"args":[', b'{"a":{}},'),
        (b'{"traceEvents":[', b'{"args":'),
        (b'{"a":"', b"x"),
    ]
    for start, unit in parts:
        path.write_bytes(gzip.compress(start) + gzip.compress(unit * (MEBIBYTE // len(unit))) * 400)
        assert path.stat().st_size < 4 * MEBIBYTE
        command = [sys.executable, "-c", UNDER_A_LIMIT, str(path), str(600 * MEBIBYTE)]
        environment = os.environ | {"PYTHONPATH": str(Path(kernelgauge.__file__).parents[1])}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr
