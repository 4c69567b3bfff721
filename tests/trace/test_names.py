"""Names are real: recorded on an H200, or as public profiles and kernel sources write them."""

from __future__ import annotations

import time
from dataclasses import fields

import pytest

from kernelgauge.trace import KernelName, Kind, decode
from tests.builders import RECORDED

# Names with what they decode to: backend, kind and every field that is not at its default.
LINES = (RECORDED.parent / "kernel_names.txt").read_text(encoding="utf-8").splitlines()
ROWS = [line.split(" | ", 1) for line in LINES if not line.startswith("#")]
REAL = [name for _, name in ROWS]


def fields_text(decoded: KernelName) -> str:
    """Return what the file of names says of a name."""
    said = [decoded.backend, decoded.kind.value]
    for field in fields(KernelName):
        value = getattr(decoded, field.name)
        if field.name in ("raw", "kind", "backend") or value in (field.default, decoded.raw):
            continue
        said.append(f"{field.name}={','.join(value) if isinstance(value, tuple) else value}")
    return " ".join(said)


@pytest.mark.parametrize(("expected", "name"), ROWS, ids=[name[:60] for name in REAL])
def test_decode_known_name(expected: str, name: str) -> None:
    assert decode(name).raw == name
    assert fields_text(decode(name)) == expected


def test_decode_name_without_meaning_has_a_text() -> None:
    for name in ("operator new", "<<<unparseable>>>", "", "\n", "::", "<>", "void ", "void <", "triton_", "x" * 500):
        assert (decode(name).kind, bool(decode(name).short.strip())) == (Kind.OTHER, True)


@pytest.mark.parametrize("evil", ["\x1b[2J", "\r\n", "\x07", "\u202e", "\u200b", "\ud800", "\x9b31m", "\u2028"])
@pytest.mark.parametrize(
    "around", ["{}kernel", "ker{}nel", "triton_poi_fused_{}add_0", "void at::native::{}reduce_kernel<float>(int)", "{}"]
)
def test_decode_control_characters_are_not_printed(around: str, evil: str) -> None:
    decoded = decode(around.format(evil))
    assert decoded.raw == around.format(evil)
    assert all(text.isprintable() for text in (decoded.short, *decoded.ops, decoded.backend))


REPEATED = """_ a :: < ( ) 1x1_ 1d _1d a<b>:: _triton_poi_fused_ mm gelu_ _to_copy _cpp_fused_ cudnn:: at::layer_norm
    cutlass::Kernel<cutlass_ cutlass_gemm_1x1_ elementwise_kernel Functor _kernel _cuda_out launch_ rms_norm_forward_
    _mhc_fwd one_shot_ gemm _fprop ampere_ _MT1x1x1_GSU1 (int)4 operator _tn""".split()
REPEATED += [" ", "\n", "(anonymous namespace)::", "kernel_traits<1, 1, 1"]
STARTS = ["", "triton_poi_fused_", "void at::native::elementwise_kernel<", "cutlass_", "nvjet_a_"]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("end", ["", "-", ")"])
def test_decode_long_name_takes_linear_time(start: str, end: str) -> None:
    for fragment in REPEATED:
        name = start + fragment * (100_000 // len(fragment)) + end
        began = time.perf_counter()
        assert len(decode(name).short) <= 200
        # 0.1 s at the worst when written; a quadratic rule takes minutes.
        assert time.perf_counter() - began < 5, fragment
