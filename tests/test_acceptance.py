"""What of a run may become a baseline, how saved results are reviewed, and what is stored of them."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kernelgauge.baselines import BaselineStore, Mode, Plans, plan_update, review, select
from kernelgauge.judge import Status, Verdict
from kernelgauge.judge.baseline import encode_baseline
from kernelgauge.judge.review import Group, PlannedChange, Reviewed
from kernelgauge.judge.timing import Limits
from kernelgauge.report.findings import in_full
from kernelgauge.report.stored import doubt_text
from kernelgauge.results import Results, TestResult, WorkloadResult
from kernelgauge.run import Lack, Timer
from tests import builders
from tests.builders import WORKLOAD, complete_results, one_test, passing, run, verdict, workload

BEFORE, AFTER = "2026-11-20T10:00:00+00:00", "2026-11-20T12:00:00+00:00"
B200 = builders.fingerprint(device="NVIDIA B200")
CONFLICT, NEWER = b"<<<<<<< HEAD\n", b'{"schema_version": 99}'
NOISY = (150.0, 250.0, 200.0, 260.0)


def passing_run(**changes: Any) -> WorkloadResult:
    return passing(run=run(**changes))


def failed_test(name: str = "test_x", verdict: Verdict | None = None, **changes: Any) -> TestResult:
    """A test that failed with this verdict or, without one, with an error."""
    fields = (
        {"said": in_full(verdict), "subject": verdict.subject}
        if verdict
        else {"said": "E   RuntimeError"}
    )
    return one_test(name, "failed", **(fields | changes))


def doubts_of(found: Reviewed) -> list[str]:
    return list(map(doubt_text, found.doubts))


def reviewed(store: BaselineStore, *parts: Results) -> dict[str, Reviewed]:
    return {each.workload: each for found in review(parts, store).values() for each in found}


def content(store: BaselineStore) -> dict[str, bytes]:
    return {
        path.relative_to(store.root).as_posix(): path.read_bytes()
        for path in store.root.glob("*/*.json")
    }


def write(store: BaselineStore, content: bytes, name: str = WORKLOAD) -> Path:
    path = store.path(builders.DEVICE, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


Selection = tuple[list[PlannedChange], list[Reviewed]]  # what was written, and what was refused


def apply(store: BaselineStore, selected: tuple[Plans, list[Reviewed]]) -> Selection:
    plans, refused = selected
    store.apply(plans)
    return [change for plan in plans.values() for change in plan], refused


def update(store: BaselineStore, mode: Mode = Mode.UPDATE, **changes: Any) -> Selection:
    return apply(store, plan_update([complete_results(passing(), **changes)], store, mode))


def accept(
    store: BaselineStore, *parts: Results, mode: Mode = Mode.ACCEPT, force: bool = False
) -> Selection:
    return apply(store, select(review(parts, store, mode), lambda _: True, force=force))


def failing(subject: str, status: Status, doubts: list[str]) -> Any:
    """Return a workload with this verdict, and with a test that failed with it."""
    wrong = verdict(status, subject, "wrong")
    return passing(wrong), {"tests": [failed_test(verdict=wrong)]}, doubts


def without(timer: Timer, **changes: Any) -> WorkloadResult:
    samples = {other: sample for other, sample in run().samples.items() if other is not timer}
    return passing_run(samples=samples, **changes)


REGRESSION, ERROR = verdict(Status.REGRESSED), verdict(Status.INVALID, "measurement", "no compile")


@pytest.mark.parametrize(
    ("workload", "changes", "doubts"),
    [
        (passing(), {"tests": [one_test("test_device_time")]}, []),
        *(failing(subject, Status.REGRESSED, []) for subject in ("structure", "GPU time")),
        *(failing("structure", status, []) for status in (Status.CHANGED, Status.INCOMPARABLE)),
        failing("GPU time", Status.NO_BASELINE, []),
        failing("GPU time", Status.INVALID, ["test_x failed", "GPU time: INVALID  wrong"]),
        failing("numerics", Status.REGRESSED, ["test_x failed", "numerics: REGRESSED  wrong"]),
        *(
            (passing(verdict(status)), {}, [])
            for status in (Status.PASS, Status.IMPROVED, Status.UNDECIDED)
        ),
        # A teardown that failed: a verdict which may be accepted says nothing of that.
        (
            passing(REGRESSION),
            {"tests": [failed_test(verdict=REGRESSION), failed_test("test_y")]},
            ["test_y failed"],
        ),
        (passing(), {"tests": [failed_test(workload="another"), failed_test(workload=None)]}, []),
        (workload(), {}, ["what it declares was not checked (was the test deselected?)"]),
        (
            passing_run(incomplete="a CUDA error"),
            {},
            ["it was not measured in full (a CUDA error)"],
        ),
        (
            passing_run(
                incomplete="other kernels", lack=Lack.OTHER_KERNELS, other_kernels="sin, cos"
            ),
            {},
            ["it was not measured in full (other kernels: sin, cos)"],
        ),
        (without(Timer.DEVICE), {}, ["GPU time was not measured (was its test deselected?)"]),
        (without(Timer.HOST), {"timers": (Timer.DEVICE, Timer.END_TO_END)}, []),
        (
            without(Timer.HOST),
            {"timers": ()},
            ["host dispatch was not measured (was its test deselected?)"],
        ),
        (
            without(Timer.HOST, incomplete="an error"),
            {},
            ["it was not measured in full (an error)"],
        ),
        (passing(), {"exit_status": 2}, ["the run was cut short"]),
        (passing(run=None, unavailable="needs triton"), {}, []),
        (workload(ERROR, run=None), {}, ["measurement: INVALID  no compile"]),
    ],
)
def test_review_doubts_what_was_not_measured_well(
    store: BaselineStore, workload: WorkloadResult, changes: Any, doubts: list[str]
) -> None:
    assert (
        doubts_of(
            reviewed(store, complete_results(workload, **({"tests": ()} | changes)))[WORKLOAD]
        )
        == doubts
    )


def accept_by_force(store: BaselineStore) -> Selection:
    return accept(store, complete_results(passing()), force=True)


@pytest.mark.parametrize("change", [update, partial(update, mode=Mode.CALIBRATE), accept_by_force])
def test_newer_file_is_kept_and_unreadable_replaced(
    store: BaselineStore, change: Callable[..., Selection]
) -> None:
    path = write(store, CONFLICT)
    (doubt,) = doubts_of(accept(store, complete_results(passing()))[1][0])
    assert re.search(f"unresolved merge conflict.*; git checkout --theirs -- {path}", doubt)
    assert path.read_bytes() == CONFLICT
    write(store, NEWER)
    changes, (refused,) = change(store)
    assert (changes, path.read_bytes()) == ([], NEWER)
    assert "newer version" in doubts_of(refused)[0]
    older = encode_baseline(builders.baseline()).replace(
        b'"schema_version": 5', b'"schema_version": 4'
    )
    for unreadable in (CONFLICT, older):
        write(store, unreadable)
        change(store)
        assert store.load(builders.DEVICE, WORKLOAD).recorded is not None


OLD = encode_baseline(builders.baseline(workload="old"))


@pytest.mark.parametrize(
    ("before", "changes", "vanished"),
    [
        (OLD, {"declared": {"perf": ("another",)}, "exit_status": 1}, True),
        # collection may not have come to its end
        (OLD, {"declared": {"perf": ("another",)}, "exit_status": 2}, False),
        (CONFLICT, {"declared": {"perf": ()}}, False),
        (OLD.replace(b'"perf"', b'"perf/nightly"'), {"declared": {"perf": ("another",)}}, False),
        (OLD, {"declared": {"perf": ("old",)}}, False),  # declared and not selected
        # moved to another suite
        (OLD, {"declared": {"perf": (), "perf/nightly": ("old",)}}, False),
    ],
)
def test_vanished_is_only_what_its_suite_declares_no_more(
    store: BaselineStore, before: bytes, changes: dict[str, Any], vanished: bool
) -> None:
    path = write(store, before, "old")
    found = reviewed(store, complete_results(passing(), **changes))
    assert (found.get("old", found[WORKLOAD]).group is Group.VANISHED) is vanished
    update(store, **changes)
    assert path.read_bytes() == before


def test_accept_stores_the_newest_run_of_each_device(store: BaselineStore) -> None:
    runs = (
        (passing(), BEFORE),
        (passing(), AFTER),
        (workload(ERROR, run=None), AFTER),
        (passing(name="a"), AFTER),
    )
    parts = [complete_results(each, started_at=at) for each, at in runs]
    accept(store, *parts, complete_results(passing_run(machine=B200), fingerprint=B200))
    assert store.load(builders.DEVICE, WORKLOAD).recorded.at == AFTER
    assert set(content(store)) == {
        f"nvidia-b200/{WORKLOAD}.json",
        f"nvidia-h200/{WORKLOAD}.json",
        "nvidia-h200/a.json",
    }
    assert review([builders.results(fingerprint=None)], store) == {}


def test_add_asks_for_the_sensitivity(store: BaselineStore) -> None:
    accept(store, complete_results(passing(), started_at=BEFORE))
    for sensitivity, added in (({}, 0), ({Timer.DEVICE: 9.0}, 1)):
        noisy = passing(run=run(device=NOISY), limits=Limits(sensitivity=sensitivity))
        changes, _ = accept(store, complete_results(noisy, started_at=AFTER), mode=Mode.ADD)
        assert len(changes) == added


@pytest.mark.parametrize("mode", list(Mode))
def test_comparison_with_float64_is_known_until_one_fails(store: BaselineStore, mode: Mode) -> None:
    """A run without that test forgets nothing; one that could not compare is no surprise."""

    def stored_after(status: Status | None, mode: Mode, gpu: str) -> bool | None:
        verdicts = [] if status is None else [verdict(status, "numerics", "no reference")]
        results = complete_results(passing(*verdicts, run=run(gpu=gpu)), started_at=AFTER)
        selected = (
            select(review([results], store), bool)
            if mode is Mode.ACCEPT
            else plan_update([results], store, mode)
        )
        assert bool(selected[1]) == (status is Status.UNDECIDED and mode is not Mode.UPDATE)
        store.apply(selected[0])
        baseline = store.load(builders.DEVICE, WORKLOAD)
        assert baseline is not None
        return baseline.is_compared

    assert stored_after(Status.PASS, Mode.UPDATE, "one") is True
    assert stored_after(None, mode, "two") is True
    assert stored_after(Status.UNDECIDED, mode, "three") is (mode is not Mode.UPDATE)
