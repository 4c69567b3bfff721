"""How often `kernelgauge check-trace` is wrong on two H200s, by value of each constant of its rules.

    python benchmarks/steps.py                        tables from the kept steps, and one from runs
    of a later day python benchmarks/steps.py --keep FOLDER ... --to FILE    write kept steps from
    folders of FOLDER/run*/rank*.json.gz

A baseline is one run of unchanged code, or three. An alarm is another unchanged run that fails; a
miss is a run with a change that passes. `wait`, `late`: the example lost its overlap on purpose.
The other changes are made here, from unchanged runs: `stall`, steps take longer; `kernel`, `phase`,
`all`, kernels take longer; `of 4 steps`, another kernel and a wait in so many steps; `lost`, so
much less of the communication has kernels beside it; `rank late`, rank 1 by a third of its kernels.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from statistics import geometric_mean, stdev

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernelgauge.cli.traces import read_trace
from kernelgauge.judge import steps as judging
from kernelgauge.judge import timing
from kernelgauge.judge.baseline import Recorded
from kernelgauge.judge.trace_baseline import TraceBaseline, trace_baseline
from kernelgauge.run import KERNELS_OF_STEP, Timing
from kernelgauge.trace import steps as finding
from kernelgauge.trace.steps import StepRow, Steps, StepTrace

KEPT = Path(__file__).parent / "data" / "steps_h200.json.xz"
LISTS = ("wall_us", "compute_us", "communication_us", "exposed_us", "behind")
# of two other GPUs: no constant was chosen on them
UNSEEN = KEPT.with_name("steps_h200_unseen.json.xz")
# Folders of either file.
UNCHANGED = {"ddp": ("ddp-a", "ddp-b", "ddp-quiet", "ddp-loaded", "ddp-c", "ddp-d"),
             "fsdp": ("fsdp-a", "fsdp-quiet", "fsdp-b", "fsdp-c", "fsdp-d")}  # fmt: skip
BASELINES, RUNS = 24, 3  # baselines drawn for each job, and runs in each
SEED = 20261128
KERNELS, SIMULATED = 300, 400

Job = Mapping[int, StepTrace]


# -- the kept steps --------------------------------------------------------------------------------


def keep(folders: Sequence[Path], file: Path) -> None:
    """Write the steps of all traces in these folders, without names of files."""
    rows: dict[StepRow, int] = {}
    traces = []
    for path in sorted(path for folder in folders for path in folder.glob("run*/rank*.json.gz")):
        trace = finding.find_steps(read_trace(path))
        run = "/".join(path.parts[-3:-1])
        for kind, steps in trace.steps.items():
            numbered = [
                [[rows.setdefault(row, len(rows)), count] for row, count in each.items()]
                for each in steps.counts
            ]
            times = [
                [rows.setdefault(row, len(rows)), round(us, 3)] for row, us in steps.row_us.items()
            ]
            lists = {name: [round(each, 3) for each in getattr(steps, name)] for name in LISTS}
            squares = [[rows[row], round(square, 3)] for row, square in steps.row_squares.items()]
            each = {"run": run, "rank": trace.rank or 0, "kind": kind, "counts": numbered, "row_us": times,
                    "row_squares": squares, **lists}  # fmt: skip
            traces.append(each)
    content = json.dumps({"rows": list(rows), "traces": traces}, separators=(",", ":"))
    file.write_bytes(lzma.compress(content.encode()))


def read_kept(file: Path = KEPT) -> defaultdict[str, list[Job]]:
    """Return the runs of each folder."""
    data = json.loads(lzma.decompress(file.read_bytes()))
    rows = [StepRow(*each) for each in data["rows"]]
    runs: dict[str, dict[int, StepTrace]] = {}
    for each in data["traces"]:
        counts = [Counter({rows[row]: count for row, count in step}) for step in each["counts"]]
        steps = Steps(
            counts,
            Counter({rows[row]: us for row, us in each["row_us"]}),
            *(each[name] for name in LISTS),
        )
        steps.row_squares.update({rows[row]: square for row, square in each.get("row_squares", ())})
        trace = StepTrace(each["rank"], 2, "NVIDIA H200", (0.0, 1.0), "ProfilerStep#", {}, {}, ())
        job = runs.setdefault(each["run"], {})
        job.setdefault(each["rank"], trace).steps[each.get("kind", "")] = steps
    found: defaultdict[str, list[Job]] = defaultdict(list)
    for name, job in runs.items():
        found[name.split("/")[0]].append(job)
    return found


# -- changes ---------------------------------------------------------------------------------------


def with_change(job: Job, change: Callable[[Steps], None]) -> Job:
    job = deepcopy(job)
    for rank, trace in job.items():
        if change is not late or rank == 1:
            change(trace.steps[""])
    return job


def repeated(job: Job) -> Job:
    """Return a run of 32 steps: its four, again and again."""

    def repeat(steps: Steps) -> None:
        steps.counts = [Counter(step) for step in steps.counts * 8]
        steps.row_us = Counter({row: us * 8 for row, us in steps.row_us.items()})
        for name in LISTS:
            setattr(steps, name, getattr(steps, name) * 8)

    return with_change(job, repeat)


def slower(steps: Steps, factor: float, is_slower: Callable[[StepRow], bool]) -> None:
    """Let some kernels take longer. The step takes longer by as much."""
    old = steps.row_us
    more_us = (
        (factor - 1) * sum(us for row, us in old.items() if is_slower(row)) / len(steps.counts)
    )
    steps.row_us = Counter({row: us * (factor if is_slower(row) else 1) for row, us in old.items()})
    steps.compute_us = [us + more_us for us in steps.compute_us]
    steps.wall_us = [us + more_us for us in steps.wall_us]


def stalled(steps: Steps, factor: float) -> None:
    steps.wall_us = [us * factor for us in steps.wall_us]


def rare(steps: Steps, many: int) -> None:
    """Let another kernel and a wait run in some steps."""
    for step in steps.counts[:many]:
        for row in (
            StepRow("", "", "aten::abs", "pointwise", "abs"),
            StepRow("", "", "aten::item", "wait", "aten::item"),
        ):
            step[row] = 1
            steps.row_us[row] += 2


def exposed(steps: Steps, left: float) -> None:
    """Let so much of the overlap be left."""
    pairs = zip(steps.communication_us, steps.exposed_us, strict=True)
    steps.exposed_us = [total - left * (total - alone) for total, alone in pairs]


def late(steps: Steps) -> None:
    """Let a rank be late by a third of a step. The others wait for it, and not it for them."""
    steps.communication_us = [
        max(1.0, us - total / 3)
        for us, total in zip(steps.communication_us, steps.compute_us, strict=True)
    ]


def longest(steps: Steps) -> StepRow:
    kernels = (row for row in steps.row_us if row.kind not in ("communication", "wait"))
    return max(kernels, key=lambda row: steps.row_us[row])


def is_computing(row: StepRow) -> bool:
    return row.kind not in ("communication", "wait", "memcpy", "memset")


CHANGES: dict[str, Callable[[Steps], None]] = {
    "stall x1.5": lambda it: stalled(it, 1.5),
    "stall x2": lambda it: stalled(it, 2.0),
    "kernel +30 %": lambda it: slower(it, 1.3, longest(it).__eq__),
    "phase +30 %": lambda it: slower(
        it, 1.3, lambda row: is_computing(row) and row.phase == longest(it).phase
    ),
    "all +10 %": lambda it: slower(it, 1.1, is_computing),
    "all +30 %": lambda it: slower(it, 1.3, is_computing),
    "1 of 4 steps": lambda it: rare(it, 1),
    "2 of 4 steps": lambda it: rare(it, 2),
    "3/4 lost": lambda it: exposed(it, 0.25),
    "9/10 lost": lambda it: exposed(it, 0.1),
    "rank late": late,
}
LONG: dict[str, Callable[[Steps], None]] = {
    "2 of 32 steps": lambda it: rare(it, 2),
    "8 of 32 steps": lambda it: rare(it, 8),
}


# -- tables ----------------------------------------------------------------------------------------

# by change: the subject of the verdict on it, and the runs of a baseline
Columns = Mapping[str, tuple[str, int]]
Case = tuple[str, int]


def cases(
    kept: Mapping[str, Sequence[Job]], names: Collection[str], runs: int
) -> Iterator[tuple[str, Job, TraceBaseline]]:
    """Yield for each of these changes, and drawn baselines of so many runs, a run and the baseline
    to judge it by.
    """
    chance = random.Random(SEED)
    for job, folders in UNCHANGED.items():
        unchanged = [run for folder in folders for run in kept[folder]]
        lost = {
            "wait (DDP)": [*kept["ddp-wait"], *kept["ddp-wait-loaded"]] if job == "ddp" else [],
            "late (DDP)": kept["ddp-late"] if job == "ddp" else [],
            "wait (FSDP2)": kept["fsdp-wait"] if job == "fsdp" else [],
        }
        for _ in range(BASELINES):
            order = chance.sample(unchanged, len(unchanged))
            baseline = trace_baseline(order[:runs], Recorded("", None, ""))
            long = trace_baseline([repeated(run) for run in order[:runs]], Recorded("", None, ""))
            found = [("unchanged", run, baseline) for run in order[runs:]]
            found += [(name, run, baseline) for name, several in lost.items() for run in several]
            found += [
                (name, with_change(order[runs], change), baseline)
                for name, change in CHANGES.items()
                if name in names
            ]
            found += [(name, with_change(repeated(order[runs]), change), long)
                      for name, change in LONG.items() if name in names]  # fmt: skip
            yield from (each for each in found if each[0] in names)


def table(
    kept: Mapping[str, Sequence[Job]],
    constant: str,
    values: Sequence[float],
    subject: str,
    changes: Sequence[str],
) -> None:
    """Print alarms and misses by value of a constant: of verdicts on this subject, or that name a
    rank that is late.
    """
    columns = [("unchanged", 1), ("unchanged", RUNS), *((name, RUNS) for name in changes)]
    heads = [
        f"alarms, {runs} run{'s' * (runs > 1)}" if name == "unchanged" else f"missed: {name}"
        for name, runs in columns
    ]
    title = f"`{constant}`" if constant else "all constants"
    print(f"| {title} | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    usual = value_of(constant)
    for value in values or [usual]:
        set_value(constant, value)
        said, total = Counter[Case](), Counter[Case]()
        for runs in (1, RUNS):
            names = {name for name, count in columns if count == runs}
            for name, run, baseline in cases(kept, names, runs):
                verdicts = judging.judge_traces("job", [run], baseline)
                if subject == "straggler":
                    said[name, runs] += any(
                        getattr(why, "what", "") == subject for it in verdicts for why in it.reasons
                    )
                else:
                    said[name, runs] += any(
                        it.status.fails for it in verdicts if subject in ("", it.subject)
                    )
                total[name, runs] += 1
        cells = [
            f"{said[it] if it[0] == 'unchanged' else total[it] - said[it]} of {total[it]}"
            for it in columns
        ]
        shown = "as they are" if not constant else f"**{value}**" if value == usual else f"{value}"
        print(f"| {shown} | {' | '.join(cells)} |", flush=True)
    set_value(constant, usual)
    print()


def print_across(kept: Mapping[str, Sequence[Job]], later: Mapping[str, Sequence[Job]]) -> None:
    """Print the alarms of unchanged runs that are held to baselines of other GPUs, by the subject
    of the verdict.
    """
    chance, alarms, total = random.Random(SEED), Counter[str](), 0
    for folders in UNCHANGED.values():
        old, new = ([run for folder in folders for run in side[folder]] for side in (kept, later))
        for _ in range(BASELINES):
            baseline = trace_baseline(chance.sample(old, RUNS), Recorded("", None, ""))
            for run in new:
                failed = [
                    each
                    for each in judging.judge_traces("job", [run], baseline)
                    if each.status.fails
                ]
                alarms.update({each.subject for each in failed} | ({"any"} if failed else set()))
                total += 1
    print(f"Held to {RUNS} runs of the other GPUs, alarms in {total}: {dict(alarms)}")


def print_level() -> None:
    """Print how many simulated runs of 300 unchanged kernels have an alarm. Each kernel has a spread
    of its own, as the rule expects.
    """
    chance, noise = random.Random(SEED), timing.NOISES[KERNELS_OF_STEP.noise]
    rows = [StepRow("", "", "aten::mm", "gemm", f"kernel {number}") for number in range(KERNELS)]
    sizes = {row: 1000.0 / (1 + number) for number, row in enumerate(rows)}

    def simulated(spreads: Mapping[StepRow, float]) -> Job:
        us = {row: size * math.exp(chance.gauss(0, spreads[row])) for row, size in sizes.items()}
        steps = Steps(
            [Counter(rows) for _ in range(4)], Counter({row: 4 * it for row, it in us.items()})
        )
        steps.row_squares.update({row: 4 * it**2 for row, it in us.items()})
        steps.wall_us = steps.compute_us = [sum(us.values())] * 4
        steps.communication_us = steps.exposed_us = [0.0] * 4
        steps.behind = [0] * 4
        return {0: StepTrace(0, 1, "NVIDIA H200", (0.0, 1.0), "", {"": steps}, {}, ())}

    for runs in (1, RUNS):
        alarms = 0
        for _ in range(SIMULATED):
            spreads = {
                row: noise.process * math.sqrt(noise.dof / chance.gammavariate(noise.dof / 2, 2))
                for row in rows
            }
            jobs = [simulated(spreads) for _ in range(runs + 1)]
            baseline = trace_baseline(jobs[1:], Recorded("", None, ""))
            verdicts = judging.judge_traces("job", jobs[:1], baseline)
            alarms += any(each.status.fails for each in verdicts)
        print(f"{KERNELS} simulated kernels, {runs} runs: alarms in {alarms} of {SIMULATED}")


STEPS = ("1 of 4 steps", "2 of 4 steps", "2 of 32 steps", "8 of 32 steps")
TIMES = ("kernel +30 %", "phase +30 %", "all +10 %", "all +30 %")
OVERLAP = ("wait (DDP)", "late (DDP)", "3/4 lost", "9/10 lost")
STALLS = ("stall x1.5", "stall x2")
TABLES: list[tuple[str, Sequence[float], str, Sequence[str]]] = [
    ("", (), "", ("wait (DDP)", "late (DDP)", "wait (FSDP2)")),
    ("FALSE_ALARMS_PER_RUN", (0.0, 0.001, 0.01, 0.1), "structure", STEPS),
    ("KERNELS_OF_STEP.process", (0.003, 0.01, 0.03, 0.06), "GPU time", TIMES),
    ("KERNELS_OF_STEP.dof", (1.0, 4.0, 16.0), "GPU time", TIMES),
    ("KERNELS_OF_STEP.gate", (0.0, 0.02, 0.05, 0.1, 0.2), "GPU time", TIMES),
    ("_LEAST_SHARE", (0.0, 0.01, 0.03), "GPU time", TIMES),
    ("_LOST_OVERLAP", (0.1, 0.25, 0.5, 0.75, 1.0), "communication", OVERLAP),
    ("STEP.process", (0.01, 0.05, 0.1, 0.12, 0.15, 0.2), "step time", STALLS),
    ("STEP.dof", (1.0, 2.0, 3.0, 4.0), "step time", STALLS),
    ("STEP.gate", (0.0, 0.1, 0.25, 0.5), "step time", STALLS),
    ("_MORE_LAG", (0.0, 1.0, 2.0, 4.0), "straggler", ("rank late",)),
]


def value_of(constant: str) -> float:
    """Return the value of a constant of the judge, or of a column of a row of its table of times."""
    row, _, column = constant.partition(".")
    found = getattr(judging, row, 0.0)
    if isinstance(found, Timing):
        return float(getattr(found if column == "gate" else timing.NOISES[found.noise], column))
    return float(found)


def set_value(constant: str, value: float) -> None:
    row, _, column = constant.partition(".")
    found = getattr(judging, row, None)
    if isinstance(found, Timing) and column != "gate":
        timing.NOISES[found.noise] = msgspec.structs.replace(
            timing.NOISES[found.noise], **{column: value}
        )
    else:
        new = msgspec.structs.replace(found, gate=value) if isinstance(found, Timing) else value
        setattr(judging, row or "unused", new)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--to", type=Path, default=KEPT, metavar="FILE")
    parser.add_argument("--only", default="", metavar="CONSTANT", help="one table")
    options = parser.parse_args()
    if options.keep:
        keep(options.keep, options.to)
    else:
        kept = read_kept()
        for job, folders in UNCHANGED.items():
            runs = (run for folder in folders for run in kept[folder])
            logs = [
                math.log(max(geometric_mean(it.steps[""].wall_us) for it in run.values()))
                for run in runs
            ]
            print(
                f"{job}: step times of {len(logs)} unchanged runs spread by {100 * stdev(logs):.1f} %\n"
            )
        for each in TABLES:
            if options.only in ("", each[0]):
                table(kept, *each)
        print("Runs of a later day, on two other GPUs:\n")
        later = read_kept(UNSEEN)
        table(later, "", (), "", (*TIMES, "stall x2"))
        print_across(kept, later)
        print_level()


if __name__ == "__main__":
    main()
