"""The FLOPs and bytes of an op, published peaks of GPUs, and what share of them an op reached."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelgauge.cli.traces import read_trace as read
from kernelgauge.trace import KernelIdentity, Trace
from kernelgauge.trace.summary import LaneKernel, kernel_work
from kernelgauge.trace.work import DeviceLimits, Work, limits_of, share_of_limit, work_of
from tests.builders import recorded

BF16, FP32 = "c10::BFloat16", "float"
TYPES = {
    "bf16": BF16, "half": "c10::Half", "fp32": FP32, "fp64": "double", "fp8": "c10::Float8_e4m3fn", "int": "int",
    "long": "long int", "i8": "signed char", "bool": "bool", "c64": "c10::complex<float>", "q32": "c10::qint32",
    "fp4": "c10::Float4_e2m1fn_x2",
}  # fmt: skip
NO_TENSOR = {"number": "Scalar", "numbers": "ScalarList", "none": "", "tensors": "TensorList"}


def work(name: str, arguments: str) -> Work | None:
    """Return the work of an op with arguments such as ``4x8:bf16 :fp32 number none``."""
    shapes, types = [], []
    for argument in arguments.split():
        sizes, _, type_name = argument.partition(":")
        shapes.append(tuple(map(int, filter(None, sizes.split("x")))) if type_name else ())
        types.append(TYPES.get(type_name, type_name) if type_name else NO_TENSOR[argument])
    return work_of(name, tuple(shapes), tuple(types))


def work_of_ops(trace: Trace) -> dict[str, Work | None]:
    """Return the work of the first row of each op."""
    return {op.name: work_of(op.name, op.input_shapes, op.input_types) for op in reversed(trace.ops)}


GATE = Work(flops=2.0 * 8192 * 768 * 3072, bytes=2.0 * (8192 * 768 + 768 * 3072 + 8192 * 3072))
HIDDEN = 8192 * 3072 * 2.0  # bytes
FUSED = "triton_poi_fused__unsafe_view_gelu_mul_0"


@pytest.mark.parametrize(
    ("trace", "op", "expected"),
    [
        ("mlp-eager", "aten::mm", GATE),
        ("mlp-compiled", "aten::mm", GATE),  # the result is given: it counts once all the same
        ("mlp-compiled-fp32", "aten::mm", Work(GATE.flops, 2 * 67_633_152.0)),
        ("linear-eager", "aten::addmm", Work(2.0 * 1024 * 32 * 64, 2.0 * (64 + 1024 * 32 + 32 * 64 + 1024 * 64))),
        ("mlp-compiled", FUSED, Work(None, 2 * HIDDEN)),  # a tensor that is read, then written, counts once
        ("mlp-compiled-train", FUSED, Work(None, 3 * HIDDEN)),
        ("mlp-eager", "aten::gelu", Work(None, 2 * HIDDEN)),
        ("mlp-eager", "aten::mul", Work(None, 3 * HIDDEN)),
        ("mlp-eager-train", "aten::gelu_backward", Work(None, 3 * HIDDEN)),
        ("mlp-eager-train", "aten::add_", Work(None, 3 * 768 * 3072 * 2.0)),
        ("mlp-eager-train", "aten::fill_", Work(None, 2.0)),
        ("matmul_add-eager", "aten::add", Work(None, (2 * 1024 * 64 + 64) * 2.0)),  # broadcast
        ("mlp-cudagraph", "aten::_foreach_copy_", None),  # the types of a list are not recorded
        *(("mlp-eager", f"aten::{name}", None) for name in ("linear", "t", "view")),
        ("mlp-liger-train", "LigerGELUMulFunction", None),
        ("mlp-eager-train", "MmBackward0", None),
    ],
)
def test_work_of_recorded_op(trace: str, op: str, expected: Work | None) -> None:
    assert work_of_ops(recorded(trace))[op] == expected


X, Y, ROW = torch.rand(4, 8), torch.rand(4, 8), torch.rand(8)
HALF, INTS = torch.rand(4, 8).half(), torch.arange(8)
MASK = X > 0.5
ALL_TYPES = "bool uint8 int8 int16 int32 int64 half bfloat16 float double".split()
ALL_TYPES += "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz".split()
ZEROS = [torch.zeros(3, dtype=getattr(torch, name)) for name in ALL_TYPES]


@pytest.mark.parametrize(
    ("op", "call", "operands"),
    [
        ("add", lambda: X + ROW, [X, ROW]),
        ("add", lambda: HALF + Y, [HALF, Y]),
        ("where", lambda: torch.where(MASK, X, ROW), [MASK, X, ROW]),
        ("clamp", lambda: X.clamp(0, 1), [X]),
        ("clamp", lambda: torch.clamp(X, max=Y), [X, Y]),
        ("pow", lambda: HALF**2, [HALF]),
        ("gt", lambda: X > Y, [X, Y]),
        ("logical_not", lambda: X.logical_not(), [X]),
        ("addcmul", lambda: torch.addcmul(X, Y, ROW), [X, Y, ROW]),
        ("masked_fill", lambda: HALF.masked_fill(MASK, 0.0), [HALF, MASK]),
        ("masked_fill", lambda: INTS.masked_fill(MASK, 0), [INTS, MASK]),
        ("silu", lambda: F.silu(X), [X]),
        ("clone", lambda: MASK.clone(), [MASK]),
        ("add", lambda: torch.add(X, Y, out=torch.empty(4, 8)), [X, Y]),
        ("add", lambda: torch.add(X, Y, out=torch.empty(4, 8, dtype=torch.double)), [X, Y]),
        ("add_", lambda: HALF.clone().add_(Y), [HALF, Y]),
        ("_softmax", lambda: torch.softmax(X, -1), [X]),
        ("_log_softmax", lambda: torch.log_softmax(HALF, -1), [HALF]),
        ("layer_norm", lambda: F.layer_norm(X, (8,), ROW, ROW), [X, ROW, ROW]),
        ("layer_norm", lambda: F.layer_norm(X, (8,)), [X]),
        ("rms_norm", lambda: F.rms_norm(X, (8,), ROW), [X, ROW]),
        *(("copy_", lambda zeros=zeros: torch.zeros_like(zeros).copy_(zeros), [zeros]) for zeros in ZEROS),
        ("copy_", lambda: torch.empty(4, 8, dtype=torch.double).copy_(ROW), [ROW]),
    ],
)
def test_work_bytes_are_those_torch_reads_and_returns(
    op: str, call: Callable[[], torch.Tensor], operands: list[torch.Tensor], tmp_path: Path
) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        result = call()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = work_of_ops(read(tmp_path / "trace.json"))[f"aten::{op}"]
    assert found == Work(None, float(sum(tensor.nbytes for tensor in [*operands, result])))


PROMOTED = {
    torch.bool: "bool", torch.int32: "int", torch.int64: "long int", torch.half: "c10::Half", torch.bfloat16: BF16,
    torch.float: FP32, torch.double: "double", torch.complex64: "c10::complex<float>",
}  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 3), (1,), ()], ids=str)
def test_work_bytes_follow_promotion_or_are_unknown(shape: tuple[int, ...]) -> None:
    known = set()
    for x, y in product(PROMOTED, PROMOTED):
        found = work_of("aten::add", ((2, 3), shape), (PROMOTED[x], PROMOTED[y]))
        if found.bytes is not None:
            known.add((x, y))
            a, b = torch.zeros(2, 3, dtype=x), torch.zeros(shape, dtype=y)
            # A Python number is recorded as a tensor without dimensions: it may widen nothing.
            assert found.bytes == a.nbytes + b.nbytes + 6 * torch.result_type(a, b).itemsize, (x, y)
    assert {(x, x) for x in PROMOTED if x.is_floating_point} | {(torch.bfloat16, torch.float)} <= known


SCALED = "64x32:fp8 32x16:fp8 1:fp32 1:fp32"
MIB = 2 * 8 * 128 * 64 * 2.0  # bytes of a tensor of these heads
Q = "2x8x128x64:bf16"
SQUARE = 2 * (2.0 * 2 * 8 * 128 * 128 * 64)  # FLOPs of two products


@pytest.mark.parametrize(
    ("name", "arguments", "flops", "moved"),
    [
        ("bmm", "6x5x7:fp32 6x7x4:fp32", 2 * 6 * 5 * 4 * 7, 4 * (6 * 5 * 7 + 6 * 7 * 4 + 6 * 5 * 4)),
        ("baddbmm", "3x5x4:fp32 3x5x6:fp32 3x6x4:fp32 number number", 2 * 3 * 5 * 6 * 4, 4 * (2 * 60 + 90 + 72)),
        ("mm", "16x32:bf16 32x8:bf16 number", 2 * 16 * 32 * 8, None),  # a type for the result
        ("mm", "16x32:bf16 32x8:bf16 number 16x8:fp32", 2 * 16 * 32 * 8, 2 * (512 + 256) + 4 * 128),
        ("mm", "16x32:bf16 32x8:bf16 0:bf16", 2 * 16 * 32 * 8, 2 * (512 + 256 + 128)),  # an `out` to resize
        ("mm", "4x8:bf16 8x2:fp32", 2 * 4 * 8 * 2, None),
        ("_scaled_mm", f"{SCALED} none none number number", 2 * 64 * 32 * 16, None),
        ("_scaled_mm", f"{SCALED} none none none number", 2 * 64 * 32 * 16, 2048 + 512 + 8 + 1024),
        ("_scaled_mm", f"{SCALED} 16:bf16 none number number 64x16:bf16", 65536, 2048 + 512 + 8 + 32 + 2048),
        ("_scaled_dot_product_cudnn_attention", f"{Q} {Q} {Q}", SQUARE, 4 * MIB),
        ("_flash_attention_forward", "2x128x8x64:bf16 " * 3 + "none none", SQUARE, 4 * MIB),
        ("_efficient_attention_forward", "2x128x8x64:bf16 " * 3 + "none none none", SQUARE, 4 * MIB),
        ("_flash_attention_forward", "2x128x8x64:bf16 " * 3 + "0:int 0:int", SQUARE, 4 * MIB),
        ("_scaled_dot_product_cudnn_attention_backward", f"{Q} {Q} {Q} {Q}", 2.5 * SQUARE, 8 * MIB),
        ("_scaled_dot_product_cudnn_attention", f"{Q} 2x2x256x64:bf16 2x2x256x64:bf16", 2 * SQUARE, 3 * MIB),
        ("_scaled_dot_product_cudnn_attention", f"{Q} {Q} {Q.replace('bf16', 'fp32')}", SQUARE, None),
        ("_scaled_dot_product_cudnn_attention", f"{Q} {Q} {Q}".replace("bf16", "fp8"), SQUARE, None),
        ("sum", "4x8:fp32 numbers number none 4:fp32", None, 4 * 8 * 4 + 4 * 4),
        *((name, "4x8:fp32", None, 4 * 8 * 4) for name in ("sum", "amax", "argmax", "logsumexp")),
        *((name, "4x8:bf16 number", None, 64) for name in ("fill_", "zero_", "normal_", "uniform_")),
        ("mul_", "4x8:bf16 4x8:fp32", None, 32 * (2 + 4 + 2)),  # of the type of what is overwritten
        ("eq_", "4x8:bf16 number", None, 32 * (2 + 2)),
        ("mul", "4x8:bf16 :fp64", None, 32 * (2 + 2) + 8),  # a Python number
        ("mul", "4x8:int :long", None, None),
        ("where", "4x8:bool 4x8:int 4x8:i8", None, None),
        ("mul", "4x8:int number", None, None),  # a number by value may be of any type
        ("exp", "4x8:int", None, None),  # the default floating type
        ("rms_norm", "4x8:bf16 numbers 8:fp32 none", None, None),
        ("add", "tensors 8:bf16", None, None),
    ],
)
def test_work_by_hand(name: str, arguments: str, flops: float | None, moved: float | None) -> None:
    assert work(f"aten::{name}", arguments) == Work(flops, moved)


@pytest.mark.parametrize(
    ("names", "arguments"),
    [
        ("mm", "4x8:bf16"),
        ("mm", "4x8:bf16 9x2:bf16"),
        ("mm", "4x8:bf16 number"),
        ("bmm matmul", "2x4x8:bf16 3x8x2:bf16"),
        ("convolution conv2d cudnn_convolution", "8x3x32x32:bf16 16x3x3x3:bf16 none numbers"),  # the stride is unknown
        ("_scaled_dot_product_cudnn_attention", f"{Q} {Q}"),
        ("_scaled_dot_product_cudnn_attention", "8x128x64:bf16 8x128x64:bf16 8x128x64:bf16"),
        # The lengths of packed sequences are not in the shapes.
        ("_flash_attention_forward", "1x256x8x64:bf16 " * 3 + "5:int 5:int"),
        ("_efficient_attention_forward", "1x256x8x64:bf16 " * 3 + "none 5:int 5:int"),
        ("_flash_attention_backward _efficient_attention_backward", "1x256x8x64:bf16 " * 4 + "none none 5:int 5:int"),
        ("add", "4x8:bf16"),
        ("where", "4x8:bool"),  # its other meaning: which are not zero
        ("copy_", "8:bf16"),
        ("fill_ sum", "number 8:bf16"),
        ("unknown softmax _int_mm", "8:bf16"),
    ],
)
def test_work_of_other_arguments_is_unknown(names: str, arguments: str) -> None:
    assert [work(f"aten::{name}", arguments) for name in names.split()] == [None] * len(names.split())
    assert work(f"mylib::{names.split()[0]}", arguments) is None


# As the reader lets through: sizes of 64 bits, and lists of them.
JUNK: list[Any] = [
    (-1,), (2**62, 2**62), (0, 2**62, 2**62), (1,) * 65, ((3, 4), (5,)), (3, (4,)), ((),), (-(2**63), 4), (2**32, 2**31),
]  # fmt: skip
SHAPES: list[Any] = [(), (0,), (1,), (4,), (4, 4), (1, 4), (2, 4, 4), (2, 4, 4, 4), (2**31, 2**31), (2**62,)]
WORDS = [*TYPES.values(), *NO_TENSOR.values(), "c10::qint8"]


@pytest.mark.parametrize("junk", [0.0, 0.1])
def test_work_of_any_row_is_finite_or_unknown(junk: float) -> None:
    generator = random.Random(7)
    names = "mm addmm bmm _scaled_mm _scaled_dot_product_cudnn_attention _flash_attention_backward add add_ where"
    names += " copy_ fill_ sum _softmax layer_norm clamp"
    ops = [*(f"aten::{name}" for name in names.split()), "triton_poi_fused_0", "aten::", "", "x"]
    seen = 0
    for _ in range(20_000):
        count, more = generator.randrange(8), generator.random() < junk
        sizes = generator.choices(SHAPES, k=2) + generator.choices(JUNK, k=1 if more else 0)
        shapes = tuple(generator.choices(sizes, k=count))
        words = [BF16, FP32] if generator.random() < 0.5 else WORDS
        found = work_of(generator.choice(ops), shapes, tuple(generator.choices(words, k=count + more)))
        if found is not None:
            seen += 1
            assert all(value is None or (isfinite(value) and value >= 0) for value in (found.flops, found.bytes))
    assert seen > 1_000


ROUND = DeviceLimits("round", 1000, {"bf16": 100.0, "fp32": 10.0, "tf32": 50.0}, "no GPU")  # 1 GB a ms, 100 GFLOP a ms


@pytest.mark.parametrize(
    "name",
    ["", "NVIDIA", "H100", "NVIDIA H100", "NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb", "NVIDIA A10G", "nvidia h200"],
)
def test_limits_of_a_similar_name_are_unknown(name: str) -> None:
    assert limits_of(name) is None


def test_limits_of_a_padded_name_are_known() -> None:
    assert limits_of(" NVIDIA H200\n") == limits_of("NVIDIA H200") is not None


@pytest.mark.parametrize(
    ("work", "dtype", "expected"),
    [
        (Work(1e11, 2e9), "bf16", ("memory", 0.5, 500.0, "GB/s")),  # 1 ms of arithmetic, 2 ms of memory
        (Work(3e11, 2e9), "bf16", ("bf16", 0.75, 75.0, "TFLOP/s")),
        (Work(3e11, 2e9), "tf32", ("tf32", 1.5, 75.0, "TFLOP/s")),
        (Work(3e11, 2e9), "fp32", ("fp32", 7.5, 75.0, "TFLOP/s")),  # as no tensor core would be used
        (Work(None, 2e9), None, ("memory", 0.5, 500.0, "GB/s")),
        (Work(0.0, 2e9), None, ("memory", 0.5, 500.0, "GB/s")),
        *((Work(1e11, 2e9), dtype, None) for dtype in (None, "fp8")),
        *((work, "bf16", None) for work in (Work(1e11, None), Work(None, None), Work(0.0, 0.0), Work(None, 0.0))),
    ],
)
def test_share_is_of_the_limit_that_binds(
    work: Work, dtype: str | None, expected: tuple[str, float, float, str] | None
) -> None:
    found = share_of_limit(work, 4000.0, dtype, ROUND)
    if expected is None or found is None:
        assert found is expected
    else:
        said = (found.limit, pytest.approx(found.share), pytest.approx(found.achieved), found.unit)
        assert said == expected


@pytest.mark.parametrize(
    ("name", "is_known"), [("triton_tem_fused_flex_attention_0", False), ("triton_poi_fused_add_0", True)]
)
def test_template_of_inductor_has_no_limit_of_memory_alone(name: str, is_known: bool) -> None:
    kind = "attention" if "attention" in name else "pointwise"
    kernel = LaneKernel(KernelIdentity(name, kind), (231.9,), name, ((4, 16, 2048, 128),) * 2, ("c10::BFloat16",) * 2)
    assert (kernel_work(kernel) is not None) is is_known
