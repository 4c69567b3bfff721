"""From an SQLite export of Nsight Systems to the records of a trace, in two versions of the schema."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.trace.nsys import read_nsys
from tests.trace.nsys_exports import (
    BACKWARD,
    GEMM,
    ONE_OF_EACH,
    OTHER_PROCESS,
    SCHEMAS,
    call,
    copy,
    gpu,
    graph,
    kernel,
    memset,
    nvtx,
    refusal,
)

# -- what ran --------------------------------------------------------------------------------------------------------


@SCHEMAS
@pytest.mark.parametrize("lazy", [True, False])
def test_an_export_of_either_schema_is_the_same_trace(trace: Any, schema: dict[str, str], lazy: bool) -> None:
    found = trace(*ONE_OF_EACH, schema=schema, lazy=lazy)
    record, zeroed, copied = found.records
    assert (record.category, record.name, record.duration_us) == ("kernel", GEMM, 2.145)
    assert (record.grid, record.block, record.device, record.stream) == ((2, 64, 1), (384, 1, 1), 0, 7)
    assert (zeroed.category, zeroed.name, zeroed.bytes) == ("gpu_memset", "Memset (Device)", 4)
    assert (copied.category, copied.name, copied.bytes) == ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 64)
    assert [call.name for call in found.calls] == ["cudaLaunchKernel", "cudaMemsetAsync", "cudaMemcpyAsync"]
    assert [(op.name, op.input_shapes, op.start_us, op.duration_us) for op in found.ops] == [
        ("aten::mm", ((8, 16), (16, 32)), 2.0, 7.0)
    ]
    assert [mark.name for mark in found.annotations] == ["forward"]
    assert found.pairing_problems() == ()
    assert found.device_properties == ({"id": 0, "name": "NVIDIA H200", "numSms": 132},)


def test_a_kernel_belongs_to_the_region_that_launched_it(trace: Any) -> None:
    found = trace(*ONE_OF_EACH, call(4, 95_000), kernel(4, 99_000))
    (region,) = found.regions("forward")
    assert [launch.record.correlation for launch in region.launches] == [1]
    assert (len(region.memsets), len(region.copies)) == (1, 1)


def test_moments_keep_their_nanoseconds_hours_into_a_session(trace: Any) -> None:
    hours = 86_400_000_000_000
    found = trace(call(1, hours + 1), kernel(1, hours + 12_346))
    assert (found.calls[0].start_us, found.records[0].start_us) == (86_400_000_000.001, 86_400_000_012.346)


def test_moments_that_count_from_1970_keep_their_nanoseconds_too(trace: Any) -> None:
    now = 1_790_000_000_000_000_001
    found = trace(call(1, now), kernel(1, now + 12_345))
    assert found.records[0].start_us - found.calls[0].start_us == 12.345
    assert found.calls[0].start_us == 0


@pytest.mark.parametrize(
    ("kind", "source", "target", "name"),
    [
        (2, 2, 1, "Memcpy DtoH (Device -> Pinned)"),
        (8, 2, 2, "Memcpy DtoD (Device -> Device)"),
        (10, 2, 2, "Memcpy PtoP (Device -> Device)"),
        (9, 4, 5, "Memcpy HtoH (Managed -> Device Static)"),
        (0, None, 99, "Memcpy <unknown> (Unknown -> Unrecognized)"),
    ],
)
def test_a_copy_is_named_as_torchs_profiler_names_it(
    trace: Any, kind: int, source: int | None, target: int, name: str
) -> None:
    assert [record.name for record in trace(call(1, 0), copy(1, 5, kind, source, target)).records] == [name]


def test_migrations_of_managed_memory_are_left_out(trace: Any) -> None:
    found = trace(call(1, 0), kernel(1, 5), *(copy(0, 5, kind) for kind in (11, 12, 13)))
    assert [record.category for record in found.records] == ["kernel"]


@pytest.mark.parametrize(
    ("written_as", "name"),
    [
        ("cudaStreamSynchronize_v3020", "cudaStreamSynchronize"),
        ("cudaStreamSynchronize_ptsz_v7000", "cudaStreamSynchronize"),
        ("cudaMemcpy_ptds_v7000", "cudaMemcpy"),
        ("cuLaunchKernelEx_ptsz", "cuLaunchKernelEx"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
        ("cuModuleGetLoadingMode", "cuModuleGetLoadingMode"),
        ("cudaGraphLaunch_v10000", "cudaGraphLaunch"),
        ("cuGraphAddNode_vectors", "cuGraphAddNode_vectors"),
    ],
)
def test_a_call_loses_its_version_and_its_default_stream(trace: Any, written_as: str, name: str) -> None:
    (found,) = trace(call(1, 0, written_as)).calls
    assert found.name == name


def test_waiting_for_the_gpu_is_seen_behind_the_version(trace: Any) -> None:
    assert trace(call(1, 0, "cudaDeviceSynchronize_v3020")).whole().synchronizations == 1


def test_a_call_that_was_recorded_again_for_its_backtrace_counts_once(trace: Any) -> None:
    again = call(1, 99, "cudaLaunchKernel", eventClass=67)
    found = trace(again, call(1, 100), kernel(1, 2_000))
    assert len(found.calls) == 1
    assert found.pairing_problems() == ()


def test_two_processes_with_the_same_correlations_are_not_mixed(trace: Any) -> None:
    found = trace(
        call(1, 0),
        call(1, 10, globalTid=OTHER_PROCESS + 405),
        kernel(1, 5_000, globalPid=OTHER_PROCESS, demangledName="theirs"),
        kernel(1, 6_000, demangledName="ours"),
    )
    assert found.pairing_problems() == ()
    assert [(launch.call.start_us, launch.record.name) for launch in found.whole().launches] == [
        (0.0, "ours"),
        (0.01, "theirs"),
    ]
    assert found.calls[0].correlation == 1


def test_the_kernels_of_a_graph_belong_to_its_launch(trace: Any) -> None:
    found = trace(
        call(9, 0, "cudaGraphLaunch_v10000"),
        *(kernel(9, 5_000 + 3_000 * node, graphNodeId=node) for node in range(3)),
    )
    assert found.pairing_problems() == ()
    assert [launch.call.name for launch in found.whole().launches] == ["cudaGraphLaunch"] * 3


def test_a_graph_without_its_kernels_is_a_launch_that_lost_its_record(trace: Any) -> None:
    found = trace(call(1, 0), kernel(1, 5_000), call(9, 2_000, "cudaGraphLaunch_v10000"), graph(9, 9_000))
    assert found.pairing_problems() == ("lost: cudaGraphLaunch (correlation 9) has no device record",)


def test_an_export_with_nothing_but_such_graphs_says_how_to_record_their_kernels(export: Any) -> None:
    error = refusal(export(call(9, 2_000, "cudaGraphLaunch_v10000"), graph(9, 9_000)))
    assert "--cuda-graph-trace=node" in (error.next_command or "")


def test_gpus_have_the_numbers_that_cuda_gives_them(trace: Any) -> None:
    gpus = (gpu(0, "NVIDIA H200", smCount=132, cuDevice=3), gpu(3, "NVIDIA L4", smCount=58, cuDevice=0))
    found = trace(call(1, 0), kernel(1, 5), *gpus)
    assert found.device_properties == (
        {"id": 3, "name": "NVIDIA H200", "numSms": 132},
        {"id": 0, "name": "NVIDIA L4", "numSms": 58},
    )


def test_a_process_that_sees_one_gpu_of_two_knows_it_by_its_own_number(trace: Any) -> None:
    seen = [("TARGET_INFO_CUDA_DEVICE", {"gpuId": 3, "cudaId": 0, "pid": pid}) for pid in (404, 405)]
    found = trace(call(1, 0), gpu(0, "NVIDIA L4", smCount=58), gpu(3, "NVIDIA H200", smCount=132), *seen)
    assert found.device_properties == ({"id": 0, "name": "NVIDIA H200", "numSms": 132},)


def test_a_gpu_without_a_name_or_a_size_is_described_without(trace: Any) -> None:
    assert trace(call(1, 0), gpu(0, None)).device_properties == ({"id": 0},)


def test_records_without_their_calls_are_orphans(trace: Any) -> None:
    found = trace(kernel(1, 5_000), memset(None, 9_000))
    assert (found.calls, len(found.whole().orphans)) == ((), 2)


def test_calls_without_records_are_read_on_their_own(trace: Any) -> None:
    assert [call.name for call in trace(call(1, 0, "cudaMalloc_v3020")).calls] == ["cudaMalloc"]


def test_a_record_that_ends_before_it_starts_is_reported(trace: Any) -> None:
    found = trace(call(1, 0), kernel(1, 5_000, end=4_000))
    assert found.pairing_problems() == (f"bad duration: {GEMM} took -1.0 us",)


# -- ranges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "name", "shapes"),
    [
        ("aten::mm, op_id = 12", "aten::mm", ()),
        ("aten::mm, seq = 3, op_id = 12, sizes = [[8, 16], [16, 32]]", "aten::mm", ((8, 16), (16, 32))),
        ("aten::add, op_id = 2, sizes = [[], [4], []], input_op_ids = [(1, 0), (7, 1)]", "aten::add", ((), (4,), ())),
        ("aten::mm, seq = 3", "aten::mm", ()),
        ("aten::relu", "aten::relu", ()),
        ("aten::relu, sizes = [[4]]", "aten::relu", ((4,),)),
        ("MmBackward0, seq = 3, op_id = 9", "MmBackward0", ()),
        ("autograd::engine::evaluate_function: MmBackward0, op_id = 8", "autograd::engine::evaluate_function: MmBackward0", ()),
        ("torch::autograd::AccumulateGrad, op_id = 8", "torch::autograd::AccumulateGrad", ()),
        ("LigerGELUMulFunction, op_id = 8, sizes = [[4, 8], [4, 8]]", "LigerGELUMulFunction", ((4, 8), (4, 8))),
        ("triton_poi_fused_gelu_0, op_id = 8", "triton_poi_fused_gelu_0", ()),
        ("flash_attn::_flash_attn_forward, op_id = 990813", "flash_attn::_flash_attn_forward", ()),
    ],
)  # fmt: skip
def test_what_emit_nvtx_writes_of_an_op_is_an_op(
    trace: Any, message: str, name: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    found = trace(call(1, 0), nvtx(message, 0, 9))
    assert [(op.name, op.input_shapes) for op in found.ops] == [(name, shapes)]
    assert found.annotations == ()


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("forward", "forward"),
        ("forward, op_id = 5", "forward"),
        ("forward, op_id = 5, sizes = [[]]", "forward"),
        ("ProfilerStep#3, op_id = 5", "ProfilerStep#3"),
        ("FSDP::pre_forward (blocks.3._checkpoint_wrapped_module), op_id = 5", "FSDP::pre_forward (blocks.3._checkpoint_wrapped_module)"),
        ("nccl:all_to_all, op_id = 5", "nccl:all_to_all"),
        ("Solver::step", "Solver::step"),
        ("epoch 3, sizes = [1]", "epoch 3, sizes = [1]"),
        ("batch, op_id = many", "batch, op_id = many"),
        (", op_id = 5", ", op_id = 5"),
    ],
)  # fmt: skip
def test_every_other_range_is_an_annotation(trace: Any, message: str, name: str) -> None:
    found = trace(call(1, 0), nvtx(message, 0, 9))
    assert [mark.name for mark in found.annotations] == [name]
    assert found.ops == ()


@pytest.mark.parametrize("sizes", ["[[8, 16", "[[[1]]]", "[[1.5]]", "[8]", "[[" + "9" * 5000 + "]]", "x"])
def test_sizes_that_are_no_sizes_are_left_out(trace: Any, sizes: str) -> None:
    (op,) = trace(call(1, 0), nvtx(f"aten::mm, op_id = 5, sizes = {sizes}", 0, 9)).ops
    assert (op.name, op.input_shapes) == ("aten::mm", ())


def test_a_kernel_was_launched_by_the_innermost_op_around_the_call_on_its_thread(trace: Any) -> None:
    found = trace(
        nvtx("aten::linear, op_id = 1", 1_000, 9_000),
        nvtx("aten::t, op_id = 2", 2_000, 3_000),  # is over
        nvtx("aten::addmm, op_id = 3", 4_000, 8_000),
        nvtx("aten::mul, op_id = 1", 4_500, 7_000, globalTid=BACKWARD),  # another thread, the same op_id
        nvtx("aten::add, op_id = 5", 6_000, 7_000),  # not yet begun
        call(1, 5_000),
        kernel(1, 20_000),
        call(2, 5_100, globalTid=BACKWARD),
        kernel(2, 30_000),
        call(3, 8_500),
        kernel(3, 40_000),
        call(4, 9_000),
        kernel(4, 50_000),
    )
    launched = [launch.op.name if launch.op else None for launch in found.whole().launches]
    assert launched == ["aten::addmm", "aten::mul", "aten::linear", None]
    assert len({op.external_id for op in found.ops}) == len(found.ops)
    assert [call.external_id for call in found.calls] == [record.external_id for record in found.records]


def test_a_record_belongs_to_the_runtime_call_and_not_to_the_driver_call_inside(trace: Any) -> None:
    inside = nvtx("aten::fill_, op_id = 2", 1_100, 1_900)
    within = call(1, 1_200, "cuLaunchKernel", eventClass=1)
    found = trace(nvtx("aten::zeros, op_id = 1", 0, 9_000), inside, call(1, 1_000), within, kernel(1, 9_000))
    (launch,) = found.whole().launches
    assert (launch.call.name, launch.op and launch.op.name) == ("cudaLaunchKernel", "aten::zeros")


def test_of_two_ops_that_begin_with_a_call_the_shorter_is_inside(trace: Any) -> None:
    found = trace(
        nvtx("aten::mm, op_id = 2", 1_000, 8_000),
        nvtx("aten::matmul, op_id = 1", 1_000, 9_000),
        call(1, 1_000),
        kernel(1, 9_000),
    )
    assert [op.name for op in found.ops] == ["aten::matmul", "aten::mm"]
    assert [launch.op and launch.op.name for launch in found.whole().launches] == ["aten::mm"]


def test_a_registered_message_is_looked_up(trace: Any) -> None:
    assert [mark.name for mark in trace(call(1, 0), nvtx(None, 0, 9, textId="epoch")).annotations] == ["epoch"]


@pytest.mark.parametrize("end", [None, -1, 0])
def test_a_range_that_nobody_ended_lasts_to_the_end(trace: Any, end: int | None) -> None:
    found = trace(nvtx("training", 1_000, end), call(1, 3_000), kernel(1, 20_000))
    (region,) = found.regions("training")
    assert (region.start_us, region.duration_us) == (1.0, 21.145)
    assert len(region.launches) == 1


def test_a_range_of_the_whole_process_is_an_annotation_whatever_it_says(trace: Any) -> None:
    found = trace(call(1, 5), nvtx("aten::mm, op_id = 1", 0, 9, eventType=60, endGlobalTid=BACKWARD))
    assert ([op.name for op in found.annotations], found.ops) == (["aten::mm"], ())
    assert found.calls[0].external_id is None


@pytest.mark.parametrize("event_type", [33, 34, 39, 75])  # a category, a mark, the name of a thread, a domain
def test_what_is_no_range_is_left_out(trace: Any, event_type: int) -> None:
    found = trace(call(1, 0), nvtx("aten::mm, op_id = 1", 0, None, eventType=event_type), nvtx(None, 0, 9))
    assert (found.ops, found.annotations) == ((), ())


def test_steps_that_are_open_all_at_once_are_refused(export: Any) -> None:
    steps = [nvtx(f"ProfilerStep#{number}, op_id = {number + 1}", number, 1_000) for number in range(65)]
    assert len(read_nsys(export(call(1, 0), *steps[:64])).steps()) == 64
    assert "steps" in refusal(export(call(1, 0), *steps)).what
