"""What a session writes when it ends: results, reports, and the baselines that were asked for.

Under pytest-xdist there is a worker for each GPU, a share of the suite for each worker, and one
result of all workers. Each worker collects the whole suite and runs its share of it
(`Suites.select`): pytest-xdist calls that ``--dist each``.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ..baselines import Mode, Plans, judge_by_themselves, plan_update, written_text
from ..errors import KernelgaugeError, ResultsError, printable
from ..judge import Status
from ..judge.evidence import FileNote
from ..judge.review import Action, PlannedChange, Reviewed
from ..measure.nvml import VISIBLE, visible_gpus
from ..processes import LOADED, loaded_modules
from ..report.findings import with_words
from ..report.stored import plan_section, refusal_lines
from ..report.summary import (
    error_commands,
    recording_doubt,
    summary,
    summary_markdown,
    unknown_machines,
)
from ..report.text import as_text, named
from ..report.words import reason_line
from ..results import (
    NAME,
    Results,
    TestResult,
    checked_out,
    encode_results,
    find_results,
    read_results,
)
from ..results.files import write_atomically
from ..run import Lack
from ..trace import grouped
from ..workload import Workload
from . import MEASURED_BY, SESSION_KEY, SKIPPED, WORKER_ERROR
from .session import Session

_STEP_SUMMARY_BYTES = 1 << 20  # GitHub refuses the whole summary of a step that is larger


class Recorder:
    """Writes the results of a session, their summary and reports, and the update that was asked
    for.
    """

    def __init__(self, session: Session, reporter: pytest.TerminalReporter) -> None:
        self._session = session
        self._options = session.options
        self._reporter = reporter
        self._pytest = reporter.config.stash[SESSION_KEY]
        terminal = reporter._tw  # the only way to the width and the colour that pytest itself uses
        self._style: dict[str, Any] = {"width": terminal.fullwidth, "color": terminal.hasmarkup}

    def record(self, results_at: Callable[[int], Results], *, has_workers: bool) -> None:
        """Record the results at pytest's exit status.

        Only this process knows the suites, unless it has workers.
        """
        try:
            self._session.require_tests(self._reporter.config.stash.get(SKIPPED, {}))
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
            self._warn(
                "the session was cut short before anything was measured: there are no results"
            )
            return
        with ExitStack() as held:
            plan = self._plan_update(results, held)
            if has_results:
                recorded = (
                    []
                    if isinstance(plan, str)
                    else [change.workload for each in plan[0].values() for change in each]
                )
                self._write_summary(results, recorded)
                self._write(results)
            if self._options.update:
                self._update(results, plan)
        status = int(self._pytest.exitstatus)
        if has_results and results.exit_status != status:  # the baselines could not be written
            self._save(msgspec.structs.replace(results, exit_status=status))

    def _warn(self, text: str) -> None:
        self._reporter.write_line(text, yellow=True)

    def _fail(self, text: str) -> None:
        """Say an error, and let the run fail, unless it ends with a worse status already: wrong
        usage, or an interruption.
        """
        self._reporter.write_line(text, red=True)
        if self._pytest.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            self._pytest.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _plan_update(self, results: Results, held: ExitStack) -> tuple[Plans, list[Reviewed]] | str:
        """Hold the baselines and return the plan of their update, or why there is none: the table
        shows what is written.
        """
        try:
            if self._options.update and not results.was_cut_short:
                held.enter_context(self._session.suites.store.locked())
                return plan_update([results], self._session.suites.store, Mode.UPDATE)
        except KernelgaugeError as error:
            return str(error)
        return ""

    def _write_summary(self, results: Results, recorded: Sequence[str]) -> None:
        is_verbose = self._reporter.config.get_verbosity() > 0
        page = summary(results, recorded, is_verbose=is_verbose)
        self._reporter.write(as_text(page, **self._style, is_dense=True))
        if (
            any(verdict.status is Status.NO_BASELINE for verdict in results.verdicts)
            and not self._options.update
        ):
            missing = [
                each
                for each in results.workloads
                if any(it.status is Status.NO_BASELINE for it in each.verdicts)
            ]
            devices = {each.run.fingerprint.device for each in missing if each.run is not None}
            self._warn(
                self._session.suites.how_to_record(results.verdicts, devices, _suites(results))
            )
        if not self._options.accepts and (unknown := unknown_machines(results)):
            what = (
                "GPU"
                if results.fingerprint is not None and results.fingerprint.arch != "cpu"
                else "host"
            )
            self._reporter.write_line(
                f"the baselines do not know this {what}: {printable(', '.join(unknown))}"
            )
            self._reporter.write_line(
                f"  to add this run to them: {self._options.accept_command('--add')}"
            )

    def _write(self, results: Results) -> None:
        artifacts = self._session.artifacts
        if self._options.calibrating:
            write_atomically(artifacts.folder / LOADED, loaded_modules())
        is_saved = self._save(results)
        report, traces = (
            os.path.relpath(each, self._options.invoked_from)
            for each in (artifacts.html, artifacts.traces)
        )
        self._reporter.write_line(f"report: {report}   traces: {traces}")
        if is_saved:
            shutil.rmtree(artifacts.workers, ignore_errors=True)
        elif artifacts.workers.exists():
            self._fail(
                f"the workers' results stay until the next run: kernelgauge report {artifacts.workers}"
            )
        if not self._options.calibrating:  # that measures only, and many times
            self._save_reports(results)
            folders = self._options.invoked_from, self._options.root
            for line in error_commands(results, checked_out(*folders)):
                self._reporter.write_line(line)

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

    def _update(self, results: Results, planned: tuple[Plans, list[Reviewed]] | str) -> None:
        if results.was_cut_short:
            self._warn("the session was cut short: no baseline was written")
            return
        if isinstance(planned, str):
            self._fail(planned)
            return
        plans, refused = planned
        plan = [change for changes in plans.values() for change in changes]
        lines = [f"not stored: {line}" for line in refusal_lines(refused)]
        if refused:
            force = f"store it as it is: {self._options.accept_command('--force')}"
            lacks = {each.id: each.run.lack for each in results.workloads if each.run}
            is_unasked = not results.failed_tests and all(
                lacks.get(each.workload) is Lack.NOT_ASKED for each in refused
            )
            better = (
                "select the tests of its times too"
                if is_unasked
                else "mend what failed, or measure it again on a quiet machine"
            )
            self._fail("\n".join([*lines, f"{better}, or {force}"]))
        try:
            if results.fingerprint is None or not plan:
                again = self._session.suites.command(suites=_suites(results))
                raise KernelgaugeError(
                    "nothing to store: no workload that was measured may become a baseline",
                    next_command="mend what failed" if results.failed_tests else again,
                )
            # The table has the new ones.
            if changes := [each for each in plan if each.action is not Action.CREATE]:
                self._reporter.write_sep("-", "baselines: what changes")
                self._reporter.write(as_text([plan_section(changes)], **self._style))
            self._session.suites.store.apply(plans)
        except KernelgaugeError as error:
            self._fail(str(error))
            return
        folders = (
            self._options.shown(self._session.suites.store.path(device, "x").parent)
            for device, plan in plans.items()
            if plan
        )
        for line in _breaks(plan):
            self._reporter.write_line(line)
        self._reporter.write_line(written_text(plans, ", ".join(folders)), green=True)
        if doubt := recording_doubt(judge_by_themselves([results], plans)):
            self._warn(f"warning: {doubt}")


def _breaks(plan: Iterable[PlannedChange]) -> Iterator[str]:
    """Yield graph breaks, recompiles and tensors of another shape in each call that new baselines
    have, with their workloads.
    """
    notes = [
        (change.workload, reason_line(each).text)
        for change in plan
        for each in change.details
        if change.action is Action.CREATE
        and isinstance(each, FileNote)
        and each.what in ("graph_breaks", "recompiles", "unsteady")
    ]
    for text, cases in grouped(notes, itemgetter(1)).items():
        yield f"{named(name for name, _ in cases)}: {text}"


def _suites(results: Results) -> Iterable[str]:
    """Return the suites of a run, and the files of the tests that made workloads."""
    return dict.fromkeys([*results.declared, *(workload.suite for workload in results.workloads)])


def keep_part(session: Session, config: pytest.Config, workload: Workload | None = None) -> None:
    """Write a worker's results. Before the end, write only one workload, in a subfolder that the
    final file replaces.

    If the worker hangs or dies later, what it concluded is known.
    """
    results = session.results(int(config.stash[SESSION_KEY].exitstatus), only=workload)
    file = session.artifacts.results
    # A workload that was only measured to compare another one with is another worker's.
    mine = {*(each.id for each in session.selected), *session.suites.made}
    workloads = tuple(workload for workload in results.workloads if workload.id in mine)
    if workloads:
        with refusing(config):
            part = msgspec.structs.replace(results, workloads=workloads)
            write_atomically(
                file if workload is None else file.parent / workload.id / NAME, encode_results(part)
            )


@contextmanager
def refusing(config: pytest.Config) -> Iterator[None]:
    """Run nothing if one of our errors is raised, and say it.

    Raises `pytest.UsageError`; a worker tells its controller.
    """
    try:
        yield
    except KernelgaugeError as error:
        output: dict[str, Any] | None = getattr(config, "workeroutput", None)
        if output is None:
            raise pytest.UsageError(str(error)) from error
        output.setdefault(WORKER_ERROR, str(error))
        config.stash[SESSION_KEY].items.clear()


# -- workers of pytest-xdist -----------------------------------------------------------------------


def _has_suite(config: pytest.Config) -> bool:
    """Return whether a `conftest.py` that pytest has loaded declares workloads: before collection,
    that of a named folder.
    """
    return bool(config.hook.pytest_kernelgauge_workloads.get_hookimpls())


def _gpus(config: pytest.Config) -> tuple[str, ...]:
    return () if config.getoption("--perf-device") == "cpu" else visible_gpus()


class Controller:
    """Hooks of the process that starts the workers, and measures nothing itself."""

    def __init__(self, session: Session, config: pytest.Config) -> None:
        self._session, self._config = session, config
        self._started = 0  # workers that know of a suite
        self._collected = 0  # tests, by all of them
        self._warnings: list[str] = []
        if _has_suite(config):
            config.option.dist = "each"
            # The next worker would measure all of the share again, and die where this one died.
            config.option.maxworkerrestart = "0"
            # two workers would disturb each other on one GPU, and on a host
            if config.option.numprocesses:
                del config.option.tx[max(1, len(_gpus(config))) :]

    @pytest.hookimpl(tryfirst=True)  # before the workers are started
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session_of_pytest = session
        if _has_suite(session.config):
            with refusing(session.config):
                self._session.prepare()

    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        """Before the worker imports anything of a suite: CUDA reads the variable once."""
        gpus = _gpus(config) if _has_suite(config) else ()
        for place, spec in enumerate(specs):
            if gpus and spec.popen:  # a worker on another machine has GPUs of its own
                spec.env[VISIBLE] = gpus[place % len(gpus)]

    def pytest_configure_node(self, node: Any) -> None:
        if _has_suite(node.config):
            self._started += 1
            node.workerinput["kernelgauge_share"] = (self._started, len(node.nodemanager.specs))
        node.workerinput["kernelgauge_arguments"] = list(self._session.options.arguments)

    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._collected += len(ids)
        # it has workloads to measure
        if (self._session.artifacts.workers / node.gateway.id).exists():
            with refusing(node.config):
                self._session.artifacts.empty()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        # pytest-xdist takes the number of the worker that was last, which may have no test
        if self._started:
            self._session_of_pytest.testscollected = self._collected

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep how a test ended: the part of a worker that dies lacks it."""
        tests = self._session.tests
        if report.when == "setup":
            tests.pop(report.nodeid, None)  # an attempt before this one
        if found := getattr(report, "kernelgauge_test", None):
            tests.setdefault(report.nodeid, []).append(msgspec.convert(found, TestResult))

    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        workload = crashitem.partition("[")[2].removesuffix("]") or None
        self._session.tests[crashitem] = [
            TestResult(crashitem, workload, "failed", 0.0, said=str(report.longrepr))
        ]
        self._warnings.append(f"a worker died in {crashitem}: the rest of its share was not run")

    def _parts(self) -> tuple[list[Results], list[str]]:
        """Return what each worker wrote; and the warnings, with one for each that cannot be read."""
        parts, warnings = list[Results](), [*self._warnings]
        folder = self._session.artifacts.workers
        for file in filter(Path.exists, find_results([folder])):
            worker = file.relative_to(folder).parts[0]
            # Without a suite nobody has removed what an earlier run left, and a worker that died
            # has nothing to be gathered.
            if not (self._started or worker in self._config.stash[MEASURED_BY]):
                continue
            try:
                parts.append(read_results(file))
            except ResultsError as error:
                warnings.append(f"{worker}: {error.one_line}")
        return parts, warnings

    def results(self, exit_status: int) -> Results:
        """Return what all workers measured and judged as one. What a worker that died has left
        counts as far as it goes.

        The workers' parts stay: until what was made of them is written, they are all that there is.
        A part that cannot be read fails the run. Raises `ResultsError` if the workers measured on
        GPUs of several models.
        """
        own = self._session.results(exit_status)
        parts, warnings = self._parts()
        if len(warnings) > len(self._warnings):
            exit_status = exit_status or int(pytest.ExitCode.TESTS_FAILED)
        if not parts:
            return msgspec.structs.replace(
                own, exit_status=exit_status, warnings=(*own.warnings, *warnings)
            )
        models = {part.fingerprint.device for part in parts if part.fingerprint is not None}
        if len(models) > 1:
            got = ", ".join(sorted(models))
            what, again = (
                "the workers measured on several models of GPU",
                shlex.join(["pytest", *own.arguments]),
            )
            raise ResultsError(
                what, got=got, next_command=f"{VISIBLE}=0 {again}   (those of one model only)"
            )
        workloads = {each.id: each for part in parts for each in part.workloads}
        declared = {suite: names for part in parts for suite, names in part.declared.items()}
        places = {
            name: place
            for place, name in enumerate(name for names in declared.values() for name in names)
        }
        gpus = {part.gpu for part in parts}
        said = dict.fromkeys(warning for part in parts for warning in part.warnings)
        return msgspec.structs.replace(
            own,
            fingerprint=next(
                (part.fingerprint for part in parts if part.fingerprint is not None), None
            ),
            gpu=gpus.pop() if len(gpus) == 1 else None,
            not_watched="; ".join(
                dict.fromkeys(part.not_watched for part in parts if part.not_watched)
            ),
            workloads=tuple(
                sorted(workloads.values(), key=lambda each: places.get(each.id, len(places)))
            ),
            sources={path: it for part in parts for path, it in part.sources.items()},
            tests=(
                *(
                    test
                    for part in parts
                    for test in part.tests
                    if test.node not in self._session.tests
                ),
                *own.tests,
            ),
            warnings=(*own.warnings, *said, *warnings),
            exit_status=exit_status,
            timers=tuple(dict.fromkeys(timer for part in parts for timer in part.timers)),
            comparisons=max(part.comparisons for part in parts),
            declared=declared,
        )


def prepare_worker(session: Session) -> None:
    """Tell the controller, by a folder, that this worker measures.

    Raises `KernelgaugeError` if the controller knew of no suite: this worker would share its GPU
    with the others.
    """
    if session.options.share is None and session.selected:
        raise KernelgaugeError(
            "several workers found workloads that were not divided among them",
            got="a suite below the folders that pytest was given",
            expected="the suite's own folder",
            next_command="pytest perf -n 2   (name the folder whose conftest.py declares the workloads)",
        )
    session.artifacts.results.parent.mkdir(parents=True, exist_ok=True)
