"""What of a run may become a baseline, how saved results are reviewed, and what is stored of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.baselines.acceptance import (
    Chosen,
    Pending,
    acceptable,
    choose,
    choose_to_add,
    impossible,
    load,
    pending,
    refusals,
    store_all,
    undecided,
    update,
)
from kernelgauge.errors import ResultsError, StorageError, UpdateRefused
from kernelgauge.judge import (
    Action,
    Group,
    Limits,
    PlannedChange,
    Recorded,
    Reviewed,
    Status,
    Verdict,
    encode_baseline,
    from_run,
)
from kernelgauge.results import Results, TestResult, WorkloadResult, encode_results
from kernelgauge.run import Counts, Timer
from tests.builders import WORKLOAD, baseline, counts, fingerprint, launched, mlp_kernels, pair, run
from tests.test_results import one_test, results, verdict, workload

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)
BEFORE, AFTER = "2026-11-20T10:00:00+00:00", "2026-11-20T12:00:00+00:00"
SLOWER = (225.0, 225.1, 225.2, 225.3)
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
    """A test that failed with a verdict."""
    return one_test(name, "failed", workload=verdict.workload, said=str(verdict), subject=verdict.subject)


# -- what may be stored -----------------------------------------------------------------------------------------------


def test_a_whole_run_that_is_as_declared_may_be_stored(store: BaselineStore) -> None:
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


def test_a_test_that_failed_otherwise_is_a_reason(store: BaselineStore) -> None:
    """Its teardown, say: that it has a verdict which may be accepted says nothing of that."""
    differs = verdict(Status.REGRESSED)
    broke = one_test("test_device_time", "failed", said="Traceback\nE   RuntimeError: CUDA error")
    assert refused(store, passing(differs), [ended(differs), broke]) == ["test_device_time failed"]


def test_a_test_that_fails_twice_is_named_once(store: BaselineStore) -> None:
    broke = [one_test("test_x", "failed", said=said) for said in ("setup", "teardown")]
    assert refused(store, passing(), broke) == ["test_x failed"]


def test_a_failure_of_another_workload_is_no_reason(store: BaselineStore) -> None:
    assert refused(store, passing(), [one_test("test_x", "failed", workload="another", said="x")]) == []
    assert refused(store, passing(), [one_test("test_x", "failed", workload=None, said="x")]) == []


@pytest.mark.parametrize("status", [Status.UNDECIDED, Status.NO_BASELINE, Status.IMPROVED])
def test_what_it_declares_must_have_passed(store: BaselineStore, status: Status) -> None:
    each = workload(verdict(status, DECLARED, "who knows"))
    assert refused(store, each) == [f"{DECLARED}: {status.value}  who knows"]


def test_own_test_without_a_subject_is_a_claim(store: BaselineStore) -> None:
    missing = verdict(Status.NO_BASELINE, headline="no baseline")
    claim = one_test("test_c08_fewer_launches", "failed", said=str(missing))
    assert refused(store, passing(missing), [claim]) == ["test_c08_fewer_launches failed"]


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


def test_incomplete_run_is_refused(store: BaselineStore) -> None:
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


def test_a_newer_baseline_is_kept_and_an_unreadable_one_replaced(store: BaselineStore) -> None:
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
    assert stored.recorded is not None
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


# -- a review of saved results ----------------------------------------------------------------------------------------


def wanted(_: Reviewed) -> bool:
    return True


def review_of(store: BaselineStore, *saved: Results, now: datetime = NOW) -> Pending:
    (found,) = pending(saved, store, now=now)
    return found


def accept(store: BaselineStore, *saved: Results, force: bool = False) -> Chosen:
    chosen = choose(review_of(store, *saved), wanted, force=force)
    store_all([chosen], store)
    return chosen


def slower(**changes: Any) -> Results:
    return told(passing(verdict(Status.REGRESSED), run=run(device=SLOWER)), **({"started_at": AFTER} | changes))


def one(found: Pending) -> Reviewed:
    (each,) = found.review.reviewed
    return each


# -- reading ----------------------------------------------------------------------------------------------------------


def saved(folder: Path, content: Results) -> Path:
    folder.mkdir(parents=True)
    (folder / "results.json").write_bytes(encode_results(content))
    return folder


def test_results_are_read_in_the_order_of_their_start(tmp_path: Path) -> None:
    late, early = (
        saved(tmp_path / "a", told(passing(), started_at=AFTER)),
        saved(tmp_path / "b", told(passing(), started_at=BEFORE)),
    )
    loaded = load([late, early / "results.json"])
    assert [each.started_at for _, each in loaded.results] == [BEFORE, AFTER]
    assert loaded.skipped == ()


def test_results_of_several_machines_in_one_folder_are_all_read(tmp_path: Path) -> None:
    early, late = saved(tmp_path / "b", told(passing(), started_at=BEFORE)), saved(tmp_path / "a", told(passing()))
    assert [file.parent for file, _ in load([tmp_path]).results] == [early, late]


@pytest.mark.parametrize("how", ["the same file", "a link", "a copy"])
def test_what_is_there_twice_is_counted_once_and_named(tmp_path: Path, how: str) -> None:
    first, second = saved(tmp_path / "a", told(passing())), tmp_path / "b"
    if how == "the same file":
        second = first / "results.json"
    elif how == "a link":
        second.symlink_to(first)
    else:
        saved(second, told(passing()))
    loaded = load([first, second])
    assert len(loaded.results) == 1
    assert loaded.skipped == (
        f"{second / 'results.json' if second.is_dir() else second}: the same results as {first / 'results.json'}, counted once",
    )


def test_results_of_nothing_are_named_and_alone_they_are_an_error(tmp_path: Path) -> None:
    nothing = saved(tmp_path / "a", told(fingerprint=None))
    loaded = load([nothing, saved(tmp_path / "b", told(passing()))])
    assert loaded.skipped == (f"{nothing / 'results.json'}: nothing was measured",)
    with pytest.raises(ResultsError, match="nothing was measured") as caught:
        load([nothing])
    assert caught.value.next_command == "pytest perf"


# -- which run counts -------------------------------------------------------------------------------------------------


def test_the_newest_of_runs_that_agree_is_stored(store: BaselineStore) -> None:
    accept(store, told(passing(), started_at=BEFORE), told(passing(), started_at=AFTER))
    stored = store.load(DEVICE, WORKLOAD)
    assert stored is not None
    assert stored.recorded is not None
    assert stored.recorded.at == AFTER


def test_runs_that_disagree_are_refused_and_say_so(store: BaselineStore) -> None:
    found = one(review_of(store, told(passing(), started_at=BEFORE), slower()))
    (doubt,) = found.doubts
    assert doubt.startswith(f"another run of {BEFORE} disagrees: device time 205.1 -> 225.2 us")
    assert accept(store, told(passing(), started_at=BEFORE), slower()).accepted == ()
    assert store.stored(DEVICE) == {}
    assert len(accept(store, told(passing(), started_at=BEFORE), slower(), force=True).accepted) == 1


def test_a_run_that_measured_counts_before_a_later_one_that_could_not(store: BaselineStore) -> None:
    failed = workload(verdict(Status.INVALID, "measurement", "a CUDA error"), run=None)
    found = one(review_of(store, told(passing(), started_at=BEFORE), told(failed, started_at=AFTER)))
    assert (found.group, found.refused) == (Group.NEW, ())


def test_shards_of_one_suite_are_reviewed_together(store: BaselineStore) -> None:
    names = ("a-x-bf16-1", "b-x-bf16-1")
    shards = [told(passing(name=name), declared={"perf": names}) for name in names]
    accept(store, *shards)
    assert set(store.stored(DEVICE)) == set(names)


def test_each_device_has_its_own_folder(store: BaselineStore) -> None:
    other = fingerprint(device="NVIDIA B200")
    both = [told(passing()), told(passing(run=run(machine=other)), fingerprint=other)]
    found = pending(both, store, now=NOW)
    assert [each.device for each in found] == [DEVICE, "NVIDIA B200"]
    store_all([choose(each, wanted, force=False) for each in found], store)
    assert sorted(path.parent.name for path in store.root.glob("*/*.json")) == ["nvidia-b200", "nvidia-h200"]


# -- what speaks against it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(told(passing(verdict(Status.UNDECIDED, headline="noisy"))), "UNDECIDED  noisy", id="undecided"),
        pytest.param(told(passing(verdict(Status.INVALID, headline="throttled"))), "INVALID  throttled", id="invalid"),
        pytest.param(told(workload()), "was not checked", id="a partial run"),
        pytest.param(told(passing(run=run(host=None))), "host dispatch was not measured", id="a timer less"),
        pytest.param(
            told(passing(verdict(Status.REGRESSED, "numerics", "wrong"))), "numerics: REGRESSED", id="a claim"
        ),
        pytest.param(told(passing(), exit_status=2), "cut short", id="cut short"),
        pytest.param(told(passing(), tests=[]), "no test of it is in the results", id="no test"),
        pytest.param(
            told(passing(), tests=[one_test("test_x", workload="linear-eager-bf16-4x8")]),
            "no test of it is in the results",
            id="tests of another",
        ),
        pytest.param(told(passing(run=run(incomplete="a CUDA error"))), "a CUDA error", id="incomplete"),
        pytest.param(told(passing(), started_at="yesterday"), "'yesterday' is no time", id="no time"),
        pytest.param(told(passing(), started_at="2027-01-01T00:00:00Z"), "yet to come", id="the future"),
        pytest.param(told(passing(), seconds=-3.0), "a clock ran backwards", id="a negative duration"),
    ],
)
def test_what_is_doubtful_is_accepted_only_by_force(store: BaselineStore, content: Results, said: str) -> None:
    refused = accept(store, content)
    assert refused.accepted == ()
    assert said in "; ".join(refused.refused[0].doubts)
    assert store.stored(DEVICE) == {}
    assert len(accept(store, content, force=True).accepted) == 1
    assert store.load(DEVICE, WORKLOAD) is not None


def test_a_result_that_is_older_than_the_baseline_is_refused(store: BaselineStore) -> None:
    accept(store, told(passing(), started_at=AFTER))
    older = slower(started_at=BEFORE)
    assert one(review_of(store, older)).doubts == (
        f"older than the baseline: measured {BEFORE}, and that was recorded {AFTER}",
    )
    assert one(review_of(store, slower(started_at=AFTER))).doubts == ()


@pytest.mark.parametrize("zone", ["Z", "+00:00", ""])
def test_times_are_compared_whatever_zone_they_are_in(store: BaselineStore, zone: str) -> None:
    accept(store, told(passing(), started_at=f"2026-11-20T10:00:00{zone}"))
    assert one(review_of(store, slower(started_at="2026-11-20T12:30:00+02:00"))).doubts == ()  # 10:30
    (doubt,) = one(review_of(store, slower(started_at="2026-11-20T11:30:00+02:00"))).doubts  # 9:30
    assert doubt.startswith("older than the baseline")


def test_a_clock_that_is_a_few_seconds_ahead_is_no_reason(store: BaselineStore) -> None:
    content = told(passing(), started_at="2026-11-21T00:00:20+00:00")
    assert one(review_of(store, content)).doubts == ()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(told(passing(name="../x")), id="a path"),
        pytest.param(told(passing(), passing()), id="twice"),
        pytest.param(told(passing(run=run(workload="another"))), id="another's run"),
    ],
)
def test_what_contradicts_itself_is_not_accepted_by_force_either(store: BaselineStore, content: Results) -> None:
    found = accept(store, content, force=True)
    assert found.accepted == ()
    assert found.refused[0].never
    assert not list(store.root.glob("**/*.json"))


def test_a_conflict_in_the_file_is_replaced_by_force_only(store: BaselineStore) -> None:
    path = store.path(DEVICE, WORKLOAD)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"<<<<<<< HEAD\n")
    refused = accept(store, told(passing()))
    assert refused.accepted == ()
    (doubt,) = refused.refused[0].doubts
    assert "unresolved merge conflict: JSON is malformed" in doubt
    assert f"; {path}; git checkout -- {path}" in doubt
    assert path.read_bytes() == b"<<<<<<< HEAD\n"
    accept(store, told(passing()), force=True)
    assert store.load(DEVICE, WORKLOAD) is not None


def test_a_file_of_a_newer_version_is_not_replaced_by_force_either(store: BaselineStore) -> None:
    path = store.path(DEVICE, WORKLOAD)
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"schema_version": 99}')
    assert accept(store, told(passing()), force=True).accepted == ()
    assert path.read_bytes() == b'{"schema_version": 99}'


def test_a_run_that_was_cut_short_makes_nothing_vanish(store: BaselineStore) -> None:
    """Collection may not have come to the end of it."""
    accept(store, told(passing(name="a-x-bf16-1"), passing()))
    for exit_status, groups in ((2, [Group.SAME_SPEED, Group.NOT_MEASURED]), (1, [Group.SAME_SPEED, Group.VANISHED])):
        found = review_of(store, told(passing(), exit_status=exit_status))
        assert [each.group for each in found.review.reviewed] == groups


# -- what is written --------------------------------------------------------------------------------------------------


def test_what_was_chosen_is_stored_and_nothing_else(store: BaselineStore) -> None:
    names = ("a-x-bf16-1", "b-x-bf16-1", "c-x-bf16-1")
    found = review_of(store, told(*(passing(name=name) for name in names)))
    store_all([choose(found, lambda each: each.workload == "b-x-bf16-1", force=False)], store)
    assert set(store.stored(DEVICE)) == {"b-x-bf16-1"}


def test_what_is_accepted_is_as_fast_as_before_from_then_on(store: BaselineStore) -> None:
    accept(store, told(passing(), started_at=BEFORE))
    assert one(review_of(store, slower())).group is Group.SPEED
    accept(store, slower())
    found = review_of(store, slower())
    assert found.review.settled
    assert not one(found).waits
    content = store.path(DEVICE, WORKLOAD).read_bytes()
    assert choose(found, wanted, force=False).plan == []
    accept(store, slower())
    assert store.path(DEVICE, WORKLOAD).read_bytes() == content


def test_a_vanished_workload_loses_its_file(store: BaselineStore) -> None:
    accept(store, told(passing(name="a-x-bf16-1"), passing()))
    accept(store, told(passing()))
    assert set(store.stored(DEVICE)) == {WORKLOAD}


WRONG_CLOCKS = [
    pytest.param({"started_at": BEFORE}, f"older than the baseline: measured {BEFORE}", id="older"),
    pytest.param({"started_at": "yesterday"}, "'yesterday' is no time", id="no time"),
    pytest.param({"started_at": "2027-01-01T00:00:00Z"}, "yet to come", id="the future"),
    pytest.param({"seconds": -1.0}, "a clock ran backwards", id="backwards"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG_CLOCKS)
def test_results_that_are_doubtful_remove_nothing_unless_forced(
    store: BaselineStore, changes: dict[str, Any], said: str
) -> None:
    accept(store, told(passing(name="a-x-bf16-1"), passing(), started_at=AFTER))
    content = told(passing(), **({"started_at": AFTER} | changes))
    (gone,) = review_of(store, content).review.of(Group.VANISHED)
    assert said in "; ".join(gone.doubts)
    accept(store, content)
    assert set(store.stored(DEVICE)) == {"a-x-bf16-1", WORKLOAD}
    accept(store, content, force=True)
    assert set(store.stored(DEVICE)) == {WORKLOAD}


@pytest.mark.parametrize("others", [(), (passing(suite="another"),), (workload(run=None, unavailable="needs triton"),)])
def test_results_without_a_suite_remove_nothing_of_it_unless_forced(
    store: BaselineStore, others: tuple[WorkloadResult, ...]
) -> None:
    accept(store, told(passing(name="a-x-bf16-1"), started_at=BEFORE))
    content = told(*others, started_at=AFTER, declared={"perf": (), "another": (WORKLOAD,)})
    (gone,) = review_of(store, content).review.of(Group.VANISHED)
    assert gone.doubts == ("nothing of perf was measured in the results that declare it no more",)
    accept(store, content)
    assert "a-x-bf16-1" in store.stored(DEVICE)
    accept(store, content, force=True)
    assert "a-x-bf16-1" not in store.stored(DEVICE)


def test_what_an_old_run_declares_is_doubted_by_its_own_clock(store: BaselineStore) -> None:
    """Of another suite there are results that are newer: they say nothing of this one."""
    accept(store, told(passing(name="a-x-bf16-1"), passing(), started_at=AFTER))
    old = told(passing(), started_at=BEFORE)
    other = told(passing(name="b-x-bf16-1", suite="another"), started_at=AFTER, declared={"another": ("b-x-bf16-1",)})
    (gone,) = review_of(store, old, other).review.of(Group.VANISHED)
    assert gone.workload == "a-x-bf16-1"
    assert gone.doubts[0].startswith("older than the baseline")


def test_a_timer_that_the_results_do_not_know_is_not_erased_unless_forced(store: BaselineStore) -> None:
    accept(store, told(passing(), started_at=BEFORE))
    less = told(passing(run=run(host=None)), started_at=AFTER, timers=(Timer.DEVICE, Timer.END_TO_END))
    assert one(review_of(store, less)).doubts == ("host dispatch was not measured, and the baseline has it",)
    assert accept(store, less).accepted == ()
    assert accept(store, less, force=True).accepted


def test_what_is_no_duration_is_no_baseline_by_force_either(store: BaselineStore) -> None:
    absurd = told(passing(run=run(kernels=mlp_kernels(gate=1e308))))
    assert accept(store, absurd, force=True).accepted == ()
    assert store.stored(DEVICE) == {}


def write_another(store: BaselineStore) -> None:
    accept(store, slower(declared={}), force=True)


def remove(store: BaselineStore) -> None:
    store.path(DEVICE, WORKLOAD).unlink()


def break_it(store: BaselineStore) -> None:
    store.path(DEVICE, WORKLOAD).write_bytes(b"")


@pytest.mark.parametrize("meanwhile", [write_another, remove, break_it])
def test_what_somebody_else_wrote_since_the_review_is_not_overwritten(
    store: BaselineStore, meanwhile: Callable[[BaselineStore], None]
) -> None:
    accept(store, told(passing(), passing(name="other-x-bf16-1"), started_at=BEFORE))
    config = told(
        passing(run=run(kernels=mlp_kernels(xblock=512))),
        passing(name="other-x-bf16-1", run=run(workload="other-x-bf16-1", device=SLOWER)),
        started_at=AFTER,
    )
    chosen = choose(review_of(store, config), wanted, force=False)
    assert len(chosen.plan) == 2
    meanwhile(store)
    before = {path: path.read_bytes() for path in store.root.glob("*/*.json")}
    with pytest.raises(UpdateRefused, match="not what was reviewed any more") as caught:
        store_all([chosen], store)
    assert caught.value.where == str(store.path(DEVICE, WORKLOAD))
    assert {path: path.read_bytes() for path in store.root.glob("*/*.json")} == before


def test_store_all_on_a_full_disk_replaces_no_file(store: BaselineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    other = fingerprint(device="NVIDIA B200")
    machines = [told(passing()), told(passing(run=run(machine=other)), fingerprint=other)]
    written: list[object] = []

    def full(*of_replace: object) -> None:
        written.append(of_replace)
        if len(written) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("kernelgauge.files.os.fsync", full)
    with pytest.raises(StorageError, match="cannot write"):
        store_all([choose(each, wanted, force=False) for each in pending(machines, store, now=NOW)], store)
    monkeypatch.undo()
    assert len(written) == 2
    assert list(store.root.glob("*/*")) == []


@pytest.mark.parametrize(
    ("sensitivity", "doubts"),
    [({}, ["device time: UNDECIDED  inconclusive"]), ({Timer.DEVICE: 9.0}, [])],
)
def test_review_asks_for_the_sensitivity_of_the_workload(
    store: BaselineStore, sensitivity: dict[Timer, float], doubts: list[str]
) -> None:
    accept(store, told(passing(), started_at=BEFORE))
    noisy = passing(run=run(device=(150.0, 250.0, 200.0, 260.0)), limits=Limits(sensitivity=sensitivity))
    assert list(one(review_of(store, told(noisy, started_at=AFTER))).refused) == doubts


@pytest.mark.parametrize(("sensitivity", "accepted"), [({}, 0), ({Timer.DEVICE: 9.0}, 1)])
def test_choose_to_add_asks_for_the_sensitivity_of_the_workload(
    store: BaselineStore, sensitivity: dict[Timer, float], accepted: int
) -> None:
    accept(store, told(passing(), started_at=BEFORE))
    noisy = passing(run=run(device=(150.0, 250.0, 200.0, 260.0)), limits=Limits(sensitivity=sensitivity))
    chosen = choose_to_add(review_of(store, told(noisy, started_at=AFTER)), wanted, force=False)
    assert len(chosen.accepted) == accepted


def test_results_that_were_not_measured_here_review_nothing(store: BaselineStore) -> None:
    assert pending([results(fingerprint=None)], store, now=NOW) == []
