"""The gallery, for real, on the CPU."""

from pathlib import Path

import pytest


@pytest.mark.timeout(1300)
def test_gallery_runs_on_the_cpu(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tox run -e perf` runs the suite in perf/."""
    monkeypatch.delenv("CI", raising=False)
    here = pytester.path
    settings = {"baselines": here / "baselines", "reports": here / "reports", "replicates": 3}
    own = [
        part for name, value in settings.items() for part in ("-o", f"kernelgauge_{name}={value}")
    ]
    chosen = ("-k", "(rms_norm or rope) and not targets", "-m", "not timing")
    gallery = Path(__file__).parents[1] / "examples" / "gallery"
    done = pytester.runpytest_inprocess(gallery, "--perf-device=cpu", *chosen, *own)
    assert done.ret == 0
