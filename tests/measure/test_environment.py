"""The machine and the software, with an NVML that only exists here."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelgauge.measure import environment
from kernelgauge.measure.environment import cpu_name, software
from kernelgauge.measure.nvml import GpuSettings, gpu_settings

UUID = "8d2c2c9a-0000-1111-2222-333344445555"


class FakeNvml(ModuleType):
    """Two handles: `GPU-<uuid>` or `MIG-<uuid>`, as given. `failing`: names of calls that raise NVMLError."""

    class NVMLError(Exception):
        pass

    def __init__(self, known: str = f"GPU-{UUID}", failing: tuple[str, ...] = (), mig: int = 0) -> None:
        super().__init__("pynvml")
        self.known, self.failing, self.mig = known, failing, mig
        self.asked: list[str] = []
        self.open = 0

    def _may(self, call: str) -> None:
        if call in self.failing:
            raise self.NVMLError(call)

    def nvmlInit(self) -> None:
        self._may("nvmlInit")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._may("nvmlSystemGetDriverVersion")
        return "580.159.04"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        if uuid != self.known:
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        self._may("nvmlDeviceGetEnforcedPowerLimit")
        return 700_500

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        self._may("nvmlDeviceGetMigMode")
        return [self.mig, 1 - self.mig]  # current, and pending: after the next reset


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    def install(**how: Any) -> FakeNvml:
        fake = FakeNvml(**how)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return install


# -- the GPU --------------------------------------------------------------------------------------------------------


def test_a_gpu_is_found_by_its_uuid(nvml: Callable[..., FakeNvml]) -> None:
    fake = nvml()
    assert gpu_settings(UUID).driver == "580.159.04"
    assert fake.asked == [f"GPU-{UUID}"]


def test_milliwatts_become_watts(nvml: Callable[..., FakeNvml]) -> None:
    nvml()
    assert gpu_settings(UUID).power_limit_watts == 700.5


def test_a_slice_of_a_gpu_is_found_by_its_own_uuid(nvml: Callable[..., FakeNvml]) -> None:
    fake = nvml(known=f"MIG-{UUID}", mig=1)
    assert gpu_settings(UUID) == GpuSettings("580.159.04", 700.5, mig=True)
    assert fake.asked == [f"GPU-{UUID}", f"MIG-{UUID}"]


@pytest.mark.parametrize("mig", [0, 1])
def test_the_current_mig_mode_counts_and_not_the_pending_one(nvml: Callable[..., FakeNvml], mig: int) -> None:
    nvml(mig=mig)
    assert gpu_settings(UUID).mig is bool(mig)


def test_a_gpu_that_knows_no_mig_has_none(nvml: Callable[..., FakeNvml]) -> None:
    nvml(failing=("nvmlDeviceGetMigMode",))
    assert gpu_settings(UUID) == GpuSettings("580.159.04", 700.5, mig=False)


def test_a_gpu_without_a_power_limit_keeps_the_rest(nvml: Callable[..., FakeNvml]) -> None:
    nvml(failing=("nvmlDeviceGetEnforcedPowerLimit",))
    assert gpu_settings(UUID) == GpuSettings("580.159.04", None, mig=False)


def test_without_the_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # what the import system raises ImportError for
    assert gpu_settings(UUID) == GpuSettings()


def test_without_a_driver_nothing_is_known(nvml: Callable[..., FakeNvml]) -> None:
    fake = nvml(failing=("nvmlInit",))
    assert gpu_settings(UUID) == GpuSettings(None, None, None)
    assert fake.open == 0


def test_a_driver_that_fails_later_is_no_crash(nvml: Callable[..., FakeNvml]) -> None:
    nvml(failing=("nvmlSystemGetDriverVersion",))
    assert gpu_settings(UUID) == GpuSettings()


@pytest.mark.parametrize("failing", [(), ("nvmlSystemGetDriverVersion",), ("nvmlDeviceGetMigMode",)])
def test_nvml_is_closed_again(nvml: Callable[..., FakeNvml], failing: tuple[str, ...]) -> None:
    fake = nvml(failing=failing)
    gpu_settings(UUID)
    assert fake.open == 0


def test_an_unknown_gpu_has_no_power_limit(nvml: Callable[..., FakeNvml]) -> None:
    nvml(known="GPU-another")
    settings = gpu_settings(UUID)
    assert settings.power_limit_watts is None
    assert settings.mig is None


# -- the software ---------------------------------------------------------------------------------------------------


def test_versions_are_plain_strings() -> None:
    versions = software()
    assert versions["torch"] == torch.__version__
    assert type(versions["torch"]) is str
    assert set(versions) == {"torch", "triton", "liger_kernel", "python", "fp32_matmul"}


def test_a_patch_release_of_python_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "12", "7"))
    assert software()["python"] == "3.12"


def test_what_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(distribution: str) -> str:
        raise environment.PackageNotFoundError(distribution)

    monkeypatch.setattr(environment, "version", missing)
    assert (software()["triton"], software()["liger_kernel"]) == (None, None)


# -- the processor --------------------------------------------------------------------------------------------------


def test_the_processor_has_the_name_that_linux_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz: rev 2\nmodel name\t: another\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert cpu_name() == "Some CPU @ 2.00GHz: rev 2"


def test_elsewhere_the_processor_has_the_name_that_python_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", unreadable)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert cpu_name() == "arm64"
    monkeypatch.setattr(platform, "machine", lambda: "")
    assert cpu_name() == "unknown"


def test_an_unknown_gpu_still_has_a_driver(nvml) -> None:
    nvml(known="GPU-another")
    assert gpu_settings(UUID) == GpuSettings("580.159.04", None, None)


def test_a_slice_that_does_not_tell_its_mode_is_still_a_slice(nvml) -> None:
    nvml(known=f"MIG-{UUID}", failing=("nvmlDeviceGetMigMode", "nvmlDeviceGetEnforcedPowerLimit"))
    assert gpu_settings(UUID).mig is True
