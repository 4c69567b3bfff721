"""How each verdict ends its test: exit code, JUnit file, terminal and results agree; and what is
measured again.
"""

from typing import Any, NamedTuple

import pytest

from kernelgauge.run import Timer
from tests.plugin.inner_project import ID, Project, fake, text_of

ALL = ("device", "host", "latency", "declared", "structure")
BY_BASELINE = ("device", "host", "latency", "structure")
LOST = "the GPU no longer answers"


def every(status: str | None, tests: tuple[str, ...] = BY_BASELINE) -> dict[str, str | None]:
    return dict.fromkeys(tests, status)


class Fault(NamedTuple):
    """A workload after its baseline was recorded, and the verdicts that are no PASS."""

    fake: dict[str, Any]
    verdicts: dict[str, str | None]
    lines: tuple[str, ...] = ()  # on the terminal
    afresh: bool = False  # whether a fresh process measures it


FAULTS = {
    "same": Fault({}, {}),
    "slower": Fault(
        {"gelu_us": 5.5},
        {"device": "REGRESSED"},
        (
            "slower-eager-bf16-4x8: REGRESSED  GPU time 10.0 -> 11.5 us  +15.00 %*",
            "  cause    the same kernel, slower: a_gelu  4.0 -> 5.5 us (+1.5 us)",
            "  baseline baselines/test-gpu/slower-eager-bf16-4x8.json*",
            "  accept   kernelgauge accept -k slower-eager-bf16-4x8",
        ),
        afresh=True,
    ),
    "host": Fault({"host_us": 200.0}, {"host": "REGRESSED"}, afresh=True),
    "faster": Fault({"gelu_us": 3.0}, {"device": "IMPROVED"}),
    "noisy": Fault(
        {"gelu_us": 4.3, "noise": 0.1},
        {"device": "UNDECIDED"},
        ("*noisy-*UNDECIDED*inconclusive: *",),
    ),
    "counts": Fault(
        {"counts": {"dispatcher_ops": 7}}, {"structure": "REGRESSED"}, ("*dispatcher ops 5 -> 7",)
    ),
    "declared": Fault(
        {"kinds": ("gemm",), "counts": {"graph_breaks": 2, "recompiles": 1}, "graph_breaks": 0},
        {"declared": "CHANGED", "structure": "REGRESSED"},
        (
            "*kernel kinds: got 2, expected 1",
            "*2 graph breaks, 0 declared",
            "  next     if that is right: Workload(..., graph_breaks=2)",
            "  counts   graph breaks 0 -> 2, recompiles 0 -> 1",
            "  next     not accepted while a declaration fails: mend the code or declare it",
        ),
    ),
    "new": Fault({}, every("NO_BASELINE")),
    "throttled": Fault(
        {"gelu_us": 9.0}, every("INCOMPARABLE"), ("*throttled-*INCOMPARABLE*350.0 -> 700.0*",)
    ),
    "newer": Fault({}, every("INVALID"), ("*where *baselines/test-gpu/newer-*.json*", "*got *99*")),
    "failed": Fault({"error": "measurement"}, every("INVALID", ALL), ("the fake error",)),
    "lost": Fault(
        {"incomplete": LOST},
        every("INVALID", ALL[:2]),
        (f"*INVALID  GPU time was not measured: {LOST}",),
    ),
    "absent": Fault(
        {"error": "unavailable"},
        every(None, ALL),
        ("not run: absent-*: the fake error; take another",),
    ),
}
# How a test ends with each verdict: by default, and with --perf-strict.
ENDS = {
    "PASS": ({"passed"}, {"passed"}),
    "IMPROVED": ({"passed"}, {"passed"}),
    "REGRESSED": ({"failure"}, {"failure"}),
    "CHANGED": ({"failure"}, {"failure"}),
    "INVALID": ({"failure", "error", "skipped"},) * 2,  # skipped: another test has failed with it
    "UNDECIDED": ({"skipped"}, {"failure"}),
    "NO_BASELINE": ({"skipped"}, {"failure"}),
    "INCOMPARABLE": ({"skipped"}, {"failure"}),
    # the workload cannot run here: one test fails
    None: ({"skipped"}, {"failure", "error", "skipped"}),
}


@pytest.mark.parametrize("strict", [(), ("--perf-strict",)], ids=["default", "strict"])
def test_verdict_ends_its_test_as_documented(project: Project, strict: tuple[str, ...]) -> None:
    project.set(*(fake(name) for name in FAULTS if name != "new"))
    project.record()
    (project.baselines / "newer-eager-bf16-4x8.json").write_bytes(b'{"schema_version": 99}')
    project.edit_baseline("throttled-eager-bf16-4x8", fingerprint={"power_limit_watts": 350.0})
    project.set(*(fake(name, **fault.fake) for name, fault in FAULTS.items()))
    result = project.run(*strict)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for name, fault in FAULTS.items():
        expected = every("PASS", ALL) | fault.verdicts
        got, ends = project.verdicts(name), project.verdicts(name, outcome=True)
        assert got == expected, name
        assert [test for test in ALL if ends[test] not in ENDS[got[test]][bool(strict)]] == [], name
        result.stdout.fnmatch_lines_random(fault.lines)
    assert sorted(project.afresh()) == sorted(
        f"{name}-eager-bf16-4x8" for name in FAULTS if FAULTS[name].afresh
    )
    assert len(project.measured()) == 2  # one of each run: a failure is not tried until it works
    assert (
        "GPU time"
        in project.case("test_device_time", "slower-eager-bf16-4x8").properties[
            "kernelgauge_reason"
        ]
    )
    command = (
        "pytest perf*-k new-*--perf-update"
        if strict
        else "*record one with: pytest perf --perf-update*"
    )
    result.stdout.fnmatch_lines([f"*{command}"])
    for name in ("failed", *(["absent"] if strict else [])):
        assert sorted(project.verdicts(name, outcome=True).values()) == [
            "failure",
            *["skipped"] * (len(ALL) - 1),
        ]
    (absent,) = [each for each in project.results().workloads if each.module == "absent"]
    assert (absent.unavailable, absent.run, absent.verdicts) == (
        "the fake error; take another",
        None,
        (),
    )


def test_missing_device_fails_each_test_but_not_the_run(project: Project) -> None:
    project.set(fake(), has_device=False)
    result = project.run()
    assert (result.ret, "INTERNALERROR" in text_of(result)) == (pytest.ExitCode.TESTS_FAILED, False)
    result.stdout.fnmatch_lines(["no such device", "  next     nvidia-smi"])
    assert project.verdicts() == every("INVALID", ALL)
    results = project.results()
    assert (results.fingerprint, results.gpu, results.status.value) == (None, None, "INVALID")
    assert "nothing was measured" in (project.latest / "report.md").read_text()


def test_error_that_an_xfail_test_takes_fails_another(project: Project) -> None:
    project.write(
        "test_a.py", "import pytest\n@pytest.mark.xfail\ndef test_a(workload, run):\n    pass\n"
    )
    project.set(fake(error="measurement"))
    assert project.run().ret == pytest.ExitCode.TESTS_FAILED


OWN = """
import pytest
from kernelgauge import Timer

@pytest.mark.timing(Timer.DEVICE.label)
def test_again(kernelgauge_test):
    kernelgauge_test()

@pytest.mark.timing
def test_reads_times(workload, run, trace_file):
    assert 15 < run.time_us(Timer.DEVICE)
    assert trace_file.exists()
"""


def test_own_test_reads_times_and_confirms_once(project: Project) -> None:
    project.record()
    project.write("test_own.py", OWN)
    project.set(fake(gelu_us=9.5))
    result = project.run("-k", "again or device_time or reads")
    result.assert_outcomes(passed=1, failed=2, deselected=4)
    # The other failure has it whole.
    assert sum(line.startswith("  cause    see test_") for line in result.outlines) == 1
    assert project.afresh() == [ID]
    project.run("-k", "reads").assert_outcomes(passed=1, deselected=6)
    assert project.afresh() == [ID]  # a test that only reads a time confirms nothing


def test_not_timing_measures_no_times(project: Project) -> None:
    project.record()
    project.set(fake(gelu_us=5.5, host_us=200.0))
    project.write("test_own.py", OWN.replace("@pytest.mark.timing\n", ""))
    result = project.run("-m", "not timing", "-k", "not again")
    result.assert_outcomes(passed=2, failed=1, deselected=4)
    lines = ["*GPU time was not measured*", "*no test of a time was selected*", "*the mark timing*"]
    result.stdout.fnmatch_lines(lines)
    assert project.results().workloads[0].run.samples == {}
    assert project.afresh() == []


HINT = "to add this run to them: kernelgauge accept --add"


def test_unknown_gpu_skips_latency_and_hints(project: Project) -> None:
    project.set(fake(), device="NVIDIA H200")  # its noise is known
    project.record()
    assert HINT not in text_of(project.run())
    project.set(fake(host_us=190.0), gpu="another", device="NVIDIA H200")
    assert project.run().ret == pytest.ExitCode.TESTS_FAILED  # dispatch follows the host reference
    assert project.verdicts() == every("PASS", ALL) | {"host": "REGRESSED", "latency": "NOT_JUDGED"}
    project.set(fake(), gpu="another", device="NVIDIA H200")
    for options in ((), ("--perf-strict",)):
        result = project.run(*options)
        assert result.ret == pytest.ExitCode.OK
        assert project.verdicts() == every("PASS", ALL) | {"latency": "NOT_JUDGED"}
        assert project.case("test_end_to_end_latency").outcome == "skipped"
        assert (
            "not judged: the baseline does not know this machine"
            in project.case("test_end_to_end_latency").message
        )
        assert sum(HINT in line for line in result.outlines) == 1
    project.set(fake(), gpu="another", driver="999.1", device="NVIDIA H200")
    assert HINT not in text_of(project.run())


def test_ini_sensitivity_decides_whether_a_time_passes(project: Project) -> None:
    project.record()
    for percent, fraction, verdict in (("0.01", 0.0001, "UNDECIDED"), ("20", 0.2, "PASS")):
        project.run("-o", f"kernelgauge_sensitivity=device_time = {percent} %")
        assert project.verdicts() == every("PASS", ALL) | {"device": verdict}
        assert project.results().workloads[0].limits.sensitivity == {
            Timer.DEVICE: pytest.approx(fraction)
        }
