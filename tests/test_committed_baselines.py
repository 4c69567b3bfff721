"""The baselines in this repository can be read, and belong where they lie."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelgauge.judge.baseline import decode_baseline, encode_baseline
from kernelgauge.results.files import slug

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "baselines").glob("*/*.json"))


def test_baselines_of_a_real_gpu_are_committed() -> None:
    assert {path.parent.name for path in FILES} >= {"nvidia-h200", "nvidia-h100-80gb-hbm3"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_committed_baseline_is_whole_and_in_its_folder(path: Path) -> None:
    content = path.read_bytes()
    baseline = decode_baseline(content, where=str(path), workload=path.stem)
    assert slug(baseline.fingerprint.device) == path.parent.name
    assert baseline.suite in ("perf", "examples/gallery")
    # Byte for byte what would be written, but for fields that the fingerprint got later: no edit by hand.
    later = rb',\n    "(cudnn|fp32_matmul|cudnn_tf32|deterministic)": null'
    assert re.sub(later, b"", encode_baseline(baseline)) == re.sub(later, b"", content)
