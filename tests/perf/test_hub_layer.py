"""The suite's modules, and the hub layer: real `kernels`, with folders that the tests write, and no network."""

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelgauge.errors import WorkloadUnavailable

COMMIT = "c0ffee" * 6 + "c0ff"
GEGLU = """
from modules import GegluMlp

class LigerGEGLUMLP(GegluMlp):
    def __init__(self, config):
        super().__init__(config.hidden_size, config.intermediate_size)
"""


@pytest.fixture(autouse=True)
def suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "perf"))


def built(layer: str = "hub_layer.load_liger_geglu_mlp") -> Any:
    return pkgutil.resolve_name(layer)(8, 24)


@pytest.mark.parametrize(
    ("missing", "layer", "extra"),
    [
        ("liger_kernel", "modules.liger_geglu_mlp", "suite"),
        ("triton", "modules.liger_geglu_mlp", "suite"),
        ("kernels", "hub_layer.load_liger_geglu_mlp", "hub"),
    ],
)
def test_layer_without_its_package_is_unavailable(monkeypatch: Any, missing: str, layer: str, extra: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("liger_kernel", missing)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(WorkloadUnavailable) as raised:
        built(layer)
    assert raised.value.next_command == f"pip install 'kernelgauge[{extra}]'"


def test_modules_compute_a_sum_and_a_gated_mlp() -> None:
    modules, x = importlib.import_module("modules"), torch.randn(2, 5, 4)
    added, mlp = modules.MatmulAdd(4, 3), modules.GegluMlp(4, 6)
    torch.testing.assert_close(added(x), x @ added.w + added.b)
    gate, up, down = (getattr(mlp, f"{name}_proj").weight for name in ("gate", "up", "down"))
    torch.testing.assert_close(mlp(x), (F.gelu(x @ gate.T, approximate="tanh") * (x @ up.T)) @ down.T)
    sys.modules.pop("colorsys", None)
    with modules.without_import("colorsys"), pytest.raises(ImportError):
        importlib.import_module("colorsys")
    assert importlib.import_module("colorsys")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """huggingface_hub with an empty cache, at an address where nothing listens; kernels are forgotten afterwards."""
    pytest.importorskip("kernels")
    hub: Any = importlib.import_module("huggingface_hub")
    for name in ("LOCAL_KERNELS", "KERNELS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    constants = {"HF_HUB_OFFLINE": False, "HF_HUB_CACHE": str(tmp_path / "cache"), "ENDPOINT": "http://127.0.0.1:1"}
    for name, value in constants.items():
        monkeypatch.setattr(hub.constants, name, value)
    modules_before = set(sys.modules)
    hub.close_session()
    yield hub
    hub.close_session()
    for name in [name for name in sys.modules if name.startswith("_liger_kernels_") and name not in modules_before]:
        del sys.modules[name]


def test_layer_is_that_of_branch_v1_or_unavailable(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkloadUnavailable, match=r"ConnectError[\s\S]*LOCAL_KERNELS=[\s\S]*hf download .* v1"):
        built()
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WorkloadUnavailable, match="not available in the local cache"):
        built()
    repository = tmp_path / "cache" / "kernels--kernels-community--liger-kernels"
    build = repository / "snapshots" / COMMIT / "build" / "torch-universal"  # in the format of kernel-builder
    build.mkdir(parents=True)
    metadata: dict[str, Any] = {"name": "liger-kernels", "version": 1, "license": "BSD-2-Clause", "python-depends": []}
    metadata |= {"id": "_liger_kernels_c0ffee", "backend": {"type": "cpu"}}
    (build / "metadata.json").write_text(json.dumps(metadata))
    (build / "__init__.py").write_text("from . import layers\n\n__all__ = ['layers']\n")
    (build / "layers.py").write_text(GEGLU)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(COMMIT)
    assert built().gate_proj.weight.shape == (24, 8)
