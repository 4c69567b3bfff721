"""A session measures all, judges all, and lets one fresh process measure what looks slower: tests
look up their verdicts.
"""

from typing import Any

import pytest

from tests.plugin.inner_project import ID, Project, fake, text_of

COUNT_DECODES = """
import kernelgauge.baselines as stored

decode, decodes = stored.decode_baseline, []

def counted(*arguments, **named):
    decodes.append(1)
    return decode(*arguments, **named)

stored.decode_baseline = counted

def pytest_unconfigure(config):
    stored.decode_baseline = decode
    (FOLDER / "decodes").write_text(str(len(decodes)))
"""


def suite(slower: int = 4, of: int = 15, **changes: Any) -> list[dict[str, Any]]:
    return [fake(f"m{each}", **(changes if each < slower else {})) for each in range(of)]


def ids(*numbers: int) -> list[str]:
    return [f"m{each}-eager-bf16-4x8" for each in numbers]


def test_green_run_decodes_each_baseline_once(project: Project) -> None:
    project.set(*suite(0, of=3))
    project.record()
    project.add_to_conftest(COUNT_DECODES)
    assert project.run().ret == pytest.ExitCode.OK
    assert (project.root / "perf" / "decodes").read_text() == "3"


def test_suspects_share_one_fresh_process(project: Project) -> None:
    project.set(*suite(0))
    project.record()
    project.set(*suite(gelu_us=5.5))
    result = project.run("-x")  # of the first failure, which is known when all are measured
    assert project.measured("fresh.txt") == [ids(0, 1, 2, 3)]
    assert "4 of 15 workloads look slower: measuring in a fresh process" in text_of(result)
    result.assert_outcomes(failed=1)
    statuses = [each.status.value for each in project.results().workloads if each.status]
    assert statuses == ["REGRESSED"] * 4 + ["PASS"] * 11


def test_fresh_process_that_fails_is_one_for_each(project: Project) -> None:
    project.set(*suite(0))
    project.record()
    changed = suite(3, gelu_us=5.5, fresh_gelu_us=4.0)
    changed[1] = fake("m1", gelu_us=5.5, fresh_error=True)
    project.set(*changed)
    result = project.run()
    assert project.measured("fresh.txt") == [ids(0, 1, 2), ids(0), ids(1), ids(2)]
    found = {name: project.verdicts(name)["device"] for name in ("m0", "m1", "m2", "m3")}
    assert found == {"m0": "NOT_JUDGED", "m1": "REGRESSED", "m2": "NOT_JUDGED", "m3": "PASS"}
    result.stdout.fnmatch_lines(["*no fresh process confirms it: the fake error: a fake"])


LATENCY = """
def time_latency(workload, measured):
    return Sample(tuple({times} * each for each in (200.0, 201.0, 202.0, 200.5)), 40, (20.0,) * 4)
"""


@pytest.mark.parametrize(
    ("times", "arch", "starts"), [(1.6, "sm_90", True), (9, "sm_90", False), (9, "cpu", True)]
)
def test_time_far_above_the_gate_needs_no_process(
    project: Project, times: float, arch: str, starts: bool
) -> None:
    """On a CPU other jobs slow a call by any factor."""
    project.set(fake(), arch=arch)
    project.record()
    project.add_to_conftest(LATENCY.format(times=times))
    project.run()
    assert project.verdicts()["latency"] == "REGRESSED"
    assert (project.afresh() != []) is starts


def test_fresh_processes_have_a_limit_of_time(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.record()
    project.set(fake(gelu_us=5.5))
    monkeypatch.setattr("kernelgauge.plugin.session._MOST_AFRESH_S", -1.0)
    result = project.run()
    assert (project.verdicts()["device"], project.afresh()) == ("REGRESSED", [])
    result.stdout.fnmatch_lines(
        ["*no fresh process confirms it: fresh processes took 0 s of this run, so no other*"]
    )


SKIPS = """
def pytest_itemcollected(item):
    if item.name.startswith("test_device_time"):
        item.add_marker(pytest.mark.skip("not today"))
"""


@pytest.mark.parametrize(
    ("arguments", "subjects"),
    [
        (["-k", "device_time"], {"GPU time"}),
        (["-m", "not timing"], {"declared structure", "structure"}),
        (["-k", "structure or device"], {"declared structure", "structure", "GPU time"}),
        (["--skip"], {"declared structure", "structure", "host dispatch", "end to end"}),
    ],
)
def test_subject_of_no_test_has_no_verdict(
    project: Project, arguments: list[str], subjects: set[str]
) -> None:
    project.record()
    if arguments == ["--skip"]:
        project.add_to_conftest(SKIPS)
        arguments = []
    project.set(fake(gelu_us=5.5))
    project.run(*arguments)
    assert {each.subject for each in project.results().verdicts} == subjects


RUNS_TWICE = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for again in (False, True):
        runtestprotocol(item, nextitem=nextitem, log=again)
    return True
"""


def test_rerun_looks_up_its_verdict(project: Project) -> None:
    project.record()
    project.set(fake(gelu_us=5.5))
    project.add_to_conftest(RUNS_TWICE)
    project.run().assert_outcomes(failed=1, passed=4)
    assert project.measured()[1:] == [[ID]]
    assert project.afresh() == [ID]


FAULT = """
from kernelgauge.plugin import judging

original = judging.judge_declared

def judge(suites, run, trace):
    if run.workload.startswith("m1-"):
        raise ZeroDivisionError("a fault of ours")
    return original(suites, run, trace)

judging.judge_declared = judge

def pytest_unconfigure(config):
    judging.judge_declared = original
"""


def test_fault_of_ours_fails_its_workload_alone(project: Project) -> None:
    project.set(*suite(0, of=3))
    project.record()
    project.add_to_conftest(FAULT)
    result = project.run()
    result.assert_outcomes(passed=10, failed=5)
    assert "ZeroDivisionError: a fault of ours" in text_of(result)
    found = {each.id: each.status.value for each in project.results().workloads if each.status}
    assert found == dict(zip(ids(0, 1, 2), ("PASS", "INVALID", "PASS"), strict=True))
