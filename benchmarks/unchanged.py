"""How often unchanged code is red, and which slowdowns are caught, over every recorded suite. Needs
no GPU.

    python benchmarks/unchanged.py                      every design, and tables: 15 minutes
    python benchmarks/unchanged.py --design "one host"  only designs whose name has this
    python benchmarks/unchanged.py --design pairs       only long runs of `compare`
    python benchmarks/unchanged.py --design pieces      only calls of a few short kernels
    python benchmarks/unchanged.py --design later       only runs that no number was chosen on
    python benchmarks/unchanged.py --design later FOLDER... --keep   and all results.json in folders,
                                                        which benchmarks/data keeps from then on
    python benchmarks/unchanged.py --without gemm       an ablation: without one piece of information

A suite is one process: all times of all workloads, judged as `pytest perf --perf-strict` judges
them. It is green if none is REGRESSED and none UNDECIDED. A suite whose autotuner made a
slower choice is counted apart. Slowdowns and the noisy machine are
simulated on recorded times.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from recorded import (
    DATA,
    Suite,
    archived_suites,
    baseline_of,
    busy_suites,
    h100_suites,
    later_suites,
    model_suites,
    read_states,
    read_suites,
    recorded_suites,
    side_by_side_suites,
    slower_run,
)
from runs_file import keep_runs, read_runs

from kernelgauge.judge import Status, Verdict, timing
from kernelgauge.judge.baseline import Baseline, from_run
from kernelgauge.judge.evidence import Cause
from kernelgauge.judge.revisions import LOOKS, JudgedSet, judge_sets, looks, pair_steps
from kernelgauge.judge.time_verdict import Context, confirm, judge_time
from kernelgauge.results import NAME
from kernelgauge.run import CALL_TIMERS, Run, Sample, Timer, observe
from kernelgauge.trace import KernelRecord

Pair = tuple[Suite, tuple[Suite, ...]]  # the run, and the processes of its baseline
# likewise, and the fresh process that confirms red times
Trial = tuple[Suite, tuple[Suite, ...], Suite]

_SLOWER = {
    Timer.DEVICE: (0.003, 0.005, 0.01, 0.02, 0.03),
    Timer.HOST: (0.05, 0.10, 0.15),
    Timer.END_TO_END: (0.2, 0.3, 0.5),
}
# The columns of a table: times and slowdowns.
_COLUMNS = {
    "MLP": (Timer.DEVICE, False, (0.005, 0.01, 0.02)),
    "3 µs kernels": (Timer.DEVICE, True, (0.02, 0.03)),
    "dispatch of MLPs": (Timer.HOST, False, (0.1, 0.15)),
    "latency of MLPs": (Timer.END_TO_END, False, (0.5,)),
}
_SHORT_US = 20.0
_NOISY = 4  # times an H200's spread between processes
_SPREADS = {Timer.DEVICE: 0.0006, Timer.HOST: 0.015, Timer.END_TO_END: 0.035}  # of an H200
_SHORT_SPREAD = 0.0028  # of GPU times of short kernels
_SIMULATED = 1000  # suites
_SPLITS = 400  # of recorded processes into two halves
_PIECES = (3, 8)  # kernels
# folders of runs that no number was chosen on, by their suite
_LATER = {"perf": "later", "examples/models": "later_models"}
_FEWEST_DRAWN = 8  # processes of a GPU, for `print_pairs`
_WALKS = 40  # of them, on each GPU
_DRIFT = 0.01  # of GPU times over a comparison: none that was recorded is above 0.4 %


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="FOLDER")
    parser.add_argument("--keep", action="store_true", help="keep the runs of these folders")
    parser.add_argument(
        "--design", default="", metavar="TEXT", help="only designs whose name has this"
    )
    parser.add_argument(
        "--without",
        choices=sorted([*_ABLATIONS, "pairs"]),
        help="remove what the rule knows of this",
    )
    parser.add_argument("--show", action="store_true", help="print every verdict that is red")
    return parser.parse_args()


def main() -> None:
    options = _options()
    suites = recorded_suites()
    change = _ABLATIONS.get(options.without)
    if change is not None:
        suites = list(map(change, suites))
    gpus, hosts = {suite.gpu for suite in suites}, {suite.host for suite in suites}
    print(
        f"{len(suites)} processes on {len(gpus)} GPUs of {len(hosts)} hosts; unchanged code, judged as a strict run"
    )
    of_one, confirmed = [], []
    for name, pairs in designs(suites):
        if options.design in name:
            of_one.append(print_design(name, pairs, show=options.show))
            confirmed.append(print_confirmed(name, trials(pairs, suites)))
    if of_one:
        print_table("no time suspected", of_one)
        print_table("suspected → red", confirmed)
    print_parts(suites, options, change)


def print_parts(
    suites: Sequence[Suite],
    options: argparse.Namespace,
    change: Callable[[Suite], Suite] | None,
) -> None:
    """Print the designs that use other data than the recorded suites."""
    if options.design in ("", "later"):
        files = [each for file in options.files for each in sorted(file.rglob(NAME))]
        print_later(suites, keep_later(files) if options.keep else files, show=options.show)
    if change is None and options.design in ("", "pairs"):
        print_pairs(suites, are_paired=options.without != "pairs")
        print_cpu_pairs()
    if change is None and options.design in ("", "pieces"):
        print_pieces()
    if not options.design:
        print_other_suites(change or (lambda suite: suite), show=options.show)
        if change is None:
            print_two_sides(suites)


def print_later(suites: Sequence[Suite], files: Sequence[Path] = (), *, show: bool) -> None:
    """Judge runs that no number of the rule was chosen on, on GPUs that no other run has: those
    that are kept, and files of results.
    """

    later, models = (
        later_suites(folder, [each for each in files if _folder(each) == folder])
        for folder in _LATER.values()
    )
    committed = tuple(each for each in suites if each.is_committed)
    known = [each for each in model_suites() if not is_h100(each)]
    pairs: dict[str, Sequence[Pair]] = {
        "later, committed baselines": [(one, committed) for one in later],
        "later, a baseline of one process": [(one, (it,)) for one in later for it in suites],
        "models, committed baselines": [(one, tuple(known)) for one in models],
        "models, a baseline of one process": [(one, (it,)) for one in models for it in known],
    }
    rows = [print_design(name, each, show=show) for name, each in pairs.items() if each]
    print_table("no time suspected", rows)
    for name, each in pairs.items():
        # of GPUs that two processes are kept of
        if found := trials(each, later if name.startswith("later") else models):
            print_confirmed(name, found)


def _folder(path: Path) -> str:
    """Return the folder of `benchmarks/data` for a file of results. Empty: of no suite of ours."""
    found = {_LATER.get(each, "") for each in read_runs(path).suites.values()}
    return found.pop() if len(found) == 1 else ""


def keep_later(files: Sequence[Path]) -> list[Path]:
    """Keep the runs of files of results in `benchmarks/data`, and return the files that were not
    kept.
    """
    for path in files:
        found = read_runs(path)
        if folder := _folder(path):
            name = f"h200-{found.runs[0].gpu}-{found.started_at.replace(':', '')[:17]}.json.gz"
            keep_runs(found, DATA / folder / name)
    return [each for each in files if not _folder(each)]


def is_h100(suite: Suite) -> bool:
    return "H100" in next(iter(suite.runs.values())).fingerprint.device


def print_pieces() -> None:
    """Judge pieces of recorded calls, of a few short kernels each, by those of one other process."""
    models = later_suites("later_models")[:2]
    cases = {
        "the gallery, one GPU": [_on_an_h200(each) for each in side_by_side_suites()],
        "whole models, two GPUs that no number was chosen on": models,
    }
    usual = timing.NOISES["GPU time"].step_us
    for (name, sides), size, step_us in product(cases.items(), _PIECES, (usual, 0.0)):
        found: dict[float, list[bool]] = defaultdict(list)
        one, other = sides
        noises = {
            each: msgspec.structs.replace(timing.NOISES[each], step_us=step_us)
            for each in ("GPU time", "unknown GPU")
        }
        with patch.dict(timing.NOISES, noises):
            for (before, after), slower in product(
                _pieces(one, other, size), (0.0, 0.01, 0.03, 0.1)
            ):
                now, baseline = (
                    slower_run(after, slower, (Timer.DEVICE,)),
                    from_run(before, suite=""),
                )
                verdict = judge_time(Timer.DEVICE, [now], baseline, Context(7 * len(CALL_TIMERS)))
                found[slower].append(verdict.status is Status.REGRESSED)
        shares = ", ".join(f"{it:+.0%} {100 * fmean(found[it]):.0f} %" for it in found if it)
        print(
            f"pieces of {size} short kernels, {name}, steps of {step_us:.2f} us: {sum(found[0.0])} of"
            f" {len(found[0.0])} suspected; caught {shares}"
        )


def _on_an_h200(suite: Suite) -> Suite:
    """Return it as if it had run on an H200, whose noise is known."""

    def change(run: Run) -> Run:
        fingerprint = msgspec.structs.replace(run.fingerprint, device="NVIDIA H200")
        return msgspec.structs.replace(run, fingerprint=fingerprint)

    return _map_runs(suite, change)


def _pieces(one: Suite, other: Suite, size: int) -> Iterator[tuple[Run, Run]]:
    """Yield pieces of both sides. The times of their kernels are those of the profile, and their
    replicates scatter by 0.2 %.
    """
    for name in one.runs.keys() & other.runs.keys():
        pairs = [
            pair
            for pair in zip(one.runs[name].kernels, other.runs[name].kernels, strict=False)
            if pair[0].identity == pair[1].identity and pair[0].device_time_us < _SHORT_US
        ]
        for first in range(0, len(pairs) - size + 1, size):
            yield tuple(  # type: ignore[misc]  # of two
                _piece(side.runs[name], [pair[number] for pair in pairs[first : first + size]])
                for number, side in enumerate((one, other))
            )


def _piece(run: Run, kernels: Sequence[KernelRecord]) -> Run:
    us = math.fsum(each.device_time_us for each in kernels)
    sample = Sample(tuple(us * (1 + each) for each in (-0.002, 0.002) * 4), 12)
    return msgspec.structs.replace(run, kernels=tuple(kernels), samples={Timer.DEVICE: sample})


def print_two_sides(suites: Sequence[Suite]) -> None:
    print_two_sets(suites, 3)
    print_two_sets(suites, 5)
    print_two_sets(archived_suites(), 6)
    for path in sorted((DATA / "bisection").glob("*.jsonl.xz")):
        print_looks(path)
    for device in ("Any GPU", "NVIDIA H200"):
        for processes in (1, 10):
            print_noisy(device, processes)


def print_other_suites(change: Callable[[Suite], Suite], *, show: bool) -> None:
    """Print designs of a busy host, of an earlier benchmark, and of a GPU model that the rule knows
    nothing of.
    """
    archive, h100 = (list(map(change, each)) for each in (archived_suites(), h100_suites()))
    busy, known = (list(map(change, each)) for each in busy_suites())
    print_design("busy host, full matrix", [(one, tuple(known)) for one in busy], show=show)
    print(
        f"{len(archive)} processes of the detection benchmark on 2 GPUs: of the rule only the factor of a fast host comes from them"
    )
    rows = []
    for name, pairs in designs(archive)[:3]:
        rows.append(print_design(name, pairs, show=show))
        print_confirmed(name, trials(pairs, archive))
    print_table("no time suspected", rows)
    first, again = side_by_side_suites()
    print_design(
        "gallery on an H100 beside another suite", [(change(again), (change(first),))], show=show
    )
    print(f"{len(h100)} processes of three H100s, a model whose noise the rule does not know")
    every: list[Pair] = [(a, (b,)) for a in h100 for b in h100 if a.gpu != b.gpu]
    asked = [each for each in designs(h100)[:5] if "GPU," in each[0] or "leave" in each[0]]
    asked += [("another GPU, a baseline of one process", every)]
    rows = [print_design(name, pairs, show=show) for name, pairs in asked if pairs]
    print_table("no time suspected", rows)


# -- designs ---------------------------------------------------------------------------------------


def designs(suites: Sequence[Suite]) -> list[tuple[str, list[Pair]]]:
    """Return a name and the pairs of each design."""

    def others(keep: Callable[[Suite, Suite], bool]) -> list[Pair]:
        pairs = [
            (one, tuple(each for each in suites if each is not one and keep(one, each)))
            for one in suites
        ]
        return [pair for pair in pairs if pair[1]]

    same = others(lambda one, each: one.gpu == each.gpu)
    committed = tuple(each for each in suites if each.is_committed)
    eight = tuple(each for each in suites if each.name.startswith("eight/"))
    unknown: list[Pair] = [
        (one, (each,)) for one in suites for each in suites if one.gpu != each.gpu
    ]
    return [
        ("same GPU, all its other processes", same),
        (
            "same GPU, a baseline of one process",
            [(one, (each,)) for one, known in same for each in known],
        ),
        (
            "same GPU, a baseline of four",
            [(one, known[:4]) for one, known in same if len(known) >= 4],
        ),
        (
            "this GPU and all others known",
            [(one, tuple(e for e in suites if e is not one)) for one, _ in same],
        ),
        ("leave one GPU out", others(lambda one, each: one.gpu != each.gpu)),
        ("leave one host out", others(lambda one, each: one.host != each.host)),
        ("committed baselines", [(one, committed) for one in suites if not one.is_committed]),
        (
            "a baseline of eight GPUs of one host",
            [(one, eight) for one in suites if one not in eight],
        ),
        ("another GPU, a baseline of one process", unknown[::7]),
    ]


@lru_cache(maxsize=4096)
def _baseline(known: tuple[Suite, ...], workload: str) -> Baseline | None:
    return baseline_of(known, workload)


def context_of(suite: Suite, known: Callable[[str], Baseline | None]) -> Context:
    """Return the workloads of a suite with their baselines, as the rule sees them beside one
    another.
    """
    pairs = ((run, known(workload)) for workload, run in suite.runs.items())
    judged = ((run, baseline) for run, baseline in pairs if baseline is not None)
    return Context(len(suite.runs) * len(CALL_TIMERS), judged)


@lru_cache(maxsize=64)
def _context(suite: Suite, known: tuple[Suite, ...]) -> Context:
    return context_of(suite, partial(_baseline, known))


def judged(
    suite: Suite, known: Callable[[str], Baseline | None], *timers: Timer
) -> Iterator[Verdict]:
    """Yield the verdict of each time of a suite."""
    context = context_of(suite, known)
    for workload, run in suite.runs.items():
        baseline = known(workload)
        if baseline is None:
            continue
        for timer in timers or tuple(run.judged_timers):
            yield judge_time(timer, [run], baseline, context)


def print_table(head: str, rows: Sequence[Sequence[str]]) -> None:
    sizes = {
        name: " / ".join(f"+{100 * size:g}" for size in sizes)
        for name, (*_, sizes) in _COLUMNS.items()
    }
    heads = ["design", head, *(f"{name} {levels} %" for name, levels in sizes.items())]
    for cells in (heads, ["---"] * len(heads), *rows):
        print(f"| {' | '.join(cells)} |")
    print()


def _cells(caught: Mapping[tuple[Timer, bool, float], Sequence[Any]]) -> Iterator[str]:
    """Yield for each column the shares that were caught: of one process, or also after a fresh one."""
    for timer, short, sizes in _COLUMNS.values():
        found = [np.mean(caught[timer, short, size], axis=0) for size in sizes
                 if (timer, short, size) in caught]  # fmt: skip
        shares = (" → ".join(f"{100 * share:.0f}" for share in np.atleast_1d(it)) for it in found)
        yield f"{' / '.join(shares)} %" if found else "not judged"


def print_design(name: str, pairs: Sequence[Pair], *, show: bool) -> list[str]:
    """Print how many suites are green, and the share of slowdowns that is caught. Return the row of
    a table.
    """
    counts: Counter[str] = Counter()
    caught: dict[tuple[Timer, bool, float], list[bool]] = defaultdict(list)
    sensitivities: dict[tuple[Timer, bool], list[float]] = defaultdict(list)
    for suite, known in pairs:
        verdicts = list(judged(suite, partial(_baseline, known)))
        count(counts, verdicts, show=show, name=suite.name)
        for verdict in verdicts:
            if verdict.change is None or verdict.change.sensitivity is None or is_choice(verdict):
                continue
            timer = next(each for each in CALL_TIMERS if each.label == verdict.subject)
            short = is_short(suite.runs[verdict.workload])
            sensitivities[timer, short].append(verdict.change.sensitivity)
            baseline = _baseline(known, verdict.workload)
            for slower in _SLOWER[timer]:
                one = Suite(
                    suite.name,
                    suite.host,
                    suite.gpu,
                    {verdict.workload: suite.runs[verdict.workload]},
                )
                context = _context(suite, known)
                (slowed,) = _judge_one(one.slower(slower, timer), baseline, timer, context)
                caught[timer, short, slower].append(slowed.status is Status.REGRESSED)
    print_counts(name, counts)
    for timer in CALL_TIMERS:
        for short in (False, True):
            found = sensitivities[timer, short]
            if found:
                levels = "  ".join(
                    f"{slower:+.1%} {100 * fmean(caught[timer, short, slower]):.0f} %"
                    for slower in _SLOWER[timer]
                )
                kind = "short kernels" if short else "MLPs"
                print(
                    f"    {timer.label:<14}{kind:<14} caught {levels};  median sensitivity {100 * median(found):.2f} %"
                )
    return [
        name,
        f"{counts['suites'] - counts['REGRESSED']} of {counts['suites']}",
        *_cells(caught),
    ]


def _judge_one(
    suite: Suite, baseline: Baseline | None, timer: Timer, context: Context
) -> Iterator[Verdict]:
    (run,) = suite.runs.values()
    assert baseline is not None
    yield judge_time(timer, [run], baseline, context)


# -- confirmation by a fresh process ---------------------------------------------------------------


def trials(pairs: Sequence[Pair], suites: Sequence[Suite]) -> list[Trial]:
    """Return the pairs with the next process of the same GPU, which the baseline lacks, as the
    fresh one.
    """
    found: list[Trial] = []
    for suite, known in pairs:
        place = suites.index(suite)
        others = [each for each in (*suites[place + 1 :], *suites[:place]) if each.gpu == suite.gpu]
        fresh = next((each for each in others if each not in known), next(iter(others), None))
        left = tuple(each for each in known if each is not fresh)
        found += [(suite, left, fresh)] if fresh is not None and left else []
    return found


def print_confirmed(name: str, found: Sequence[Trial]) -> list[str]:
    """Print how many suites are red, and the share of slowdowns that is caught, before and after a
    fresh process. Return the row of a table.
    """
    red: Counter[str] = Counter()
    caught: dict[tuple[Timer, bool, float], list[tuple[bool, bool]]] = defaultdict(list)
    for trial in found:
        alarms: list[tuple[bool, bool]] = []
        for (timer, short, slower), verdict, is_red in _confirmed(*trial):
            if is_choice(verdict):
                continue
            if not slower:
                alarms.append(is_red)
            elif verdict.change is not None and verdict.change.sensitivity is not None:
                caught[timer, short, slower].append(is_red)
        red.update(
            before=any(before for before, _ in alarms), after=any(after for _, after in alarms)
        )
    print(
        f"{name}, a fresh process confirms: REGRESSED {red['before']} -> {red['after']} of {len(found)}"
    )
    for timer, short in dict.fromkeys(
        (timer, short) for timer, short, _ in sorted(caught, key=str)
    ):
        levels = []
        for slower in _SLOWER[timer]:
            before, after = (
                100 * fmean(side) for side in zip(*caught[timer, short, slower], strict=True)
            )
            levels.append(f"{slower:+.1%} {before:.0f} -> {after:.0f} %")
        print(
            f"    {timer.label:<14}{'short kernels' if short else 'MLPs':<14} caught {'  '.join(levels)}"
        )
    return [name, f"{red['before']} → {red['after']} of {len(found)}", *_cells(caught)]


def _confirmed(
    suite: Suite, known: tuple[Suite, ...], fresh: Suite
) -> Iterator[tuple[tuple[Timer, bool, float], Verdict, tuple[bool, bool]]]:
    """Yield each time and slowdown with its verdict, and whether it is red before and after the
    fresh process.
    """
    context = _context(suite, known)
    for workload, run in suite.runs.items():
        if (baseline := _baseline(known, workload)) is None:
            continue
        again = fresh.runs.get(workload)
        for timer in run.samples:
            for slower in (0.0, *_SLOWER[timer]):
                one = slower_run(run, slower, (timer,))
                verdict = judge_time(timer, [one], baseline, context)
                before = after = verdict.status is Status.REGRESSED
                if before and again is not None and timer in again.samples:
                    other = slower_run(again, slower, (timer,))
                    after = (
                        confirm(verdict, timer, one, other, baseline, context).status
                        is Status.REGRESSED
                    )
                yield (timer, is_short(run), slower), verdict, (before, after)


def count(counts: Counter[str], verdicts: Sequence[Verdict], *, show: bool, name: str) -> None:
    """Add one suite to the counts."""
    regressed = [
        each for each in verdicts if each.status is Status.REGRESSED and not is_choice(each)
    ]
    undecided = [each for each in verdicts if each.status is Status.UNDECIDED]
    choice = any(each.status is Status.REGRESSED and is_choice(each) for each in verdicts)
    counts["suites"] += 1
    counts["REGRESSED"] += bool(regressed)
    counts["UNDECIDED"] += bool(undecided)
    counts["IMPROVED"] += any(each.status is Status.IMPROVED for each in verdicts)
    counts["choice"] += choice
    counts["green"] += not (regressed or undecided)
    for each in (*regressed, *undecided) if show else ():
        print(f"  {name}: {each}")


def print_counts(name: str, counts: Mapping[str, int]) -> None:
    total = counts["suites"]
    print(
        f"{name}: green {counts['green']} of {total} ({100 * counts['green'] / total:.1f} %), REGRESSED {counts['REGRESSED']}, "
        f"UNDECIDED {counts['UNDECIDED']}, IMPROVED {counts['IMPROVED']}; "
        f"a slower choice of the autotuner in {counts['choice']}"
    )


def is_choice(verdict: Verdict) -> bool:
    """Whether a time moved with an autotuner's choice: recorded processes chose anew."""
    causes = [each.change for each in verdict.reasons if isinstance(each, Cause)]
    return any(getattr(each, "is_autotuned", False) for each in causes)


def is_short(run: Run) -> bool:
    return sum(kernel.device_time_us for kernel in run.kernels) < _SHORT_US


# -- two sets of processes in turns, as `kernelgauge compare` judges them --------------------------


def print_two_sets(suites: Sequence[Suite], processes: int) -> None:
    """Judge both sides of each window by the other, as they are and slower on purpose."""
    counts: Counter[str] = Counter()
    caught: dict[tuple[Timer, bool, float], list[bool]] = defaultdict(list)
    undecided: Counter[str] = Counter()
    compared = 0
    for before, after in _turns(suites, processes):
        judged_sets = list(_two_sets(before, after))
        count(
            counts,
            [verdict for each in judged_sets for verdict in each.verdicts],
            show=False,
            name="",
        )
        undecided.update(label for each in judged_sets for label in each.undecided)
        compared += len(judged_sets)
        for timer, slower in (
            (timer, slower) for timer, levels in _SLOWER.items() for slower in levels
        ):
            slowed = [each.slower(slower, timer) for each in after]
            for verdict in (each for found in _two_sets(before, slowed) for each in found.verdicts):
                if verdict.subject == timer.label:
                    short = is_short(after[0].runs[verdict.workload])
                    caught[timer, short, slower].append(verdict.status is Status.REGRESSED)
    print_counts(f"compare, {processes} processes of each side", counts)
    more = ", ".join(
        f"{timer.label} {undecided[timer.label]}" for timer in (Timer.DEVICE, Timer.HOST)
    )
    print(f"    asks for more processes, of {compared} workloads: {more}")
    for timer, short in dict.fromkeys((timer, short) for timer, short, _ in caught):
        shares = "  ".join(
            f"{slower:+.1%} {100 * fmean(caught[timer, short, slower]):.0f} %"
            for slower in _SLOWER[timer]
        )
        print(f"    {timer.label:<14}{'short kernels' if short else 'MLPs':<14} caught {shares}")


def _turns(suites: Sequence[Suite], processes: int) -> Iterator[tuple[list[Suite], list[Suite]]]:
    """Yield both sides of processes that ran one after another on one GPU, split A B B A; then the
    other way round.
    """
    by_gpu: dict[str, list[Suite]] = defaultdict(list)
    for suite in suites:
        by_gpu[suite.gpu].append(suite)
    for own in by_gpu.values():
        for first in range(len(own) - 2 * processes + 1):
            window = own[first : first + 2 * processes]
            one = [each for place, each in enumerate(window) if place % 4 in (0, 3)]
            other = [each for place, each in enumerate(window) if place % 4 in (1, 2)]
            yield from ((one, other), (other, one))


def _two_sets(before: Sequence[Suite], after: Sequence[Suite]) -> Iterator[JudgedSet]:
    comparisons = LOOKS * len(after[0].runs) * len(CALL_TIMERS)
    for workload in after[0].runs:
        sides = [
            [suite.runs[workload] for suite in side if workload in suite.runs]
            for side in (before, after)
        ]
        if all(sides):
            yield judge_sets(
                workload, *sides, comparisons=comparisons, names=("one side", "the other")
            )


def print_pairs(suites: Sequence[Suite], *, are_paired: bool) -> None:
    """Run `compare` to its end through processes in the order in which they were recorded, forth
    and back.

    The side of each process is drawn, so drift and lasting changes reach both sides.
    """
    by_gpu: dict[str, list[Suite]] = defaultdict(list)
    for suite in (*suites, *archived_suites()):
        by_gpu[suite.gpu].append(suite)
    own = [sorted(each, key=_place) for each in by_gpu.values() if len(each) >= _FEWEST_DRAWN]
    print(
        f"compare --processes N through {sum(map(len, own))} processes of {len(own)} GPUs, in recorded order;"
        f" {_WALKS} comparisons on each"
    )
    mlps = [name for name in own[0][0].runs if not is_short(own[0][0].runs[name])]
    for most in (12, 15):
        for slower, names, drift in (
            (0.0, (), 0.0),
            (0.0, (), _DRIFT),
            (0.0025, mlps[:1], 0.0),
            (0.0025, mlps, 0.0),
            (0.0025, mlps, _DRIFT),
        ):
            chance, moved, caught, used = random.Random(0), 0, list[bool](), list[int]()
            for processes in (each for each in own for _ in range(_WALKS)):
                sides = _walk(processes, most, chance, slower, names, drift=drift)
                found, pairs = _compared(*sides, most, are_paired=are_paired)
                red = {name: _has_moved(each) for name, each in found.items()}
                moved += any(is_red for name, is_red in red.items() if name not in names)
                caught += [red[name] for name in names if name in red]
                used.append(pairs)
            shares = f", caught {100 * fmean(caught):.0f} % of {len(caught)}" if caught else ""
            print(
                f"    at most {most:2} pairs, drift {drift:.1%}, {len(names)} MLPs {slower:+.2%}: an unchanged workload moved in"
                f" {moved} of {len(used)}{shares}; {fmean(used):.1f} pairs"
            )


def print_cpu_pairs() -> None:
    """Likewise on a CPU, whose latencies alone are judged: quiet, and beside the jobs of others."""
    for folder in ("cpu", "cpu_shared"):
        processes = list(read_suites(sorted((DATA / folder).glob("*.json.gz")), "cpu"))
        names = list(processes[0].runs)
        print(
            f"compare on a CPU, through {len(processes)} processes of {folder}, in recorded order"
        )
        for slower in (0.0, 0.25, 0.5):
            chance, statuses, used, red = random.Random(0), Counter[str](), list[int](), 0
            for _ in range(5 * _WALKS):
                sides = _walk(processes, 12, chance, slower, names, Timer.END_TO_END)
                found, pairs = _compared(*sides, 12)
                statuses.update(each.verdicts[-1].status.value for each in found.values())
                red += any(map(_has_moved, found.values()))
                used.append(pairs)
            shares = ", ".join(
                f"{status} {100 * number / statuses.total():.0f} %"
                for status, number in statuses.most_common()
            )
            print(
                f"    latency {slower:+.0%}: moved in {red} of {len(used)}; of {statuses.total()} times {shares};"
                f" {fmean(used):.1f} pairs"
            )


def _place(suite: Suite) -> list[int]:
    """Return the numbers of a recorded process: its place in the order of its GPU."""
    return [int(each) for each in re.findall(r"\d+", suite.name)]


def _walk(
    processes: Sequence[Suite],
    pairs: int,
    chance: random.Random,
    slower: float,
    names: Sequence[str],
    timer: Timer = Timer.DEVICE,
    drift: float = 0.0,
) -> tuple[list[Suite], list[Suite]]:
    """Return both sides of a comparison of neighbours. In the second one, a time of some workloads
    is slower. Its whole length drifts.
    """
    there_and_back = [*processes, *processes[-2:0:-1]]
    first = chance.randrange(len(there_and_back))
    sides: tuple[list[Suite], list[Suite]] = ([], [])
    for place in range(2 * pairs):
        if not place % 2:
            order = chance.sample((0, 1), 2)
        suite = there_and_back[(first + place) % len(there_and_back)]
        side, factor = order[place % 2], math.exp(drift * place / (2 * pairs))
        runs = {
            name: slower_run(run, factor * (1 + slower * (side and name in names)) - 1, (timer,))
            for name, run in suite.runs.items()
        }
        sides[side].append(Suite(suite.name, suite.host, suite.gpu, runs))
    return sides


def _compared(
    before: Sequence[Suite], after: Sequence[Suite], most: int, *, are_paired: bool = True
) -> tuple[dict[str, JudgedSet], int]:
    """Return what `compare` finds of each workload, and after how many pairs it ends."""
    found: dict[str, JudgedSet] = {}
    steps: dict[str, list[float]] = {}
    names = [
        name for name in before[0].runs if all(name in each.runs for each in (*before, *after))
    ]
    comparisons, left = LOOKS * len(names) * len(CALL_TIMERS), names
    for look in sorted(looks(most)):
        sides = {
            name: [[each.runs[name] for each in side[:look]] for side in (before, after)]
            for name in left
        }
        steps |= {name: pair_steps(*each) for name, each in sides.items()}
        for name, each in sides.items():
            others = [its for other, its in steps.items() if other != name]
            beside = others if are_paired else None
            found[name] = judge_sets(
                name, *each, comparisons=comparisons, names=("a", "b"), beside=beside
            )
        left = [name for name in left if found[name].undecided]
        if not left:
            break
    return found, look


def _has_moved(judged: JudgedSet) -> bool:
    return any(each.status in (Status.REGRESSED, Status.IMPROVED) for each in judged.verdicts)


def print_looks(path: Path) -> None:
    """Judge halves of the processes that do the same on the host, and look after 3, 6 and all, as
    `compare` does.
    """
    states = read_states(path)
    host = [
        msgspec.structs.replace(
            each.run, kernels=(), samples={Timer.HOST: each.run.samples[Timer.HOST]}
        )
        for state in ("device-good", "device-bad")  # which differ on the GPU only
        for each in states[state]
        if each.run is not None
    ]
    half, chance = len(host) // 2, random.Random(0)
    for slower in (0.0, *_SLOWER[Timer.HOST]):
        statuses: Counter[Status] = Counter()
        used = 0
        for _ in range(_SPLITS):
            shuffled = chance.sample(host, 2 * half)
            after = [slower_run(run, slower, (Timer.HOST,)) for run in shuffled[half:]]
            for look in (3, 6, half):
                comparisons = LOOKS * 7 * len(CALL_TIMERS)  # of the default suite
                found = judge_sets(
                    "host",
                    shuffled[:look],
                    after[:look],
                    comparisons=comparisons,
                    names=("one", "other"),
                )
                if not found.undecided:
                    break
            statuses[found.verdicts[-1].status] += 1
            used += look
        shares = ", ".join(
            f"{status.value} {100 * count / _SPLITS:.1f} %" for status, count in statuses.items()
        )
        print(
            f"compare, {path.stem}, dispatch {slower:+.0%}: {shares}; {used / _SPLITS:.1f} processes of each side"
        )


# -- a noisy machine -------------------------------------------------------------------------------


def print_noisy(device: str, processes: int) -> None:
    """Judge simulated suites whose GPU times spread four times as far as an H200's.

    Any GPU but an H200 has no data of its own, and so wide priors.
    """
    chance = random.Random(processes)
    (source, *_) = read_suites(sorted((DATA / "nine_processes").glob("*.json.gz"))[:1], "simulated")
    fingerprint = msgspec.structs.replace(
        next(iter(source.runs.values())).fingerprint, device=device
    )
    counts: Counter[str] = Counter()
    for _ in range(_SIMULATED):
        known = tuple(_simulated(source, fingerprint, chance) for _ in range(processes))
        suite = _simulated(source, fingerprint, chance)
        verdicts = list(judged(suite, partial(baseline_of, known)))
        count(counts, verdicts, show=False, name="")
    print_counts(
        f"simulated {device}, {_NOISY} times as noisy as our H200s, {processes} process(es)", counts
    )


def _simulated(source: Suite, fingerprint: object, chance: random.Random) -> Suite:
    runs: dict[str, Run] = {}
    for name, run in source.runs.items():
        samples: dict[Timer, Sample] = {}
        for timer, sample in run.samples.items():
            spread = _SPREADS[timer]
            if timer is Timer.DEVICE:
                spread = _NOISY * (_SHORT_SPREAD if is_short(run) else spread)
            off = math.exp(chance.gauss(0, spread))
            samples[timer] = msgspec.structs.replace(
                sample, replicates_us=tuple(off * us for us in sample.replicates_us)
            )
        runs[name] = msgspec.structs.replace(run, samples=samples, fingerprint=fingerprint)
    return Suite("simulated", "simulated", source.gpu, runs)


# -- ablations: what the rule knows is removed from the data ----------------------------------------


def _map_runs(suite: Suite, change: Callable[[Run], Run], *, host: str | None = None) -> Suite:
    runs = {name: change(run) for name, run in suite.runs.items()}
    return Suite(suite.name, host or suite.host, suite.gpu, runs, suite.is_committed)


def _map_samples(suite: Suite, change: Callable[[Timer, Sample], Sample]) -> Suite:
    return _map_runs(
        suite,
        lambda run: msgspec.structs.replace(
            run, samples={timer: change(timer, sample) for timer, sample in run.samples.items()}
        ),
    )


def _without_control(*names: str) -> Callable[[Suite], Suite]:
    def change(run: Run) -> Run:
        kept = {name: control for name, control in run.controls.items() if name not in names}
        return msgspec.structs.replace(run, controls=kept)

    return lambda suite: _map_runs(suite, change)


def _without_twins(suite: Suite) -> Suite:
    """Give each workload kernels that no other one runs."""

    def change(run: Run) -> Run:
        names = (
            msgspec.structs.replace(each.identity, name=f"{run.workload} {each.identity.name}")
            for each in run.kernels
        )
        pairs = zip(run.kernels, names, strict=True)
        return msgspec.structs.replace(
            run, kernels=tuple(msgspec.structs.replace(one, identity=it) for one, it in pairs)
        )

    return _map_runs(suite, change)


def _without_hosts(suite: Suite) -> Suite:
    return _map_runs(suite, lambda run: msgspec.structs.replace(run, host=None))


def _without_host_reference(suite: Suite) -> Suite:
    return _map_samples(
        suite,
        lambda _, sample: msgspec.structs.replace(
            sample, controls_us=tuple(1.0 for _ in sample.controls_us)
        ),
    )


def _without_scatter(suite: Suite) -> Suite:
    """Forget how far the replicates of a process scatter."""

    def change(timer: Timer, sample: Sample) -> Sample:
        seen = observe(sample, is_by_host=timer is Timer.HOST)
        controls = () if seen.control_us is None else (seen.control_us,) * seen.replicates
        return Sample((seen.mean_us,) * seen.replicates, sample.iterations, controls)

    return _map_samples(suite, change)


def _without_fast_host(suite: Suite) -> Suite:
    """Take all replicates, on a slow host too, as one."""

    def change(_: Timer, sample: Sample) -> Sample:
        if not sample.controls_us:
            return sample
        logs = [
            math.log(us / control)
            for us, control in zip(sample.replicates_us, sample.controls_us, strict=True)
        ]
        control = math.exp(fmean(map(math.log, sample.controls_us)))
        times = tuple(math.exp(log) * control for log in logs)
        return Sample(times, sample.iterations, (control,) * len(times))

    return _map_samples(suite, change)


_ABLATIONS: dict[str, Callable[[Suite], Suite]] = {
    "gemm": _without_control("gemm"),
    "copy": _without_control("copy"),
    "machine": _without_control("gemm", "copy"),
    "twins": _without_twins,
    "hosts": _without_hosts,
    "host-reference": _without_host_reference,
    "fast-host": _without_fast_host,
    "scatter": _without_scatter,
}


if __name__ == "__main__":
    main()
