"""`kernelgauge trace`, as it is typed."""

import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.trace import reader
from tests.builders import (
    RECORDED,
    Event,
    call,
    chrome,
    event,
    kernel,
    on,
    op,
    recorded_events,
    region,
    step,
)
from tests.commands.conftest import Command

TRACES_PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
EAGER, TRAIN, COMPILED, OTHER = (
    str(RECORDED / f"{name}.json.gz")
    for name in ("mlp-eager", "mlp-eager-train", "mlp-compiled", "mlp-compiled-other-autotune")
)


def written(path: Path, *rows: Event) -> Path:
    path.write_bytes(chrome(*rows))
    return path


@pytest.fixture
def show(command: Command, tmp_path: Path) -> Any:
    return lambda rows, *options: command(
        "trace", written(tmp_path / "trace.json", *rows), *options
    )[1]


@pytest.fixture
def diff(command: Command, tmp_path: Path) -> Any:
    """Return the output of `diff` for two lists of rows, with wrapped lines joined; that of --json
    is decoded.
    """

    def call_diff(*sides: Sequence[Event], options: Sequence[str] = ()) -> Any:
        files = [written(tmp_path / f"{number}.json", *rows) for number, rows in enumerate(sides)]
        out = command("trace", *files, *options)[1]
        return json.loads(out) if "--json" in options else out.replace("\n    ", " ")

    return call_diff


def launches(*kernels: tuple[str, str, float], module: str = "") -> list[Event]:
    """Return rows of ops that launch one kernel each: the op, the kernel and its duration."""
    rows = [event("python_function", f"nn.Module: {module}", -1, 100_000, 404)] if module else []
    for at, (op_name, name, us) in enumerate(kernels, start=1):
        rows.append(op(op_name, 100 * at, 9, external_id=at))
        rows.append(call(at, 100 * at + 1, external_id=at))
        rows.append(kernel(at, 100 * at + 10, name=name, duration=us, external_id=at))
    return rows


def test_show_selects_a_step_or_the_whole_trace(command: Command) -> None:
    one = json.loads(command("trace", EAGER, "--step", "3", "--json")[1])
    assert (one["steps"], [len(each["durations_us"]) for each in one["step"]["kernels"]]) == (
        1,
        [1] * 5,
    )
    assert command("trace", EAGER, "--whole")[1].count("15 kernels, 701.8 us")
    code, out, err = command("trace", EAGER, "--step", "77")
    assert (code, out) == (2, "")
    assert re.search(
        "(?s)there is no ProfilerStep#77.*ProfilerStep#2, ProfilerStep#3, ProfilerStep#4", err
    )


def test_show_by_module_needs_modules(command: Command, show: Any) -> None:
    out = show(
        launches(("aten::a", "gemm", 5.0), ("aten::b", "relu", 2.0), module="Net_0"),
        "--by",
        "module",
    )
    assert re.search(r"2  7\.0 us  100 %\n +Net_0\n +by aten::a, aten::b\n +gemm\n +relu\n", out)
    code, out, err = command("trace", COMPILED, "--by", "module")
    assert (code, out) == (2, "")
    assert all(each in err for each in ("with_stack=True", f"kernelgauge trace {COMPILED} --by op"))


def test_show_region_leaves_out_the_work_of_before(show: Any) -> None:
    """The GPU is 40 us behind the host when the region begins."""
    rows = [
        call(1, 1),
        kernel(1, 10, duration=80),
        region("forward", 50, 20),
        call(2, 55),
        kernel(2, 90, duration=30),
    ]
    out = show(rows, "--region", "forward")
    assert re.search(
        r"(?s)Call: 30\.0 us\..*GPU busy 30\.0 us \(100 %\): compute 30\.0 us\.\n", out
    )


def test_show_tells_malformed_rows_once(command: Command, show: Any, tmp_path: Path) -> None:
    odd = [each | {"dur": None} for each in (kernel(1, 10), kernel(2, 20), op("aten::mm", 1, 5))]
    out = show([call(1, 1), call(2, 2), call(3, 3), kernel(3, 30), *odd])
    assert (
        "kernelgauge did not read 2 rows of kernel, 1 row of cpu_op. No number here has them.\n"
        in out
    )
    assert (
        "The kernels of 2 launch calls are missing: the profiler lost them, or their rows were not read."
        in out
    )
    assert out.count("malformed") == 1
    path = tmp_path / "trace.json"
    assert (
        "Before: 3 problems of launches and records. `kernelgauge trace`"
        in command("trace", path, path)[1]
    )


def test_diff_as_markdown_has_a_column_of_kernels(command: Command) -> None:
    out = command("trace", EAGER, COMPILED, "--markdown")[1]
    assert re.search(r"^\| .* kernel \|$", out, re.MULTILINE)
    assert "triton_poi_fused__unsafe_view_gelu_mul_0" in out
    assert re.search(r"and \d+ smaller cause", command("trace", EAGER, TRAIN)[1])


def test_diff_judges_a_kernel_by_op_and_module(diff: Any) -> None:
    """One launch becomes slower and another one faster by as much: their sum is the same."""
    inner = event("python_function", "nn.Module: Linear_0", 90, 50, 404)
    sides = [
        [inner, *launches(("aten::a", "gemm", a), ("aten::b", "gemm", b), module="Net_0")]
        for a, b in ((50.1, 20.1), (20.1, 50.1))
    ]
    found = diff(*sides, options=["--json"])
    assert [
        (
            each["what"],
            *(each["before"][0][name] for name in ("op", "module", "durations_us")),
            round(each["delta_us"], 6),
        )
        for each in found["differences"]
    ] == [
        ("faster", "aten::a", "Net_0.Linear_0", [50.1], -30.0),
        ("slower", "aten::b", "Net_0", [20.1], 30.0),
    ]
    assert found["modules"][0] == ["Net_0.Linear_0", 50.1, 20.1]
    out = diff(*sides)
    assert "the same kernel, slower: gemm  20.1 -> 50.1 us (+30.0 us)\n" in out
    assert "   by aten::b in Net_0\n" in out
    assert re.search(
        r"(?s)by module.*Net_0\.Linear_0 +50\.1 us +20\.1 us +-30\.0 us +-42\.7 %", out
    )


def test_diff_json_has_equal_launches_once(diff: Any) -> None:
    rows = launches(*[("aten::a", "gemm", 2.0)] * 3, ("aten::b", "gemm", 5.0))
    found = diff(rows, rows, options=["--json"])["differences"]
    for side in ("before", "after"):
        shown = [
            (it["op"], it["launches"], it["durations_us"]) for each in found for it in each[side]
        ]
        assert sorted(shown) == [("aten::a", 3, [6.0]), ("aten::b", 1, [5.0])]


@pytest.mark.parametrize("on_gpu", [False, True])
def test_interrupted_call_moves_no_time(show: Any, diff: Any, on_gpu: bool) -> None:
    def calls(*times_us: float) -> list[Event]:
        rows, at = [], 0.0
        for number, us in enumerate(times_us, start=1):
            length = 20 if on_gpu else us
            rows += [
                region("kernelgauge.call", at, 50 + us),
                op("aten::mm", at + 10, length, external_id=number),
            ]
            if on_gpu:
                rows += [
                    call(number, at + 12, external_id=number),
                    kernel(number, at + 40, duration=us, external_id=number),
                ]
            at += 1000 + us
        return rows

    usual, slower = calls(100.5, 100.5, 9000.5), calls(150.5, 150.5, 150.5)
    out = show(usual)
    assert re.search(r"Call: 1[05]0\.5 us, median of 3 \(1[05]0\.5 us to 9\.0[05] ms\)", out), out
    assert re.search(r"1 (kernel|computing op), 100\.5 us: gemm 100\.5 us \(100 %\)", out), out
    out = diff(usual, slower)
    assert re.search(
        r"Call 1[05]0\.5 -> [12][05]0\.5 us \(\+[345]\d\.\d %\), .* 100\.5 -> 150\.5 us \(\+49\.8 %\)",
        out,
    ), out
    assert json.loads(show(calls(100.5, 300.5), "--json"))["step"]["device_time_us"] == 200.5


@pytest.mark.parametrize(
    ("before", "after", "is_seen"), [(5, 4, False), (4.8, 4, False), (5.2, 4.1, True), (5, 3, True)]
)
def test_diff_of_whole_microseconds_ignores_one(
    diff: Any, before: float, after: float, is_seen: bool
) -> None:
    sides = [
        launches(("aten::mm", "gemm", 5000), ("aten::add", "small_add", us))
        for us in (before, after)
    ]
    out = diff(*sides)
    assert ("the same kernel, faster: small_add" in out, "Nothing on the GPU changed." in out) == (
        is_seen,
        not is_seen,
    )


def test_show_of_damaged_or_huge_traces_is_short(
    command: Command, show: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = show([call(1, 1), kernel(1, 10, duration=1e300)])
    assert ("1e+294 s" in out, max(map(len, out.splitlines())) < 100) == (True, True)
    rows = [on(kernel(number, number, duration=1), device=number) for number in range(20_000)]
    started = time.process_time()
    out = show(rows)
    assert time.process_time() - started < 30  # it took the square of their number
    assert ("and 19968 more GPUs" in out, len(out.splitlines()) < 120) == (True, True)
    monkeypatch.setattr(reader, "MOST_EVENTS", 10_000)
    trace = tmp_path / "empty.json"
    trace.write_text(f"""{{"traceEvents": [{", ".join(["{}"] * 500_000)}]}}""")
    code, out, err = command("trace", trace)
    assert (code, out, "more than 10,000 events" in err) == (2, "", True)


def test_diff_names_registers_of_a_slower_kernel(command: Command) -> None:
    old = RECORDED / "mlp-liger.json.gz"
    traces = {name: json.loads(gzip.decompress(old.read_bytes())) for name in ("new", "odd")}
    for name, trace in traces.items():
        for row in (row for row in trace["traceEvents"] if row.get("cat") == "kernel"):
            if name == "odd":
                row["args"] |= {"registers per thread": "48", "shared memory": 1.5}
            elif row["name"] == "_geglu_tanh_forward_kernel":
                row["args"]["registers per thread"] = 72
                row["dur"] += 20
        Path(f"{name}.json").write_text(json.dumps(trace))
    out = command("trace", old, "new.json")[1]
    assert "the same kernel, compiled otherwise: _geglu_tanh_forward_kernel (+20.0 us)" in out
    assert "registers 48 -> 72, occupancy 62 % -> 38 %" in out
    assert "Nothing on the GPU changed." in command("trace", old, "odd.json")[1]
    data = json.loads(command("trace", "new.json", "--by", "launch", "--json")[1])
    assert data["step"]["groups"][2]["code"] == [
        {"registers": "72", "shared bytes": "0", "occupancy": "38 %"}
    ]


def test_diff_of_several_gpus_is_of_the_busiest(diff: Any) -> None:
    def job(us: float) -> list[Event]:
        rows = [step(1, 0, 100), call(1, 1), call(2, 2)]
        return [*rows, kernel(1, 10, duration=us), on(kernel(2, 20, duration=us / 10), device=1)]

    out = diff(job(40), job(60))
    assert "Busy and idle times are of the busiest GPU; times of kernels are of all GPUs.\n" in out
    assert "GPU 0 busy 40.0 -> 60.0 us: compute 40.0 -> 60.0 us.\n" in out
    assert "kernels 44.0 -> 66.0 us" in out


def test_diff_fail_on_change_fails_closed(command: Command, tmp_path: Path) -> None:
    lost = written(
        tmp_path / "lost.json",
        *(row for row in recorded_events("mlp-eager") if row["cat"] != "kernel"),
    )
    assert [
        command("trace", COMPILED, after, "--fail-on-change")[0] for after in (OTHER, COMPILED)
    ] == [1, 0]
    assert command("trace", COMPILED, OTHER)[0] == 0
    assert command("trace", lost, lost, "--fail-on-change")[0] == 2
    assert (
        "The kernels of 15 launch calls are missing: the profiler lost them"
        in command("trace", lost)[1]
    )
    code, out, err = command("trace", EAGER, tmp_path / "absent.json", "--fail-on-change")
    assert (code, out, str(tmp_path / "absent.json") in err) == (2, "", True)


LIBRARY = (
    "torch/nn/modules/linear.py(130): forward",
    "<built-in method item of Tensor object at 0x7fd2>",
)
FRAMES = [
    event("python_function", name, 1, 9_000, 404) for name in ("my_model.py(8): forward", *LIBRARY)
]
MM, NORM = (
    ("aten::mm", "gemm", 100.0),
    ("aten::layer_norm", "void layer_norm_kernel<c10::BFloat16>(int)", 10.0),
)
WAIT = [
    op("aten::item", 500, 50, external_id=9),
    call(9, 501, name="cudaStreamSynchronize", external_id=9),
]


@pytest.mark.parametrize(
    ("after", "first"),
    [
        ([*launches(MM, NORM), *WAIT], "the host waits: aten::item: cudaStreamSynchronize"),
        (
            launches(MM, ("aten::cat", "CatArrayBatchedCopy", 8.0), NORM),
            "1 new kernel, by aten::cat: Cat",
        ),
    ],
)
def test_diff_begins_with_the_cause_and_its_line(
    diff: Any, monkeypatch: Any, after: list[Event], first: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    line = diff([*FRAMES, *launches(MM, NORM)], [*FRAMES, *after]).splitlines()[2]
    assert line.startswith(first)
    assert line.endswith("  my_model.py:8  forward")


def test_diff_names_the_largest_cause_first(diff: Any) -> None:
    before = launches(MM, ("aten::relu", "relu", 5.0))
    after = launches(("aten::relu", "relu_again", 6.0), MM, ("aten::mul", "mul", 90.0))
    lines = diff(before, after).splitlines()
    assert [line.partition(",")[0] for line in lines[2:5]] == [
        "another kernel",
        "  was relu",
        "1 new kernel",
    ]
    table = [line for line in lines if re.search(r"us +[+-][\d.]+ %$", line)]
    changes = [
        abs(float(re.findall(r"([+-][\d.]+) us", line)[-1]))
        for line in table
        if "unchanged" not in line
    ]
    assert changes == sorted(changes, reverse=True)


def steps(*kernels: tuple[str, float, float, int], change_us: float = 0.0) -> list[Event]:
    """Return three steps of 2 ms: the name, start, duration and stream of each kernel.

    The first varies by 300 us a step.
    """
    rows: list[Event] = []
    for at in range(3):
        rows.append(step(at, 2000 * at, 2000))
        for place, (name, start, us, stream) in enumerate(kernels):
            number, varies = 10 * at + place + 1, (300 * at + change_us) * (place == 0)
            rows += [op("aten::op", 2000 * at + 9 * place, 8, external_id=number)]
            rows += [call(number, 2000 * at + 9 * place + 1, external_id=number)]
            rows += [
                on(
                    kernel(number, 2000 * at + start, name=name, duration=us + varies),
                    stream=stream,
                )
            ]
    return rows


def test_diff_leads_with_communication_that_moved_most(diff: Any) -> None:
    """The slowest step after is slower than the fastest one before: of a computing kernel that
    would be no change.
    """
    nccl = ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", 100, 700.0, 7)
    out = diff(
        steps(nccl, ("gemm", 1750, 100.0, 7)),
        steps(nccl, ("gemm", 1750, 96.0, 7), change_us=-150.0),
    )
    idle, communication = out.splitlines()[2:4]
    assert idle.startswith("the GPU is idle for 1.05 ms of a step instead of 900.0 us (+154.0 us)")
    assert communication.startswith(
        "the same kernel, faster: ncclDevKernel_AllReduce_Sum_bf16_RING_LL "
    )
    rows = re.findall(r"^(faster|unchanged) .* ([+-][\d.]+ us)", out, re.MULTILINE)
    assert rows == [("faster", "-150.0 us"), ("faster", "-4.0 us")]


def test_diff_of_overlapping_streams_has_their_union(diff: Any) -> None:
    alone = [("other", 100, 50.0, 7), ("gemm", 800, 100.0, 7), ("gemm", 950, 100.0, 7)]
    side = [("other", 100, 50.0, 7), ("gemm", 800, 130.0, 7), ("gemm", 820, 130.0, 13)]
    out = diff(steps(*alone), steps(*side))
    assert "kernels 550.0 -> 500.0 us (-9.1 %)" in out
    assert "on a second stream in 1 kernel (+30.0 us)" in out.splitlines()[2]
    assert "at least one runs for 500.0 us, and their times add up to 610.0 us." in out


def test_diff_of_cpu_and_gpu_compares_one_span(diff: Any) -> None:
    """On both sides the host begins at 10 us.

    The kernel ends at 500 us, the ops of the CPU at 810 us.
    """
    cpu = [op("aten::mm", 10, 800)]
    gpu = [
        op("aten::mm", 10, 20, external_id=1),
        call(1, 12, external_id=1),
        kernel(1, 400, duration=100),
    ]
    for sides, times in (((cpu, gpu), "800.0 -> 490.0 us"), ((gpu, cpu), "490.0 -> 800.0 us")):
        out = diff(*sides)
        assert f"Trace {times}" in out
        assert "each from its begin on the host until host and GPU are done; " in out
    assert "kernels 100.0 us -> computing ops 800.0 us." in out


@pytest.mark.parametrize(
    "option", [["--setp", "3"], ["--json", "--markdown"], ["--step", "1", "--whole"]]
)
def test_wrong_usage_is_trouble(command: Command, option: list[str]) -> None:
    code, out, err = command("trace", EAGER, *option)
    assert (code, out, option[0] in err) == (2, "", True)


@pytest.mark.parametrize(
    ("script", "code", "out", "err"),
    [
        ("$KG trace $1 > /dev/full", 2, "", "system error: [Errno 28] No space left on device\n"),
        ("$KG trace $1 --json | head -1", 0, "{\n", ""),
        ("$KG trace absent 2> >(exec true); exit $?", 2, "", ""),
        ("$KG trace $1 $1 --fail-on-change >&-", 0, "", ""),
    ],
)
def test_output_that_ends_early_is_no_traceback(script: str, code: int, out: str, err: str) -> None:
    variables = {**os.environ, "KG": f"{sys.executable} -m kernelgauge"}
    command = ["bash", "-c", script, "bash", COMPILED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_documentation_shows_the_output(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RECORDED)
    examples = re.findall(r"```console\n\$ kernelgauge (.*?)\n(.*?)```", TRACES_PAGE, re.DOTALL)
    assert len(examples) == 2
    for arguments, output in examples:
        assert command(*arguments.split())[1].rstrip() == output.rstrip()
