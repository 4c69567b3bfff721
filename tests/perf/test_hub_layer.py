"""The suite's modules, and the layers whose packages are missing."""

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelgauge.errors import WorkloadUnavailable


@pytest.fixture(autouse=True)
def suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "perf"))


@pytest.mark.parametrize(
    ("missing", "layer", "extra"),
    [
        ("liger_kernel", "modules.liger_geglu_mlp", "suite"),
        ("triton", "modules.liger_geglu_mlp", "suite"),
        ("kernels", "hub_layer.load_liger_geglu_mlp", "hub"),
    ],
)
def test_layer_without_its_package_is_unavailable(
    monkeypatch: Any, missing: str, layer: str, extra: str
) -> None:
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("liger_kernel", missing)
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(WorkloadUnavailable) as raised:
        pkgutil.resolve_name(layer)(8, 24)
    assert raised.value.next_command == f"pip install 'kernelgauge[{extra}]'"


def test_modules_compute_a_sum_and_a_gated_mlp() -> None:
    modules, x = importlib.import_module("modules"), torch.randn(2, 5, 4)
    added, mlp = modules.MatmulAdd(4, 3), modules.GegluMlp(4, 6)
    torch.testing.assert_close(added(x), x @ added.w + added.b)
    gate, up, down = (getattr(mlp, f"{name}_proj").weight for name in ("gate", "up", "down"))
    torch.testing.assert_close(
        mlp(x), (F.gelu(x @ gate.T, approximate="tanh") * (x @ up.T)) @ down.T
    )
    sys.modules.pop("colorsys", None)
    with modules.without_import("colorsys"), pytest.raises(ImportError):
        importlib.import_module("colorsys")
    assert importlib.import_module("colorsys")
