"""The GeGLU MLP layer of Liger, fetched from the Hugging Face Hub with the package `kernels`.

The kernel repository is https://huggingface.co/kernels-community/liger-kernels. Its version 1
exposes the layer as `layers.LigerGEGLUMLP(config)`. From version 2 on the same class has no
constructor (it only replaces the forward of an existing layer), so the version is pinned.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

from torch import nn

from kernelgauge import WorkloadError, WorkloadUnavailable

__all__ = ["load_liger_geglu_mlp"]

REPOSITORY = "kernels-community/liger-kernels"
VERSION = 1
LAYER = "LigerGEGLUMLP"

# huggingface_hub sends its requests without a timeout, so a hub that never answers would hang a
# session for good.
HUB_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class _Config:
    """What the layer reads of a transformers configuration."""

    hidden_size: int
    intermediate_size: int
    hidden_act: str = "gelu_pytorch_tanh"


def load_liger_geglu_mlp(dim: int, hidden: int) -> nn.Module:
    """Build the hub's `LigerGEGLUMLP`: `down_proj(gelu_tanh(gate_proj(x)) * up_proj(x))`, without
    biases.

    Maps [..., dim] to [..., dim] through an intermediate of [..., hidden]. Raises
    `WorkloadUnavailable` when `kernels` is not installed or the kernel cannot be looked up from
    here, and `WorkloadError` when the kernel is there but is not what is expected. An error of the
    kernel's own code is raised as it is.
    """
    layer_class = _layer_class(_load_kernel())
    layer: nn.Module = layer_class(_Config(hidden_size=dim, intermediate_size=hidden))
    return layer


def _load_kernel() -> Any:
    """Look the kernel up first, import it afterwards: only the second step runs code of the kernel."""
    try:
        kernels: Any = importlib.import_module("kernels")
        hub: Any = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise WorkloadUnavailable(
            "the hub's Liger layer needs the package `kernels`, which is not installed",
            got=str(error),
            next_command="pip install 'kernelgauge[hub]'",
        ) from error

    override = _local_override()
    if override is None:
        _download(kernels, hub)
    elif not kernels.has_kernel(REPOSITORY, version=VERSION):
        raise _unavailable(
            "no kernel build for this machine in the folder that LOCAL_KERNELS names", got=override
        )
    return kernels.get_kernel(REPOSITORY, version=VERSION)


def _download(kernels: Any, hub: Any) -> None:
    """Bring the kernel into the local cache (nothing to do when it is there); import none of it."""
    offline: bool = hub.constants.HF_HUB_OFFLINE
    try:
        if not offline:
            # The one request that takes a timeout and is not retried: is the hub there, and does it
            # have this version?
            hub.HfApi().kernel_info(REPOSITORY, revision=f"v{VERSION}", timeout=HUB_TIMEOUT_S)
        kernels.install_kernel(REPOSITORY, version=VERSION, local_files_only=offline)
    # A transport error of the HTTP client is no OSError, and which client it is (httpx, httpx2)
    # depends on the version of huggingface_hub. `kernels` says ValueError for a version, and
    # FileNotFoundError for a build, that is not there.
    except (OSError, ValueError, hub.errors.HTTPError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise _unavailable(
            "the Liger layer cannot be fetched from the Hugging Face Hub", got=reason
        ) from error


def _local_override() -> str | None:
    """Return the entry of this repository in LOCAL_KERNELS, where `kernels` takes a folder in place
    of the hub.
    """
    entries = os.environ.get("LOCAL_KERNELS", "").split(":")
    return next((entry for entry in entries if entry.startswith(f"{REPOSITORY}=")), None)


def _unavailable(what: str, *, got: str) -> WorkloadUnavailable:
    # What `get_kernel` caches online is found by commit, not by version: only a download of the
    # branch makes the version loadable offline.
    return WorkloadUnavailable(
        what,
        where=f"{REPOSITORY}, version {VERSION}",
        got=got,
        expected=f"the hub within {HUB_TIMEOUT_S:g} s; or HF_HUB_OFFLINE=1 after the command below, run once online; "
        f"or a kernel folder: LOCAL_KERNELS={REPOSITORY}=/path/to/folder",
        next_command=f"hf download {REPOSITORY} --type kernel --revision v{VERSION}",
    )


def _layer_class(kernel: Any) -> Any:
    layer_class = getattr(getattr(kernel, "layers", None), LAYER, None)
    if layer_class is None:
        problem = f"the kernel has no `layers.{LAYER}`"
    elif layer_class.__init__ is nn.Module.__init__:
        problem = f"the kernel's `{LAYER}` has no constructor"
    else:
        return layer_class
    raise WorkloadError(
        problem,
        where=str(getattr(kernel, "__file__", REPOSITORY)),
        got="a kernel of another version, or another kernel",
        expected=f"version {VERSION} of {REPOSITORY}, whose `layers.{LAYER}(config)` builds the layer",
    )
