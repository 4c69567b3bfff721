"""The summary and the plan as text: within the width, plain without colour, and names shown as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from rich.cells import cell_len

from kernelgauge.judge import Action, PlannedChange, Reason, RelativeChange, Status, Verdict
from kernelgauge.report.rows import Row
from kernelgauge.report.terminal import conditions_text, describe, plan_text, remarks, summary_text
from kernelgauge.run import Conditions, Run
from tests.builders import H200, baseline, fingerprint, run

SLOWER = RelativeChange(0.081, 0.079, 0.084, 0.95)
LONG = "mlp-compiled-train-bf16-64x128x768x3072"
MARKUP = ["[red]x[/red]", "[/red]x", "[bold", "[link=a.b]x[/link]", ":warning:", "\\[red]x"]
CONTROL = ["a\x1b[31mb", "a\x1b]0;title\x07b", "a\x9b31mb", "a\x00b", "a\x08b", "a\x7fb"]


def row(
    workload: str = LONG,
    launches: int | None = 4,
    device_time_us: float | None = 221.8,
    baseline_us: float | None = 205.1,
    change: RelativeChange | None = SLOWER,
    status: Status | None = Status.REGRESSED,
    subjects: tuple[str, ...] = ("device time",),
) -> Row:
    return Row(workload, launches, device_time_us, baseline_us, change, status, subjects)


def summary(*table: Row, width: int = 80, color: bool = False) -> str:
    return summary_text(table, width=width, color=color)


def plan(*changes: PlannedChange, width: int = 80, color: bool = False) -> str:
    return plan_text(changes, width=width, color=color)


def created(workload: str, *details: str) -> PlannedChange:
    return PlannedChange(Action.CREATE, workload, baseline(), details)


def words(text: str) -> str:
    return " ".join(text.split())


# -- what is shown --------------------------------------------------------------------------------------------------


def test_the_summary_reads_like_this() -> None:
    small = RelativeChange(0.0074, 0.001, 0.012, 0.95)
    table = [
        row("mlp-eager-bf16-8x32x64"),
        row("linear-eager-bf16-1024x32x64", 1, 2.72, 2.7, small, Status.PASS, ()),
        row("mlp-liger-bf16-1", None, None, None, None, Status.INVALID, ("measurement",)),
    ]
    assert summary(*table) == (
        "                                     device stored\n"
        "workload                     kernels     us     us change verdict\n"
        "mlp-eager-bf16-8x32x64             4  221.8  205.1 +8.1 % REGRESSED\n"
        "linear-eager-bf16-1024x32x64       1    2.7    2.7 +0.7 % PASS\n"
        "mlp-liger-bf16-1                   -      -      -      - INVALID\n"
    )


def test_below_the_table_stands_what_each_verdict_is_about() -> None:
    table = [row("a", subjects=("device time", "structure")), row("b", status=Status.PASS, subjects=())]
    assert remarks(table, []) == ["REGRESSED  a: device time, structure"]


def test_an_improvement_is_told_in_full_since_it_fails_no_test() -> None:
    better = Verdict(Status.IMPROVED, "a", "device time", "device time 55.4 -> 38.1 us", (Reason("why", "gelu"),))
    assert remarks([], [better]) == ["a: IMPROVED  device time 55.4 -> 38.1 us\n  why      gelu"]


def test_a_pass_is_silent_but_for_what_the_autotuners_choice_costs() -> None:
    plain = Verdict(Status.PASS, "a", "device time", "as before")
    tuned = plain.because(Reason("tuning", "drawn 3 of 4"))
    assert remarks([], [plain, tuned]) == ["a: PASS  as before\n  tuning   drawn 3 of 4"]


def test_remarks_slower_gpu_is_told_once() -> None:
    moved = Reason("machine", "the GPU itself changed its speed (reference copy +0.1 %, gemm +1.0 %)")
    verdicts = [Verdict(Status.PASS, name, "device time", "as before", (moved,)) for name in ("one", "two", "three")]
    assert remarks([], verdicts) == [f"machine: {moved.text}"]


def test_what_failed_its_test_is_not_told_twice() -> None:
    assert remarks([], [Verdict(Status.REGRESSED, "a", "device time", "slower")]) == []


@pytest.mark.parametrize("status", Status)
def test_every_status_is_shown_by_its_name(status: Status) -> None:
    for color in (False, True):
        assert status.value in summary(row("a", status=status, subjects=()), color=color)


def test_a_workload_without_a_status_is_shown() -> None:
    assert summary(row("a", status=None)).splitlines()[-1].split()[-1] == "-"


def test_an_improvement_has_its_sign() -> None:
    assert "-12.3 %" in summary(row("a", change=RelativeChange(-0.123, -0.13, -0.12, 0.95)))


@pytest.mark.parametrize("action", Action)
def test_every_action_of_a_plan_is_shown(action: Action) -> None:
    for color in (False, True):
        assert action.value in plan(PlannedChange(action, "a", None), color=color)


def test_the_plan_lists_each_file_with_what_moves_in_it() -> None:
    assert plan(
        created("linear-eager", "1 launches", "device time 2.7 us"),
        PlannedChange(Action.KEEP, "mlp-eager", None),
        PlannedChange(Action.TRIM, "mlp-old", None, ("the suite no longer declares it",)),
    ) == (
        "create  linear-eager  1 launches\n"
        "                      device time 2.7 us\n"
        "keep    mlp-eager     unchanged within noise: the file stays as it is\n"
        "trim    mlp-old       the suite no longer declares it\n"
    )


def test_an_empty_plan_says_so() -> None:
    assert plan() == "nothing to update\n"


def test_the_machine_is_described_in_one_line_without_what_is_not_there() -> None:
    assert describe(H200) == (
        "NVIDIA H200, driver 580.159.04, CUDA 13.0, torch 2.11.0+cu130, triton 3.6.0, liger-kernel 0.8.5"
    )
    cpu = fingerprint(device="AMD EPYC", driver=None, cuda=None, triton=None, liger_kernel=None, torch="2.13.0+cpu")
    assert describe(cpu) == "AMD EPYC, torch 2.13.0+cpu"


# -- conditions -----------------------------------------------------------------------------------------------------


AT_1980 = {"lowest_sm_clock_mhz": 1980, "median_sm_clock_mhz": 1980.0}


def watched(**conditions: Any) -> Run:
    return run(conditions=Conditions(**conditions))


def test_the_conditions_of_all_runs_are_one_line() -> None:
    first = watched(
        lowest_sm_clock_mhz=1905,
        median_sm_clock_mhz=1980.0,
        max_temperature_c=51,
        max_power_watts=612.4,
        throttled_ms={"power cap": 20.4},
    )
    second = watched(
        lowest_sm_clock_mhz=1980,
        median_sm_clock_mhz=1980.0,
        max_temperature_c=60,
        max_power_watts=300.0,
        throttled_ms={"power cap": 10.0, "sync boost": 0.4},
    )
    assert conditions_text([first, run(), second], "") == [
        "conditions: SM clock 1980 MHz, lowest 1905, 60 C, 612 W, power cap for 30 ms"
    ]


def test_the_clock_is_the_median_of_the_runs_medians() -> None:
    """Not their highest lowest reading: each run may dip for a moment, and one run may be slow all the time."""
    dips = [watched(lowest_sm_clock_mhz=low, median_sm_clock_mhz=1980.0) for low in (1905, 1890)]
    slow = watched(lowest_sm_clock_mhz=1755, median_sm_clock_mhz=1800.0)
    assert conditions_text([*dips, slow], "") == ["conditions: SM clock 1980 MHz, lowest 1755"]


def test_what_is_not_known_of_the_conditions_is_left_out() -> None:
    assert conditions_text([watched(**AT_1980)], "") == ["conditions: SM clock 1980 MHz"]
    assert conditions_text([watched()], "") == []


def test_why_nobody_watched_is_said_where_something_ran() -> None:
    assert conditions_text([run()], "no NVML") == ["conditions not watched: no NVML"]
    assert conditions_text([run()], "") == []
    assert conditions_text([], "no NVML") == []


# -- how it is shown ------------------------------------------------------------------------------------------------

WIDE: list[Sequence[Row]] = [
    [row()],
    [row(LONG * 5)],
    [row("\u4e2d\u6587" * 40)],  # two cells each
    [row(launches=1_234_567, device_time_us=98_765_432.1, baseline_us=99_999.99)],
    [row(change=RelativeChange(123456.0, 1.0, 2.0, 0.95), status=Status.INCOMPARABLE)],
    [row(subjects=("structure", "device time", "end to end", "host dispatch"))],
    [row(f"{LONG}-{index}") for index in range(30)],
]


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("table", WIDE)
def test_the_summary_is_never_wider_than_the_terminal(table: Sequence[Row], color: bool, width: int) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", summary(*table, width=width, color=color))
    assert max(cell_len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("table", WIDE)
def test_at_80_columns_no_number_is_cut(table: Sequence[Row]) -> None:
    text = summary(*table)
    assert "\u2026" not in text
    assert "..." not in text


@pytest.mark.parametrize("subjects", [("device time",), ("structure", "device time")])
def test_a_name_of_a_default_workload_stays_on_one_line_at_80_columns(subjects: tuple[str, ...]) -> None:
    name = "mlp-compiled-bf16-64x128x768x3072"
    assert name in summary(row(name, subjects=subjects))


def test_a_long_name_is_folded_and_not_cut() -> None:
    lines = summary(row(LONG * 5, subjects=())).splitlines()[2:]
    assert "".join(line.split(" ")[0] for line in lines) == LONG * 5


@pytest.mark.parametrize("color", [False, True])
def test_the_plan_is_never_wider_than_the_terminal(color: bool) -> None:
    changes = [created(LONG * 3, "device time 205.1 -> 221.8 us (+8.1 %) " * 5), created("a", "x" * 300)]
    text = re.sub(r"\x1b\[[0-9;]*m", "", plan(*changes, color=color))
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert text.replace("\n", "").count("x") >= 300


def test_no_line_ends_in_spaces() -> None:
    for text in (summary(row("a"), row(LONG)), plan(created("a", "b"))):
        assert [line for line in text.splitlines() if line != line.rstrip()] == []
        assert text.endswith("\n")


@pytest.mark.parametrize("status", Status)
def test_without_colour_there_are_no_escape_sequences(status: Status) -> None:
    assert "\x1b" not in summary(row(status=status))
    assert "\x1b" not in plan(*(PlannedChange(action, "a", None, ("b",)) for action in Action))


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"])
def test_without_colour_there_is_none_whatever_the_environment(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    assert "\x1b" not in summary(row())


def test_with_colour_a_regression_is_red_and_a_pass_green() -> None:
    assert "\x1b[1;31mREGRESSED" in summary(row("a"), color=True)
    assert "\x1b[32mPASS" in summary(row("a", status=Status.PASS, subjects=()), color=True)


def test_the_environment_does_not_set_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert max(map(len, summary(row(LONG * 5)).splitlines())) <= 80


# -- names are not trusted ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MARKUP)
@pytest.mark.parametrize("color", [False, True])
def test_markup_in_a_name_is_shown_as_it_is_in_the_summary(name: str, color: bool) -> None:
    assert name in summary(row(name), color=color)


@pytest.mark.parametrize("name", MARKUP)
def test_markup_in_a_detail_is_shown_as_it_is_in_the_plan(name: str) -> None:
    assert name in plan(created("a", f"kernel {name}"))


@pytest.mark.parametrize("name", [name for name in MARKUP if name != "[bold"])
def test_markup_in_a_name_is_shown_as_it_is_in_the_plan(name: str) -> None:
    assert name in plan(created(name))


@pytest.mark.parametrize("name", [name for name in CONTROL if name != "a\x08b"])
def test_control_characters_in_a_name_do_not_reach_the_terminal(name: str) -> None:
    for text in (summary(row(name)), plan(created("a", name)), describe(fingerprint(device=name))):
        assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("name", ["a\nb", "a\x85b", "a\u2028b"])
def test_a_line_break_in_a_name_makes_no_line_of_its_own(name: str) -> None:
    assert len(summary(row(name, subjects=())).splitlines()) == len(summary(row("ab", subjects=())).splitlines())
