"""Costs of the host, one planted in each workload, are found by structure alone, with the function
and the line.
"""

from pathlib import Path

import pytest

from kernelgauge.judge.baseline import decode_baseline
from kernelgauge.judge.structure import other_code
from kernelgauge.results import read_results
from tests.plugin.host_costs import (
    ASIDE,
    COSTS,
    FILE,
    HARMLESS,
    Found,
    found,
    recorded_costs,
    share_baselines,
    suite,
)
from tests.plugin.inner_project import text_of

pytestmark = pytest.mark.timeout(600)
Costs = dict[str, str]


def planted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, costs: Costs
) -> dict[str, Found]:
    """Plant each cost, and return what a run without times says of it."""
    pytester.path.joinpath(FILE).write_text(suite(costs), "utf-8")
    how = ("-q", "--perf-device=cpu", "-m", "not timing")
    recorded = pytester.runpytest_inprocess(*how, "--perf-update", "-k", recorded_costs(costs))
    assert "4 written" in text_of(recorded)
    share_baselines(pytester.path, costs)
    monkeypatch.setenv("PLANTED", "1")
    pytester.runpytest_inprocess(*how)
    said = found(read_results(Path("reports/latest/results.json")), costs)
    assert set(said) == set(costs)
    return said


# They run within a type of C, make fewer calls and lines than the rule asks for, or take less than
# its 3 us on a quick host: `cloned` and `sizes`, found on others.
GREEN = "contexts function_mode noise imported array dates printed growing"
ASIDE_GREEN = """
replaced finalized product saved parsed options digits rngs cloned sizes
"""
# The cause names what the planted function calls, or another line of the change.
UNNAMED = "home hooks lost_property trained grad_modes autocast flags logged of_gradients"
ASIDE_UNNAMED = """
asyncio executor seeded traced dispatched anomaly deterministic logged_state
"""
ELSEWHERE = "hooks reloaded"
ASIDE_ELSEWHERE = "executor"


@pytest.mark.parametrize(
    ("costs", "green", "unnamed", "elsewhere"),
    [(COSTS, GREEN, UNNAMED, ELSEWHERE), (ASIDE, ASIDE_GREEN, ASIDE_UNNAMED, ASIDE_ELSEWHERE)],
    ids=["costs", "aside"],
)
def test_host_costs_are_found_with_function_and_line(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    costs: Costs,
    green: str,
    unnamed: str,
    elsewhere: str,
) -> None:
    said = planted(pytester, monkeypatch, costs)
    # each is timed with --perf-changed, though the code is the same
    for run in read_results(Path("reports/latest/results.json")).runs:
        (file,) = Path("baselines").glob(f"*/{run.workload}.json")
        baseline = decode_baseline(file.read_bytes(), where="", workload=run.workload)
        assert other_code(run, baseline), run.workload
    red = {name: each for name, each in said.items() if each.is_red}
    assert {*said} - {*red} <= {*green.split()}
    assert {name for name, each in red.items() if not each.is_named} <= {*unnamed.split()}
    assert {name for name, each in red.items() if not each.is_located} <= {*elsewhere.split()}


def test_host_costs_of_a_microsecond_pass(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = planted(pytester, monkeypatch, HARMLESS)
    # on a slow machine `re.match` takes more than 3 us
    assert {name for name, each in said.items() if each.is_red} <= {"matched"}
