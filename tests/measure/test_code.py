"""What is read of Triton's compiled code: of real kernels, which Triton compiles for an H200
without a GPU.
"""

import gc
import inspect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelgauge.measure.code import resources_of_call, sizes_of_elf
from kernelgauge.trace import KernelIdentity
from kernelgauge.trace.kernel import Execution, Resources

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
compiler = pytest.importorskip("triton.compiler")


@triton.jit
def planted_scale(x, y, n, stride, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + place * stride, mask=place < n).to(tl.float32)
    tl.store(y + place, (tl.exp(value)).to(tl.bfloat16), mask=place < n)


@triton.jit
def planted_softmax(x, y, n, stride, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    place = tl.program_id(0) * n + tl.arange(0, SIZE) * stride
    value = tl.exp(tl.load(x + place).to(tl.float32))
    tl.store(y + place, (value / tl.sum(value, 0)).to(tl.bfloat16))


def compiled(
    *,
    is_aligned: bool = True,
    registers: int = 32,
    spills: int = 0,
    function: Any = None,
    **options: Any,
) -> Any:
    """A kernel as Triton has it once it is loaded, which needs a GPU: the driver says how it does."""
    signature = {"x": "*bf16", "y": "*bf16", "n": "i32", "stride": "constexpr", "SIZE": "constexpr"}
    divisible = {
        (place,): [["tt.divisibility", 16]] for place in ((0, 1, 2) if is_aligned else (1, 2))
    }
    source = compiler.ASTSource(
        function or planted_scale, signature, {"stride": 1, "SIZE": 1024}, divisible
    )
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    kernel = triton.compile(source, target=target, options=options)
    kernel.n_regs, kernel.n_spills = registers, spills
    return kernel


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(autouse=True)
def cache_of_this_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    yield
    gc.collect()


def read(registers: int = 32, warps: int = 4, name: str = "planted_scale") -> Any:
    identity = KernelIdentity(name, "other", block=(32 * warps, 1, 1))
    launch = Execution(identity, 1.0, 0.0, None, resources=Resources(registers, 0))
    return resources_of_call(SimpleNamespace(executions=[[launch]]))[0]  # type: ignore[arg-type]


def alone(**changes: Any) -> Any:
    kernel = compiled(**changes)
    return read(warps=kernel.metadata.num_warps)


def test_code_is_of_the_kernel_that_ran() -> None:
    wide, spilt = compiled(), compiled(num_warps=1, maxnreg=32, registers=31, spills=9)
    usual, other = read(), read(31, 1)
    assert (usual.registers, usual.spilled_words, other.spilled_words) == (32, 0, 9)
    assert (
        usual.options
        == "num_warps=4,num_stages=3,stride=1,SIZE=1024,x=divisible by 16,y=divisible by 16,n=divisible by 16"
    )
    assert other.options.startswith("num_warps=1,num_stages=3,maxnreg=32,")
    assert (
        "num_stages=3,enable_fp_fusion=False," in alone(num_warps=2, enable_fp_fusion=False).options
    )
    assert usual.conversions > 0 == usual.tensor_core_instructions
    assert usual.code != other.code
    assert read(name="another") == Resources(32, 0)
    assert wide.name == spilt.name


def test_code_of_a_misaligned_pointer_has_more_memory_instructions() -> None:
    usual, other = (alone(is_aligned=each) for each in (True, False))
    assert (usual.memory_instructions, other.memory_instructions) == (2, 9)
    assert "x=divisible by 16" in usual.options
    assert "x=" not in other.options


def test_code_of_several_that_may_have_run_is_what_they_share() -> None:
    kernels = [compiled(), compiled(is_aligned=False)]
    assert (read().spilled_words, read().memory_instructions, read().code) == (0, None, None)
    assert len(kernels) == 2


def test_code_is_the_same_after_a_line_moved(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = set()
    for number in (1, 2):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / str(number)))
        file = tmp_path / "moved.py"
        lines = inspect.getsource(planted_scale.fn)
        file.write_text("import triton\nimport triton.language as tl\n" + number * "\n" + lines)
        namespace: dict[str, Any] = {}
        exec(compile(file.read_text(), file, "exec"), namespace)
        monkeypatch.setitem(globals(), "planted_scale", namespace["planted_scale"])
        kernel = compiled()
        codes.add((kernel.asm["cubin"], read().code))
        del kernel
        gc.collect()
    assert len({binary for binary, _ in codes}) == 2
    assert len({code for _, code in codes}) == 1


def test_choice_of_an_autotuner_is_known() -> None:
    tuned = triton.autotune([triton.Config({"SIZE": 1024})], key=["n"])(planted_scale)
    kernel = compiled()
    assert (tuned.base_fn.__name__, kernel.name, read().is_tuned) == (
        kernel.name,
        "planted_scale",
        True,
    )
    del kernel
    gc.collect()
    assert read() == Resources(32, 0, is_tuned=True)


def test_code_of_an_unknown_version_is_left_out() -> None:
    kernel = compiled()
    kernel.asm = None
    assert read() == Resources(32, 0)


def test_sizes_of_a_target_are_those_of_the_disassembler(tmp_path: Any) -> None:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    for options in ({}, {"num_warps": 1, "maxnreg": 32}):
        file = tmp_path / "code.cubin"
        file.write_bytes(compiled(function=planted_softmax, **options).asm["cubin"])
        usage = subprocess.run(
            [tool, "-res-usage", file], capture_output=True, text=True, check=True
        ).stdout
        registers, stack_bytes = (
            int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK")
        )  # type: ignore[index]
        assert sizes_of_elf(file.read_bytes()) == (registers, stack_bytes)
        assert (stack_bytes > 0) is bool(options)
