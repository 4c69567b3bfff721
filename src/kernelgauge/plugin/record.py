"""What a session writes when it ends: results, reports, and the baselines or the history that were asked for."""

from __future__ import annotations

import os
import shutil
from typing import Any

import msgspec
import pytest

from ..baselines.acceptance import Mode, plan_update
from ..errors import BaselineError, KernelgaugeError, StorageError, UpdateRefused, printable
from ..judge import Action, Status
from ..report.baselines import plan_text
from ..report.markdown import summary_markdown
from ..report.terminal import summary, unknown_machines
from ..results import Results, TestResult, encode_results
from ..results.files import write_atomically
from .fixtures import SUBJECT
from .session import Session
from .suites import workload_of
from .workers import gather, tell_controller

__all__ = ["keep_part", "record_session", "test_result"]

_LONGEST_SAID = 20_000  # characters: a traceback is not what the results are for
_STEP_SUMMARY_BYTES = 1 << 20  # GitHub refuses the whole summary of a step that is larger


def record_session(
    session: Session, reporter: pytest.TerminalReporter, *, collected_only: bool, controls_workers: bool = False
) -> None:
    """Write the results, their summary, and the update or the runs that were asked for."""
    updates = session.options.update and (session.suites or controls_workers) and not collected_only
    results = None
    if not collected_only:
        try:
            results = gather(session) if controls_workers else _observed(session)
        except KernelgaugeError as error:  # nothing is stored of what cannot be one result
            reporter.write_line(str(error), red=True)
            _fail(session)
            return
    if results is None and not updates:
        if session.suites and not collected_only and _was_cut_short(session):
            reporter.write_sep("=", "kernelgauge", bold=True)
            reporter.write_line(
                "the session was cut short before anything was measured: there are no results", yellow=True
            )
        return
    reporter.write_sep("=", "kernelgauge", bold=True)
    terminal = reporter._tw  # the only way to the width and the colour that pytest itself uses
    style: dict[str, Any] = {"width": terminal.fullwidth, "color": terminal.hasmarkup}
    if results is not None:
        _write_results(session, results, reporter, style)
        if not session.options.calibrating:  # that measures only, and many times
            _save_reports(session, results, reporter)
        if session.options.history is not None:
            _add_to_history(session, results, session.options.history, reporter)
    if session.options.update:
        _update(session, results or session.results(), reporter, style)
    status = int(session.pytest.exitstatus)
    if results is not None and results.exit_status != status:  # the history or the baselines could not be written
        _save_results(session, msgspec.structs.replace(results, exit_status=status), reporter)


def keep_part(session: Session) -> None:
    """Write what a worker of pytest-xdist has so far: if it dies, what it measured is not lost. Never raises."""
    results = _observed(session)
    if results is None:
        return
    # A workload that was only measured to compare another one with is another worker's.
    tested = {test.workload for test in results.tests}
    part = msgspec.structs.replace(
        results, workloads=tuple(workload for workload in results.workloads if workload.id in tested)
    )
    try:
        write_atomically(session.artifacts.results, encode_results(part))
    except StorageError as error:
        session.warnings.append(str(error))
        tell_controller(session.pytest.config, error)


def _observed(session: Session) -> Results | None:
    """Return the results of this process; None if there is nothing to record."""
    return None if session.is_empty else session.results()


def _write_summary(
    session: Session, results: Results, reporter: pytest.TerminalReporter, style: dict[str, Any]
) -> None:
    recorded = _stored_workloads(session, results) if session.options.update and not _was_cut_short(session) else ()
    for line in summary(results, **style, failures=False, recorded=recorded).splitlines():
        reporter.write_line(line)
    if any(verdict.status is Status.NO_BASELINE for verdict in results.verdicts) and not session.options.update:
        reporter.write_line(session.how_to_record(results), yellow=True)
    unknown = unknown_machines(results) if not session.options.accepts else []
    if unknown:
        what = "GPU" if results.fingerprint is not None and results.fingerprint.arch != "cpu" else "host"
        reporter.write_line(f"the baselines do not know this {what}: {printable(', '.join(unknown))}")
        reporter.write_line(f"  to add this run to them: {session.how_to_accept('--add')}")


def test_result(item: pytest.Item, report: Any) -> TestResult:
    """Return one test as the results keep it. A failure of its teardown is not the verdict that its call ended with."""
    workload = workload_of(item)
    subject, item.stash[SUBJECT] = item.stash.get(SUBJECT, None), None
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
        subject=subject,
    )


def _write_results(
    session: Session, results: Results, reporter: pytest.TerminalReporter, style: dict[str, Any]
) -> None:
    """Write the results, with their summary. If they cannot be written, the workers' parts stay."""
    _write_summary(session, results, reporter, style)
    is_saved = _save_results(session, results, reporter)
    report, traces = (
        os.path.relpath(each, session.options.invoked_from)
        for each in (session.artifacts.html, session.artifacts.traces)
    )
    reporter.write_line(f"report: {report}   traces: {traces}")
    workers = session.artifacts.workers
    if is_saved:
        shutil.rmtree(workers, ignore_errors=True)
    elif workers.exists():
        kept = f"what the workers measured stays in {workers} until the next run"
        reporter.write_line(f"{kept}: kernelgauge merge {workers} --to DIR", red=True)


def _save_results(session: Session, results: Results, reporter: pytest.TerminalReporter) -> bool:
    """Return whether they could be written."""
    try:
        write_atomically(session.artifacts.results, encode_results(results))
    except KernelgaugeError as error:
        reporter.write_line(str(error), red=True)
        _fail(session)
        return False
    return True


def _save_reports(session: Session, results: Results, reporter: pytest.TerminalReporter) -> None:
    from ..report.html import html  # jinja2: only where something was measured

    try:
        write_atomically(session.artifacts.markdown, summary_markdown([results]).encode())
        write_atomically(session.artifacts.html, html([results]).encode())
    except KernelgaugeError as error:
        reporter.write_line(f"warning: {error}", yellow=True)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            _add_to_step_summary(results, path)
        except OSError as error:
            reporter.write_line(f"warning: GITHUB_STEP_SUMMARY was not written: {printable(str(error))}", yellow=True)


def _add_to_step_summary(results: Results, path: str) -> None:
    """Append to what the step has written so far, as far as GitHub takes it."""
    with open(path, "ab") as file:
        before = file.tell()
        break_ = b"\n" if before else b""
        left = _STEP_SUMMARY_BYTES - before - len(break_)
        if left <= 0:
            raise OSError(f"the step has written {before} bytes already, of {_STEP_SUMMARY_BYTES}")
        file.write(break_ + summary_markdown([results], limit_bytes=left).encode())


def _add_to_history(session: Session, results: Results, location: str, reporter: pytest.TerminalReporter) -> None:
    from ..results.history import add_to_history

    try:
        added = add_to_history(results, location)
    except KernelgaugeError as error:  # the verdicts stand, but a nightly job must not lose its nights unnoticed
        reporter.write_line(str(error), red=True)
        reporter.write_line(
            f"add it later: kernelgauge history add {session.artifacts.folder} --to {location}", red=True
        )
        _fail(session)
        return
    for name in (name for name, is_new in added.items() if is_new):
        reporter.write_line(f"history: {printable(f'{location}/{name}')}")


def _fail(session: Session) -> None:
    """Let the run fail, unless it ends with a worse status already: wrong usage, or an interruption."""
    if session.pytest.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.pytest.exitstatus = pytest.ExitCode.TESTS_FAILED


def _was_cut_short(session: Session) -> bool:
    return session.pytest.exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)


def _stored_workloads(session: Session, results: Results) -> list[str]:
    """Return the workloads that an update of the baselines stores."""
    try:
        plans, _ = plan_update([results], session.store, Mode.UPDATE)
    except BaselineError:  # the update says so
        return []
    return [change.workload for plan in plans.values() for change in plan]


def _update(session: Session, results: Results, reporter: pytest.TerminalReporter, style: dict[str, Any]) -> None:
    if _was_cut_short(session):
        reporter.write_line("the session was cut short: no baseline was written", yellow=True)
        return
    try:
        with session.store.locked():
            plans, refused = plan_update([results], session.store, Mode.UPDATE)
            plan = [change for changes in plans.values() for change in changes]
            lines = [f"not stored: {each.workload}: {reason}" for each in refused for reason in each.doubts]
            if refused:
                force = session.how_to_accept("--force")
                lines.append(f"measure it again on a quiet machine, or store it as it is: {force}")
            for line in lines:
                reporter.write_line(line, yellow=True)
            if results.fingerprint is None or all(change.action is Action.TRIM for change in plan):
                raise UpdateRefused(
                    "nothing to store: no workload that was measured may become a baseline",
                    next_command=session.suites.command(suites=results.declared),
                )
            reporter.write_sep("-", "baselines: what changes")
            reporter.write(plan_text(plan, **style))
            session.store.apply(plans)
    except KernelgaugeError as error:
        reporter.write_line(str(error), red=True)
        _fail(session)
        return
    written = sum(change.action is not Action.KEEP for change in plan)
    folder = session.store.path(results.fingerprint.device, "x").parent
    reporter.write_line(f"{written} written to {folder}", green=True)
