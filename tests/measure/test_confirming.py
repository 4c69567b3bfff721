"""A confirmation goes on among the same workloads, three times as long in all, on other addresses; all of it counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from kernelgauge import Run, Timer, Workload
from kernelgauge.errors import MeasurementError, WorkloadError
from kernelgauge.measure.compiler import reset_compiler
from kernelgauge.measure.runner import Measured, Result, measure
from kernelgauge.measure.settings import Settings
from tests.measure.conftest import Fake, ToldReplicates

Tiny = Callable[..., Workload]

SETTINGS = Settings(replicates=3, most_replicates=6, iterations=3, seconds=0.01, warm_up_seconds=0)


def times(result: Result | Run) -> tuple[float, ...]:
    run = result.run if isinstance(result, Measured) else result
    assert isinstance(run, Run), run
    return run.samples[Timer.DEVICE].replicates_us


@dataclass
class Confirming:
    """Measures workloads of these modules, and suspects some of them. Keeps what was seen before it did."""

    tiny: Tiny
    device: Fake = field(default_factory=Fake)
    settings: Settings = SETTINGS
    then: Callable[[], None] = lambda: None
    first: dict[str, Run] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def __call__(self, *modules: str, suspect: str, **of_each: object) -> dict[str, Result]:
        workloads = [self.tiny(module=module, **of_each) for module in modules]

        def suspects(runs: Mapping[str, Run]) -> Collection[str]:
            self.first |= {identifier.split("-")[0]: run for identifier, run in runs.items()}
            self.then()
            return {workload.id for workload in workloads if workload.module in suspect.split()}

        fingerprint = self.device.fingerprint()
        results = measure(workloads, self.device, fingerprint, self.settings, self.said.append, suspects)
        return {workload.module: results[workload.id] for workload in workloads}


@pytest.fixture
def confirming(tiny: Tiny) -> Iterator[Confirming]:
    yield Confirming(tiny)
    reset_compiler()


def test_a_confirmation_adds_twice_as_many_and_replaces_none(
    confirming: Confirming, replicates: ToldReplicates
) -> None:
    replicates.times_us["a"] = [10.0, 10.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]
    after = confirming("a", suspect="a")["a"]
    assert times(confirming.first["a"]) == (10.0,) * 3
    assert times(after) == (10.0, 10.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0)
    assert isinstance(after, Measured)
    assert after.run.kernels[0].device_time_us == pytest.approx(111 / 9)
    assert "a-eager-fp32: suspicious: measuring again, twice as long" in confirming.said


def test_where_nothing_is_suspicious_nothing_is_added(confirming: Confirming, replicates: ToldReplicates) -> None:
    confirming("a", "b", suspect="")
    assert replicates.order() == ["a", "b"] * 3


def test_the_machine_has_as_much_to_do_between_two_replicates_as_before(
    confirming: Confirming, replicates: ToldReplicates
) -> None:
    confirming.device = Fake(confirming.tiny(module="copy"))
    after = confirming("a", "b", "c", suspect="b")
    assert replicates.order() == ["copy", "a", "b", "c"] * 9
    assert {len(times(result)) for result in after.values()} == {9}  # what was measured counts


def test_of_many_workloads_only_the_next_ones_are_measured_with_what_is_suspicious(
    confirming: Confirming, replicates: ToldReplicates
) -> None:
    modules = [f"m{place:02}" for place in range(20)]
    replicates.fails["m09"] = (0, lambda: WorkloadError("it fails"))
    after = confirming(*modules, suspect="m10 m01")
    next_ones = ["m00", "m01", "m02", "m03", "m08", "m10", "m11", "m12"]
    assert replicates.order()[-8:] == next_ones
    longer = [module for module in modules if isinstance(after[module], Measured) and len(times(after[module])) == 9]
    assert longer == next_ones


def test_a_noisy_neighbour_is_measured_no_longer_than_what_is_suspicious(
    confirming: Confirming, replicates: ToldReplicates
) -> None:
    replicates.times_us["noisy"] = [10.0, 13.0] * 40
    after = confirming("a", "noisy", suspect="a")
    assert len(times(confirming.first["noisy"])) == 6
    assert (len(times(after["a"])), len(times(after["noisy"]))) == (9, 12)


def test_what_was_pinned_down_early_is_in_each_pass_of_a_confirmation(
    confirming: Confirming, replicates: ToldReplicates
) -> None:
    """So that the machine has as much to do, and that slower passes are found to the end."""
    replicates.times_us["noisy"] = [10.0, 13.0] * 40
    after = confirming("a", "noisy", suspect="noisy")
    assert replicates.order()[9:] == ["a", "noisy"] * 12
    assert (len(times(after["a"])), len(times(after["noisy"]))) == (15, 18)


def test_where_a_call_may_take_seconds_the_others_are_left_alone(
    confirming: Confirming, replicates: ToldReplicates
) -> None:
    confirming.device.most_replicates = 4
    after = confirming("a", "b", suspect="b")
    assert (len(times(after["a"])), len(times(after["b"]))) == (3, 9)


def test_it_goes_on_at_addresses_that_were_not_seen_yet(confirming: Confirming, replicates: ToldReplicates) -> None:
    replicates.disturbed["a"] = (2, "throttled")
    confirming("a", suspect="a")
    places = replicates.places("a")
    assert len(places) == 2 + 9
    assert len(set(places)) == len(places)


def test_neither_steadiness_nor_the_budget_cuts_it_short(confirming: Confirming, replicates: ToldReplicates) -> None:
    replicates.seconds = 100.0
    assert len(times(confirming("a", suspect="a")["a"])) == 9


def test_a_machine_that_changed_meanwhile_is_not_believed(confirming: Confirming, replicates: ToldReplicates) -> None:
    replicates.times_us["copy"] = [50.0] * 3 + [52.0] * 6
    confirming.device = Fake(confirming.tiny(module="copy"))
    after = confirming("a", "b", suspect="a")
    assert isinstance(after["a"], Measured)
    assert isinstance(after["a"].not_confirmed, MeasurementError)
    assert "changed its speed" in after["a"].not_confirmed.what
    assert after["a"].not_confirmed.got == "copy +4.0 %"
    # Nothing was wrong with what was measured before.
    assert isinstance(after["b"], Measured)
    assert after["b"].not_confirmed is None
    assert {times(each) for each in after.values()} == {(10.0,) * 3}


def test_of_what_was_not_measured_again_everything_stays(confirming: Confirming, replicates: ToldReplicates) -> None:
    """Else it would be held against a control pair of passes that were not its own."""
    modules = [f"m{place:02}" for place in range(10)]
    replicates.times_us["copy"] = [50.0] * 3 + [52.0] * 6
    confirming.device = Fake(confirming.tiny(module="copy"))
    after = confirming(*modules, suspect="m00")
    runs = {module: result.run for module, result in after.items() if isinstance(result, Measured)}
    assert runs == confirming.first
    assert runs["m09"].controls["copy"].device_time_us == 50.0


def test_a_control_that_failed_before_is_said_and_costs_no_pass(
    confirming: Confirming, replicates: ToldReplicates
) -> None:
    replicates.times_us["noisy"] = [10.0, 13.0] * 40
    replicates.fails["copy"] = (4, lambda: WorkloadError("the control broke"))
    confirming.device = Fake(confirming.tiny(module="copy"))
    after = confirming("a", "noisy", suspect="a")["a"]
    assert isinstance(after, Measured)
    assert "the control broke" in str(after.not_confirmed)
    assert len(times(after)) == len(replicates.places("a")) == 3


def test_the_control_pair_is_that_of_all_passes(confirming: Confirming, replicates: ToldReplicates) -> None:
    replicates.times_us["copy"] = [50.0] * 3 + [50.5] * 6
    confirming.device = Fake(confirming.tiny(module="copy"))
    after = confirming("a", suspect="a")["a"]
    assert isinstance(after, Measured)
    assert confirming.first["a"].controls["copy"].device_time_us == 50.0
    assert after.run.controls["copy"].device_time_us == 50.5


def test_what_was_observed_besides_times_stays(confirming: Confirming) -> None:
    after = confirming("a", suspect="a")["a"]
    assert isinstance(after, Measured)
    assert after.run.counts == confirming.first["a"].counts
    assert after.run.ops == confirming.first["a"].ops


def test_a_compiled_workload_is_not_compiled_again(confirming: Confirming) -> None:
    after = confirming("a", suspect="a", compile={"backend": "eager"})["a"]
    assert isinstance(after, Measured)
    assert len(times(after)) == 3 * len(times(confirming.first["a"]))
    assert (after.run.counts.graph_breaks, after.run.counts.recompiles) == (0, 0)


def test_a_machine_that_is_disturbed_now_is_said_and_leaves_what_was_measured(
    confirming: Confirming, replicates: ToldReplicates
) -> None:
    confirming.then = lambda: replicates.disturbed.update(a=(10**6, "throttled by heat"))
    after = confirming("a", "b", suspect="a")
    assert isinstance(after["a"], Measured)
    assert after["a"].not_confirmed is not None
    assert after["a"].not_confirmed.got == "throttled by heat"
    assert times(after["a"]) == (10.0,) * 3
    assert len(times(after["b"])) == 9


def test_a_workload_that_fails_now_is_said_and_leaves_what_was_measured(confirming: Confirming) -> None:
    working = [True]

    def function(x: object) -> object:
        if not working[0]:
            raise ValueError("now")
        return x * 2  # type: ignore[operator]

    confirming.then = lambda: working.__setitem__(0, False)
    after = confirming("a", suspect="a", build=lambda: function)["a"]
    assert isinstance(after, Measured)
    assert isinstance(after.not_confirmed, WorkloadError)
    assert "a-eager-fp32: measuring failed" in str(after.not_confirmed)
    assert times(after) == times(confirming.first["a"])


def test_a_device_that_is_lost_now_leaves_what_was_measured(confirming: Confirming, replicates: ToldReplicates) -> None:
    def lose() -> None:
        confirming.device.is_lost = True
        replicates.fails["b"] = (0, lambda: WorkloadError("CUDA error"))

    confirming.then = lose
    after = confirming("a", "b", suspect="b")
    assert {times(each) for each in after.values()} == {(10.0,) * 3}
    assert isinstance(after["b"], Measured)
    assert "no longer answers" in str(after["b"].not_confirmed)


def test_what_failed_before_is_not_confirmed(confirming: Confirming, replicates: ToldReplicates) -> None:
    replicates.fails["a"] = (1, lambda: WorkloadError("it fails"))
    after = confirming("a", "b", suspect="a")
    assert isinstance(after["a"], WorkloadError)
    assert len(times(after["b"])) == 3


def test_passes_of_both_are_compared_for_those_in_which_the_machine_was_slower(
    confirming: Confirming, replicates: ToldReplicates
) -> None:
    """The machine was slow for what was seen first: that alone could not be told before."""
    slow_first = [10.05] * 12 + [10.0] * 60
    replicates.times_us = {"a": slow_first, "copy": slow_first, "gemm": slow_first}
    confirming.device = Fake(confirming.tiny(module="copy"), confirming.tiny(module="gemm"))
    confirming.settings = replace(SETTINGS, replicates=12, most_replicates=12)
    after = confirming("a", suspect="a")["a"]
    assert isinstance(after, Measured)
    assert confirming.first["a"].left_out == 0
    assert after.run.left_out == 12
    assert times(after) == (10.0,) * 36
    assert replicates.places("a") == list(range(48))
