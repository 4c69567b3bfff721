"""What changed between two traces, in one sentence."""

from dataclasses import replace
from functools import cache

import pytest
from msgspec import structs

from kernelgauge.report.traces import TraceComparison, compare_page, conclusion
from kernelgauge.trace.summary import Summary, summarize_trace
from tests.builders import Event, call, kernel, recorded, step, trace_of


@cache
def summary(name: str) -> Summary:
    return summarize_trace(recorded(name))


def compared(before: str, after: str) -> TraceComparison:
    return TraceComparison(summary(before), summary(after))


def page(found: TraceComparison) -> str:
    return "\n".join(
        line for section in compare_page(found, names=("a", "b"), top=5) for line in section.lines
    )


TUNED = "Inductor's autotuner chose another launch configuration (+18.2 us)"


@pytest.mark.parametrize(
    ("before", "after", "said", "time"),
    [
        ("mlp-eager", "mlp-compiled", "Inductor fused 2 pointwise kernels into 1: triton_", "233.9 -> 205.3"),
        ("mlp-eager", "mlp-liger", "Liger fused 2 pointwise kernels into 1, by Liger", "233.9 -> 210.8"),
        ("mlp-compiled", "mlp-eager", "2 kernels instead of 1, by aten::gelu and aten::mul: vec", "205.3 -> 233.9"),
        ("mlp-eager", "mlp-eager", "Nothing on the GPU changed.\nThe host ran the same ops.", "233.9"),
        ("linear-eager", "linear-compiled", "Nothing on the GPU changed.\n4 new ops: TorchDynamo Cache Lookup, ", "2.7"),
        ("mlp-compiled", "mlp-compiled-other-autotune", f"{TUNED}\n", "205.3 -> 218.1"),
        ("mlp-compiled", "mlp-compiled-fp32", "bf16 -> fp32 in most kernels\n", "205.3 us -> 2.45 ms"),
        ("mlp-eager-train", "mlp-compiled-train", "Inductor fused 3 pointwise kernels into 1: triton_", "600.6 -> 512.1"),
        ("mlp-compiled", "mlp-cudagraph", "another launch configuration (+18.3 us)\n", "205.3 -> 235.4"),
        ("matmul_add-eager", "matmul_add-compiled", "1 kernel went into the epilogue of 1 GEMM", "4.4 -> 2.6"),
    ],
)  # fmt: skip
def test_conclusion_of_recorded_traces(before: str, after: str, said: str, time: str) -> None:
    headline, *found = conclusion(compared(before, after))
    found = [line for line in found if not line.startswith("the GPU is idle")]
    assert "\n".join(found).startswith(said)
    assert f", kernels {time}" in headline


def job(step_us: int) -> Summary:
    """Four steps whose kernels take equally long: the rest of a step is a wait for a batch."""
    rows: list[Event] = []
    for at in range(4):
        launch = (at + 1) * step_us - 100_000
        rows += [
            step(at, at * step_us, step_us),
            call(at, launch),
            kernel(at, launch + 10, duration=99_000 + at),
        ]
    return summarize_trace(trace_of(*rows))


def test_conclusion_compares_time_of_steps() -> None:
    found = TraceComparison(job(175_000), job(140_000))
    headline, findings, *_ = conclusion(found)
    assert headline == "Step 175.0 -> 140.0 ms (-20.0 %), kernels 99.00 ms."
    assert findings == "the GPU is idle for 41.00 ms of a step instead of 76.00 ms (-35.00 ms)"
    assert "between steps (input) 75.99 -> 40.99 ms" in page(found)


def test_conclusion_names_what_changed_outside_the_steps() -> None:
    rows = (step(0, 0, 100), call(1, 10), kernel(1, 20), call(2, 200), kernel(2, 210))
    _, *found = conclusion(
        TraceComparison(*(summarize_trace(trace_of(*some)) for some in (rows[:3], rows)))
    )
    outside = "Outside the steps: 0 -> 1 kernels and copies. --whole compares them too."
    assert found[:2] == ["Nothing on the GPU changed.", outside]


def test_page_says_what_the_two_sides_do_not_have_in_common() -> None:
    before = summary("mlp-compiled")
    shape, *others = before.kernels
    wider = replace(
        before, kernels=(structs.replace(shape, input_shapes=((8192, 768), (768, 6144))), *others)
    )
    whole = summarize_trace(recorded("mlp-compiled"), [recorded("mlp-compiled").whole()])
    assert "aten::mm: [8192,768] [768,3072] [8192,3072] and [8192,768] [768,6144])" in page(
        TraceComparison(before, wider)
    )
    assert "One side is a whole trace" in page(TraceComparison(before, whole))
