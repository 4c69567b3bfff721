"""A review as text and as Markdown: every group with its evidence, within the width, and no name steers anything."""

from __future__ import annotations

from typing import Any

import pytest

from kernelgauge.errors import BaselineError
from kernelgauge.judge import Baseline, Candidate, Recorded, Review, from_run, review
from kernelgauge.report.baselines import fenced, review_text
from tests.builders import H200, counts, fingerprint, mlp_kernels, run

UPGRADED = fingerprint(driver="590.1", torch="2.12.0")
SOURCES = (("results", "reports/latest/results.json   2026-11-20T19:10:12+00:00, commit 4e3642b"),)


def stored(workload: str, *, at: str = "2026-10-01T10:00:00+00:00", **changes: Any) -> Baseline:
    return from_run(run(workload=workload, **changes), suite="perf", recorded=Recorded(at, "a" * 40, "0.1.0"))


def every_group() -> Review:
    slow = {"device": (225.0, 225.1, 225.2, 225.3), "kernels": mlp_kernels(us=58.1)}
    few = {"kernels": mlp_kernels()[:3], "counts": counts(launches=3)}
    measured = [
        stored("a-same", machine=UPGRADED),
        stored("b-slow", machine=UPGRADED, **slow),
        stored("c-config", machine=UPGRADED, kernels=mlp_kernels(xblock=512)),
        stored("d-kernels", machine=UPGRADED, **few),
        stored("e-new", machine=UPGRADED),
    ]
    old: dict[str, Baseline | BaselineError] = {
        name: stored(name) for name in ("a-same", "b-slow", "c-config", "d-kernels", "f-gone", "g-left")
    }
    candidates = [
        Candidate(each.workload, "perf", each, doubts=("test_x failed",) * (each.workload == "c-config"))
        for each in measured
    ]
    declared = {"perf": [*(each.workload for each in measured), "g-left"]}
    return review(H200.device, candidates, old, declared)


def text(found: Review | None = None, *, width: int = 80, color: bool = False) -> str:
    return review_text(found or every_group(), sources=SOURCES, width=width, color=color)


def test_text_has_every_group_with_its_evidence() -> None:
    assert (
        text()
        == """\
NVIDIA H200: 7 workloads
results  reports/latest/results.json   2026-11-20T19:10:12+00:00, commit 4e3642b
moved    driver 580.159.04 -> 590.1   (4 workloads)
moved    torch 2.11.0+cu130 -> 2.12.0   (4 workloads)

same kernels, same speed: 1   (--group same-speed)
  a-same
    time     GPU time 205.1 us +0.0 %, end to end 301.5 us +0.0 %, host dispatch
             50.7 us +0.0 %

same kernels, slower or faster: 1   (--group speed)
  b-slow
    time     GPU time 205.1 -> 225.2 us (+9.8 %)
    time     as before: end to end 301.5 us +0.0 %, host dispatch 50.7 us +0.0 %
    what     the same kernel, slower: triton_poi_fused__unsafe_view… (+20.0 us)
             triton_poi_fused__unsafe_view_gelu_mul_0  38.1 -> 58.1 us
    what     3 kernels unchanged (+0.0 %, +0.00 us)

same kernels, other launch configuration: 1   (--group configuration)
  c-config
    time     GPU time 205.1 us +0.0 %, end to end 301.5 us +0.0 %, host dispatch
             50.7 us +0.0 %
    what     Inductor's autotuner chose another launch configuration (+0.0 us)
             triton_poi_fused__unsafe_view_gelu_mul_0: XBLOCK 1024 -> 512,
             num_warps 4 -> 8
    what     3 kernels unchanged (+0.0 %, +0.00 us)
    refused  test_x failed

other kernels, or other counts: 1   (--group kernels)
  d-kernels
    time     GPU time 205.1 us +0.0 %, end to end 301.5 us +0.0 %, host dispatch
             50.7 us +0.0 %
    what     launches 4 -> 3
    what     1 kernel less: nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coo… (-53.0 us)
             nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT
    what     3 kernels unchanged (+0.0 %, +0.00 us)

new: 1   (--group new)
  e-new
    what     4 launches
    what     GPU time 205.1 us
    what     end to end 301.5 us
    what     host dispatch 50.7 us

vanished: 1   (--group vanished)
  f-gone
    what     the suite no longer declares it

not measured: 1
  g-left
    what     not selected in this run
"""
    )


def test_text_unchanged_file_offers_no_group() -> None:
    old = stored("a")
    shown = text(review(H200.device, [Candidate("a", "perf", old)], {"a": old}, {}))
    assert "    file     stays as it is" in shown
    assert "--group" not in shown


def test_text_long_evidence_is_summed_up() -> None:
    old, new = (
        stored("a", kernels=mlp_kernels()[:1] * launches, counts=counts(launches=launches)) for launches in (0, 30)
    )
    shown = text(review(H200.device, [Candidate("a", "perf", new)], {"a": old}, {}))
    assert "    what     30 new kernels: nvjet_sm90_tst_256x128_64x4_1x2_h_bz_co… (+1680.0" in shown


def test_markdown_is_the_text_as_code() -> None:
    assert fenced(text()) == f"```text\n{text()}```\n"


@pytest.mark.parametrize(("name", "fence"), [("a```b", "````"), ("`", "```"), ("`" * 9, "`" * 10)])
def test_markdown_fence_is_longer_than_any_backticks(name: str, fence: str) -> None:
    page = fenced(text(review(name, [], {}, {})))
    assert page.startswith(f"{fence}text\n{name}: 0 workloads\n")
    assert page.endswith(f"\n{fence}\n")
