"""The HTML report as text: well formed, self-contained, small, and deaf to the names that it shows."""

import base64
import hashlib
import re
from collections.abc import Sequence

import pytest

from kernelgauge.judge import Status, Verdict
from kernelgauge.judge.baseline import from_run
from kernelgauge.judge.evidence import Failed
from kernelgauge.report.html import html
from kernelgauge.results import Results, WorkloadResult

from .. import builders
from ..builders import fingerprint, launched, run
from .pages import HOSTILE, Parsed, everything, line, on_cpu, regressed, results, several, workload


def test_page_begins_with_the_worst_verdict_and_its_cause() -> None:
    page = Parsed(html([results(workload(), regressed())]))
    assert page.one("h1").text == "REGRESSED"
    assert page.one("p", class_="machine").text.startswith("NVIDIA H200, driver 580.159.04")
    assert page.one("b", class_="largest num").text == "+8.0 %"
    assert page.one("p", class_="cause").text == "GPU time 205.0 -> 221.0 us  +8.00 %"
    assert page.one("code", id="command").text == "pytest perf -k mlp-compiled-bf16-8 --perf-update"


def test_headline_is_of_the_newest_run_of_each_gpu() -> None:
    other_gpu = results(workload(), fingerprint=fingerprint(device="NVIDIA A100-SXM4-80GB"))
    assert Parsed(html([results(regressed()), other_gpu])).one("h1").text == "REGRESSED"
    newer = results(started_at="2026-11-21T00:00:00")
    assert Parsed(html([results(regressed("mlp-eager-bf16-8")), newer])).one("h1").text == "PASS"


def test_kernel_row_and_module_table_have_the_code() -> None:
    page = Parsed(
        html([results(workload(run=run(origins=(line(7), line(7), line(9, "mlp"), None))))])
    )
    code = [cell.text for cell in page.all("td", class_="code small")][::2]
    assert code == ["normmodel.py:7 ", "normmodel.py:7 ", "mlpmodel.py:9 ", ""]
    cells = [
        each.text for each in page.elements if each.tag in ("th", "td") and "table" in each.inside
    ]
    place = cells.index("module")
    assert cells[place + 6 : place + 24] == [
        *("mlp", "1", "38.1", "38.1", "+0.00", "19 %"),
        *("norm", "2", "114.0", "114.0", "+0.00", "56 %"),
        *("not known", "1", "53.0", "53.0", "+0.00", "26 %"),
    ]


UNTIMED = run(device=None, host=None, end_to_end=None, origins=(line(7),) * 4)
ABSENT = {
    "run": None,
    "baseline": None,
    "verdicts": (),
    "trace": None,
    "unavailable": "needs a GPU",
}
LOST = Verdict(Status.INVALID, "a", "host dispatch", Failed("the GPU was lost"))
PAGES = [
    (workload(run=UNTIMED, verdicts=()), "Kernels by module<"),
    # first, and in its section
    (workload("a", run=run(host=None), verdicts=(LOST,)), "(?s)(the GPU was lost.*){2}"),
    (workload(**ABSENT), "not run: mlp-eager-bf16-8: needs a GPU"),
    (
        workload(run=run(machine=fingerprint(driver="590.1"))),
        "<li>driver 580.159.04 -&gt; 590.1</li>",
    ),
]


@pytest.mark.parametrize(("shown", "said"), PAGES)
def test_page_of_a_workload_says(shown: WorkloadResult, said: str) -> None:
    assert re.search(said, html([results(shown)]))


@pytest.mark.parametrize(
    "path",
    [
        *("traces/mlp.json.gz", "nvidia-h200-aa--2/traces/mlp.json.gz"),
        *(
            "/etc/passwd.json.gz",
            "../../secret.json.gz",
            "traces/../../x.json.gz",
            "javascript:alert(1)//.json.gz",
            "",
        ),
        *(
            "//example.org/x.json.gz",
            "traces\\..\\x.json.gz",
            "tra\nces/x.json.gz",
            "traces/x.html",
        ),
    ],
)
def test_links_lead_to_files_beside_the_page_alone(path: str) -> None:
    hrefs = [
        each.attributes["href"] for each in Parsed(html([results(workload(trace=path))])).all("a")
    ]
    expected = [path, path.replace("json.gz", "txt")] if path.endswith("traces/mlp.json.gz") else []
    assert [href for href in hrefs if not href.startswith("#")] == expected


@pytest.mark.parametrize(
    "shown", [[], several(), [results(workload("a b"), workload("a<b"), workload("a-b"))]]
)
def test_page_is_well_formed_with_unique_anchors(shown: list[Results]) -> None:
    page = Parsed(html(shown))
    identifiers = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    assert len(identifiers) == len(set(identifiers))
    anchors = {
        each.attributes["href"][1:] for each in page.all("a") if each.attributes["href"][0] == "#"
    }
    assert anchors <= set(identifiers)


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


HARMLESS = Parsed(html([everything("harmless")]))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_no_markup_and_steers_nothing(text: str) -> None:
    source = html([everything(text)])
    assert all(character == "\n" or character.isprintable() for character in source)
    # Around the texts stand the same elements as around a harmless text.
    page = Parsed(source)
    allowed = {(each.tag, name) for each in HARMLESS.elements for name in each.attributes} | {
        ("a", "href")
    }
    assert {(each.tag, name) for each in page.elements for name in each.attributes} <= allowed
    assert {each.tag for each in page.elements} <= {each.tag for each in HARMLESS.elements} | {
        "pre",
        "br",
        "details",
    }
    assert page.one("script").text == HARMLESS.one("script").text
    assert page.one("style").text == HARMLESS.one("style").text
    assert not any(re.match(r"\s*\w+:|/|\\", link.attributes["href"]) for link in page.all("a"))


@pytest.mark.parametrize("names", [("one", "two"), ("two",)])
def test_page_shows_kernels_that_are_compiled_alone(names: Sequence[str]) -> None:
    """They have no times, and one that is new or gone has no other side."""
    kernels = [tuple(launched(name, 0.0) for name in side) for side in (["one"], names)]
    no_times = {"device": None, "host": None, "end_to_end": None}
    before, now = (run(kernels=side, **no_times) for side in kernels)
    known = from_run(before, suite="perf")
    (verdicts,) = builders.judged((now, known))
    assert "two" in html([builders.results(builders.workload(*verdicts, run=now, baseline=known))])


def test_page_of_a_cpu_shows_judged_times_only() -> None:
    page = html(on_cpu())
    titles = re.findall(r'<th scope="col" class="num wide">([^<]+)</th>', page)
    assert titles[:4] == ["end to end", "host dispatch", "change", "launches"]
    assert '<b class="code">mlp</b>\n<span class="num">301.5 us' in page
    assert "(no module)" in page


def test_page_is_written_without_a_folder_of_compiled_templates(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pages = [html([results(regressed())]) for _ in range(2)]
    (folder,) = tmp_path.iterdir()
    assert len(set(map(str, folder.iterdir()))) == 3  # a file for each template
    for each in folder.iterdir():
        each.write_bytes(b"not compiled")
    pages.append(html([results(regressed())]))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    pages.append(html([results(regressed())]))
    assert len(set(pages)) == 1
