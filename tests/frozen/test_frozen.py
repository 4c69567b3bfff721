"""The numbers of verdicts on all recorded data, and on a grid of made runs: a change of the code
moves none unseen.

`numbers.txt` has them, a group for each function of `GROUPS`. After a change that is meant, write
it anew, and look at what `git diff` lists:

    KERNELGAUGE_FREEZE=1 pytest tests/frozen

A verdict is one word for its subject, one for its status, then the estimate, the lower and the
upper end of the interval and the sensitivity, as fractions with six digits; and the time before.
``-`` is None. A structure that passes is left out. A cause stands with its line and the number of
causes.
"""

import hashlib
import itertools
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernelgauge import Run, Timer
from kernelgauge.judge import STRUCTURE, Status, Verdict
from kernelgauge.results import encode_results
from kernelgauge.run import CompileEvent, OpRecord, Origin, PeakPart, Sample, SourceLine
from kernelgauge.trace import Trace
from tests import builders
from tests.builders import (
    CONTROL_US,
    ELSEWHERE,
    HERE,
    Limits,
    StepRow,
    fingerprint,
    mlp_kernels,
    pair,
    run,
)

NUMBERS = Path(__file__).with_name("numbers.txt")
ROOT = Path(__file__).parents[2]
DATA = ROOT / "benchmarks" / "data"
MANY = 150  # launches: of longer workloads, fewer processes are judged
WORDS = {"GPU time": "gpu", "CPU time": "cpu", "end to end": "end", "host dispatch": "host"}

Lines = Iterator[tuple[str, str]]  # a case, and its numbers


def number(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 10) + 0.0:.6g}"


def shown(verdict: Verdict) -> str:
    words = [WORDS.get(verdict.subject, verdict.subject.replace(" ", "_")), verdict.status.value]
    if (change := verdict.change) is not None:
        words += map(
            number,
            (change.estimate, change.low, change.high, change.sensitivity, verdict.before_us),
        )
    return " ".join(words)


def short(workload: str) -> str:
    return workload[:25]


def all_shown(verdicts: Iterable[Verdict], *, with_causes: bool = False) -> str:
    verdicts = list(verdicts)
    causes = (
        dict.fromkeys(cause for each in verdicts if (cause := builders.cause_of(each)))
        if with_causes
        else ()
    )
    differing = (
        each for each in verdicts if each.subject != STRUCTURE or each.status is not Status.PASS
    )
    return "; ".join([*map(shown, differing), *causes])


def slower(now: Run, factor: float, timers: Iterable[Timer] = tuple(Timer)) -> Run:
    samples = {
        timer: msgspec.structs.replace(
            each, replicates_us=tuple(factor * us for us in each.replicates_us)
        )
        if timer in timers
        else each
        for timer, each in now.samples.items()
    }
    return msgspec.structs.replace(now, samples=samples)


# -- what was recorded -----------------------------------------------------------------------------


def sessions(runs: Iterable[Run]) -> list[dict[str, Run]]:
    """Return the runs of each process: those beside the same reference kernels."""
    found: dict[object, dict[str, Run]] = defaultdict(dict)
    for each in runs:
        controls = tuple(
            sorted((name, control.device_time_us) for name, control in each.controls.items())
        )
        found[each.fingerprint.device, each.place, controls, each.host, each.day][each.workload] = (
            each
        )
    return list(found.values())


def files() -> dict[str, Path]:
    return {
        f"{path.parent.name[:12]}/{path.stem}": path
        for path in sorted(ROOT.glob("baselines/*/*.json"))
    }


def runs_by_workload() -> dict[str, dict[str, list[Run]]]:
    """Return the recorded runs, by device and workload."""
    found: dict[str, dict[str, list[Run]]] = defaultdict(dict)
    for name, path in files().items():
        runs = builders.recorded_runs(builders.recorded_baseline(path))
        if runs[0].samples:
            found[name.partition("/")[0]][runs[0].workload] = runs
    return found


def recorded_beside_the_rest() -> Lines:
    """Each recorded process, by a baseline of the others."""
    for device, known in runs_by_workload().items():
        for place, session in [*enumerate(sessions(itertools.chain(*known.values())))][::3]:
            session = {
                name: now
                for name, now in session.items()
                if len(now.kernels) < MANY or place % 2 == 0
            }
            rest = {
                name: [each for each in known[name] if each is not now]
                for name, now in session.items()
            }
            cases = [
                (now, builders.calibrated(rest[name]))
                for name, now in session.items()
                if rest[name]
            ]
            for (now, _), verdicts in zip(
                cases, builders.judged(*cases, comparisons=21), strict=True
            ):
                yield f"{device} {place} {short(now.workload)}", all_shown(verdicts)


def recorded_beside_one() -> Lines:
    """Each recorded process by the next one alone, some of them slower or faster than they were."""
    factors = itertools.cycle((1.0, 1.004, 1.05, 0.97, 1.3, 0.7, 2.5))
    for device, known in runs_by_workload().items():
        for name, runs in known.items():
            for place, now in enumerate(runs[: 7 if len(runs[0].kernels) < MANY else 1]):
                factor = next(factors)
                before = builders.calibrated([runs[place - 1]])
                (verdicts,) = builders.judged((slower(now, factor), before), comparisons=21)
                yield f"{device} {place} {short(name)} x{factor}", all_shown(verdicts)


def recorded_beside_its_file() -> Lines:
    """Recorded processes by their file as it is: 1.5 % slower, and on a GPU that it does not know."""
    for device, known in runs_by_workload().items():
        stored = {name: builders.recorded_baseline(files()[f"{device}/{name}"]) for name in known}
        for kind, changes, factor in (
            ("slower", {}, 1.015),
            ("unknown", {"gpu": "x", "host": "y"}, 1.0),
        ):
            cases = [
                (slower(msgspec.structs.replace(runs[-1], **changes), factor), stored[name])
                for name, runs in known.items()
            ]
            for (now, _), verdicts in zip(
                cases, builders.judged(*cases, comparisons=100), strict=True
            ):
                yield f"{device} {kind} {short(now.workload)}", all_shown(verdicts)


def changed_kernels() -> Lines:
    """Recorded runs with one kernel more, less, slower or of another name, by the file of their
    workload.
    """

    def cut(
        values: Sequence[Any], kernels: Sequence[Any], place: int, put: Sequence[Any]
    ) -> tuple[Any, ...]:
        return (
            (*values[:place], *put, *values[place + 1 :])
            if len(values) == len(kernels)
            else tuple(values)
        )

    for file, (name, path) in enumerate(files().items()):
        known = builders.recorded_baseline(path)
        now = builders.recorded_runs(known)[0]
        place = len(now.kernels) // 2
        one, origin = now.kernels[place], (now.origins or (None,) * len(now.kernels))[place]
        us = one.device_time_us
        other = msgspec.structs.replace(
            one, identity=msgspec.structs.replace(one.identity, name="another_kernel")
        )
        kinds: dict[str, list[Any]] = {
            "gone": [],
            "twice": [one, one],
            "slower": [msgspec.structs.replace(one, device_time_us=3 * us + 20)],
            "other": [other],
        }
        for kind, kernels in [*kinds.items()][file % 2 :: 2]:
            changed = msgspec.structs.replace(
                now,
                kernels=cut(now.kernels, now.kernels, place, kernels),
                origins=cut(now.origins, now.kernels, place, [origin] * len(kernels)),
                counts=msgspec.structs.replace(
                    now.counts, launches=now.counts.launches + len(kernels) - 1
                ),
            )
            whole = sum(each.device_time_us for each in now.kernels) or 1.0
            after = sum(each.device_time_us for each in changed.kernels)
            changed = slower(changed, after / whole or 1.0, (Timer.DEVICE,))
            yield (
                f"{name} {kind}",
                all_shown(builders.judged((changed, known))[0][:2], with_causes=True),
            )


def kept_nights() -> Lines:
    """Kept processes of unchanged code, each as one session, by the committed baselines."""
    stored: dict[str, Any] = {}
    for path in sorted((DATA / "unchanged").glob("host*/run-*.json.gz"))[::3]:
        runs = builders.kept_runs(path)
        for each in runs:
            file = ROOT / "baselines" / "nvidia-h200" / f"{each.workload}.json"
            if each.workload not in stored:
                stored[each.workload] = builders.recorded_baseline(file)
        cases = [(each, stored[each.workload]) for each in runs]
        for (now, _), verdicts in zip(cases, builders.judged(*cases, comparisons=21), strict=True):
            yield (
                f"{path.parent.name}/{path.name.partition('.')[0]} {short(now.workload)}",
                all_shown(verdicts),
            )


# -- a grid of made runs ---------------------------------------------------------------------------


def times(factor: float, noise: float = 0.0005) -> dict[str, Any]:
    """All times of a call, so many times as long as usual."""
    centers = {"device": 200.0, "host": 50.0, "end_to_end": 300.0}
    return {
        name: tuple(us * factor * (1 + noise * step) for step in (-1, 0, 0, 1))
        for name, us in centers.items()
    }


def on_host(at: str | None = None, day: str | None = None, **changes: Any) -> Run:
    return msgspec.structs.replace(run(**changes), host=at, day=day)


DAYS = ("2026-01-01", "2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "2026-01-04")
SCATTER = (1.0, 1.003, 0.998, 1.001, 0.999, 1.002)


def stored_of(processes: int, **changes: Any) -> Any:
    several = zip(SCATTER[:processes], DAYS, strict=False)
    return builders.calibrated(
        [on_host("here", day, **times(factor) | changes) for factor, day in several]
    )


FACTORS = (0.9, 1.0, 1.004, 1.02, 1.3, 2.6)
CPU = {"machine": fingerprint(device="a CPU", arch="cpu"), "gpu": None, "controls": {}}
NEW_DRIVER, NEW_GPU = (
    {"machine": fingerprint(driver="590.1")},
    {"machine": fingerprint(device="Another GPU")},
)
OTHER_CHOICE, WAITS = (
    {"kernels": mlp_kernels(us=55.4, xblock=512)},
    {"counts": builders.counts(synchronizations=1)},
)
COMPILE = (Timer.COLD_COMPILE, Timer.WARM_COMPILE)
AXES: dict[str, tuple[Any, Any]] = {  # what differs in the run; and in its baseline
    "usual": ({}, {}),
    "unknown": ({"gpu": ELSEWHERE, "at": "there"}, {}),
    "driver": (NEW_DRIVER, {}),
    "driver unknown": (NEW_DRIVER | {"gpu": ELSEWHERE, "at": "there"}, {}),
    "choice": (OTHER_CHOICE, {}),
    "choice unknown": (OTHER_CHOICE | {"gpu": ELSEWHERE, "at": "there"}, {}),
    "trains": ({"trains": True}, {}),
    "waits": (WAITS, WAITS),
    "other GPU": (NEW_GPU, NEW_GPU),
    "other GPU unknown": (NEW_GPU | {"gpu": ELSEWHERE}, NEW_GPU),
    "foreign": (NEW_GPU, {}),
    "cpu": (CPU, CPU),
    "cpu unknown": (CPU | {"at": "there"}, CPU),
    "slow gemm": ({"controls": pair(gemm=150 * 1.012)}, {}),
    "slower gemm": ({"controls": pair(gemm=150 * 1.3)}, {}),
    "fast copy": ({"controls": pair(copy=30 * 0.97)}, {}),
    "slow copy driver": (NEW_DRIVER | {"controls": pair(copy=30 * 1.05)}, {}),
    "other gemm": ({"controls": pair(gemm=150 * 1.012, gemm_kernel="x")}, {}),
    "fast host": ({"host_control_us": CONTROL_US / 1.2}, {}),
    "slow host": ({"host_control_us": CONTROL_US * 1.25}, {}),
    "other host": ({"host_control_us": CONTROL_US * 2}, {}),
    "no reference": ({"host_control_us": None}, {}),
    "one replicate": ({"device": (200.0,), "host": (50.0,), "end_to_end": (300.0,)}, {}),
    "disturbed": (
        {
            "host": (50.0, 90.0, 45.0, 80.0),
            "end_to_end": (300.0, 500.0, 280.0, 420.0),
            "device": (200, 230, 190, 240),
        },
        {},
    ),
    "graph": (
        {"counts": builders.counts(graph_launches=1)},
        {"counts": builders.counts(graph_launches=1)},
    ),
    "small": (
        {"kernels": mlp_kernels(3.0, 3.0, 3.0, us=3.0)},
        {"kernels": mlp_kernels(3.0, 3.0, 3.0, us=3.0)},
    ),
    "impossible": ({"end_to_end": (20.0, 20.1, 20.2, 20.3)}, {}),
    "impossible stored": ({}, {"host": (2000.0,) * 4}),
}


def made(factor: float, changes: Mapping[str, Any]) -> Run:
    scaled = {
        name: tuple(factor * us for us in changes[name]) for name in times(1.0) if name in changes
    }
    return on_host(**{"at": "here", "day": "2026-02-01"} | times(factor) | {**changes} | scaled)


def grid() -> Lines:
    """Times by factor, by what differs, and by how many processes the baseline has."""
    for (name, (of_run, of_stored)), processes in itertools.product(AXES.items(), (1, 6)):
        before = stored_of(processes, **of_stored)
        for factor in FACTORS:
            (verdicts,) = builders.judged((made(factor, of_run), before), comparisons=21)
            yield f"{name} {processes} x{factor}", all_shown(verdicts, with_causes=factor == 2.6)


def limits_and_levels() -> Lines:
    """Times by what the suite asks, how many it has, and whether a fresh process confirms them."""
    before = stored_of(3)
    gate, blind = (Limits(**{name: dict.fromkeys(Timer, 0.1)}) for name in ("gate", "sensitivity"))
    strict = Limits(sensitivity=dict.fromkeys(Timer, 0.0001))
    for (name, limits), count in itertools.product(
        {"none": None, "gate": gate, "blind": blind, "strict": strict}.items(), (1, 2, 3, 300)
    ):
        for factor, is_confirmed in ((1.0, True), (1.05, True), (1.05, False)):
            now = made(factor, {})
            (verdicts,) = builders.judged(
                (now, before), comparisons=count, limits=limits, is_confirmed=is_confirmed
            )
            yield f"{name} {count} x{factor} {is_confirmed}", all_shown(verdicts)
    (verdicts,) = builders.judged((made(1.02, {}), before))
    yield "defaults", all_shown(verdicts)


def compiled(
    factor: float, control_us: float = CONTROL_US, noise: float = 1.0, **changes: Any
) -> Run:
    each = tuple(factor * 1e6 * us**noise for us in (0.9, 1.05, 0.98, 0.94, 1.01))
    samples = {timer: Sample(each, 1, (control_us,) * len(each)) for timer in COMPILE}
    return msgspec.structs.replace(run(**changes), samples=samples)


def compile_times() -> Lines:
    for processes, factor, control_us in itertools.product(
        (1, 3), (0.2, 1.0, 1.9, 4.5), (14.0, 28.0)
    ):
        before = builders.calibrated([compiled(each) for each in SCATTER[:processes]])
        now = compiled(factor, control_us, counts=builders.counts(generated_kernels=3))
        (verdicts,) = builders.judged((now, before), comparisons=80)
        yield f"{processes} x{factor} {control_us}", all_shown(verdicts)
    before = builders.calibrated([compiled(each) for each in 4 * SCATTER])
    for factor, noise in ((1.2, 1.0), (1.3, 1.0), (1.0, 8.0), (1.0, 12.0), (1.0, 16.0)):
        (verdicts,) = builders.judged((compiled(factor, noise=noise), before))
        yield f"24 x{factor} {noise}", all_shown(verdicts)
    for factor, count, noise in itertools.product((1.0, 1.15), (3, 12), (0.1, 3.0)):
        sides = (
            [compiled(factor * each, noise=noise) for each in SCATTER * 2][:count]
            for factor in (1.0, factor)
        )
        verdicts, undecided = builders.judged_sides(*sides)
        yield (
            f"near x{factor} {count} {noise}",
            f"{all_shown(verdicts)}; open {', '.join(undecided)}",
        )


def choices() -> Lines:
    """Runs of other launch configurations than their baseline."""
    before = stored_of(6)
    before_of_starts = builders.calibrated([compiled(each) for each in SCATTER])
    third = {"kernels": mlp_kernels(us=54.2, xblock=256)}
    kernels = {"usual": {}, "other": OTHER_CHOICE, "third": third}
    for (name, changes), factor in itertools.product(kernels.items(), (1.0, 1.02, 2.6)):
        (verdicts,) = builders.judged((made(factor, changes), before), comparisons=21)
        yield f"{name} x{factor}", all_shown(verdicts)
        (verdicts,) = builders.judged(
            (compiled(factor, **changes), before_of_starts), comparisons=21
        )
        yield f"compiled {name} x{factor}", all_shown(verdicts)


def added() -> Lines:
    """Which processes may join a baseline, beside other workloads; and what crept since its anchor."""
    before = stored_of(3)
    for spread, factor, many in itertools.product((0.0001, 0.01), (1.0, 1.003, 1.01), (1, 2)):
        other = [
            on_host("here", **times(1 + spread * sign), workload="other") for sign in (0, 1, -1, 0)
        ]
        runs = [made(factor, {}) for _ in range(many)]
        found = builders.with_added(before, runs, beside=[(other[0], builders.calibrated(other))])
        facts = getattr(found, "facts", ())
        said = "; ".join(
            shown(each) if isinstance(each, Verdict) else type(each).__name__ for each in facts
        )
        yield f"{spread} x{factor} {many}", said or f"{len(found.processes)} processes"
    moved = [name for name in AXES if "gemm" in name or "copy" in name or "unknown" in name]
    for name, factor in itertools.product(["usual", "fast host", *moved], (1.012, 1.3)):
        known = stored_of(1, **NEW_DRIVER if "driver" in name else {})
        for step in (1.004, 1.008):
            change: Any = builders.reviewed_run(
                made(step, {"host_control_us": CONTROL_US}), known
            ).change
            known = change.baseline or known
        evidence = builders.reviewed_run(made(factor, AXES[name][0]), known).evidence
        creeps = [each for each in evidence if type(each).__name__ == "Creep"]
        yield (
            f"creep {name} x{factor}",
            "; ".join(f"{it.label} {number(it.change)} {it.accepted}" for it in creeps),
        )


def twins() -> Lines:
    """A run on an unknown GPU, beside workloads that run the same kernels."""
    fleet = [
        on_host(
            f"host{place % 4}",
            gpu=f"gpu{place}",
            **times(1 + each),
            controls=pair(gemm=150 * (1 + 2 * each)),
        )
        for place, each in enumerate((0.0, 0.004, -0.003, 0.006, 0.001, -0.002, 0.003, -0.005))
    ]
    moves = {"none": {}, "one": {"a": 1.0}, "two": {"a": 1.0, "b": 1.001}, "slow": {"a": 1.01, "b": 1.01},
             "apart": {"a": 1.0, "b": 1.012}}  # fmt: skip
    far: dict[str, Any] = {"at": "there", "gpu": ELSEWHERE}
    for (name, factors), count, factor in itertools.product(
        moves.items(), (1, 4, 8), (1.0, 1.01, 1.06, 0.95)
    ):
        before = builders.calibrated(fleet[:count])
        now = on_host(**far | times(factor), controls=pair(gemm=150 * 1.003))
        beside = [
            (
                on_host(**far | times(each), workload=twin),
                msgspec.structs.replace(before, workload=twin),
            )
            for twin, each in factors.items()
        ]
        verdicts, *_ = builders.judged((now, before), *beside, comparisons=21)
        yield f"{name} {count} x{factor}", all_shown(verdicts)
    before = builders.calibrated(fleet[:2])
    others = [(on_host(gpu="gpu0", workload="o"), stored_of(6, workload="o", gpu="gpu0"))]
    verdicts, *_ = builders.judged(
        (on_host(gpu="gpu0", **times(1.005)), before), *others, comparisons=21
    )
    yield "scatter of others", all_shown(verdicts)


def fresh_processes() -> Lines:
    for (name, (of_run, of_stored)), factor, fresh in itertools.product(
        AXES.items(), (1.3, 9.0), (0.9, 1.0, 1.01, 1.3, 9.0)
    ):
        case = made(factor, of_run), stored_of(1, **of_stored)
        verdicts = builders.confirmed(made(fresh, of_run), case, comparisons=21)
        if verdicts and name in (
            "usual",
            "unknown",
            "choice",
            "trains",
            "cpu",
            "other GPU",
            "slow host",
            "disturbed",
        ):
            yield f"{name} x{factor} then x{fresh}", all_shown(verdicts)
    case = made(1.3, {}), stored_of(1)
    for name, changes in {
        "other kernels": {"kernels": mlp_kernels()[:3]},
        "untimed": {"device": None},
    }.items():
        yield name, all_shown(builders.confirmed(run(**changes), case), with_causes=True)


def ratios() -> Lines:
    machines = {"H200": {}, "other": NEW_GPU, "cpu": CPU}
    for (name, machine), us, by, noise in itertools.product(
        machines.items(), (160.0, 188.0, 190.0, 192.0, 198.0, 230.0), (0.0, 0.05), (0.0005, 0.02)
    ):
        this, other = (
            on_host(
                **machine,
                device=tuple(each * (1 + noise * step) for step in (-1, 0, 0, 1)),
                workload=of,
            )
            for each, of in ((us, "mlp"), (200.0, "mlp-eager"))
        )
        verdict = builders.judged_ratio(this, other, by=by)
        change = verdict.conclusion.change  # type: ignore[union-attr]
        yield (
            f"{name} {us} {by} {noise}",
            f"{verdict.status.value} {number(change.low)} {number(change.high)}",
        )


def sides() -> Lines:
    """Two sets of processes, as `compare` judges them."""

    def process(center: float, noise: float, chance: random.Random, **changes: Any) -> Run:
        factor = center * (1 + chance.gauss(0, noise))
        return made(factor, changes)

    chance = random.Random(20261129)
    for noise, factor, count, are_pairs in itertools.product(
        (0.0005, 0.003, 0.02), (0.99, 1.0, 1.0025, 1.01, 1.3), (3, 6, 12), (False, True)
    ):
        before, after = (
            [process(each, noise, chance) for _ in range(count)] for each in (1.0, factor)
        )
        verdicts, undecided = builders.judged_sides(before, after, beside=() if are_pairs else None)
        yield (
            f"{noise} x{factor} {count} {are_pairs}",
            f"{all_shown(verdicts)}; open {', '.join(undecided)}",
        )
    few = random.Random(1)
    for factor, count in itertools.product((1.0, 1.01, 1.3), (1, 2)):
        before, after = (
            [process(each, 0.001, few) for _ in range(count)] for each in (1.0, factor)
        )
        verdicts, undecided = builders.judged_sides(before, after, beside=())
        yield f"few x{factor} {count}", f"{all_shown(verdicts)}; open {', '.join(undecided)}"
    # steps of the clock, beside the wanted share
    for us, noise in itertools.product((3.0, 12.0), (0.001, 0.004)):
        small = {"device": (us,) * 4}
        before, after = (
            [process(each, noise, few, **small) for _ in range(3)] for each in (1.0, 1.0)
        )
        verdicts, undecided = builders.judged_sides(before, after)
        yield f"small {us} {noise}", f"{all_shown(verdicts)}; open {', '.join(undecided)}"
    runs = [process(1.0, 0.001, chance) for _ in range(3)]
    untimed = on_host(device=None, host=None, end_to_end=None, incomplete="lost GPU")
    for name, before, after in (
        ("missing", [], runs), ("failed", runs, []), ("untimed", runs, [untimed]), ("spoilt", [*runs[:2], untimed], runs),
        ("fewer", runs, [process(1.0, 0.001, chance, kernels=mlp_kernels()[:3]) for _ in range(3)]),
        ("choice", runs, [process(1.0, 0.001, chance, **OTHER_CHOICE) for _ in range(3)]),
        ("cpu", *([process(each, 0.001, chance, **CPU) for _ in range(3)] for each in (1.0, 1.5))),
        ("gate", runs, [process(1.05, 0.001, chance) for _ in range(3)]),
    ):  # fmt: skip
        limits = Limits(gate=dict.fromkeys(Timer, 0.1)) if name == "gate" else None
        verdicts, undecided = builders.judged_sides(before, after, limits=limits)
        yield name, f"{all_shown(verdicts, with_causes=True)}; open {', '.join(undecided)}"


LINES = [SourceLine("model.py", place, f"line {place}") for place in range(1, 5)]
ORIGINS = [Origin("model", (line,)) for line in LINES]


def structures() -> Lines:
    """Counts, and causes of what is no kernel."""
    usual = {
        "ops": tuple(map(OpRecord, ("aten::mm", "aten::mm", "aten::add"))),
        "origins": tuple(ORIGINS),
    }
    usual |= {"peak": (PeakPart(1 << 20, ORIGINS[0]),), "counts": builders.counts(compiled_ops=5)}
    before = builders.baseline(**usual)
    peak = {
        "peak": (
            PeakPart(1 << 20, ORIGINS[0]),
            PeakPart(1 << 19, ORIGINS[1]),
            PeakPart(1 << 18, None),
        )
    }
    broken = CompileEvent("graph break", "print", "model.py", 3, "print(x)")
    new_op = {"ops": (*usual["ops"], OpRecord("aten::abs"), OpRecord("aten::neg"), OpRecord("aten::exp")),
              "op_origins": {f"aten::{name}": (each,) for name, each in zip(("abs", "neg", "exp"), ORIGINS, strict=False)}}  # fmt: skip
    for name, (changes, of_counts) in {
        "same": ({}, {}),
        "compiled ops": ({"compiled_origins": (ORIGINS[2],)}, {"compiled_ops": 6}),
        "compiled ops and break": ({"compile_events": (broken,)}, {"compiled_ops": 6, "graph_breaks": 1}),
        "ops": (new_op, {"dispatcher_ops": 6}),
        "peak": (peak, {"peak_allocated_bytes": 3 << 20}),
        "growth": ({"growth_origins": tuple(ORIGINS)}, {"grown_bytes": 512}),
        "host growth": ({"host_growth_origins": tuple(ORIGINS[1:])}, {"grown_host_bytes": 50_000}),
        "allocations": ({"allocating_ops": ("aten::empty: cudaMalloc",) * 3}, {"allocator_calls": 3}),
        "wait": ({"synchronizing_ops": ("aten::item: cudaStreamSynchronize",), "synchronization_origins": (ORIGINS[3],)},
                 {"synchronizations": 1}),
        "copy": ({"copying_ops": ("aten::clone: Memcpy DtoD",), "copy_origins": (ORIGINS[2],)}, {"copies": 1}),
        "fewer kernels": ({"kernels": mlp_kernels()[:3], "origins": tuple(ORIGINS[:3])}, {"launches": 3}),
        "more kernels": ({"kernels": (*mlp_kernels(), builders.launched("k", 5.0)), "origins": (*ORIGINS, ORIGINS[1])},
                         {"launches": 5}),
        "fewer ops": ({"ops": usual["ops"][:1]}, {"dispatcher_ops": 1}),
        "fewer ops and a wait": ({"ops": usual["ops"][:1], "synchronizing_ops": ("aten::item: cudaStreamSynchronize",)},
                                 {"dispatcher_ops": 1, "synchronizations": 1}),
        "many ops": ({"kernels": tuple(msgspec.structs.replace(each, op=f"aten::{place}") for place, each in enumerate(
            (*mlp_kernels()[:3], *(builders.launched(name, 5.0) for name in "klmn"))))}, {"launches": 7}),
        "less": ({}, {"dispatcher_ops": 2, "memsets": 1}),
        "torch": ({"machine": fingerprint(torch="2.12.0")}, {"dispatcher_ops": 9}),
        "data": ({"data": {"aten::mm": ("x",)}}, {}),
    }.items():  # fmt: skip
        counts = builders.counts(**{"compiled_ops": 5} | of_counts)
        now = run(**usual | changes | {"counts": counts})
        yield name, all_shown(builders.judged((now, before))[0][:1], with_causes=True)


# -- traces ----------------------------------------------------------------------------------------


def changes_of(before: Trace, after: Trace) -> str:
    rows, causes = builders.trace_changes(before, after)
    return "; ".join([*rows, *causes[:2]])


def recorded_traces() -> Lines:
    """What became of the kernels between each two recorded traces."""
    names = sorted(path.name.removesuffix(".json.gz") for path in builders.RECORDED.iterdir())
    traces = {name: builders.recorded(name) for name in names}
    for before, after in itertools.combinations(names, 2):
        if before.partition("-")[0] == after.partition("-")[0]:
            yield f"{before} {after}", changes_of(traces[before], traces[after])


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def made_traces() -> Lines:
    def trace(*steps: Sequence[tuple[str, float]]) -> Any:
        rows, at = [], 0.0
        for place, kernels in enumerate(steps):
            rows.append(builders.step(place, 10_000 * place, 5000)) if len(steps) > 1 else None
            for number, (name, us) in enumerate(kernels):
                at = 10_000 * place + 100 * number + 1
                correlation = 100 * place + number
                rows += [
                    builders.call(correlation, at),
                    builders.kernel(correlation, at + 5, name=name, duration=us),
                ]
        return builders.trace_of(*rows)

    gemms = [("gemm", 20.0 + 0.1 * place) for place in range(9)]
    # of one step: its launches say how much a kernel varies
    for more in (0.0, 0.5, 1.0, 1.2, 1.4, 2.0, 4.0):
        other = [(name, us + more + (-1) ** place * 1.2) for place, (name, us) in enumerate(gemms)]
        yield f"one step {more}", changes_of(trace(gemms), trace(other))
    for delta in (-300.0, -150.0, -5.0, 5.0, 150.0, 300.0):
        sides = [
            [[(REDUCE, 700.0 + each + 100 * step), ("gemm", 100.0)] for step in range(3)]
            for each in (0.0, delta)
        ]
        yield f"collective {delta}", changes_of(*(trace(*side) for side in sides))


ROWS = {
    "a": StepRow("forward", "layer", "aten::mm", "gemm", "gemm"),
    "b": StepRow("forward", "layer", "aten::add", "pointwise", "add"),
    "c": StepRow("backward", "layer", "aten::abs", "pointwise", "abs"),
    "d": StepRow("backward", "layer", "aten::exp", "pointwise", "exp"),
    "e": StepRow("forward", "layer", "aten::neg", "pointwise", "neg"),
    "w": StepRow("forward", "", "aten::item", "wait", "aten::item"),
    "n": StepRow("forward", "", "c10d::allreduce_", "communication", REDUCE),
}


def job_of(
    *steps: str, us: float = 100.0, factor: float = 1.0, rank: int = 0, spread: float = 0.0
) -> Any:
    """A run of one rank: each step is a text with a letter for each launch."""
    counts = [{ROWS[each]: step.count(each) for each in dict.fromkeys(step)} for step in steps]
    kernels = [us * factor * sum(step.count(each) for each in "abcde") for step in steps]
    total = {
        row: us * factor * sum(count[row] for count in counts if row in count)
        for row in ROWS.values()
    }
    squares = {
        row: (1 + spread**2) * sum((us * factor * count.get(row, 0)) ** 2 for count in counts)
        for row in ROWS.values()
    }
    found = [{row: value for row, value in each.items() if value} for each in (total, squares)]
    sent = [50.0 * step.count("n") for step in steps]
    walls = [1.2 * each + 50 for each in kernels]
    places: dict[StepRow, Counter[tuple[str, str]]] = {
        row: Counter({("layer", f"model.py({line}): {name}"): 1})
        for line, (name, row) in enumerate(ROWS.items(), 10)
    }
    trace = builders.StepTrace(
        rank, 1, builders.DEVICE, (0.0, 1.0), "ProfilerStep#", {}, places, ()
    )
    trace.steps[""] = builders.steps_of(
        counts, *found, walls, kernels, sent, [each / 2 for each in sent], [4] * len(steps)
    )
    return {rank: trace}


def made_steps() -> Lines:
    usual = ["aabbcd"] * 8
    varying = ["aabbcd", "aabcd", "aabbcd", "aabbbcd"] * 2
    for name, (before, after) in {
        "same": (usual, usual),
        "new": (usual, ["aabbcde"] * 8),
        "new in one": (usual, [*usual[:7], "aabbcde"]),
        "new in half": (usual, [*usual[:4], *["aabbcde"] * 4]),
        "gone": (usual, ["aabbc"] * 8),
        "several": (usual, ["aabccdee"] * 8),
        "wait": (usual, ["aabbcdw"] * 8),
        "two waits": (usual, ["aabbcdwwe"] * 8),
        "varying": (varying, ["aabbbcd"] * 8),
        "varying more": (varying, ["aabbbbbbcd"] * 8),
        "varying much more": (varying, ["aabbbbbbbbbbcd"] * 8),
        "varying less": (varying, ["aacd"] * 8),
        "fewer": (usual, ["abcd"] * 8),
        "communication": (["aabbcdn"] * 8, ["aabbcdnn"] * 8),
    }.items():
        for factor in (1.0, 1.1) if name in ("same", "new", "communication") else (1.0,):
            known = builders.steps_baseline([job_of(*before), job_of(*before, factor=1.005)])
            verdicts = builders.judged_steps(job_of(*after, factor=factor), known)
            yield f"{name} x{factor}", all_shown(verdicts, with_causes=True)
    for spread, factor in itertools.product((0.01, 0.1), (1.1, 1.2)):
        known = builders.steps_baseline(
            [job_of(*usual, factor=each, spread=spread) for each in SCATTER[:3]]
        )
        verdicts = builders.judged_steps(job_of(*usual, factor=factor), known)
        yield f"spread {spread} x{factor}", all_shown(verdicts, with_causes=True)
    known = builders.steps_baseline([job_of(*usual, factor=each) for each in SCATTER * 8])
    for factor in (1.0, 1.2, 1.35, 1.6):  # so many runs that the gate of a step binds
        yield (
            f"48 runs x{factor}",
            all_shown(builders.judged_steps(job_of(*usual, factor=factor), known)),
        )


def kept_steps() -> Lines:
    """Kept steps of two jobs of two ranks: each run by the one before, and by three."""
    for path in (DATA / "steps_h200.json.xz", DATA / "steps_h200_unseen.json.xz"):
        kept = builders.kept_steps(path)
        for job, runs in kept.items():
            first = next(each for name, each in kept.items() if name[:3] == job[:3])
            known = builders.steps_baseline(first[:1]), builders.steps_baseline(first[:3])
            for place, now in enumerate(runs[:4]):
                for count, each in zip((1, 3), known, strict=True):
                    yield (
                        f"{path.name[:-8]} {job} {place} {count}",
                        all_shown(builders.judged_steps(now, each), with_causes=place == 3),
                    )


# -- what is stored, and other surfaces ------------------------------------------------------------


def results_of(day: int, *runs: Run, **changes: Any) -> Any:
    whole = [builders.passing(name=each.workload, run=each) for each in runs]
    return builders.complete_results(
        *whole, started_at=f"2026-11-{day:02}T00:00:00+00:00", **changes
    )


STORED: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "same": [("accept", {}), ("accept", {})],
    "slower": [("accept", {}), ("accept", times(1.1)), ("accept", times(1.1))],
    "one slower": [("accept", {}), ("accept", {"device": (230.0,) * 4})],
    "dispatch slower": [
        ("accept", {}),
        ("add", {}),
        ("accept", {"host": (90.0, 90.1, 90.2, 90.1)}),
    ],
    "driver": [("accept", {}), ("accept", NEW_DRIVER)],
    "other device": [("accept", {}), ("accept", {"machine": fingerprint(mig=True)})],
    "other kernels": [
        ("accept", {}),
        ("accept", {"kernels": mlp_kernels()[:3], "counts": builders.counts(launches=3)}),
    ],
    "choice": [
        ("accept", {}),
        ("accept", OTHER_CHOICE),
        ("add", OTHER_CHOICE),
        ("accept", {"device": (230.0,) * 4}),
    ],
    "added": [("accept", {}), ("add", {}), ("add", {"gpu": ELSEWHERE}), ("accept", times(1.1))],
    "added slower": [("accept", {}), ("add", times(1.1))],
    "added other kernels": [("accept", {}), ("add", {"kernels": mlp_kernels()[:3]})],
    "calibrated": [("calibrate", {}), ("calibrate", times(1.1)), ("add", times(1.1))],
    "updated": [
        ("update", {}),
        ("update", times(1.02)),
        ("update", {"device": (150.0, 250.0, 200.0, 260.0)}),
    ],
    "doubted": [("accept", {}), ("accept", {"device": (150.0, 250.0, 200.0, 260.0)})],
    "slow host": [("accept", {}), ("accept", {"host_control_us": 60.0})],
    "impossible": [("accept", {}), ("accept", {"device": (30451.0,) * 4})],
    "untimed": [("accept", {"samples": {}}), ("accept", {"samples": {}})],
    "untimed again": [("calibrate", {"samples": {}}), ("older", {"samples": {}})],
    "older": [("accept", {}), ("older", {}), ("older", times(1.1))],
    "incomplete": [("accept", {}), ("accept", {"device": None, "incomplete": "lost GPU"})],
    "drift": [("accept", {}), *(("accept", times(1.003**step)) for step in range(1, 7))],
    "releases": [
        ("accept", {}),
        ("accept", times(1.1)),
        ("accept", times(1.2)),
        ("accept", times(1.2) | NEW_DRIVER),
    ],
}


def what_is_stored(folder: Path) -> Lines:
    """What each way to store leaves, and what it refuses."""
    for name, steps in STORED.items():
        root = folder / name.replace(" ", "-")
        for place, (mode, changes) in enumerate(steps):
            now = run(**times(1.0) | changes)
            day = 1 if mode == "older" else place + 10
            content = results_of(day, now, release=f"v{place}" if name == "releases" else None)
            said = builders.stored([content], root, "accept" if mode == "older" else mode)
            file = next(root.glob("*/*.json"), None)
            yield f"{name} {place} {mode}", "; ".join([*said, *(facts(file) if file else ())])
    both = [
        results_of(day, run(**times(factor), gpu=gpu))
        for day, factor, gpu in ((1, 1.0, HERE), (2, 1.001, ELSEWHERE))
    ]
    for mode in ("calibrate", "add"):
        said = builders.stored(both, folder / f"both-{mode}", mode)
        yield (
            f"both {mode}",
            "; ".join([*said, *facts(next((folder / f"both-{mode}").glob("*/*.json")))]),
        )


def facts(file: Path) -> list[str]:
    """What a file of a baseline has, and its digest."""
    content = msgspec.json.decode(file.read_bytes())
    entries = [[sorted(it["timers"]) for it in each["processes"]] for each in content["entries"]]
    us = [
        number(time["mean_us"])
        for each in content["entries"]
        for it in each["processes"]
        for time in it["timers"].values()
    ]
    anchors = [(each["accepted"], each["release"], [sorted(it["timers"]) for it in each["processes"]])
               for each in content.get("anchors", ())]  # fmt: skip
    counts = f"entries {[list(map(len, times)) for times in entries]}"
    return [
        counts,
        " ".join(us),
        f"anchors {anchors}",
        hashlib.sha256(file.read_bytes()).hexdigest()[:12],
    ]


def surfaces() -> Lines:
    """Keys of the results, and the public names of a run."""

    def keys(value: Any, path: str = "") -> Iterator[str]:
        if isinstance(value, dict):
            for name, part in value.items():
                yield from keys(part, f"{path}.{name}")
        elif isinstance(value, list):
            for part in value:
                yield from keys(part, f"{path}[]")
        else:
            yield path

    now = run()
    verdict = builders.verdict(Status.REGRESSED)
    content = results_of(1, now, exit_status=1)
    workload = msgspec.structs.replace(
        content.workloads[0], baseline=builders.baseline(), verdicts=(verdict,)
    )
    whole = msgspec.structs.replace(content, workloads=(workload,), warnings=("w",))
    found = dict.fromkeys(keys(msgspec.json.decode(encode_results(whole))))
    for name, paths in itertools.groupby(
        sorted(found), key=lambda path: re.split(r"[.[]", path)[1]
    ):
        yield f"results.{name}", " ".join(paths)
    yield "Run", " ".join(sorted(name for name in dir(Run) if not name.startswith("_")))


def commands(folder: Path, call: Callable[..., tuple[int, str, str]]) -> Lines:
    """Exit codes."""
    root, saved = folder / "stored", folder / "saved"

    def left(name: str, day: int, **changes: Any) -> Path:
        (saved / name).mkdir(parents=True)
        (saved / name / "results.json").write_bytes(
            encode_results(results_of(day, run(**times(1.0) | changes)))
        )
        return saved / name

    first, again, slow = left("first", 1), left("again", 2), left("slow", 3, **times(1.2))
    wrong = left("wrong", 4, device=None, incomplete="lost GPU")
    stored = "--baselines", root
    eager, other, train = (
        builders.RECORDED / f"{name}.json.gz"
        for name in ("mlp-eager", "mlp-compiled", "mlp-eager-train")
    )
    traces = "--baselines", folder / "traces"
    for name, arguments in {
        "review nothing stored": ("review", first, *stored), "accept": ("accept", first, *stored),
        "review same": ("review", again, *stored), "review slower": ("review", slow, *stored),
        "accept dry": ("accept", slow, *stored, "--dry-run"), "accept wrong": ("accept", wrong, *stored),
        "accept add slower": ("accept", slow, *stored, "--add"), "accept slower": ("accept", slow, *stored),
        "accept none": ("accept", slow, *stored, "-k", "nothing"), "review missing": ("review", folder / "none"),
        "check nothing stored": ("check-trace", eager, *traces), "check update": ("check-trace", eager, *traces, "--update"),
        "check same": ("check-trace", eager, *traces),
        "check other": ("check-trace", other, "--baselines", folder / "traces" / "traces" / "mlp-eager.json"),
        "check other job": ("check-trace", train, "--baselines", folder / "traces" / "traces" / "mlp-eager.json"),
        "diff": ("trace", eager, other), "diff change": ("trace", eager, other, "--fail-on-change"),
        "diff same": ("trace", eager, eager, "--fail-on-change"), "show": ("trace", eager), "show none": ("trace", root),
        "report": ("report", first), "history": ("history", saved), "history none": ("history", folder / "none"),
    }.items():  # fmt: skip
        yield name, str(call(*arguments)[0])
    (file,) = (folder / "traces").glob("*/*.json")
    content = msgspec.json.decode(file.read_bytes())
    content["recorded"] = None
    yield (
        "check --update",
        hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:12],
    )


GROUPS: dict[str, Callable[..., Lines]] = {
    each.__name__: each
    for each in (
        recorded_beside_the_rest, recorded_beside_one, recorded_beside_its_file, changed_kernels, kept_nights, grid,
        limits_and_levels, compile_times, choices, added, twins, fresh_processes, ratios, sides, structures, recorded_traces, made_traces,
        made_steps, kept_steps, what_is_stored, surfaces, commands,
    )
}  # fmt: skip


def read_numbers() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in NUMBERS.read_text(encoding="utf-8").splitlines() if NUMBERS.exists() else ():
        if line.startswith("# "):
            found[line.split()[1]] = lines = {}
        else:
            name, _, value = line.partition("\t")
            lines[name] = value
    return found


def write_numbers(found: Mapping[str, Mapping[str, str]]) -> None:
    rows = []
    for name in GROUPS:
        lines = found.get(name, {})
        rows += [
            f"# {name} {digest(lines)}",
            *(f"{case}\t{value}" for case, value in lines.items()),
        ]
    NUMBERS.write_text("\n".join(rows) + "\n", encoding="utf-8")


def digest(lines: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(lines.items())).encode()).hexdigest()[:16]


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    cases = [case for case in {**old, **new} if old.get(case) != new.get(case)]
    return [f"{case}\n  - {old.get(case)}\n  + {new.get(case)}" for case in cases]


@pytest.mark.parametrize("group", GROUPS)
def test_numbers_of_verdicts_are_frozen(
    group: str, tmp_path: Path, kernelgauge: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    arguments = {"what_is_stored": (tmp_path,), "commands": (tmp_path, kernelgauge)}.get(group, ())
    cases = list(GROUPS[group](*arguments))
    now, known = dict(cases), read_numbers()
    assert len(now) == len(cases)
    if "KERNELGAUGE_FREEZE" in os.environ:
        write_numbers(known | {group: now})
        return
    moved = differing(known.get(group, {}), now)
    assert not moved, "\n".join([f"{len(moved)} of {len(now)} cases moved:", *moved[:20]])
