"""An inner project whose measurements the test tells, and what pytest, JUnit and the summary say of it."""

from __future__ import annotations

import json
import re
import shlex
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import scipy.special  # noqa: F401  (an inner run forgets the modules that it imported; C extensions load only once)

import kernelgauge.workload  # noqa: F401  (so that all inner runs have the same class)
from kernelgauge.results import Results, read_results

ID = "mlp-eager-bf16-4x8"
VERDICT, REASON = "kernelgauge_verdict", "kernelgauge_reason"
SHORT = {
    "test_device_time": "device",
    "test_host_dispatch_time": "host",
    "test_end_to_end_latency": "latency",
    "test_kernels_and_graphs_are_as_declared": "declared",
    "test_structure_is_that_of_the_baseline": "structure",
}
DEVICE = "Told GPU"
GEMM_US, GELU_US = 6.0, 4.0

FINGERPRINT = {
    "device": DEVICE,
    "arch": "sm_90",
    "sm_count": 132,
    "memory_bytes": 1 << 37,
    "power_limit_watts": 700.0,
    "mig": False,
    "driver": "580.1",
    "cuda": "13.0",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "liger_kernel": None,
    "python": "3.12",
}

# The standard tests that need no torch, and one that times end-to-end latency without a clock.
TESTS = """
import pytest

from kernelgauge import Timer
from kernelgauge.run import Sample
from kernelgauge.standard import test_device_time, test_host_dispatch_time
from kernelgauge.standard import test_kernels_and_graphs_are_as_declared, test_structure_is_that_of_the_baseline


@pytest.mark.timing
def test_end_to_end_latency(workload, run, kernelgauge_test):
    session = kernelgauge_test.session
    session.latencies[workload.id] = Sample((200.0, 201.0, 202.0, 200.5), 40, (20.0,) * 4)
    kernelgauge_test.judge(session.judge_time, Timer.END_TO_END)
"""


def spread(center: float, noise: float = 0.001) -> list[float]:
    """Four replicates around a time."""
    return [center * (1 + noise * offset) for offset in (-1.0, 0.5, 1.0, -0.5)]


def told(
    module: str = "mlp",
    variant: str = "eager",
    *,
    gelu_us: float = GELU_US,
    host_us: float = 100.0,
    noise: float = 0.001,
    again_gelu_us: float | None = None,
    kinds: tuple[str, ...] = ("gemm", "pointwise"),
    counts: dict[str, int] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """What the measurer says of one workload: a GEMM, and a pointwise kernel of `gelu_us`.

    `again_gelu_us`, `confirm_error`: what a confirmation gives; the same again where nothing is told.
    """

    def samples(gelu_us: float) -> dict[str, list[float]]:
        return {"device_time": spread(GEMM_US + gelu_us, noise), "host_dispatch": spread(host_us)}

    kernels = [({"name": "a_gemm", "kind": "gemm"}, GEMM_US), ({"name": "a_gelu", "kind": "pointwise"}, gelu_us)]
    declared = {"module": module, "variant": variant, "shape": (4, 8), "matrix": "default", "expected_kinds": kinds}
    again = None if again_gelu_us is None else samples(again_gelu_us)
    observed = {"kernels": kernels, "counts": counts or {}, "samples": samples(gelu_us), "again": again}
    return {**declared, **observed, "error": None, "confirm_error": None, "incomplete": None, **fields}


IDS = [ID, "mlp-compiled-bf16-4x8", "linear-eager-bf16-4x8", "linear-compiled-bf16-4x8"]


def two_modules(**of_the_third: Any) -> tuple[dict[str, Any], ...]:
    """What is told of `IDS`: two modules in two variants each."""
    return told(), told(variant="compiled"), told("linear", **of_the_third), told("linear", "compiled")


@dataclass(frozen=True)
class Case:
    """One test case of the JUnit file."""

    name: str
    parameters: str
    outcome: str  # "passed", "skipped", "failure" or "error"
    message: str
    properties: dict[str, str]


def junit_cases(path: Path) -> list[Case]:
    """Every test case of a JUnit file, in order."""
    found = []
    for case in ET.parse(path).iter("testcase"):
        name, _, parameters = case.attrib["name"].partition("[")
        ends = [child for child in case if child.tag in ("skipped", "failure", "error")]
        properties = {entry.attrib["name"]: entry.attrib["value"] for entry in case.iter("property")}
        message = " ".join(end.attrib["message"] for end in ends)
        found.append(Case(name, parameters.removesuffix("]"), ends[0].tag if ends else "passed", message, properties))
    return found


class Project:
    """A project with a suite in `perf/`, in the current folder."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.root = pytester.path
        (self.root / "perf").mkdir()
        (self.root / "perf" / "conftest.py").write_text((Path(__file__).parent / "told_suite.py").read_text())
        (self.root / "perf" / "test_perf.py").write_text(TESTS)
        self.tell(told())

    def tell(
        self, *workloads: dict[str, Any], no_device: bool = False, gpu: str = "told", **fingerprint: object
    ) -> None:
        """Say what the next runs measure, and on which machine."""
        content = {"fingerprint": FINGERPRINT | fingerprint, "workloads": workloads, "no_device": no_device, "gpu": gpu}
        (self.root / "perf" / "told.json").write_text(json.dumps(content))

    def run(self, *arguments: str, suite: str = "perf", **options: Any) -> pytest.RunResult:
        """Run the suite in this process."""
        (self.root / "junit.xml").unlink(missing_ok=True)
        junit = f"--junitxml={self.root / 'junit.xml'}"
        return self.pytester.runpytest_inprocess(suite, junit, "-rA", *arguments, **options)

    def record(self, *arguments: str) -> pytest.RunResult:
        result = self.run("--perf-update", *arguments)
        assert result.ret == pytest.ExitCode.OK
        return result

    def refuse(self, *arguments: str) -> str:
        """Run the suite, require that nothing is measured, and return what the usage error says."""
        before = len(self.measured())
        result = self.run(*arguments)
        said = "\n".join(result.outlines + result.errlines)
        assert (result.ret, len(self.measured()), "INTERNALERROR" in said) == (
            pytest.ExitCode.USAGE_ERROR,
            before,
            False,
        )
        return said

    def run_command(self, command: str) -> pytest.RunResult:
        """Run a command that a message proposed, in the current folder."""
        program, *arguments = shlex.split(command)
        if program == "kernelgauge":
            return self.pytester.run(sys.executable, "-m", program, *arguments)
        assert program == "pytest"
        return self.pytester.runpytest_inprocess(*arguments)

    @property
    def baselines(self) -> Path:
        return self.root / "baselines" / "told-gpu"

    def stored(self) -> dict[str, bytes]:
        """Every stored baseline, by workload id."""
        return {path.stem: path.read_bytes() for path in sorted((self.root / "baselines").glob("*/*.json"))}

    def edit_baseline(self, workload: str, **fields: object) -> None:
        path = self.baselines / f"{workload}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    def edit_fingerprint(self, workload: str, **fields: object) -> None:
        stored = json.loads((self.baselines / f"{workload}.json").read_text())
        self.edit_baseline(workload, fingerprint=stored["fingerprint"] | fields)

    def measured(self) -> list[str]:
        """Ids of the workloads that were measured so far, once for each time."""
        return [workload for together in self.measured_together() for workload in together]

    def measured_together(self) -> list[list[str]]:
        """The same, by call of the measurer."""
        return self._written_down("measured.txt")

    def confirmed(self) -> list[str]:
        """Ids of the workloads that were confirmed so far, once for each time."""
        return [workload for together in self._written_down("confirmed.txt") for workload in together]

    def _written_down(self, name: str) -> list[list[str]]:
        path = self.root / "perf" / name
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def cases(self) -> list[Case]:
        """What the last run's JUnit file says."""
        return junit_cases(self.root / "junit.xml")

    def verdicts(self, module: str, *, outcome: bool = False) -> dict[str, str | None]:
        """The verdict of each test of a module's workload, or how it ended; by the test's short name."""
        return {
            SHORT.get(case.name, case.name): case.outcome if outcome else case.properties.get(VERDICT)
            for case in self.cases()
            if case.parameters.startswith(f"{module}-")
        }

    def of(self, name: str, workload: str) -> Case:
        (found,) = [case for case in self.cases() if (case.name, case.parameters) == (name, workload)]
        return found

    def results(self) -> Results:
        return read_results(self.latest / "results.json")

    @property
    def latest(self) -> Path:
        return self.root / "reports" / "latest"

    def write(self, name: str, text: str) -> None:
        """Write a file of the suite."""
        (self.root / "perf" / name).write_text(text)

    def add_to_conftest(self, text: str, *, first: bool = False) -> None:
        before = (self.root / "perf" / "conftest.py").read_text()
        self.write("conftest.py", text + before if first else before + text)

    def case(self, name: str) -> Case:
        (found,) = [case for case in self.cases() if case.name == name]
        return found


def table_verdict(result: pytest.RunResult, workload: str) -> str | None:
    """The status in the summary table, and the subjects that it comes from: in the row, or in a line below the table."""
    after_title = result.outlines[next(i for i, line in enumerate(result.outlines) if "= kernelgauge =" in line) :]
    rows = [line for line in after_title if re.match(rf"{re.escape(workload)} +[\d-]", line)]
    if not rows:
        return None
    ((status, subjects),) = (
        found.groups() for row in rows if (found := re.search(r" (NO VERDICT|[A-Z][A-Z_]{3,})(?: +(\S.*))?$", row))
    )
    about = [line.partition(": ")[2] for line in after_title if line.startswith(f"{status}  {workload}: ")]
    return f"{status} {(about or [subjects or ''])[0]}".rstrip()
