"""What a session writes when it ends: results, reports, and the baselines that were asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from ..baselines import Mode, plan_update, written_text
from ..errors import BaselineError, KernelgaugeError, printable
from ..judge import Status
from ..processes.revisions import LOADED, loaded_modules
from ..report.findings import with_words
from ..report.stored import doubt_text, plan_table
from ..report.summary import summary, summary_markdown, unknown_machines
from ..report.text import render
from ..results import Results, encode_results
from ..results.files import write_atomically
from . import SESSION_KEY, WORKER_ERROR
from .session import Session

_STEP_SUMMARY_BYTES = 1 << 20  # GitHub refuses the whole summary of a step that is larger


class Recorder:
    """Writes the results of a session, their summary and reports, and the update that was asked for."""

    def __init__(self, session: Session, reporter: pytest.TerminalReporter) -> None:
        self._session = session
        self._options = session.options
        self._reporter = reporter
        self._pytest = reporter.config.stash[SESSION_KEY]
        terminal = reporter._tw  # the only way to the width and the colour that pytest itself uses
        self._style: dict[str, Any] = {"width": terminal.fullwidth, "color": terminal.hasmarkup}

    def record(self, results_at: Callable[[int], Results], *, has_workers: bool) -> None:
        """Record the results at pytest's exit status. Only this process knows the suites, unless it has workers."""
        try:
            self._session.suites.require_workloads()
        except KernelgaugeError as error:
            self._fail(str(error))
        status = int(self._pytest.exitstatus)
        try:
            results = results_at(status)
        except KernelgaugeError as error:  # nothing is stored of what cannot be one result
            self._fail(str(error))
            return
        status = self._pytest.exitstatus = results.exit_status  # a worker's part may be lost
        has_results = bool(results.workloads)
        if not has_results:  # else the summary has them
            for warning in results.warnings:
                self._warn(f"warning: {warning}")
        is_unused = status == pytest.ExitCode.USAGE_ERROR or not (results.declared or has_workers)
        if not has_results and (is_unused or not (self._options.update or results.was_cut_short)):
            return
        self._reporter.write_sep("=", "kernelgauge", bold=True)
        if not has_results and results.was_cut_short:
            self._warn("the session was cut short before anything was measured: there are no results")
            return
        if has_results:
            self._write_summary(results)
            self._write(results)
        if self._options.update:
            self._update(results)
        status = int(self._pytest.exitstatus)
        if has_results and results.exit_status != status:  # the baselines could not be written
            self._save(msgspec.structs.replace(results, exit_status=status))

    def _warn(self, text: str) -> None:
        self._reporter.write_line(text, yellow=True)

    def _fail(self, text: str) -> None:
        """Say an error, and let the run fail, unless it ends with a worse status already: wrong usage, or an interruption."""
        self._reporter.write_line(text, red=True)
        if self._pytest.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            self._pytest.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _stored(self, results: Results) -> list[str]:
        """Return the workloads that an update of the baselines stores."""
        if not self._options.update or results.was_cut_short:
            return []
        try:
            plans, _ = plan_update([results], self._session.judge.store, Mode.UPDATE)
        except BaselineError:  # the update says so
            return []
        return [change.workload for plan in plans.values() for change in plan]

    def _write_summary(self, results: Results) -> None:
        recorded = self._stored(results)
        self._reporter.write_line(summary(results, **self._style, failures=False, recorded=recorded))
        if any(verdict.status is Status.NO_BASELINE for verdict in results.verdicts) and not self._options.update:
            fingerprint = results.fingerprint or self._session.fingerprint
            suites = dict.fromkeys([*results.declared, *(workload.suite for workload in results.workloads)])
            self._warn(self._session.judge.how_to_record(results.verdicts, fingerprint, suites))
        if not self._options.accepts and (unknown := unknown_machines(results)):
            what = "GPU" if results.fingerprint is not None and results.fingerprint.arch != "cpu" else "host"
            self._reporter.write_line(f"the baselines do not know this {what}: {printable(', '.join(unknown))}")
            self._reporter.write_line(f"  to add this run to them: {self._options.accept_command('--add')}")

    def _write(self, results: Results) -> None:
        artifacts = self._session.artifacts
        if self._options.calibrating:
            write_atomically(artifacts.folder / LOADED, loaded_modules())
        is_saved = self._save(results)
        report, traces = (
            os.path.relpath(each, self._options.invoked_from) for each in (artifacts.html, artifacts.traces)
        )
        self._reporter.write_line(f"report: {report}   traces: {traces}")
        if is_saved:
            shutil.rmtree(artifacts.workers, ignore_errors=True)
        elif artifacts.workers.exists():
            self._fail(f"the workers' results stay until the next run: kernelgauge report {artifacts.workers} --print")
        if not self._options.calibrating:  # that measures only, and many times
            self._save_reports(results)

    def _save(self, results: Results) -> bool:
        """Return whether the results could be written."""
        try:
            write_atomically(self._session.artifacts.results, encode_results(with_words(results)))
        except KernelgaugeError as error:
            self._fail(str(error))
            return False
        return True

    def _save_reports(self, results: Results) -> None:
        from ..report.html import html  # jinja2: only where something was measured

        try:
            write_atomically(self._session.artifacts.markdown, summary_markdown([results]).encode())
            write_atomically(self._session.artifacts.html, html([results]).encode())
        except KernelgaugeError as error:
            self._warn(f"warning: {error}")
        if path := os.environ.get("GITHUB_STEP_SUMMARY"):
            try:
                with open(path, "ab") as file:
                    left = _STEP_SUMMARY_BYTES - file.tell() - 1
                    if left > 0:
                        file.write(b"\n" + summary_markdown([results], limit_bytes=left).encode())
            except OSError as error:
                self._warn(f"warning: GITHUB_STEP_SUMMARY was not written: {printable(str(error))}")

    def _update(self, results: Results) -> None:
        if results.was_cut_short:
            self._warn("the session was cut short: no baseline was written")
            return
        try:
            with self._session.judge.store.locked():
                plans, refused = plan_update([results], self._session.judge.store, Mode.UPDATE)
                plan = [change for changes in plans.values() for change in changes]
                lines = [
                    f"not stored: {each.workload}: {doubt_text(doubt)}" for each in refused for doubt in each.doubts
                ]
                if refused:
                    force = f"store it as it is: {self._options.accept_command('--force')}"
                    self._fail(
                        "\n".join([*lines, f"mend what failed, or measure it again on a quiet machine, or {force}"])
                    )
                if results.fingerprint is None or not plan:
                    raise KernelgaugeError(
                        "nothing to store: no workload that was measured may become a baseline",
                        next_command=self._session.suites.command(suites=results.declared),
                    )
                self._reporter.write_sep("-", "baselines: what changes")
                self._reporter.write(render(plan_table(plan), **self._style))
                self._session.judge.store.apply(plans)
        except KernelgaugeError as error:
            self._fail(str(error))
            return
        folders = (
            self._options.shown(self._session.judge.store.path(device, "x").parent)
            for device, plan in plans.items()
            if plan
        )
        self._reporter.write_line(written_text(plans, ", ".join(folders)), green=True)


def keep_part(session: Session, config: pytest.Config) -> None:
    """Write what a worker has so far: if it hangs or dies in its next test, what it measured is known."""
    results = session.results(int(config.stash[SESSION_KEY].exitstatus))
    # A workload that was only measured to compare another one with is another worker's.
    tested = {test.workload for test in results.tests}
    workloads = tuple(workload for workload in results.workloads if workload.id in tested)
    if workloads:
        with refusing(config):
            part = msgspec.structs.replace(results, workloads=workloads)
            write_atomically(session.artifacts.results, encode_results(part))


@contextmanager
def refusing(config: pytest.Config) -> Iterator[None]:
    """Run nothing if one of our errors is raised, and say it. Raises `pytest.UsageError`; a worker tells its controller."""
    try:
        yield
    except KernelgaugeError as error:
        output: dict[str, Any] | None = getattr(config, "workeroutput", None)
        if output is None:
            raise pytest.UsageError(str(error)) from error
        output.setdefault(WORKER_ERROR, str(error))
        config.stash[SESSION_KEY].items.clear()
