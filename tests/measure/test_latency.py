"""Rounds for pytest-benchmark: each replicate on fresh allocations, each round prepared before its clock starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import WorkloadError
from kernelgauge.measure import latency
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.instance import Instance, build
from kernelgauge.measure.latency import Rounds

Tiny = Callable[..., Workload]


class Diary(CpuDevice):
    """A device that writes down what it is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[str] = []

    def synchronize(self) -> None:
        self.entries.append("synchronize")

    def flush_cache(self) -> None:
        self.entries.append("flush")


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Diary]:
    """Builds are written down with the number of the replicate; warming up is one entry."""
    device = Diary()

    def written(workload: Workload, target: CpuDevice, *, replicate: int) -> Instance:
        device.entries.append(f"build {replicate}")
        return build(workload, target, replicate=replicate)

    monkeypatch.setattr(latency, "build", written)
    monkeypatch.setattr(latency, "warm_up", lambda *_, **__: device.entries.append("warm up"))
    return device


@pytest.fixture
def written(tiny: Tiny, diary: Diary) -> Workload:
    """A workload that writes its calls and its preparations into the diary."""

    class Module(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            diary.entries.append("call")
            return super().forward(x)

        def zero_grad(self, set_to_none: bool = True) -> None:
            diary.entries.append("prepare")
            super().zero_grad(set_to_none)

    return tiny(build=lambda: Module(4, 3), pass_="train")


def play(rounds: Rounds, count: int) -> None:
    with rounds.grad_mode():
        for _ in range(count):
            rounds.setup()
            rounds.call()


def test_a_round_is_prepared_flushed_and_synchronised_before_its_call_and_synchronised_after(
    written: Workload, diary: Diary
) -> None:
    rounds = Rounds(written, diary, replicates=1, iterations=2)
    play(rounds, 1)
    assert diary.entries == ["build 0", "warm up", "prepare", "flush", "synchronize", "call", "synchronize"]


def test_what_is_timed_is_the_call_and_its_synchronisation_alone(written: Workload, diary: Diary) -> None:
    rounds = Rounds(written, diary, replicates=1, iterations=1)
    with rounds.grad_mode():
        rounds.setup()
        diary.entries.clear()
        rounds.call()
    assert diary.entries == ["call", "synchronize"]


def test_replicates_are_built_in_order_each_for_its_rounds(written: Workload, diary: Diary) -> None:
    rounds = Rounds(written, diary, replicates=3, iterations=2)
    assert rounds.total == 6
    play(rounds, rounds.total)
    seen = [entry for entry in diary.entries if entry.startswith(("build", "warm", "call"))]
    assert seen == [
        *("build 0", "warm up", "call", "call"),
        *("build 1", "warm up", "call", "call"),
        *("build 2", "warm up", "call", "call"),
    ]


def test_two_replicates_are_never_held_at_once(tiny: Tiny, cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(tiny(), cpu, replicates=2, iterations=1)
    held: list[Instance | None] = []

    def spy(workload: Workload, device: CpuDevice, *, replicate: int) -> Instance:
        held.append(rounds._instance)
        return build(workload, device, replicate=replicate)

    monkeypatch.setattr(latency, "build", spy)
    play(rounds, 2)
    assert held == [None, None]


def test_autograd_is_as_the_pass_wants_it(tiny: Tiny, cpu: CpuDevice) -> None:
    with Rounds(tiny(), cpu, replicates=1, iterations=1).grad_mode():
        assert not torch.is_grad_enabled()
    with torch.no_grad(), Rounds(tiny(pass_="train"), cpu, replicates=1, iterations=1).grad_mode():
        assert torch.is_grad_enabled()


def test_a_replicate_that_cannot_be_built_is_an_error_of_the_workload(tiny: Tiny, cpu: CpuDevice) -> None:
    rounds = Rounds(tiny(build=lambda: nn.Linear(-1, 3)), cpu, replicates=1, iterations=1)
    with pytest.raises(WorkloadError, match="tiny-eager-fp32: building failed"):
        rounds.setup()


# -- the sample -----------------------------------------------------------------------------------------------------


@pytest.fixture
def rounds(tiny: Tiny, cpu: CpuDevice) -> Rounds:
    return Rounds(tiny(), cpu, replicates=2, iterations=5)


def test_seconds_become_microseconds(rounds: Rounds) -> None:
    assert rounds.sample([2e-6] * 10).replicates_us == pytest.approx((2.0, 2.0))


def test_consecutive_rounds_make_one_replicate(rounds: Rounds) -> None:
    sample = rounds.sample([1e-6] * 5 + [3e-6] * 5)
    assert sample.replicates_us == pytest.approx((1.0, 3.0))
    assert sample.iterations == 5


def test_a_replicate_is_its_lower_decile_so_that_disturbed_rounds_do_not_count(rounds: Rounds) -> None:
    quiet, disturbed = [10e-6, 11e-6, 12e-6, 13e-6, 14e-6], [10e-6, 11e-6, 900e-6, 5000e-6, 70000e-6]
    assert rounds.sample(quiet + disturbed).replicates_us == pytest.approx((10.4, 10.4))
