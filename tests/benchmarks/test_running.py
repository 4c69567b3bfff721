"""The processes of a benchmark: started, ended, and put together."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import types
from pathlib import Path

import pytest
from detection import run
from detection.data import load

from tests.benchmarks.processes import above_one_percent, process


class TestRunner:
    def child(self, source: str, timeout_s: float = 20.0) -> run.Child:
        return run.Child("process 7", (sys.executable, "-c", source), {"MARK": "here"}, timeout_s)

    def test_failed_process_is_named_with_its_last_lines(self) -> None:
        failure = run.run_child(self.child("import os, sys; print(os.environ['MARK'], file=sys.stderr); sys.exit(3)"))
        assert failure == "process 7 failed: exit status 3\n    here"

    def test_hanging_process_is_ended_with_its_children(self) -> None:
        start = time.perf_counter()
        failure = run.run_child(
            self.child(
                "import subprocess, sys, time\n"
                "one = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
                "print(one.pid, flush=True)\n"
                "time.sleep(60)",
                timeout_s=2.0,
            )
        )
        assert time.perf_counter() - start < 10
        assert failure is not None
        assert failure.startswith("process 7 failed: stopped after 2 s")
        assert not _runs(int(failure.splitlines()[-1]))

    def test_failed_process_does_not_stop_the_rest(self, capsys: pytest.CaptureFixture[str]) -> None:
        failures = run.run_queue([self.child("raise SystemExit('broken')"), self.child("pass")])
        assert len(failures) == 1
        assert "broken" in failures[0]
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(",")[0] for line in lines] == ["process 7: FAILED", "process 7: done"]

    def test_report_evaluates_its_archive(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ours = types.ModuleType("detection.ours")
        ours.decide = above_one_percent  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "detection.ours", ours)
        monkeypatch.setattr(run, "plot", lambda *_: None)
        run.report([process(number, us=3.0) for number in range(4)], tmp_path / "first")
        run.report(load(tmp_path / "first" / "raw.npz"), tmp_path / "second")
        assert (tmp_path / "first" / "table.md").read_text() == (tmp_path / "second" / "table.md").read_text()

    def test_visible_gpus_follow_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1234")
        assert run.visible_gpus() == ["3", "GPU-1234"]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert run.visible_gpus() == []

    @pytest.fixture
    def arguments(self, tmp_path: Path) -> argparse.Namespace:
        return argparse.Namespace(out=tmp_path, seconds=0.5, timeout=180.0, workload=list(run.WORKLOAD_IDS[:2]))

    def test_child_measures_chosen_workloads(self, arguments: argparse.Namespace) -> None:
        command = run.child(arguments, 3, 2, {}).command
        places = [place for place, part in enumerate(command) if part == "--workload"]
        assert [command[place + 1] for place in places] == arguments.workload

    def test_children_of_a_gpu_take_turns_at_levels(self, arguments: argparse.Namespace) -> None:
        commands = [run.child(arguments, number, 2, {}).command for number in range(0, 8, 2)]
        assert [command[command.index("--slot") + 1] for command in commands] == ["0", "1", "2", "3"]

    def test_measure_compiles_chosen_workloads_first(
        self, arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[run.Child] = []
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        monkeypatch.setattr(run, "run_child", lambda one: ran.append(one) or "it fails")
        arguments.workload = [run.WORKLOAD_IDS[1]]
        assert run.measure(arguments) == ["it fails"]
        assert ran[0].command[-3:] == ("--compile-only", "--workload", run.WORKLOAD_IDS[1])

    def test_collect_accepts_the_childs_options(self, arguments: argparse.Namespace) -> None:
        child = run.child(arguments, 3, 1, {})
        failure = run.run_child(dataclasses.replace(child, command=(*child.command, "--unknown")))
        assert failure is not None
        assert failure.endswith("error: unrecognized arguments: --unknown")


def _runs(pid: int) -> bool:
    for _ in range(50):  # a killed process is there until init has seen it
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True
