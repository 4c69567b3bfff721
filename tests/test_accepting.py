"""Saved results, reviewed and stored: which run counts, what speaks against it, and what is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.accepting import Chosen, Pending, choose, load, pending, store_all
from kernelgauge.errors import ResultsError, StorageError, UpdateRefused
from kernelgauge.judge import Group, Reviewed, Status
from kernelgauge.results import Results, WorkloadResult, encode_results
from kernelgauge.run import Timer
from kernelgauge.storage import BaselineStore
from tests.builders import WORKLOAD, fingerprint, mlp_kernels, run
from tests.test_recording import DEVICE, passing, told
from tests.test_results import one_test, results, verdict, workload

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)
BEFORE, AFTER = "2026-11-20T10:00:00+00:00", "2026-11-20T12:00:00+00:00"
SLOWER = (225.0, 225.1, 225.2, 225.3)


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


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
def test_results_that_measured_nothing_of_a_suite_remove_nothing_of_it_unless_forced(
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


def test_a_disk_that_is_full_in_the_middle_leaves_whole_files_and_the_next_time_goes_on(
    store: BaselineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a-x-bf16-1", "b-x-bf16-1", "c-x-bf16-1")
    content = told(*(passing(name=name) for name in names))
    written: list[Path] = []

    def full(path: Path, data: bytes) -> None:
        if len(written) == 2:
            raise StorageError("cannot write", got="No space left on device")
        written.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    monkeypatch.setattr("kernelgauge.storage.write_atomically", full)
    with pytest.raises(StorageError, match="cannot write"):
        accept(store, content)
    monkeypatch.undo()
    assert set(store.stored(DEVICE)) == set(names[:2])
    assert [change.workload for change in accept(store, content).plan] == ["c-x-bf16-1"]
    assert set(store.stored(DEVICE)) == set(names)


def test_results_that_were_not_measured_here_review_nothing(store: BaselineStore) -> None:
    assert pending([results(fingerprint=None)], store, now=NOW) == []
