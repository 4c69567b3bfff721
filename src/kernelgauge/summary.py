"""What is written at the end of a session: results, and what was asked to be stored."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from .acceptance import refusals, save_runs, update
from .artifacts import Artifacts
from .collecting import collect
from .errors import KernelgaugeError, StorageError
from .fixtures import workload_of
from .judge import Action, PlannedChange, Status
from .printable import printable
from .report.markdown import github_annotations, summary_markdown
from .report.terminal import plan_text, summary, unknown_machines
from .results import Results, TestResult, encode_results
from .workers import Gathered, gather, tell_controller

if TYPE_CHECKING:
    from .gauge import Gauge

__all__ = ["keep_part", "summarize", "test_result"]

_LONGEST_SAID = 20_000  # characters: a traceback is not what the results are for
_STEP_SUMMARY_BYTES = 1 << 20  # GitHub refuses the whole summary of a step that is larger


def summarize(
    gauge: Gauge, reporter: pytest.TerminalReporter, *, collected_only: bool, controls_workers: bool = False
) -> None:
    """Write the results, their summary, and the update or the runs that were asked for."""
    updates = gauge.options.update and (gauge.suites or controls_workers) and not collected_only
    found: Gathered = []
    if not collected_only:
        found = _gathered(gauge, reporter) if controls_workers else _observed(gauge)
    if not (found or updates):
        if gauge.suites and not collected_only and _was_cut_short(gauge):
            reporter.write_sep("=", "kernelgauge", bold=True)
            reporter.write_line(
                "the session was cut short before anything was measured: there are no results", yellow=True
            )
        return
    reporter.write_sep("=", "kernelgauge", bold=True)
    terminal = reporter._tw  # the only way to the width and the colour that pytest itself uses
    style: dict[str, Any] = {"width": terminal.fullwidth, "color": terminal.hasmarkup}
    if found:
        _write_results(gauge, found, reporter, style)
        _save_reports(gauge, [results for results, _ in found], reporter)
        if gauge.options.history is not None:
            for results, _ in found:
                _add_to_history(gauge, results, gauge.options.history, reporter)
    if gauge.options.update:
        for results in [results for results, _ in found] or [_collected(gauge)]:
            _update(gauge, results, reporter, style)
    if gauge.options.runs is not None:
        _write_runs(gauge, gauge.options.runs, reporter)
    _correct_exit_status(gauge, found, reporter)


def _correct_exit_status(gauge: Gauge, found: Gathered, reporter: pytest.TerminalReporter) -> None:
    """Write results again whose session failed after them: the history or the baselines could not be written."""
    status = int(gauge.session.exitstatus)
    for results, artifacts in found:
        if results.exit_status != status:
            _save_results(gauge, msgspec.structs.replace(results, exit_status=status), artifacts, reporter)


def keep_part(gauge: Gauge) -> None:
    """Write what a worker of pytest-xdist has so far: if it dies, what it measured is not lost. Never raises."""
    for results, artifacts in _observed(gauge):
        # A workload that was only measured to compare another one with is another worker's.
        tested = {test.workload for test in results.tests}
        part = msgspec.structs.replace(
            results, workloads=tuple(workload for workload in results.workloads if workload.id in tested)
        )
        try:
            artifacts.write_results(encode_results(part))
        except StorageError as error:
            gauge.warnings.append(str(error))
            tell_controller(gauge.session.config, error)


def _observed(gauge: Gauge) -> Gathered:
    """By this process. Empty if there is nothing to tell: a part of a suite tells that it is there, even if it is empty."""
    a_part = gauge.options.share is not None and gauge.suites
    if not (gauge.verdicts or gauge.observed.runs() or gauge.unavailable or a_part):
        return []
    return [(_collected(gauge), gauge.artifacts)]


def _gathered(gauge: Gauge, reporter: pytest.TerminalReporter) -> Gathered:
    """By the workers of pytest-xdist."""
    started, ended = _from_to(gauge)
    try:
        return gather(gauge, begun=started, ended=ended)
    except OSError as error:
        where = str(gauge.artifacts.workers)
        lost = StorageError("what the workers left cannot be brought together", where=where, got=str(error))
        reporter.write_line(str(lost), red=True)
        gauge.session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return []


def _collected(gauge: Gauge) -> Results:
    started, ended = _from_to(gauge)
    return collect(gauge, started=started, ended=ended, exit_status=int(gauge.session.exitstatus))


def _from_to(gauge: Gauge) -> tuple[datetime, datetime]:
    now = datetime.now(timezone.utc)
    return gauge.started or now, now


def _write_summary(gauge: Gauge, results: Results, reporter: pytest.TerminalReporter, style: dict[str, Any]) -> None:
    for block in summary(results, **style, failures=False):
        for line in block.text.split("\n"):
            reporter.write_line(line, yellow=block.warns)
    verdicts = [verdict for workload in results.workloads for verdict in workload.verdicts]
    if any(verdict.status is Status.NO_BASELINE for verdict in verdicts) and not gauge.options.update:
        reporter.write_line(gauge.how_to_record(results), yellow=True)
    unknown = unknown_machines(results) if not gauge.options.accepts else []
    if unknown:
        what = "GPU" if results.fingerprint is not None and results.fingerprint.arch != "cpu" else "host"
        reporter.write_line(f"the baselines do not know this {what}: {printable(', '.join(unknown))}")
        reporter.write_line(f"  to add this run to them: {gauge.how_to_add()}")


def test_result(item: pytest.Item, report: Any) -> TestResult:
    """One test as the results keep it."""
    workload = workload_of(item)
    said = ""
    if report.skipped and isinstance(report.longrepr, tuple):
        said = str(report.longrepr[2]).removeprefix("Skipped: ")
    elif report.failed:
        said = str(report.longrepr)
    documentation = getattr(getattr(item, "obj", None), "__doc__", None) or ""
    return TestResult(
        node=item.nodeid,
        workload=workload.id if workload else None,
        outcome=report.outcome,
        seconds=report.duration,
        claim=documentation.strip().partition("\n")[0],
        said=said[:_LONGEST_SAID].encode(errors="backslashreplace").decode(),  # JSON has no half of a character
    )


def _write_results(gauge: Gauge, found: Gathered, reporter: pytest.TerminalReporter, style: dict[str, Any]) -> None:
    """Write the results, with their summary. What of them cannot be written, the workers' parts alone still have."""
    saved: list[bool] = []
    for results, artifacts in found:
        _write_summary(gauge, results, reporter, style)
        reporter.write_line(f"traces and tables: {artifacts.traces}")
        saved.append(_save_results(gauge, results, artifacts, reporter))
    workers = gauge.artifacts.workers
    if all(saved):
        gauge.artifacts.remove_workers()
    elif workers.exists():
        kept = f"what the workers measured stays in {workers} until the next run"
        reporter.write_line(f"{kept}: kernelgauge merge {workers} --to DIR", red=True)


def _save_results(gauge: Gauge, results: Results, artifacts: Artifacts, reporter: pytest.TerminalReporter) -> bool:
    """Whether they could be written."""
    try:
        artifacts.write_results(encode_results(results))
    except KernelgaugeError as error:
        reporter.write_line(str(error), red=True)
        gauge.session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return False
    return True


def _save_reports(gauge: Gauge, results: Sequence[Results], reporter: pytest.TerminalReporter) -> None:
    from .report.html import html  # jinja2: only where something was measured

    try:
        gauge.artifacts.write_markdown(summary_markdown(results))
        gauge.artifacts.write_html(html(results))
    except KernelgaugeError as error:
        reporter.write_line(f"warning: {error}", yellow=True)
    if gauge.options.runs is None:  # what calibrates measures only, and many times
        _tell_github(results, reporter)


def _tell_github(results: Sequence[Results], reporter: pytest.TerminalReporter) -> None:
    """A summary of the step and annotations, where a workflow of GitHub Actions runs this."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        try:
            _add_to_step_summary(results, path)
        except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
            reporter.write_line(f"warning: GITHUB_STEP_SUMMARY was not written: {printable(str(error))}", yellow=True)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        reporter.ensure_newline()  # a command starts its line
        for line in github_annotations(results):
            reporter.write_line(line)


def _add_to_step_summary(results: Sequence[Results], path: str) -> None:
    """Append to what the step has written so far, as far as GitHub takes it."""
    # Not blocking: a FIFO that nobody reads is an error then.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags, 0o644), "ab") as file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise OSError(f"not a regular file: {path}")
        break_ = b"\n" if before.st_size else b""
        left = _STEP_SUMMARY_BYTES - before.st_size - len(break_)
        if left <= 0:
            raise OSError(f"the step has written {before.st_size} bytes already, of {_STEP_SUMMARY_BYTES}")
        file.write(break_ + summary_markdown(results, limit_bytes=left).encode())


def _write_runs(gauge: Gauge, path: Path, reporter: pytest.TerminalReporter) -> None:
    try:
        save_runs(_collected(gauge), gauge.store, path)
    except KernelgaugeError as error:
        reporter.write_line(str(error), red=True)
        gauge.session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _add_to_history(gauge: Gauge, results: Results, location: str, reporter: pytest.TerminalReporter) -> None:
    from .history import add_to_history

    try:
        added = add_to_history(results, location)
    except KernelgaugeError as error:  # the verdicts stand, but a nightly job must not lose its nights unnoticed
        reporter.write_line(str(error), red=True)
        reporter.write_line(f"add it later: kernelgauge history add {gauge.artifacts.folder} --to {location}", red=True)
        gauge.session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return
    for name in added.written:
        reporter.write_line(f"history: {printable(f'{location}/{name}')}")


def _was_cut_short(gauge: Gauge) -> bool:
    return gauge.session.exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)


def _update(gauge: Gauge, results: Results, reporter: pytest.TerminalReporter, style: dict[str, Any]) -> None:
    def show(plan: Sequence[PlannedChange]) -> None:
        reporter.write_sep("-", "baselines: what changes")
        reporter.write(plan_text(plan, **style))

    session = gauge.session
    if _was_cut_short(gauge):
        reporter.write_line("the session was cut short: no baseline was written", yellow=True)
        return
    tested = {test.workload for test in results.tests}
    for measured in results.workloads:
        if measured.run is None or measured.id not in tested:  # it was only measured to compare another one with
            continue
        for reason in refusals(results, measured, gauge.store):
            reporter.write_line(f"not stored: {measured.id}: {reason}", yellow=True)
    try:
        plan = update(results, gauge.store, show, next_command=gauge.suites.command(suites=results.declared))
    except KernelgaugeError as error:
        reporter.write_line(str(error), red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return
    assert results.fingerprint is not None  # of what was not measured nothing is stored
    written = sum(change.action is not Action.KEEP for change in plan)
    folder = gauge.store.path(results.fingerprint.device, "x").parent
    reporter.write_line(f"{written} written to {folder}", green=True)
