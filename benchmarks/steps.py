"""How often `kernelgauge check` is wrong on two H200s, by value of each constant of its rules.

    python benchmarks/steps.py                        tables from the kept steps
    python benchmarks/steps.py --steps FILE ...       traces whose steps are found, by value of each constant that finds them
    python benchmarks/steps.py --keep FOLDER ...      write the kept steps from folders of examples/distributed/train.py

A baseline is three runs of unchanged code. An alarm is another unchanged run that fails; a miss is a run with a planted
change that passes. `wait`, `late`: the example lost its overlap on purpose. The other changes are made here, from unchanged
runs: `stall`, the time of a step is 1.5 or 2 times as long; `kernel`, `phase`, `all`, kernels take longer; `rare`, another
kernel and a wait in one step of four or in two.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from kernelgauge.cli.traces import read_trace
from kernelgauge.errors import KernelgaugeError
from kernelgauge.judge import steps as judging
from kernelgauge.judge.baseline import Recorded
from kernelgauge.judge.trace_baseline import trace_baseline
from kernelgauge.trace import steps as finding
from kernelgauge.trace.steps import StepRow, Steps, StepTrace

KEPT = Path(__file__).parent / "data" / "steps_h200.json.xz"
LISTS = ("wall_us", "compute_us", "communication_us", "exposed_us", "behind")
UNCHANGED = {"ddp": ("ddp-a", "ddp-b", "ddp-quiet", "ddp-loaded"), "fsdp": ("fsdp-a", "fsdp-quiet")}
BASELINES, RUNS = 24, 3  # baselines drawn for each job, and runs in each
SEED = 20261128

Job = Mapping[int, StepTrace]


# -- the kept steps ---------------------------------------------------------------------------------------------------


def keep(folders: Sequence[Path]) -> None:
    """Write the steps of all traces in these folders, without names of files."""
    rows: dict[StepRow, int] = {}
    traces = []
    for path in sorted(path for folder in folders for path in folder.glob("run*/rank*.json.gz")):
        trace = finding.find_steps(read_trace(path))
        (steps,) = trace.steps.values()
        numbered = [[[rows.setdefault(row, len(rows)), count] for row, count in each.items()] for each in steps.counts]
        times = [[rows.setdefault(row, len(rows)), round(us, 3)] for row, us in steps.row_us.items()]
        lists = {name: [round(each, 3) for each in getattr(steps, name)] for name in LISTS}
        kept = {"run": "/".join(path.parts[-3:-1]), "rank": trace.rank, "counts": numbered, "row_us": times, **lists}
        traces.append(kept)
    content = json.dumps({"rows": list(rows), "traces": traces}, separators=(",", ":"))
    KEPT.write_bytes(lzma.compress(content.encode()))


def read_kept() -> dict[str, list[Job]]:
    """Return the runs of each folder."""
    data = json.loads(lzma.decompress(KEPT.read_bytes()))
    rows = [StepRow(*each) for each in data["rows"]]
    runs: dict[str, dict[int, StepTrace]] = {}
    for each in data["traces"]:
        counts = [Counter({rows[row]: count for row, count in step}) for step in each["counts"]]
        steps = Steps(counts, Counter({rows[row]: us for row, us in each["row_us"]}), *(each[name] for name in LISTS))
        trace = StepTrace(each["rank"], 2, "NVIDIA H200", (0.0, 1.0), "ProfilerStep#", {"": steps}, {}, ())
        runs.setdefault(each["run"], {})[each["rank"]] = trace
    found: dict[str, list[Job]] = {}
    for name, job in runs.items():
        found.setdefault(name.split("/")[0], []).append(job)
    return found


# -- changes ----------------------------------------------------------------------------------------------------------


def with_change(job: Job, change: Callable[[Steps], None]) -> Job:
    job = deepcopy(job)
    for trace in job.values():
        change(trace.steps[""])
    return job


def slower(steps: Steps, factor: float, is_slower: Callable[[StepRow], bool]) -> None:
    """Let some kernels take longer. The step takes longer by as much."""
    old = steps.row_us
    more_us = (factor - 1) * sum(us for row, us in old.items() if is_slower(row)) / len(steps.counts)
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


def longest(steps: Steps) -> StepRow:
    kernels = (row for row in steps.row_us if row.kind not in ("communication", "wait"))
    return max(kernels, key=lambda row: steps.row_us[row])


def is_computing(row: StepRow) -> bool:
    return row.kind not in ("communication", "wait", "memcpy", "memset")


CHANGES: dict[str, Callable[[Steps], None]] = {
    "stall x1.5": lambda it: stalled(it, 1.5),
    "stall x2": lambda it: stalled(it, 2.0),
    "kernel +30 %": lambda it: slower(it, 1.3, longest(it).__eq__),
    "phase +30 %": lambda it: slower(it, 1.3, lambda row: is_computing(row) and row.phase == longest(it).phase),
    "all +10 %": lambda it: slower(it, 1.1, is_computing),
    "all +30 %": lambda it: slower(it, 1.3, is_computing),
    "rare 1/4": lambda it: rare(it, 1),
    "rare 2/4": lambda it: rare(it, 2),
}


# -- tables -----------------------------------------------------------------------------------------------------------


def judged(kept: Mapping[str, Sequence[Job]], columns: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield for each comparison its name, and whether it failed with a verdict on this subject."""
    chance = random.Random(SEED)
    for job, folders in UNCHANGED.items():
        unchanged = [run for folder in folders for run in kept[folder]]
        lost = {
            "late": kept["ddp-late"] if job == "ddp" else [],
            "wait": [*kept["ddp-wait"], *kept["ddp-wait-loaded"]] if job == "ddp" else kept["fsdp-wait"],
        }
        for _ in range(BASELINES):
            order = chance.sample(unchanged, len(unchanged))
            baseline = trace_baseline(order[:RUNS], Recorded("", None, ""))
            cases = [("unchanged", run) for run in order[RUNS:]]
            cases += [(name, run) for name, runs in lost.items() for run in runs]
            cases += [(name, with_change(order[RUNS], change)) for name, change in CHANGES.items()]
            for name, run in cases:
                if name not in columns:
                    continue
                verdicts = judging.judge_traces(job, [run], baseline)
                about = columns[name]
                yield name, any(each.status.fails for each in verdicts if about in ("", each.subject))


def table(
    kept: Mapping[str, Sequence[Job]], constant: str, values: Sequence[object], columns: Mapping[str, str]
) -> None:
    """Print alarms and misses by value of a constant. `columns`: changes, and the subject of the verdict on each."""
    heads = ["alarms" if name == "unchanged" else f"missed: {name}" for name in columns]
    print(f"| `{constant}` | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    usual = getattr(judging, constant)
    for value in values:
        setattr(judging, constant, value)
        failed, total = Counter[str](), Counter[str]()
        for name, is_failure in judged(kept, columns):
            failed[name] += is_failure
            total[name] += 1
        cells = [f"{failed[it] if it == 'unchanged' else total[it] - failed[it]} of {total[it]}" for it in columns]
        shown = f"**{value}**" if value == usual else f"{value}"
        print(f"| {shown} | {' | '.join(cells)} |", flush=True)
    setattr(judging, constant, usual)
    print()


STRUCTURE = {"unchanged": "structure", "rare 1/4": "structure", "rare 2/4": "structure"}
TIMES = {"unchanged": "GPU time"} | dict.fromkeys(("kernel +30 %", "phase +30 %", "all +10 %", "all +30 %"), "GPU time")
OVERLAP = dict.fromkeys(("unchanged", "wait", "late"), "communication")
STEP = dict.fromkeys(("unchanged", "stall x1.5", "stall x2"), "step time")
TABLES: list[tuple[str, Sequence[object], Mapping[str, str]]] = [
    ("_LIKELY", (0.0, 0.001, 0.01, 0.1, 0.3), STRUCTURE),
    ("_PROCESS", (0.003, 0.01, 0.03), TIMES),
    ("_DOF", (1.0, 4.0, 16.0), TIMES),
    ("_GATE", (0.0, 0.02, 0.05), TIMES),
    ("_GATE_OF_PART", (0.02, 0.05, 0.1, 0.2), TIMES),
    ("_LEAST_SHARE", (0.0, 0.01, 0.03), TIMES),
    ("_LEAST_OVERLAP", (0.0, 0.1, 0.3), OVERLAP),
    ("_LOST_OVERLAP", (0.25, 0.5, 0.75, 1.0), OVERLAP),
    ("_STEP_PROCESS", (0.01, 0.03, 0.05, 0.1, 0.15), STEP),
    ("_GATE_OF_STEP", (0.0, 0.1, 0.25, 0.5), STEP),
]


def lagging(kept: Mapping[str, Sequence[Job]]) -> None:
    """Print in how many runs a rank is said to be late, by value of the two constants of that."""
    print("| `_LEAST_LAG` | `_MORE_LAG` | unchanged | wait | late |\n|---|---|---|---|---|")
    usual = judging._LEAST_LAG, judging._MORE_LAG
    for least, more in [usual, (0.0, usual[1]), (0.2, usual[1]), (usual[0], 1.0), (usual[0], 4.0), (0.0, 0.0)]:
        judging._LEAST_LAG, judging._MORE_LAG = least, more
        named, total = Counter[str](), Counter[str]()
        for job, folders in UNCHANGED.items():
            chance = random.Random(SEED)
            unchanged = [run for folder in folders for run in kept[folder]]
            others = [(folder.split("-")[1], run) for folder, runs in kept.items() for run in runs
                      if folder.startswith(job) and folder not in folders]  # fmt: skip
            for _ in range(BASELINES):
                order = chance.sample(unchanged, len(unchanged))
                baseline = trace_baseline(order[:RUNS], Recorded("", None, ""))
                for name, run in [*(("unchanged", run) for run in order[RUNS:]), *others]:
                    verdicts = judging.judge_traces(job, [run], baseline)
                    named[name] += any(
                        getattr(why, "what", "") == "straggler" for each in verdicts for why in each.reasons
                    )
                    total[name] += 1
        cells = [f"{named[name]} of {total[name]}" for name in ("unchanged", "wait", "late")]
        print(f"| {least} | {more} | {' | '.join(cells)} |", flush=True)
    judging._LEAST_LAG, judging._MORE_LAG = usual
    print()


def found_steps(paths: Sequence[Path]) -> None:
    """Print how many traces have steps, and in how many these are others, by value of each constant that finds them."""
    traces = [read_trace(path) for path in paths]

    def steps() -> list[object]:
        found: list[object] = []
        for trace in traces:
            try:
                it = finding.find_steps(trace)
                found.append((it.found_by, [(kind, len(some.counts)) for kind, some in it.steps.items()]))
            except (ValueError, KernelgaugeError):
                found.append(None)
        return found

    usual = steps()
    print(f"| constant | value | of {len(traces)} traces with steps | with other steps |\n|---|---|---|---|")
    tried = {"_FEWEST": (2, 3, 5, 8), "_COVERED": (0.5, 0.8, 0.95), "_ALIKE": (1 / 3, 2 / 3, 0.9),
             "_MOST_TRIES": (5, 40, 400), "_LIKE_OTHERS": (0.0, 0.25, 0.5, 0.75, 0.9)}  # fmt: skip
    for constant, values in tried.items():
        before = getattr(finding, constant)
        for value in values:
            setattr(finding, constant, value)
            now = steps()
            differ = sum(one != other for one, other in zip(usual, now, strict=True))
            mark = "**" if value == before else ""
            print(
                f"| `{constant}` | {mark}{value:.3g}{mark} | {sum(each is not None for each in now)} | {differ} |",
                flush=True,
            )
        setattr(finding, constant, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--steps", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.keep:
        keep(options.keep)
    elif options.steps:
        found_steps(options.steps)
    else:
        kept = read_kept()
        for each in TABLES:
            table(kept, *each)
        lagging(kept)


if __name__ == "__main__":
    main()
