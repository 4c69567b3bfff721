"""The article's figures: each on a workload that has what it is of, and with the claim that it belongs to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders import recorded, recorded_events, run
from tests.test_results import results, workload

from kernelgauge.report.published import figure_tables
from kernelgauge.results import Published
from kernelgauge.trace import KernelRecord, identity_of

ROOT = Path(__file__).parents[2]
A100 = "NVIDIA A100-SXM4-80GB"
# The suite is no package: pytest puts its folder on the path of those who run it.
ASK = """
import msgspec, sys
from workloads import WORKLOADS
found = [
    {"id": w.id, "matrix": w.matrix, "published": w.published, "kinds": [e.kinds for e in w.expectations if e.kinds and e.arch == "gpu"]}
    for w in WORKLOADS if w.published
]
sys.stdout.buffer.write(msgspec.json.encode(found))
"""


@pytest.fixture(scope="module")
def declared() -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT / "perf", capture_output=True, check=True, timeout=120)
    found: list[dict[str, Any]] = msgspec.json.decode(done.stdout)
    return [each | {"published": msgspec.convert(each["published"], list[Published])} for each in found]


def test_figures_stand_on_the_default_workloads_alone_which_are_those_of_the_article(
    declared: list[dict[str, Any]],
) -> None:
    assert [each["id"] for each in declared] == [
        "linear-eager-bf16-1024x32x64",
        "linear-compiled-bf16-1024x32x64",
        *(f"mlp-{variant}-bf16-64x128x768x3072" for variant in ("eager", "compiled", "liger", "liger-hub")),
    ]
    assert {each["matrix"] for each in declared} == {"default"}


def test_every_figure_is_of_a_kernel_that_its_workload_runs_on_any_gpu(declared: list[dict[str, Any]]) -> None:
    for each in declared:
        (kinds,) = each["kinds"]
        for one in each["published"]:
            assert one.kind is None or one.place < kinds.count(one.kind)


def test_the_counts_of_the_article_are_those_that_the_suite_asserts(declared: list[dict[str, Any]]) -> None:
    for each in declared:
        (counted,) = [one.value for one in each["published"] if one.unit == "launches"]
        assert counted == len(each["kinds"][0])


def test_every_figure_names_its_machine_its_source_and_a_claim_of_the_documentation(
    declared: list[dict[str, Any]],
) -> None:
    claims = (ROOT / "docs" / "claims.md").read_text()
    for one in (one for each in declared for one in each["published"]):
        assert (one.device, one.url) == (A100, "https://huggingface.co/blog/torch-mlp-fusion")
        assert one.url in claims
        assert f"| {one.claim} " in claims


# Which kernels of a call, in launch order, the article tells the times of.
TOLD = {"linear-eager": [], "linear-compiled": [], "mlp-eager": [0, 1, 4], "mlp-compiled": [2], "mlp-liger": [2]}
STEPS = 3


@pytest.mark.parametrize("name", TOLD)
def test_every_figure_finds_its_kernel_in_the_traces_of_an_h200(declared: list[dict[str, Any]], name: str) -> None:
    (published,) = [each["published"] for each in declared if each["id"].startswith(f"{name}-bf16")]
    launches = recorded(name).steps()[-1].launches
    kernels = tuple(KernelRecord(identity_of(launch), launch.record.duration_us) for launch in launches)
    (table,) = figure_tables(results(workload(run=run(kernels=kernels), published=tuple(published))))
    rows = [event for event in recorded_events(name) if event["cat"] == "kernel"]  # as the file has them
    of_one_call = rows[-len(rows) // STEPS :]
    assert [figure.now for figure in table.figures] == [
        str(len(of_one_call)),
        *(f"{of_one_call[place]['dur']:.1f} us" for place in TOLD[name]),
    ]
