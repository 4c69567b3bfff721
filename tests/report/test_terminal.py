"""The summary and the plan as text: what they say of each verdict, and names shown as they are."""

import dataclasses
import re
from typing import Any

import pytest
from msgspec.structs import replace

from kernelgauge.judge import Status
from kernelgauge.judge import evidence as e
from kernelgauge.judge.review import Action, PlannedChange
from kernelgauge.report.findings import brief
from kernelgauge.report.html import html
from kernelgauge.report.stored import plan_section
from kernelgauge.report.summary import summary, summary_markdown
from kernelgauge.report.text import as_text
from kernelgauge.results import WorkloadResult
from tests.builders import (
    calibrated,
    fingerprint,
    judged_time,
    results,
    run,
    summary_text,
    verdict,
    workload,
)

MARKUP = ["[red]x[/red]", "[/red]x", "[link=a.b]x[/link]", ":warning:", "\\[red]x"]
CPU = fingerprint(
    arch="cpu",
    device="AMD EPYC",
    driver=None,
    cuda=None,
    triton=None,
    liger_kernel=None,
    torch="2.13.0",
)


def shown(*workloads: WorkloadResult, **changes: Any) -> str:
    return summary_text(results(*workloads), **changes)


def named(name: str, status: Status = Status.REGRESSED, **changes: Any) -> WorkloadResult:
    return workload(verdict(status, workload=name, **changes), name=name)


def test_summary_shows_no_change_of_a_time_that_is_not_judged() -> None:
    unjudged = verdict(Status.NOT_JUDGED, change=e.RelativeChange(1.5, None, None, 0.99))
    assert "+150" not in shown(workload(unjudged))
    assert re.search(r"(?m)^mlp\S+ +4 NO VERDICT$", shown(workload(run=run(device=None))))


def test_reports_of_a_cpu_name_no_gpu() -> None:
    before = calibrated(
        [replace(run(workload="a", machine=CPU), day=f"2026-01-0{day}") for day in range(1, 6)]
    )
    slower = run(workload="a", machine=CPU, device=(410.0, 410.4), incomplete="interrupted")
    verdicts = [judged_time(timer, slower, before) for timer in slower.judged_timers]
    assert [verdict.subject for verdict in verdicts] == ["end to end", "host dispatch"]
    found = results(
        workload(*verdicts, name="a", run=slower, baseline=before), fingerprint=CPU, gpu=None
    )
    said = "\n".join([summary_text(found), *map(brief, verdicts)])
    assert said.startswith("AMD EPYC, torch 2.13.0\n")
    assert "  end to   base-" in said
    judged = verdicts[0]  # what the table shows is what is judged, and not the time of the ops
    us = [f"{each:.1f}" for each in (judged.after_us or 0.0, judged.before_us or 0.0)]
    assert re.search(rf"(?m)^a +4 +{' +'.join(us)} +-0.0 % +[A-Z]", said), said
    page = html([found])
    script = page[page.index("<style>") : page.index("</style>")]  # of any report
    for text in (said, summary_markdown([found]), page.replace(script, "")):
        assert "end to end" in text
        assert "GPU" not in text


@pytest.mark.parametrize(
    ("after_us", "shown_us", "note"),
    [
        (206.5, "206.5 116.0 +78.0 %", " (this host was 16 % slower)"),
        (178.0, "178.0 100.0 +78.0 %", ""),
        (176.7, "176.7 99.3 +78.0 %", ""),
    ],
)
def test_change_at_equal_host_speed_agrees_with_its_numbers(
    after_us: float, shown_us: str, note: str
) -> None:
    change = e.RelativeChange(0.78, 0.6, 0.9, 0.99)
    slower = dataclasses.replace(
        verdict(Status.REGRESSED, "end to end", change=change),
        conclusion=e.TimeCompared(at_host_speed=True),
        before_us=100.0,
        after_us=after_us,
    )
    assert brief(slower).partition("\n")[0] == (
        f"{slower.workload}: REGRESSED  end to end {shown_us.split()[1]} -> {after_us} us  "
        f"+78.00 % (+60.00 … +90.00) at equal host speed{note}"
    )
    one = workload(slower, run=run(machine=CPU, end_to_end=(after_us,) * 4))
    found = results(one, fingerprint=CPU, gpu=None)
    said = summary_text(found)
    assert f" 4 {shown_us} REGRESSED" in " ".join(said.split())
    assert f">{shown_us.split()[1]} -&gt; {after_us} us  +78.00 % (+" in html([found])
    assert ("scaled to the speed of this host" in said) is bool(note)


@pytest.mark.parametrize(
    ("statuses", "status", "about"),
    [
        ({}, "PASS", "time not judged"),
        (
            {"GPU time": Status.PASS, "end to end": Status.NOT_JUDGED},
            "PASS",
            "end to end not judged",
        ),
        ({"GPU time": Status.REGRESSED, "end to end": Status.NOT_JUDGED}, "REGRESSED", "GPU time"),
    ],
)
def test_every_report_says_that_a_pass_has_no_time(
    statuses: dict[str, Status], status: str, about: str
) -> None:
    one = workload(
        verdict(Status.PASS, "structure"),
        *(verdict(each, subject) for subject, each in statuses.items()),
    )
    assert re.search(rf" {status} *{about}\n", shown(one, width=120))
    markdown, page = summary_markdown([results(one)]), html([results(one)])
    assert f"1 workload (1 {status})" in markdown
    assert markdown.startswith("> [!WARNING]\n> **PASS, structure only**") is (
        about == "time not judged"
    )
    assert ("s-pass--structure" in page.replace('"', " ").partition("<header")[2][:99]) is (
        about == "time not judged"
    )


def test_pass_of_results_alone_claims_no_structure() -> None:
    found = results(workload(verdict(Status.PASS, "numerics")))
    assert summary_markdown([found]).startswith("> [!WARNING]\n> **PASS, results only**")
    assert "PASS, results only: no time was measured" in summary_text(found)
    assert "s-pass--results" in html([found])


def seen(sensitivity: float | None = None) -> e.RelativeChange:
    return e.RelativeChange(0.0, -0.1, 0.1, 0.99, sensitivity)


SCOPES = {
    "all": (
        [("GPU time", 0.01), ("end to end", 0.767)],
        "PASS (kernels, GPU time at +1 %, end to end at +77 %)",
    ),
    "one": (
        [("GPU time", None), ("end to end", 0.767), ("end to end", 0.95), ("end to end", None)],
        "PASS (kernels, end to end at +77 to +95 % in 2 of 3); GPU time not judged",
    ),
    "none": ([("GPU time", None), ("end to end", None)], "PASS, structure only"),
}


@pytest.mark.parametrize(("times", "headline"), SCOPES.values(), ids=list(SCOPES))
def test_headline_of_a_pass_says_what_was_judged(
    times: list[tuple[str, float | None]], headline: str
) -> None:
    judged = [
        verdict(
            Status.NOT_JUDGED if at is None else Status.PASS, subject, "why not", change=seen(at)
        )
        for subject, at in times
    ]
    found = results(workload(verdict(Status.PASS, "structure"), *judged))
    assert f"**{headline}**  1 workload" in summary_markdown([found])
    title = re.sub("<[^>]*>", "", re.search("<h1>(.*)</h1>", html([found]))[1])
    assert title == headline
    left = sum(at is None for _, at in times)
    why = f"{left} of {len(times)} times not judged: why not"
    assert (f"{headline}\n{why}" if "(" in headline and left else headline) in summary_text(found)


def test_summary_after_an_update_says_recorded() -> None:
    text = shown(
        *(named(name, Status.NO_BASELINE) for name in "ab"), named("c"), recorded=["a", "c"]
    )
    assert re.findall(r"^[abc] .* ([A-Z_]{8,})", text, re.MULTILINE) == [
        "RECORDED",
        "NO_BASELINE",
        "REGRESSED",
    ]


MOVED = "the GPU itself changed its speed (reference copy +2.0 %)"
OWN = e.Machine((("copy", 0.02),), is_own=True)
CHOICE = e.ChoiceMoved("gelu", "SIZE=1", "SIZE=2", gain=0.04)
CHOSEN = workload(verdict(workload="b", reasons=[("why", "x")]).because(CHOICE), name="b")
TUNED = "gelu: the autotuner chose SIZE=2 instead of SIZE=1  4.0 % faster when it was tuned"
TIMES = "GPU time 205.1 -> 221.8 us"
IN_FULL = [
    (
        [named("a", Status.IMPROVED, reasons=[("why", "x")])],
        [f"a: IMPROVED  {TIMES}", "  why      x", "IMPROVED (GPU time)"],
    ),
    (
        [named("a", Status.PASS), CHOSEN],
        [
            f"b: PASS  {TIMES}",
            f"  tuning   {TUNED}",
            "PASS (GPU time)",
        ],
    ),
    (
        [workload(verdict(workload=name).because(OWN), name=name) for name in "abc"],
        ["PASS (GPU time)", f"machine: {MOVED}"],
    ),
]


@pytest.mark.parametrize(("workloads", "lines"), IN_FULL)
def test_summary_tells_in_full_what_fails_no_test(
    workloads: list[WorkloadResult], lines: list[str]
) -> None:
    told = shown(*workloads).splitlines()
    table = next(place for place, line in enumerate(told) if line.startswith("workload "))
    assert told[table + len(workloads) + 1 :] == lines


@pytest.mark.parametrize("name", MARKUP)
@pytest.mark.parametrize("color", [False, True])
def test_markup_in_a_name_is_shown_as_it_is(name: str, color: bool) -> None:
    assert name in shown(named(name, Status.PASS), color=color)
    planned = PlannedChange(Action.CREATE, name, None, (e.Detail("file", f"kernel {name}"),))
    assert as_text([plan_section([planned])], width=80, color=color).count(name) == 2


def test_table_leaves_out_dashes_and_the_middle_of_ids() -> None:
    ids = [f"test_model-{'x' * 60}-{number}" for number in (64, 128)]
    said = shown(*(workload(name=each, run=run(device=None)) for each in ids))
    rows = [line.split() for line in said.splitlines() if line.startswith(("workload", "test_"))]
    assert rows[0] == ["workload", "launches", "verdict"]
    assert [len(row) for row in rows[1:]] == [4, 4]
    assert all(
        re.fullmatch(rf"test_model-x+…x+-{number}", row[0])
        for number, row in zip((64, 128), rows[1:], strict=True)
    )
    assert max(map(len, said.splitlines()[1:])) <= 80


@pytest.mark.parametrize(
    ("references_us", "said"),
    [
        ((12.0,), "this host was 20 % slower (reference 10.0 -> 12.0 us)"),
        ((12.0, 14.5), "this host was 20 to 45 % slower"),
        ((8.0, 14.5), "this host was 20 % faster to 45 % slower"),
        ((8.0, 9.0), "this host was 10 to 20 % faster"),
    ],
)
def test_summary_names_all_speeds_of_a_host(references_us: tuple[float, ...], said: str) -> None:
    times = [
        workload(
            verdict(Status.PASS, "structure", workload=f"w{us}"),
            verdict(Status.NOT_JUDGED, "end to end", workload=f"w{us}").because(
                e.OtherHostSpeed(10.0, us)
            ),
            name=f"w{us}",
        )
        for us in references_us
    ]
    found = results(*times)
    assert re.search(rf"(?m)not judged: {re.escape(said)}$", summary_text(found))
    assert said in summary_markdown([found])


def test_summary_says_what_was_not_compared_with_float64() -> None:
    found = [
        verdict(Status.PASS, "structure"),
        dataclasses.replace(
            verdict(Status.PASS, "numerics"), conclusion=e.NumericsCompared("float64", "", 3)
        ),
    ]
    reasons = ["its result is random", "a copy in float64 does not run", "its result is random"]
    left = [verdict(Status.NOT_JUDGED, "numerics", f"not judged: {each}") for each in reasons]
    where = e.Detail("where", "net.py:9 in forward: raise TypeError")
    left[1] = dataclasses.replace(left[1], reasons=(where,))
    several = results(
        workload(*found), *(workload(it, name=f"w{place}") for place, it in enumerate(left))
    )
    lines = [
        "3 tensors not compared: rounding alone explains any error",
        "3 of 4 results not compared: its result is random (2), a copy in float64 does not run (1)",
    ]
    assert "\n".join(lines) in summary_text(several)
    assert where.text not in summary_text(several)
    assert where.text in as_text(summary(several, is_verbose=True), width=80, color=False)
    assert ", ".join(lines) in summary_markdown([several])
    assert where.text in summary_markdown([several])
    assert where.text in html([several])
