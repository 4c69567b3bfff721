"""Results as JUnit XML, as pytest's own `--junitxml` writes it: made afterwards, or on another machine."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from ..judge import Status, Verdict, observe
from ..printable import printable
from ..results import Results, WorkloadResult
from ..run import Timer
from .endings import ended_with, first_error

__all__ = ["junit"]

_TIMERS = {timer.label: timer for timer in Timer}
_LONGEST_MESSAGE = 500  # characters, as in pytest's; the element's text has the rest


def junit(results: Results) -> bytes:
    """One test case for each test, and one for each verdict and each unavailable workload that no test speaks of.

    The file is of the family xunit2 (https://docs.pytest.org/en/stable/reference/reference.html#confval-junit_family).
    Test cases carry properties, as pytest's do where a plugin attaches some; the schema that the family is named after
    has no place for them (https://github.com/jenkinsci/xunit-plugin, junit-10.xsd).
    """
    cases = [*_tests(results), *_untested(results)]
    suite = ET.Element(
        "testsuite",
        name="kernelgauge",
        errors="0",
        failures=str(sum(case.find("failure") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        tests=str(len(cases)),
        time=_seconds(results.seconds),
        timestamp=printable(results.started_at),
    )
    _add_properties(suite, _of_the_session(results))
    suite.extend(cases)
    root = ET.Element("testsuites", name="kernelgauge")
    root.append(suite)
    ET.indent(root)
    written: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _tests(results: Results) -> Iterator[ET.Element]:
    workloads = {workload.id: workload for workload in results.workloads}
    for test in results.tests:
        workload = workloads.get(test.workload or "")
        verdict = ended_with(test, workload.verdicts) if workload else None
        case = _case(*_address(test.node), seconds=test.seconds)
        _add_properties(case, _of_the_test(results, workload, verdict, test.claim))
        if test.outcome == "failed":
            printed = verdict is not None and test.said.startswith(f"{verdict.workload}: ")
            message = _headline(verdict) if verdict and (printed or not test.said) else first_error(test.said)
            _add_end(case, "failure", verdict.status.value if verdict else "failed", message, test.said)
        elif test.outcome == "skipped":
            _add_end(case, "skipped", "pytest.skip", test.said, test.said)
        yield case


def _untested(results: Results) -> Iterator[ET.Element]:
    """What was concluded and no test ended with: nothing that fails is left out of the file."""
    told: set[tuple[str, str]] = set()
    tested = {test.workload for test in results.tests}
    verdicts = {workload.id: workload.verdicts for workload in results.workloads}
    for test in results.tests:
        verdict = ended_with(test, verdicts.get(test.workload or "", ()))
        if verdict is not None:
            told.add((test.workload or "", verdict.subject))
    for workload in results.workloads:
        address = _dotted(workload.suite)
        for verdict in workload.verdicts:
            if (workload.id, verdict.subject) in told:
                continue
            case = _case(address, f"{verdict.subject}[{workload.id}]", seconds=0.0)
            _add_properties(case, _of_the_test(results, workload, verdict, ""))
            if verdict.status.fails:
                _add_end(case, "failure", verdict.status.value, _headline(verdict), str(verdict))
            elif not verdict.status.decided or verdict.status is Status.NOT_JUDGED:
                _add_end(case, "skipped", "pytest.skip", _headline(verdict), str(verdict))
            yield case
        if workload.unavailable is not None and workload.id not in tested:
            case = _case(address, f"measurement[{workload.id}]", seconds=0.0)
            _add_end(case, "skipped", "pytest.skip", workload.unavailable, workload.unavailable)
            yield case
    if results.exit_status not in (0, 1):  # all passed, or some failed: pytest.ExitCode
        case = _case("kernelgauge", "session", seconds=0.0)
        _add_end(case, "failure", "failed", said := f"pytest ended with exit status {results.exit_status}", said)
        yield case


def _case(classname: str, name: str, *, seconds: float) -> ET.Element:
    return ET.Element("testcase", classname=printable(classname), name=printable(name), time=_seconds(seconds))


def _seconds(seconds: float) -> str:
    return f"{max(0.0, seconds):.3f}"


def _address(node: str) -> tuple[str, str]:
    """(classname, name) of a test, as pytest makes them: ``perf/test_x.py::test_y[z]`` -> ``perf.test_x``, ``test_y[z]``."""
    path, bracket, parameters = node.partition("[")
    file, *names = path.split("::")
    *parents, name = [re.sub(r"\.py$", "", _dotted(file)), *names]
    return ".".join(parents), name + bracket + parameters


def _dotted(path: str) -> str:
    return path.replace("/", ".")


def _headline(verdict: Verdict) -> str:
    return f"{verdict.status.value}  {verdict.headline}"


def _add_end(case: ET.Element, tag: str, kind: str, message: str, text: str) -> None:
    first = message.strip().partition("\n")[0]
    shown = printable(first[:_LONGEST_MESSAGE]) + ("..." if len(first) > _LONGEST_MESSAGE else "")
    ET.SubElement(case, tag, type=kind, message=shown).text = "\n".join(map(printable, text.split("\n")))


def _add_properties(element: ET.Element, values: Iterator[tuple[str, object]]) -> None:
    known = [(name, value) for name, value in values if value is not None]
    if known:
        properties = ET.SubElement(element, "properties")
        for name, value in known:
            ET.SubElement(properties, "property", name=name, value=printable(str(value)))


def _of_the_session(results: Results) -> Iterator[tuple[str, object]]:
    yield "kernelgauge_version", results.kernelgauge
    yield "kernelgauge_gpu", results.gpu
    if results.fingerprint is not None:
        for name in results.fingerprint.__struct_fields__:
            yield f"kernelgauge_{name}", getattr(results.fingerprint, name)


def _of_the_test(
    results: Results, workload: WorkloadResult | None, verdict: Verdict | None, claim: str
) -> Iterator[tuple[str, object]]:
    if verdict is not None:  # the two that the plugin attaches to pytest's own
        yield "kernelgauge_verdict", verdict.status.value
        yield "kernelgauge_reason", verdict.headline
    yield "kernelgauge_claim", claim or None
    if workload is not None and results.gpu is None:  # else the suite names the only one
        yield "kernelgauge_gpu", results.machine_of(workload)[1]
    timer = _TIMERS.get(verdict.subject) if verdict is not None else None
    if workload is None or verdict is None or timer is None:
        return
    sample = workload.run.sample(timer) if workload.run is not None else None
    yield f"kernelgauge_{timer.value}_us", f"{observe(sample).mean_us:.3f}" if sample is not None else None
    yield (
        f"kernelgauge_{timer.value}_baseline_us",
        f"{verdict.before_us:.3f}" if verdict.before_us is not None else None,
    )
    if verdict.change is not None:
        yield "kernelgauge_change_percent", f"{100 * verdict.change.estimate:.3f}"
        for side, value in (("low", verdict.change.low), ("high", verdict.change.high)):
            yield f"kernelgauge_ci_{side}_percent", None if value is None else f"{100 * value:.3f}"
