"""The claims of a suite: found by the names of their tests, counted, and shown."""

from __future__ import annotations

from kernelgauge.report.claims import Claim, claims, claims_title
from kernelgauge.report.html import html
from kernelgauge.report.pull_request import summary_markdown
from tests.report.pages import Parsed
from tests.report.test_pull_request import rendered, texts
from tests.test_results import one_test, results, workload

TESTS = (
    one_test("test_c10_gemms_ask_first", "skipped"),
    one_test("test_c09_five_kernels"),
    one_test("test_c09_five_kernels", workload="other"),
    one_test("test_c09_in_order", "failed", said="E assert 6 == 5"),
    one_test("test_device_time"),
    one_test("test_c3_nothing_is_copied", workload=None),
)
NINE = Claim(9, ("five kernels", "in order"), failed=1, passed=2, skipped=0)


def test_a_claim_is_counted_over_all_its_tests_and_workloads() -> None:
    assert claims(TESTS) == (
        Claim(3, ("nothing is copied",), failed=0, passed=1, skipped=0),
        NINE,
        Claim(10, ("gemms ask first",), failed=0, passed=0, skipped=1),
    )
    assert NINE.name == "C9"


def test_tests_with_other_names_are_about_no_claim() -> None:
    names = ("test_device_time", "test_c_x", "test_cat_1_x", "test_c1", "test_c12345_x", "my_test_c01_x")
    assert claims([one_test(name) for name in names]) == ()


def test_the_title_says_what_failed_and_what_was_only_skipped() -> None:
    assert claims_title(claims(TESTS)) == "3 claims: 1 with a failed test, 1 only skipped"
    assert claims_title(claims(TESTS[1:2])) == "1 claim: no test failed"


def test_the_page_lists_them_folded_and_marks_what_failed() -> None:
    page = Parsed(html([results(workload(), tests=TESTS)]))
    assert "3 claims: 1 with a failed test, 1 only skipped" in [each.text for each in page.all("summary")]
    assert "details" in page.one("table", class_="claims").inside
    rows = [each.text for each in page.all("th", scope="row") if each.text in ("C3", "C9", "C10")]
    assert rows == ["C3", "C9", "C10"]
    assert len(page.all("tr", class_="marked")) == 1


def test_the_pull_request_lists_them_folded() -> None:
    page = rendered(summary_markdown([results(workload(), tests=TESTS)]))
    assert [each.text for each in page.iter("summary")] == ["3 claims: 1 with a failed test, 1 only skipped"]
    assert texts(page)[-15:] == [
        *("C3", "nothing is copied", "0", "1", "0"),
        *("C9", "five kernelsin order", "1", "2", "0"),
        *("C10", "gemms ask first", "0", "0", "1"),
    ]


def test_a_run_without_claims_shows_none() -> None:
    told = results(workload(), tests=(one_test("test_device_time"),))
    assert "claim" not in summary_markdown([told])
    assert "Claims of the suite" not in html([told])
