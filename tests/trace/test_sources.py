"""The CSV of Nsight Systems: kernels, copies and steps of it, and files that are refused."""

from pathlib import Path
from typing import Any

import pytest

from kernelgauge.cli.traces import read_trace
from kernelgauge.errors import TraceError

HEADER = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
    "DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n"
)
GELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl("
    "at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}, std::array<char*, 2ul> >(int)"
)


def text(*, gelu_ns: int = 5000, gelus: int = 1, steps: int = 12) -> str:
    """Return the CSV of steps of a copy, a GEMM and GELUs."""
    rows, at = [], 1_000_000
    for number in range(steps):
        rows.append(
            f"{at},1500,{at},,,,,,,,,,0.033,2000.0,Pinned,Device,NVIDIA H200 (1),1,,13,[CUDA memcpy HtoD]"
        )
        work = [("gemm", 40_000 + number), *[(GELU, gelu_ns + 10 * number)] * gelus]
        for name, duration_ns in work:
            at += 50_000
            sizes = f"{at},16,2,1,128,1,1,64,0.001,0.000"
            rows.append(f'{at},{duration_ns},{sizes},,,,,NVIDIA H200 (1),1,,7,"{name}"')
        at += 90_000
    return f"\nProcessing [x.sqlite] with [cuda_gpu_trace.py]...\n{HEADER}" + "\n".join(rows) + "\n"


def test_nsys_rows_are_kernels_and_copies(tmp_path: Path) -> None:
    (file := tmp_path / "gpu.csv").write_text(text(steps=1))
    trace = read_trace(file)
    copy, gemm, gelu = trace.records
    assert (copy.category, copy.name, copy.stream) == ("gpu_memcpy", "[CUDA memcpy HtoD]", 13)
    assert (gemm.start_us, gemm.duration_us, gemm.category, gemm.device) == (1050, 40, "kernel", 1)
    assert (gemm.grid, gemm.block, gemm.registers) == ((16, 2, 1), (128, 1, 1), 64)
    assert gelu.name == GELU
    assert trace.device_properties == ({"name": "NVIDIA H200"},)
    assert trace.pairing_problems() == ()


def test_nsys_traces_are_compared(kernelgauge: Any, tmp_path: Path) -> None:
    before, after = tmp_path / "before.csv", tmp_path / "after.csv"
    before.write_text(text())
    after.write_text(text(gelus=2))
    assert kernelgauge("trace", before, before, "--fail-on-change")[0] == 0
    code, out, _ = kernelgauge("trace", before, after, "--fail-on-change")
    assert (code, "12 new kernels: vectorized_elementwise_kernel<gelu> x12" in out) == (1, True)


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"gelu_ns": 5001}, 0, "PASS  same kernels, same counts"),
        ({"gelu_ns": 15_000}, 1, "the same kernel, slower: vectorized_elementwise_kernel<gelu>"),
        ({"gelus": 2}, 1, "cause    1 new kernel: vectorized_elementwise_kernel<gelu>"),
    ],
)
def test_nsys_steps_are_held_to_their_baseline(
    kernelgauge: Any, tmp_path: Path, change: dict[str, int], code: int, said: str
) -> None:
    runs = [tmp_path / f"run-{number}.csv" for number in range(3)]
    for number, run in enumerate(runs):
        run.write_text(text(gelu_ns=5000 + number))
    where = ("--baselines", tmp_path / "job.json")
    assert kernelgauge("check-trace", *runs, *where, "--update", "--force")[0] == 0
    (changed := tmp_path / "run-3.csv").write_text(text(**change))
    found, out, _ = kernelgauge("check-trace", changed, *where)
    assert (found, said in out) == (code, True), out


@pytest.mark.parametrize(
    ("old", "new", "got"),
    [
        ("(ns)", "(us)", "KeyError: 'Start (ns)'"),
        (",Strm,", ",Stream,", "KeyError: 'Strm'"),
        (",5000,", ",,", "ValueError: "),
        (f'{GELU}"\n', f"{GELU}\n", "Error: unexpected end of data"),
        (f'"{GELU}"\n', "at::nat", "ValueError: the last row has no end"),
    ],
)
def test_nsys_file_that_lacks_data_is_refused(tmp_path: Path, old: str, new: str, got: str) -> None:
    (file := tmp_path / "gpu.csv").write_text(text(steps=1).replace(old, new))
    with pytest.raises(TraceError, match="not a trace of Nsight Systems") as error:
        read_trace(file)
    assert got in (error.value.got or "")
