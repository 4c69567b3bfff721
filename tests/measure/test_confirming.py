"""A confirmation measures a suspicious workload three times as long in all, on other addresses. All of it counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

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


def test_confirmation_adds_twice_as_many_replicates(confirming: Confirming, replicates: ToldReplicates) -> None:
    replicates.times_us["a"] = [10.0, 10.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]
    after = confirming("a", suspect="a")["a"]
    assert times(confirming.first["a"]) == (10.0,) * 3
    assert times(after) == (10.0, 10.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0)
    assert isinstance(after, Measured)
    assert after.run.kernels[0].device_time_us == pytest.approx(111 / 9)
    assert "a-eager-fp32: looks slower: measuring again, twice as long" in confirming.said


def test_measure_without_suspects_adds_nothing(confirming: Confirming, replicates: ToldReplicates) -> None:
    confirming("a", "b", suspect="")
    assert replicates.order() == ["a", "b"] * 3


def test_confirmation_measures_only_suspects_and_controls(confirming: Confirming, replicates: ToldReplicates) -> None:
    confirming.device = Fake(confirming.tiny(module="copy"))
    after = confirming("a", "b", "c", suspect="b c")
    assert replicates.order() == ["copy", "a", "b", "c"] * 3 + ["copy", "b", "c"] * 6
    assert {module: len(times(result)) for module, result in after.items()} == {"a": 3, "b": 9, "c": 9}


def test_confirmation_uses_new_addresses(confirming: Confirming, replicates: ToldReplicates) -> None:
    replicates.disturbed["a"] = (2, "throttled")
    confirming("a", suspect="a")
    places = replicates.places("a")
    assert len(places) == 2 + 9
    assert len(set(places)) == len(places)


def test_confirmation_ignores_steadiness_and_budget(confirming: Confirming, replicates: ToldReplicates) -> None:
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


def test_confirmation_leaves_other_results_unchanged(confirming: Confirming, replicates: ToldReplicates) -> None:
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


def test_confirmation_keeps_counts_and_ops(confirming: Confirming) -> None:
    after = confirming("a", suspect="a")["a"]
    assert isinstance(after, Measured)
    assert after.run.counts == confirming.first["a"].counts
    assert after.run.ops == confirming.first["a"].ops


def test_a_compiled_workload_is_not_compiled_again(confirming: Confirming) -> None:
    after = confirming("a", suspect="a", compile={"backend": "eager"})["a"]
    assert isinstance(after, Measured)
    assert len(times(after)) == 3 * len(times(confirming.first["a"]))
    assert (after.run.counts.graph_breaks, after.run.counts.recompiles) == (0, 0)


def test_disturbed_confirmation_keeps_the_first_measurement(confirming: Confirming, replicates: ToldReplicates) -> None:
    confirming.then = lambda: replicates.disturbed.update(a=(10**6, "throttled by heat"))
    after = confirming("a", "b", suspect="a")
    assert isinstance(after["a"], Measured)
    assert after["a"].not_confirmed is not None
    assert after["a"].not_confirmed.got == "throttled by heat"
    assert times(after["a"]) == (10.0,) * 3
    assert len(times(after["b"])) == 3


def test_failing_confirmation_keeps_the_first_measurement(confirming: Confirming) -> None:
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
