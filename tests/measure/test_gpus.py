"""Which GPUs a process may use: from the caller's variable, else from NVML."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kernelgauge.measure.nvml import VISIBLE, digest, digest_of, visible_gpus

UUIDS = ["GPU-0f9bcc5d-e367", "GPU-0f61ecf9-10f2", "GPU-bf353cdb-676b"]


class NvmlError(Exception):
    pass


class FakeNvml(SimpleNamespace):
    """As much of pynvml as is asked: GPUs by their UUIDs, a GPU's slices, and whether there is a driver."""

    NVMLError = NvmlError

    def __init__(self, gpus: list[str], slices: dict[str, list[str]] | None = None, *, driver: bool = True) -> None:
        super().__init__(gpus=gpus, slices=slices or {}, driver=driver, open=0, names={})

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NvmlError("driver not loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if self.gpus[index] == "lost":
            raise NvmlError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetName(self, handle: str) -> str:
        return self.names.get(handle, "NVIDIA H200")

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:
        if handle not in self.slices:
            raise NvmlError("not supported")
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index >= len(self.slices[handle]):
            raise NvmlError("not found")
        return self.slices[handle][index]


def use(monkeypatch: pytest.MonkeyPatch, nvml: Any, visible: str | None = None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv(VISIBLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)


def test_all_are_visible_where_nobody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(UUIDS)
    use(monkeypatch, nvml)
    assert visible_gpus() == tuple(UUIDS)
    assert nvml.open == 0  # NVML is left as it was


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("2,0", ("2", "0")),
        (" 1 , 0 ", ("1", "0")),
        ("GPU-0f9b", ("GPU-0f9b",)),
        ("0,-1,1", ("0",)),
        ("0,,1", ("0",)),
        ("0,0", ("0",)),
        ("", ()),
        ("-1", ()),
    ],
)
def test_the_callers_choice_counts_as_cuda_reads_it(
    monkeypatch: pytest.MonkeyPatch, visible: str, found: tuple[str, ...]
) -> None:
    use(monkeypatch, FakeNvml(UUIDS), visible)
    assert visible_gpus() == found


def test_slices_stand_for_the_gpu_that_is_cut_into_them(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml(UUIDS[:2], {UUIDS[1]: ["MIG-a", "MIG-b"]}))
    assert visible_gpus() == (UUIDS[0], "MIG-a", "MIG-b")


def test_a_gpu_that_fell_off_the_bus_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml([UUIDS[0], "lost", UUIDS[2]]))
    assert visible_gpus() == (UUIDS[0], UUIDS[2])


@pytest.mark.parametrize("nvml", [None, FakeNvml(UUIDS, driver=False)], ids=["no module", "no driver"])
def test_without_nvml_nothing_is_known(monkeypatch: pytest.MonkeyPatch, nvml: Any) -> None:
    use(monkeypatch, nvml)
    assert visible_gpus() == ()
    assert digest_of("0") is None


def test_a_number_and_a_uuid_are_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml(UUIDS))
    assert digest_of("1") == digest_of(UUIDS[1]) == digest_of("GPU-0f61") == digest(UUIDS[1])


def test_torch_leaves_out_the_prefix_and_means_the_same_gpu() -> None:
    assert digest("GPU-0f9bcc5d") == digest("0f9bcc5d") == digest("MIG-0f9bcc5d")


@pytest.mark.parametrize("name", ["3", "GPU-0f", "GPU-nobody"], ids=["no such number", "two begin so", "none"])
def test_what_names_no_single_gpu_is_not_guessed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    use(monkeypatch, FakeNvml(UUIDS))
    assert digest_of(name) is None


def test_a_number_is_not_guessed_where_cuda_may_count_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(UUIDS)
    nvml.names[UUIDS[2]] = "NVIDIA L4"
    use(monkeypatch, nvml)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert digest_of("1") is None
    assert digest_of(UUIDS[1]) == digest(UUIDS[1])
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert digest_of("1") == digest(UUIDS[1])


def test_a_number_is_not_guessed_beside_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, FakeNvml(UUIDS[:2], {UUIDS[0]: ["MIG-a", "MIG-b"]}))
    assert digest_of("1") is None
    assert digest_of("MIG-b") == digest("MIG-b")
