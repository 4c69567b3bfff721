"""The summary and the plan as text: within the width, plain without colour, and names shown as they are."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.cells import cell_len

from kernelgauge.judge import Status, Verdict
from kernelgauge.judge import evidence as e
from kernelgauge.judge.review import Action, PlannedChange
from kernelgauge.judge.time_verdict import judge_time
from kernelgauge.report.html import html
from kernelgauge.report.stored import plan_table
from kernelgauge.report.summary import summary, summary_markdown
from kernelgauge.report.text import render
from kernelgauge.results import WorkloadResult
from kernelgauge.run import CALL_TIMERS, Conditions, Timer
from tests.builders import baseline, counts, fingerprint, results, run, verdict, workload

LONG = "mlp-compiled-train-bf16-64x128x768x3072"
MARKUP = ["[red]x[/red]", "[/red]x", "[link=a.b]x[/link]", ":warning:", "\\[red]x"]
MACHINE = "NVIDIA H200, driver 580.159.04, CUDA 13.0, torch 2.11.0+cu130, triton 3.6.0, liger-kernel 0.8.5"
CPU = fingerprint(arch="cpu", device="AMD EPYC", driver=None, cuda=None, triton=None, liger_kernel=None, torch="2.13.0")


def shown(*workloads: WorkloadResult, width: int = 80, color: bool = False, recorded: Any = (), **changes: Any) -> str:
    found = results(*workloads, **changes)
    return f"{summary(found, width=width, color=color, failures=False, recorded=recorded)}\n"


def below(*workloads: WorkloadResult) -> list[str]:
    """The lines below the table."""
    lines = shown(*workloads).splitlines()
    return lines[lines.index(next(line for line in lines if line.startswith("workload "))) + len(workloads) + 1 :]


def named(name: str, status: Status = Status.REGRESSED, **changes: Any) -> WorkloadResult:
    return workload(verdict(status, workload=name, **changes), name=name)


def of_run(name: str, *verdicts: Verdict, **changes: Any) -> WorkloadResult:
    return workload(*verdicts, name=name, run=run(workload=name, **changes))


def test_summary_table_layout() -> None:
    small = verdict(workload="linear-eager-bf16-1024x32x64", change=e.RelativeChange(0.0074, 0.001, 0.012, 0.95))
    assert shown(
        named("mlp-eager-bf16-8x32x64"),
        of_run(small.workload, small, device=(2.0, 3.7), counts=counts(launches=1)),
        workload(verdict(Status.INVALID, "measurement"), name="mlp-liger-bf16-1", run=None),
    ) == (
        f"{MACHINE}\n"
        "                                        GPU   base-\n"
        "workload                     launches    us line us change verdict   about\n"
        "mlp-eager-bf16-8x32x64              4 205.1   205.1 +8.1 % REGRESSED GPU time\n"
        "linear-eager-bf16-1024x32x64        1  2.72   205.1 +0.7 % PASS\n"
        "mlp-liger-bf16-1                    -     -       -      - INVALID   measurement\n"
    )


def test_summary_shows_no_change_of_a_time_that_is_not_judged() -> None:
    unjudged = verdict(Status.NOT_JUDGED, change=e.RelativeChange(1.5, None, None, 0.99))
    assert "+150" not in shown(of_run("a", unjudged))
    assert " -       -      - NO VERDICT\n" in shown(of_run("a", device=None))


def test_reports_of_a_cpu_name_no_gpu() -> None:
    before = baseline(workload="a", machine=CPU)
    slower = run(workload="a", machine=CPU, device=(410.0, 410.4), incomplete="interrupted")
    verdicts = [judge_time(timer, slower, before) for timer in CALL_TIMERS]
    verdicts.append(judge_time(Timer.DEVICE, run(machine=CPU, device=None, incomplete="interrupted"), before))
    assert [verdict.subject for verdict in verdicts] == ["CPU time", "end to end", "host dispatch", "CPU time"]
    found = results(workload(*verdicts, name="a", run=slower, baseline=before), fingerprint=CPU, gpu=None)
    said = summary(found, width=80, color=False, failures=True)
    assert said.startswith("AMD EPYC, torch 2.13.0\n")
    assert " CPU   base-" in said
    assert "a: REGRESSED  CPU time 205.1 -> 410.2 us" in said
    page = html([found])
    script = page[page.index("<style>") : page.index("</style>")]  # of any report
    for text in (said, summary_markdown([found]), page.replace(script, "")):
        assert "CPU time" in text
        assert "GPU" not in text


@pytest.mark.parametrize(
    ("statuses", "status", "about"),
    [
        ({}, "PASS", "time not judged"),
        ({"GPU time": Status.PASS, "end to end": Status.PASS, "host dispatch": Status.PASS}, "PASS", ""),
        ({"GPU time": Status.PASS, "end to end": Status.NOT_JUDGED}, "PASS", ""),
        ({"GPU time": Status.REGRESSED, "end to end": Status.NOT_JUDGED}, "REGRESSED", "GPU time"),
    ],
)
def test_every_report_says_that_a_pass_has_no_time(statuses: dict[str, Status], status: str, about: str) -> None:
    one = workload(verdict(Status.PASS, "structure"), *(verdict(each, subject) for subject, each in statuses.items()))
    assert re.search(rf" {status} *{about}\n", shown(one, width=120))
    markdown, page = summary_markdown([results(one)]), html([results(one)])
    assert f"| {status}<br>{about} |".replace("<br> ", " ") in markdown
    assert f"1 workload (1 {status}{', time not judged in 1' * (about == 'time not judged')})" in markdown
    assert re.search(rf'<span class="badge s-{status.lower()}">{status}</span>.*>{about}</td>', page, re.DOTALL)
    assert markdown.startswith("> [!WARNING]\n> **PASS, structure only**") is (about == "time not judged")
    assert ("s-pass--structure" in page.replace('"', " ").partition("<header")[2][:99]) is (about == "time not judged")


SLOWER = e.OtherHostSpeed(14.0, 16.8)
SAID = "this host was 20 % slower (reference 14.0 -> 16.8 us)"
ONE = e.Unclear("one replicate")


def judged(*subjects: str, **unjudged: e.Doubt) -> list[Verdict]:
    doubted = [verdict(Status.NOT_JUDGED, name.replace("_", " ")).because(doubt) for name, doubt in unjudged.items()]
    return [*(verdict(subject=each) for each in subjects), *doubted]


@pytest.mark.parametrize(
    ("times", "last"),
    [
        # Two hosts that were slower by different amounts are one reason, and the commonest.
        (judged("GPU time", end_to_end=SLOWER, host_dispatch=e.OtherHostSpeed(14.0, 20.0)),
         f"PASS, structure and GPU time only: 4 of 7 times not judged: {SAID}"),
        (judged(CPU_time=e.Unclear("scattered replicates"), end_to_end=SLOWER, host_dispatch=ONE),
         f"PASS, structure only: 6 of 7 times not judged: {SAID}"),
        (judged("GPU time", "host dispatch", end_to_end=ONE), "2 of 7 times not judged: one replicate shows no spread"),
    ],
)  # fmt: skip
def test_times_not_judged_are_said_with_the_commonest_reason(times: list[Verdict], last: str) -> None:
    other = [judged(end_to_end=e.OtherHostSpeed(14.0, 18.0))[0] if each.reasons else each for each in times]
    three = {"a": times, "b": other, "c": judged("GPU time")}
    assert shown(*(workload(*verdicts, name=name) for name, verdicts in three.items())).splitlines()[-1] == last


def test_summary_table_names_subjects_where_they_fit() -> None:
    bad = [verdict(Status.REGRESSED, subject) for subject in ("structure", "host dispatch", "structure")]
    assert shown(workload(*bad, name="a")).endswith(" REGRESSED structure, host dispatch\n")
    assert shown(workload(*bad, name=LONG)).endswith("-      - REGRESSED\n")  # the table's change is that of GPU time


def test_summary_after_an_update_says_recorded() -> None:
    text = shown(*(named(name, Status.NO_BASELINE) for name in "ab"), named("c"), recorded=["a", "c"])
    assert re.findall(r"^[abc] .* ([A-Z_]{8,})", text, re.MULTILINE) == ["RECORDED", "NO_BASELINE", "REGRESSED"]


MOVED = "the GPU itself changed its speed"
CHOICE = e.Choice(1.5, (e.KernelMoved("gelu", "gelu", "XBLOCK 1 -> 2"),))
CHOSEN = workload(verdict(workload="b", reasons=[("why", "x")]).because(CHOICE), name="b")
COST = "+1.5 us against the fastest that the baseline knows"
TUNED = f"the autotuner chose a launch configuration that is not in the baseline ({COST})"
TIMES = "GPU time 205.1 -> 221.8 us"
IN_FULL = [
    ([named("a", Status.IMPROVED, reasons=[("why", "x")])], [f"a: IMPROVED  {TIMES}", "  why      x"]),
    ([named("a", Status.UNDECIDED, reasons=[("why", "x")])], [f"a: UNDECIDED  {TIMES}", "  why      x"]),
    ([named("a", Status.INCOMPARABLE, reasons=[("why", "x")])], [f"a: INCOMPARABLE  {TIMES}", "  why      x"]),
    ([named("a", Status.PASS), CHOSEN], [f"b: PASS  {TIMES}", f"  tuning   {TUNED}", "           gelu: XBLOCK 1 -> 2"]),
    ([named(name, Status.PASS, reasons=[("machine", MOVED)]) for name in "abc"], [f"machine: {MOVED}"]),
]


@pytest.mark.parametrize(("workloads", "lines"), IN_FULL)
def test_summary_tells_in_full_what_fails_no_test(workloads: list[WorkloadResult], lines: list[str]) -> None:
    assert below(*workloads) == lines


def clock(lowest: int, median: float = 1980.0, **more: Any) -> Conditions:
    return Conditions(lowest_sm_clock_mhz=lowest, median_sm_clock_mhz=median, **more)


CAPPED = clock(1905, max_temperature_c=51, max_power_watts=612.4, throttled_ms={"power cap": 20.4})
CAPPED_LESS = clock(1980, max_temperature_c=60, throttled_ms={"power cap": 10.0, "sync boost": 0.4})
DIPPED = [clock(1905, 1950.0), clock(1890, 1950.0), clock(1755, 1755.0), clock(1980)]
CONDITIONS = [
    ([CAPPED, None, CAPPED_LESS], "", [": SM clock 1980 MHz, lowest 1905, 60 C, 612 W, power cap for 30 ms"]),
    # Not the highest lowest reading: each run may dip for a moment, and one run may be slow all the time.
    (DIPPED, "", [": SM clock 1950 MHz, lowest 1755"]),
    ([Conditions()], "", []),
    ([None], "no NVML", [" not watched: no NVML"]),
]


@pytest.mark.parametrize(("observed", "not_watched", "expected"), CONDITIONS)
def test_conditions_of_all_runs_are_one_line(observed: list[Any], not_watched: str, expected: list[str]) -> None:
    lines = shown(*(workload(run=run(conditions=each)) for each in observed), not_watched=not_watched).splitlines()
    assert [line for line in lines if line.startswith("conditions")] == [f"conditions{each}" for each in expected]


ENORMOUS = verdict(Status.INCOMPARABLE, change=e.RelativeChange(123456.0, 1.0, 2.0, 0.95))
WIDE = {
    "long names": workload(*(verdict(Status.REGRESSED, s) for s in ("structure", "end to end")), name=LONG * 5),
    "wide letters": named("\u4e2d\u6587" * 40),  # two cells each
    "numbers": of_run("a", ENORMOUS, device=(98_765_432.1, 98_765_432.1), counts=counts(launches=1_234_567)),
}


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("one", WIDE.values(), ids=WIDE)
def test_summary_table_fits_the_terminal(one: WorkloadResult, color: bool, width: int) -> None:
    found = shown(one, width=width, color=color)
    assert ("\x1b[1;31mREGRESSED" in found) is (color and one is not WIDE["numbers"])
    table = re.sub(r"\x1b\[[0-9;]*m", "", found.partition("\n")[2].partition("INCOMPARABLE  GPU time")[0])
    assert max(cell_len(line) for line in table.splitlines()) <= width
    assert not re.search(r"\u2026|\.\.\.", table)


@pytest.mark.parametrize("name", MARKUP)
@pytest.mark.parametrize("color", [False, True])
def test_markup_in_a_name_is_shown_as_it_is(name: str, color: bool) -> None:
    assert name in shown(named(name, Status.PASS), color=color)
    planned = PlannedChange(Action.CREATE, name, None, (e.Detail("file", f"kernel {name}"),))
    assert render(plan_table([planned]), width=80, color=color).count(name) == 2
