"""The processes of a benchmark: started, ended, and put together."""

from __future__ import annotations

import argparse
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

    def test_a_failed_process_is_named_with_its_last_lines(self) -> None:
        failure = run.run_child(self.child("import os, sys; print(os.environ['MARK'], file=sys.stderr); sys.exit(3)"))
        assert failure == "process 7 failed: exit status 3\n    here"

    def test_a_process_that_hangs_is_stopped_with_what_it_started(self) -> None:
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

    def test_a_failure_does_not_stop_the_rest(self, capsys: pytest.CaptureFixture[str]) -> None:
        failures = run.run_queue([self.child("raise SystemExit('broken')"), self.child("pass")])
        assert len(failures) == 1
        assert "broken" in failures[0]
        assert capsys.readouterr().out.splitlines() == ["process 7: FAILED", "process 7: done"]

    def test_a_report_is_of_what_it_archives(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ours = types.ModuleType("detection.ours")
        ours.decide = above_one_percent  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "detection.ours", ours)
        monkeypatch.setattr(run, "plot", lambda *_: None)
        run.report([process(number, us=3.0) for number in range(4)], tmp_path / "first", None)
        run.report(load(tmp_path / "first" / "raw.npz"), tmp_path / "second", None)
        assert (tmp_path / "first" / "table.md").read_text() == (tmp_path / "second" / "table.md").read_text()

    def test_gpus_are_named_as_the_environment_names_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1234")
        assert run.visible_gpus() == ["3", "GPU-1234"]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert run.visible_gpus() == []

    def test_a_process_has_time_for_what_it_measures(self) -> None:
        # Six workloads: ours once, then ours in passes over none, two levels, the three bars and the control pair, and three
        # methods at none and one level after a rest.
        expected = 6 * 0.5 + (38 * 0.5 + run.SETTLE_S) + 12 * 3 * (0.5 + run.SETTLE_S)
        assert run.planned_seconds(6, 0.5, 2, 1) == pytest.approx(expected)
        without_peers = 6 * 0.5 + (38 * 0.5 + run.SETTLE_S)
        assert run.planned_seconds(6, 0.5, 2, None) == pytest.approx(without_peers)

    @pytest.fixture
    def arguments(self, tmp_path: Path) -> argparse.Namespace:
        return argparse.Namespace(
            out=tmp_path, seconds=1.0, levels_per_process=2, peer_levels=1, peers_every=2, timeout=None, workload=None
        )

    def test_the_peers_measure_in_some_processes_of_each_gpu(self, arguments: argparse.Namespace) -> None:
        children = [run.child(arguments, number, 2, {}) for number in range(8)]
        assert ["--no-peers" in child.command for child in children] == [False, False, True, True] * 2
        assert children[2].timeout_s < children[0].timeout_s

    def test_only_what_is_measured_is_compiled_first(
        self, arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[run.Child] = []
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        monkeypatch.setattr(run, "run_child", lambda one: ran.append(one) or "it fails")
        arguments.workload = [run.WORKLOAD_IDS[1]]
        assert run.measure(arguments) == ["it fails"]
        assert ran[0].command[-3:] == ("--compile-only", "--workload", run.WORKLOAD_IDS[1])

    def test_a_process_measures_the_workloads_that_are_asked_for(self, arguments: argparse.Namespace) -> None:
        assert "--workload" not in run.child(arguments, 0, 2, {}).command
        arguments.workload = list(run.WORKLOAD_IDS[:2])
        command = list(run.child(arguments, 0, 2, {}).command)
        places = [place for place, part in enumerate(command) if part == "--workload"]
        assert [command[place + 1] for place in places] == arguments.workload

    def test_a_process_has_less_time_for_fewer_workloads(self, arguments: argparse.Namespace) -> None:
        def timeout_s(chosen: list[str] | None) -> float:
            arguments.workload = chosen
            return run.child(arguments, 0, 2, {}).timeout_s

        every = list(run.WORKLOAD_IDS)
        assert timeout_s(None) == timeout_s(every) > timeout_s(every[:2]) > timeout_s(every[:1])


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
