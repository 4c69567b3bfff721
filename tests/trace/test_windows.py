"""Windows of a trace, their launches, and how launches and records pair."""

import pytest

from kernelgauge.trace import Window, decode
from kernelgauge.trace.kernel import executions
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
    "mlp-eager-train": (
        f"{EAGER} {SUM} copy gemm pointwise pointwise pointwise pointwise {UPDATE}",
        4,
    ),
    "mlp-compiled-train": (
        f"{MLP} {SUM} gemm pointwise gemm gemm pointwise pointwise pointwise",
        4,
    ),
    "mlp-liger-train": (f"{MLP} {SUM} copy gemm pointwise pointwise {UPDATE}", 4),
}


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
    trace = recorded(name)
    steps = trace.steps()
    assert [window.name for window in steps] == [
        "ProfilerStep#2",
        "ProfilerStep#3",
        "ProfilerStep#4",
    ]
    for window in steps:
        assert [decode(name).kind.value for name in kernels(window)] == kinds.split()
        assert (len(window.memsets), window.copies) == (memsets, ())
        assert (
            window.synchronizations == window.occupancy_queries == len(window.allocating_ops) == 0
        )
        assert window.graph_launches == (name == "mlp-cudagraph")
        assert all(launch.op for launch in window.launches) or name == "mlp-cudagraph"
    problems = trace.pairing_problems()
    # it began during the kernels of the warm-up
    assert len(problems) == (4 if name == "mlp-compiled-fp32" else 0)
    assert all(problem.startswith("orphan: ") for problem in problems)
    assert sum(len(window.executed) for window in steps) == len(trace.records) - len(problems)


def test_launches_know_how_their_inputs_lie_in_memory() -> None:
    ran = executions(recorded("mlp-compiled").steps()[-1], on_cpu=False)
    layouts = [each.resources and each.resources.layout for each in ran]
    assert layouts == [
        *["[768,3072] by strides 1,768"] * 2,
        "contiguous",
        "[3072,768] by strides 1,3072",
    ]


ALLOCATING = "cudaMalloc cudaMallocAsync cudaFree cudaFreeHost cudaHostAlloc hipHostMalloc cuMemCreate cuMemUnmap".split()
OTHERS = "cudaMemcpyAsync cudaMemsetAsync cuMemcpyHtoDAsync_v2 cudaMemGetInfo cudaHostGetDevicePointer".split()


def test_calls_of_the_allocator_have_the_ops_around_them() -> None:
    rows = [
        op("aten::empty", 1, 20),
        *(call(None, 2 + at, name=each) for at, each in enumerate((*ALLOCATING, *OTHERS))),
    ]
    (window,) = trace_of(step(1, 0, 50), *rows, call(None, 30, name="cudaFree")).steps()
    assert [text for text, _ in window.allocating_ops] == [
        *(f"aten::empty: {each}" for each in ALLOCATING),
        "cudaFree",
    ]


def test_window_holds_what_starts_in_it() -> None:
    rows = [
        op("before", 0, 1),
        op("inside", 12, 1),
        op("until after", 19, 9),
        op("at its end", 20, 1),
    ]
    first, second = trace_of(
        *rows, step(1, 10, 10), step(2, 20, 10), call(1, 20), kernel(1, 30)
    ).steps()
    assert (first.name, first.start_us, first.duration_us, len(first.launches)) == (
        "ProfilerStep#1",
        10,
        10,
        0,
    )
    assert [op.name for op in first.ops] == ["inside", "until after"]
    assert (len(second.launches), [op.name for op in second.ops]) == (1, ["at its end"])


def test_launches_are_kernels_in_order_of_execution() -> None:
    memset = kernel(1, 40, name="Memset (Device)", category="gpu_memset")
    graph = call(1, 1, name="cudaGraphLaunch")
    copy = (call(2, 2, name="cudaMemcpyAsync"), kernel(2, 11, category="gpu_memcpy", duration=200))
    window = only_step(
        graph, kernel(1, 30, name="second"), kernel(1, 20, name="first"), memset, *copy
    )
    assert (kernels(window), len(window.memsets), len(window.copies)) == (["first", "second"], 1, 1)


def test_launch_apis_of_every_runtime_are_known() -> None:
    for category, names in (
        (
            "cuda_runtime",
            "cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel cudaGraphLaunch",
        ),
        ("cuda_driver", "cuLaunchKernel cuLaunchKernelEx cuGraphLaunch"),
        ("hip_runtime", "hipLaunchKernel hipGraphLaunch"),
        ("hip_driver", "hipExtModuleLaunchKernel"),
        ("xpu_runtime", "urEnqueueKernelLaunch urEnqueueKernelLaunchWithArgsExp"),
    ):
        for name in names.split():
            assert kernels(only_step(call(1, 1, name=name, category=category), kernel(1, 2))) == [
                "gemm"
            ]


def test_calls_that_launch_nothing_may_be_waits() -> None:
    for names, waits, queries in (
        ("cudaStreamSynchronize cudaDeviceSynchronize cuCtxSynchronize urEventWait", 1, 0),
        ("cudaEventRecord cudaLaunchHostFunc hipLaunchHostFunc", 0, 0),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 0, 1),
    ):
        for name in names.split():
            window = only_step(call(1, 1, name=name))
            assert (window.synchronizations, window.occupancy_queries, window.lost) == (
                waits,
                queries,
                0,
            )
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
    assert window.synchronizing_ops == [
        ("aten::item: cudaStreamSynchronize", 2),
        ("cudaDeviceSynchronize", None),
    ]
    for name, waits in (
        ("cudaMemcpy", 1),
        ("cudaMemcpyAsync", 0),
        ("urEnqueueUSMMemcpy", 0),
    ):  # the first has no stream
        copying = only_step(call(1, 1, name=name), kernel(1, 2, category="gpu_memcpy"))
        assert (copying.synchronizations, len(copying.copies)) == (waits, 1)


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ([op("outer", 1, 6, external_id=3), op("inner", 2, 2, external_id=3)], "inner"),
        (
            [
                op("wraps", 1, 6, external_id=2),
                op("aten::mm", 2, 5, thread=BACKWARD_THREAD, external_id=3),
            ],
            "aten::mm",
        ),
        ([op("aten::mm", 1, 6)], "aten::mm"),
        ([op("aten::mm", 1, 6, thread=BACKWARD_THREAD)], None),
        (
            [
                op("aten::t", 0, 1, external_id=3),
                op("outer", 1, 6),
                op("inner", 2, 3),
                op("past", 2, 0.5),
            ],
            "inner",
        ),
    ],
)
def test_launch_has_the_op_of_its_id_or_the_innermost_around(
    ops: list[Event], expected: str | None
) -> None:
    window = only_step(*ops, call(1, 3, external_id=3), kernel(1, 5, external_id=3))
    assert launching(window) == [expected]


def test_launch_with_one_wrong_id_does_not_void_the_others() -> None:
    """A call has its correlation for an id: that of an op of long before.

    A backward thread's op launches elsewhere.
    """
    rows = [
        op("wraps", 300, 90, external_id=50),
        op("aten::mul", 300, 9, thread=BACKWARD_THREAD, external_id=51),
    ]
    rows += [call(9, 305, external_id=51), kernel(9, 320, external_id=51)]
    rows += [
        op("aten::add", 400, 9, external_id=52),
        call(8, 405, external_id=1),
        kernel(8, 420, external_id=1),
    ]
    trace = trace_of(op("aten::t", 1, 2, external_id=1), *rows)
    assert launching(trace.whole()) == ["aten::mul", "aten::add"]
    assert trace.pairing_problems() == ()


def test_records_of_a_repeated_id_are_of_the_first_call() -> None:
    first, second = trace_of(
        step(1, 0, 5), call(1, 1), step(2, 5, 5), call(1, 6), kernel(1, 7), kernel(1, 8)
    ).steps()
    assert [launch.call.start_us for launch in first.launches] == [1, 1]
    assert second.launches == ()


TWICE = "duplicated: cudaLaunchKernel (correlation 1) has"
LOST = "lost: cudaLaunchKernel (correlation 1) has no device record"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([call(1, 1), call(2, 2), kernel(2, 5)], [LOST]),
        ([call(1, 1, name="cudaMemsetAsync")], [LOST.replace("cudaLaunchKernel", "cudaMemsetAsync")]),
        ([call(1, 1, name="cudaGraphLaunch"), kernel(1, 5), kernel(1, 6)], []),
        ([call(1, 1), kernel(1, 5), kernel(9, 6)], ["orphan: gemm (correlation 9) has no launch"]),
        ([call(1, 1, name="cudaEventRecord"), kernel(1, 5)], ["orphan: gemm (correlation 1) has no launch"]),
        ([call(1, 1), kernel(1, 5, name="a"), kernel(1, 6, name="b")], [f"{TWICE} 2 records, and belongs to 1 launching calls"]),
        ([call(1, 1), call(1, 2), kernel(1, 5)], [f"{TWICE} 1 records, and belongs to 2 launching calls"]),
        ([call(None, 1), kernel(5, 2)], [LOST.replace("1)", "None)"), "orphan: gemm (correlation 5) has no launch"]),
        ([call(1, 1), kernel(1, 5, duration=-0.5)], ["bad duration: gemm took -0.5 us"]),
    ],
)  # fmt: skip
def test_problems_are_told_for_each_row(rows: list[Event], expected: list[str]) -> None:
    assert trace_of(*rows).pairing_problems() == tuple(expected)
