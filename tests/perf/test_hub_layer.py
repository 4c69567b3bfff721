"""The hub layer, loaded by the real `kernels` library from kernel folders that the tests write: no network."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernelgauge.errors import WorkloadError, WorkloadUnavailable

REPOSITORY = "kernels-community/liger-kernels"
COMMIT = "c0ffee" * 6 + "c0ff"
GEGLU = """
from torch import nn

class LigerGEGLUMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        gate = nn.functional.gelu(self.gate_proj(x), approximate="tanh")
        return self.down_proj(gate * self.up_proj(x))
"""
FORWARD_ONLY = "from torch import nn\n\nclass LigerGEGLUMLP(nn.Module):\n    def forward(self, x):\n        return x\n"


@pytest.fixture
def load_layer(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "perf"))
    return importlib.import_module("hub_layer").load_liger_geglu_mlp


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


def write_kernel(folder: Path, source: str, variant: str = "torch-universal") -> None:
    """Write a kernel repository in the format of kernel-builder."""
    build = folder / "build" / variant
    build.mkdir(parents=True)
    metadata: dict[str, Any] = {"name": "liger-kernels", "version": 1, "license": "BSD-2-Clause", "python-depends": []}
    metadata |= {"id": f"_liger_kernels_{abs(hash(folder)):x}", "backend": {"type": "cpu"}}
    (build / "metadata.json").write_text(json.dumps(metadata))
    (build / "__init__.py").write_text("from . import layers\n\n__all__ = ['layers']\n")
    (build / "layers.py").write_text(source)


def test_offline_layer_is_the_geglu_mlp_of_branch_v1(
    load_layer: Any, hub: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WorkloadUnavailable, match="not available in the local cache"):
        load_layer(8, 24)
    repository = tmp_path / "cache" / "kernels--kernels-community--liger-kernels"
    write_kernel(repository / "snapshots" / COMMIT, GEGLU)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(COMMIT)
    layer, x = load_layer(8, 24), torch.randn(2, 5, 8)
    gate, up, down = (getattr(layer, f"{name}_proj").weight.T for name in ("gate", "up", "down"))
    torch.testing.assert_close(layer(x), (functional.gelu(x @ gate, approximate="tanh") * (x @ up)) @ down)


def test_layer_without_the_package_is_unavailable(load_layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernels", None)
    with pytest.raises(WorkloadUnavailable, match=r"pip install 'kernelgauge\[hub\]'"):
        load_layer(8, 24)


@pytest.mark.usefixtures("hub")
def test_layer_without_a_network_is_unavailable(load_layer: Any) -> None:
    with pytest.raises(WorkloadUnavailable) as caught:
        load_layer(8, 24)
    for text in ("ConnectError", f"hf download {REPOSITORY} --type kernel --revision v1", "HF_HUB_OFFLINE=1"):
        assert text in str(caught.value)
    assert f"LOCAL_KERNELS={REPOSITORY}=/path/to/folder" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "variant", "error", "message"),
    [
        (GEGLU, "torch-neuron", WorkloadUnavailable, "no kernel build for this machine"),
        ("LigerRMSNorm = object\n", "torch-universal", WorkloadError, r"no `layers\.LigerGEGLUMLP`"),
        (FORWARD_ONLY, "torch-universal", WorkloadError, r"has no constructor[\s\S]*version 1"),
        ("raise ConnectionError('a bug')\n", "torch-universal", ConnectionError, "a bug"),
    ],
    ids=["build", "layer", "constructor", "bug"],
)
@pytest.mark.usefixtures("hub")
def test_wrong_kernel_in_a_folder_is_an_error(
    load_layer: Any, tmp_path: Path, monkeypatch: Any, source: str, variant: str, error: type[Exception], message: str
) -> None:
    write_kernel(tmp_path / "kernel", source, variant)
    monkeypatch.setenv("LOCAL_KERNELS", f"some-org/other={tmp_path}:{REPOSITORY}={tmp_path / 'kernel'}")
    with pytest.raises(error, match=message) as caught:
        load_layer(8, 24)
    assert caught.type is error
