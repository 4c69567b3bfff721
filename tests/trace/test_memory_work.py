"""How much data pointwise ops, reductions and normalisations move: by hand, and as the tensors of torch are sized."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelgauge.trace.work import ELEMENT_BYTES, Work, work_of
from tests.trace.rows import BF16, FP32, NONE, NUMBER, Argument, recorded_work, tupled, work

LIST: Argument = ((), "ScalarList")


def moved(name: str, *arguments: Argument) -> float | None:
    found = work(name, *arguments)
    assert found is not None
    assert found.flops is None
    return found.bytes


# -- recorded on an H200 --------------------------------------------------------------------------------------------


def test_gelu_moves_two_tensors_of_the_mlp_and_mul_three() -> None:
    found = dict(recorded_work("mlp-eager"))
    assert found["aten::gelu"] == Work(None, 2 * 64 * 128 * 3072 * 2.0)
    assert found["aten::mul"] == Work(None, 3 * 64 * 128 * 3072 * 2.0)


def test_a_broadcast_operand_is_read_as_it_is() -> None:
    assert dict(recorded_work("matmul_add-eager"))["aten::add"] == Work(None, (2 * 1024 * 64 + 64) * 2.0)


def test_gradients_are_added_in_place_and_copied_like_any_tensor() -> None:
    found = dict(recorded_work("mlp-eager-train"))
    assert found["aten::add_"] == Work(None, 3 * 768 * 3072 * 2.0)
    assert found["aten::gelu_backward"] == Work(None, 3 * 64 * 128 * 3072 * 2.0)
    assert found["aten::fill_"] == Work(None, 2.0)


def test_lists_of_tensors_have_no_types_so_nothing_is_known() -> None:
    assert dict(recorded_work("mlp-cudagraph"))["aten::_foreach_copy_"] is None


# -- beside torch ---------------------------------------------------------------------------------------------------


def profiled(call: Callable[[], object], path: Path) -> dict[str, Work | None]:
    """The work of the first row of each op that `call` dispatches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        call()
    profiler.export_chrome_trace(str(path))
    found: dict[str, Work | None] = {}
    for row in json.loads(path.read_text())["traceEvents"]:
        if row.get("cat") == "cpu_op":
            args: dict[str, Any] = row["args"]
            done = work_of(row["name"], tupled(args.get("Input Dims", [])), tupled(args.get("Input type", [])))
            found.setdefault(row["name"], done)
    return found


X, Y = torch.rand(4, 8), torch.rand(4, 8)
ROW = torch.rand(8)
HALF = torch.rand(4, 8).half()
MASK = X > 0.5


@pytest.mark.parametrize(
    ("op", "call", "operands"),
    [
        ("aten::add", lambda: X + ROW, [X, ROW]),
        ("aten::add", lambda: HALF + Y, [HALF, Y]),
        ("aten::sub", lambda: torch.arange(8) - torch.arange(8).int(), [torch.arange(8), torch.arange(8).int()]),
        ("aten::where", lambda: torch.where(MASK, X, ROW), [MASK, X, ROW]),
        ("aten::clamp", lambda: X.clamp(0, 1), [X]),
        ("aten::clamp", lambda: torch.clamp(X, max=Y), [X, Y]),
        ("aten::pow", lambda: HALF**2, [HALF]),
        ("aten::gt", lambda: X > Y, [X, Y]),
        ("aten::logical_not", lambda: X.logical_not(), [X]),
        ("aten::addcmul", lambda: torch.addcmul(X, Y, ROW), [X, Y, ROW]),
        ("aten::masked_fill", lambda: HALF.masked_fill(MASK, 0.0), [HALF, MASK]),
        ("aten::masked_fill", lambda: torch.arange(8).masked_fill(MASK, 0), [torch.arange(8), MASK]),
        ("aten::silu", lambda: F.silu(X), [X]),
        ("aten::clone", lambda: MASK.clone(), [MASK]),
        ("aten::add", lambda: torch.add(X, Y, out=torch.empty(4, 8)), [X, Y]),
        ("aten::add", lambda: torch.add(X, Y, out=torch.empty(4, 8, dtype=torch.double)), [X, Y]),
        ("aten::add_", lambda: HALF.clone().add_(Y), [HALF, Y]),
        ("aten::_softmax", lambda: torch.softmax(X, -1), [X]),
        ("aten::log_softmax", lambda: torch.log_softmax(HALF, -1), [HALF]),
        ("aten::layer_norm", lambda: F.layer_norm(X, (8,), ROW, ROW), [X, ROW, ROW]),
        ("aten::layer_norm", lambda: F.layer_norm(X, (8,)), [X]),
        ("aten::rms_norm", lambda: F.rms_norm(X, (8,), ROW), [X, ROW]),
    ],
)
def test_bytes_are_those_of_the_tensors_that_torch_reads_and_returns(
    op: str, call: Callable[[], torch.Tensor], operands: list[torch.Tensor], tmp_path: Path
) -> None:
    result = call()
    expected = sum(tensor.nbytes for tensor in [*operands, result])
    found = profiled(call, tmp_path / "trace.json")[op]
    assert found == Work(None, float(expected))


def test_a_copy_reads_the_source_and_writes_the_target_and_nothing_else(tmp_path: Path) -> None:
    target = torch.empty(4, 8, dtype=torch.double)
    found = profiled(lambda: target.copy_(ROW), tmp_path / "trace.json")
    assert found["aten::copy_"] == Work(None, float(ROW.nbytes + target.nbytes))


def test_reductions_read_their_input_and_write_what_they_are_given_to_write(tmp_path: Path) -> None:
    found = profiled(lambda: (X.sum(1), X.amax(0), X.argmax(), X.logsumexp(1)), tmp_path / "trace.json")
    for name in ("sum", "amax", "argmax", "logsumexp"):
        assert found[f"aten::{name}"] == Work(None, float(X.nbytes))
    assert moved("aten::sum", ((4, 8), FP32), LIST, NUMBER, NONE, ((4,), FP32)) == 4 * 8 * 4 + 4 * 4


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.half, torch.bfloat16,
        torch.float, torch.double, torch.complex64, torch.complex128, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.uint16, torch.uint32, torch.uint64,
    ],
)  # fmt: skip
def test_every_type_of_torch_has_its_size(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    found = profiled(lambda: tensor.copy_(torch.zeros(3, dtype=dtype)), tmp_path / "trace.json")
    assert found["aten::copy_"] == Work(None, 2.0 * tensor.nbytes)


def test_the_short_names_of_types_have_the_sizes_of_the_long_ones() -> None:
    pairs = {"short": "short int", "long": "long int", "unsigned short": "short unsigned int"}
    assert all(ELEMENT_BYTES[short] == ELEMENT_BYTES[full] for short, full in pairs.items())


# -- what the rows do not say ---------------------------------------------------------------------------------------


def test_in_place_the_result_has_the_type_of_what_is_overwritten() -> None:
    assert moved("aten::mul_", ((4, 8), BF16), ((4, 8), FP32)) == 32 * (2 + 4 + 2)
    assert moved("aten::eq_", ((4, 8), BF16), NUMBER) == 32 * (2 + 2)


def test_fills_only_write() -> None:
    for name in ("fill_", "zero_", "normal_", "uniform_"):
        assert moved(f"aten::{name}", ((4, 8), BF16), NUMBER) == 64


def test_a_type_that_is_given_by_value_leaves_the_bytes_unknown() -> None:
    assert moved("aten::softmax", ((4, 8), BF16), NUMBER, NONE) == 128
    assert moved("aten::softmax", ((4, 8), BF16), NUMBER, NUMBER) is None
    assert moved("aten::exp", ((4, 8), "int")) is None  # the default floating type
    assert moved("aten::mul", ((4, 8), "int"), ((), "double")) is None  # a number, or a tensor
    assert moved("aten::rms_norm", ((4, 8), BF16), LIST, ((8,), FP32), NONE) is None
    assert moved("aten::relu", ((4, 8), "c10::qint8")) is None
    assert moved("aten::add", (((2,), (2,)), "TensorList"), ((8,), BF16)) is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aten::add", [((4, 8), BF16)]),
        ("aten::add", [((4, 8), BF16), ((3,), BF16)]),
        ("aten::add_", [((8,), BF16), ((4, 8), BF16)]),
        ("aten::where", [((4, 8), "bool")]),  # its other meaning: which are not zero
        ("aten::copy_", [((8,), BF16), ((4, 8), BF16)]),
        ("aten::copy_", [((8,), BF16)]),
        ("aten::fill_", [NUMBER, ((8,), BF16)]),
        ("aten::sum", [NUMBER, ((8,), BF16)]),
        ("aten::layer_norm", [((4, 8), BF16), LIST, ((4,), BF16), NONE]),
        ("aten::unknown", [((8,), BF16)]),
        ("mylib::add", [((8,), BF16), ((8,), BF16)]),
        ("add", [((8,), BF16), ((8,), BF16)]),
    ],
)
def test_rows_that_do_not_fit_an_op_have_no_work(name: str, arguments: list[Argument]) -> None:
    found = work(name, *arguments)
    assert found is None
