"""What others published, beside a run: the same figure of the same kernel, or why there is none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernelgauge.report.html import html
from kernelgauge.report.published import Figure, FigureTable, figure_tables
from kernelgauge.report.pull_request import summary_markdown
from kernelgauge.results import Published, decode_results, encode_results
from kernelgauge.run import Run
from tests.builders import WORKLOAD, fingerprint, launched, mlp_kernels, run
from tests.report.pages import HOSTILE, Parsed
from tests.report.test_pull_request import rendered, texts
from tests.test_results import one_test, results, workload

A100 = "NVIDIA A100-SXM4-80GB"
CPU = fingerprint(device="AMD EPYC", arch="cpu")


def published(value: float = 89.4, unit: Any = "us", **changes: Any) -> Published:
    """Of the one pointwise kernel of the compiled MLP."""
    fields = {
        "figure": "the fused kernel",
        "device": A100,
        "source": "An article",
        "url": "https://example.org/article",
    }
    return Published(value=value, unit=unit, **(fields | {"claim": "C23", "kind": "pointwise"} | changes))


def figure(one: Published, observed: Run | None = None) -> Figure:
    (table,) = figure_tables(results(workload(run=observed or run(), published=(one,))))
    (found,) = table.figures
    return found


# -- what is set beside what ------------------------------------------------------------------------------------------


def test_a_figure_stands_beside_the_same_kernel_of_this_run() -> None:
    assert figure(published()) == Figure("C23", WORKLOAD, "the fused kernel", "89.4 us", "38.1 us", "0.43")


def test_a_kernel_is_found_by_its_place_among_those_of_its_kind() -> None:
    gemms = [figure(published(0.19, "ms", kind="gemm", place=place)) for place in range(3)]
    assert [(one.published, one.now, one.ratio) for one in gemms] == [
        ("0.19 ms", "56.0 us", "0.29"),
        ("0.19 ms", "58.0 us", "0.31"),
        ("0.19 ms", "53.0 us", "0.28"),
    ]


@pytest.mark.parametrize(("kind", "now", "ratio"), [(None, "4", "0.80"), ("gemm", "3", "0.60")])
def test_launches_are_counted(kind: str | None, now: str, ratio: str) -> None:
    one = figure(published(5, "launches", kind=kind))
    assert (one.published, one.now, one.ratio) == ("5", now, ratio)


def test_the_time_of_a_whole_call_is_that_of_its_sample() -> None:
    assert figure(published(410.2, kind=None), run(device=(205.0, 205.2))).now == "205.1 us"
    assert figure(published(410.2, kind=None), run(device=(205.0, 205.2))).ratio == "0.50"


def test_each_source_on_each_machine_has_a_table_of_its_own() -> None:
    mine = (published(), published(1, "launches"), published(70.0, device="NVIDIA H100"), published(url="elsewhere"))
    tables = figure_tables(results(workload(published=mine), workload(name="other", published=(published(),))))
    assert [(table.device, table.url, len(table.figures)) for table in tables] == [
        (A100, "https://example.org/article", 3),
        ("NVIDIA H100", "https://example.org/article", 1),
        (A100, "elsewhere", 1),
    ]
    assert [each.workload for each in tables[0].figures] == [WORKLOAD, WORKLOAD, "other"]
    assert {table.here for table in tables} == {"NVIDIA H200"}


# -- nothing is invented ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [published(), published(5, "launches"), published(kind=None)])
def test_what_a_cpu_runs_is_not_set_beside_a_gpu(one: Published) -> None:
    found = figure(one, run(machine=CPU))
    assert (found.now, found.ratio) == ("not comparable: no GPU", "")


@pytest.mark.parametrize("changes", [{"kind": "reduction"}, {"place": 1}, {"place": -1}])
def test_a_kernel_that_this_run_lacks_is_said_to_be_missing(changes: dict[str, Any]) -> None:
    found = figure(published(**changes))
    assert (found.now, found.ratio) == ("not comparable: no such kernel", "")


def test_what_was_not_measured_has_no_figure_here() -> None:
    (table,) = figure_tables(results(workload(run=None, published=(published(),)), fingerprint=None))
    assert [(one.now, one.ratio) for one in table.figures] == [("not measured", "")]
    assert table.here == ""
    assert figure(published(kind=None), run(device=None)).now == "not measured"


def test_where_nothing_was_published_nothing_is_shown() -> None:
    told = results(workload())
    assert figure_tables(told) == ()
    assert "published" not in summary_markdown([told])
    assert "Claims of the suite" not in html([told])


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_published_value_is_a_positive_number(value: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        published(value)


def test_a_unit_that_no_report_knows_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ValueError, match="launches, us, ms, got 's'"):
        published(1.0, "s")


# -- how it is shown --------------------------------------------------------------------------------------------------

TOLD = results(workload(published=(published(), published(4, "launches", kind=None, claim="C14", figure="kernels"))))
CELLS = ["C23", WORKLOAD, "the fused kernel", "89.4 us", "38.1 us", "0.43"]


def test_the_page_names_the_source_and_both_machines() -> None:
    page = Parsed(html([decode_results(encode_results(TOLD), where="a test")]))
    table = page.one("table", class_="figures")
    after = page.elements[page.elements.index(table) :]
    cells = [each.text for each in after if each.tag in ("td", "th")][: 6 + len(CELLS)]
    assert cells == ["claim", "workload", "figure", A100, "this run: NVIDIA H200", "ratio", *CELLS]
    (said,) = [each.text for each in page.all("caption") if "article" in each.text]
    assert said.startswith("An article (https://example.org/article).")


def test_the_page_makes_no_link_of_an_address_from_a_file() -> None:
    page = Parsed(html([TOLD]))
    assert not [each for each in page.all("a") if "example.org" in each.attributes["href"]]


def test_the_pull_request_has_them_folded_below_everything_else() -> None:
    told = summary_markdown([TOLD])
    page = rendered(told)
    assert [each.text for each in page.iter("summary")] == ["2 published figures"]
    assert texts(page)[-12:-6] == CELLS
    assert texts(page)[-6:] == ["C14", WORKLOAD, "kernels", "4", "4", "1.00"]
    assert told.rstrip().endswith("</details>")


def test_they_are_the_first_that_a_short_page_leaves_out_and_claims_the_next() -> None:
    figures = tuple(published(claim=f"C{number}") for number in range(1, 21))
    told = results(workload(published=figures), tests=tuple(one_test(f"test_c{n:02}_a") for n in range(1, 21)))
    whole = summary_markdown([told])
    assert "Left out" not in whole
    seen: list[tuple[int, int]] = []
    for limit in range(1000, len(whole.encode()) + 500, 100):
        shown = summary_markdown([told], limit_bytes=limit)
        seen.append((shown.count("| a | 0 | 1 | 0 |"), shown.count("| 89.4 us |")))
    assert all(claims == 20 or figures == 0 for claims, figures in seen)
    assert seen == sorted(seen)
    assert {(0, 0), (20, 0), (20, 20)} < set(seen)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_figure_becomes_markup(text: str) -> None:
    def hostile(said: str) -> Any:
        strange = published(figure=said, device=said, source=said, url=said, claim=said, kind=said)
        return results(workload(run=run(kernels=(launched("a", 1.0, kind=said),)), published=(strange,)))

    page, harmless = Parsed(html([hostile(text)])), Parsed(html([hostile("harmless")]))
    assert {each.tag for each in page.elements} <= {each.tag for each in harmless.elements} | {"details"}
    assert {name for each in page.elements for name in each.attributes} <= {
        name for each in harmless.elements for name in each.attributes
    }
    told = summary_markdown([hostile(text)])
    assert {each.tag for each in rendered(told).iter()} == {
        each.tag for each in rendered(summary_markdown([hostile("harmless")])).iter()
    }
    assert all(character == "\n" or character.isprintable() for character in told)


def test_numbers_that_nobody_measures_break_nothing() -> None:
    for value in (5e-324, 1.7e308):
        for unit in ("us", "ms", "launches"):
            for us in (5e-324, 1.7e308, 0.0, -5.0):
                kernels = (launched("a", us, kind="pointwise"),)
                told = results(workload(run=run(kernels=kernels), published=(published(value, unit),)))
                assert len(figure_tables(told)[0].figures[0].ratio) < 12
                assert html([told])


def test_old_results_have_none() -> None:
    content = msgspec.json.decode(encode_results(TOLD))
    for each in content["workloads"]:
        del each["published"]
    old = decode_results(msgspec.json.encode(content), where="an old file")
    assert [each.published for each in old.workloads] == [()]
    assert figure_tables(old) == ()


def test_figures_come_back_from_a_file_as_they_were() -> None:
    assert decode_results(encode_results(TOLD), where="a test") == TOLD
    assert isinstance(figure_tables(TOLD)[0], FigureTable)
    assert mlp_kernels()[2].device_time_us == 38.1  # what CELLS says
