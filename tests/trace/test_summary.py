"""What one trace says: its launch sequence, the host's ops, and when the device worked and waited."""

import pytest
import torch

from kernelgauge.trace.kernel import (
    METADATA_OPS,
    KernelIdentity,
    Resources,
    identity_of_op,
    occupancy,
)
from kernelgauge.trace.model import Op
from kernelgauge.trace.summary import Summary, summarize_trace
from tests.builders import (
    BACKWARD_THREAD,
    Event,
    call,
    event,
    kernel,
    on,
    op,
    recorded_events,
    region,
    step,
    trace_of,
)


def summary_of(*rows: Event) -> Summary:
    return summarize_trace(trace_of(*rows))


def kernels(found: Summary) -> list[str]:
    return [each.identity.name for each in found.kernels]


def launched(number: int, at: float, name: str, us: float = 5) -> list[Event]:
    """Return an op, its launch and its kernel."""
    row = kernel(number, at + 3, name=name, duration=us, external_id=number)
    return [
        op(f"aten::{name}", at, 8, external_id=number),
        call(number, at + 1, external_id=number),
        row,
    ]


def launches(number: int, *names: str, us: float = 5) -> list[Event]:
    """Return a step of 100 us, 1000 * `number` us after the start, that launches these kernels."""
    rows = [
        launched(100 * number + at, 1000 * number + 10 * at, name, us)
        for at, name in enumerate(names)
    ]
    return [step(number, 1000 * number, 100), *(row for each in rows for row in each)]


def test_lane_is_of_the_most_frequent_steps() -> None:
    for rows, name, steps, durations in (
        (
            [*launches(1, "mul"), *launches(2, "mul", "add"), *launches(3, "mul", us=7)],
            "mul",
            [1, 3],
            (5, 7),
        ),
        # of steps that all differ, the last
        ([*launches(1, "mul"), *launches(2, "add")], "add", [2], (5,)),
        # not one without launches
        ([*launches(1, "mul"), step(2, 2000, 9), step(3, 3000, 9)], "mul", [1], (5,)),
    ):
        found = summary_of(*rows)
        assert [(each.identity.name, each.durations_us) for each in found.kernels] == [
            (name, durations)
        ]
        assert [window.name for window in found.windows] == [
            f"ProfilerStep#{number}" for number in steps
        ]
        assert found.wall_us == 100


def test_lane_of_steps_whose_grids_vary_is_their_mean() -> None:
    rows = [
        on(row, grid=[at, 1, 1], block=[32, 1, 1]) if row["cat"] == "kernel" else row
        for at in (1, 2, 3)
        for row in launches(at, "mul", us=at)
    ]
    (only,) = summary_of(*rows).kernels
    assert (only.durations_us, only.identity.grid, only.identity.block) == (
        (1, 2, 3),
        None,
        (32, 1, 1),
    )


def test_lane_takes_marked_calls_before_steps_and_else_all() -> None:
    assert kernels(
        summary_of(*launches(1, "fill", "mul"), region("kernelgauge.call", 1009, 40))
    ) == ["mul"]
    asked_otherwise = call(999, 45, name="cudaEventRecord")  # it launches nothing
    found = summary_of(*launches(1, "mul")[1:], asked_otherwise, kernel(999, 50, name="orphan"))
    assert found.noun == "trace"
    assert [(each.identity.name, each.op) for each in found.kernels] == [
        ("mul", "aten::mul"),
        ("orphan", ""),
    ]
    assert summary_of().kernels == ()


def test_lane_of_cpu_is_the_ops_that_compute() -> None:
    of_device = op("mtia kernel", 0, 5) | {"cat": "mtia_ccp_events"}
    for row, expected in (
        (op("aten::t", 1, 2), ["aten::addmm"]),
        (call(1, 1), []),
        (of_device, []),
    ):
        found = summary_of(
            step(1, 0, 100), op("aten::linear", 0, 50), row, op("aten::addmm", 5, 40)
        )
        assert (found.on_cpu, kernels(found)) == (bool(expected), expected)
        assert found.not_read == ({"mtia_ccp_events": 1} if row is of_device else {})


KINDS = {
    "gemm": "aten::addmm aten::mm",
    "pointwise": "aten::gelu aten::add_ graph_3_cpp_fused_gelu_mul_0",
    "reduction": "aten::sum aten::_softmax aten::max_pool2d_with_indices",
    "norm": "aten::native_layer_norm _C::fused_add_rms_norm",
    "convolution": "aten::mkldnn_convolution",
    "attention": "aten::_scaled_dot_product_flash_attention_for_cpu aten::_flash_attention_forward",
    "copy": "aten::copy_",
    "fill": "aten::zero_",
    "index": "aten::sort aten::index_add",
    "other": "aten::item mylib::anything vllm::convert_fp8",
}


def kind_of(name: str, by: str) -> str:
    rows = [
        op(by, 1, 5, external_id=3),
        call(1, 2, external_id=3),
        kernel(1, 5, name=name, external_id=3),
    ]
    return summary_of(step(1, 0, 100), *rows).kernels[0].kind


@pytest.mark.parametrize(("kind", "names"), KINDS.items())
def test_kind_of_op_is_that_of_a_kernel_without_a_known_name(kind: str, names: str) -> None:
    for name in names.split():
        assert identity_of_op(Op(name, 0.0, 1.0, 1)).kind == kind_of("mystery", by=name) == kind


def test_kind_of_known_name_is_kept_and_words_of_an_op_count() -> None:
    assert kind_of("mystery", by="vllm::all_reduce") == "communication"
    assert (
        kind_of("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", by="aten::item") == "communication"
    )
    assert (
        kind_of("void at::native::max_pool_forward_nchw<float>(int)", by="aten::item")
        == "reduction"
    )
    assert kind_of("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT", by="aten::sum") == "gemm"


WRAPPERS = [
    *(
        "Torch-Compiled Region: 0/0",
        "CompiledFunction",
        "CompiledFunctionBackward",
        "torch::autograd::AccumulateGrad",
    ),
    *("autograd::engine::evaluate_function: MmBackward0", "MmBackward0", "LigerGELUMulFunction"),
]
GENERATED = [
    "cpp_fused__unsafe_view_gelu_mul_0",
    "graph_0_cpp_fused_mul_0",
    "graph_0_kernel",
    "triton_poi_fused_add_0",
]
OUTERMOST = [
    ([op("aten::sum", 0, 10), op("aten::fill_", 1, 2), op("aten::copy_", 4, 2)], ["aten::sum"]),
    ([op("aten::linear", 0, 20), op("aten::matmul", 4, 10), op("aten::mm", 5, 5)], ["aten::mm"]),
    *(
        [[op(name, 0, 5), op("aten::as_strided", 1, 1)], []]
        for name in [*sorted(METADATA_OPS), "aten::empty"]
    ),
    (
        [op("aten::sum", 0, 100), op("aten::mm", 10, 5, thread=BACKWARD_THREAD)],
        ["aten::sum", "aten::mm"],
    ),
    *([[op(name, 0, 10), op("aten::mm", 1, 5)], ["aten::mm"]] for name in WRAPPERS),
    *(
        [[op("CompiledFunction", 0, 9), op(name, 1, 5)], [name.removeprefix("graph_0_")]]
        for name in GENERATED
    ),
    ([op("mylib::attention", 0, 10), op("aten::mm", 1, 5)], ["mylib::attention"]),
    (
        [op("aten::reshape", 0, 20), op("aten::clone", 1, 9), op("aten::_unsafe_view", 12, 2)],
        ["aten::clone"],
    ),
]


@pytest.mark.parametrize(("rows", "expected"), OUTERMOST)
def test_computing_ops_are_the_outermost_that_compute(
    rows: list[Event], expected: list[str]
) -> None:
    assert kernels(summary_of(step(1, 0, 1000), *rows)) == expected


def test_views_of_this_torch_are_no_kernels() -> None:
    """All ops that return a view by their schema, but for those that may copy or compute instead."""
    may_copy = {
        f"aten::{name}"
        for name in ("coalesce", "contiguous", "keys", "_test_autograd_multiple_dispatch_view")
    }
    may_copy |= {
        f"aten::{name}" for name in ("_sparse_broadcast_to", "_ncf_view", "_ncf_unsqueeze")
    }
    views = {
        schema.name
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::") and "Tensor" in str([each.type for each in schema.returns])
        and any(each.alias_info and not each.alias_info.is_write for each in schema.returns)
    }  # fmt: skip
    all_names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    in_place = {f"{name}_" for name in views & METADATA_OPS} & all_names
    rows = {name: [op(name, 0, 5)] for name in (views | in_place) - may_copy}
    assert len(rows) > 60
    assert [name for name, row in rows.items() if summary_of(step(1, 0, 100), *row).kernels] == []


def test_host_ops_are_of_the_dispatcher_and_of_metadata() -> None:
    rows = [op(name, 0, 100) for name in (*WRAPPERS, *GENERATED)]
    host = summary_of(step(1, 0, 100), *rows, op("mylib::f", 1, 10), op("aten::mm", 2, 5)).host
    assert host.dispatcher_ops == {"mylib::f": 1, "aten::mm": 1}
    rows = [
        op("aten::t", 1, 1),
        op("aten::reshape", 5, 10),
        call(1, 6),
        kernel(1, 8),
        op("aten::reshape", 20, 1),
    ]
    assert summary_of(step(1, 0, 100), *rows).host.metadata_ops_that_launched == ("aten::reshape",)


def parts(found: Summary) -> dict[str, float]:
    """Return the parts of a step on its only device that are not 0; they add up."""
    (time,) = found.times
    names = "compute communication copy launch input copy_wait unknown".split()
    all_parts = {name: getattr(time, f"{name}_us") for name in names}
    assert sum(all_parts.values()) == pytest.approx(time.wall_us)
    assert time.busy_us + time.idle_us == pytest.approx(time.wall_us)
    return {"wall": time.wall_us, **{name: value for name, value in all_parts.items() if value}}


MM = op("aten::mm", 0, 5)
OPS = [MM, call(1, 0), call(2, 2)]
COPY = [call(2, 30, name="cudaMemcpyAsync"), kernel(2, 40, category="gpu_memcpy")]
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
RING = [op("c10d::allreduce_", 1, 9, external_id=3), call(7, 2, external_id=3)]
LATE = [op("aten::empty", 30, 5), op("aten::mm", 85, 9), call(1, 86), kernel(1, 90, duration=10)]
FETCH = op("enumerate(DataLoader)#__next__", 20, 60)
STEP_TIMES = [
    ([*OPS, kernel(1, 10), kernel(2, 15)], {"compute": 10, "input": 80}),
    ([*OPS, kernel(1, 10), kernel(2, 35)], {"compute": 10, "unknown": 9 + 20}),  # a gap
    ([*OPS, kernel(1, 10, duration=20), kernel(2, 15)], {"compute": 20}),  # one in the other
    ([*OPS, kernel(1, 10), kernel(2, 12, name=NCCL)], {"communication": 2}),
    ([*OPS, kernel(1, 10), kernel(2, 12, category="gpu_memset")], {"copy": 2}),
    # A kernel of a communicating op.
    ([*RING, kernel(7, 20, name="ring", external_id=3)], {"communication": 5, "compute": 0}),
    # The second's launch returns at 31, and it starts at 35.
    (
        [MM, call(1, 0), call(2, 30), kernel(1, 10), kernel(2, 35)],
        {"launch": 17, "unknown": 13, "input": 60},
    ),
    ([MM, call(1, 0), kernel(1, 10), *COPY], {"copy_wait": 10, "launch": 16}),
    # A batch before the first op, and one in the middle.
    ([FETCH, *LATE], {"input": 85, "launch": 2, "unknown": 3, "compute": 10}),
    ([*OPS, kernel(1, 10), FETCH, call(3, 88), kernel(3, 90)], {"input": 60 + 5, "launch": 15}),
]


@pytest.mark.parametrize(("rows", "expected"), STEP_TIMES)
def test_step_time_adds_up(rows: list[Event], expected: dict[str, float]) -> None:
    found = parts(summary_of(step(1, 0, 100), *rows))
    assert found["wall"] == 100
    assert {name: found.get(name, 0) for name in expected} == pytest.approx(expected)


def test_step_of_a_device_behind_the_host_is_as_long() -> None:
    rows = [kernel(9, 0, duration=50)]
    for at in range(0, 400, 100):
        rows += [
            step(at, at, 100),
            op("aten::mm", at + 9, 1),
            call(at, at + 9),
            kernel(at, at + 60, duration=90),
        ]
    assert summary_of(*rows).wall_us == 100
    ahead = [step(number, number, 1) for number in range(3)]
    ahead += [row for at in range(3) for row in (call(at, at), kernel(at, 100 * at, duration=100))]
    assert parts(summary_of(*ahead)) == {"wall": 100, "compute": 100}
    unprofiled = [
        step(1, 0, 10),
        call(1, 1),
        kernel(1, 5),
        step(9, 5000, 10),
        call(2, 5001),
        kernel(2, 5005),
    ]
    assert summary_of(*unprofiled).wall_us == 10


@pytest.mark.parametrize(
    ("rows", "by"),
    [
        ([kernel(1, 3, name=NCCL, duration=80)], "communication"),
        ([kernel(1, 3, duration=80)], "compute"),
        ([kernel(1, 3, duration=80, category="gpu_memcpy")], "copy"),
        ([kernel(1, 80, duration=20)], "input"),
        ([kernel(1, 3), call(2, 3), kernel(2, 90)], None),  # the trace does not show it
        ([kernel(1, 5), call(2, 50), kernel(9, 60)], None),  # records are lost
    ],
)
def test_bound_is_named_after_what_takes_the_time(rows: list[Event], by: str | None) -> None:
    at = 79 if by == "input" else 0
    found = summary_of(step(1, 0, 100), op("aten::mm", at, 1), call(1, at), *rows)
    assert (found.bound and found.bound.by) == by


GROUPED = [
    *launches(1, "mm", "add", "add", us=7),
    event("python_function", "nn.Module: Mlp_0", 1012, 20, 404),
    event("python_function", "nn.Module: Linear_0", 1016, 4, 404),
    event("python_function", "mlp.py(7): forward", 1015, 16, 404),
    event("python_function", "nn.Module: Other_0", 1016, 90, 9),
]


def test_groups_are_by_what_was_asked() -> None:
    by_name = "add 2, mm 1"
    by_op, by_module = "aten::add 2, aten::mm 1", "(no module) 2, Mlp_0 1"
    expected = {
        "launch": "mm 1, add 1, add 1",
        "name": by_name,
        "config": by_name,
        "op": by_op,
        "module": by_module,
    }
    for by, groups in expected.items():
        assert (
            ", ".join(f"{each.title} {each.launches}" for each in summary_of(*GROUPED).groups(by))
            == groups
        )


def test_totals_are_of_the_whole_trace() -> None:
    rows = [call(1, 1), kernel(1, 2), call(2, 50), kernel(2, 60), kernel(3, 70, name="orphan")]
    found = summary_of(step(1, 0, 10), *rows)
    assert [(name, us) for (name, *_), us in found.totals.items()] == [
        ("gemm", [5, 5]),
        ("orphan", [5]),
    ]
    assert (found.problems_inside, len(found.problems), len(found.kernels)) == (0, 1, 1)


@pytest.mark.parametrize(
    "name", ["mlp-compiled-fp32", "mlp-compiled-train", "mlp-eager-train", "mlp-liger-train"]
)
def test_occupancy_is_as_the_profiler_estimates_it(name: str) -> None:
    # Where it makes an estimate, and there are enough blocks to fill an SM.
    rows = [row["args"] for row in recorded_events(name) if row["cat"] == "kernel"]
    estimates = {
        (row["registers per thread"], row["shared memory"], tuple(row["block"])): row[
            "est. achieved occupancy %"
        ]
        for row in rows
        if row["est. achieved occupancy %"] and row["warps per SM"] >= 64
    }
    assert estimates
    for (registers, shared_bytes, block), percent in estimates.items():
        share = occupancy(
            KernelIdentity("k", "other", block=block), Resources(registers, shared_bytes), "sm_90"
        )
        assert share is not None
        assert int(100 * share + 0.5) == percent
