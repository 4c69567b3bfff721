"""The benchmark of tools that read traces, on small traces and without the other tools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRACE = Path(__file__).resolve().parents[2] / "benchmarks" / "trace"


def run_contest(folder: Path, script: Path, tool: str) -> subprocess.CompletedProcess[str]:
    """Run it with a tool of a script as ours, and an interpreter that has no peers."""
    bare = folder / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    command = [sys.executable, str(TRACE / "run.py"), "--out", str(folder / "out"), "--sizes", "0.3,0.9"]
    command += ["--repeats", "2", "--python", str(bare), "--ours", f"{sys.executable} {script} {tool}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_run_of_equal_answers_succeeds_without_peers(tmp_path: Path) -> None:
    ended = run_contest(tmp_path, TRACE / "peers.py", "ours")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out" / "table.md").read_text() == ended.stdout.rstrip("\n") + "\n"
    assert "HTA, parser alone: not available: No module named 'hta'" in ended.stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text(), parse_constant=pytest.fail)
    assert [run["tool"] for run in results["runs"]].count("kernelgauge show") == 4
    assert [(len(top), top[0]["launches"] > 0) for top in results["top"].values()] == [(10, True)] * 2


def test_run_of_another_answer_fails(tmp_path: Path) -> None:
    script = tmp_path / "ours.py"
    script.write_text((TRACE / "peers.py").read_text(encoding="utf-8").replace("sum(us)", "sum(us) * 1.001"))
    ended = run_contest(tmp_path, script, "json_loop")
    assert ended.returncode == 1
    assert "kernelgauge show: WRONG with 0.2 MB: " in ended.stdout
