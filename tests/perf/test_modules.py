"""The suite's modules: what they compute, and what they say where a package is missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from kernelgauge.errors import WorkloadUnavailable


@pytest.fixture(scope="module")
def modules() -> ModuleType:
    path = Path(__file__).parents[2] / "perf" / "modules.py"
    spec = importlib.util.spec_from_file_location("suite_modules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("missing", ["liger_kernel", "triton"])
def test_layer_without_liger_or_triton_is_unavailable(
    modules: ModuleType, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("liger_kernel", missing)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(WorkloadUnavailable) as raised:
        modules.liger_geglu_mlp(8, 16)
    assert raised.value.what == "liger-kernel cannot be imported"
    assert raised.value.next_command == "pip install 'kernelgauge[suite]'"


def test_blocked_import_works_again_after(modules: ModuleType) -> None:
    sys.modules.pop("colorsys", None)
    with modules.without_import("colorsys"), pytest.raises(ImportError):
        importlib.import_module("colorsys")
    assert importlib.import_module("colorsys")


def test_matmul_add_is_a_product_and_a_sum(modules: ModuleType) -> None:
    module, x = modules.MatmulAdd(4, 3), torch.randn(5, 4)
    torch.testing.assert_close(module(x), x @ module.w + module.b)


def test_geglu_mlp_gates_by_the_tanh_gelu(modules: ModuleType) -> None:
    module, x = modules.GegluMlp(4, 6), torch.randn(2, 5, 4)
    gate, up, down = (getattr(module, f"{name}_proj").weight for name in ("gate", "up", "down"))
    torch.testing.assert_close(module(x), (F.gelu(x @ gate.T, approximate="tanh") * (x @ up.T)) @ down.T)
