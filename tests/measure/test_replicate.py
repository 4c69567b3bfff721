"""One replicate: its session is held until the device had all launches before it began, where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from kernelgauge import Timer, Workload
from kernelgauge.errors import WorkloadError
from kernelgauge.measure import replicate
from kernelgauge.measure.conditions import Reading
from kernelgauge.measure.device import Execution
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.device.cuda import CudaDevice
from kernelgauge.measure.instance import Instance, build
from kernelgauge.measure.profile import Session, profile_session
from kernelgauge.measure.replicate import Pace, held_session
from kernelgauge.measure.settings import Settings
from kernelgauge.trace import REGION, KernelIdentity, Window, parse
from tests.builders import call, chrome, kernel, region, step
from tests.measure.conftest import Diary, Fake, ToldMonitor

Tiny = Callable[..., Workload]

ITERATIONS = 10


def session_of(
    *, held: int, synchronizes: bool = False, launches: int = 2, call_us: float = 100.0, slowest_us: float | None = None
) -> Session:
    """Ten calls of two launches. In `held` of them the first kernel began after the last launch, else before it."""
    events = []
    for index in range(ITERATIONS):
        start = 1000.0 * index
        took_us = slowest_us if slowest_us is not None and index == 4 else call_us
        events += [step(index, start, 990), region(REGION, start, took_us)]
        for launch in range(launches):
            correlation = 100 * index + launch + 1
            events.append(call(correlation, start + 10 + 20 * launch))
            begin = start + (200 if index < held else 15) + 20 * launch
            events.append(kernel(correlation, begin))
        if synchronizes:
            events.append(call(None, start + 90, name="cudaStreamSynchronize"))
    trace = parse(chrome(*events))
    windows = tuple(trace.regions(REGION))
    device = object.__new__(CudaDevice)
    executions = tuple(tuple(device.executions(window)) for window in windows)
    return Session(trace=trace, windows=windows, executions=executions, trace_json=b"", table="")


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch, cpu: CpuDevice) -> Callable[..., tuple[list[float], Pace]]:
    """Measures with a profiler that gives these sessions; returns how long each was held for, and the pace after."""

    def run(*sessions: Session, hold_us: float = 100.0) -> tuple[list[float], Pace]:
        left, asked = list(sessions), []

        def profile_session(*_: object, hold_us: float, look: Callable[[], None], **__: object) -> Session:
            asked.append(hold_us)
            look()
            return left.pop(0)

        monkeypatch.setattr(replicate, "profile_session", profile_session)
        pace = Pace(call_us=100.0, hold_us=hold_us)
        during: list[Reading] = []
        got = held_session(cpu, None, Settings(), pace, during)  # type: ignore[arg-type]
        assert got is sessions[-1]
        assert not left
        assert len(during) == 1  # what was seen in a session that was not kept is not of this one
        return asked, pace

    return run


# -- whether a session was held -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("held", "was_held"), [(10, True), (9, True), (8, False), (0, False)])
def test_a_session_was_held_if_nearly_all_calls_were_dispatched_before_their_first_kernel(
    held: int, was_held: bool
) -> None:
    assert session_of(held=held).was_held is was_held


def test_a_call_of_one_kernel_needs_no_more_than_its_launch() -> None:
    assert session_of(held=10, launches=1).was_held


def test_a_session_on_a_cpu_has_nothing_to_hold(tiny: Tiny, cpu: CpuDevice) -> None:
    assert profile_session(cpu, build(tiny(), cpu), iterations=3).was_held


# -- the hold -------------------------------------------------------------------------------------------------------


def test_a_session_that_was_held_is_kept_with_the_hold_it_had(holds) -> None:
    asked, pace = holds(session_of(held=10))
    assert asked == [100.0]
    assert pace.hold_us == 100.0


def test_the_hold_is_doubled_until_the_session_was_held_and_stays_so_for_the_next_replicate(holds) -> None:
    asked, pace = holds(session_of(held=0), session_of(held=8), session_of(held=9))
    assert asked == [100.0, 200.0, 400.0]
    assert pace.hold_us == 400.0


def test_the_hold_gives_up_at_its_maximum_and_takes_what_there_is(holds) -> None:
    asked, pace = holds(*[session_of(held=0)] * 3, hold_us=6000.0)
    assert asked == [6000.0, 12000.0, 20000.0]
    assert pace.hold_us == 20000.0


def test_no_hold_is_demanded_of_a_call_that_waits_for_the_device_itself(holds) -> None:
    asked, pace = holds(session_of(held=0, synchronizes=True))
    assert asked == [100.0]
    assert pace.hold_us == 100.0


def test_a_hold_that_was_long_enough_is_shortened_once_to_what_nearly_all_calls_need(holds) -> None:
    asked, pace = holds(session_of(held=10), hold_us=1000.0)
    assert asked == [1000.0]
    assert pace.hold_us == 150.0
    pace.settle(session_of(held=10, call_us=20.0))
    assert pace.hold_us == 150.0


def test_the_hold_of_a_call_that_waits_for_the_device_itself_is_left_as_it_is(holds) -> None:
    _, pace = holds(session_of(held=10, synchronizes=True), hold_us=1000.0)
    assert pace.hold_us == 1000.0


def test_a_hold_that_had_to_grow_is_not_shortened(holds) -> None:
    _, pace = holds(session_of(held=0), session_of(held=10), hold_us=400.0)
    assert pace.hold_us == 800.0


def test_the_slowest_call_does_not_count_as_usual() -> None:
    session = session_of(held=10, slowest_us=900.0)
    assert (session.dispatch_us, session.usual_dispatch_us) == (900.0, 100.0)


@pytest.mark.parametrize(("dispatch_us", "hold_us"), [(1.0, 50.0), (100.0, 150.0), (1e6, 20_000.0)])
def test_the_first_hold_is_longer_than_the_dispatch_and_within_limits(
    monkeypatch: pytest.MonkeyPatch, dispatch_us: float, hold_us: float
) -> None:
    monkeypatch.setattr(Session, "dispatch_us", dispatch_us)
    assert Pace.of(7.0, session_of(held=10)) == Pace(call_us=7.0, hold_us=hold_us)


def test_the_dispatch_of_a_session_is_that_of_its_longest_call() -> None:
    assert session_of(held=10).dispatch_us == 100.0


# -- how a held call is made ----------------------------------------------------------------------------------------


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def written(tiny: Tiny, diary: Diary) -> Instance:
    def build_() -> Callable[..., Any]:
        def call_(x: Any) -> Any:
            diary.entries.append("call")
            return x * 2

        return call_

    instance = build(tiny(build=build_), diary)
    diary.entries.clear()
    return instance


def test_each_call_is_flushed_held_made_and_only_then_waited_for(written: Instance, diary: Diary) -> None:
    profile_session(diary, written, iterations=2, hold_us=70.0)
    assert diary.entries == ["flush", "hold 70", "call", "synchronize"] * 4  # one to wait, one to warm up


def test_without_a_hold_the_device_is_idle_before_each_call(written: Instance, diary: Diary) -> None:
    profile_session(diary, written, iterations=1)
    assert diary.entries == ["flush", "synchronize", "call", "synchronize"] * 3


def test_without_a_flush_each_call_finds_what_the_last_one_left(written: Instance, diary: Diary) -> None:
    profile_session(diary, written, iterations=1, flush=False)
    assert diary.entries == ["synchronize", "call", "synchronize"] * 3


def test_the_gpu_is_looked_at_while_it_works_every_eighth_call(written: Instance, diary: Diary) -> None:
    profile_session(diary, written, iterations=14, warmup=2, hold_us=1.0, look=lambda: diary.entries.append("look"))
    looks = [index for index, entry in enumerate(diary.entries) if entry == "look"]
    assert len(looks) == 2  # of 17 calls
    for index in looks:
        assert (diary.entries[index - 1], diary.entries[index + 1]) == ("call", "synchronize")
    assert diary.entries[: looks[0]].count("call") == 8


def test_a_session_of_few_calls_is_looked_at_too(written: Instance, diary: Diary) -> None:
    profile_session(diary, written, iterations=3, hold_us=1.0, look=lambda: diary.entries.append("look"))
    assert diary.entries[-3:] == ["call", "look", "synchronize"]
    assert diary.entries.count("look") == 1


# -- what a replicate is --------------------------------------------------------------------------------------------


@pytest.fixture
def make(tiny: Tiny):
    """Makes a replicate of a workload of a GEMM and a product, against the structure of another or the same."""

    def run(device: CpuDevice, structure_of: Workload | None = None, *, returns_structure: bool = False, **how: Any):
        workload = tiny(build=lambda: lambda x: (x @ x.T) * 2)
        instance = build(structure_of or workload, device)
        structure = profile_session(device, instance, iterations=3)
        if returns_structure:
            return structure
        settings = Settings(iterations=5, host_iterations=4, seconds=0.1, warm_up_seconds=0)
        named = {"index": 0, "structure": structure, "pace": Pace.of(50.0, structure), "usual_clock_mhz": None} | how
        return replicate.replicate(workload, device, settings, **named)

    return run


def test_a_replicate_has_one_time_for_each_kernel_and_their_sum(make) -> None:
    made = make(Fake())
    assert len(made.kernel_us) == 2
    assert all(time > 0 for time in made.kernel_us)
    assert made.device_us == sum(made.kernel_us)
    assert made.seconds > 0
    assert made.host is None  # a CPU has no dispatch of its own


def test_the_host_is_timed_where_it_means_something_unless_it_is_a_control(make) -> None:
    class WithHost(Fake):
        timers = (*CpuDevice.timers, Timer.HOST)

    assert make(WithHost()).host.dispatch_us > 0
    assert make(WithHost(), is_control=True).host is None


def test_the_readings_are_before_during_and_after(make) -> None:
    device = Fake()
    readings = [Reading(temperature_c=40 + place) for place in range(4)]
    device.monitor = ToldMonitor(*readings)  # type: ignore[assignment]
    made = make(device)
    assert made.readings == tuple(readings[:3])  # nine calls: one look
    assert made.disturbed_by == ()


@pytest.mark.parametrize(("usual", "disturbed"), [(None, False), (1500, False), (1980, True)])
def test_a_clock_is_low_by_what_was_usual_in_the_session(make, usual: float | None, disturbed: bool) -> None:
    device = Fake()
    device.monitor = ToldMonitor(Reading(sm_clock_mhz=1500, event_reasons=0))  # type: ignore[assignment]
    assert bool(make(device, usual_clock_mhz=usual).disturbed_by) is disturbed


def test_other_kernels_than_those_that_were_profiled_are_refused(make, tiny: Tiny) -> None:
    with pytest.raises(WorkloadError, match="other kernels when it was timed than when it was profiled") as raised:
        make(Fake(), structure_of=tiny(build=lambda: lambda x: x.cos()))
    assert (raised.value.got, raised.value.expected) == ("aten::mm, aten::mul", "aten::cos")


@pytest.mark.parametrize(("block", "refused"), [((128, 1, 1), False), ((256, 1, 1), True)])
def test_a_kernel_that_was_tuned_anew_is_another_kernel(make, block: tuple[int, int, int], refused: bool) -> None:
    """Its times would be averaged with those of the configuration that was profiled, and told as that one's."""

    class Tuned(Fake):
        block = (128, 1, 1)

        def executions(self, window: Window) -> list[Execution]:
            identity = KernelIdentity("triton_poi_fused_gelu_0", "pointwise", grid=(8, 1, 1), block=self.block)
            return [Execution(identity, execution.duration_us) for execution in super().executions(window)]

    timed = Tuned()
    structure = make(timed, returns_structure=True)
    timed.block = block
    with pytest.raises(WorkloadError, match="other kernels") if refused else nullcontext():
        make(timed, structure=structure)
