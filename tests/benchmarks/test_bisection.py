"""Bisections of real repositories with processes that an H200 recorded: the right commit is found, and named."""

import json
from pathlib import Path

import bisection
import pytest
from recorded import DATA


@pytest.mark.parametrize(
    ("kind", "recording", "processes"),
    [("device", "h200-b", 20), ("host", "h200-b", 30), ("fusion", "h200-a", 9), ("break", "h200-a", 9)],
)
def test_recorded_change_is_found_among_eight_commits(
    kind: str, recording: str, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    replay = ["--replay", str(DATA / "bisection" / f"{recording}.jsonl.xz"), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["bisection.py", "--kind", kind, "--commits", "8", *replay])
    bisection.main()
    found = json.loads(out.read_text())
    assert (found["right"], found["exit_code"]) == (True, 0)
    assert found["processes"] <= processes
