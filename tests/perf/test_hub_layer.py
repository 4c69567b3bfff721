"""The hub layer, loaded by the real `kernels` library from kernel folders that the tests write: no network."""

from __future__ import annotations

import importlib
import importlib.util
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from kernelgauge.errors import WorkloadError, WorkloadUnavailable

REPOSITORY = "kernels-community/liger-kernels"
COMMIT = "c0ffee" * 6 + "c0ff"

GEGLU_SOURCE = """
import torch
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
FORWARD_ONLY_SOURCE = """
from torch import nn

class LigerGEGLUMLP(nn.Module):
    def forward(self, x):
        return x
"""

LoadLayer = Callable[[int, int], nn.Module]


@pytest.fixture
def load_layer() -> LoadLayer:
    path = Path(__file__).parents[2] / "perf" / "hub_layer.py"
    spec = importlib.util.spec_from_file_location("hub_layer_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its own module up while it is made.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    load: LoadLayer = module.load_liger_geglu_mlp
    return load


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """huggingface_hub with an empty cache, at an address where nothing listens; kernels are forgotten afterwards."""
    pytest.importorskip("kernels")
    hub: Any = importlib.import_module("huggingface_hub")
    monkeypatch.delenv("LOCAL_KERNELS", raising=False)
    monkeypatch.delenv("KERNELS_CACHE", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    modules_before = set(sys.modules)
    hub.close_session()
    yield hub
    hub.close_session()
    for name in [name for name in sys.modules if name.startswith("_liger_kernels_") and name not in modules_before]:
        del sys.modules[name]


@pytest.fixture
def silent_hub(hub: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


def write_kernel(folder: Path, layers_source: str, variant: str = "torch-universal") -> Path:
    """Write a kernel repository in the format of kernel-builder: build/<variant>/{metadata.json,__init__.py,...}."""
    build = folder / "build" / variant
    build.mkdir(parents=True)
    metadata = {
        "name": "liger-kernels",
        "id": f"_liger_kernels_{abs(hash(folder)):x}",
        "version": 1,
        "license": "BSD-2-Clause",
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
    (build / "metadata.json").write_text(json.dumps(metadata))
    (build / "__init__.py").write_text("from . import layers\n\n__all__ = ['layers']\n")
    (build / "layers.py").write_text(layers_source)
    return folder


def use_instead_of_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", f"some-org/other={folder.parent}:{REPOSITORY}={folder}")


def test_a_kernel_folder_gives_a_layer_that_computes_the_geglu_mlp(
    load_layer: LoadLayer, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_instead_of_the_hub(write_kernel(tmp_path / "kernel", GEGLU_SOURCE), monkeypatch)

    layer: Any = load_layer(8, 24)

    x = torch.randn(2, 5, 8)
    gate = functional.gelu(functional.linear(x, layer.gate_proj.weight), approximate="tanh")
    expected = functional.linear(gate * functional.linear(x, layer.up_proj.weight), layer.down_proj.weight)
    torch.testing.assert_close(layer(x), expected)
    assert {name: tuple(weight.shape) for name, weight in layer.named_parameters()} == {
        "gate_proj.weight": (24, 8),
        "up_proj.weight": (24, 8),
        "down_proj.weight": (8, 24),
    }


def test_offline_mode_takes_the_branch_v1_from_the_cache(
    load_layer: LoadLayer, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "cache" / "kernels--kernels-community--liger-kernels"
    write_kernel(repository / "snapshots" / COMMIT, GEGLU_SOURCE)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(COMMIT)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)

    assert load_layer(8, 24)(torch.zeros(3, 8)).shape == (3, 8)


def test_offline_mode_with_an_empty_cache_is_unavailable(
    load_layer: LoadLayer, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(WorkloadUnavailable, match="not available in the local cache"):
        load_layer(8, 24)


def test_layer_without_the_package_is_unavailable(load_layer: LoadLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernels", None)

    with pytest.raises(WorkloadUnavailable, match=r"pip install 'kernelgauge\[hub\]'"):
        load_layer(8, 24)


def test_layer_without_a_network_is_unavailable_at_once(load_layer: LoadLayer, hub: Any) -> None:
    started_s = time.monotonic()
    with pytest.raises(WorkloadUnavailable) as caught:
        load_layer(8, 24)

    assert time.monotonic() - started_s < 3
    message = str(caught.value)
    assert "ConnectError" in message
    assert f"hf download {REPOSITORY} --type kernel --revision v1" in message
    assert "HF_HUB_OFFLINE=1" in message
    assert f"LOCAL_KERNELS={REPOSITORY}=/path/to/folder" in message


def test_a_hub_that_never_answers_is_given_up_within_seconds(load_layer: LoadLayer, silent_hub: None) -> None:
    started_s = time.monotonic()
    with pytest.raises(WorkloadUnavailable, match="ReadTimeout"):
        load_layer(8, 24)

    assert time.monotonic() - started_s < 6


def test_a_kernel_folder_without_a_build_for_this_machine_is_unavailable(
    load_layer: LoadLayer, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_instead_of_the_hub(write_kernel(tmp_path / "kernel", GEGLU_SOURCE, variant="torch-neuron"), monkeypatch)

    with pytest.raises(WorkloadUnavailable, match="no kernel build for this machine") as caught:
        load_layer(8, 24)

    assert str(tmp_path / "kernel") in str(caught.value)


def test_kernel_without_the_layer_names_layer_and_file(
    load_layer: LoadLayer, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_instead_of_the_hub(write_kernel(tmp_path / "kernel", "LigerRMSNorm = object\n"), monkeypatch)

    with pytest.raises(WorkloadError, match=r"no `layers\.LigerGEGLUMLP`") as caught:
        load_layer(8, 24)

    assert str(tmp_path / "kernel") in str(caught.value)


def test_layer_without_constructor_names_the_version(
    load_layer: LoadLayer, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_instead_of_the_hub(write_kernel(tmp_path / "kernel", FORWARD_ONLY_SOURCE), monkeypatch)

    with pytest.raises(WorkloadError, match=r"has no constructor[\s\S]*version 1"):
        load_layer(8, 24)


@pytest.mark.parametrize("error", ["ValueError", "FileNotFoundError", "ModuleNotFoundError", "ConnectionError"])
def test_a_bug_in_the_code_of_the_kernel_is_raised_as_it_is(
    load_layer: LoadLayer, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    use_instead_of_the_hub(write_kernel(tmp_path / "kernel", f"raise {error}('bug in the kernel')\n"), monkeypatch)

    with pytest.raises(Exception, match="bug in the kernel") as caught:
        load_layer(8, 24)

    assert caught.type.__name__ == error


def test_a_bug_in_a_kernel_from_the_cache_is_raised_as_it_is(
    load_layer: LoadLayer, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "cache" / "kernels--kernels-community--liger-kernels"
    write_kernel(repository / "snapshots" / COMMIT, "raise FileNotFoundError('bug in the kernel')\n")
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(COMMIT)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(FileNotFoundError, match="bug in the kernel"):
        load_layer(8, 24)
