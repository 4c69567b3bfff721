"""Texts about what is stored: a review with its groups and their evidence, and what a calibration found."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kernelgauge.judge.baseline import Baseline, Recorded, from_run
from kernelgauge.judge.evidence import Detail, FileNote, RunDoubt
from kernelgauge.judge.review import Group, Reviewed, review_run
from kernelgauge.report.stored import calibration_table, review_page
from kernelgauge.report.text import fenced, render
from tests.builders import H200, calibrated, counts, drawn, fingerprint, mlp_kernels, run

UPGRADED = fingerprint(driver="590.1", torch="2.12.0")


def stored(workload: str, **changes: Any) -> Baseline:
    return from_run(run(workload=workload, **changes), suite="perf", recorded=Recorded("then", "a" * 40, "0.1.0"))


def reviewed(workload: str, old: Baseline | None, *, doubts: tuple[RunDoubt, ...] = (), **changes: Any) -> Reviewed:
    recorded = Recorded("thereafter", "b" * 40, "0.1.0")
    observed = run(workload=workload, **changes)
    return review_run(observed, old, suite="perf", recorded=recorded, comparisons=15, doubts=doubts)


def every_group() -> list[Reviewed]:
    slow = {"device": (225.0, 225.1, 225.2, 225.3), "kernels": mlp_kernels(us=58.1)}
    few = {"kernels": mlp_kernels()[:3], "counts": counts(launches=3)}
    return [
        reviewed("a-same", stored("a-same"), machine=UPGRADED),
        reviewed("b-slow", stored("b-slow"), machine=UPGRADED, **slow),
        reviewed(
            "c-config", stored("c-config"), doubts=(RunDoubt("test failed", "test_x"),), kernels=mlp_kernels(xblock=512)
        ),
        reviewed("d-kernels", stored("d-kernels"), **few),
        reviewed("e-new", None),
        Reviewed("f-gone", Group.VANISHED, "perf", evidence=(FileNote("undeclared"),)),
        Reviewed("g-left", Group.NOT_MEASURED, "perf", evidence=(Detail("file", "not selected in this run"),)),
    ]


def text(*found: Reviewed, name: str = H200.device) -> str:
    return render(*review_page(name, found), width=80, color=False).removeprefix("\n")


def test_text_has_every_group_with_its_evidence() -> None:
    assert (
        text(*every_group())
        == """\
NVIDIA H200: 7 workloads
moved    driver 580.159.04 -> 590.1   (2 workloads)
moved    torch 2.11.0+cu130 -> 2.12.0   (2 workloads)

same kernels, same speed: 1
  a-same
    time     GPU time 205.1 us -0.0 %, end to end 301.5 us -0.0 %, host dispatch
             50.7 us -0.0 %

same kernels, slower or faster: 1
  b-slow
    time     GPU time 205.1 -> 225.1 us  +9.78 % (+9.42 … +10.14)
    cause    the same kernel, slower: triton_poi_fused__unsafe_view_gelu_mul_0
             38.1 -> 58.1 us (+20.0 us)
    rest     3 kernels unchanged (+0.0 %, +0.00 us)
    machine  unchanged (reference copy +0.0 %, gemm +0.0 %)
    time     end to end 301.5 us -0.0 %, host dispatch 50.7 us -0.0 %

same kernels, other launch configuration: 1
  c-config
    tuning   the autotuner chose a launch configuration that is not in the
             baseline (+0.0 us against the fastest that the baseline knows)
             triton_poi_fused__unsafe_view_gelu_mul_0: XBLOCK 1024 -> 512,
             num_warps 4 -> 8
    time     end to end 301.5 us, not judged: the autotuner's choice is not in
             the baseline
    time     GPU time 205.1 us -0.0 %, host dispatch 50.7 us -0.0 %
    refused  test_x failed

other kernels, or other counts: 1
  d-kernels
    counts   launches 4 -> 3
    cause    1 kernel less: nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT
    time     GPU time 205.1 us -0.0 %, end to end 301.5 us -0.0 %, host dispatch
             50.7 us -0.0 %

new: 1
  e-new
    counts   4 launches
    time     GPU time 205.1 us
    time     end to end 301.5 us
    time     host dispatch 50.7 us

vanished: 1
  f-gone
    file     the suite no longer declares it: git rm its baseline, if that is
             meant

not measured: 1
  g-left
    file     not selected in this run
"""
    )


@pytest.mark.parametrize(("name", "fence"), [("a```b", "````"), ("`", "```"), ("`" * 9, "`" * 10)])
def test_markdown_fence_is_longer_than_any_backticks(name: str, fence: str) -> None:
    page = fenced(text(name=name))
    assert page.startswith(f"{fence}text\n{name}: 0 workloads\n")
    assert page.endswith(f"\n{fence}\n")


QUIET = (200.0, 200.1, 199.9, 200.0) * 2


def columns(stored: Baseline, timer: str = "GPU time", *, comparisons: int = 21) -> list[float]:
    """Time, noise, smallest change here and on another GPU; infinity for a dash."""
    text = render(calibration_table({"mlp": stored}, comparisons=comparisons), width=100, color=False)
    (numbers,) = re.findall(rf"^mlp +{timer} +([\d. -]+)$", text, re.MULTILINE)
    return [float("inf") if word == "-" else float(word) for word in numbers.split()]


def test_gpu_time_on_another_gpu_needs_a_larger_change() -> None:
    time_us, noise, here, there = columns(drawn({1024: 10}))
    assert time_us > 40
    assert 0 < noise < here < there < 100
    for timer in ("host dispatch", "end to end"):  # there is no number for a host clock elsewhere
        assert columns(drawn({1024: 10}), timer)[3] == float("inf")
    assert columns(drawn({1024: 10}), comparisons=1000)[3] > there > columns(drawn({1024: 10}), comparisons=1)[3]


def test_calibration_of_a_cpu_names_no_gpu() -> None:
    stored = calibrated([run(machine=fingerprint(arch="cpu")) for _ in range(2)], suite="perf")
    text = render(calibration_table({"mlp": stored}, comparisons=2), width=100, color=False)
    assert "mlp      CPU time" in text
    assert "GPU" not in text


def test_sensitivity_ignores_a_process_on_a_slow_host() -> None:
    """An H200's latency of 255 us was 432 us once, when its host was twice as slow."""
    usual = [run(device=QUIET, end_to_end=[us, us + 1] * 4, host_control_us=30.0) for us in (255.0, 256.0) * 4]
    slow = run(device=QUIET, end_to_end=[432.0, 436.0] * 4, host_control_us=57.0)
    alone, among = (columns(calibrated(runs, suite="perf"), "end to end")[2] for runs in (usual, [*usual, slow]))
    assert among == pytest.approx(alone, rel=0.05)
