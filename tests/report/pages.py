"""Pages as their elements, and made-up results to write them from."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import msgspec

from kernelgauge.judge import Status, Verdict
from kernelgauge.judge.evidence import (
    Advice,
    Cause,
    Detail,
    Failed,
    Next,
    OtherKernels,
    Place,
    RelativeChange,
)
from kernelgauge.results import Results, WorkloadResult, decode_results, encode_results
from kernelgauge.run import Origin, SourceLine
from tests import builders
from tests.builders import baseline, fingerprint, launched, mlp_kernels, one_test, run

VOID = frozenset("meta link br input hr img".split())
QUOTED = (
    "' onfocus=alert(1) autofocus='",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "</style><style>*{}",
)
HOSTILE = (
    *builders.HOSTILE,
    *QUOTED,
    "{{ 7 * 7 }}{% raw %}",
    "\u0645\u0631\u062d\u0628\u0627",
    "z" + "\u0336" * 500,
)


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: list[str] = field(default_factory=list)  # tags around it


class Parsed(HTMLParser):
    """Every element, with its own text; a tag that closes another one than is open is an error."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attributes}) == len(attributes), (
            f"an attribute twice: {tag} {attributes}"
        )
        element = Element(
            tag,
            {name: value or "" for name, value in attributes},
            inside=[e.tag for e in self._open],
        )
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [e for e in self.elements if e.tag == tag and wanted.items() <= e.attributes.items()]

    def one(self, tag: str, **attributes: str) -> Element:
        (element,) = self.all(tag, **attributes)
        return element


def timed(status: Status, name: str, estimate: float, *, subject: str = "GPU time") -> Verdict:
    sensitivity = 0.02 if status is Status.PASS else None
    change = RelativeChange(estimate, estimate - 0.01, estimate + 0.01, 0.999, sensitivity, 0.003)
    reasons = [
        ("why", "the gelu is slower\nby a lot"),
        ("accept", f"pytest perf -k {name} --perf-update"),
    ]
    headline = f"{subject} 205.0 -> 221.0 us  {100 * estimate:+.2f} %"
    reasons = [] if status is Status.PASS else reasons
    return builders.verdict(
        status, subject, headline, workload=name, reasons=reasons, change=change
    )


def workload(name: str = "mlp-eager-bf16-8", **changes: Any) -> WorkloadResult:
    passed = [
        timed(Status.PASS, name, 0.001, subject=each)
        for each in ("GPU time", "end to end", "host dispatch")
    ]
    fields = {
        "variant": "eager",
        "shape": (8,),
        "run": run(workload=name),
        "baseline": baseline(workload=name),
    }
    fields |= {"verdicts": tuple(passed), "trace": f"traces/{name}.json.gz"}
    return builders.workload(name=name, **(fields | changes))


def regressed(name: str = "mlp-compiled-bf16-8") -> WorkloadResult:
    kernels = (*mlp_kernels(), launched("void at::native::fill<float>", 16.0, kind="fill"))
    origins = (line(7), line(8, "layers.0.feed_forward"), None, line(9, "mlp.down"), line(25))
    slower = run(workload=name, kernels=kernels, device=(221.0, 221.2, 220.9), origins=origins)
    return workload(
        name, variant="compiled", run=slower, verdicts=(timed(Status.REGRESSED, name, 0.08),)
    )


def line(number: int, module: str = "norm") -> Origin:
    return Origin(module, (SourceLine("model.py", number, "y = x.float()"),))


Y_LINE = Place(SourceLine("model.py", 25, "y = x.float()"), "norm")


def caused(
    name: str,
    kernel: str = "b",
    *,
    times: int = 1,
    change: float = 0.08,
    delta_us: float | None = None,
    places: Sequence[Place] = (Y_LINE,),
) -> WorkloadResult:
    """A workload that regressed in time and structure: a kernel took the place of another one."""
    other = OtherKernels("replaced", (("a", 1),), ((kernel, times),))
    accept = Next(Advice.ACCEPT, f"pytest perf -k {name} --perf-update")
    reasons = (Cause(other, places=tuple(places), had_kernels=True, delta_us=delta_us), accept)
    slower = timed(Status.REGRESSED, name, change)
    structure = builders.verdict(
        Status.REGRESSED, "structure", "kernels differ from the baseline", workload=name
    )
    return workload(
        name,
        verdicts=tuple(dataclasses.replace(each, reasons=reasons) for each in (slower, structure)),
    )


def results(*workloads: WorkloadResult, **changes: Any) -> Results:
    """As they come from a file."""
    made = builders.results(*(workloads or (workload(),)), **changes)
    return decode_results(encode_results(made), where="a test")


def several() -> list[Results]:
    """Three runs on one kind of GPU, the last of them after an upgrade of the driver, slower."""
    passing = [results(started_at=f"2026-11-{day}T03:00:00+00:00") for day in (18, 19)]
    slower = regressed()
    tests = tuple(
        one_test(outcome, outcome, workload=slower.id) for outcome in ("failed", "passed")
    )
    return [
        *passing,
        results(workload(), slower, tests=tests, fingerprint=fingerprint(driver="590.1")),
    ]


def green() -> list[Results]:
    """Two nights without a failure: some times are not judged, one is undecided, and more pass than
    are shown.
    """
    doubted = [
        dataclasses.replace(timed(status, "mlp", 0.3, subject=subject), reasons=())
        for status, subject in (
            (Status.PASS, "GPU time"),
            (Status.NOT_JUDGED, "end to end"),
            (Status.UNDECIDED, "host dispatch"),
        )
    ]
    passing = [workload(f"mlp-{number}") for number in range(12)]
    return [
        results(
            workload("mlp", verdicts=tuple(doubted)), *passing, started_at=f"2026-11-{day}T03:00:00"
        )
        for day in (18, 19)
    ]


def on_cpu() -> list[Results]:
    """A run on a CPU, whose ops are of no module."""
    machine = fingerprint(arch="cpu", device="AMD EPYC", driver=None, cuda=None)
    ran = run(workload="mlp", machine=machine, origins=(line(7, ""),) * len(mlp_kernels()))
    before = baseline(workload="mlp", machine=machine, origins=ran.origins)
    verdicts = (timed(Status.PASS, "mlp", 0.1, subject="end to end"),)
    one = workload("mlp", run=ran, baseline=before, verdicts=verdicts)
    return [results(one, fingerprint=machine, gpu=None)]


def everything(text: str) -> Results:
    """`text` in every field that is one."""
    found = builders.hostile(text, Status.REGRESSED)
    kernels = tuple(launched(text, 10.0, kind=text[:40]) for _ in range(3))
    wrong = Verdict(Status.REGRESSED, text, text, Failed(text), (Detail(text, text),))
    first = msgspec.structs.replace(
        found.workloads[0],
        run=run(workload=text, kernels=kernels, incomplete=text, gpu=text),
        baseline=baseline(workload=text, kernels=kernels[:2]),
        verdicts=(wrong, timed(Status.REGRESSED, text, 0.1)),
        trace=f"{text}.json.gz",
    )
    made = msgspec.structs.replace(found, workloads=(first, *found.workloads[1:]))
    return decode_results(encode_results(made), where="a test")
