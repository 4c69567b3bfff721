"""That a flushed cache is cold is shown, by three reads that take as long as a test tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernelgauge import Workload
from kernelgauge.errors import MeasurementError, WorkloadError
from kernelgauge.measure import cold, runner
from kernelgauge.measure.cold import require_cold_cache
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.runner import Measured, Result
from tests.measure.conftest import Fake

WARM, COLD = 13.0, 16.2  # of an H200, in microseconds
KIB = 1 << 10


@pytest.fixture
def prove(monkeypatch: pytest.MonkeyPatch, cpu: CpuDevice) -> Callable[..., None]:
    def run(flushed_us: float, *, warm_us: float = WARM, cold_us: float = COLD) -> None:
        left = [warm_us, flushed_us, cold_us]
        monkeypatch.setattr(cold, "_read_us", lambda *_, **__: left.pop(0))
        require_cold_cache(cpu, 64 * KIB)
        assert left == []

    return run


@pytest.mark.parametrize("flushed_us", [COLD, COLD + 1, WARM + 0.81 * (COLD - WARM)])
def test_what_takes_as_long_as_from_memory_is_cold(prove: Callable[..., None], flushed_us: float) -> None:
    prove(flushed_us)


@pytest.mark.parametrize("flushed_us", [WARM, WARM + 0.5 * (COLD - WARM), WARM + 0.79 * (COLD - WARM)])
def test_what_is_faster_than_that_is_warm_and_an_error_with_all_three_times(
    prove: Callable[..., None], flushed_us: float
) -> None:
    with pytest.raises(MeasurementError, match="not cold") as raised:
        prove(flushed_us)
    assert f"{flushed_us:.2f} us" in (raised.value.got or "")
    assert "16.20 us" in (raised.value.expected or "")
    assert "13.00" in (raised.value.expected or "")


def test_a_cache_that_is_no_faster_than_the_memory_proves_nothing_and_spoils_nothing(
    prove: Callable[..., None],
) -> None:
    prove(13.0, warm_us=13.0, cold_us=13.5)


# -- the reads ------------------------------------------------------------------------------------------------------


def test_the_reads_are_of_what_was_just_read_of_what_was_flushed_and_of_what_was_never_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Diary(Fake):
        def flush_cache(self) -> None:
            entries.append("flush")

    entries: list[object] = []
    real = torch.Tensor.amax

    def amax(tensor: torch.Tensor) -> torch.Tensor:
        entries.append(tensor.data_ptr())
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, "amax", amax)
    monkeypatch.setattr(cold, "_COLD_SHARE", -1e9)  # the times of a CPU are not this test's subject
    require_cold_cache(Diary(), 64 * KIB)
    calls = 21  # ten iterations, ten to warm up, one to wait
    warm, flushed, never = entries[: 2 * calls], entries[2 * calls : 5 * calls], entries[5 * calls :]
    (probe,) = set(warm)
    assert flushed == [probe, "flush", probe] * calls
    assert len(never) == calls
    assert len(set(never)) == 10
    assert all(never[place] != never[place + 1] for place in range(calls - 1))


# -- before anything is measured ------------------------------------------------------------------------------------


class Cached(Fake):
    cache_bytes = 64 * KIB


ObserveAll = Callable[..., dict[str, Result]]


def test_a_warm_cache_is_an_error_of_every_workload_and_none_is_built(
    tiny: Callable[..., Workload], observe_all: ObserveAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warm(*_: object) -> None:
        raise MeasurementError("the cache is not cold when it should be")

    monkeypatch.setattr(runner, "require_cold_cache", warm)
    build = lambda: pytest.fail("built")  # noqa: E731
    results = observe_all(tiny(module="a", build=build), tiny(module="b", build=build), device=Cached())
    assert [str(result) for result in results.values()] == ["the cache is not cold when it should be"] * 2


def test_a_probe_that_fails_is_an_error_of_every_workload_too(
    tiny: Callable[..., Workload], observe_all: ObserveAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")

    monkeypatch.setattr(torch, "randn", full)
    result = observe_all(tiny(), device=Cached())["tiny eager"]
    assert isinstance(result, WorkloadError)
    assert "out of device memory while proving that the cache is cold" in result.what


def test_a_device_that_flushes_no_cache_has_none_to_prove(
    tiny: Callable[..., Workload], observe_all: ObserveAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "require_cold_cache", lambda *_: pytest.fail("proven"))
    assert isinstance(observe_all(tiny())["tiny eager"], Measured)
