"""Results as JUnit XML: that of pytest, structurally."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET

import pytest
from _pytest.junitxml import mangle_test_address

from kernelgauge import standard
from kernelgauge.judge import Status
from kernelgauge.printable import printable
from kernelgauge.report.endings import ended_with
from kernelgauge.report.junit import junit
from kernelgauge.results import Results, TestResult
from kernelgauge.run import Timer
from tests.builders import WORKLOAD, run
from tests.test_results import HOSTILE, hostile, one_test, results, verdict, workload

# Jenkins's junit-10.xsd, which pytest tests its family xunit2 with, in the elements that are written here: children,
# required and allowed attributes. The properties of a test case are pytest's addition.
SCHEMA: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"testsuite"}, set(), {"name", "time", "tests", "failures", "errors"}),
    "testsuite": (
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url", "version"},
    ),
    "testcase": (
        {"properties", "skipped", "error", "failure", "system-out", "system-err"},
        {"name"},
        {"time", "classname", "group"},
    ),
    "properties": ({"property"}, set(), set()),
    "property": (set(), {"name", "value"}, set()),
    "failure": (set(), set(), {"type", "message"}),
    "skipped": (set(), set(), {"type", "message"}),
}
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]{0,3})?")


def valid(content: bytes) -> ET.Element:
    """The root, once everything in it is what the schema allows, and the suite's numbers are those of its cases."""
    root = ET.fromstring(content)
    assert root.tag == "testsuites"
    for element in root.iter():
        children, required, optional = SCHEMA[element.tag]
        assert {child.tag for child in element} <= children
        assert required <= set(element.attrib) <= required | optional
        if element.tag not in ("failure", "skipped"):
            assert not (element.text or "").strip()
        assert TIME.fullmatch(element.get("time", ""))
    (suite,) = root
    cases = suite.findall("testcase")
    ends = [[child.tag for child in case if child.tag != "properties"] for case in cases]
    assert int(suite.attrib["tests"]) == len(cases)
    assert int(suite.attrib["failures"]) == sum("failure" in tags for tags in ends)
    assert int(suite.attrib["skipped"]) == sum("skipped" in tags for tags in ends)
    assert int(suite.attrib["errors"]) == 0
    assert all(len(tags) <= 1 for tags in ends)
    return root


def cases(told: Results) -> dict[str, ET.Element]:
    """Test cases by name, without the workload."""
    return {case.attrib["name"].partition("[")[0]: case for case in valid(junit(told)).iter("testcase")}


def properties(case: ET.Element) -> dict[str, str]:
    return {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}


def end(case: ET.Element, tag: str) -> ET.Element:
    found = case.find(tag)
    assert found is not None
    return found


def test_of_nothing_there_is_an_empty_suite() -> None:
    (suite,) = valid(junit(results()))
    assert suite.attrib["tests"] == "0"
    assert suite.attrib["timestamp"] == "2026-11-20T19:10:12+00:00"


def test_the_suite_says_what_machine_it_was() -> None:
    (suite,) = valid(junit(results()))
    told = properties(suite)
    assert (told["kernelgauge_device"], told["kernelgauge_driver"]) == ("NVIDIA H200", "580.159.04")
    assert told["kernelgauge_gpu"] == "0f1e2d3c"
    (unknown,) = valid(junit(results(fingerprint=None, gpu=None)))
    assert set(properties(unknown)) == {"kernelgauge_version"}


def test_of_several_gpus_each_test_names_its_own() -> None:
    tests = [one_test("test_device_time", workload=gpu) for gpu in ("aa", "bb")]
    measured = [workload(verdict(workload=gpu), name=gpu, run=run(workload=gpu, gpu=gpu)) for gpu in ("aa", "bb")]
    untested = workload(verdict(workload="cc"), name="cc", run=run(workload="cc", gpu="cc"))
    (suite,) = valid(junit(results(*measured, untested, tests=tuple(tests), gpu=None)))
    named = {case.attrib["name"]: properties(case)["kernelgauge_gpu"] for case in suite.iter("testcase")}
    assert named == {"test_device_time[aa]": "aa", "test_device_time[bb]": "bb", "device time[cc]": "cc"}
    said_of_all = suite.find("properties")
    assert said_of_all is not None
    assert "kernelgauge_gpu" not in properties(said_of_all)


def test_a_test_that_passed_has_its_verdict_and_its_numbers() -> None:
    told = results(workload(verdict()), tests=(one_test("test_device_time", claim="Sum of kernel durations."),))
    case = cases(told)["test_device_time"]
    assert (case.attrib["classname"], case.attrib["time"]) == ("perf.test_latency", "0.250")
    assert properties(case) == {
        "kernelgauge_verdict": "PASS",
        "kernelgauge_reason": "device time 205.1 -> 221.8 us",
        "kernelgauge_claim": "Sum of kernel durations.",
        "kernelgauge_device_time_us": "205.100",
        "kernelgauge_device_time_baseline_us": "205.100",
        "kernelgauge_change_percent": "8.100",
        "kernelgauge_ci_low_percent": "7.900",
        "kernelgauge_ci_high_percent": "8.400",
    }


def test_a_test_that_failed_has_the_verdict_for_a_message_and_all_it_said() -> None:
    worse = verdict(Status.REGRESSED, reasons=[("why", "a kernel  1.0 -> 2.0 us")])
    told = results(workload(worse), tests=(one_test("test_device_time", "failed", said=str(worse)),))
    failure = end(cases(told)["test_device_time"], "failure")
    assert failure.attrib == {"type": "REGRESSED", "message": "REGRESSED  device time 205.1 -> 221.8 us"}
    assert failure.text == str(worse)


def test_a_claim_that_failed_says_what_the_assertion_said() -> None:
    said = "\n    def test_c09(run):\n>       assert 6 == 5\nE       AssertionError: assert 6 == 5\nE        +  where"
    broken = verdict(Status.REGRESSED, "test_c09", "the test failed")
    told = results(workload(broken), tests=(one_test("test_c09", "failed", said=said),))
    case = cases(told)["test_c09"]
    assert end(case, "failure").attrib["message"] == "AssertionError: assert 6 == 5"
    assert end(case, "failure").text == said
    assert properties(case)["kernelgauge_verdict"] == "REGRESSED"


def test_a_test_that_was_skipped_says_why() -> None:
    told = results(workload(), tests=(one_test("test_latency", "skipped", said="no baseline\nrecord one"),))
    skipped = end(cases(told)["test_latency"], "skipped")
    assert skipped.attrib == {"type": "pytest.skip", "message": "no baseline"}
    assert skipped.text == "no baseline\nrecord one"


def test_a_test_of_no_workload_is_a_case_too() -> None:
    told = results(tests=(one_test("test_any", "failed", workload=None, said="assert False"),))
    assert end(cases(told)["test_any"], "failure").attrib == {"type": "failed", "message": "assert False"}


def test_no_failing_verdict_is_left_out_though_no_test_ended_with_it() -> None:
    told = results(
        workload(verdict(), verdict(Status.INVALID, "measurement", "the GPU was throttled"), unavailable=None),
        workload(name="absent", run=None, unavailable="not installed"),
        tests=(one_test("test_device_time"),),
    )
    found = cases(told)
    assert end(found["measurement"], "skipped").text == "not installed"  # of the workload that comes last
    root = valid(junit(told))
    failures = [case.attrib["name"] for case in root.iter("testcase") if case.find("failure") is not None]
    assert failures == [f"measurement[{WORKLOAD}]"]
    assert "device time" not in found  # its test says it


@pytest.mark.parametrize(("status", "failures"), [(0, "0"), (1, "0"), (2, "1"), (3, "1"), (5, "1")])
def test_a_session_that_was_cut_short_is_a_failure(status: int, failures: str) -> None:
    (suite,) = valid(junit(results(exit_status=status)))
    assert suite.attrib["failures"] == failures


def test_what_was_not_decided_is_skipped_and_not_passed() -> None:
    told = results(workload(verdict(Status.UNDECIDED, headline="too noisy")))
    assert end(cases(told)["device time"], "skipped").attrib["message"] == "UNDECIDED  too noisy"


@pytest.mark.parametrize(
    "node",
    [
        "perf/test_latency.py::test_device_time[mlp-eager-bf16-4x8]",
        "perf/test_latency.py::test_device_time",
        "perf/deep/er/test_x.py::TestClass::test_y[a::b/c.py-[d]]",
        "test_x.py::test_y",
        "perf/test_x.py",
    ],
)
def test_names_are_those_that_pytest_writes(node: str) -> None:
    told = results(tests=(TestResult(node, None, "passed", 0.0),))
    (case,) = valid(junit(told)).iter("testcase")
    *parents, name = mangle_test_address(node)
    assert (case.attrib["classname"], case.attrib["name"]) == (".".join(parents), name)


@pytest.mark.parametrize("name", standard.__all__)
def test_every_standard_test_is_known_by_the_subject_of_its_verdict(name: str) -> None:
    subjects = [*(timer.label for timer in Timer), "declared structure", "numerics", "structure"]
    verdicts = [verdict(subject=subject) for subject in subjects]
    found = ended_with(one_test(name), verdicts)
    assert found is not None
    assert len({ended_with(one_test(each), verdicts) for each in standard.__all__}) == len(standard.__all__)


def test_a_test_of_another_name_ended_with_the_verdict_that_it_printed() -> None:
    worse = verdict(Status.REGRESSED, Timer.HOST.label, "host dispatch 1.0 -> 2.0 us")
    assert ended_with(one_test("test_of_mine", "failed", said=f"\n{worse}"), [verdict(), worse]) is worse
    assert ended_with(one_test("test_of_mine", "failed", said="something else"), [verdict(), worse]) is None


def test_a_long_message_is_cut_and_the_text_is_not() -> None:
    told = results(tests=(one_test("test_any", "failed", workload=None, said="x" * 10_000),))
    failure = end(cases(told)["test_any"], "failure")
    assert failure.attrib["message"] == "x" * 500 + "..."
    assert failure.text == "x" * 10_000


def test_a_negative_duration_is_none() -> None:
    told = results(tests=(one_test("test_any", workload=None, seconds=-0.1),), seconds=-1.0)
    assert valid(junit(told)).find("testsuite/testcase[@time='0.000']") is not None


@pytest.mark.parametrize("text", [*HOSTILE, "\ud800"])
def test_no_text_breaks_the_file_or_loses_a_test(text: str) -> None:
    told = hostile(text, Status.REGRESSED, Status.UNDECIDED)
    root = valid(junit(told))
    assert len(list(root.iter("testcase"))) >= len(told.tests)
    values = {element.attrib["value"] for element in root.iter("property")}
    assert printable(text) in values
    assert all(value.isprintable() for value in values)


def test_every_character_can_be_in_a_name() -> None:
    for start in range(0, sys.maxunicode + 1, 1 << 14):
        text = "".join(map(chr, range(start, start + (1 << 14))))
        told = results(tests=(TestResult(f"t.py::t[{text}]", None, "failed", 0.0, said=text),))
        (case,) = valid(junit(told)).iter("testcase")
        assert case.attrib["name"] == f"t[{printable(text)}]"
