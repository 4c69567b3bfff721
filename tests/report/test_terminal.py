"""The summary and the plan as text: within the width, plain without colour, and names shown as they are."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.cells import cell_len

from kernelgauge.judge import Status, Verdict
from kernelgauge.judge.evidence import (
    Choice,
    Detail,
    Doubt,
    FileNote,
    KernelMoved,
    Move,
    OtherHostSpeed,
    RelativeChange,
    Unclear,
)
from kernelgauge.judge.review import Action, PlannedChange
from kernelgauge.judge.time_verdict import judge_time
from kernelgauge.report.html import html
from kernelgauge.report.stored import plan_table
from kernelgauge.report.summary import summary, summary_markdown
from kernelgauge.report.text import render
from kernelgauge.results import Results, WorkloadResult
from kernelgauge.run import CALL_TIMERS, Conditions, Timer
from tests.builders import H200, baseline, counts, fingerprint, results, run, verdict, workload

LONG = "mlp-compiled-train-bf16-64x128x768x3072"
MARKUP = ["[red]x[/red]", "[/red]x", "[link=a.b]x[/link]", ":warning:", "\\[red]x"]
MACHINE = "NVIDIA H200, driver 580.159.04, CUDA 13.0, torch 2.11.0+cu130, triton 3.6.0, liger-kernel 0.8.5"


def shown(*workloads: WorkloadResult, width: int = 80, color: bool = False, **changes: Any) -> str:
    return shown_of(results(*workloads, **changes), width=width, color=color)


def shown_of(found: Results, *, width: int = 80, color: bool = False, failures: bool = False) -> str:
    return f"{summary(found, width=width, color=color, failures=failures)}\n"


def below(*workloads: WorkloadResult, **changes: Any) -> list[str]:
    """The lines below the last line of the table."""
    lines = shown(*workloads, **changes).splitlines()
    return lines[lines.index(next(line for line in lines if line.startswith("workload "))) + len(workloads) + 1 :]


def named(name: str, status: Status = Status.REGRESSED, **changes: Any) -> WorkloadResult:
    return workload(verdict(status, workload=name, **changes), name=name)


def plan(*changes: PlannedChange, color: bool = False) -> str:
    return render(plan_table(changes), width=80, color=color)


def created(name: str, *details: str) -> PlannedChange:
    return PlannedChange(Action.CREATE, name, baseline(), tuple(Detail("file", each) for each in details))


def test_summary_table_layout() -> None:
    small = RelativeChange(0.0074, 0.001, 0.012, 0.95)
    small_run = run(workload="linear-eager-bf16-1024x32x64", device=(2.72, 2.72), counts=counts(launches=1))
    assert shown(
        named("mlp-eager-bf16-8x32x64"),
        workload(verdict(workload=small_run.workload, change=small), name=small_run.workload, run=small_run),
        workload(verdict(Status.INVALID, "measurement"), name="mlp-liger-bf16-1", run=None),
    ) == (
        f"{MACHINE}\n"
        "                                        GPU   base-\n"
        "workload                     launches    us line us change verdict   about\n"
        "mlp-eager-bf16-8x32x64              4 205.1   205.1 +8.1 % REGRESSED GPU time\n"
        "linear-eager-bf16-1024x32x64        1  2.72   205.1 +0.7 % PASS\n"
        "mlp-liger-bf16-1                    -     -       -      - INVALID   measurement\n"
    )


def test_reports_of_a_cpu_name_no_gpu() -> None:
    cpu = fingerprint(device="CPU", arch="cpu", driver=None, cuda=None)
    before = baseline(workload="a", machine=cpu)
    slower = run(workload="a", machine=cpu, device=(410.0, 410.4), incomplete="interrupted")
    verdicts = [judge_time(timer, slower, before) for timer in CALL_TIMERS]
    lost = run(workload="b", machine=cpu, device=None, incomplete="interrupted")
    verdicts.append(judge_time(Timer.DEVICE, lost, before))
    found = [results(workload(*verdicts, name="a", run=slower, baseline=before), fingerprint=cpu, gpu=None)]
    assert [verdict.subject for verdict in verdicts] == ["CPU time", "end to end", "host dispatch", "CPU time"]

    said = shown_of(*found, failures=True)
    assert " CPU   base-" in said
    assert "a: REGRESSED  CPU time 205.1 -> 410.2 us" in said
    page = html(found)
    script = page[page.index("<style>") : page.index("</style>")]  # of any report
    for text in (said, summary_markdown(found), page.replace(script, "")):
        assert "CPU time" in text
        assert "GPU" not in text


@pytest.mark.parametrize(
    ("statuses", "status", "about"),
    [
        ({}, "PASS", "time not judged"),
        ({"GPU time": Status.NOT_JUDGED, "end to end": Status.NOT_JUDGED}, "PASS", "time not judged"),
        ({"GPU time": Status.PASS, "end to end": Status.PASS, "host dispatch": Status.PASS}, "PASS", ""),
        ({"GPU time": Status.PASS, "end to end": Status.NOT_JUDGED}, "PASS", ""),
        ({"GPU time": Status.IMPROVED, "end to end": Status.NOT_JUDGED}, "IMPROVED", "GPU time"),
        ({"GPU time": Status.REGRESSED, "end to end": Status.NOT_JUDGED}, "REGRESSED", "GPU time"),
    ],
)
def test_every_report_says_that_a_pass_has_no_time(statuses: dict[str, Status], status: str, about: str) -> None:
    times = [verdict(status, subject) for subject, status in statuses.items()]
    found = results(workload(verdict(Status.PASS, "structure"), *times))
    assert re.search(rf" {status} *{about}\n", shown_of(found, width=120))
    assert f"| {status}<br>{about} |".replace("<br> ", " ") in summary_markdown([found])
    counted = f"1 {status}, time not judged in 1" if about == "time not judged" else f"1 {status}"
    assert f"1 workload ({counted})" in summary_markdown([found])
    assert re.search(
        rf'<span class="badge s-{status.lower()}">{status}</span>.*>{about}</td>', html([found]), re.DOTALL
    )


SLOWER = OtherHostSpeed(14.0, 16.8)
SAID = "this host was 20 % slower (reference 14.0 -> 16.8 us)"


def unjudged(subject: str, doubt: Doubt) -> Verdict:
    return verdict(Status.NOT_JUDGED, subject).because(doubt)


@pytest.mark.parametrize(
    ("times", "last"),
    [
        # Two hosts that were slower by different amounts are one reason, and the commonest.
        ([verdict(subject="GPU time"), unjudged("end to end", SLOWER), unjudged("host dispatch", OtherHostSpeed(14.0, 20.0))],
         f"PASS, structure and GPU time only: 4 of 7 times not judged: {SAID}"),
        ([unjudged("CPU time", Unclear("scattered replicates")), unjudged("end to end", SLOWER), unjudged("host dispatch", Unclear("one replicate"))],
         f"PASS, structure only: 6 of 7 times not judged: {SAID}"),
        ([verdict(subject="GPU time"), verdict(subject="host dispatch"), unjudged("end to end", Unclear("one replicate"))],
         "2 of 7 times not judged: one replicate shows no spread"),
    ],
)  # fmt: skip
def test_times_that_are_not_judged_are_said_with_the_commonest_reason(times: list[Verdict], last: str) -> None:
    other = [unjudged("end to end", OtherHostSpeed(14.0, 18.0)) if each.reasons else each for each in times]
    found = shown(
        workload(*times, name="a"), workload(*other, name="b"), workload(verdict(subject="GPU time"), name="c")
    )
    assert found.splitlines()[-1] == last


def test_summary_time_is_the_geometric_mean_of_replicates() -> None:
    assert " 4.00       -      - NO VERDICT\n" in shown(workload(name="a", run=run(workload="a", device=(2.0, 8.0))))
    assert " -       -      - NO VERDICT\n" in shown(workload(name="a", run=run(workload="a", device=None)))


def test_summary_table_names_subjects_where_they_fit() -> None:
    bad = [verdict(Status.REGRESSED, subject) for subject in ("structure", "host dispatch", "structure")]
    assert shown(workload(*bad, name="a")).endswith(" REGRESSED structure, host dispatch\n")
    assert shown(workload(*bad, name=LONG)).endswith("-      - REGRESSED\n")  # the table's change is that of GPU time


def test_summary_after_an_update_says_recorded() -> None:
    new = results(named("a", Status.NO_BASELINE), named("b", Status.NO_BASELINE), named("c"))
    text = summary(new, width=80, color=False, failures=False, recorded=["a", "c"])
    statuses = [line.split()[6] for line in text.splitlines() if line[:2] in ("a ", "b ", "c ")]
    assert statuses == ["RECORDED", "NO_BASELINE", "REGRESSED"]


def test_summary_shows_no_change_of_a_time_that_is_not_judged() -> None:
    found = workload(verdict(Status.NOT_JUDGED, workload="a", change=RelativeChange(1.5, None, None, 0.99)), name="a")
    assert "+150" not in shown(found)


@pytest.mark.parametrize("status", [Status.IMPROVED, Status.UNDECIDED, Status.INCOMPARABLE])
def test_summary_tells_in_full_what_fails_no_test(status: Status) -> None:
    one = workload(verdict(status, workload="a", reasons=[("why", "gelu")]), name="a")
    assert below(one) == [f"a: {status.value}  GPU time 205.1 -> 221.8 us", "  why      gelu"]


COST = "+1.5 us against the fastest that the baseline knows"


def test_summary_pass_shows_the_choice_of_the_autotuner() -> None:
    choice = Choice(1.5, (KernelMoved("gelu", "gelu", "XBLOCK 1 -> 2"),))
    tuned = verdict(workload="b", reasons=[("why", "x")]).because(choice)
    assert below(named("a", Status.PASS), workload(tuned, name="b")) == [
        "b: PASS  GPU time 205.1 -> 221.8 us",
        f"  tuning   the autotuner chose a launch configuration that is not in the baseline ({COST})",
        "           gelu: XBLOCK 1 -> 2",
    ]


def test_summary_machine_remark_is_printed_once() -> None:
    slower = "the GPU itself changed its speed"
    assert below(*(named(name, Status.PASS, reasons=[("machine", slower)]) for name in "abc")) == [f"machine: {slower}"]


def test_summary_machine_omits_missing_versions() -> None:
    cpu = fingerprint(device="AMD EPYC", driver=None, cuda=None, triton=None, liger_kernel=None, torch="2.13.0+cpu")
    assert shown(named("a"), fingerprint=H200).startswith(f"{MACHINE}\n")
    assert shown(named("a"), fingerprint=cpu).startswith("AMD EPYC, torch 2.13.0+cpu\n")


def clock(lowest: int, median: float = 1980.0, **more: Any) -> Conditions:
    return Conditions(lowest_sm_clock_mhz=lowest, median_sm_clock_mhz=median, **more)


CAPPED = clock(1905, max_temperature_c=51, max_power_watts=612.4, throttled_ms={"power cap": 20.4})
CAPPED_LESS = clock(1980, max_temperature_c=60, throttled_ms={"power cap": 10.0, "sync boost": 0.4})


@pytest.mark.parametrize(
    ("observed", "not_watched", "expected"),
    [
        ([CAPPED, None, CAPPED_LESS], "", [": SM clock 1980 MHz, lowest 1905, 60 C, 612 W, power cap for 30 ms"]),
        # Not the highest lowest reading: each run may dip for a moment, and one run may be slow all the time.
        ([clock(1905, 1950.0), clock(1890, 1950.0), clock(1755, 1755.0), clock(1980)], "", [": SM clock 1950 MHz, lowest 1755"]),
        ([clock(1980)], "", [": SM clock 1980 MHz, lowest 1980"]),
        ([Conditions()], "", []),
        ([None], "", []),
        ([None], "no NVML", [" not watched: no NVML"]),
        ([], "no NVML", []),
    ],
)  # fmt: skip
def test_conditions_of_all_runs_are_one_line(
    observed: list[Conditions | None], not_watched: str, expected: list[str]
) -> None:
    lines = shown(*(workload(run=run(conditions=each)) for each in observed), not_watched=not_watched).splitlines()
    assert [line for line in lines if line.startswith("conditions")] == [f"conditions{each}" for each in expected]


WIDE = {
    "long names": workload(*(verdict(Status.REGRESSED, s) for s in ("structure", "end to end")), name=LONG * 5),
    "wide letters": named("\u4e2d\u6587" * 40),  # two cells each
    "numbers": workload(
        verdict(Status.INCOMPARABLE, change=RelativeChange(123456.0, 1.0, 2.0, 0.95)),
        run=run(device=(98_765_432.1, 98_765_432.1), counts=counts(launches=1_234_567)),
    ),
}


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("one", WIDE.values(), ids=WIDE)
def test_summary_table_fits_the_terminal(one: WorkloadResult, color: bool, width: int) -> None:
    found = summary(results(one), width=width, color=color, failures=False)
    table = re.sub(r"\x1b\[[0-9;]*m", "", found.partition("\n")[2].partition("INCOMPARABLE  GPU time")[0])
    assert max(cell_len(line) for line in table.splitlines()) <= width
    assert "\u2026" not in table
    assert "..." not in table


def test_summary_colours_are_by_status() -> None:
    assert "\x1b[1;31mREGRESSED" in shown(named("a"), color=True)


@pytest.mark.parametrize("name", MARKUP)
@pytest.mark.parametrize("color", [False, True])
def test_markup_in_a_name_is_shown_as_it_is(name: str, color: bool) -> None:
    assert name in shown(named(name, Status.PASS), color=color)
    assert name in plan(created(name), color=color)
    assert name in plan(created("a", f"kernel {name}"), color=color)


def test_plan_lists_each_file_with_its_changes() -> None:
    assert plan(
        created("linear-eager", "1 launches", "GPU time 2.7 us"),
        PlannedChange(Action.KEEP, "mlp-eager", None, (FileNote("unchanged"),)),
        PlannedChange(Action.UPDATE, "mlp", None, (Move("driver", "1", "2"),)),
    ) == (
        "create  linear-eager  1 launches\n"
        "                      GPU time 2.7 us\n"
        "keep    mlp-eager     unchanged within noise: it stays as it is\n"
        "update  mlp           driver 1 -> 2\n"
    )
