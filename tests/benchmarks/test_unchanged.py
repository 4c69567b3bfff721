"""The recorded suites, judged without a GPU: how often a strict run is red."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import recorded
import unchanged
from msgspec.structs import replace
from recorded import DATA, Suite, h100_suites, read_suites, recorded_suites
from runs_file import read_runs

from kernelgauge import Timer
from kernelgauge.results import encode_results
from tests.builders import results, workload

# Of each design: how many suites may be red, as docs/verdicts.md says, and one of how many is
# judged here.
RED = {
    "same GPU, all its other processes": (4, 1),  # before a fresh process confirms them
    "same GPU, a baseline of one process": (3, 3),
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
        verdicts = unchanged.judged(
            slowed, lambda workload, known=known: unchanged._baseline(known, workload)
        )
        unchanged.count(counts, list(verdicts), show=False, name=suite.name)
    return counts


@pytest.mark.parametrize("design", RED)
def test_unchanged_suites_are_green(suites: list[Suite], design: str) -> None:
    assert len(suites) == 126
    counts = counts_of(suites, design)
    assert counts["suites"] - counts["green"] <= RED[design][0]
    assert counts["suites"] >= 30


@pytest.mark.parametrize(
    ("design", "slower"),
    [("same GPU, all its other processes", 0.01), ("leave one host out", 0.03)],
)
def test_slower_suites_are_red(suites: list[Suite], design: str, slower: float) -> None:
    counts = counts_of(suites, design, slower=slower)
    assert counts["REGRESSED"] + counts["choice"] >= 0.98 * counts["suites"]


@pytest.mark.parametrize(
    ("device", "slower", "number", "red"), [("h100", 0.03, 4, 4), ("cpu", 0.5, 8, 0)]
)
def test_suites_without_known_noise_are_red_where_slower(
    device: str, slower: float, number: int, red: int
) -> None:
    """Times of ops on a CPU are not judged: eight processes of one night."""
    cpu = read_suites(sorted((DATA / "cpu").glob("*.json.gz")), "cpu")
    suites = h100_suites() if device == "h100" else list(cpu)
    for factor, expected in ((0.0, 0), (slower, red)):
        counts = counts_of(suites, "same GPU, all its other processes", slower=factor)
        assert (counts["suites"], counts["REGRESSED"], counts["UNDECIDED"]) == (number, expected, 0)


def test_fresh_process_dispels_alarms_only(
    suites: list[Suite], monkeypatch: Any, capsys: Any
) -> None:
    """Figures of docs/verdicts.md."""
    monkeypatch.setattr(
        unchanged, "_SLOWER", {Timer.DEVICE: (0.01,), Timer.HOST: (0.15,), Timer.END_TO_END: (0.5,)}
    )
    pairs = dict(unchanged.designs(suites))["same GPU, a baseline of one process"]
    unchanged.print_confirmed("a", unchanged.trials(pairs, suites))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "a, a fresh process confirms: REGRESSED 1 -> 0 of 424"
    assert [line.split("caught ")[1] for line in printed if "MLPs" in line and "GPU" in line] == [
        "+1.0% 100 -> 100 %"
    ]


def test_results_of_other_machines_are_kept_and_judged(
    suites: list[Suite],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Results of a folder are judged as runs that no number was chosen on, and kept if asked for."""
    source, *_ = sorted((DATA / "later").glob("*.json.gz"))
    runs = [replace(run, gpu="0a1b2c3d") for run in read_runs(source).runs]
    found = results(*(workload(name=run.workload, run=run) for run in runs))
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "results.json").write_bytes(encode_results(found))
    for module in (unchanged, recorded):
        monkeypatch.setattr(module, "DATA", tmp_path / "data")
    monkeypatch.setattr(unchanged, "recorded_suites", lambda: suites[:8])
    for option, kept in ((), 0), (("--keep",), 1):
        arguments = ["unchanged.py", "--design", "later", str(tmp_path / "machine"), *option]
        monkeypatch.setattr("sys.argv", arguments)
        unchanged.main()
        assert "later, committed baselines: green 1 of 1" in capsys.readouterr().out
        assert len(list(tmp_path.glob("data/later/h200-0a1b2c3d-*.json.gz"))) == kept
