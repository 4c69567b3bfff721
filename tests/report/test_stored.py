"""Texts about what is stored: a review with its groups and their evidence, and what a calibration found."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kernelgauge.judge.baseline import Baseline
from kernelgauge.judge.evidence import Detail, FileNote, RunDoubt
from kernelgauge.judge.review import Group, Reviewed, review_run
from kernelgauge.report.stored import calibration_table, review_page
from kernelgauge.report.text import fenced, render
from tests.builders import H200, baseline, calibrated, counts, drawn, fingerprint, mlp_kernels, run

UPGRADED = fingerprint(driver="590.1", torch="2.12.0")
SLOW = {"device": (225.0, 225.1, 225.2, 225.3), "kernels": mlp_kernels(us=58.1), "machine": UPGRADED}
FAILED = RunDoubt("test failed", "test_x")


def reviewed(name: str, *doubts: RunDoubt, is_new: bool = False, **changes: Any) -> Reviewed:
    old = None if is_new else baseline(workload=name)
    observed = run(workload=name, **changes)
    return review_run(observed, old, suite="perf", recorded=None, comparisons=15, doubts=doubts)


def text(*found: Reviewed, name: str = H200.device) -> str:
    return render(*review_page(name, found), width=160, color=False).removeprefix("\n")


GROUPS = [
    reviewed("a-same", machine=UPGRADED),
    reviewed("b-slow", **SLOW),
    reviewed("c-config", FAILED, kernels=mlp_kernels(xblock=512)),
    reviewed("d-kernels", kernels=mlp_kernels()[:3], counts=counts(launches=3)),
    reviewed("e-new", is_new=True),
    Reviewed("f-gone", Group.VANISHED, "perf", evidence=(FileNote("undeclared"),)),
    Reviewed("g-left", Group.NOT_MEASURED, "perf", evidence=(Detail("file", "not selected in this run"),)),
]
SAID = """\
NVIDIA H200: 7 workloads
moved    driver 580.159.04 -> 590.1   (2 workloads)
moved    torch 2.11.0+cu130 -> 2.12.0   (2 workloads)
same kernels, same speed: 1
    time     GPU time 205.1 us -0.0 %, end to end 301.5 us -0.0 %, host dispatch 50.7 us -0.0 %
same kernels, slower or faster: 1
    time     GPU time 205.1 -> 225.1 us  +9.78 % (+9.42 … +10.14)
    rest     3 kernels unchanged (+0.0 %, +0.00 us)
    time     end to end 301.5 us -0.0 %, host dispatch 50.7 us -0.0 %
same kernels, other launch configuration: 1
    time     end to end 301.5 us, not judged: the autotuner's choice is not in the baseline
    refused  test_x failed
other kernels, or other counts: 1
    counts   launches 4 -> 3
    time     GPU time 205.1 us -0.0 %, end to end 301.5 us -0.0 %, host dispatch 50.7 us -0.0 %
new: 1
    counts   4 launches
    time     GPU time 205.1 us
vanished: 1
    file     the suite no longer declares it: git rm its baseline, if that is meant
not measured: 1
    file     not selected in this run"""


def test_review_has_every_group_with_its_evidence() -> None:
    lines = text(*GROUPS).splitlines()
    assert [line for line in lines if line in SAID.splitlines()] == SAID.splitlines()


@pytest.mark.parametrize(("name", "fence"), [("a```b", "````"), ("`", "```"), ("`" * 9, "`" * 10)])
def test_markdown_fence_is_longer_than_any_backticks(name: str, fence: str) -> None:
    assert fenced(text(name=name)) == f"{fence}text\n{name}: 0 workloads\n{fence}\n"


def columns(stored: Baseline, timer: str = "GPU time", *, comparisons: int = 21) -> list[float]:
    """Time, noise, smallest change here and on another GPU; infinity for a dash."""
    text = render(calibration_table({"mlp": stored}, comparisons=comparisons), width=100, color=False)
    (numbers,) = re.findall(rf"^mlp +{timer} +([\d. -]+)$", text, re.MULTILINE)
    return [float("inf") if word == "-" else float(word) for word in numbers.split()]


def test_gpu_time_on_another_gpu_needs_a_larger_change() -> None:
    time_us, noise, here, there = columns(drawn({1024: 10}))
    assert 0 < noise < here < there < 100 < time_us
    for timer in ("host dispatch", "end to end"):  # there is no number for a host clock elsewhere
        assert columns(drawn({1024: 10}), timer)[3] == float("inf")
    assert columns(drawn({1024: 10}), comparisons=1000)[3] > there > columns(drawn({1024: 10}), comparisons=1)[3]
    on_cpu = calibrated([run(machine=fingerprint(arch="cpu")) for _ in range(2)], suite="perf")
    assert columns(on_cpu, "CPU time")[3] == float("inf")


def test_sensitivity_ignores_a_process_on_a_slow_host() -> None:
    """An H200's latency of 255 us was 432 us once, when its host was twice as slow."""
    usual = [run(end_to_end=[us, us + 1] * 4, host_control_us=30.0) for us in (255.0, 256.0) * 4]
    slow = run(end_to_end=[432.0, 436.0] * 4, host_control_us=57.0)
    alone, among = (columns(calibrated(runs, suite="perf"), "end to end")[2] for runs in (usual, [*usual, slow]))
    assert among == pytest.approx(alone, rel=0.05)
