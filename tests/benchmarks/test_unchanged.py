"""The recorded suites of unchanged code, judged without a GPU: how often a strict run is red."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import unchanged
from recorded import DATA, Suite, h100_suites, read_suites, recorded_suites

# Of each design: how many suites may be red, as docs/verdicts.md says, and one of how many is judged here.
RED = {
    "same GPU, all others": (1, 1),
    "same GPU, one process": (3, 3),
    "leave one GPU out": (0, 4),
    "leave one host out": (0, 4),
    "committed baselines": (0, 1),
}


@pytest.fixture(scope="module")
def suites() -> list[Suite]:
    return recorded_suites()


def counts_of(suites: Sequence[Suite], design: str, *, slower: float = 0.0) -> Counter[str]:
    counts: Counter[str] = Counter()
    _, step = RED[design]
    for suite, known in dict(unchanged.designs(suites))[design][::step]:
        slowed = suite.slower(slower, unchanged.Timer.DEVICE)
        verdicts = list(unchanged.judged(slowed, lambda workload, known=known: unchanged._baseline(known, workload)))
        unchanged.count(counts, verdicts, show=False, name=suite.name)
    return counts


@pytest.mark.parametrize("design", RED)
def test_unchanged_suites_are_green(suites: list[Suite], design: str) -> None:
    counts = counts_of(suites, design)
    assert counts["suites"] - counts["green"] <= RED[design][0]
    assert counts["suites"] >= 30


@pytest.mark.parametrize(("design", "slower"), [("same GPU, all others", 0.01), ("leave one host out", 0.03)])
def test_slower_suites_are_red(suites: list[Suite], design: str, slower: float) -> None:
    counts = counts_of(suites, design, slower=slower)
    assert counts["REGRESSED"] + counts["choice"] >= 0.98 * counts["suites"]


@pytest.mark.parametrize(("slower", "red"), [(0.0, 0), (0.03, 4)])
def test_suites_of_a_gpu_model_without_numbers_are_red_where_slower(slower: float, red: int) -> None:
    counts = counts_of(h100_suites(), "same GPU, all others", slower=slower)
    assert (counts["suites"], counts["REGRESSED"], counts["UNDECIDED"]) == (4, red, 0)


@pytest.mark.parametrize(("slower", "red"), [(0.0, 0), (0.5, 8)])
def test_suites_of_a_cpu_are_red_where_slower(slower: float, red: int) -> None:
    cpu = list(read_suites(sorted((DATA / "cpu").glob("*.json.gz")), "cpu"))
    counts = counts_of(cpu, "same GPU, all others", slower=slower)
    assert (counts["suites"], counts["REGRESSED"], counts["UNDECIDED"]) == (8, red, 0)


def test_noisy_machine_without_data_is_green(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged, "_SIMULATED", 50)
    unchanged.print_noisy("Any GPU", 10)
    green = int(capsys.readouterr().out.partition("green ")[2].partition(" of")[0])
    assert green >= 48


def test_every_recorded_suite_is_read(suites: list[Suite]) -> None:
    assert (len(suites), len({suite.gpu for suite in suites})) == (126, 41)


def test_unchanged_against_baselines_without_files_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["unchanged.py", "--against", "baselines"])
    with pytest.raises(SystemExit) as stopped:
        unchanged.main()
    assert (stopped.value.code, "--against needs files" in capsys.readouterr().err) == (2, True)
