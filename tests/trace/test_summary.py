"""What one trace says, put together: groups, work and limits, the host's lane, what is missing."""

from __future__ import annotations

from functools import cache

import pytest

from kernelgauge.trace import parse
from kernelgauge.trace.summary import Summary, summarize_trace
from tests.builders import Event, call, chrome, kernel, op, recorded, region, step, trace_of


@cache
def summary(name: str) -> Summary:
    return summarize_trace(recorded(name))


def test_launches_of_one_kernel_are_one_group_the_longest_first() -> None:
    groups = summary("mlp-eager").groups
    assert [group.launches for group in groups] == [2, 1, 1, 1]
    assert [group.device_time_us for group in groups] == sorted((g.device_time_us for g in groups), reverse=True)
    assert sum(group.device_time_us for group in groups) == pytest.approx(summary("mlp-eager").lane.device_time_us)
    assert groups[0].ops == ("aten::mm",)
    assert groups[0].shapes == (((8192, 768), (768, 3072)),)


def test_work_and_share_of_a_group_are_those_of_all_its_launches() -> None:
    gemm = summary("mlp-eager").groups[0]
    assert gemm.work is not None
    assert gemm.work.flops == 2 * (2 * 8192 * 768 * 3072)
    assert gemm.limit is not None
    assert (gemm.limit.limit, gemm.limit.unit) == ("bf16", "TFLOP/s")
    assert gemm.limit.achieved == pytest.approx(gemm.work.flops / gemm.device_time_us / 1e6)


def test_each_kernel_of_the_lane_has_its_own_share() -> None:
    of_mlp = summary("mlp-compiled")
    first, second = of_mlp.shares[:2]
    assert first is not None
    assert second is not None
    assert first.achieved > second.achieved  # the same product, in 56.3 and 59.7 us
    assert len(of_mlp.shares) == len(of_mlp.lane.kernels)


def test_work_of_a_split_product_is_on_its_gemm() -> None:
    gemm, reduce = summary("linear-eager-splitk").groups
    assert gemm.work is not None
    assert gemm.work.flops == 2 * 16 * 4096 * 4096
    assert reduce.work is None


def test_a_gpu_that_is_not_known_has_no_limit() -> None:
    assert summarize_trace(trace_of(step(1, 0, 10), call(1, 1), kernel(1, 2))).limits is None


def test_totals_are_of_the_whole_trace_whatever_its_steps_are() -> None:
    trace = trace_of(step(1, 0, 10), call(1, 1), kernel(1, 2), call(2, 50), kernel(2, 60), kernel(3, 70, name="orphan"))
    found = summarize_trace(trace)
    assert [(total.name, total.launches, total.device_time_us) for total in found.totals] == [
        ("gemm", 2, 10),
        ("orphan", 1, 5),
    ]
    assert len(found.lane.kernels) == 1


def test_memsets_are_counted_per_step_beside_the_kernels() -> None:
    (memset,) = summary("mlp-eager").memsets
    assert (memset.name, memset.count, memset.bytes) == ("Memset (Device)", 2, 8)
    assert summary("mlp-eager").copies == ()


def test_metadata_ops_are_counted_apart_from_those_that_had_to_launch() -> None:
    rows: list[Event] = [
        step(1, 0, 100),
        op("aten::t", 1, 1),
        op("aten::reshape", 5, 10),
        call(1, 6),
        kernel(1, 8),
        op("aten::reshape", 20, 1),
    ]
    host = summarize_trace(trace_of(*rows)).host
    assert host.metadata_ops == {"aten::t": 1, "aten::reshape": 1}
    assert host.metadata_ops_that_launched == ("aten::reshape",)


def test_the_pre_ops_of_a_compiled_call_are_listed() -> None:
    host = summary("mlp-compiled").host
    assert host.compile_ops[:2] == ("TorchDynamo Cache Lookup", "Torch-Compiled Region: 2/0")
    assert host.dispatcher_ops == {"aten::mm": 3}


@pytest.mark.parametrize(
    ("name", "by", "waiting"), [("mlp-compiled", "compute", 0.029), ("mlp-eager-train", "overhead", 0.46)]
)
def test_bound_follows_from_the_wait_for_launches(name: str, by: str, waiting: float) -> None:
    bound = summary(name).bound
    assert bound is not None
    assert bound.by == by
    assert bound.waiting == pytest.approx(waiting, abs=0.001)


def test_where_records_are_lost_nobody_is_blamed() -> None:
    found = summarize_trace(trace_of(step(1, 0, 100), call(1, 1), kernel(1, 5), call(2, 50)))
    assert found.problems_inside == 1
    assert found.bound is None


def test_a_trace_whose_records_are_all_lost_is_none_of_a_cpu() -> None:
    found = summarize_trace(trace_of(step(1, 0, 100), op("aten::mm", 0, 9), call(1, 1)))
    assert not found.lane.on_cpu
    assert found.lane.kernels == ()


def test_rows_of_devices_that_are_not_read_are_counted_and_make_no_cpu() -> None:
    foreign = op("mtia kernel", 0, 5) | {"cat": "mtia_ccp_events"}
    found = summarize_trace(trace_of(step(1, 0, 100), op("aten::mm", 0, 9), foreign, foreign))
    assert found.not_read == {"mtia_ccp_events": 2}
    assert not found.lane.on_cpu


def test_what_was_launched_before_a_step_and_runs_in_it_keeps_the_gpu_busy() -> None:
    long = kernel(1, 50, duration=100)
    trace = trace_of(call(1, 1), long, step(1, 90, 500), call(2, 100), kernel(2, 120), call(3, 110), kernel(3, 200))
    (activity,) = summarize_trace(trace).activity
    assert (activity.span_us, activity.busy_us) == (85, 35)  # 120 to 205: the long one until 150, and the last


def test_a_whole_trace_is_bound_by_nothing_in_particular() -> None:
    assert summarize_trace(trace_of(op("aten::mm", 0, 5), call(1, 1), kernel(1, 2))).bound is None


def test_a_region_is_summed_up_like_a_step() -> None:
    trace = trace_of(
        region("forward", 0, 100), op("aten::mm", 1, 5, external_id=7), call(1, 2, external_id=7),
        kernel(1, 9, external_id=7), call(2, 200), kernel(2, 210),
    )  # fmt: skip
    found = summarize_trace(trace, trace.regions("forward"))
    assert [each.op for each in found.lane.kernels] == ["aten::mm"]


def test_lost_and_orphan_records_are_told() -> None:
    found = summarize_trace(trace_of(step(1, 0, 100), call(1, 1), kernel(2, 5)))
    assert len(found.problems) == 2


def test_the_device_is_that_which_ran_something() -> None:
    devices = [{"id": 0, "name": "NVIDIA H200"}, {"id": 1, "name": "NVIDIA A100-SXM4-80GB"}]
    trace = parse(chrome(step(1, 0, 100), call(1, 1), kernel(1, 5), deviceProperties=devices))
    limits = summarize_trace(trace).limits
    assert limits is not None
    assert limits.name == "NVIDIA H200"
