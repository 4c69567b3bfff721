"""Choices of an autotuner: recorded, replayed, and lost. Triton's own tuner chooses, in Triton's
interpreter; each run of pytest makes one, and a text file says what the tuner measures.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.results import read_results
from tests.commands.conftest import Command
from tests.plugin.inner_project import Run, text_of

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(300)

TUNED = """
import json, pathlib
import torch, triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

weather = json.loads(pathlib.Path(__file__).with_name("weather.json").read_text())
if weather["turns"]:  # the next process finds the other order
    pathlib.Path(__file__).with_name("weather.json").write_text(
        json.dumps(weather | {"times": weather["times"][::-1]})
    )
SIZES = [32, 64, 128]
ran = []

@triton.jit
def scale(x, y, n, SIZE: tl.constexpr):
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + place, tl.load(x + place, mask=place < n) * 2, mask=place < n)

def bench(call, quantiles):
    call()
    return [weather["times"][SIZES.index(ran[-1])]] * 3

configs = [triton.Config({"SIZE": size}, num_warps=4) for size in weather["sizes"]]
tuned = triton.autotune(configs, key=["n"], do_bench=bench)(scale)

def change(x):
    y = torch.empty_like(x)
    def grid(chosen):
        ran.append(chosen["SIZE"])
        if chosen["SIZE"] in weather["broken"]:
            raise OutOfResources(300000, 232448, "shared memory")
        return (triton.cdiv(x.numel(), chosen["SIZE"]),)
    tuned[grid](x, y, x.numel())
    return y + 1

def test_change(kernelgauge):
    kernelgauge(change, torch.ones(128))
    with open("ran.txt", "a") as file:
        print(ran[len(ran) // 2], file=file)  # while it was measured
"""
WIDE = "SIZE=128,num_stages=3,num_warps=4"
NARROW = "SIZE=32,num_stages=3,num_warps=4"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest: its output without line breaks. `weather`: what the tuner finds."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makeini("[pytest]\nkernelgauge_replicates = 2\n")
    pytester.makepyfile(test_tuned=TUNED)

    def call(*arguments: str, code: int = 0, **weather: Any) -> str:
        usual = {"times": [3, 2, 1], "sizes": [32, 64, 128], "broken": [], "turns": False}
        Path("weather.json").write_text(json.dumps(usual | weather))
        result = pytester.runpytest_inprocess("-v", *arguments)
        assert result.ret == code, text_of(result)
        return " ".join(text_of(result).split())

    return call


def stored() -> list[dict[str, Any]]:
    (file,) = Path("baselines").rglob("*.json")
    found: list[dict[str, Any]] = json.loads(file.read_text())["choices"]
    return found


def chosen() -> list[tuple[str, str]]:
    (run,) = read_results(Path("reports/latest/results.json")).runs
    return [(each.config, each.recorded) for each in run.choices]


def test_recorded_choice_is_taken_and_kept_by_accept(run: Run, kernelgauge: Command) -> None:
    run("--perf-update")
    (choice,) = stored()
    assert (choice["kernel"], choice["config"], choice["times_us"][NARROW]) == ("scale", WIDE, 3000)
    run("--perf-update=force", times=[1, 2, 3])
    assert (chosen(), stored()) == ([(WIDE, "")], [choice])
    out = run("--perf-tune", times=[1, 2, 3], code=1)
    said = f"scale: the autotuner chose {NARROW} instead of {WIDE} 66.7 % faster when it was tuned"
    assert said in out
    code, out, _ = kernelgauge("accept", "--force")  # also of a busy machine
    assert (code, said in " ".join(out.split()), stored()[0]["config"]) == (0, True, NARROW)
    run("--perf-update=force", times=[3, 2, 1])
    assert chosen() == [(NARROW, "")]


@pytest.mark.parametrize(
    ("weather", "why"),
    [
        ({"sizes": [32, 64]}, "is not offered by its code"),
        (
            {"broken": [128]},
            "does not compile (OutOfResources: out of resource: shared memory, Required: 300000,",
        ),
    ],
)
def test_lost_choice_is_red_with_its_reason(
    run: Run, kernelgauge: Command, weather: Any, why: str
) -> None:
    run("--perf-update")
    out = run(code=1, **weather)
    now = "SIZE=64,num_stages=3,num_warps=4"
    assert "launch configurations differ from the baseline" in out
    assert f"scale runs with {now}: {WIDE}, which the baseline has, {why}" in out
    codes = [kernelgauge(*each.split())[0] for each in ("review", "accept --force", "review")]
    assert codes == [1, 0, 0]


def test_processes_of_calibrate_take_the_choices_of_the_first(
    run: Run, kernelgauge: Command
) -> None:
    run("--perf-update", "--co", turns=True)  # collection turns it once
    code, out, _ = kernelgauge("calibrate", "--processes", "2", "--", "test_tuned.py")
    assert code == 0, out
    assert len(set(Path("ran.txt").read_text().split())) == 1


SUITE = """
import functools
from kernelgauge import Workload
from test_tuned import change, ran

def call(name, x):
    before = len(ran)
    result = change(x)
    if x.dtype == torch.float32:  # and not float64, which it is compared with
        with open(f"{name}.txt", "a") as file:
            print(*ran[before:], file=file)
    return result

def pytest_kernelgauge_workloads():
    return [
        Workload(name, "eager", functools.partial(functools.partial, call, name), lambda: (torch.ones(128),), dtype=None)
        for name in ("one", "other")
    ]
"""


def test_workloads_that_share_a_tuner_keep_their_own_choices(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        **{
            "perf/conftest": "import torch\n" + SUITE,
            "perf/test_perf": "from kernelgauge.standard import *",
        }
    )
    pytester.makeini("[pytest]\npythonpath = .\nkernelgauge_replicates = 2\n")
    run("perf", "--perf-update")
    (file,) = Path("baselines").rglob("other-eager.json")
    whole = json.loads(file.read_text())
    whole["choices"][0]["config"] = NARROW
    file.write_text(json.dumps(whole))
    for name in ("one", "other"):
        Path(f"{name}.txt").unlink()
    # the other one has more turns than its baseline
    run("perf", code=1)
    assert {name: set(Path(f"{name}.txt").read_text().split()) for name in ("one", "other")} == {
        "one": {"128"},
        "other": {"32"},
    }
