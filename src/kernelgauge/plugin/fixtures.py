"""The fixtures that a suite's tests ask for, and how a test of a workload ends."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar, cast

import pytest

from ..errors import KernelgaugeError, WorkloadError
from ..judge import DECLARED, MEASUREMENT, NUMERICS, RATIO, STRUCTURE, WORST_FIRST, Status, Verdict
from ..judge.evidence import Cause
from ..report.findings import CAUSES_WITH_CODE, also, brief, in_full
from ..report.words import headline
from ..run import CALL_TIMERS, COMPILE_TIMERS, Run
from ..workload import Workload
from . import measuring_fixtures
from .session import Session
from .suites import MADE_BY_TEST, SKIPPED, subjects_of, workload_of

SESSION = pytest.StashKey[Session]()
SUBJECT = pytest.StashKey["str | None"]()  # of the verdict that a phase of a test ended with
# What ended a test; None: it went on after its verdict, and what fails then is no verdict.
END = pytest.StashKey["BaseException | None"]()
_HAS_GAUGE = pytest.StashKey[bool]()  # else its fixture is another one of that name
_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _ends_test(function: _Function) -> _Function:
    """Keep what a test ends with: a thread, or ``except BaseException``, hides it from pytest."""

    @wraps(function)
    def kept(item: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(item, *args, **kwargs)
        except BaseException as end:
            stash = getattr(item, "item", item).stash  # of a `Gauge`
            if stash.get(END, end) is None:  # it had gone on
                stash[SUBJECT] = None
            stash[END] = end
            raise

    return cast("_Function", kept)


class Sibling(Protocol):
    """Return the run of the workload that differs in these fields only:
    ``sibling(variant="eager")``.
    """

    def __call__(self, **fields: object) -> Run: ...


def _checked(request: pytest.FixtureRequest, workload: object) -> pytest.Item:
    """Return the test of a fixture. Fail or skip it if it measures nothing."""
    suites = request.config.stash[SESSION].suites
    if not isinstance(workload, Workload) or workload.id not in suites.workloads:
        pytest.fail(
            "another fixture called `workload` hides that of kernelgauge: rename it", pytrace=False
        )
    if request.config.option.setuponly:
        pytest.skip("--setup-only measures nothing")
    return cast("pytest.Item", request.node)


@pytest.fixture
def run(request: pytest.FixtureRequest, workload: Workload) -> Run:
    """Return the measurements of the workload.

    All workloads are built, profiled and timed at first demand, once a session.
    """
    return ask(_checked(request, workload), request.config.stash[SESSION].run, workload)


@pytest.fixture
def sibling(request: pytest.FixtureRequest, workload: Workload) -> Sibling:
    """Return the run of another workload of the suite, which differs in the given fields only:
    ``sibling(variant="eager")``.
    """
    session, item = request.config.stash[SESSION], _checked(request, workload)
    name = item.name.partition("[")[0]  # its failure is no verdict on this workload's own run

    return lambda **fields: ask(
        item, lambda: session.run(session.suites.sibling(workload, **fields)), subject=name
    )


@pytest.fixture
def trace_file(run: Run, request: pytest.FixtureRequest, workload: Workload) -> Path:
    """Return the path of the workload's trace, ``.json.gz``.

    The profiler's table lies beside it, ``.txt``, for a trace below 1 MB.
    """
    assert run.workload == workload.id
    return request.config.stash[SESSION].artifacts.trace(workload)


@pytest.fixture
def kernelgauge_test(request: pytest.FixtureRequest, workload: Workload) -> Callable[..., None]:
    """Private: end a standard test with the verdict that it asks for."""
    return partial(_look_up, _checked(request, workload))


# -- how a test ends -------------------------------------------------------------------------------

_NOT_RUN = "kernelgauge_not_run"  # a property of a test


def _look_up(item: pytest.Item, benchmark: Any = None) -> None:
    """End a test with the verdict that it asks for.

    `benchmark`: the fixture of pytest-benchmark, whose reports have how long each round of the
    latency took.
    """
    session, workload, subjects = item.config.stash[SESSION], _workload_of(item), subjects_of(item)
    if not subjects:
        skip_or_fail(item, "pytest-benchmark is disabled, so nothing was timed")
    if benchmark is not None:
        durations_s = session.durations_s(workload)
        left = iter(durations_s)
        pass_time = lambda: _clock_s.append(_clock_s.pop() + next(left, 0.0))  # noqa: E731
        benchmark.pedantic(pass_time, rounds=max(1, len(durations_s)))
    verdict = ask(item, session.verdict, workload, subjects[0], subject=subjects[0])
    if verdict is None:
        pytest.skip("a CPU has no such time: that of its ops is shown, and no verdict")
    record_verdicts(item, verdict)


_clock_s = [0.0]


def replayed_clock() -> float:
    """Return the seconds of a clock that `_look_up` moves: pytest-benchmark sees each round as it
    was measured.
    """
    return _clock_s[0]


def _workload_of(item: pytest.Item) -> Workload:
    workload = workload_of(item)
    assert workload is not None  # else it has no fixture of ours
    return workload


@_ends_test
def ask(
    item: pytest.Item, function: Callable[..., _T], *arguments: Any, subject: str = MEASUREMENT
) -> _T:
    """Call a function that measures, or looks up a verdict.

    If the workload cannot run here, the test is skipped; with --perf-strict, one test of the
    workload fails. If measuring fails, the test fails with an INVALID verdict on `subject`.
    """
    session, workload = item.config.stash[SESSION], _workload_of(item)
    try:
        return function(*arguments)
    except KernelgaugeError as raised:
        error = raised
    except Exception as raised:  # a fault of ours: pytest shows where
        if (verdict := session.keep_error(workload, subject, raised)) is not None:
            _end(item, verdict)
        raise
    # Outside of the handler: within it pytest would print the error and then its own failure, both
    # in full.
    if (verdict := session.keep_error(workload, subject, error)) is not None:
        _end(item, verdict)
    elif session.options.strict:
        item.user_properties.append((_NOT_RUN, error.one_line))
    else:
        skip_or_fail(item, error.one_line)
    first = session.shown_in.setdefault((workload.id, str(error)), item.nodeid)
    # One failure of each workload; but a first test that may fail (xfail) has none.
    if first != item.nodeid and any(
        test.outcome == "failed" for test in session.tests.get(first, ())
    ):
        pytest.skip(f"{error.what}: see {first.rpartition('::')[2]}")
    first = session.shown_in.setdefault(("", str(error)), item.nodeid)  # of any workload
    see = first.rpartition("::")[2]
    pytest.fail(str(error) if see == item.name else f"{error.what}: see {see}", pytrace=False)


@_ends_test
def record_verdicts(item: pytest.Item, *verdicts: Verdict) -> None:
    """End a test with the worst of its verdicts: passed, failed or skipped."""
    session = item.config.stash[SESSION]
    # a ratio needs none
    missing = Status.NO_BASELINE if any(each.subject == RATIO for each in verdicts) else None
    verdict = min(
        verdicts,
        key=lambda each: (
            not session.fails(each),
            each.status is missing,
            each.status is not Status.NO_BASELINE,
            WORST_FIRST.index(each.status),
        ),
    )
    _end(item, verdict)
    change = verdict.change
    for name, value in (  # of a time: pytest's --junitxml has them
        ("us", verdict.after_us),
        ("baseline_us", verdict.before_us),
        ("change_percent", change and 100 * change.estimate),
        ("sensitivity_percent", change and change.sensitivity and 100 * change.sensitivity),
    ):
        if value is not None:
            item.user_properties.append((f"kernelgauge_{name}", f"{value:.6g}"))
    if session.fails(verdict):
        others = [each for each in verdicts if each is not verdict]
        told = [it for it in others if session.fails(it) or it.status is Status.IMPROVED]
        pytest.fail("\n".join([_failure(item, verdict), *map(also, told)]), pytrace=False)
    accepts = session.options.accepts
    if verdict.status is Status.NO_BASELINE and not accepts:
        is_made = MADE_BY_TEST in item.stash
        device = session.run(_workload_of(item)).fingerprint.device
        node = f"{session.suites.file_of(item)}::{item.nodeid.partition('::')[2]}"
        how = session.suites.how_to_record(verdicts, [device], [node] * is_made)
        if is_made:
            pytest.fail(how, pytrace=False)
        pytest.skip(how)  # the same words for each test: pytest folds them into one line
    is_accepted = accepts and verdict.is_by_baseline
    if verdict.status is Status.NOT_JUDGED or (not verdict.status.decided and not is_accepted):
        pytest.skip(in_full(verdict))
    item.stash.setdefault(END, None)


def _failure(item: pytest.Item, verdict: Verdict) -> str:
    """Return how a failing test ends: in a few lines, and the causes only where no test of the
    workload has named them yet.
    """
    verbosity = item.config.get_verbosity()
    if verbosity > 0:
        return in_full(verdict)
    session = item.config.stash[SESSION]
    causes = [each.identity for each in verdict.reasons if isinstance(each, Cause)][
        :CAUSES_WITH_CODE
    ]
    named_in = [
        session.shown_in.setdefault((verdict.workload, cause), item.name) for cause in causes
    ]
    see = "" if item.name in named_in else next(iter(named_in), "")
    verbose = f"-{'v' * (1 - verbosity)}"  # each -q takes one away
    more = f"in the report, or with pytest {verbose}"
    return brief(verdict, see=see, more=more, width=session.width)


def _end(item: pytest.Item, verdict: Verdict) -> None:
    item.stash[SUBJECT] = verdict.subject
    item.user_properties.append(("kernelgauge_verdict", verdict.status.value))
    item.user_properties.append(("kernelgauge_reason", headline(verdict)))


@_ends_test
def skip_or_fail(item: pytest.Item, reason: str) -> NoReturn:
    """Skip a test of what cannot be done here; with --perf-strict, fail it.

    Neither is a verdict.
    """
    item.user_properties.append((_NOT_RUN, reason))
    if item.config.stash[SESSION].options.strict:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


# -- tests that gate nothing -----------------------------------------------------------------------


def require_verdict(item: pytest.Item, *, is_over: bool) -> None:
    """End a test that seems to pass as kernelgauge has ended it. One that has measured nothing
    fails, or warns.

    `is_over`: whether no other fixture of the test can call ours any more.
    """
    __tracebackhide__ = True
    if (end := item.stash.get(END, None)) is not None:
        raise end
    if _HAS_GAUGE not in item.stash or END in item.stash:
        return
    # private: the public names do not tell who asks
    ours, known = measuring_fixtures(item.config), cast("Any", item)._fixtureinfo
    asking = (
        each
        for several in known.name2fixturedefs.values()
        for each in several
        if set(ours) & {*each.argnames}
    )
    if not is_over and any(asking):
        return
    name = next(each for each in ours if each in known.names_closure)
    error = WorkloadError(
        f"the fixture {name} measured nothing: the test did not call it in this process"
    )
    session, workload = item.config.stash[SESSION], item.stash[MADE_BY_TEST]
    if session.options.strict or session.has_baseline(workload):
        ask(item, _raise, error)
    item.stash[END] = None  # it warns once
    warnings.warn(pytest.PytestWarning(error.what), stacklevel=1)


def judge_skipped(item: pytest.Item, report: pytest.TestReport) -> None:
    """Let a skipped test fail that caught a failure of ours, and under --perf-strict one that has a
    baseline.

    A skipped workload of a suite fails there, too. Tests that kernelgauge itself skips stay
    skipped.
    """
    session, workload, end = (
        item.config.stash[SESSION],
        workload_of(item),
        item.stash.get(END, None),
    )
    is_standard = (
        report.when == "setup"
        and getattr(item, "function", item).__module__ == "kernelgauge.standard"
    )
    if item.config.option.setuponly or (
        hasattr(report, "wasxfail") and item.get_closest_marker("xfail")
    ):
        return
    if end is not None and not isinstance(end, pytest.skip.Exception):
        report.outcome, report.longrepr = "failed", str(end)
        vars(report).pop("wasxfail", None)
    elif END in item.stash or workload is None or not (is_standard or MADE_BY_TEST in item.stash):
        return
    elif session.options.strict and session.has_baseline(workload):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        try:
            ask(item, _raise, WorkloadError(f"{workload.id}: {SKIPPED}", got=why))
        except pytest.fail.Exception as failed:
            report.outcome, report.longrepr = "failed", str(failed)
        except pytest.skip.Exception:  # of several tests of a workload, one fails
            pass
    else:
        session.withdraw(item)


def _raise(error: KernelgaugeError) -> NoReturn:
    raise error


# -- workloads that a test function makes ----------------------------------------------------------

_TIMING, _TARGET, _FASTER_THAN = "timing", "target", "faster_than"
_OPTIONS = (
    *(
        "dtype",
        "pass_",
        "compile",
        "reference",
        "expectations",
        "graph_breaks",
        "compiles",
        "training",
    ),
    *("tolerance", "gate", "sensitivity", "by", _FASTER_THAN, _TIMING, _TARGET),
)


@dataclass
class Gauge:
    """Measures what a test function calls, and ends the test with the worst of the verdicts on it."""

    item: pytest.Item
    session: Session
    options: dict[str, Any] = field(default_factory=dict)
    has_measured: bool = False

    @property
    def device(self) -> Any:
        """The ``torch.device`` that measures: for tensors that the call makes itself."""
        return ask(self.item, lambda: self.session.device.torch_device)

    def using(self, **options: Any) -> Gauge:
        """Return this with options: ``kernelgauge.using(pass_="train", tolerance=0.02)(loss,
        logits, labels)``.

        They are fields of `Workload`: dtype, pass_, compile, reference, expectations, graph_breaks,
        compiles, training, tolerance, gate, sensitivity. ``timing=False`` measures structure and
        numerics alone. ``target="sm_90"`` compiles the Triton kernels of the call for that GPU, on
        any machine, and runs none. ``faster_than=other, by=0.05`` calls the function or module
        ``other`` with the same arguments, in turns. Results must be equal, and the call must take 5
        % less GPU time. The mark ``@pytest.mark.kernelgauge(...)`` takes the same.
        """
        if unknown := [name for name in options if name not in _OPTIONS]:
            self.refuse(
                WorkloadError(
                    "unknown option", got=", ".join(unknown), expected=", ".join(_OPTIONS)
                )
            )
        self.options |= options
        return self

    def __call__(self, function: Any, /, *args: Any, **kwargs: Any) -> Run:
        """Measure ``function(*args, **kwargs)``, judge it, and return its `Run`: kernels, counts
        and times of a call.

        `function` is any callable, an ``nn.Module``, or a `Workload`, whose own inputs it is called
        with. Tensors are copied to the device that measures, afresh for each replicate, and so is a
        module. A function runs with autograd, unless the test has switched it off; a module
        without, unless `pass_` says otherwise.

        The test fails if the run differs from its baseline, if there is none yet, or if a result
        differs from float64. It is skipped if the workload cannot run here.
        """
        if not (isinstance(function, Workload) or callable(function)):
            got = type(function).__name__
            self.refuse(
                WorkloadError(
                    "there is nothing to call", got=got, expected="kernelgauge(function, *args)"
                )
            )
        if options := [
            f"{name}=..." for name in kwargs if name in _OPTIONS and not _takes(function, name)
        ]:
            expected = f"kernelgauge.using({', '.join(options)})(function, *args)"
            self.refuse(
                WorkloadError(
                    "an option is given to the function", got=options[0], expected=expected
                )
            )
        return self.measure(
            function if isinstance(function, Workload) else _called(function, *args, **kwargs)
        )

    def _named(self, made: Workload, **options: Any) -> Workload:
        """Return a workload under the test's id; refuse invalid options."""
        known = self.item.stash[MADE_BY_TEST]
        named = {"module": known.module, "variant": known.variant, "shape": (), "name": known.id}
        wrong: WorkloadError | None = None
        try:
            made = replace(made, **(named | options))
        except WorkloadError as error:
            wrong = error
        # outside of the handler: within it pytest would print the error twice
        if wrong is not None:
            self.refuse(wrong)
        return made

    @_ends_test
    def measure(self, made: Workload, *, may_lack_kernels: bool = False) -> Run:
        """Measure a workload under the test's id, judge it, and return its run.

        `may_lack_kernels`: without a kernel, the host's time alone is measured. Else that is an
        error.
        """
        known, options = self.item.stash[MADE_BY_TEST], dict(self.options)
        other = self._other(options)
        has_times, target = options.pop(_TIMING, True), options.pop(_TARGET, None)
        if self.has_measured:
            self.refuse(
                WorkloadError(
                    "a test measures one call", expected="a test for each: pytest.mark.parametrize"
                )
            )
        self.has_measured = True
        named = (
            {} if other else {_FASTER_THAN: None, "by": 0.0}
        )  # measured beside none of its suite
        workload = self._named(made, **(named | options))
        session = self.session
        session.suites.workloads[known.id] = self.item.stash[MADE_BY_TEST] = workload
        if target is not None or not has_times:
            session.without_times.add(workload.id)
        is_timed = (
            target is None
            and has_times
            and not session.options.leaves_out_timing([*self.item.iter_markers()])
        )
        if other is not None:
            same = {
                name: getattr(workload, name) for name in ("inputs", "dtype", "pass_", "training")
            }
            other = replace(
                other, variant=other.module, name=f"{workload.id}-{_FASTER_THAN}", **same
            )
        if session.options.calibrating or not is_timed:
            other = None
        compiles = session.options.compiles and workload.compile is not None
        asked = [  # the cause of a slower time comes before the time
            *([RATIO] if other is not None else ()),
            *(DECLARED, STRUCTURE),
            *(
                each.label
                for each in (*CALL_TIMERS, *(COMPILE_TIMERS if compiles else ()))
                if is_timed
            ),
            *([NUMERICS] if target is None else ()),
        ]
        from ..measure.reach import moved_to

        with ExitStack() as stack:
            if target is None:
                stack.enter_context(session.alone())
                try:
                    both = [workload, *([other] if other else [])]
                    stack.enter_context(moved_to(self.device, both))
                except WorkloadError as error:
                    self.refuse(error)
            how = {"may_lack_kernels": may_lack_kernels, "target": target, "other": other}
            ask(self.item, partial(session.judge_made, **how), workload, asked)
        found = (ask(self.item, session.verdict, workload, each, subject=each) for each in asked)
        record_verdicts(self.item, *[each for each in found if each is not None])
        return session.run(workload)

    @_ends_test
    def refuse(self, error: WorkloadError) -> NoReturn:
        error.where = self.item.nodeid
        pytest.fail(str(error), pytrace=False)

    def _other(self, options: dict[str, object]) -> Workload | None:
        """Return the workload that the call must be faster than, and put its name and its results
        into the options.
        """
        function = options.pop(_FASTER_THAN, None)
        if function is None:
            return None
        if not callable(function):
            expected = "kernelgauge.using(faster_than=function), or a module"
            self.refuse(
                WorkloadError(
                    "there is nothing to be faster than", got=repr(function), expected=expected
                )
            )
        usual = {_TIMING: True, _TARGET: None, "reference": None}
        if excluded := [
            name for name, value in usual.items() if options.get(name, value) is not value
        ]:
            expected = "two calls that are timed, with equal results"
            self.refuse(
                WorkloadError(f"faster_than excludes {', '.join(excluded)}", expected=expected)
            )
        other = _called(function)
        options |= {_FASTER_THAN: other.module, "reference": other.build}
        return other


def _takes(function: Any, name: str) -> bool:
    """Return whether a function takes an argument of this name.

    One in C may hide its arguments, and counts as one that does.
    """
    try:
        parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


def _called(function: Any, /, *args: Any, **kwargs: Any) -> Workload:
    """Return the workload of a call, with autograd where the test has it.

    A module alone is measured without, as in a suite.
    """
    import torch

    workload = Workload.from_callable(function, *args, **kwargs)
    is_forward = isinstance(function, torch.nn.Module) or not torch.is_grad_enabled()
    return replace(workload, pass_="forward" if is_forward else "call")


def gauge_of(item: pytest.Item) -> Gauge:
    """Return what the fixture of a test is, with the options of its marks.

    The nearest mark counts.
    """
    if MADE_BY_TEST not in item.stash:
        pytest.fail(
            "name the fixture kernelgauge among the arguments of the test: getfixturevalue is too late",
            pytrace=False,
        )
    gauge, item.stash[_HAS_GAUGE] = Gauge(item, item.config.stash[SESSION]), True
    for mark in reversed(list(item.iter_markers("kernelgauge"))):
        if mark.args:
            shown = ", ".join(map(repr, mark.args))
            gauge.refuse(
                WorkloadError(
                    "the mark takes options by name",
                    got=shown,
                    expected='kernelgauge(dtype="bf16")',
                )
            )
        gauge.using(**mark.kwargs)
    return gauge


class Benchmark:
    """What the fixture of pytest-benchmark or pytest-codspeed becomes with --perf-benchmark: what
    it is given is measured.

    It has no statistics of its own: the times of all clocks are in the results.
    """

    _gauge: Gauge

    @staticmethod
    def take_over(fixture: Any, gauge: Gauge) -> None:
        """Make a fixture measure by kernelgauge.

        It stays an instance of its class, as pytest-benchmark wants it.
        """
        fixture.__class__ = type("Benchmark", (Benchmark, type(fixture)), {})
        fixture._gauge = gauge
        fixture._mode = "kernelgauge"  # else pytest-benchmark warns that nobody has used it

    def __call__(self, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
        """Measure ``function(*args, **kwargs)``, judge it, and return its result."""
        self._gauge.measure(_called(function, *args, **kwargs), may_lack_kernels=True)
        return function(*args, **kwargs)

    def pedantic(
        self,
        target: Callable[..., _T],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
        **_: Any,
    ) -> _T:
        """Measure ``target(*args, **kwargs)``, likewise. `setup` makes the arguments of each
        replicate; rounds are not counted.

        `teardown` is called with the arguments of a replicate before the next one is built, and
        behind the last one.
        """
        workload = _called(target, *args, **(kwargs or {}))
        used: list[Any] = []

        def tear_down() -> None:
            while used:
                positional, named = used.pop(0)
                if teardown is not None:
                    teardown(*positional, **named)

        def build() -> Any:
            tear_down()
            return workload.build()

        def arguments(given: Callable[[], Any]) -> Any:
            made = (setup() if setup is not None else None) or given()
            used.extend([made] if teardown is not None else [])
            return made

        def inputs() -> Any:
            return arguments(workload.inputs)

        try:
            self._gauge.measure(
                replace(workload, build=build, inputs=inputs), may_lack_kernels=True
            )
            tear_down()
            positional, named = arguments(lambda: (args, kwargs or {}))
            return target(*positional, **named)
        finally:
            tear_down()
