"""The adaptor of Liger's benchmarks finds what an imitation of one times."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelgauge import WorkloadError
from kernelgauge.measure.device import Device
from tests.measure.conftest import measured

ADAPTORS = Path(__file__).parents[1] / "examples" / "adaptors" / "adaptors.py"
liger = runpy.run_path(str(ADAPTORS))["liger"]
SCRIPT = """
from sizes import SingleBenchmarkRunInput
import torch

def setup_scale(input: SingleBenchmarkRunInput):
    cfg = input.extra_benchmark_config
    rows = input.x if isinstance(input.x, int) else cfg["rows"]
    x = torch.randn(rows, cfg["hidden_size"], requires_grad=True)
    layer = torch.nn.Linear(cfg["hidden_size"], cfg["hidden_size"])
    return x, layer if input.kernel_provider == "liger" else torch.nn.Sequential(layer, torch.nn.ReLU())
"""


@pytest.mark.parametrize(
    ("x", "name", "rows"),
    [(64, "scale-liger-train-64", 64), ("llama", "scale-llama-liger-train", 8)],
)
def test_liger_script_gives_layer_and_input(
    tmp_path: Path, monkeypatch: Any, x: Any, name: str, rows: int
) -> None:
    (tmp_path / "benchmark_scale.py").write_text(SCRIPT)
    (tmp_path / "sizes.py").write_text(
        "from types import SimpleNamespace as SingleBenchmarkRunInput"
    )
    monkeypatch.delitem(sys.modules, "sizes", raising=False)
    config = {"hidden_size": 16, "rows": 8}
    workload = liger(
        tmp_path / "benchmark_scale.py", x, provider="liger", config=config, pass_="train"
    )
    assert workload.id == name
    assert isinstance(workload.build(), torch.nn.Linear)
    (value,) = workload.inputs()
    assert (value.shape, value.requires_grad) == ((rows, 16), True)
    assert measured(Device(), workload).run.kernels


def test_liger_script_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no such benchmark"):
        liger(tmp_path / "none.py", 64, provider="liger", config={})
