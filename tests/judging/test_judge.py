"""`kernelgauge judge`: attacks are refused or gain nothing, honest candidates pass. On a CPU; `attacks.py` has all attacks."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelgauge
from kernelgauge.errors import CandidateRefused, KernelgaugeError
from kernelgauge.judge import Status
from kernelgauge.judge.revisions import decide_contest
from kernelgauge.measure.device import Device
from kernelgauge.measure.oracle import Case, Oracle
from kernelgauge.run import Sample

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads memory as Linux has it")
FOLDER = Path(__file__).parent
# One of each kind: `all.py` judges all, and takes minutes.
REFUSED = {
    "cached_by_shape": "wrong result",
    "written_inputs": "writes to its inputs",
    "answers_first": "wrong result|changes after its call",
    "one_output_for_all_calls": "wrong result",
    "forged_replies": "wrong result|shares memory",
    "addresses_everywhere": "too large",
    "replies_that_execute": "answers nonsense",
    "exits_at_once": "does not answer",
    "patched_comparisons": "wrong result",
}


def test_judge_refuses_attacks_and_no_correct_code() -> None:
    """One judge, and so one test: two workers would start one each."""
    names = [*REFUSED, "patched_clocks"]
    targets = [f"{FOLDER}/attacks.py:attack_{name}" for name in names] + [f"{FOLDER}/attacks.py:honest"]
    command = [sys.executable, str(FOLDER / "several.py"), str(FOLDER / "task.py"), "cpu"]
    done = subprocess.run(command, input="\n".join(targets), capture_output=True, text=True, check=True, timeout=300)
    verdicts: dict[str, dict[str, Any]] = dict(
        zip([*names, "honest"], map(json.loads, done.stdout.splitlines()), strict=True)
    )
    assert {name for name, verdict in verdicts.items() if not verdict["correct"]} == set(REFUSED)
    for name, words in REFUSED.items():
        assert re.search(words, verdicts[name]["refused"]), (name, verdicts[name])
    for name in ("honest", "patched_clocks"):
        assert verdicts[name]["calls"] >= 2 * 8


def test_judge_confirms_what_is_faster_in_other_processes(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(
        "import sys, time, torch\nSHAPES = [(64, 64)]\ndef inputs(shape, dtype): return (torch.randn(shape),)\n"
        "def run(x):\n    'judge' in sys.argv or time.sleep(0.02)  # not where nobody times it\n    return torch.tanh(x)\n"
    )
    (tmp_path / "candidate.py").write_text("import torch\ndef run(x): return torch.tanh(x)\n")
    found = kernelgauge.judge_candidate(f"{tmp_path}/candidate.py", f"{tmp_path}/reference.py", device="cpu")
    assert (found["correct"], found["speed"], found["faster"]) == (True, "faster", True)
    assert [len(each["candidate"]) for each in found["cases"]] == [2 * 2]  # processes of two contests
    assert found["speedup_interval"][0] > 1
    assert {"normal", "zeros", "large", "denormal"} <= set(found["checked_values"])
    assert [each["kernel"] for each in found["kernels"]] == ["aten::tanh"]


@pytest.mark.parametrize(
    ("code", "target", "message"),
    [
        ("def run(x): return x", "reference.py", "declares no inputs"),
        ("raise RuntimeError('no')", "reference.py", "the reference fails"),
        ("", "missing.py", "there is no such file"),
    ],
)
def test_judge_bad_input_is_no_verdict(code: str, target: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(code)
    command = [sys.executable, "-m", "kernelgauge", "judge", target, "--against", "reference.py", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(f"{FOLDER}/task.py", Device())


WRONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "last element": lambda y: y.index_put((torch.tensor([63]), torch.tensor([256])), torch.tensor(0.5)),
    "bf16": lambda y: y.bfloat16().float(),
    "NaN": lambda y: torch.full_like(y, torch.nan),
    "infinite": lambda y: torch.full_like(y, torch.inf),
    "dtype": lambda y: y.double(),
    "shape": lambda y: y[:-1],
    "small everywhere": lambda y: y * (1 + 1.5e-5),  # each element is within its limit
}


@pytest.mark.parametrize("kind", WRONG)
def test_oracle_wrong_result_is_refused(kind: str, oracle: Oracle) -> None:
    case: Case = oracle.cases[0]
    assert oracle.legal_values(case) == ["normal", "zeros", "large", "small", "denormal", "mixed"]
    arguments = oracle.draw(case)
    (name, right), *_ = oracle.results(arguments, case.dtype).items()
    oracle.require_right(case, "normal", arguments, {name: right * (1 + 1e-7)})
    with pytest.raises(CandidateRefused) as refused:
        oracle.require_right(case, "normal", arguments, {name: WRONG[kind](right)})
    if kind == "last element":
        assert refused.value.wrong.index == (63, 256)
        assert "[63, 256]" in (refused.value.got or "")


@pytest.mark.parametrize(
    ("run", "what"),
    [("x.zero_()", "writes to its inputs"), ("torch.rand(8)", "no result to compare"), ("x.numel()", "no result")],
)
def test_oracle_useless_reference_is_an_error(run: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(
        f"import torch\ndef get_inputs(): return [torch.randn(8)]\ndef run(x): return {run}\n"
    )
    oracle = Oracle(f"{tmp_path}/reference.py", Device())
    with pytest.raises(KernelgaugeError, match=what):
        oracle.legal_values(oracle.cases[0])


@pytest.mark.parametrize(
    ("factor", "scatter", "status"),
    [
        (0.9, 0.001, Status.IMPROVED),
        (1.1, 0.001, Status.REGRESSED),
        (1.0, 0.001, Status.PASS),
        (0.9, 0.2, Status.UNDECIDED),
    ],
)
def test_decide_contest_says_faster_beyond_the_noise(factor: float, scatter: float, status: Status) -> None:
    def side(us: float) -> list[Sample]:
        return [Sample(tuple(us * (1 + scatter * step) for step in (-1, 1, 0, 1)), 3) for _ in range(2)]

    assert decide_contest(side(100.0), side(100.0 * factor), is_cpu=False).status is status
