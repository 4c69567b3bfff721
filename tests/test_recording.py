"""What of a run may become a baseline, and what is stored of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelgauge import standard
from kernelgauge.errors import StorageError, UpdateRefused
from kernelgauge.judge import Action, PlannedChange, Recorded, Status, Verdict, encode_baseline, from_run
from kernelgauge.recording import _BY_BASELINE, acceptable, impossible, refusals, save_runs, undecided, update
from kernelgauge.results import Results, TestResult, WorkloadResult
from kernelgauge.run import Counts, Timer
from kernelgauge.runs_file import read_runs
from kernelgauge.storage import BaselineStore
from tests.builders import WORKLOAD, baseline, counts, fingerprint, launched, mlp_kernels, pair, run
from tests.test_results import one_test, results, verdict, workload

COMMAND = "pytest perf --perf-update"
DEVICE = "NVIDIA H200"
DECLARED = "declared structure"


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


def passing(*verdicts: Verdict, name: str = WORKLOAD, **changes: Any) -> WorkloadResult:
    """A workload that was measured in full and is as declared."""
    declared = Verdict(Status.PASS, name, DECLARED, "as declared")
    return workload(declared, *verdicts, name=name, **changes)


def told(*workloads: WorkloadResult, tests: Sequence[TestResult] | None = None, **changes: Any) -> Results:
    """Results of all that is declared; of each workload there is a test that passed, unless `tests` are given."""
    if tests is None:
        tests = [one_test("test_kernels_and_graphs_are_as_declared", workload=each.id) for each in workloads]
    whole: dict[str, Any] = {
        "timers": tuple(Timer),
        "declared": {"perf": tuple(each.id for each in workloads)},
        "commit": "4e3642b",
    }
    return results(*workloads, tests=tuple(tests), **(whole | changes))


def refused(store: BaselineStore, each: WorkloadResult, tests: Sequence[TestResult] = (), **changes: Any) -> list[str]:
    return refusals(told(each, tests=tests, **changes), each, store)


def ended(verdict: Verdict, name: str = "test_device_time") -> TestResult:
    """A test that failed with a verdict, in its words."""
    return one_test(name, "failed", workload=verdict.workload, said=str(verdict))


# -- what may be stored -----------------------------------------------------------------------------------------------


def test_a_workload_that_was_measured_in_full_and_is_as_declared_may_be_stored(store: BaselineStore) -> None:
    assert refused(store, passing(), [one_test("test_device_time")]) == []


@pytest.mark.parametrize("subject", ["structure", *(timer.label for timer in Timer)])
@pytest.mark.parametrize("status", [Status.REGRESSED, Status.INCOMPARABLE, Status.NO_BASELINE])
def test_what_only_differs_from_the_baseline_is_what_may_be_accepted(
    store: BaselineStore, subject: str, status: Status
) -> None:
    differs = verdict(status, subject, "it differs")
    assert refused(store, passing(differs), [ended(differs, "test_of_any_name")]) == []


@pytest.mark.parametrize("status", [Status.PASS, Status.IMPROVED, Status.UNDECIDED])
def test_a_verdict_that_fails_nothing_is_no_reason(store: BaselineStore, status: Status) -> None:
    assert refused(store, passing(verdict(status))) == []


# -- what may not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", ["structure", *(timer.label for timer in Timer)])
def test_what_is_invalid_is_refused_whatever_it_is_about(store: BaselineStore, subject: str) -> None:
    invalid = verdict(Status.INVALID, subject, "the machine moved")
    assert refused(store, passing(invalid)) == [f"{subject}: INVALID  the machine moved"]
    assert refused(store, passing(invalid), [ended(invalid, "test_x")]) == ["test_x failed"]


@pytest.mark.parametrize("status", [Status.REGRESSED, Status.INVALID])
def test_a_claim_of_the_suite_is_not_overruled(store: BaselineStore, status: Status) -> None:
    claim = verdict(status, "numerics", "not the function of its reference")
    assert refused(store, passing(claim)) == [f"numerics: {status.value}  not the function of its reference"]
    assert refused(store, passing(claim), [ended(claim, "test_numerics")]) == ["test_numerics failed"]


def test_a_test_that_failed_otherwise_is_a_reason_though_its_timer_only_differs(store: BaselineStore) -> None:
    """Its teardown, say: that it has a verdict which may be accepted says nothing of that."""
    differs = verdict(Status.REGRESSED)
    broke = one_test("test_device_time", "failed", said="Traceback\nE   RuntimeError: CUDA error")
    assert refused(store, passing(differs), [ended(differs), broke]) == ["test_device_time failed"]


def test_a_test_that_fails_twice_is_named_once(store: BaselineStore) -> None:
    broke = [one_test("test_x", "failed", said=said) for said in ("setup", "teardown")]
    claim = Verdict(Status.REGRESSED, WORKLOAD, "test_x", "the test failed")
    assert refused(store, passing(claim), broke) == ["test_x failed"]


def test_a_failure_of_another_workload_is_no_reason(store: BaselineStore) -> None:
    assert refused(store, passing(), [one_test("test_x", "failed", workload="another", said="x")]) == []
    assert refused(store, passing(), [one_test("test_x", "failed", workload=None, said="x")]) == []


@pytest.mark.parametrize("status", [Status.UNDECIDED, Status.NO_BASELINE, Status.IMPROVED])
def test_what_it_declares_must_have_passed(store: BaselineStore, status: Status) -> None:
    each = workload(verdict(status, DECLARED, "who knows"))
    assert refused(store, each) == [f"{DECLARED}: {status.value}  who knows"]


@pytest.mark.parametrize("outcome", ["failed", "skipped", "passed"])
def test_a_claim_that_imitates_the_verdict_of_a_standard_test_is_a_claim(store: BaselineStore, outcome: str) -> None:
    missing = verdict(Status.NO_BASELINE, headline="no baseline")
    own = one_test("test_device_time", outcome, said=str(missing))
    claim = ended(missing, "test_c08_fewer_launches")
    assert refused(store, passing(missing), [own, claim]) == ["test_c08_fewer_launches failed"]
    assert refused(store, passing(missing), [own]) == []


def test_the_standard_test_of_every_verdict_that_can_be_accepted_exists() -> None:
    assert set(_BY_BASELINE.values()) < set(standard.__all__)


@pytest.mark.parametrize(
    ("parameters", "reasons"),
    [
        (f"[{WORKLOAD}]", ["test_x failed"]),
        (f"[fp32-{WORKLOAD}-3]", ["test_x failed"]),
        ("[linear-eager-bf16-4x8]", []),
        (f"[x{WORKLOAD}]", []),
        ("", []),
    ],
)
def test_a_failed_test_whose_name_has_the_workload_is_of_it(
    store: BaselineStore, parameters: str, reasons: list[str]
) -> None:
    broke = TestResult(f"perf/test_x.py::test_x{parameters}", None, "failed", 0.1, said="E  AssertionError")
    assert refused(store, passing(), [broke]) == reasons


def test_what_says_of_itself_that_it_is_incomplete_is_refused_though_every_timer_is_there(store: BaselineStore) -> None:
    assert refused(store, passing(run=run(incomplete="a CUDA error"))) == ["it was not measured in full (a CUDA error)"]


def test_what_it_declares_must_have_been_checked(store: BaselineStore) -> None:
    (reason,) = refused(store, workload())
    assert reason.startswith("what it declares was not checked")


@pytest.mark.parametrize("timer", Timer)
def test_every_timer_that_the_device_has_must_have_been_measured(store: BaselineStore, timer: Timer) -> None:
    samples = {other: sample for other, sample in run().samples.items() if other is not timer}
    without = passing(run=run(samples=samples))
    assert refused(store, without) == [f"{timer.label} was not measured (was its test deselected?)"]
    assert refused(store, without, timers=tuple(other for other in Timer if other is not timer)) == []
    incomplete = passing(run=run(samples=samples, incomplete="a CUDA error"))
    assert refused(store, incomplete) == [f"{timer.label} was not measured (a CUDA error)"]


def test_results_that_do_not_say_which_timers_there_are_prove_no_whole_run(store: BaselineStore) -> None:
    (reason,) = refused(store, passing(), timers=())
    assert "do not say which timers" in reason


@pytest.mark.parametrize(
    ("exit_status", "reasons"), [(0, []), (1, []), (2, ["the run was cut short"]), (3, ["the run was cut short"])]
)
def test_a_run_that_was_cut_short_is_refused(store: BaselineStore, exit_status: int, reasons: list[str]) -> None:
    assert refused(store, passing(), exit_status=exit_status) == reasons


def test_a_baseline_of_a_newer_version_is_not_replaced_and_one_that_cannot_be_read_is(store: BaselineStore) -> None:
    path = store.path(DEVICE, WORKLOAD)
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"schema_version": 99}')
    (reason,) = refused(store, passing())
    assert "newer version" in reason
    assert str(path) in reason
    path.write_bytes(b"<<<<<<< HEAD\n")
    assert refused(store, passing()) == []


def test_what_was_not_measured_says_why(store: BaselineStore) -> None:
    assert refused(store, passing(run=None, unavailable="needs triton")) == ["needs triton"]
    failed = verdict(Status.INVALID, "measurement", "it does not compile")
    assert refused(store, workload(failed, run=None)) == ["it does not compile"]


# -- of what no baseline can be made ----------------------------------------------------------------------------------


def negative() -> Counts:
    return counts(launches=-1)


@pytest.mark.parametrize(
    ("each", "said"),
    [
        pytest.param(passing(name="../../etc/x"), "no file name", id="a path"),
        pytest.param(passing(run=run(workload="another")), "another workload", id="another's run"),
        pytest.param(passing(run=run(machine=fingerprint(device="NVIDIA A100"))), "another device", id="a device"),
        pytest.param(
            passing(run=run(machine=fingerprint(driver="1.0", memory_bytes=7))),
            "another machine than the results: driver 580.159.04 -> 1.0",
            id="a driver",
        ),
        pytest.param(passing(run=run(counts=counts(kernels=7))), "7, but the kernels have 3 names", id="names"),
        pytest.param(
            passing(run=run(kernels=mlp_kernels(gate=1e50))), "contradicts itself: no duration: 1e+50", id="no kernel"
        ),
        pytest.param(passing(run=run(controls=pair(copy=1e50))), "no duration: 1e+50", id="no control"),
        pytest.param(passing(run=run(counts=negative(), kernels=())), "contradicts itself", id="negative launches"),
        pytest.param(passing(run=run(kernels=(launched("k", 1.0),))), "contradicts itself", id="4 launches of 1"),
        pytest.param(
            passing(run=run(kernels=(launched("k", -1.0),), counts=counts(launches=1, kernels=1))),
            "no duration",
            id="a time",
        ),
    ],
)
def test_results_that_contradict_themselves_are_refused(store: BaselineStore, each: WorkloadResult, said: str) -> None:
    (reason,) = refused(store, each)
    assert said in reason
    assert impossible(told(each), each) == [reason]
    with pytest.raises(UpdateRefused):
        update(told(each), store, lambda plan: None, next_command=COMMAND)


def test_results_that_hold_a_workload_twice_are_refused_for_both(store: BaselineStore) -> None:
    twice = told(passing(), passing(run=run(device=(300.0, 301.0))))
    assert [refusals(twice, each, store) for each in twice.workloads] == [["the results hold it more than once"]] * 2


def test_nothing_undecided_is_forgotten() -> None:
    noisy = verdict(Status.UNDECIDED, headline="too noisy")
    assert undecided(passing(noisy, verdict(Status.PASS, "structure"))) == ["device time: UNDECIDED  too noisy"]
    assert undecided(passing(verdict(Status.UNDECIDED, "a claim"))) == []


# -- the update -------------------------------------------------------------------------------------------------------


def test_what_is_stored_remembers_the_run(store: BaselineStore) -> None:
    shown: list[list[PlannedChange]] = []
    plan = update(told(passing()), store, shown.append, next_command=COMMAND)
    assert shown == [plan]
    assert [change.action for change in plan] == [Action.CREATE]
    stored = store.load(DEVICE, WORKLOAD)
    assert stored is not None
    assert stored.recorded == Recorded("2026-11-20T19:10:12+00:00", "4e3642b", "0.1.0")
    assert stored == from_run(run(), suite="perf", recorded=stored.recorded)


def test_a_second_run_of_the_same_leaves_the_file_byte_for_byte(store: BaselineStore) -> None:
    update(told(passing()), store, lambda plan: None, next_command=COMMAND)
    content = store.path(DEVICE, WORKLOAD).read_bytes()
    later = told(passing(), started_at="2026-12-01T00:00:00+00:00", commit="another")
    (change,) = update(later, store, lambda plan: None, next_command=COMMAND)
    assert change.action is Action.KEEP
    assert store.path(DEVICE, WORKLOAD).read_bytes() == content


@pytest.mark.parametrize("version", [2, 3])
def test_older_schema_is_kept_until_something_moves(store: BaselineStore, version: int) -> None:
    path = store.path(DEVICE, WORKLOAD)
    path.parent.mkdir(parents=True)
    content = encode_baseline(baseline()).replace(b'"schema_version": 4', b'"schema_version": %d' % version)
    path.write_bytes(content)
    update(told(passing()), store, lambda plan: None, next_command=COMMAND)
    assert path.read_bytes() == content
    update(told(passing(run=run(device=(300.0, 301.0)))), store, lambda plan: None, next_command=COMMAND)
    stored = store.load(DEVICE, WORKLOAD)
    assert stored is not None
    assert [ancestor.at for ancestor in stored.ancestors] == [None]
    assert b'"schema_version": 4' in path.read_bytes()


def test_what_is_refused_keeps_its_file_and_the_others_are_stored(store: BaselineStore) -> None:
    claim = verdict(Status.REGRESSED, "numerics", "wrong", workload="b-x-bf16-1")
    both = told(passing(name="a-x-bf16-1"), passing(claim, name="b-x-bf16-1"))
    assert [each.id for each, _ in acceptable(both, store)] == ["a-x-bf16-1"]
    update(both, store, lambda plan: None, next_command=COMMAND)
    assert set(store.stored(DEVICE)) == {"a-x-bf16-1"}


def test_what_is_declared_no_more_is_trimmed(store: BaselineStore) -> None:
    update(told(passing(name="a-x-bf16-1"), passing()), store, lambda plan: None, next_command=COMMAND)
    update(told(passing()), store, lambda plan: None, next_command=COMMAND)
    assert set(store.stored(DEVICE)) == {WORKLOAD}


def test_an_update_of_nothing_says_what_records(store: BaselineStore) -> None:
    with pytest.raises(UpdateRefused, match="nothing to store") as caught:
        update(told(passing(run=None), fingerprint=None), store, lambda plan: None, next_command=COMMAND)
    assert caught.value.next_command == COMMAND
    assert store.stored(DEVICE) == {}


def test_nothing_is_written_before_the_plan_is_shown(store: BaselineStore) -> None:
    def interrupted(plan: list[PlannedChange]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update(told(passing()), store, interrupted, next_command=COMMAND)
    assert store.stored(DEVICE) == {}


# -- what a calibration collects --------------------------------------------------------------------------------------


def test_the_runs_of_a_calibration_are_those_that_may_be_stored(store: BaselineStore, tmp_path: Path) -> None:
    claim = verdict(Status.REGRESSED, "numerics", "wrong", workload="b-x-bf16-1")
    save_runs(told(passing(), passing(claim, name="b-x-bf16-1")), store, tmp_path / "runs.json")
    file = read_runs(tmp_path / "runs.json")
    assert [each.workload for each in file.runs] == [WORKLOAD]
    assert file.suites == {WORKLOAD: "perf"}
    assert (file.baselines, file.timers_per_workload) == (str(store.root), 3)
    assert (file.started_at, file.commit, file.kernelgauge) == ("2026-11-20T19:10:12+00:00", "4e3642b", "0.1.0")


def test_a_place_where_runs_cannot_be_written_is_named(store: BaselineStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        save_runs(told(passing()), store, tmp_path / "file" / "runs.json")
