"""Windows of a trace, their launches, and how launches and records pair."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelgauge.trace import Window, decode
from tests.builders import BACKWARD_THREAD, Event, call, event, kernel, op, recorded, step, trace_of

EAGER, MLP = "gemm gemm pointwise pointwise gemm", "gemm gemm pointwise gemm"
SUM, UPDATE = "reduction fill copy gemm", "gemm pointwise gemm pointwise"  # of the gradients
RECORDED = {  # kinds in launch order, and memsets
    "linear-eager": ("gemm", 0),
    "linear-compiled": ("gemm", 0),
    "linear-eager-splitk": ("gemm splitk_reduce", 0),
    "matmul_add-eager": ("gemm pointwise", 0),
    "matmul_add-compiled": ("gemm", 0),
    "mlp-eager": (EAGER, 2),
    "mlp-compiled": (MLP, 2),
    "mlp-compiled-other-autotune": (MLP, 2),
    "mlp-compiled-fp32": (MLP, 1),
    "mlp-liger": (MLP, 2),
    "mlp-cudagraph": (f"copy {MLP}", 2),
    "mlp-eager-train": (f"{EAGER} {SUM} copy gemm pointwise pointwise pointwise pointwise {UPDATE}", 4),
    "mlp-compiled-train": (f"{MLP} {SUM} gemm pointwise gemm gemm pointwise pointwise pointwise", 4),
    "mlp-liger-train": (f"{MLP} {SUM} copy gemm pointwise pointwise {UPDATE}", 4),
}
BEGUN_EARLY = "mlp-compiled-fp32"  # its session began while kernels of the warm-up were still running


def only_step(*rows: Event) -> Window:
    (window,) = trace_of(step(1, 0, 1000), *rows).steps()
    return window


def kernels(window: Window) -> list[str]:
    return [launch.record.name for launch in window.launches]


def launching(window: Window) -> list[str | None]:
    return [launch.op and launch.op.name for launch in window.launches]


@pytest.mark.parametrize("name", RECORDED)
def test_steps_of_recorded_trace_launch_the_same(name: str) -> None:
    kinds, memsets = RECORDED[name]
    steps = recorded(name).steps()
    assert [window.name for window in steps] == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    for window in steps:
        assert [decode(name).kind.value for name in kernels(window)] == kinds.split()
        assert (len(window.memsets), window.copies) == (memsets, ())
        assert window.synchronizations == window.occupancy_queries == 0
        assert all(launch.op for launch in window.launches) or name == "mlp-cudagraph"


@pytest.mark.parametrize("name", RECORDED)
def test_problems_of_recorded_trace_are_early_orphans(name: str) -> None:
    trace = recorded(name)
    problems = trace.pairing_problems()
    assert len(problems) == (4 if name == BEGUN_EARLY else 0)
    assert all(problem.startswith("orphan: ") for problem in problems)
    assert sum(len(window.executed) for window in trace.steps()) == len(trace.records) - len(problems)


def test_window_holds_what_starts_in_it() -> None:
    rows = [op("before", 0, 1), op("inside", 12, 1), op("until after", 19, 9), op("after", 21, 1)]
    (window,) = trace_of(*rows, step(1, 10, 10)).steps()
    assert [op.name for op in window.ops] == ["inside", "until after"]
    assert (window.name, window.start_us, window.duration_us) == ("ProfilerStep#1", 10, 10)


def test_window_boundary_belongs_to_the_later_step() -> None:
    first, second = trace_of(step(1, 0, 10), step(2, 10, 10), op("mm", 10, 1), call(1, 10), kernel(1, 30)).steps()
    assert (len(first.launches), len(first.ops)) == (0, 0)
    assert (len(second.launches), len(second.ops)) == (1, 1)


def test_launches_of_one_graph_are_in_order_of_execution() -> None:
    memset = kernel(1, 40, name="Memset (Device)", category="gpu_memset")
    graph = call(1, 1, name="cudaGraphLaunch")
    window = only_step(graph, kernel(1, 30, name="second"), kernel(1, 20, name="first"), memset)
    assert (kernels(window), len(window.memsets)) == (["first", "second"], 1)


def test_memsets_and_copies_are_no_launches() -> None:
    window = only_step(
        *(call(1, 1, name="cudaMemsetAsync"), kernel(1, 10, category="gpu_memset", duration=100)),
        *(call(2, 2, name="cudaMemcpyAsync"), kernel(2, 11, category="gpu_memcpy", duration=200)),
        *(call(3, 3), kernel(3, 12, duration=7)),
    )
    assert (len(window.memsets), len(window.copies), len(window.launches)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("category", "name"),
    [
        *(("cuda_runtime", f"cuda{api}") for api in ("LaunchKernel", "LaunchKernelExC", "LaunchCooperativeKernel", "GraphLaunch")),
        *(("cuda_driver", f"cu{api}") for api in ("LaunchKernel", "LaunchKernelEx", "GraphLaunch")),
        *(("hip_runtime", "hipLaunchKernel"), ("hip_runtime", "hipGraphLaunch"), ("hip_driver", "hipExtModuleLaunchKernel")),
    ],
)  # fmt: skip
def test_launch_apis_of_every_runtime_are_known(category: str, name: str) -> None:
    assert kernels(only_step(call(1, 1, name=name, category=category), kernel(1, 2))) == ["gemm"]


@pytest.mark.parametrize(
    ("names", "waits", "queries"),
    [
        ("cudaStreamSynchronize cudaDeviceSynchronize cuCtxSynchronize", 1, 0),
        ("cudaEventRecord cudaLaunchHostFunc hipLaunchHostFunc", 0, 0),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 0, 1),
    ],
)
def test_calls_that_launch_nothing_may_be_waits(names: str, waits: int, queries: int) -> None:
    for name in names.split():
        window = only_step(call(1, 1, name=name))
        assert (window.synchronizations, window.occupancy_queries, window.lost) == (waits, queries, 0)
        assert window.trace.pairing_problems() == ()


def test_window_names_ops_of_copies_and_waits() -> None:
    trace = trace_of(
        op("vllm::other", 0, 50, thread=99),  # on another thread, at the same time
        op("aten::item", 10, 20, external_id=1),
        op("aten::_local_scalar_dense", 12, 10, external_id=2),
        call(7, 13, name="cudaMemcpyAsync", external_id=2),
        call(8, 16, name="cudaStreamSynchronize", external_id=2),
        call(9, 60, name="cudaDeviceSynchronize"),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 14, 1, 7, correlation=7, bytes=4),
    )
    window = trace.whole()
    assert window.copying_ops == [("aten::item: Memcpy DtoH (Device -> Pageable), 4 bytes", 2)]
    assert window.synchronizing_ops == [("aten::item: cudaStreamSynchronize", 2), ("cudaDeviceSynchronize", None)]


def test_copy_without_stream_is_a_wait_too() -> None:
    window = only_step(call(1, 1, name="cudaMemcpy"), kernel(1, 2, category="gpu_memcpy"))
    assert (window.synchronizations, len(window.copies)) == (1, 1)


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ([op("outer", 1, 6, external_id=3), op("inner", 2, 2, external_id=3)], "inner"),
        ([op("wraps", 1, 6, external_id=2), op("aten::mm", 2, 5, thread=BACKWARD_THREAD, external_id=3)], "aten::mm"),
        ([op("aten::mm", 1, 6, external_id=4)], "aten::mm"),
        ([op("aten::mm", 1, 6)], "aten::mm"),
        ([op("aten::mm", 1, 6, thread=BACKWARD_THREAD)], None),
        ([op("aten::mm", 4, 6)], None),
        ([op("aten::t", 0, 1, external_id=3), op("outer", 1, 6), op("inner", 2, 3), op("past", 2, 0.5)], "inner"),
    ],
)
def test_launch_has_the_op_of_its_id_or_the_innermost_around(ops: list[Event], expected: str | None) -> None:
    window = only_step(*ops, call(1, 3, external_id=3), kernel(1, 5, external_id=3))
    assert launching(window) == [expected]


def colliding() -> list[Event]:
    """Return rows whose records and calls have their correlation for an id: those of ops that ran long before."""
    rows = [op(name, 10 * at, 9, external_id=at + 1) for at, name in enumerate(("aten::t", "aten::mm", "aten::view"))]
    for at in range(3):
        start = 100 + 50 * at
        rows += [
            op("aten::linear", start, 20, external_id=10 + at),
            op("aten::addmm", start + 2, 9, external_id=20 + at),
        ]
        rows += [call(at + 1, start + 4, external_id=at + 1), kernel(at + 1, start + 30, external_id=at + 1)]
    return rows


WRONG = "wrong ids: the External id of {} launches is not that of the op around the call, which counts; the first: {}"


def test_launch_with_the_id_of_another_op_has_the_op_around() -> None:
    trace = trace_of(*colliding())
    assert launching(trace.whole()) == ["aten::addmm"] * 3
    assert trace.naming_problems() == (WRONG.format("3 of 3", "gemm in aten::addmm, not aten::t"),)
    assert trace.pairing_problems() == ()


def test_launch_with_one_wrong_id_does_not_void_the_others() -> None:
    """A backward thread's op launches from another thread, as its id says."""
    rows = [op("wraps", 300, 90, external_id=50), op("aten::mul", 300, 9, thread=BACKWARD_THREAD, external_id=51)]
    rows += [call(9, 305, external_id=51), kernel(9, 320, external_id=51)]
    rows += [op("aten::add", 400, 9, external_id=52), call(8, 405, external_id=1), kernel(8, 420, external_id=1)]
    trace = trace_of(op("aten::t", 1, 2, external_id=1), *rows)
    assert launching(trace.whole()) == ["aten::mul", "aten::add"]
    assert trace.naming_problems() == (WRONG.format("1 of 2", "gemm in aten::add, not aten::t"),)


def test_records_of_a_repeated_id_are_of_the_first_call() -> None:
    first, second = trace_of(step(1, 0, 5), call(1, 1), step(2, 5, 5), call(1, 6), kernel(1, 7), kernel(1, 8)).steps()
    assert [launch.call.start_us for launch in first.launches] == [1, 1]
    assert second.launches == ()


TWICE = "duplicated: cudaLaunchKernel (correlation 1) has"
LOST = "lost: cudaLaunchKernel (correlation 1) has no device record"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([call(1, 1), call(2, 2), kernel(2, 5)], [LOST]),
        *(
            ([call(1, 1, name=name)], [LOST.replace("cudaLaunchKernel", name)])
            for name in ("cudaGraphLaunch", "cudaMemsetAsync", "cudaMemcpyAsync")
        ),
        ([call(1, 1, name="cudaGraphLaunch"), kernel(1, 5), kernel(1, 6)], []),
        ([call(1, 1), kernel(1, 5), kernel(9, 6)], ["orphan: gemm (correlation 9) has no launch"]),
        ([call(1, 1, name="cudaEventRecord"), kernel(1, 5)], ["orphan: gemm (correlation 1) has no launch"]),
        ([call(1, 1), kernel(1, 5, name="a"), kernel(1, 6, name="b")], [f"{TWICE} 2 records, and belongs to 1 launching calls"]),
        ([call(1, 1), call(1, 2), kernel(1, 5)], [f"{TWICE} 1 records, and belongs to 2 launching calls"]),
        ([call(None, 1), kernel(5, 2)], [LOST.replace("1)", "None)"), "orphan: gemm (correlation 5) has no launch"]),
        ([call(1, 1), kernel(1, 5, duration=-0.5)], ["bad duration: gemm took -0.5 us"]),
        ([call(1, 1), kernel(1, 5, duration=0)], []),
        ([call(1, 1), kernel(3, 7, duration=-1)], [LOST, "orphan: gemm (correlation 3) has no launch", "bad duration: gemm took -1.0 us"]),
    ],
)  # fmt: skip
def test_problems_are_told_for_each_row(rows: list[Event], expected: list[str]) -> None:
    assert trace_of(*rows).pairing_problems() == tuple(expected)


@pytest.mark.parametrize("lane", ["records", "calls"])
def test_problems_name_every_lost_row_of_a_trace(lane: str) -> None:
    trace = recorded("mlp-eager")
    rows = getattr(trace, lane)
    told = [replace(trace, **{lane: rows[:at] + rows[at + 1 :]}).pairing_problems() for at in range(len(rows))]
    kind = "lost: " if lane == "records" else "orphan: "
    assert sum(len(problems) for problems in told) == 21  # fifteen kernels and six memsets
    assert all(problem.startswith(kind) for problems in told for problem in problems)
