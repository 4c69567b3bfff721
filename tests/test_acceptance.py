"""What of a run may become a baseline, how saved results are reviewed, and what is stored of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kernelgauge.baselines import BaselineStore
from kernelgauge.baselines.acceptance import Mode, plan_update, review, select
from kernelgauge.judge.baseline import Baseline, encode_baseline
from kernelgauge.judge.review import Action, Group, PlannedChange, Reviewed
from kernelgauge.judge.timing import Limits
from kernelgauge.judge.verdict import Status, Verdict
from kernelgauge.report.words import doubt_text, in_full
from kernelgauge.results import Results, TestResult, WorkloadResult
from kernelgauge.run import Timer
from tests.builders import (
    DEVICE,
    WORKLOAD,
    baseline,
    complete_results,
    fingerprint,
    one_test,
    passing,
    results,
    run,
    verdict,
    workload,
)

BEFORE, AFTER = "2026-11-20T10:00:00+00:00", "2026-11-20T12:00:00+00:00"
SLOWER, NOISY = (225.0, 225.1, 225.2, 225.3), (150.0, 250.0, 200.0, 260.0)
B200 = fingerprint(device="NVIDIA B200")
SUBJECTS = ("structure", *(timer.label for timer in Timer))
CONFLICT, NEWER = b"<<<<<<< HEAD\n", b'{"schema_version": 99}'


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


def ran(**changes: Any) -> WorkloadResult:
    """A workload that passed, with another run."""
    return passing(run=run(**changes))


def slower(**changes: Any) -> Results:
    return complete_results(
        passing(verdict(Status.REGRESSED), run=run(device=SLOWER)), **({"started_at": AFTER} | changes)
    )


def doubts_of(found: Reviewed) -> list[str]:
    return list(map(doubt_text, found.doubts))


def ended(verdict: Verdict, name: str = "test_x") -> TestResult:
    """A test that failed with a verdict."""
    return one_test(name, "failed", workload=verdict.workload, said=in_full(verdict), subject=verdict.subject)


def failed(name: str = "test_x", **changes: Any) -> TestResult:
    return one_test(name, "failed", **({"said": "Traceback\nE   RuntimeError: CUDA error"} | changes))


def stored(store: BaselineStore, name: str = WORKLOAD) -> Baseline:
    found = store.load(DEVICE, name)
    assert found is not None
    return found


def content(store: BaselineStore) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in store.root.glob("*/*.json")}


def spoil(store: BaselineStore, wrong: bytes, name: str = WORKLOAD) -> Path:
    path = store.path(DEVICE, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wrong)
    return path


MISSING = verdict(Status.NO_BASELINE, headline="no baseline")


def without(timer: Timer, **changes: Any) -> WorkloadResult:
    return ran(samples={other: sample for other, sample in run().samples.items() if other is not timer}, **changes)


@pytest.mark.parametrize(
    ("each", "changes", "reasons"),
    [
        (passing(), {"tests": [one_test("test_device_time")]}, []),
        *(
            (passing(differs), {"tests": [ended(differs)]}, [])
            for subject in SUBJECTS
            for status in (Status.REGRESSED, Status.INCOMPARABLE, Status.NO_BASELINE)
            for differs in [verdict(status, subject, "it differs")]
        ),
        *((passing(verdict(status)), {}, []) for status in (Status.PASS, Status.IMPROVED, Status.UNDECIDED)),
        *(
            case
            for subject, status in [
                *((subject, Status.INVALID) for subject in (*SUBJECTS, "numerics")),
                ("numerics", Status.REGRESSED),
            ]
            for wrong in [verdict(status, subject, "wrong")]
            for case in [
                (passing(wrong), {}, [f"{subject}: {status.value}  wrong"]),
                (passing(wrong), {"tests": [ended(wrong)]}, ["test_x failed", f"{subject}: {status.value}  wrong"]),
            ]
        ),
        # A teardown that failed: a verdict which may be accepted says nothing of that.
        (
            passing(verdict(Status.REGRESSED)),
            {"tests": [ended(verdict(Status.REGRESSED)), failed(), failed()]},
            ["test_x failed"],
        ),
        (passing(), {"tests": [failed(workload="another"), failed(workload=None)]}, []),
        (passing(MISSING), {"tests": [failed("test_c08", said=str(MISSING))]}, ["test_c08 failed"]),
        (workload(), {}, ["what it declares was not checked (was the test deselected?)"]),
        (ran(incomplete="a CUDA error"), {}, ["it was not measured in full (a CUDA error)"]),
        *(
            case
            for timer in Timer
            for case in [
                (without(timer), {}, [f"{timer.label} was not measured (was its test deselected?)"]),
                (without(timer), {"timers": tuple(other for other in Timer if other is not timer)}, []),
                (without(timer, incomplete="an error"), {}, ["it was not measured in full (an error)"]),
            ]
        ),
        (without(Timer.HOST), {"timers": ()}, ["host dispatch was not measured (was its test deselected?)"]),
        *((passing(), {"exit_status": status}, ["the run was cut short"] if status > 1 else []) for status in range(4)),
        (passing(run=None, unavailable="needs triton"), {}, []),
        (
            workload(verdict(Status.INVALID, "measurement", "no compile"), run=None),
            {},
            ["measurement: INVALID  no compile"],
        ),
    ],
)
def test_doubts_of_a_run_are_its_reasons(
    store: BaselineStore, each: WorkloadResult, changes: Any, reasons: list[str]
) -> None:
    assert doubts_of(reviewed(store, complete_results(each, **({"tests": ()} | changes)))[each.id]) == reasons


@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.CALIBRATE])
def test_update_keeps_newer_file_and_replaces_unreadable(store: BaselineStore, mode: Mode) -> None:
    path = spoil(store, NEWER)
    plans, refused = plan_update([complete_results(passing())], store, mode)
    assert (plans, [each.workload for each in refused]) == ({DEVICE: []}, [WORKLOAD])
    assert "newer version" in doubts_of(refused[0])[0]
    assert path.read_bytes() == NEWER
    spoil(store, CONFLICT)
    update(store, passing(), mode=mode)
    assert stored(store).workload == WORKLOAD


def update(
    store: BaselineStore, *workloads: WorkloadResult, mode: Mode = Mode.UPDATE, **changes: Any
) -> dict[str, Action]:
    plans, _ = plan_update([complete_results(*workloads, **changes)], store, mode)
    store.apply(plans)
    return {change.workload: change.action for plan in plans.values() for change in plan}


@pytest.mark.parametrize(
    ("before", "suite", "declared", "vanished"),
    [
        (b"", "perf", {"perf": ("another",)}, True),
        (CONFLICT, "perf", {"perf": ()}, False),
        (b"", "perf/nightly", {"perf": ("another",)}, False),
        (b"", "perf", {"perf": ("old",)}, False),  # declared and not selected
        (b"", "perf", {}, False),
        (b"", "perf", {"perf": (), "perf/nightly": ("old",)}, False),  # moved to another suite
    ],
)
def test_vanished_is_only_what_its_suite_declares_no_more(
    store: BaselineStore, before: bytes, suite: str, declared: Any, vanished: bool
) -> None:
    spoil(store, before or encode_baseline(baseline(suite=suite, workload="old")), "old")
    found = reviewed(store, complete_results(passing(), declared=declared))
    assert ("old" in found and found["old"].group is Group.VANISHED) is vanished
    update(store, passing(), declared=declared)
    assert set(content(store)) == {WORKLOAD, "old"}


def test_update_replaces_older_schema(store: BaselineStore) -> None:
    path = spoil(store, encode_baseline(baseline()).replace(b'"schema_version": 5', b'"schema_version": 4'))
    assert doubts_of(reviewed(store, complete_results(passing()))[WORKLOAD]) == [
        "the baseline was written by an older version of kernelgauge; pytest --perf-update   (records it again)",
    ]
    update(store, passing())
    assert b'"schema_version": 5' in path.read_bytes()
    assert stored(store).recorded is not None


def reviewed(store: BaselineStore, *parts: Results) -> dict[str, Reviewed]:
    return {each.workload: each for found in review(parts, store).values() for each in found}


class Selection(NamedTuple):
    plan: list[PlannedChange]
    refused: list[Reviewed]


def accept(store: BaselineStore, *parts: Results, mode: Mode = Mode.ACCEPT, force: bool = False) -> Selection:
    with store.locked():
        plans, refused = select(review(parts, store, mode), lambda _: True, force=force)
        store.apply(plans)
    return Selection([change for plan in plans.values() for change in plan], refused)


def test_accept_stores_the_newest_of_runs_that_agree(store: BaselineStore) -> None:
    broken = workload(verdict(Status.INVALID, "measurement", "a CUDA error"), run=None)
    parts = [
        complete_results(each, started_at=at) for each, at in ((passing(), BEFORE), (passing(), AFTER), (broken, AFTER))
    ]
    accept(store, *parts)
    recorded = stored(store).recorded
    assert recorded.at == AFTER
    assert review([results(fingerprint=None)], store) == {}


def test_accept_of_shards_and_devices_stores_all(store: BaselineStore) -> None:
    shards = [complete_results(passing(name=name), declared={"perf": ("a", "b")}) for name in "ab"]
    accept(store, *shards, complete_results(ran(machine=B200), fingerprint=B200))
    found = sorted(str(path.relative_to(store.root)) for path in store.root.glob("*/*.json"))
    assert found == [f"nvidia-b200/{WORKLOAD}.json", "nvidia-h200/a.json", "nvidia-h200/b.json"]


@pytest.mark.parametrize(
    ("before", "saved", "doubt"),
    [
        (BEFORE, [slower()], ""),
        (AFTER, [slower()], ""),
        (AFTER, [slower(started_at=BEFORE)], f"older than the baseline: measured {BEFORE}, and that was recorded {AFTER}"),
        (BEFORE, [complete_results(passing(), started_at=BEFORE), slower()], ""),  # the newest counts
        (BEFORE, [complete_results(ran(device=NOISY), started_at=AFTER)], "GPU time 205.1 -> 210.1 us  "),
    ],
)  # fmt: skip
def test_review_doubts_older_runs(store: BaselineStore, before: str, saved: list[Results], doubt: str) -> None:
    accept(store, complete_results(passing(), started_at=before))
    kept = content(store)
    doubts = "; ".join(doubts_of(reviewed(store, *saved)[WORKLOAD]))
    assert doubts.startswith(doubt)
    assert bool(doubts) is bool(doubt)
    accept(store, *saved)
    assert not doubt or content(store) == kept
    assert len(accept(store, *saved, force=True).refused) == 0


@pytest.mark.parametrize(("sensitivity", "accepted"), [({}, 0), ({Timer.DEVICE: 9.0}, 1)])
def test_select_to_add_asks_for_the_sensitivity(store: BaselineStore, sensitivity: Any, accepted: int) -> None:
    accept(store, complete_results(passing(), started_at=BEFORE))
    noisy = passing(run=run(device=NOISY), limits=Limits(sensitivity=sensitivity))
    assert len(accept(store, complete_results(noisy, started_at=AFTER), mode=Mode.ADD).plan) == accepted


def test_accept_replaces_conflict_by_force_only(store: BaselineStore) -> None:
    path = spoil(store, CONFLICT)
    (doubt,) = doubts_of(accept(store, complete_results(passing())).refused[0])
    assert "unresolved merge conflict" in doubt
    assert f"; git checkout --theirs -- {path}" in doubt
    assert path.read_bytes() == CONFLICT
    accept(store, complete_results(passing()), force=True)
    assert stored(store).workload == WORKLOAD
    spoil(store, NEWER)
    assert accept(store, complete_results(passing()), force=True).plan == []
    assert path.read_bytes() == NEWER


def test_run_cut_short_makes_nothing_vanish(store: BaselineStore) -> None:
    """Collection may not have come to the end of it."""
    accept(store, complete_results(passing(name="a"), passing()))
    for exit_status, names in ((2, {WORKLOAD}), (1, {WORKLOAD, "a"})):
        assert set(reviewed(store, complete_results(passing(), exit_status=exit_status))) == names
