"""Work of the host beside a GPU is found without a clock, with its function and line, whatever the
host.
"""

import pytest
import torch

from tests.plugin.inner_project import text_of
from tests.plugin.test_host_work import WORK, require_causes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
PLUGIN = ("-q", "-p", "kernelgauge.plugin", "--perf-device=cuda")


def test_host_work_beside_a_gpu_is_found(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_host=WORK)
    assert "12 written" in text_of(pytester.runpytest_subprocess(*PLUGIN, "--perf-update"))
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    assert "12 passed" in text_of(pytester.runpytest_subprocess(*PLUGIN, "-m", "not timing"))
    monkeypatch.setenv("FAULT", "1")
    require_causes(text_of(pytester.runpytest_subprocess(*PLUGIN, "-m", "not timing")))
