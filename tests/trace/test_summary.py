"""What one trace says: its launch sequence, the host's ops, and when the device worked and waited."""

from __future__ import annotations

import pytest

from kernelgauge.trace.kernel import METADATA_OPS, identity_of_op
from kernelgauge.trace.model import Op
from kernelgauge.trace.summary import Summary, summarize_trace
from tests.builders import BACKWARD_THREAD, Event, call, event, kernel, on, op, recorded, region, step, trace_of


def summary_of(*rows: Event) -> Summary:
    return summarize_trace(trace_of(*rows))


def kernels(found: Summary) -> list[str]:
    return [each.identity.name for each in found.kernels]


def launches(number: int, *names: str, us: float = 5) -> list[Event]:
    """Return a step of 100 us, 1000 * `number` us after the start, that launches these kernels."""
    rows = [step(number, 1000 * number, 100)]
    for index, name in enumerate(names, start=100 * number):
        at = 1000 * number + 10 * (index % 100)
        rows.append(op(f"aten::{name}", at, 8, external_id=index))
        rows.append(call(index, at + 1, external_id=index))
        rows.append(kernel(index, at + 3, name=name, duration=us, external_id=index))
    return rows


@pytest.mark.parametrize(
    ("rows", "expected", "steps"),
    [
        ([*launches(1, "mul"), *launches(2, "mul", "add"), *launches(3, "mul", us=7)], ["mul"], [1, 3]),
        ([*launches(1, "mul"), *launches(2, "add")], ["add"], [2]),  # of steps that all differ, the last
        ([*launches(1, "mul"), step(2, 2000, 9), step(3, 3000, 9)], ["mul"], [1]),  # not one without launches
    ],
)
def test_lane_is_of_the_most_frequent_steps(rows: list[Event], expected: list[str], steps: list[int]) -> None:
    found = summary_of(*rows)
    assert kernels(found) == expected
    assert [window.name for window in found.windows] == [f"ProfilerStep#{number}" for number in steps]
    assert found.kernels[0].durations_us == ((5, 7) if len(steps) == 2 else (5,))


def test_lane_of_steps_whose_grids_vary_is_their_mean() -> None:
    rows = [
        row | {"args": row["args"] | {"grid": [at, 1, 1], "block": [32, 1, 1]}} if row["cat"] == "kernel" else row
        for at in (1, 2, 3)
        for row in launches(at, "mul", us=at)
    ]
    (only,) = summary_of(*rows).kernels
    assert (only.durations_us, only.identity.grid, only.identity.block) == ((1, 2, 3), None, (32, 1, 1))


def test_lane_takes_marked_calls_before_steps() -> None:
    assert kernels(summary_of(*launches(1, "fill", "mul"), region("kernelgauge.call", 1009, 40))) == ["mul"]


def test_lane_without_steps_is_whole_trace_with_orphans() -> None:
    asked_otherwise = call(999, 45, name="cudaEventRecord")  # it launches nothing
    found = summary_of(*launches(1, "mul")[1:], asked_otherwise, kernel(999, 50, name="orphan"))
    assert found.noun == "trace"
    assert [(each.identity.name, each.op) for each in found.kernels] == [("mul", "aten::mul"), ("orphan", None)]


def test_lane_of_empty_trace_is_empty() -> None:
    found = summary_of()
    assert (found.kernels, found.device_time_us, found.times, found.bound) == ((), 0, [], None)


@pytest.mark.parametrize(
    ("row", "on_cpu"),
    [
        (op("aten::t", 1, 2), True),
        (call(1, 1), False),  # a launch without a record: records were lost
        (op("mtia kernel", 0, 5) | {"cat": "mtia_ccp_events"}, False),
    ],
)
def test_lane_of_cpu_is_the_ops_that_compute(row: Event, on_cpu: bool) -> None:
    found = summary_of(step(1, 0, 100), op("aten::linear", 0, 50), row, op("aten::addmm", 5, 40))
    assert found.on_cpu == on_cpu
    assert kernels(found) == (["aten::addmm"] if on_cpu else [])
    assert found.not_read == ({"mtia_ccp_events": 1} if row["cat"] == "mtia_ccp_events" else {})


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("gemm", "aten::addmm"),
        ("pointwise", "aten::gelu aten::add_ graph_3_cpp_fused_gelu_mul_0"),
        ("reduction", "aten::sum aten::_softmax"),
        ("norm", "aten::native_layer_norm"),
        ("convolution", "aten::mkldnn_convolution"),
        ("attention", "aten::_scaled_dot_product_flash_attention_for_cpu"),
        ("copy", "aten::copy_"),
        ("fill", "aten::zero_"),
        ("index", "aten::sort"),
        ("other", "aten::item mylib::anything"),
    ],
)
def test_identity_of_op_has_its_kind(kind: str, names: str) -> None:
    assert {identity_of_op(Op(name, 0.0, 1.0, 1)).kind for name in names.split()} == {kind}


@pytest.mark.parametrize(
    ("kind", "name", "ops"),
    [
        ("attention", "mystery", "aten::_flash_attention_forward"),
        ("gemm", "mystery", "aten::mm"),
        ("norm", "mystery", "_C::fused_add_rms_norm"),
        ("reduction", "mystery", "aten::max_pool2d_with_indices"),
        ("index", "mystery", "aten::index_add"),
        ("communication", "mystery", "vllm::all_reduce"),
        ("other", "mystery", "aten::item vllm::convert_fp8"),
        ("communication", "ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "aten::item"),
        ("reduction", "void at::native::max_pool_forward_nchw<float>(int)", "aten::item"),
        ("gemm", "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT", "aten::sum"),
    ],
)
def test_kind_is_of_the_op_where_the_name_has_none(kind: str, name: str, ops: str) -> None:
    for launching in ops.split():
        rows = [op(launching, 1, 5, external_id=3), call(1, 2, external_id=3), kernel(1, 5, name=name, external_id=3)]
        assert [each.kind for each in summary_of(step(1, 0, 100), *rows).kernels] == [kind]


WRAPPERS = [
    *("Torch-Compiled Region: 0/0", "CompiledFunction", "CompiledFunctionBackward", "torch::autograd::AccumulateGrad"),
    *("autograd::engine::evaluate_function: MmBackward0", "MmBackward0", "LigerGELUMulFunction"),
]
GENERATED = ["cpp_fused__unsafe_view_gelu_mul_0", "graph_0_cpp_fused_mul_0", "graph_0_kernel", "triton_poi_fused_add_0"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([op("aten::sum", 0, 10), op("aten::fill_", 1, 2), op("aten::copy_", 4, 2)], ["aten::sum"]),
        ([op("aten::linear", 0, 20), op("aten::matmul", 4, 10), op("aten::mm", 5, 5)], ["aten::mm"]),
        *([[op(name, 0, 5), op("aten::as_strided", 1, 1)], []] for name in [*sorted(METADATA_OPS), "aten::empty"]),
        ([op("aten::view", 0, 5), op("aten::mul", 5, 5)], ["aten::mul"]),  # it starts where the other ends
        (
            [op("aten::sum", 0, 100), op("aten::mm", 10, 5, thread=BACKWARD_THREAD), op("aten::fill_", 20, 5)],
            ["aten::sum", "aten::mm"],
        ),
        *([[op(name, 0, 10), op("aten::mm", 1, 5)], ["aten::mm"]] for name in WRAPPERS),
        *([[op("CompiledFunction", 0, 9), op(name, 1, 5)], [name.removeprefix("graph_0_")]] for name in GENERATED),
        ([op("mylib::attention", 0, 10), op("aten::mm", 1, 5)], ["mylib::attention"]),
        ([op("aten::reshape", 0, 20), op("aten::clone", 1, 9), op("aten::_unsafe_view", 12, 2)], ["aten::clone"]),
    ],
)
def test_computing_ops_are_the_outermost_that_compute(rows: list[Event], expected: list[str]) -> None:
    assert kernels(summary_of(step(1, 0, 1000), *rows)) == expected


def test_dispatcher_ops_leave_autograd_and_generated_out() -> None:
    rows = [op(name, 0, 100) for name in (*WRAPPERS, *GENERATED)]
    host = summary_of(step(1, 0, 100), *rows, op("mylib::f", 1, 10), op("aten::mm", 2, 5)).host
    assert host.dispatcher_ops == {"mylib::f": 1, "aten::mm": 1}


def test_metadata_ops_that_launched_are_told_apart() -> None:
    rows = [op("aten::t", 1, 1), op("aten::reshape", 5, 10), call(1, 6), kernel(1, 8), op("aten::reshape", 20, 1)]
    host = summary_of(step(1, 0, 100), *rows).host
    assert host.metadata_ops_that_launched == ("aten::reshape",)
    assert summarize_trace(recorded("mlp-eager-train")).host.metadata_ops_that_launched == ()


WAIT = call(None, 20, name="cudaStreamSynchronize") | {"dur": 30}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([op("mm", 5, 10), call(1, 8), WAIT, op("mm", 60, 10), call(2, 64)], 64 + 1 - 5 - 30),
        ([op("mm", 5, 10), call(1, 8), WAIT], 8 + 1 - 5),  # a wait behind the last launch
        ([op("mm", 5, 10), call(1, 8), WAIT, call(2, 30)], 20 - 5),  # a launch during the wait
        ([op("aten::t", 5, 10)], 0),
    ],
)
def test_host_launching_time_leaves_waits_out(rows: list[Event], expected: float) -> None:
    assert summary_of(step(1, 0, 1000), *rows).host.launching_us == expected


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
FETCH = op("enumerate(DataLoader)#__next__", 20, 60)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([*OPS, kernel(1, 10), kernel(2, 15)], {"compute": 10, "input": 80}),
        ([*OPS, kernel(1, 10), kernel(2, 35)], {"compute": 10, "unknown": 9 + 20}),  # a gap
        ([*OPS, kernel(1, 10, duration=20), kernel(2, 15)], {"compute": 20}),  # one in the other
        ([*OPS, kernel(1, 10), kernel(2, 15, duration=-5)], {"compute": 5}),
        ([*OPS, kernel(1, 10), kernel(2, 12, name=NCCL)], {"communication": 2}),
        ([*OPS, kernel(1, 10), kernel(2, 12, category="gpu_memset")], {"copy": 2}),
        # A kernel of a communicating op.
        ([*RING, kernel(7, 20, name="ring", external_id=3)], {"communication": 5, "compute": 0}),
        # The second's launch returns at 31, and it starts at 35.
        ([MM, call(1, 0), call(2, 30), kernel(1, 10), kernel(2, 35)], {"launch": 17, "unknown": 13, "input": 60}),
        ([MM, call(1, 0), kernel(1, 10), *COPY], {"copy_wait": 10, "launch": 16}),
        # A batch before the first op, and one in the middle.
        (
            [FETCH, op("aten::empty", 30, 5), op("aten::mm", 85, 9), call(1, 86), kernel(1, 90, duration=10)],
            {"input": 85, "launch": 2, "unknown": 3, "compute": 10},
        ),
        ([*OPS, kernel(1, 10), FETCH, call(3, 88), kernel(3, 90)], {"input": 60 + 5, "launch": 15}),
    ],
)
def test_step_time_adds_up(rows: list[Event], expected: dict[str, float]) -> None:
    found = parts(summary_of(step(1, 0, 100), *rows))
    assert found["wall"] == 100
    assert {name: found.get(name, 0) for name in expected} == pytest.approx(expected)


def job(steps: int, us: int, *, of: int = 100, lag: int = 0) -> list[Event]:
    """Return steps of `of` ms with one kernel of `us` ms each at the end, which starts `lag` ms later than it could."""
    rows = [kernel(999, lag - 50, duration=50)] if lag else []
    for number in range(1, steps + 1):
        at = of * (number - 1)
        launch = at + of - us
        rows += [step(number, at, of), op("aten::mm", launch - 1, 1, external_id=number)]
        rows += [call(number, launch - 1, external_id=number), kernel(number, launch + lag, duration=us)]
    return rows


def test_step_of_a_device_behind_the_host_is_as_long() -> None:
    assert summary_of(*job(4, 90, lag=50)).wall_us == 100
    ahead = [step(number, number, 1) for number in range(3)]
    ahead += [row for at in range(3) for row in (call(at, at), kernel(at, 100 * at, duration=100))]
    assert parts(summary_of(*ahead)) == {"wall": 100, "compute": 100}


def test_step_time_leaves_out_what_was_not_profiled() -> None:
    rows = [step(1, 0, 10), call(1, 1), kernel(1, 5), step(9, 5000, 10), call(2, 5001), kernel(2, 5005)]
    assert summary_of(*rows).wall_us == 10


def test_step_times_tell_gpus_and_streams_apart() -> None:
    rows = [*OPS, call(3, 4), kernel(1, 10), on(kernel(2, 11), stream=8), on(kernel(3, 50), device=1)]
    found = summary_of(step(1, 0, 100), *rows).times
    assert [(each.device, each.compute_us, each.streams) for each in found] == [(0, 6, 2), (1, 5, 1)]


@pytest.mark.parametrize(
    ("rows", "by"),
    [
        *(
            ([*OPS[:2], kernel(1, 3, name=name, duration=80)], by)
            for name, by in ((NCCL, "communication"), ("a", "compute"))
        ),
        ([*OPS[:2], kernel(1, 3, duration=80, category="gpu_memcpy")], "copy"),
        (job(1, 20)[1:], "input"),
        ([*OPS, kernel(1, 3), kernel(2, 90)], None),  # the trace does not show it
        ([call(1, 1), kernel(1, 5), call(2, 50), kernel(9, 60)], None),  # records are lost
    ],
)
def test_bound_is_named_after_what_takes_the_time(rows: list[Event], by: str | None) -> None:
    found = summary_of(step(1, 0, 100), *rows)
    assert (found.bound and found.bound.by) == by


def test_time_of_a_region_has_no_input() -> None:
    rows = [region("forward", 0, 100), op("aten::mm", 20, 5), call(1, 30), kernel(1, 40, duration=20)]
    trace = trace_of(step(1, 0, 100), *rows)
    expected = {"wall": 100, "compute": 20, "launch": 31, "unknown": 9 + 40}
    assert parts(summarize_trace(trace, trace.regions("forward"))) == expected


GROUPED = [
    *launches(1, "mm", "add", "add", us=7),
    event("python_function", "nn.Module: Mlp_0", 1012, 20, 404),
    event("python_function", "nn.Module: Linear_0", 1016, 4, 404),
    event("python_function", "mlp.py(7): forward", 1015, 16, 404),
    event("python_function", "nn.Module: Other_0", 1016, 90, 9),
]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("launch", "mm 1, add 1, add 1"),
        ("name", "add 2, mm 1"),
        ("config", "add 2, mm 1"),
        ("op", "aten::add 2, aten::mm 1"),
        ("module", "(no module) 2, Mlp_0 1"),
    ],
)
def test_groups_are_by_what_was_asked(by: str, expected: str) -> None:
    groups = summary_of(*GROUPED).groups(by)
    assert ", ".join(f"{group.title} {group.launches}" for group in groups) == expected


def test_totals_are_of_the_whole_trace() -> None:
    rows = [call(1, 1), kernel(1, 2), call(2, 50), kernel(2, 60), kernel(3, 70, name="orphan")]
    found = summary_of(step(1, 0, 10), *rows)
    assert [(name, us) for (name, *_), us in found.totals.items()] == [("gemm", [5, 5]), ("orphan", [5])]
    assert (found.problems_inside, len(found.problems), len(found.kernels)) == (0, 1, 1)
