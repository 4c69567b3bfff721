"""Which tests are selected, in which order workloads are measured, wrong declarations, and exit
codes.
"""

from typing import Any

import pytest

from tests.plugin.inner_project import COMPILED, ID, LINEAR, Project, fake, text_of

CONV = "conv-eager-bf16-4x8"
CLAIMS = """
import pytest

@pytest.mark.workloads(variant="compiled")
@pytest.mark.parametrize("time", [1, 2])
def test_fewer(workload, run, sibling, time):
    assert len(run.kernels) == len(sibling(variant="eager").kernels)
"""


def test_matrix_and_name_select_what_is_measured(project: Project) -> None:
    project.set(fake(), fake("linear", matrix="full"), fake("conv"))
    project.run()
    project.run("--perf-matrix", "full")
    project.run("-k", "mlp or linear", "--perf-matrix", "full").assert_outcomes(
        passed=2, skipped=8, deselected=5
    )
    assert project.measured() == [[ID, CONV], [ID, LINEAR, CONV], [ID, LINEAR]]


@pytest.mark.parametrize(
    "arguments", [("--perf-strict",), ("--perf-update",), ()], ids=["strict", "update", "default"]
)
def test_empty_suite_fails_where_it_is_relied_on(
    project: Project, arguments: tuple[str, ...]
) -> None:
    for workloads, where in (((), "at all"), ((fake(matrix="full"),), "in the default matrix")):
        project.set(*workloads)
        result = project.run(*arguments)
        assert result.ret == (pytest.ExitCode.TESTS_FAILED if arguments else pytest.ExitCode.OK)
        line = f"the suite perf declares no workload {where}: nothing of it is measured"
        assert (line in result.outlines) is bool(arguments)
    assert not project.latest.exists()


def test_workloads_are_measured_in_declared_order(project: Project) -> None:
    """A calibration runs fewer tests than what is compared with it, and must measure in the same
    order.
    """
    claim = "import pytest\n@pytest.mark.workloads(module='conv')\ndef test_a_claim(workload, run): pass\n"
    project.write("test_claims.py", claim)
    (project.root / "conftest.py").write_text(
        "def pytest_collection_modifyitems(items):\n    items.reverse()\n"
    )
    project.set(fake(), fake("linear"), fake("conv"))
    for arguments in ((), ("--perf-calibrate=c",), ("-k", "mlp or conv")):
        project.run(*arguments)
        declared = [ID, CONV] if "-k" in arguments else [ID, LINEAR, CONV]
        assert project.measured()[-1] == declared
        parameters = [case.parameters for case in project.cases()]
        assert list(dict.fromkeys(parameters)) == declared
        # the tests of one workload run together
        assert parameters == sorted(parameters, key=declared.index)


def test_sibling_is_measured_on_demand_alone_and_once(project: Project) -> None:
    project.set(fake(), fake(variant="compiled", faster_than="eager"), fake("linear"))
    project.write("test_claims.py", CLAIMS)
    project.run("-k", "fewer").assert_outcomes(passed=2, deselected=15)
    assert project.measured() == [[COMPILED], [ID]]
    project.write(
        "test_claims.py", "from kernelgauge.standard import test_faster_than_other_variant\n"
    )
    project.run("--perf-calibrate=c", "-k", "compiled")  # it does not measure a ratio
    assert project.measured()[2:] == [[COMPILED]]


MARKED = """
import pytest

@pytest.mark.workloads(module='mlp', variant=('eager', 'liger'), shape=((4, 8), (16, 3)))
@pytest.mark.workloads(module='linear', shape=(4, 8))
def test_marked(workload):
    pass
"""


def test_mark_chooses_workloads_by_field(project: Project) -> None:
    project.set(fake(), fake(shape=(8, 4)), fake(shape=(16, 3)), fake("linear"), fake("conv"))
    project.write("test_perf.py", MARKED)
    project.run()
    assert [case.parameters for case in project.cases()] == [ID, "mlp-eager-bf16-16x3", LINEAR]
    assert project.measured() == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        *(
            (argument, 0)
            for argument in ("--fixtures", "--fixtures-per-test", "--setup-only", "--collect-only")
        ),
        ("-k nothing", 5),
        *(
            (argument, 4)
            for argument in ("-k mlp~and", "--perf-device abacus", "-o kernelgauge_replicates=1")
        ),
        *((f"-o kernelgauge_{each}", 4) for each in ("replicates=many", "sensitivity=a~=~inf")),
        *(
            (f"-o kernelgauge_sensitivity=device_time{each}", 4)
            for each in ("", "~=~much", "~=~0~%")
        ),
    ],
)
def test_reports_stay_where_nothing_is_measured(
    project: Project, arguments: str, code: int
) -> None:
    project.latest.mkdir(parents=True)
    (project.latest / "results.json").write_bytes(b"of an earlier run")
    result = project.pytester.runpytest_inprocess(
        "perf", *(each.replace("~", " ") for each in arguments.split())
    )
    assert (result.ret, project.measured()) == (code, [])
    assert (project.latest / "results.json").read_bytes() == b"of an earlier run"
    line = arguments.replace("~", " ").partition("sensitivity=")[2]
    assert not line or f"kernelgauge_sensitivity: got '{line}', expected a line such as" in text_of(
        result
    )


ONE = """
from kernelgauge import Workload
WORKLOADS = [Workload("mlp", "eager", build=object, inputs=tuple, shape=(4,))]
def pytest_kernelgauge_workloads():
    return WORKLOADS
"""


def test_suite_below_is_found_while_collecting(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pytester.mkpydir("perf")
    (folder / "conftest.py").write_text(ONE)
    test = """
from kernelgauge.plugin.fixtures import SESSION

def test_it(workload, pytestconfig):
    assert pytestconfig.stash[SESSION].selected == [workload]
"""
    (folder / "test_perf.py").write_text(test)
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
    monkeypatch.setenv("CI", "1")
    result = pytester.runpytest_inprocess("--perf-update")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*--perf-update is refused under CI*"])


@pytest.mark.parametrize(
    ("returned", "mark", "lines"),
    [
        ("None", "", ("*must return workloads", "*conftest.py", "*a list of kernelgauge.Workload")),
        (
            "[Workload('mlp', 'eager', object, tuple, dtype='float32')]",
            "",
            ("*unknown dtype", "*'float32'"),
        ),
        ("2 * WORKLOADS", "", ("*two workloads have the same id", "*mlp-eager-bf16-4*")),
        ("WORKLOADS", "workloads", ("*the mark matches no workload; modules: mlp", "*test_it*")),
        (
            "WORKLOADS",
            "workloads(modul='mlp')",
            ("*the mark matches*", "*@pytest.mark.workloads(modul='mlp')"),
        ),
        ("", "", ("no pytest_kernelgauge_workloads in a conftest.py of this folder or above it",)),
    ],
)
def test_wrong_declaration_is_an_error(
    pytester: pytest.Pytester, returned: str, mark: str, lines: Any
) -> None:
    pytester.makeconftest(ONE.replace("return WORKLOADS", f"return {returned}") if returned else "")
    mark = mark and f"@pytest.mark.{mark}\n"
    pytester.makepyfile(f"import pytest\n{mark}def test_it(workload):\n    pass\n")
    result = pytester.runpytest_inprocess("-W", "ignore")
    assert result.ret == (pytest.ExitCode.USAGE_ERROR if returned else pytest.ExitCode.TESTS_FAILED)
    assert "Traceback" not in text_of(result)
    (result.stderr if returned else result.stdout).fnmatch_lines(lines)


OWN_FIXTURE = """
import pytest

@pytest.fixture(params=[1, 2])
def workload(request):
    return "heavy"

def test_of_a_fixture(workload):
    assert workload == "heavy"

@pytest.mark.parametrize("workload", ["light", {}])
def test_of_parameters(workload, {run}):
    pass
"""


def test_workload_of_another_project_is_left_alone(project: Project) -> None:
    (project.root / "test_own.py").write_text(OWN_FIXTURE.replace("{run}", "tmp_path"))
    result = project.run(suite="test_own.py")
    result.assert_outcomes(passed=4)
    assert "kernelgauge =" not in text_of(result)
    assert not project.latest.exists()
    project.write("test_own.py", OWN_FIXTURE.replace("{run}", "run"))
    result = project.run("-k", "of_parameters")
    assert "INTERNALERROR" not in text_of(result)
    assert result.parseoutcomes()["errors"] == 2
    result.stdout.fnmatch_lines(
        ["another fixture called `workload` hides that of kernelgauge: rename it"]
    )


SUITE = """
from kernelgauge import Workload

def linear(variant, rows, on_cpu=None, **fields):
    return Workload("linear", variant, build=lambda: None, inputs=tuple, shape=(rows,), on_cpu=on_cpu, **fields)

def pytest_kernelgauge_workloads():
    return [
        linear("compiled", 4096, linear("compiled", 16, dtype="fp32")),
        linear("triton", 4096, "Triton code"),
        linear("compiled", 8192, linear("compiled", 16, dtype="fp32")),  # the same form
        linear("eager", 8),
    ]
"""
SUITE_TESTS = """
import pytest

def test_any(workload): ...

@pytest.mark.gpu
def test_on_a_gpu(workload): ...

@pytest.mark.gpu  # of another project
def test_of_nothing(): ...
"""


def test_cpu_gets_the_workloads_sized_for_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(SUITE)
    pytester.makepyfile(SUITE_TESTS)
    for strict, triton in (((), ()), (("--perf-strict",), ("triton-bf16-4096",))):
        result = pytester.runpytest_inprocess(
            "--perf-device", "cpu", "--collect-only", "-q", *strict
        )
        tests = [line.partition("::")[2] for line in result.outlines if "::" in line]
        ids = ("compiled-fp32-16", *triton, "eager-bf16-8")
        assert tests == [*(f"test_any[linear-{each}]" for each in ids), "test_of_nothing"]
