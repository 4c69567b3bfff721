"""The GPUs that this process may use, without torch: asking torch would start CUDA on one of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["VISIBLE", "digest", "digest_of", "visible_gpus"]

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> tuple[str, ...]:
    """What to set CUDA_VISIBLE_DEVICES to for each GPU that this process may use; empty without NVML and the variable.

    The caller's own names where the variable is set, up to the first that CUDA refuses; else the UUIDs of all, of the
    slices where a GPU is cut into some (MIG).
    """
    named = os.environ.get(VISIBLE)
    if named is None:
        with _nvml() as nvml:
            return tuple(_uuids(nvml)) if nvml else ()
    found: list[str] = []
    for name in (name.strip() for name in named.split(",")):
        if not name or name.startswith("-") or name in found:
            break  # so does CUDA: what stands behind an invalid name is not visible
        found.append(name)
    return tuple(found)


def digest(uuid: str) -> str:
    """Which GPU of its kind, for files that are shared: its UUID, with or without ``GPU-`` before it, not in clear."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    return hashlib.sha256(bare.encode()).hexdigest()[:8]


def digest_of(name: str) -> str | None:
    """The digest of a GPU that CUDA_VISIBLE_DEVICES names by number or by the beginning of its UUID; None: not known.

    Numbers are CUDA's, which are NVML's where all GPUs are of one model and none is cut into slices.
    """
    with _nvml() as nvml:
        uuids = list(_uuids(nvml)) if nvml else []
        alike = nvml is not None and _numbered_alike(nvml)
    if name.isdecimal() and not alike:
        return None
    if name.isdecimal():
        return digest(uuids[int(name)]) if int(name) < len(uuids) else None
    matching = [uuid for uuid in uuids if uuid.startswith(name)]
    return digest(matching[0]) if len(matching) == 1 else None


@contextmanager
def _nvml() -> Iterator[Any]:  # pynvml has no types
    """The module, initialised; None where there is no driver or no library."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        yield None
        return
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _uuids(nvml: Any) -> Iterator[str]:
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):  # one that has fallen off the bus
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            slices = list(_slices(nvml, gpu))
            yield from slices or [_text(nvml.nvmlDeviceGetUUID(gpu))]


def _numbered_alike(nvml: Any) -> bool:
    """CUDA puts the fastest GPU first unless CUDA_DEVICE_ORDER says PCI_BUS_ID; NVML goes by the bus."""
    try:
        gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        one_model = len({_text(nvml.nvmlDeviceGetName(gpu)) for gpu in gpus}) == 1
        return (by_bus or one_model) and not any(list(_slices(nvml, gpu)) for gpu in gpus)
    except nvml.NVMLError:  # one that has fallen off the bus: the others may have moved up
        return False


def _slices(nvml: Any, gpu: Any) -> Iterator[str]:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(gpu)
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if current else 0
    except nvml.NVMLError:  # a GPU without MIG says so by an error
        return
    for index in range(most):
        with suppress(nvml.NVMLError):  # a place that is free
            yield _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older versions give bytes
