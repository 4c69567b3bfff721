"""The pictures of the HTML report: bars of changes, strips of kernels, dots of replicates, and the
diff by module.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from kernelgauge.judge import STRUCTURE, Status, Verdict
from kernelgauge.judge.baseline import Anchor, from_run
from kernelgauge.judge.evidence import (
    OtherHostSpeed,
    RelativeChange,
    StructureCompared,
    TimeCompared,
)
from kernelgauge.judge.structure import judge_structure
from kernelgauge.report.html import html
from kernelgauge.results import WorkloadResult
from kernelgauge.run import Run, Timer

from ..builders import ELSEWHERE, calibrated, counts, judged_time, launched, run
from .pages import Element, Parsed, line, results, workload

FIELDS = "x y width height".split()


def judged(name: str, status: Status, *change: Any, doubt: Any = None) -> WorkloadResult:
    """A workload with one time. `change`: estimate, low, high and sensitivity."""
    estimate, low, high, sensitivity = change
    times = (
        200.0,
        200.0 * (1 + estimate),
        RelativeChange(estimate, low, high, 0.999, sensitivity, 0.003),
    )
    return workload(
        name, verdicts=(Verdict(status, name, "GPU time", TimeCompared(doubt=doubt), (), *times),)
    )


PASSES = judged("passes", Status.PASS, 0.001, -0.004, 0.006, 0.009)
SLOWER = judged("slower", Status.REGRESSED, 0.05, 0.04, 0.06, 0.012)
SLOWEST = judged("slowest", Status.REGRESSED, 3.0, 2.9, 3.1, 0.012)
FASTER = judged("faster", Status.IMPROVED, -0.1, -0.11, -0.09, 0.012)
UNSURE = judged("unsure", Status.UNDECIDED, 0.2, None, None, None)
DOUBTED = judged(
    "doubted", Status.NOT_JUDGED, 0.7, None, None, None, doubt=OtherHostSpeed(10.0, 20.0)
)


@dataclasses.dataclass
class Bar:
    """A row of the chart, with the elements in it."""

    elements: list[Element]
    is_folded: bool

    @property
    def name(self) -> str:
        return next(each.text for each in self.elements if each.tag == "a")

    @property
    def text(self) -> str:
        return " ".join("".join(each.text for each in self.elements).split())

    def picture(self, name: str) -> Any:
        return next((each for each in self.elements if each.attributes.get("class") == name), None)

    def edges(self, name: str) -> tuple[float, float]:
        drawn = self.picture(name).attributes
        if "d" in drawn:
            places = [float(each) for each in re.findall(r"[MH]([\d.]+)", drawn["d"])]
            return min(places), max(places)
        return float(drawn["x"]), float(drawn["x"]) + float(drawn["width"])


def bars(page: Parsed) -> list[Bar]:
    found: list[Bar] = []
    for each in page.elements:
        if (
            each.tag == "li"
            and "ol" in each.inside
            and each.attributes.get("class", "").startswith("s-")
        ):
            found.append(Bar([each], "details" in each.inside))
        elif found and "li" in each.inside and "ol" in each.inside:
            found[-1].elements.append(each)
    return found


def test_bars_are_sorted_and_have_interval_and_gate() -> None:
    found = bars(Parsed(html([results(PASSES, FASTER, SLOWER, UNSURE, SLOWEST)])))
    assert [each.name for each in found] == ["slowest", "slower", "unsure", "passes", "faster"]
    assert not any(each.is_folded for each in found)
    zero = found[0].edges("zero")[0]
    for bar in found:
        gate, drawn = bar.edges("gate"), bar.edges("bar")
        tip = drawn[0 if bar.name == "faster" else 1]
        assert gate[0] < zero < gate[1]
        assert (tip < zero) == (bar.name == "faster")
        assert (gate[0] < tip < gate[1]) == (bar.name == "passes")
        if bar.name != "unsure":
            low, high = bar.edges("whisker")
            assert 0 <= low < tip < high <= 100
    assert found[0].edges("bar")[1] > found[1].edges("bar")[1]
    assert "+300.0 %(+290.00 … +310.00), 200.0 -> 800.0 us" in found[0].text
    assert found[2].picture("whisker") is None
    assert "no interval" in found[2].text
    assert found[3].edges("seen")[0] > found[3].edges("whisker")[1]
    assert found[3].text.endswith("sensitivity +0.9 %")


def test_unjudged_time_has_no_bar_and_is_folded() -> None:
    page = Parsed(html([results(DOUBTED, PASSES)]))
    passes, doubted = bars(page)
    assert (doubted.is_folded, passes.is_folded) == (True, False)
    assert doubted.picture("bar") is None
    assert "not judged: this host was 100 % slower" in doubted.text
    assert "70.0 %" not in doubted.text
    assert "1 more NOT JUDGED" in [" ".join(each.text.split()) for each in page.all("summary")]


def test_passes_are_folded_and_no_failure_hides_behind_them() -> None:
    """A workload that fails in structure alone is shown before larger changes that pass."""
    other = Verdict(Status.CHANGED, "w", STRUCTURE, StructureCompared("kernels"))
    failing = [judged(f"w{n}", Status.PASS, 0.001, -0.01, 0.012, 0.02) for n in range(12)]
    failing = [msgspec.structs.replace(each, verdicts=(*each.verdicts, other)) for each in failing]
    passes = [judged(f"p{n}", Status.PASS, 0.02 + n / 1e5, -0.1, 0.2, 0.3) for n in range(200)]
    page = Parsed(html([results(*passes, *failing)]))
    shown = [each for each in bars(page) if not each.is_folded]
    assert sorted(each.name for each in shown) == sorted(each.id for each in failing)
    assert all("structure CHANGED" in each.text for each in shown)
    assert any("200 more PASS: +2.0 to +2.2 %" in each.text for each in page.all("summary"))


# -- strips ----------------------------------------------------------------------------------------


class Piece(NamedTuple):
    mark: str
    x: float
    width: float
    top: float
    bottom: float


def lanes(page: Parsed) -> Iterator[tuple[list[Piece], list[Piece]]]:
    """Yield the two lanes of each strip."""
    found: list[list[Piece]] = []
    for each in page.elements:
        if each.tag == "svg" and "kernels of" in each.attributes.get("aria-label", ""):
            found.append([])
        elif each.tag == "rect" and found and "figure" in each.inside:
            x, y, width, height = (float(each.attributes[name].rstrip("%")) for name in FIELDS)
            mark = each.attributes["class"]
            found[-1].append(
                Piece(mark[2:] if mark.startswith("m-") else "", x, width, y, y + height)
            )
    return iter(zip(found[::2], found[1::2], strict=True))


def beside(before: Run, after: Run) -> Parsed:
    """The page of a run whose structure is judged by a stored one."""
    stored = from_run(before, suite="perf")
    shown = workload(
        after.workload, run=after, baseline=stored, verdicts=(judge_structure(after, stored),)
    )
    return Parsed(html([results(shown)]))


def structural(*sides: Sequence[tuple[str, float]]) -> Parsed:
    """The page of a workload whose kernels have these names and times, before and after."""
    observed = [
        run(kernels=tuple(launched(*each) for each in side), counts=counts(launches=len(side)))
        for side in sides
    ]
    return beside(*observed)


def test_strip_stands_first_and_marks_by_shape() -> None:
    page = structural(
        [("a", 60.0), ("b", 20.0), ("c", 20.0)],
        [("a", 60.0), ("d", 10.0), ("e", 30.0), ("c", 20.0)],
    )
    (old, new), *more = lanes(page)
    assert len(more) == 1  # above the cause, and in the section of the workload
    place = next(number for number, each in enumerate(page.elements) if each.tag == "figure")
    assert page.elements[place].inside.count("header") == 1
    assert page.elements[place].attributes["class"] == "strip differs"
    assert place < page.elements.index(page.one("p", class_="cause"))
    assert [(each.mark, each.x, each.width) for each in old] == [
        ("", 0, 50.0),
        ("gone", 50.0, 16.67),
        ("", 83.33, 16.67),
    ]
    assert [each.mark for each in new] == ["", "new", "new", ""]
    kept, gone, added = old[0], old[1], new[1]
    assert gone.top < kept.top  # it stands out above, and a new one below
    assert gone.bottom == kept.bottom
    assert added.top == kept.top
    assert added.bottom > kept.bottom
    texts = [each.text for each in page.all("text") if "figure" in each.inside][:3]
    assert texts == ["\N{MINUS SIGN}", "+", "+"]


def test_shortest_new_kernel_is_seen() -> None:
    _, new = next(
        lanes(
            structural([("a", 5000.0), ("b", 5000.0)], [("a", 5000.0), ("c", 0.5), ("b", 5000.0)])
        )
    )
    assert [(each.mark, each.width > 1) for each in new] == [("", True), ("new", True), ("", True)]


def test_strip_of_many_kernels_joins_neighbours_and_fits() -> None:
    kept = [("ab"[number % 2], 20.0 + number) for number in range(90)]
    page = structural(kept, [*kept[:40], *[("new", 1.0)] * 9, *kept[40:]])
    for lane, marks in zip(next(lanes(page)), ([""], ["", "new", ""]), strict=True):
        assert [piece.mark for piece in lane] == marks
        assert lane[-1].x + lane[-1].width <= 100.02


def test_other_dtype_of_a_kernel_is_a_change() -> None:
    kernels = [
        msgspec.structs.replace(launched("a", 60.0), inputs=(f"{dtype}[64]",))
        for dtype in ("bf16", "fp32")
    ]
    page = beside(*(run(kernels=(each, launched("b", 5.0))) for each in kernels))
    assert [[each.mark for each in lane] for lane in next(lanes(page))] == [["changed", ""]] * 2
    assert "other dtypes" in [each.text for each in page.all("b", class_="mark")]


def test_cause_without_other_kernels_has_no_strip() -> None:
    page = beside(run(), run(counts=counts(synchronizations=1)))
    assert page.one("h1").text == "REGRESSED"
    # of the workload, below
    assert [each.attributes["class"] for each in page.all("figure")] == ["strip"]


# -- modules, dots, history ------------------------------------------------------------------------


def test_unchanged_modules_are_folded() -> None:
    def measured(*more: str, down: float) -> Run:
        us = {"cast": 5.0, "norm_kernel": 9.0, "gemm_up": 60.0, "gemm_down": down}
        modules = {"gemm_up": "mlp.up", "gemm_down": "mlp.down"}
        names = [*more, "norm_kernel", "gemm_up", "gemm_down"]
        origins = tuple(line(1, modules.get(name, "norm")) for name in names)
        kernels = tuple(launched(name, us[name]) for name in names)
        return run(kernels=kernels, origins=origins, device=(sum(us[name] for name in names),) * 2)

    old, new = measured(down=60.0), measured("cast", down=66.0)
    change = RelativeChange(0.085, 0.08, 0.09, 0.999, 0.01, 0.003)
    slower = Verdict(Status.REGRESSED, "w", "GPU time", TimeCompared(), (), 129.0, 140.0, change)
    page = Parsed(
        html(
            [
                results(
                    workload("w", run=new, baseline=from_run(old, suite="perf"), verdicts=(slower,))
                )
            ]
        )
    )
    cells = [
        each for each in page.elements if each.tag in ("th", "td") and "details" in each.inside
    ]
    codes = [each for each in cells if each.attributes.get("class") in ("code", "code diff")]
    places = [(" ".join(each.text.split()), each.inside.count("details")) for each in codes]
    names = [place for place in places if place[0] in ("norm", "mlp.up", "mlp.down")]
    assert names == [("mlp.down", 1), ("norm", 1), ("mlp.up", 2)]
    assert [text for text, depth in places if depth == 1][1:4:2] == ["gemm_down", "+ cast"]
    assert any(
        "1 other module with the same kernels: 60.0 -> 60.0 us" in each.text
        for each in page.all("summary")
    )


def dots(page: Parsed) -> list[tuple[str, int, int]]:
    """Return the label of each row of dots, and how many dots count and do not."""
    spans = [each.text for each in page.all("span") if each.inside[-1] == "div"]
    labels = [each for each in spans if each.startswith(("anchor", "baseline", "this run"))]
    paths = [
        each.attributes["d"].count("M")
        for each in page.all("path")
        if "ol" not in each.inside and "p" not in each.inside
    ]
    return list(zip(labels, paths[::2], paths[1::2], strict=False))


def test_dots_show_replicates_beside_processes() -> None:
    untimed: dict[str, Any] = {"workload": "w", "host": None, "end_to_end": None}
    nights = [run(device=(us, us + 0.1), **untimed) for us in (200.0, 201.0)]
    nights.append(run(device=(220.0, 220.1), gpu=ELSEWHERE, **untimed))
    stored = calibrated(nights)
    anchor = Anchor("2026-03-01T00:00:00+00:00", "v1.2", 3, stored.processes[:1])
    stored = msgspec.structs.replace(stored, anchors=(anchor,))
    now = run(device=(210.0, 210.2, 210.4), **untimed)
    verdict = judged_time(Timer.DEVICE, now, stored)
    assert verdict.status is Status.REGRESSED
    page = Parsed(html([results(workload("w", run=now, baseline=stored, verdicts=(verdict,)))]))
    assert dots(page) == [("anchor, v1.2", 1, 0), ("baseline", 2, 1), ("this run", 3, 0)]
    ranges = [each.text for each in page.all("span", class_="num") if each.inside[-1] == "div"]
    assert ranges == ["200.1 us", "200.1 … 220.0 us", "210.0 … 210.4 us"]


def test_page_of_several_runs_has_their_times() -> None:
    nights = [
        results(workload(run=run(device=(us, us))), started_at=f"2026-11-{day}T03:00:00")
        for day, us in ((18, 200.0), (19, 210.0))
    ]
    (drawn,) = Parsed(html(nights)).all("polyline")
    assert drawn.attributes["points"] == "0,10 86400,0"
    assert not Parsed(html(nights[:1])).all("polyline")
