"""Results as a table: what a spreadsheet reads back."""

from __future__ import annotations

import csv
import io

import pytest

from kernelgauge.judge import RelativeChange, Status
from kernelgauge.printable import printable
from kernelgauge.report.csv_table import COLUMNS, csv_text
from kernelgauge.run import Timer
from tests.builders import run
from tests.test_results import HOSTILE, hostile, results, verdict, workload

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def table(text: str) -> list[dict[str, str]]:
    """The rows as text, by column."""
    return list(csv.DictReader(io.StringIO(text, newline="")))


def typed(text: str) -> list[list[object]]:
    """As a reader that tells numbers from texts: what is not quoted is a number."""
    return list(csv.reader(io.StringIO(text, newline=""), quoting=csv.QUOTE_NONNUMERIC))


def test_of_nothing_there_is_the_heading() -> None:
    assert csv_text([]) == ",".join(f'"{column}"' for column in COLUMNS) + "\r\n"


def test_each_timer_of_a_workload_has_a_row() -> None:
    told = results(workload(verdict(Status.REGRESSED)))
    rows = table(csv_text([told]))
    assert [row["timer"] for row in rows] == ["device_time", "end_to_end", "host_dispatch"]
    first = rows[0]
    assert (first["started_at"], first["gpu_model"], first["torch"]) == (told.started_at, "NVIDIA H200", "2.11.0+cu130")
    assert (first["suite"], first["module"], first["variant"], first["pass"]) == ("perf", "mlp", "compiled", "forward")
    assert first["shape"] == "64x128x768x3072"
    assert (first["verdict"], first["reason"]) == ("REGRESSED", "device time 205.1 -> 221.8 us")
    assert (rows[1]["verdict"], rows[1]["baseline_us"]) == ("", "")


def test_numbers_are_numbers_negative_ones_too() -> None:
    measured = run(device=(200.0, 200.0, 200.0, 200.0), end_to_end=None, host=None)
    faster = verdict(Status.IMPROVED, change=RelativeChange(-0.05, -0.06, -0.04, 0.999))
    heading, row = typed(csv_text([results(workload(faster, run=measured))]))
    named = dict(zip(heading, row, strict=True))
    assert [named[f"{name}_percent"] for name in ("change", "ci_low", "ci_high", "confidence")] == [-5, -6, -4, 99.9]
    assert (named["time_us"], named["baseline_us"]) == (200.0, 205.1)
    assert (named["launches"], named["kernels"], named["replicates"], named["iterations"]) == (4.0, 3.0, 4.0, 40.0)


def test_what_is_not_known_is_empty() -> None:
    told = results(workload(verdict(Status.NO_BASELINE, change=None), run=None), fingerprint=None, gpu=None)
    first = table(csv_text([told]))[0]
    assert [first[name] for name in ("gpu_model", "gpu", "driver", "change_percent", "ci_low_percent")] == [""] * 5


def test_a_workload_that_was_not_measured_has_one_row_with_the_reason() -> None:
    unavailable = workload(name="a", run=None, unavailable="not installed")
    invalid = workload(verdict(Status.INVALID, "measurement", "it was throttled", workload="b"), name="b", run=None)
    rows = table(csv_text([results(unavailable, invalid)]))
    assert [(row["workload"], row["timer"], row["verdict"], row["reason"]) for row in rows] == [
        ("a", "", "", "not installed"),
        ("b", "", "INVALID", "it was throttled"),
    ]


def test_a_time_that_was_judged_and_not_measured_has_a_row() -> None:
    told = workload(verdict(Status.INVALID, Timer.HOST.label, "not measured", change=None), run=None)
    (row,) = table(csv_text([results(told)]))
    assert (row["timer"], row["time_us"], row["verdict"], row["reason"]) == (
        "host_dispatch",
        "",
        "INVALID",
        "not measured",
    )


def test_several_results_stand_in_one_table() -> None:
    first, second = (results(workload(run=run(gpu=gpu)), gpu=gpu) for gpu in ("aa", "bb"))
    assert [row["gpu"] for row in table(csv_text([first, second]))] == ["aa"] * 3 + ["bb"] * 3


def test_each_row_names_the_gpu_that_its_workload_ran_on() -> None:
    """Of results that were merged from several GPUs, the whole has none; nor has what could not run anywhere."""
    measured = (workload(name=gpu, run=run(workload=gpu, gpu=gpu, host=None, end_to_end=None)) for gpu in ("aa", "bb"))
    rows = table(csv_text([results(*measured, workload(name="none", run=None), gpu=None)]))
    assert [(row["workload"], row["gpu"]) for row in rows] == [("aa", "aa"), ("bb", "bb"), ("none", "")]


def test_every_line_ends_as_rfc_4180_says() -> None:
    text = csv_text([results(workload())])
    assert text.count("\r\n") == text.count("\n") == text.count("\r") == 4


@pytest.mark.parametrize("text", [*HOSTILE, *(f"{start}1+1" for start in FORMULA), "  =1+1", "\ud800=1"])
def test_no_text_is_a_formula_or_makes_a_cell_of_its_own(text: str) -> None:
    written = csv_text([hostile(text, Status.REGRESSED, Status.PASS)])
    _, *rows = typed(written)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    texts = [cell for row in rows for cell in row if isinstance(cell, str)]
    assert not [cell for cell in texts if cell.lstrip().startswith(FORMULA)]
    assert printable(text) in {cell.removeprefix("'") for cell in texts}
    assert written.replace("\r\n", "").isprintable()


def test_a_harmless_text_is_as_it_was() -> None:
    (row, *_) = table(csv_text([results(workload(name="mlp-eager: 1 = 1"))]))
    assert row["workload"] == "mlp-eager: 1 = 1"
