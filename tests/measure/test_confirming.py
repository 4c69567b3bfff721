"""A confirmation measures a workload again, twice as long, on other addresses; what was measured before counts too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from kernelgauge import Timer, Workload
from kernelgauge.errors import MeasurementError, WorkloadError
from kernelgauge.measure.compiler import reset_compiler
from kernelgauge.measure.runner import Measured, Result, confirm, measure
from kernelgauge.measure.settings import Settings
from tests.measure.conftest import Fake, ToldReplicates

Tiny = Callable[..., Workload]


@pytest.fixture
def settings() -> Settings:
    return Settings(replicates=3, most_replicates=6, iterations=3, seconds=0.01, warm_up_seconds=0)


@pytest.fixture
def twice(settings: Settings):
    """Measures a workload, and confirms it; returns both results."""

    def run(workload: Workload, device: Fake | None = None, between: Callable[[], None] = lambda: None):
        device = device or Fake()
        fingerprint = device.fingerprint()
        before = measure([workload], device, fingerprint, settings)[workload.id]
        assert isinstance(before, Measured), before
        between()
        return before, confirm(before, device, fingerprint, settings)

    yield run
    reset_compiler()


def times(result: Result) -> tuple[float, ...]:
    assert isinstance(result, Measured), result
    return result.run.samples[Timer.DEVICE].replicates_us


def test_a_confirmation_adds_twice_as_many_and_replaces_none(twice, tiny: Tiny, replicates: ToldReplicates) -> None:
    replicates.times_us["tiny"] = [10.0, 10.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]
    before, after = twice(tiny())
    assert times(before) == (10.0,) * 3
    assert times(after) == (10.0, 10.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0)
    assert after.run.kernels[0].device_time_us == pytest.approx(111 / 9)


def test_it_goes_on_at_addresses_that_were_not_seen_yet(twice, tiny: Tiny, replicates: ToldReplicates) -> None:
    replicates.disturbed["tiny"] = (2, "throttled")
    twice(tiny())
    places = replicates.places("tiny")
    assert len(places) == 2 + 9
    assert len(set(places)) == len(places)


def test_neither_steadiness_nor_the_budget_cuts_it_short(twice, tiny: Tiny, replicates: ToldReplicates) -> None:
    replicates.seconds = 100.0
    _, after = twice(tiny())
    assert len(times(after)) == 9


def test_the_control_pair_is_measured_beside_it_again(twice, tiny: Tiny, replicates: ToldReplicates) -> None:
    replicates.times_us["copy"] = [50.0] * 3 + [50.5] * 6
    before, after = twice(tiny(), Fake(tiny(module="copy", variant="control")))
    assert before.run.controls["copy"].device_time_us == 50.0
    # As the replicates of both count: three before, six after.
    assert after.run.controls["copy"].device_time_us == pytest.approx((3 * 50.0 + 6 * 50.5) / 9)


def test_a_machine_that_changed_between_the_two_is_not_believed(twice, tiny: Tiny, replicates: ToldReplicates) -> None:
    replicates.times_us["copy"] = [50.0] * 3 + [52.0] * 6
    _, after = twice(tiny(), Fake(tiny(module="copy", variant="control")))
    assert isinstance(after, MeasurementError)
    assert "changed its speed" in after.what
    assert after.got == "copy +4.0 %"


def test_what_was_observed_besides_times_stays(twice, tiny: Tiny) -> None:
    before, after = twice(tiny())
    assert after.run.counts == before.run.counts
    assert after.run.ops == before.run.ops
    assert after.trace_json == before.trace_json


def test_a_compiled_workload_is_compiled_first_and_that_counts_as_no_recompile(twice, tiny: Tiny) -> None:
    class Doubles(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    _, after = twice(tiny(build=Doubles, compile={"backend": "eager"}), between=reset_compiler)
    assert isinstance(after, Measured)
    assert (after.run.counts.graph_breaks, after.run.counts.recompiles) == (0, 0)


def test_a_machine_that_is_disturbed_now_is_an_error_and_leaves_what_was_measured(
    twice, tiny: Tiny, replicates: ToldReplicates
) -> None:
    def disturb() -> None:
        replicates.disturbed["tiny"] = (10**6, "throttled by heat")

    before, after = twice(tiny(), between=disturb)
    assert isinstance(after, MeasurementError)
    assert after.got == "throttled by heat"
    assert times(before) == (10.0,) * 3


def test_a_workload_that_fails_now_is_an_error(tiny: Tiny, twice) -> None:
    working = [True]

    def function(x: torch.Tensor) -> torch.Tensor:
        if not working[0]:
            raise ValueError("now")
        return x * 2

    with pytest.raises(WorkloadError, match="tiny-eager-fp32: running failed"):
        twice(tiny(build=lambda: function), between=lambda: working.__setitem__(0, False))
