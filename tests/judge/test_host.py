"""What the host does beside its ops is compared by counts of calls: exactly, where unchanged calls
make the same ones.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from kernelgauge.judge import Verdict
from kernelgauge.judge.review import Group
from kernelgauge.judge.structure import judge_structure
from kernelgauge.run import OpRecord, Origin, SourceLine, Timer
from tests import builders

Calls = dict[str, int]
USUAL = {
    "torch.nn.modules.linear.Linear.forward": 60,
    "net.py:Net.forward": 20,
    "<builtins.len>": 20,
    "lines": 400,
}
COPIES = {"copy.deepcopy": 40, "copy._deepcopy_dict": 30, "<builtins.id>": 200}
US = {"<io.open>": 8.0, "<zlib.compress>": 3.0, "<zlib.crc32>": 2.9, "<list.count>": 3.0}
US |= {"<_operator.add>": 9.0, "<builtins.abs>": 9.0}
US |= dict.fromkeys(("<__triton_launcher.launch>", "<triton._C.specialize>", "<apply>"), 9.0)
US |= {"<torch._C._cuda_memoryStats>": 20.0, "<torch._C._get_tracing_state>": 0.1}
US |= {"<torch._C._nn.linear>": 20.0, "<_abc._abc_instancecheck>": 9.0, "<dict.get>": 9.0}
LINE = SourceLine("net.py", 41, "copy.deepcopy(config)")
FOUND = dict.fromkeys(COPIES, (Origin("layers.0", (LINE,)),))
LOCKS = {"threading.Condition.wait": 9, "<threading: lock.acquire>": 70}


def judged(before: Calls, after: Calls, varies: Calls | None = None, **changes: Any) -> Verdict:
    """Judge a run whose calls are the usual ones and `after`, by a baseline with `before`.

    `changes`: of the run.
    """
    old = builders.run(host_work=USUAL | before, host_spread=varies or {})
    found = {"host_work": USUAL | after, "host_work_origins": FOUND, "host_us": US}
    new = replace(old, **(found | changes))
    return judge_structure(new, builders.from_run(old, suite="perf"))


# each of too small a share to be stored by its name
ASKS = {"torch.typename": 6000, "torch.overrides.suppress": 9}


def lists(method: str) -> Calls:
    """Return calls of many functions of C, each of a small share."""
    return {f"<list{number}.{method}>": 20 for number in range(20)}


MANY = {f"zoo.part{number}.call": 1 for number in range(300)}


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ({}, {}, "PASS"),
        ({}, {"net.py:helper": 3, "<builtins.isinstance>": 3}, "PASS"),
        ({"net.py:old": 50}, {"net.py:new": 50}, "PASS"),
        ({"zoo.model.old": 50}, {"zoo.layers.new": 50}, "PASS"),
        (MANY, {"zoo.other.call": 300}, "PASS"),
        (ASKS | lists("append"), ASKS | lists("extend"), "PASS"),
        ({}, {"lines": 499}, "PASS"),
        ({}, {"<builtins.len>": 30}, "REGRESSED"),
        ({}, {"net.py:helper": 10}, "REGRESSED"),
        (MANY, MANY | {"copy.copy": 60}, "REGRESSED"),
        ({}, {"lines": 500}, "REGRESSED"),
        ({}, {"<time.sleep>": 1}, "REGRESSED"),
        ({}, {"<list.count>": 1}, "REGRESSED"),
        ({}, {"<torch._C._cuda_emptyCache>": 1}, "REGRESSED"),
        ({}, {"<PyCapsule.cudaMemGetInfo>": 1}, "REGRESSED"),
        ({}, {"<torch._C._cuda_memoryStats>": 1}, "REGRESSED"),
        ({}, {"<_abc._abc_instancecheck>": 1, "<dict.get>": 1}, "PASS"),  # beside busy jobs
        ({}, {"<torch._C._nn.linear>": 1, "<torch._C._get_tracing_state>": 1}, "PASS"),
        ({}, {"<zlib.crc32>": 1, "<numpy.array>": 1}, "PASS"),
        ({}, {"<_warnings.warn>": 1}, "REGRESSED"),
        ({}, {"<__triton_launcher.launch>": 1, "<triton._C.specialize>": 1, "<apply>": 1}, "PASS"),
        ({}, {"<threading: _thread.start_new_thread>": 1}, "REGRESSED"),
        ({}, {"<zlib.compress>": 1}, "REGRESSED"),
        ({}, {"<math.sqrt>": 1, "json.tool.main": 1}, "PASS"),
        ({"<io.open>": 2}, {"<io.open>": 3}, "REGRESSED"),
        ({"<io.open>": 2}, {"<io.open>": 1}, "PASS"),
        ({}, {"<_operator.add>": 1, "<builtins.abs>": 1}, "PASS"),  # of tensors, say
        (COPIES, {}, "PASS"),
        ({"contextlib.old": 50}, {"contextlib.new": 50}, "CHANGED"),
    ],
)
def test_host_work_is_judged_by_its_sums(before: Calls, after: Calls, status: str) -> None:
    assert judged(before, after).status.value == status


@pytest.mark.parametrize("us", [0.2, 0.3])
@pytest.mark.parametrize(
    ("after", "status"),
    [
        ({"<list.append>": 40}, "PASS"),
        ({"<list.append>": 40, "<builtins.len>": 60}, "REGRESSED"),  # two beside each op
        ({"<builtins.max>": 40}, "REGRESSED"),
    ],
)
def test_short_calls_beside_ops_are_told_by_no_clock(us: float, after: Calls, status: str) -> None:
    old = builders.run(host_work=USUAL, ops=(OpRecord("aten::mul"),) * 40)
    new = replace(old, host_work=USUAL | after, host_us=dict.fromkeys(after, us))
    baseline = builders.from_run(old, suite="perf")
    assert judge_structure(new, baseline).status.value == status


@pytest.mark.parametrize(
    ("before", "after", "varies", "status"),
    [
        (LOCKS, LOCKS | {"<threading: lock.acquire>": 700}, {}, "REGRESSED"),
        (
            LOCKS,
            LOCKS | {"<threading: lock.acquire>": 700},
            {"<threading: lock.acquire>": 1},
            "PASS",
        ),
        (LOCKS, LOCKS | COPIES, {"<threading: lock.acquire>": 1}, "REGRESSED"),
        ({}, {"<builtins.len>": 30}, {"<builtins.len>": 5}, "PASS"),
        ({}, {"<builtins.len>": 31}, {"<builtins.len>": 5}, "REGRESSED"),
        # more than a twentieth of all calls varies by itself: that excuses these calls, and lines
        ({}, {"<builtins.len>": 60}, {"<builtins.len>": 20}, "PASS"),
        ({}, COPIES, {"<builtins.len>": 6}, "REGRESSED"),
        ({}, {"<time.sleep>": 1}, {"<builtins.len>": 20}, "REGRESSED"),
        ({}, {"net.py:helper": 60}, {"net.py:Net.forward": 20}, "REGRESSED"),
        ({}, {"lines": 900}, {"<builtins.len>": 6}, "PASS"),
        ({}, {"lines": 900}, {"<builtins.len>": 5}, "REGRESSED"),
        # another name of what varies
        ({"net.py:old": 60}, {"net.py:new": 55}, {"net.py:old": 60}, "PASS"),
    ],
)
def test_host_work_varies_as_recorded(
    before: Calls, after: Calls, varies: Calls, status: str
) -> None:
    assert judged(before, after, varies).status.value == status


def test_host_work_that_varies_excuses_no_other() -> None:
    """It runs in some calls, and so does what the baseline knows to vary."""
    varies = {"<builtins.len>": 1}
    verdict = judged(
        {}, {"<zlib.compress>": 1}, varies, host_spread=varies | {"<zlib.compress>": 1}
    )
    assert verdict.status.value == "REGRESSED"


def test_host_work_varies_in_the_run_alone_is_compared() -> None:
    varies = {"<posix.stat>": 2}
    verdict = judged(
        {"<posix.stat>": 3}, {"<posix.stat>": 600}, varies, host_spread={"<posix.stat>": 599}
    )
    assert verdict.status.value == "REGRESSED"


def test_new_threads_that_vary_are_compared() -> None:
    assert judged({}, LOCKS, host_spread=LOCKS).status.value == "REGRESSED"


def test_host_work_that_varies_is_no_cause() -> None:
    verdict = judged({}, {"net.py:helper": 60, "<builtins.len>": 50}, {"<builtins.len>": 20})
    assert builders.reasons(verdict, "cause") == ["host: net.py:helper 0 -> 60 calls"]


@pytest.mark.parametrize(
    "changes",
    [
        {"host_work": {}},
        {"fingerprint": builders.fingerprint(python="3.9")},
        {"fingerprint": builders.fingerprint(torch="2.1.0")},
        {"host_work": {name: count for name, count in USUAL.items() if name != "lines"}},
        # What other ops bring along.
        {
            "host_work": USUAL | {"torch.nn.functional.relu": 70, "<len>": 30, "net.py:act": 90},
            "ops": (OpRecord("aten::relu"),),
        },
    ],
)
def test_host_work_that_cannot_be_compared_passes(changes: dict[str, Any]) -> None:
    assert judged({}, COPIES, **changes).status.value == "PASS"


@pytest.mark.parametrize(("ops", "others"), [((), 230), ((OpRecord("aten::relu"),) * 2, 30)])
def test_host_work_is_a_cause_with_its_line(ops: tuple[OpRecord, ...], others: int) -> None:
    verdict = judged({}, COPIES, ops=ops)
    said = builders.reasons(verdict, "cause")
    assert said[0].startswith(
        f"host: copy.deepcopy 0 -> 40 calls\nand {others} more calls at that line"
    )
    assert builders.reasons(verdict, "code")[0] == "net.py:41  layers.0  copy.deepcopy(config)"
    assert "calls of functions 100 -> 370" in "".join(builders.reasons(verdict, "counts"))


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ({"lines": 900}, "host: 400 -> 900 lines of your code run"),
        ({"net.py:walk": 310}, "host: net.py:walk 0 -> 310 calls"),
        ({"zoo.model.walk": 310}, "host: zoo.model.walk 0 -> 310 calls"),
        ({"torch.typename": 310}, "host: torch.typename 0 -> 310 calls"),
    ],
)
@pytest.mark.parametrize(("kernel_us", "place"), [(5.0, 0), (50.0, 1)])
def test_host_work_is_shown_beside_a_new_kernel(
    calls: Calls, said: str, kernel_us: float, place: int
) -> None:
    kernels = (*builders.run().kernels, builders.launched("new_kernel", kernel_us))
    verdict = judged({}, calls, ops=(OpRecord("aten::relu"),), kernels=kernels)
    assert verdict.status.value == "REGRESSED"
    causes = builders.reasons(verdict, "cause")
    assert (len(causes), causes[place]) == (2, said)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ({"copy.copy": 60}, "copy.copy 0 -> 60 calls"),
        # a part of a sum, where it is seldom called
        ({"torch.overrides.suppress": 60}, "torch.overrides.suppress 0 -> 60 calls"),
        ({"torch.part3": 60}, "torch.part3 1 -> 60 calls"),
        ({"lines": 900}, "400 -> 900 lines of your code run"),
    ],
)
def test_host_work_says_what_the_baseline_knows(calls: Calls, said: str) -> None:
    before = MANY | {f"torch.part{number}": 1 for number in range(9)}
    assert (
        builders.reasons(judged(before, before | calls), "cause")[0].splitlines()[0]
        == f"host: {said}"
    )


def test_less_host_work_names_what_is_less() -> None:
    """One more call of a function among the seldom ones is no cause of it."""
    before = MANY | {"torch.part": 200}
    verdict = judged(before, before | {"torch.part": 20, "net.py:act": 2})
    assert verdict.status.value == "PASS"
    assert builders.reasons(verdict, "cause") == ["host: torch.part 200 -> 20 calls"]


def test_less_host_work_of_a_sum_names_a_function() -> None:
    verdict = judged({"net.py:old": 50, "net.py:kept": 9}, {"net.py:kept": 9})
    assert verdict.status.value == "PASS"
    assert builders.reasons(verdict, "cause") == ["host: net.py:old 50 -> 0 calls"]


def test_calls_inside_a_new_call_belong_to_its_line() -> None:
    """A cheap function has its own line for as many calls as nothing else explains."""
    lines = [
        Origin("", (SourceLine("net.py", number, "ask(x)"),), calls=n)
        for number, n in ((7, 90), (8, 30))
    ]
    calls = {"copy.deepcopy": 1, "copy._keep_alive": 40, "<builtins.id>": 200}
    verdict = judged(
        {"<builtins.id>": 90},
        calls | {"net.py:ask": 1},
        host_work_callers={
            "copy.deepcopy": {"net.py:Net.forward": 1},
            "copy._keep_alive": {"copy.deepcopy": 40},
            "<builtins.id>": {"copy._keep_alive": 80, "net.py:Net.forward": 120},
        },
        host_work_origins={"copy.deepcopy": (Origin("", (LINE,)),), "<builtins.id>": tuple(lines)},
    )
    assert (
        builders.reasons(verdict, "cause")[0]
        == "host: copy.deepcopy 0 -> 1 call\nand 120 more calls at that line"
    )
    assert [each[:9] for each in builders.reasons(verdict, "code")] == ["net.py:41", "net.py:8 "]


@pytest.mark.parametrize(
    ("calls", "first"), [(50, "net.py:walk 0 -> 50 calls"), (1, "4 -> 500 lines")]
)
def test_lines_of_functions_that_are_called_more_are_no_loop(calls: int, first: str) -> None:
    verdict = judged(
        {"lines": 4},
        {"lines": 500, "net.py:walk": calls, "<builtins.len>": 20},
        host_work_origins={"net.py:walk": (Origin("", (LINE,)),)},
    )
    causes = builders.reasons(verdict, "cause")
    assert causes[0].startswith(f"host: {first}")
    assert any("4 -> 500 lines" in each for each in causes)


@pytest.mark.parametrize("more", [{}, {"<builtins.len>": 21}])
def test_fewer_lines_alone_are_named(more: Calls) -> None:
    before = USUAL | {"lines": 4000}
    verdict = judged(before, before | {"lines": 400} | more)
    assert verdict.status.value == "PASS"
    assert builders.reasons(verdict, "cause") == ["host: 4,000 -> 400 lines of your code run"]


def test_slower_latency_names_host_work() -> None:
    machine = builders.fingerprint(arch="cpu")
    old = replace(builders.run(host_work=USUAL, machine=machine, gpu=None), host="here")
    samples = {
        **old.samples,
        Timer.END_TO_END: builders.sample((900.0, 901.0, 902.0), control_us=10.0),
    }
    new = replace(old, host_work=USUAL | COPIES, host_work_origins=FOUND, samples=samples)
    verdict = builders.judged_time(Timer.END_TO_END, new, builders.from_run(old, suite="perf"))
    assert verdict.status.value == "REGRESSED"
    assert builders.reasons(verdict, "cause")[0].startswith("host: copy.deepcopy 0 -> 40 calls")
    assert builders.reasons(verdict, "why")[-1].endswith(", without Python and other jobs")


def test_accepting_other_host_work_stores_it() -> None:
    old = builders.run(host_work=USUAL)
    new = replace(old, host_work=USUAL | COPIES)
    found = builders.reviewed_run(new, builders.from_run(old, suite="perf"))
    assert found.group is Group.KERNELS
    assert found.change is not None
    assert found.change.baseline is not None
    assert found.change.baseline.host_work["copy.deepcopy"] == 40


def test_processes_that_differ_widen_what_varies() -> None:
    runs = [builders.run(host_work=USUAL | {"<builtins.len>": count}) for count in (20, 24)]
    stored = builders.calibrated(runs)
    assert (stored.host_work["<builtins.len>"], stored.host_spread) == (24, {"<builtins.len>": 4})
