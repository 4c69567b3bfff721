"""The HTML report as text: well formed, self-contained, small, and deaf to the names that it shows."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from functools import cache

import pytest

from kernelgauge.judge import Status, Verdict
from kernelgauge.judge.evidence import Failed, Place, StructureCompared
from kernelgauge.report.html import html
from kernelgauge.report.summary import summary_markdown
from kernelgauge.results import Results, TestResult
from kernelgauge.run import SourceLine
from kernelgauge.trace.kernel import KernelIdentity, KernelRecord

from ..builders import counts, fingerprint, launched, run
from .pages import HOSTILE, Parsed, caused, everything, line, regressed, results, several, workload

A100 = fingerprint(device="NVIDIA A100-SXM4-80GB")


def links(trace: str) -> list[str]:
    page = Parsed(html([results(workload(trace=trace))]))
    return [link for each in page.all("a") if not (link := each.attributes["href"]).startswith("#")]


def test_page_begins_with_the_worst_verdict_and_its_cause() -> None:
    page = Parsed(html([results(workload(), regressed())]))
    assert page.one("h1").text == "REGRESSED"
    assert page.one("p", class_="sentence").text == "2 workloads (1 REGRESSED, 1 PASS), 0 tests"
    assert page.one("p", class_="machine").text.startswith("NVIDIA H200, driver 580.159.04")
    assert page.one("b", class_="largest num").text == "+8.0 %"
    assert page.one("p", class_="cause").text == "GPU time 205.0 -> 221.0 us  +8.00 %"
    assert page.one("code", id="command").text == "pytest perf -k mlp-compiled-bf16-8 --perf-update"


@pytest.mark.parametrize(
    ("shown", "word"),
    [
        ([results(exit_status=1)], "FAILED"),
        ([results(regressed()), results(workload(), fingerprint=A100)], "REGRESSED"),  # two kinds of GPU
        ([results(regressed("mlp-eager-bf16-8")), results(started_at="2026-11-21T00:00:00")], "PASS"),  # the newest
    ],
)
def test_headline_is_no_better_than_the_run(shown: list[Results], word: str) -> None:
    page = Parsed(html(shown))
    assert page.one("h1").text == word
    assert not page.all("p", class_="cause") or word in ("FAILED", "REGRESSED")


def test_lanes_draw_both_runs_on_one_scale_and_mark_what_is_new() -> None:
    page = Parsed(html([results(regressed())]))
    assert [each.text for each in page.all("b", class_="mark")] == ["new"]
    bars = [each.attributes for each in page.all("rect")]
    ends = [float(bar["x"][:-1]) + float(bar["width"][:-1]) for bar in bars]
    assert len(page.all("svg", class_="lane")) == 2
    assert max(ends) == pytest.approx(100)
    assert [bar["class"].endswith("moved") for bar in bars].count(True) == 1
    assert sum(end == pytest.approx(100) for end in ends) == 1  # the slower one alone fills its lane


def test_counts_mark_what_differs_from_the_baseline() -> None:
    more = run(counts=counts(launches=5))
    text = html([results(workload(observed=more))])
    assert re.search(
        r'class="marked"><th scope="row">launches</th>\s*<td class="num">4</td>\s*<td class="num">5</td>', text
    )
    assert '<tr><th scope="row">memsets</th>' in text


def test_kernel_row_and_module_table_have_the_code() -> None:
    origins = (line(7), line(7), line(9, "mlp"), None)
    page = Parsed(html([results(workload(observed=run(origins=origins)))]))
    assert [cell.text for cell in page.all("td", class_="code small")][::2] == [
        "normmodel.py:7 ",
        "normmodel.py:7 ",
        "mlpmodel.py:9 ",
        "",
    ]
    cells = [each.text for each in page.elements if each.tag in ("th", "td") and "table" in each.inside]
    place = cells.index("module")
    assert cells[place + 5 : place + 25] == [
        *("mlp", "1", "38.1", "38.1", "19 %"),
        *("norm", "2", "114.0", "114.0", "56 %"),
        *("not known", "1", "53.0", "53.0", "26 %"),
        *("all", "4", "205.1", "205.1", "100 %"),
    ]


def test_structure_without_times_is_shown() -> None:
    observed = run(device=None, host=None, end_to_end=None, origins=(line(7),) * 4)
    assert "Kernels by module<" in html([results(workload(observed=observed, verdicts=()))])


def test_pass_whose_times_were_not_judged_is_amber() -> None:
    verdicts = [
        Verdict(Status.PASS, "a", "structure", StructureCompared()),
        Verdict(Status.NOT_JUDGED, "a", "end to end", Failed("")),
    ]
    found = [results(workload("a", verdicts=tuple(verdicts)))]
    assert "s-pass--structure-only" in Parsed(html(found)).all("header")[0].attributes["class"]
    assert '[class*=" s-pass--structure"]' in html(found)
    assert summary_markdown(found).startswith("> [!WARNING]\n> **PASS, structure only**")


def test_cause_of_several_workloads_stands_once() -> None:
    line = SourceLine("model.py", 61, "u = self.up(x)")
    other = caused("d", change=0.05, places=(Place(line, "Linear"),))
    source = html([results(*(caused(name, times=8, delta_us=9.1) for name in "abc"), other)])
    page = Parsed(source)
    assert page.one("p", class_="cause").text == "8 kernels instead of 1: b x8 (+9.1 us)"
    assert len(page.all("article", class_="card s-regressed")) == 1  # of the other cause
    begin = source[: source.index('id="workloads"')]
    assert (begin.count("8 kernels instead of 1"), begin.count("another kernel")) == (1, 1)
    assert page.all("p", class_="names code")[0].text == "was a"


def test_page_of_a_cpu_has_no_columns_of_a_gpu() -> None:
    cpu = fingerprint(device="CPU", arch="cpu", driver=None, cuda=None)
    observed = run(host=None, gpu=None, machine=cpu, kernels=(KernelRecord(KernelIdentity("mm", "gemm"), 5.0),))
    page = html([results(workload(observed=observed, baseline=None), fingerprint=cpu, gpu=None)])
    assert "<title>PASS: Performance report" in page
    assert not any(text in page for text in ("host dispatch</th>", "launch configuration", ">GPU<", "<dt>driver"))


def test_environment_begins_with_what_changed() -> None:
    page = html([results(workload(observed=run(machine=fingerprint(driver="590.1"))))])
    assert "<li>driver 580.159.04 -&gt; 590.1</li>" in page


def test_failed_test_names_the_verdict_it_repeats() -> None:
    one = regressed()
    repeated = TestResult("t.py::test_device_time[x]", one.id, "failed", 0.1, "GPU time.", "said", "GPU time")
    said = "E assert 6 == 5\nE where 6 = launches"
    text = html([results(one, tests=(repeated, TestResult("t.py::test_order[x]", one.id, "failed", 0.1, "", said)))])
    assert "the verdict on GPU time" in text
    assert "E where 6 = launches" in text
    assert text.count("by a lot") == 1


def test_verdict_on_a_missing_timer_is_shown() -> None:
    verdict = Verdict(Status.INVALID, "a", "host dispatch", Failed("the GPU was lost"))
    page = html([results(workload("a", observed=run(host=None), verdicts=(verdict,)))])
    assert page.count("the GPU was lost") == 2  # first, and in its section


def test_unavailable_workload_says_why() -> None:
    missing = workload(run=None, baseline=None, verdicts=(), unavailable="needs a GPU", trace=None)
    assert "not run: mlp-eager-bf16-8: needs a GPU" in html([results(missing)])


def test_links_lead_to_files_beside_the_page() -> None:
    assert links("traces/mlp.json.gz") == ["traces/mlp.json.gz", "traces/mlp.txt"]
    assert links("nvidia-h200-aa--2/traces/mlp.json.gz")[0] == "nvidia-h200-aa--2/traces/mlp.json.gz"


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd.json.gz", "../../secret.json.gz", "traces/../../x.json.gz", "javascript:alert(1)//.json.gz", ""),
        *("//example.org/x.json.gz", "traces\\..\\x.json.gz", "tra\nces/x.json.gz", "traces/x.html"),
    ],
)
def test_links_never_leave_the_folder(path: str) -> None:
    assert links(path) == []


@pytest.mark.parametrize(
    "shown", [[], [results()], several(), [results(workload("a b"), workload("a<b"), workload("a-b"))]]
)
def test_page_is_well_formed_with_unique_anchors(shown: list[Results]) -> None:
    page = Parsed(html(shown))
    identifiers = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    assert len(identifiers) == len(set(identifiers))
    assert {each.attributes["href"][1:] for each in page.all("a") if each.attributes["href"][0] == "#"} <= set(
        identifiers
    )


def test_page_loads_nothing_and_its_policy_forbids_it() -> None:
    page = Parsed(html([results(workload(), regressed())]))
    (policy,) = [e.attributes["content"] for e in page.all("meta") if "http-equiv" in e.attributes]
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.one(tag).text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not [each for tag in ("link", "img", "iframe", "object") for each in page.all(tag)]
    assert not any({"src", "style"} & set(each.attributes) for each in page.elements)


def test_page_is_the_same_in_another_process() -> None:
    script = (
        "import sys; from kernelgauge.report.html import html; from tests.report.pages import several; "
        "sys.stdout.write(html(several()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=120)
    assert done.stdout == html(several()).encode()


@cache
def harmless() -> Parsed:
    return Parsed(html([everything("harmless")]))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_no_markup_and_steers_nothing(text: str) -> None:
    source = html([everything(text)])
    assert all(character == "\n" or character.isprintable() for character in source)
    # Around the texts stand the same elements as around a harmless text.
    page = Parsed(source)
    allowed = {(each.tag, name) for each in harmless().elements for name in each.attributes} | {("a", "href")}
    assert {(each.tag, name) for each in page.elements for name in each.attributes} <= allowed
    assert {each.tag for each in page.elements} <= {each.tag for each in harmless().elements} | {"pre", "br", "details"}
    assert page.one("script").text == harmless().one("script").text
    assert page.one("style").text == harmless().one("style").text
    assert not any(re.match(r"\s*\w+:|/|\\", link.attributes["href"]) for link in page.all("a"))


def test_page_of_thousands_of_launches_is_below_two_megabytes() -> None:
    names = [f"void at::native::kernel_{n % 7}<float, {n % 11}>(int)" for n in range(1000)]
    kernels = tuple(launched(name, 1.0 + n % 5) for n, name in enumerate(names))
    observed = [run(workload=f"w{index}", kernels=kernels) for index in range(50)]
    made = [workload(one.workload, observed=one, baseline=None, shape=(n,)) for n, one in enumerate(observed)]
    assert len(html([results(*made)]).encode()) < 2_000_000
