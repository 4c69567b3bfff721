"""An inner pytest project that measures fakes, and what pytest, JUnit and the results say of them."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from kernelgauge import Timer
from kernelgauge.results import Results, read_results
from tests import builders

Run = Callable[..., str]  # with the arguments of pytest; returns what it prints
ID, COMPILED, LINEAR = "mlp-eager-bf16-4x8", "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8"
VERDICT = "kernelgauge_verdict"
SHORT = {
    "test_device_time": "device",
    "test_host_dispatch_time": "host",
    "test_end_to_end_latency": "latency",
    "test_kernels_and_graphs_are_as_declared": "declared",
    "test_structure_is_that_of_the_baseline": "structure",
}
GEMM_US, GELU_US = 6.0, 4.0

# The standard tests that need no torch, and one of the end-to-end latency, which `inner_suite`
# times without a clock.
TESTS = """
import pytest

from kernelgauge import Timer
from kernelgauge.standard import test_device_time, test_host_dispatch_time
from kernelgauge.standard import test_kernels_and_graphs_are_as_declared, test_structure_is_that_of_the_baseline


@pytest.mark.timing(Timer.END_TO_END.label)
def test_end_to_end_latency(kernelgauge_test):
    kernelgauge_test()
"""


def fake(
    module: str = "mlp",
    variant: str = "eager",
    *,
    gelu_us: float = GELU_US,
    host_us: float = 100.0,
    noise: float = 0.001,
    kinds: tuple[str, ...] = ("gemm", "pointwise"),
    counts: dict[str, int] | None = None,
    incomplete: str | None = None,
    error: str | None = None,
    fresh_gelu_us: float | None = None,
    fresh_error: bool = False,
    fresh_kernel: str = "a_gemm",
    problem: str = "",
    **declared: Any,
) -> dict[str, Any]:
    """Return a workload and its run: a GEMM, and a pointwise kernel of `gelu_us`.

    `fresh_...`: what a fresh process finds; by default the same again. `declared`: its other
    fields.
    """

    def samples(gelu_us: float) -> dict[Timer, Any]:
        places = (-1.0, 0.5, 1.0, -0.5)
        device = builders.sample([(GEMM_US + gelu_us) * (1 + noise * place) for place in places])
        host = builders.sample([host_us * (1 + 0.001 * place) for place in places], control_us=10.0)
        return {Timer.DEVICE: device, Timer.HOST: host}

    declared = {"module": module, "variant": variant, "shape": (4, 8), **declared}
    few = {
        "launches": 2,
        "kernels": 2,
        "memsets": 0,
        "dispatcher_ops": 5,
        "peak_allocated_bytes": None,
    }
    run = builders.run(
        workload=f"{module}-{variant}-bf16-{'x'.join(map(str, declared['shape']))}",
        kernels=(
            builders.launched("a_gemm", GEMM_US),
            builders.launched("a_gelu", gelu_us, kind="pointwise"),
        ),
        counts=builders.counts(**few | (counts or {})),
        samples={} if incomplete else samples(gelu_us),
        incomplete=incomplete,
        controls={},
    )
    # a host clock may be disturbed there
    timed = {Timer.DEVICE: samples(fresh_gelu_us or gelu_us)[Timer.DEVICE]}
    kernels = (builders.launched(fresh_kernel, GEMM_US), run.kernels[1])
    fresh = msgspec.structs.replace(run, samples=timed, kernels=kernels)
    errors = {"error": error, "fresh_error": fresh_error, "problem": problem}
    return {"declared": declared, "kinds": kinds, "run": run, "fresh": fresh, **errors}


IDS = [ID, COMPILED, LINEAR, "linear-compiled-bf16-4x8"]


def two_modules(**of_the_third: Any) -> tuple[dict[str, Any], ...]:
    return (
        fake(),
        fake(variant="compiled"),
        fake("linear", **of_the_third),
        fake("linear", "compiled"),
    )


class Case(NamedTuple):
    name: str
    parameters: str
    outcome: str  # "passed", "skipped", "failure" or "error"
    message: str
    properties: dict[str, str]


def junit_cases(path: Path) -> list[Case]:
    found = []
    for case in ET.parse(path).iter("testcase"):
        name, _, parameters = case.attrib["name"].partition("[")
        ends = [child for child in case if child.tag in ("skipped", "failure", "error")]
        properties = {
            entry.attrib["name"]: entry.attrib["value"] for entry in case.iter("property")
        }
        message = " ".join(end.attrib["message"] for end in ends)
        found.append(
            Case(
                name,
                parameters.removesuffix("]"),
                ends[0].tag if ends else "passed",
                message,
                properties,
            )
        )
    return found


def text_of(result: pytest.RunResult) -> str:
    return "\n".join(result.outlines + result.errlines)


class Project:
    """A project with a suite in `perf/`, in the current folder."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.root = pytester.path
        self.baselines = self.root / "baselines" / "test-gpu"
        self.latest = self.root / "reports" / "latest"
        (self.root / "perf").mkdir()
        self.write("conftest.py", Path(__file__).with_name("inner_suite.py").read_text())
        self.write("test_perf.py", TESTS)
        self.set(fake())

    def set(
        self, *fakes: dict[str, Any], gpu: str = "one", has_device: bool = True, **machine: Any
    ) -> None:
        """Say what the next runs measure, and on which machine."""
        fingerprint = builders.fingerprint(**({"device": "Test GPU"} | machine))
        content = {"fakes": fakes, "fingerprint": fingerprint, "gpu": gpu, "has_device": has_device}
        self.write("fakes.json", msgspec.json.encode(content).decode())

    def write(self, name: str, text: str) -> None:
        (self.root / "perf" / name).write_text(text)

    def add_to_conftest(self, text: str) -> None:
        with (self.root / "perf" / "conftest.py").open("a") as file:
            file.write(text)

    def run(self, *arguments: str, suite: str = "perf", **options: Any) -> pytest.RunResult:
        (self.root / "junit.xml").unlink(missing_ok=True)
        junit = f"--junitxml={self.root / 'junit.xml'}"
        return self.pytester.runpytest_inprocess(suite, junit, "-rA", *arguments, **options)

    def record(self, *arguments: str) -> pytest.RunResult:
        result = self.run("--perf-update", *arguments)
        assert result.ret == pytest.ExitCode.OK
        return result

    def refuse(self, *arguments: str) -> str:
        """Run the suite, require that nothing is measured, and return the text of the usage error."""
        before, result = self.measured(), self.run(*arguments)
        assert (result.ret, self.measured()) == (pytest.ExitCode.USAGE_ERROR, before)
        assert "INTERNALERROR" not in text_of(result)
        return text_of(result)

    def stored(self) -> dict[str, bytes]:
        return {
            path.stem: path.read_bytes()
            for path in sorted((self.root / "baselines").glob("*/*.json"))
        }

    def edit_baseline(self, workload: str, **fields: Any) -> None:
        path = self.baselines / f"{workload}.json"
        content = json.loads(path.read_text())
        if "fingerprint" in fields:
            fields["fingerprint"] = content["fingerprint"] | fields["fingerprint"]
        path.write_text(json.dumps(content | fields))

    def measured(self, name: str = "measured.txt") -> list[list[str]]:
        """Return the ids of the workloads that were measured so far, by call of the measurer."""
        path = self.root / "perf" / name
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def afresh(self) -> list[str]:
        """Return the ids of the workloads that fresh processes measured so far."""
        return [workload for process in self.measured("fresh.txt") for workload in process]

    def cases(self) -> list[Case]:
        return junit_cases(self.root / "junit.xml")

    def case(self, name: str, workload: str = ID) -> Case:
        (found,) = [
            case for case in self.cases() if (case.name, case.parameters) == (name, workload)
        ]
        return found

    def verdicts(self, module: str = "mlp", *, outcome: bool = False) -> dict[str, str | None]:
        """Return the verdict of each test of a module's workload, or its outcome, by the test's
        short name.
        """
        return {
            SHORT.get(case.name, case.name): case.outcome
            if outcome
            else case.properties.get(VERDICT)
            for case in self.cases()
            if case.parameters.startswith(f"{module}-")
        }

    def results(self) -> Results:
        return read_results(self.latest / "results.json")
