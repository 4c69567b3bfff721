"""A profiler session is believed only when its records pair and its iterations are alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from kernelgauge import Workload
from kernelgauge.errors import MeasurementError, TraceError
from kernelgauge.measure import profile
from kernelgauge.measure.device.cpu import CpuDevice
from kernelgauge.measure.device.cuda import CudaDevice
from kernelgauge.measure.instance import Instance, build
from kernelgauge.measure.profile import Session, profile_session, session_problems
from kernelgauge.trace import REGION, Trace, parse

NAME = "mlp-eager"  # the recorded trace, and the region in it: three iterations of five launches
Content = dict[str, Any]


def kernels(content: Content) -> list[dict[str, Any]]:
    return [event for event in content["traceEvents"] if event.get("cat") == "kernel"]


def lost(content: Content) -> None:
    content["traceEvents"].remove(kernels(content)[0])


def duplicated(content: Content) -> None:
    content["traceEvents"].append(deepcopy(kernels(content)[0]))


def orphan(content: Content) -> None:
    stray = deepcopy(kernels(content)[0])
    stray["args"]["correlation"] = 1
    content["traceEvents"].append(stray)


def without_an_iteration(content: Content) -> None:
    marks = [
        event for event in content["traceEvents"] if (event.get("cat"), event["name"]) == ("user_annotation", NAME)
    ]
    content["traceEvents"].remove(marks[-1])


def with_another_name_in_one_iteration(content: Content) -> None:
    kernels(content)[0]["name"] = "another_kernel"


def with_another_grid_in_one_iteration(content: Content) -> None:
    kernels(content)[-1]["args"]["grid"] = [7, 1, 1]


def with_fewer_launches_in_one_iteration(content: Content) -> None:
    gone = kernels(content)[0]["args"]["correlation"]
    content["traceEvents"] = [
        event for event in content["traceEvents"] if event.get("args", {}).get("correlation") != gone
    ]


def with_a_negative_duration(content: Content) -> None:
    kernels(content)[0]["dur"] = -1


DAMAGE = {
    lost: "lost: cuLaunchKernelEx",
    duplicated: "duplicated: ",
    orphan: "orphan: ",
    without_an_iteration: "lost: 2 of 3 iterations are in the trace",
    with_another_name_in_one_iteration: "the iterations differ: 2 launch sequences",
    with_another_grid_in_one_iteration: "the iterations differ: 2 launch sequences",
    with_fewer_launches_in_one_iteration: "the iterations differ: 2 launch sequences",
    with_a_negative_duration: "bad duration: ",
}
damages = pytest.mark.parametrize(("damage", "words"), DAMAGE.items(), ids=[damage.__name__ for damage in DAMAGE])


@pytest.fixture
def session(
    recorded: Callable[[str], Content], as_trace: Callable[[Content], Trace], gpu: CudaDevice
) -> Callable[..., Session]:
    """Makes a session of the recorded eager MLP, after a function has damaged it."""

    def make(damage: Callable[[Content], None] = lambda _: None) -> Session:
        content = recorded(NAME)
        damage(content)
        trace = as_trace(content)
        windows = tuple(trace.regions(NAME))
        executions = tuple(tuple(gpu.executions(window)) for window in windows)
        return Session(trace=trace, windows=windows, executions=executions, trace_json=b"", table="")

    return make


@pytest.fixture
def instance(tiny: Callable[..., Workload], cpu: CpuDevice) -> Instance:
    return build(tiny(), cpu)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, cpu: CpuDevice, instance: Instance) -> Callable[..., Session]:
    """Calls `profile_session` on a profiler that gives these sessions, and no more."""

    def run(*sessions: Session, **how: Any) -> Session:
        left = list(sessions)
        monkeypatch.setattr(profile, "_profile_once", lambda *_: left.pop(0))
        result = profile_session(cpu, instance, iterations=3, **how)
        assert not left, f"{len(left)} sessions were not asked for"
        return result

    return run


# -- which sessions are believed ------------------------------------------------------------------------------------


def test_a_sound_session_has_no_problems(session: Callable[..., Session]) -> None:
    sound = session()
    assert len(sound.windows) == 3
    assert len(sound.executions[0]) == 5
    assert session_problems(sound, 3) == []


@damages
def test_each_kind_of_damage_is_a_problem(
    session: Callable[..., Session], damage: Callable[[Content], None], words: str
) -> None:
    problems = session_problems(session(damage), 3)
    assert any(problem.startswith(words) for problem in problems), problems


@pytest.mark.parametrize("duration_us", [float("nan"), float("inf"), -0.001])
def test_a_duration_that_is_none_is_a_problem(session: Callable[..., Session], duration_us: float) -> None:
    sound = session()
    first, *others = sound.trace.records
    trace = replace(sound.trace, records=(msgspec.structs.replace(first, duration_us=duration_us), *others))
    (problem,) = session_problems(replace(sound, trace=trace), 3)
    assert problem.startswith("bad duration: ")
    assert str(duration_us) in problem


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-Infinity"])
def test_a_trace_with_a_number_that_is_none_cannot_be_read(number: str) -> None:
    event = f'{{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": {number}}}'
    with pytest.raises(TraceError):
        parse(f'{{"traceEvents": [{event}]}}'.encode())


def test_iterations_that_differ_are_told_with_their_numbers_of_launches(session: Callable[..., Session]) -> None:
    problem, *others = session_problems(session(with_fewer_launches_in_one_iteration), 3)
    assert problem == "the iterations differ: 2 launch sequences, of [4, 5] launches"
    assert [line.split(":")[0] for line in others] == ["the iterations differ in launch calls"]


def test_a_session_without_any_window_is_a_problem() -> None:
    trace = parse(b'{"traceEvents": []}')
    empty = Session(trace=trace, windows=(), executions=(), trace_json=b"", table="")
    assert session_problems(empty, 3) == ["lost: 0 of 3 iterations are in the trace"]


# -- the retry ------------------------------------------------------------------------------------------------------


@damages
def test_a_good_session_after_a_bad_one_is_accepted(
    session: Callable[..., Session], play: Callable[..., Session], damage: Callable[[Content], None], words: str
) -> None:
    good = session()
    assert play(session(damage), good) is good


def test_a_good_third_session_is_accepted(session: Callable[..., Session], play: Callable[..., Session]) -> None:
    good = session()
    assert play(session(lost), session(orphan), good) is good


@damages
def test_a_session_for_times_is_believed_no_sooner(
    session: Callable[..., Session], play: Callable[..., Session], damage: Callable[[Content], None], words: str
) -> None:
    timed: dict[str, Any] = {"warmup": 14, "hold_us": 500.0, "look": lambda: None}
    good = session()
    assert play(session(damage), good, **timed) is good
    with pytest.raises(MeasurementError, match="cannot be trusted"):
        play(*(session(damage) for _ in range(3)), **timed)


def test_a_good_first_session_is_not_repeated(session: Callable[..., Session], play: Callable[..., Session]) -> None:
    good = session()
    assert play(good) is good


@damages
def test_three_bad_sessions_are_an_error_that_names_the_problem(
    session: Callable[..., Session], play: Callable[..., Session], damage: Callable[[Content], None], words: str
) -> None:
    with pytest.raises(MeasurementError) as raised:
        play(session(damage), session(damage), session(damage))
    error = raised.value
    assert error.what == "tiny-eager-fp32: the profiler's records cannot be trusted"
    assert words in (error.got or "")
    assert "in each of 3 sessions" in (error.got or "")
    assert error.expected
    assert error.next_command


def test_a_long_list_of_problems_is_cut_short_and_counted(
    session: Callable[..., Session], play: Callable[..., Session]
) -> None:
    def all_lost(content: Content) -> None:
        content["traceEvents"] = [event for event in content["traceEvents"] if event.get("cat") != "kernel"]

    with pytest.raises(MeasurementError) as raised:
        play(*(session(all_lost) for _ in range(3)))
    got = (raised.value.got or "").splitlines()
    assert sum(line.startswith("lost: ") for line in got) == 5
    assert "and 10 more" in got


# -- the real profiler ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 3, 12])
def test_there_is_one_window_for_each_iteration(cpu: CpuDevice, instance: Instance, iterations: int) -> None:
    session = profile_session(cpu, instance, iterations=iterations, record_shapes=False)
    assert len(session.windows) == len(session.executions) == iterations
    assert {window.name for window in session.windows} == {REGION}
    assert [[execution.identity.name for execution in row] for row in session.executions] == [
        ["aten::addmm"]
    ] * iterations


def test_the_artifacts_of_a_session_can_be_read(cpu: CpuDevice, instance: Instance) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the profiler's own warning about its cycles is kept from the user
        session = profile_session(cpu, instance, iterations=3, record_shapes=True, keep_table=True)
    again = parse(session.trace_json)
    assert again == session.trace
    assert len(again.regions(REGION)) == 3
    assert len(again.steps()) == 3
    assert "aten::addmm" in session.table
    assert REGION in session.table


def test_shapes_are_recorded_on_demand(cpu: CpuDevice, instance: Instance) -> None:
    def shapes(record_shapes: bool) -> list[object]:
        session = profile_session(cpu, instance, iterations=1, record_shapes=record_shapes)
        return [op.input_shapes[:3] for op in session.windows[0].ops if op.name == "aten::addmm"]

    assert shapes(True) == [((3,), (5, 4), (4, 3))]
    assert shapes(False) == [()]


def test_there_is_no_table_unless_it_is_kept(cpu: CpuDevice, instance: Instance) -> None:
    assert profile_session(cpu, instance, iterations=1, record_shapes=False).table == ""


def test_preparing_and_flushing_stay_outside_of_the_window(tiny: Callable[..., Workload]) -> None:
    class Flushing(CpuDevice):
        def flush_cache(self) -> None:
            torch.zeros(3).cos()

    class Prepared(nn.Linear):
        def zero_grad(self, set_to_none: bool = True) -> None:
            torch.zeros(3).sin()
            super().zero_grad(set_to_none)

    device = Flushing()
    workload = tiny(build=lambda: Prepared(4, 3), pass_="train")
    instance = build(workload, device)
    with instance.grad_mode():
        session = profile_session(device, instance, iterations=2, record_shapes=False)
    in_trace = [op.name for op in session.trace.ops]
    assert in_trace.count("aten::cos") == in_trace.count("aten::sin") == 2
    for window in session.windows:
        assert not {"aten::cos", "aten::sin"} & set(window.op_names())
        assert any("Backward" in name for name in window.op_names())
