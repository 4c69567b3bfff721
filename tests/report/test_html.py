"""The HTML report as text: well formed, self-contained, small, and deaf to what stands in the names it shows."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from kernelgauge.judge import RelativeChange, Status, Verdict
from kernelgauge.report.html import html
from kernelgauge.results import Results, TestResult
from kernelgauge.run import Roof
from kernelgauge.trace.work import Work, work_of

from ..builders import baseline, fingerprint, launched, mlp_kernels, run
from .pages import HOSTILE, Parsed, everything, regressed, results, several, workload

# -- what it says ---------------------------------------------------------------------------------------------------


def test_the_first_heading_is_the_worst_verdict_and_the_first_section_what_is_wrong() -> None:
    page = Parsed(html([results(workload(), regressed())]))
    assert page.one("h1").text == "REGRESSED"
    assert page.all("h2")[0].text == "What is wrong"
    assert page.one("p", class_="sentence").text == "Of 2 workloads: 1 regressed, 1 passed."
    assert page.one("p", class_="machine").text.startswith("NVIDIA H200, driver 580.159.04")
    (card,) = page.all("article")
    assert "s-regressed" in card.attributes["class"]
    assert any("the gelu is slower" in each.text for each in page.all("span", class_="why"))


def test_where_all_is_well_nothing_is_called_wrong() -> None:
    page = Parsed(html([results()]))
    assert page.one("h1").text == "PASS"
    assert "What is wrong" not in [heading.text for heading in page.all("h2")]


@pytest.mark.parametrize("changes", [{"exit_status": 3}, {"tests": (TestResult("t.py::test_a", None, "failed", 0.1),)}])
def test_verdicts_that_pass_are_no_pass_where_pytest_failed(changes: dict[str, Any]) -> None:
    assert Parsed(html([results(**changes)])).one("h1").text == "FAILED"


def test_no_results_and_nothing_judged_are_no_pass() -> None:
    assert Parsed(html([])).one("h1").text == "NOTHING JUDGED"
    assert Parsed(html([results(workload(verdicts=()))])).one("h1").text == "NOTHING JUDGED"


def test_a_failure_on_one_kind_of_gpu_is_not_hidden_by_a_later_run_on_another() -> None:
    other = results(workload(), fingerprint=fingerprint(device="NVIDIA A100-SXM4-80GB"))
    page = Parsed(html([results(regressed()), other]))
    assert page.one("h1").text == "REGRESSED"
    assert len(page.all("details", class_="workload")) == 2


def test_earlier_run_on_same_kind_of_gpu_is_no_verdict() -> None:
    page = Parsed(html([results(regressed("mlp-eager-bf16-8")), results(workload(), started_at="2026-11-21T00:00:00")]))
    assert page.one("h1").text == "PASS"
    assert len(page.all("details", class_="workload")) == 1


def test_change_of_machine_between_runs_is_listed() -> None:
    assert "driver 580.159.04 -&gt; 590.1" in html(several())


def test_the_lanes_of_variants_that_compute_the_same_stand_together_to_scale() -> None:
    short = run(workload="b", kernels=mlp_kernels()[:2])
    page = Parsed(html([results(workload("a"), workload("b", variant="liger", observed=short, baseline=None))]))
    widths: dict[str, float] = {}
    label = ""
    for element in page.elements:
        label = element.attributes["aria-label"] if element.attributes.get("class") == "lane" else label
        if element.tag == "svg" and element.attributes.get("height") == "58":
            widths[label] = widths.get(label, 0.0) + float(element.attributes["width"].rstrip("%"))
    eager, liger = (widths[next(each for each in widths if f"8, {variant}:" in each)] for variant in ("eager", "liger"))
    assert eager == pytest.approx(100, abs=0.1)
    assert liger == pytest.approx(100 * (56 + 58) / 205.1, abs=0.1)


def test_a_kernel_that_the_baseline_lacks_is_marked_in_the_lane_and_in_the_table() -> None:
    page = Parsed(html([results(regressed())]))
    assert [each.text for each in page.all("b", class_="mark")] == ["new"]
    assert any("marked" in bar.attributes["class"] for bar in page.all("rect"))


def test_a_test_says_what_failed_once() -> None:
    one = regressed()
    said = TestResult("t.py::test_device_time[x]", one.id, "failed", 0.1, "Device time.", str(one.verdicts[0]))
    other = TestResult(
        "t.py::test_order[x]", one.id, "failed", 0.1, "In order.", "E assert 6 == 5\nE where 6 = launches"
    )
    text = html([results(one, tests=(said, other))])
    assert "says: the verdict on device time" in text
    assert "E where 6 = launches" in text
    assert text.count("by a lot") == 1


def test_links_lead_to_the_trace_and_to_the_table_beside_the_page() -> None:
    links = [each.attributes["href"] for each in Parsed(html([results()])).all("a")]
    assert "traces/mlp-eager-bf16-8.json.gz" in links
    assert "traces/mlp-eager-bf16-8.txt" in links


def test_what_was_not_run_is_said_with_its_reason() -> None:
    missing = workload(run=None, baseline=None, verdicts=(), unavailable="needs a GPU", trace=None)
    assert "not run: mlp-eager-bf16-8: needs a GPU" in html([results(missing)])


# -- the limit of each kernel ----------------------------------------------------------------------------------------

MM = work_of("aten::mm", ((8192, 768), (768, 3072)), ("c10::BFloat16", "c10::BFloat16"))
MOVED = Work(flops=None, bytes=150_994_944)
ROOF = Roof(memory_gb_per_s=4280.0, gemm_tflop_per_s=756.0)


def limits(**changes: Any) -> list[str]:
    """The column of the limit; nothing where there is none."""
    observed = run(**({"work": (MM, MM, MOVED, None), "roof": ROOF} | changes))
    page = html([results(workload(observed=observed))])
    return re.findall(r'<td class="num">((?:(?:&gt;= )?\d+ % \w+<br>.*)?)</td>\n<td class="code small">', page)


def test_kernel_limit_is_of_the_gemm_or_the_copy() -> None:
    gate, up, fused, down = limits()
    assert gate == "91 % bf16<br>690 TFLOP/s"  # 38.65 GFLOP in 56.0 us
    assert up == "88 % bf16<br>666 TFLOP/s"
    assert fused == "&gt;= 93 % memory<br>&gt;= 3963 GB/s"  # Inductor's may write in place
    assert down == ""


@pytest.mark.parametrize("work", [(), (MM,)])
def test_kernel_limit_without_the_work_is_empty(work: tuple[Work, ...]) -> None:
    assert limits(work=work) == ["", "", "", ""]


def test_kernel_limit_without_reference_has_no_column() -> None:
    assert "4280 GB/s" in html([results(workload(observed=run(roof=ROOF)))])
    assert "of the limit" not in html([results(workload(observed=run(work=(MM, MM, MOVED, None))))])


# -- what it is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [[], [results()], [results(workload(), regressed())], several()])
def test_the_page_is_well_formed_and_every_inner_link_leads_somewhere(shown: list[Results]) -> None:
    page = Parsed(html(shown))
    identifiers = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    assert len(identifiers) == len(set(identifiers))
    inner = {each.attributes["href"][1:] for each in page.all("a") if each.attributes["href"].startswith("#")}
    assert inner <= set(identifiers)


def test_the_page_loads_nothing_and_its_policy_allows_its_own_style_and_script_alone() -> None:
    page = Parsed(html([results(workload(), regressed())]))
    policy = page.all("meta", http_equiv="x") or [e for e in page.all("meta") if "http-equiv" in e.attributes]
    said = policy[0].attributes["content"]
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.one(tag).text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in said
    assert said.startswith("default-src 'none'")
    assert "unsafe" not in said
    assert not [each for tag in ("link", "img", "iframe", "object") for each in page.all(tag)]
    assert not any({"src", "style"} & set(each.attributes) for each in page.elements)


def test_the_same_results_make_the_same_page_in_another_process() -> None:
    script = (
        "import sys; from kernelgauge.report.html import html; from tests.report.pages import several; "
        "sys.stdout.write(html(several()))"
    )
    pages = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=120).stdout
        for _ in range(2)
    ]
    assert pages[0] == pages[1] == html(several()).encode()


# -- what it withstands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_results_file_becomes_markup(text: str) -> None:
    # The same page of a harmless text: what is around the texts must be the same elements.
    page, harmless = Parsed(html([everything(text)])), Parsed(html([everything("harmless")]))
    allowed = {(each.tag, name) for each in harmless.elements for name in each.attributes} | {("a", "href")}
    assert {(each.tag, name) for each in page.elements for name in each.attributes} <= allowed
    assert {each.tag for each in page.elements} <= {each.tag for each in harmless.elements} | {"pre", "br", "details"}
    assert page.one("script").text == harmless.one("script").text
    assert page.one("style").text == harmless.one("style").text
    for link in page.all("a"):
        assert not re.match(r"\s*\w+:", link.attributes["href"])
        assert not link.attributes["href"].startswith(("/", "\\"))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_character_that_steers_anything_is_left(text: str) -> None:
    page = html([everything(text)])
    assert all(character == "\n" or character.isprintable() for character in page)


def test_a_name_of_ten_thousand_characters_is_cut_and_its_length_said() -> None:
    page = html([everything("k" * 10_000)])
    assert "(10000 characters)" in page
    assert "k" * 4_100 not in page
    assert len(page) < 200_000


def test_a_letter_under_hundreds_of_marks_is_no_line_that_cannot_be_broken() -> None:
    marked = {count: "z" + "\u0336" * count for count in (16, 17, 150)}
    pages = {count: html([results(workload(text))]) for count, text in marked.items()}
    assert f">{marked[16]}<" in pages[16]
    assert f">{marked[16]}\\u0336<" in pages[17]
    assert all("\u0336" * 17 not in page for page in pages.values())


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../../secret.json.gz",
        "traces/../../x.json.gz",
        "javascript:alert(1)//.json.gz",
        "//example.org/x.json.gz",
        "traces\\..\\x.json.gz",
        "tra\nces/x.json.gz",
        "traces/x.html",
        "",
    ],
)
def test_a_path_that_leaves_the_folder_becomes_no_link(path: str) -> None:
    links = [each.attributes["href"] for each in Parsed(html([results(workload(trace=path))])).all("a")]
    assert all(link.startswith("#") for link in links)


def test_a_colon_in_a_path_is_no_scheme() -> None:
    links = [each.attributes["href"] for each in Parsed(html([results(workload(trace="data:x.json.gz"))])).all("a")]
    assert "data%3Ax.json.gz" in links


def test_numbers_that_no_measurement_gives_break_nothing() -> None:
    huge = (launched("a", 1.7e308), launched("b", 1.7e308), launched("c", -5.0), launched("d", 0.0))
    observed = run(kernels=huge, device=(0.001, 1e12), host=(0.001,), end_to_end=(1e12,))
    change = RelativeChange(1e300, -1e300, 1e300, 1.0)
    verdict = Verdict(Status.PASS, "x", "device time", "device time", (), -1.0, 1e308, change)
    stored = baseline()
    entry = msgspec.structs.replace(stored.entries[0], kernels=huge)
    for entries in ((), (entry,), (msgspec.structs.replace(entry, processes=()),)):
        changed = msgspec.structs.replace(stored, entries=entries)
        one = workload(observed=observed, baseline=changed, verdicts=(verdict,))
        page = html([results(one), results(one)])
        positions = re.findall(r' (?:x|x1|x2|cx|cy|width)="([^"]*)%"', page)
        assert positions
        assert all(-1 <= float(position) <= 101 for position in positions)


def test_no_failed_test_is_lost_whatever_workload_it_names() -> None:
    lost = TestResult("t.py::test_lost[x]", "of no section", "failed", 0.1, "", "setup failed")
    page = html([results(tests=(lost,))])
    assert "test_lost" in page
    assert "setup failed" in page


def test_a_verdict_on_a_timer_that_was_not_measured_is_shown_all_the_same() -> None:
    verdict = Verdict(Status.INVALID, "a", "host dispatch", "the GPU was lost")
    page = html([results(workload("a", observed=run(host=None), verdicts=(verdict,)))])
    assert page.count("the GPU was lost") == 2  # first, and in its section


def test_two_workloads_whose_ids_look_alike_have_anchors_of_their_own() -> None:
    page = Parsed(html([results(workload("a b"), workload("a<b"), workload("a-b"))]))
    assert len({each.attributes["id"] for each in page.all("details", class_="workload")}) == 3


# -- what it costs --------------------------------------------------------------------------------------------------


def many(count: int, **changes: Any) -> Results:
    made = tuple(
        workload(f"mlp-{index}-bf16-8", variant=f"v{index % 4}", shape=(index // 4,)) for index in range(count)
    )
    tests = tuple(
        TestResult(f"perf/test_structure.py::test_number_{number}[{each.id}]", each.id, "passed", 0.1, "It holds.")
        for each in made
        for number in range(16)
    )
    return results(*made, tests=tests, **changes)


def test_fifty_workloads_fit_into_two_megabytes() -> None:
    assert len(html([many(50)]).encode()) < 2_000_000


def test_fifty_workloads_of_a_thousand_launches_fit_too() -> None:
    kernels = tuple(
        launched(f"void at::native::kernel_{n % 7}<float, {n % 11}>(int)", 1.0 + n % 5) for n in range(1000)
    )
    observed = [run(workload=f"w{index}", kernels=kernels) for index in range(50)]
    made = [workload(one.workload, observed=one, baseline=None, shape=(n,)) for n, one in enumerate(observed)]
    assert len(html([results(*made)]).encode()) < 2_000_000


RENDER = """
import resource, time
import msgspec
from kernelgauge.report.html import html
from kernelgauge.results import decode_results, encode_results
from tests.report.test_html import many
one = many(200)
shown = [
    decode_results(encode_results(msgspec.structs.replace(one, started_at=f"2026-11-{day:02}T03:00:00")), where="")
    for day in range(1, 31)
]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
html(shown)
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_two_hundred_workloads_over_thirty_runs_take_seconds_and_little_memory() -> None:
    pytest.importorskip("resource", reason="the memory of a process is read as Unix tells it")
    done = subprocess.run([sys.executable, "-c", RENDER], capture_output=True, text=True, check=True, timeout=120)
    seconds, kilobytes = map(float, done.stdout.split())
    assert seconds < 6  # 0.7 s on one core of a server
    assert kilobytes < 200_000  # 40 MB
