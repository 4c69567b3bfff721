"""Small hand-built traces, runs, baselines and results.

Every argument has a default: a test names its subject alone.
"""

import gzip
import json
import lzma
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernelgauge.baselines import BaselineStore, Mode, review, select
from kernelgauge.cli.traces import read_trace
from kernelgauge.errors import BaselineError, TraceError
from kernelgauge.judge import DECLARED, Status, Verdict, revisions, steps
from kernelgauge.judge.baseline import Baseline, Recorded, combined, decode_baseline, from_run
from kernelgauge.judge.cause import find_trace_causes
from kernelgauge.judge.evidence import (
    Advice,
    DeclaredCompared,
    Detail,
    Failed,
    Next,
    RelativeChange,
)
from kernelgauge.judge.review import Reviewed, review_run, with_runs
from kernelgauge.judge.structure import judge_structure
from kernelgauge.judge.time_verdict import Context, confirm, judge_ratio, judge_time
from kernelgauge.judge.timing import FALSE_ALARMS_PER_RUN, SUSPECTS_PER_RUN, Limits
from kernelgauge.judge.trace_baseline import TraceBaseline, trace_baseline
from kernelgauge.report import findings
from kernelgauge.report.stored import doubt_text
from kernelgauge.report.summary import summary
from kernelgauge.report.text import as_text
from kernelgauge.report.words import cause_text, dearest_code
from kernelgauge.results import SCHEMA_VERSION, Results, TestResult, WorkloadResult
from kernelgauge.run import (
    CALL_TIMERS,
    ControlTime,
    Counts,
    Fingerprint,
    Observation,
    Run,
    Sample,
    Timer,
)
from kernelgauge.trace import KernelIdentity, KernelRecord, Trace, parse, reader
from kernelgauge.trace.difference import diff, name_differences
from kernelgauge.trace.steps import StepRow, Steps, StepTrace
from kernelgauge.trace.summary import summarize_trace

RECORDED = Path(__file__).parent / "data" / "h200"
MAIN_THREAD, BACKWARD_THREAD = 404, 509

Event = dict[str, Any]

# -- traces ----------------------------------------------------------------------------------------


def recorded(name: str) -> Trace:
    return read_trace(RECORDED / f"{name}.json.gz")


def recorded_events(name: str) -> list[Event]:
    """The rows of a recorded trace as the file has them, in order of start."""
    events = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))["traceEvents"]
    return sorted(
        (event for event in events if event.get("ph") == "X"), key=lambda event: float(event["ts"])
    )


def event(
    category: str, name: str, start: float, duration: float, thread: int | str, **args: object
) -> Event:
    row = {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": duration,
    }
    return row | {
        "args": {key.replace("_", " "): value for key, value in args.items() if value is not None}
    }


def op(
    name: str,
    start: float,
    duration: float,
    *,
    thread: int = MAIN_THREAD,
    external_id: int | None = None,
) -> Event:
    return event("cpu_op", name, start, duration, thread, External_id=external_id)


def step(number: int, start: float, duration: float) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start, duration, MAIN_THREAD)


def region(name: str, start: float, duration: float) -> Event:
    return event("user_annotation", name, start, duration, MAIN_THREAD)


def call(
    correlation: int | None,
    start: float,
    *,
    name: str = "cudaLaunchKernel",
    category: str = "cuda_runtime",
    thread: int = MAIN_THREAD,
    external_id: int | None = None,
) -> Event:
    return event(category, name, start, 1, thread, correlation=correlation, External_id=external_id)


def kernel(
    correlation: int | None,
    start: float,
    *,
    name: str = "gemm",
    duration: float = 5,
    category: str = "kernel",
    external_id: int | None = None,
) -> Event:
    return event(
        category, name, start, duration, 7, correlation=correlation, External_id=external_id
    )


def on(row: Event, **place: int) -> Event:
    return row | {"args": row["args"] | place}


def chrome(*events: Event, **top_level: object) -> bytes:
    return json.dumps({"traceEvents": list(events), **top_level}).encode()


def trace_of(*events: Event) -> Trace:
    return parse(chrome(*events))


# -- runs and baselines ----------------------------------------------------------------------------

WORKLOAD = "mlp-compiled-bf16-64x128x768x3072"
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
DOWN = "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT"
FUSED = "triton_poi_fused__unsafe_view_gelu_mul_0"
SOURCE = "crp6dxk5nphodyk5oymrzgcw3cehyajdvjnp3t5k4e774karg5ms"
OTHER_SOURCE = "c6ftvhgubnrmlxzuurcbcqqj2rbcvbrq7kcsf5mqw7embzh6bt2p"

DEVICE = "NVIDIA H200"
GPU = {
    "device": DEVICE,
    "arch": "sm_90",
    "sm_count": 132,
    "memory_bytes": 150109880320,
    "mig": False,
}
SETTINGS = {
    "power_limit_watts": 700.0,
    "fp32_matmul": "highest",
    "cudnn_tf32": True,
    "deterministic": False,
}
VERSIONS = {
    "driver": "580.159.04",
    "cuda": "13.0",
    "cudnn": "91300",
    "torch": "2.11.0+cu130",
    "python": "3.12.3",
}
H200 = msgspec.convert(
    GPU | SETTINGS | VERSIONS | {"triton": "3.6.0", "liger_kernel": "0.8.5"}, Fingerprint
)


def fused(
    us: float, *, xblock: int = 1024, source: str | None = SOURCE, kwargs: str | None = None
) -> KernelRecord:
    """The fused kernel of the compiled MLP as the H200 ran it, with one or the other choice of the
    autotuner.
    """
    num_warps = 4 if xblock == 1024 else 8
    chosen: dict[str, Any] = {
        "kernel_kwargs": kwargs or f"XBLOCK={xblock}",
        "num_warps": num_warps,
        "num_stages": 1,
    }
    grid, block = (25165824 // xblock, 1, 1), (32 * num_warps, 1, 1)
    return KernelRecord(
        KernelIdentity(FUSED, "pointwise", grid=grid, block=block, source_hash=source, **chosen), us
    )


def launched(
    name: str, us: float, *, kind: str = "gemm", grid: tuple[int, int, int] | None = None
) -> KernelRecord:
    return KernelRecord(KernelIdentity(name, kind, grid=grid, block=(384, 1, 1)), us)


def mlp_kernels(
    gate: float = 56.0, up: float = 58.0, down: float = 53.0, **of_fused: Any
) -> tuple[KernelRecord, ...]:
    return (
        launched(GEMM, gate),
        launched(GEMM, up),
        fused(**({"us": 38.1} | of_fused)),
        launched(DOWN, down),
    )


def counts(**changes: Any) -> Counts:
    few = {
        "launches": 4,
        "kernels": 3,
        "memsets": 2,
        "dispatcher_ops": 3,
        "peak_allocated_bytes": 1 << 20,
    }
    none = dict.fromkeys(("copies", "synchronizations", "graph_breaks", "recompiles"), 0)
    return Counts(**(few | none | changes))


def fingerprint(**changes: Any) -> Fingerprint:
    return msgspec.structs.replace(H200, **changes)


HERE, ELSEWHERE = "0f1e2d3c", "a1b2c3d4"  # two GPUs of one kind
COPY, CONTROL_GEMM = "copy_kernel", "control_gemm"  # what the control pair runs
CONTROL_US = 14.0  # of the host


def sample(
    replicates: Sequence[float] = (200.0, 200.1), *, control_us: float | None = None
) -> Sample:
    """`control_us`: of the host, the same during each replicate."""
    return Sample(
        tuple(replicates), 40, () if control_us is None else (control_us,) * len(replicates)
    )


def pair(
    copy: float = 30.0, gemm: float = 150.0, *, gemm_kernel: str = CONTROL_GEMM
) -> dict[str, ControlTime]:
    return {"copy": ControlTime(COPY, copy), "gemm": ControlTime(gemm_kernel, gemm)}


def run(
    *,
    device: Sequence[float] | None = (204.9, 205.0, 205.2, 205.3),
    host: Sequence[float] | None = (50.0, 50.5, 51.0, 51.5),
    end_to_end: Sequence[float] | None = (300.0, 301.0, 302.0, 303.0),
    host_control_us: float | None = CONTROL_US,
    kernels: tuple[KernelRecord, ...] | None = None,
    workload: str = WORKLOAD,
    machine: Fingerprint = H200,
    gpu: str | None = HERE,
    **changes: Any,
) -> Run:
    samples = {
        timer: sample(values, control_us=None if timer is Timer.DEVICE else host_control_us)
        for timer, values in {
            Timer.DEVICE: device,
            Timer.END_TO_END: end_to_end,
            Timer.HOST: host,
        }.items()
        if values is not None
    }
    observed: dict[str, Any] = {
        "workload": workload,
        "fingerprint": machine,
        "gpu": gpu,
        "controls": pair(),
    }
    observed |= {
        "kernels": mlp_kernels() if kernels is None else kernels,
        "counts": counts(),
        "samples": samples,
    }
    return Run(**(observed | changes))


def baseline(suite: str = "perf", **changes: Any) -> Baseline:
    return from_run(run(**changes), suite=suite)


def calibrated(
    runs: Sequence[Run], *, suite: str = "perf", recorded: Recorded | None = None
) -> Baseline:
    """The baseline of runs of several processes."""
    return combined([from_run(each, suite=suite, recorded=recorded) for each in runs])


# -- results ---------------------------------------------------------------------------------------

CHANGE = RelativeChange(0.081, 0.079, 0.084, 0.999)
# What a name may hold that comes from a stranger's trace or file.
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "k" * 10_000,
    "\u202egnitset\u2066\u200f",
    "\x00\x0b\ufffe\uffff\x7f\x85\u2028",
    '=HYPERLINK("http://example.org","x")',
    "\t=1+1",
    "\r\n::error title=forged::forged\n::set-output name=a::b",
    "a|b`c`**d** _e_ ~~f~~ | g",
    "@someone #12 [l](http://example.org) ![i](http://example.org/i) http://example.org www.example.org a@example.org",
    "</details>\n\n# heading\n\n---\n- item\n1. item\n> said",
    "]]> & &amp; --> <!--",
    "%0A%25,title=x::y",
)


def verdict(
    status: Status = Status.PASS,
    subject: str = Timer.DEVICE.label,
    headline: str = "GPU time 205.1 -> 221.8 us",
    *,
    workload: str = WORKLOAD,
    reasons: Sequence[tuple[str, str]] = (),
    change: RelativeChange | None = CHANGE,
) -> Verdict:
    said = tuple(
        Next(Advice.ACCEPT, text) if label == "accept" else Detail(label, text)
        for label, text in reasons
    )
    times: dict[str, Any] = {"before_us": 205.1, "after_us": 221.8, "change": change}
    is_timed = subject in {timer.label for timer in Timer}
    return Verdict(status, workload, subject, Failed(headline), said, **(times if is_timed else {}))


def workload(*verdicts: Verdict, name: str = WORKLOAD, **changes: Any) -> WorkloadResult:
    fields: dict[str, Any] = {
        "suite": "perf",
        "module": "mlp",
        "variant": "compiled",
        "dtype": "bf16",
    }
    fields |= {"pass_": "forward", "shape": (64, 128, 768, 3072), "run": run(workload=name)}
    return WorkloadResult(**({"id": name, "verdicts": verdicts} | fields | changes))


def one_test(
    name: str, outcome: Any = "passed", *, workload: str | None = WORKLOAD, **changes: Any
) -> TestResult:
    node = f"perf/test_latency.py::{name}" + (f"[{workload}]" if workload else "")
    return TestResult(
        **({"node": node, "workload": workload, "outcome": outcome, "seconds": 0.25} | changes)
    )


def results(*workloads: WorkloadResult, **changes: Any) -> Results:
    arguments = ("perf", "-k", "mlp or linear")
    made = Results(
        SCHEMA_VERSION,
        "0.1.0",
        "2026-11-20T19:10:12+00:00",
        33.4,
        arguments,
        H200,
        HERE,
        "",
        workloads,
    )
    return msgspec.structs.replace(made, **changes)


def hostile(text: str, *statuses: Status) -> Results:
    """Results that have a text wherever results have one."""
    verdicts = [
        verdict(
            status,
            f"{text}{place}",
            text,
            workload=text,
            reasons=[(text, text), ("why", f"{text}  new: 1 us")],
        )
        for place, status in enumerate(statuses)
    ]
    timed = verdict(statuses[0], headline=text, workload=text, reasons=[("why", text)])
    machine = fingerprint(**dict.fromkeys(("device", "driver", "torch", "cuda", "triton"), text))
    named = dict.fromkeys(("name", "suite", "module", "variant", "dtype", "pass_"), text)
    tests = (
        TestResult(f"{text}::{text}[{text}]", of, outcome, 0.1, claim=text, said=text)
        for of in (text, None)
        for outcome in ("passed", "failed", "skipped")
    )
    return results(
        workload(*verdicts, timed, run=run(workload=text, machine=machine, gpu=text), **named),
        workload(name=f"{text}2", run=None, unavailable=text),
        **dict.fromkeys(("gpu", "kernelgauge", "started_at", "not_watched"), text),
        fingerprint=machine,
        arguments=("perf", text),
        tests=tuple(tests),
        warnings=(text,),
        exit_status=1,
    )


def passing(*verdicts: Verdict, name: str = WORKLOAD, **changes: Any) -> WorkloadResult:
    """A workload that was measured in full and is as declared."""
    declared = Verdict(Status.PASS, name, DECLARED, DeclaredCompared())
    return workload(declared, *verdicts, name=name, **changes)


def complete_results(
    *workloads: WorkloadResult, tests: Sequence[TestResult] | None = None, **changes: Any
) -> Results:
    """Results of all that is declared; of each workload there is a test that passed, unless `tests`
    are given.
    """
    if tests is None:
        tests = [
            one_test("test_kernels_and_graphs_are_as_declared", workload=each.id)
            for each in workloads
        ]
    whole = {
        "timers": CALL_TIMERS,
        "declared": {"perf": tuple(each.id for each in workloads)},
        "commit": "4e3642b",
    }
    return results(*workloads, tests=tuple(tests), **(whole | changes))


def reasons(verdict: Verdict, label: str) -> list[str]:
    """What a verdict says under this label."""
    return [line.text for line in findings.reasons(verdict) if line.label == label]


def summary_text(
    told: Results, recorded: Sequence[str] = (), *, width: int = 80, color: bool = False
) -> str:
    """Return what pytest ends with."""
    return as_text(summary(told, recorded), width=width, color=color, is_dense=True)


def read_in_blocks(content: bytes, block: int | None = None) -> Trace | None:
    """Return the trace, read `block` bytes at once and summarized; None if it is refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "BLOCK_BYTES", block or reader.BLOCK_BYTES)
        try:
            trace = parse(content, where="some.json")
        except TraceError as error:
            refused = (error.where, bool(error.got), bool(error.expected))
            return None if refused == ("some.json", True, True) else pytest.fail(f"{error!r}")
    summarize_trace(trace)
    summarize_trace(
        trace,
        [trace.whole(), *trace.regions(trace.annotations[0].name if trace.annotations else "")],
    )
    return trace


# -- judging ---------------------------------------------------------------------------------------

Case = tuple[Run, Baseline]
Job = dict[int, StepTrace]  # the steps of a run, by rank


def judged(
    *cases: Case, comparisons: int = 1, limits: Limits | None = None, is_confirmed: bool = True
) -> list[list[Verdict]]:
    """The verdicts on the runs of one session, each by its baseline: on its structure, then on each
    of its times.
    """
    level = SUSPECTS_PER_RUN if is_confirmed else FALSE_ALARMS_PER_RUN
    found, context = [], Context(comparisons, cases, level=level)
    for now, known in cases:
        times = [judge_time(timer, [now], known, context, limits) for timer in now.judged_timers]
        found.append([judge_structure(now, known, times), *times])
    return found


def judged_time(
    timer: Timer,
    now: Run,
    known: Baseline,
    *,
    comparisons: int = 1,
    beside: Iterable[Case] = (),
    limits: Limits | None = None,
) -> Verdict:
    """The verdict on one time of a run. `beside`: other workloads of the same run."""
    return judge_time(timer, [now], known, Context(comparisons, beside), limits)


def confirmed(fresh: Run, case: Case, *, comparisons: int = 1) -> list[Verdict]:
    """The verdicts on the times of a run that are slower, after a fresh process has measured them
    too.
    """
    (now, known), context = case, Context(comparisons, [case])
    times = {timer: judge_time(timer, [now], known, context) for timer in now.judged_timers}
    slower = {timer: each for timer, each in times.items() if each.status is Status.REGRESSED}
    return [confirm(each, timer, now, fresh, known, context) for timer, each in slower.items()]


def reviewed_run(
    now: Run, old: Baseline | BaselineError | None, *, comparisons: int = 3, **asked: Any
) -> Reviewed:
    """What accepting a run would write, with the doubts. `asked`: as in `review_run`."""
    return review_run(
        now, old, context=Context(comparisons), **{"suite": "perf", "recorded": None} | asked
    )


def with_added(
    old: Baseline | BaselineError | None,
    runs: Sequence[Run],
    *,
    recorded: Recorded | None = None,
    comparisons: int = 3,
    beside: Iterable[Case] = (),
) -> Any:
    """A baseline with further processes, or why they cannot join it.

    `beside`: other workloads of the last run.
    """
    return with_runs(
        old, runs, suite="perf", recorded=recorded, context=Context(comparisons, beside)
    )


def judged_ratio(this: Run, other: Run, *, by: float) -> Verdict:
    return judge_ratio(this, other, "eager", by=by, comparisons=12)


def judged_sides(
    before: Sequence[Run],
    after: Sequence[Run],
    *,
    limits: Limits | None = None,
    beside: Sequence[Sequence[float]] | None = None,
) -> tuple[Sequence[Verdict], Sequence[str]]:
    """The verdicts on some processes by others of the same machine, and the times that need more of
    them.
    """
    asked: dict[str, Any] = {"comparisons": 63, "limits": limits, "beside": beside}
    found = revisions.judge_sets(WORKLOAD, before, after, names=("before", "after"), **asked)
    return found.verdicts, found.undecided


def steps_baseline(jobs: Sequence[Job]) -> TraceBaseline:
    return trace_baseline(jobs, Recorded("", None, ""))


def judged_steps(job: Job, known: TraceBaseline) -> list[Verdict]:
    return steps.judge_traces("job", [job], known)


def trace_changes(before: Trace, after: Trace) -> tuple[list[str], list[str]]:
    """What became of the kernels of a trace, and the causes with their lines: the largest effect
    first.
    """
    sides = [summarize_trace(each) for each in (before, after)]
    found = name_differences(diff(*(side.kernels for side in sides)))
    rows = [
        f"{each.what.value} {len(each.before)} {len(each.after)} {each.delta_us:.4g}"
        for each in found
    ]
    return rows, [
        f"{cause_text(each)[0]} @ {dearest_code(each)}" for each in find_trace_causes(*sides, found)
    ]


def cause_of(verdict: Verdict) -> str:
    """The first cause of a verdict and its first line; how many lines it has, and how many causes
    there are.
    """
    lines = [(each.label, each.text.split("\n")) for each in findings.reasons(verdict)]
    (first, *_), code = (
        next((text for label, text in lines if label == name), [""]) for name in ("cause", "code")
    )
    causes = sum(label in ("cause", "also") for label, _ in lines)
    return f"{first} @ {code[0]} ({len(code)}, {causes})" if first else ""


def stored(several: Sequence[Results], root: Path, mode: str, *, force: bool = False) -> list[str]:
    """Store results as `accept`, `accept --add`, `calibrate` or `--perf-update` do.

    Return what became of each workload.
    """
    store = BaselineStore(root)
    reviews = review(several, store, Mode(mode))
    store.apply(select(reviews, bool, force=force)[0])
    return [
        f"{each.group.value}, {each.change.action.value if each.change else 'refused'}"
        f", {len(each.evidence)} facts, doubts {'; '.join(map(doubt_text, each.doubts))}"
        for reviewed in reviews.values()
        for each in reviewed
    ]


def recorded_baseline(path: Path) -> Baseline:
    name = path.name.removesuffix(".json")
    return decode_baseline(path.read_bytes(), where=str(path), workload=name)


def recorded_runs(known: Baseline) -> list[Run]:
    """Each process of a baseline, as the run that it was: with the mean, the spread and the
    reference that are kept.
    """
    return [
        Run(
            workload=known.workload,
            fingerprint=known.fingerprint,
            kernels=entry.kernels,
            counts=known.counts,
            samples={timer: _replicates(each) for timer, each in process.timers.items()},
            gpu=process.gpu,
            host=process.host,
            controls=process.controls,
            origins=known.origins,
            day=process.day,
        )
        for entry in known.entries
        for process in entry.processes
    ]


def _replicates(seen: Observation) -> Sample:
    pairs, count = seen.replicates // 2, seen.replicates
    width = (seen.spread or 0.0) * math.sqrt((count - 1) / (2 * pairs)) if pairs else 0.0
    steps = [0.0] * (count - 2 * pairs) + [width, -width] * pairs
    controls = (seen.control_us,) * count if seen.control_us is not None else ()
    return Sample(tuple(seen.mean_us * math.exp(step) for step in steps), seen.iterations, controls)


def kept_runs(path: Path) -> list[Run]:
    """The runs of one process, as benchmarks/ keeps them."""
    return msgspec.convert(json.loads(gzip.decompress(path.read_bytes()))["runs"], list[Run])


def kept_steps(path: Path) -> dict[str, list[Job]]:
    """The steps of several runs, as benchmarks/ keeps them, by job."""
    data = json.loads(lzma.decompress(path.read_bytes()))
    rows = [StepRow(*each) for each in data["rows"]]
    found: dict[str, dict[str, Job]] = {}
    for each in data["traces"]:
        job, _, number = each["run"].partition("/")
        by_rank = found.setdefault(job, {}).setdefault(number, {})
        trace = by_rank.setdefault(
            each["rank"],
            StepTrace(each["rank"], 2, DEVICE, (0.0, 1.0), "ProfilerStep#", {}, {}, ()),
        )
        trace.steps[each.get("kind", "")] = steps_of(
            [{rows[row]: count for row, count in step} for step in each["counts"]],
            {rows[row]: us for row, us in each["row_us"]},
            {rows[row]: square for row, square in each.get("row_squares", ())},
            *(
                each[name]
                for name in ("wall_us", "compute_us", "communication_us", "exposed_us", "behind")
            ),
        )
    return {job: list(runs.values()) for job, runs in found.items()}


def steps_of(counts: Iterable[Any], row_us: Any, squares: Any, *lists: Sequence[float]) -> Steps:
    found = Steps([Counter(each) for each in counts], Counter(row_us), *map(list, lists))  # type: ignore[arg-type]
    found.row_squares.update(squares)
    return found


# -- histories -------------------------------------------------------------------------------------


def timed(
    us: float = 205.0, *, name: str = WORKLOAD, gpu: str | None = HERE, **changes: Any
) -> WorkloadResult:
    said = {"status": changes.pop("status", Status.PASS), "headline": changes.pop("headline", "")}
    measured = run(workload=name, device=(us, us), gpu=gpu, **changes)
    return workload(verdict(workload=name, **said), name=name, run=measured)


def night(number: int, *workloads: WorkloadResult, **changes: Any) -> Results:
    """Results of one of the nights from 2026-01-05 on, on the machine of the first workload."""
    when = datetime(2026, 1, 5, 2, 30, tzinfo=timezone.utc) + timedelta(days=number)
    first = workloads[0].run
    fields = {
        "host": "node",
        "gpu": first.gpu,
        "fingerprint": first.fingerprint,
        "started_at": when.isoformat(),
    }
    return results(*workloads, **(fields | changes))


def year(nights: int = 40) -> list[Results]:
    """Two GPUs, and a driver upgrade at half time that makes "slow" 5 % slower."""
    measured = []
    for number in range(nights):
        is_late = number >= nights // 2
        slow, status = (210.0, Status.REGRESSED) if is_late else (200.0, Status.PASS)
        for gpu in (HERE, ELSEWHERE):
            wobble = 1 + random.Random(f"{gpu} {number}").gauss(0, 0.001)
            machine: dict[str, Any] = {
                "gpu": gpu,
                "machine": fingerprint(driver="585.1" if is_late else "580.1"),
            }
            both = [
                timed(slow * wobble, name="slow", status=status, headline="slower", **machine),
                timed(100.0 * wobble, name="same", **machine),
            ]
            measured.append(night(number, *both, commit=f"{number:040x}"))
    return measured
