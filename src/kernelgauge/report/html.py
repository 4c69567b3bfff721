"""Results -> one HTML page that needs nothing else: no network, no library, and no script to be read.

The templates walk through the results. Here is what a template cannot do well: choose what is shown, and pair kernels with
the baseline's.

Every text may come from a stranger's trace. The environment cuts each one, makes it printable and escapes it. The page's
policy (CSP) allows the one style sheet and the one script in it by their hashes, so that no other markup could run or load
anything.
"""

from __future__ import annotations

import math
import re
import shlex
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from itertools import accumulate, count
from operator import attrgetter
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..errors import printable
from ..judge import WORST_FIRST, Verdict, compare, observe
from ..results import Results, TestResult, WorkloadResult
from ..run import Origin, Sample, Timer
from ..trace.difference import KernelChange, align
from ..trace.kernel import KernelRecord, configuration_change, configuration_text
from .findings import baseline_commits, failures, findings, largest, next_step
from .opportunities import limit_shares, opportunities
from .traces import limit_text
from .wording import (
    about,
    change_text,
    conditions_text,
    counted,
    counts_text,
    describe,
    kernel_us,
    notes,
    overall,
    percent,
    run_conditions,
    short_commit,
    shown_reasons,
    status_text,
)

__all__ = ["html", "render_page"]

_PACKAGE = "kernelgauge.report"
_LONGEST_NAME, _LONGEST_TEXT = 200, 4000  # characters
_MOST_LINES = 60  # of one text

_by_outcome = attrgetter("outcome")  # what failed comes first

_TRACE = re.compile(r"(?:\w[\w.-]*/)?traces/\w[\w.-]*\.json\.gz", re.ASCII)  # beside the page, or in a machine's folder
_UNKNOWN = "not known"  # module of a kernel without an origin
_SHORTEST_BAR = 0.05  # percent of a lane's width: a shorter launch is not drawn
_OTHER_SOURCE = "other source"  # of the same kernel in the same configuration: another version of Inductor, say

# -- the page ---------------------------------------------------------------------------------------------------------


def html(results: Sequence[Results]) -> str:
    """Return the page of one run, or of several: runs or kinds of GPU, the newest last.

    Of each kind of machine the newest run is shown. Links lead to files beside the newest run's `results.json`: the page
    belongs into the same folder.
    """
    newest: dict[str, Results] = {}
    for one in reversed(results):
        newest.setdefault(_device(one), one)
    shown = list(newest.values())
    workloads = sorted(_workloads(shown), key=lambda each: each.order)
    found = findings(shown)
    lead = largest(found) or (found[0][0] if found else None)
    lead_cases = next((cases for cases in found if lead in cases), [])
    other_tests: list[TestResult] = []  # no section of a workload shows them: none may be lost
    for one in shown:
        listed = {workload.id for workload in one.workloads}
        other_tests += [test for test in one.tests if test.workload not in listed]
    return render_page(
        "page.html",
        styles=["report.css"],
        script="report.js",
        title="GPU performance report" if any(one.gpu for one in shown) else "Performance report",
        status=overall(shown),
        sentence=", ".join(counts_text(shown)),
        lead=lead,
        lead_cases=[lead, *(each for each in lead_cases if each is not lead)],
        findings=[cases for cases in found if cases is not lead_cases],
        not_failing=[each for one in shown for each in failures(one) if not each.fails],
        next_step=next_step(shown),
        commits=", ".join(dict.fromkeys(short_commit(one.commit) for one in shown)),
        baseline_commits=baseline_commits(shown),
        shown=shown,
        workloads=workloads,
        anchors={id(each.result): each.anchor for each in workloads},
        timers=_columns(workloads),
        other_tests=sorted(other_tests, key=_by_outcome),
        notes=[line for one in shown for line in (*notes(one), *conditions_text(one))],
        faster=[each for one in shown for each in opportunities(one)],
        changes=_environment_changes(shown),
        earlier=len(results) - len(shown),
    )


def render_page(template: str, *, styles: Sequence[str], script: str = "", **content: object) -> str:
    """Return a page whose policy allows its own style sheet and script, and nothing else.

    `styles` and `script` are files beside the template.
    """
    style, code = "".join(map(_asset, styles)), _asset(script) if script else ""
    sources = f"style-src {_source(style)}; script-src {_source(code)}"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    page = _environment().get_template(template)
    return page.render(content, style=Markup(style), script=Markup(code), policy=policy)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        finalize=_written,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(
        about=about,
        change=change_text,
        clip=_clip,
        conditions=run_conditions,
        configuration=configuration_text,
        css=_class_name,
        lines=_lines,
        percent=percent,
        reasons=shown_reasons,
        shell=shlex.join,
        us=kernel_us,
        value=_value,
    )
    made.globals.update(
        counted=counted,
        describe=describe,
        key=id,
        newline=Markup("\n"),  # between lines that are untrusted themselves
    )
    return made


def _asset(name: str) -> str:
    return (files(_PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def _source(content: str) -> str:
    """Return how a policy names a style sheet or a script within the page."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


# -- texts and numbers ------------------------------------------------------------------------------------------------


def _written(value: object) -> object:
    """Return what a template's expression writes: a short text without control characters, a number in two decimals."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return printable(_clip(value, _LONGEST_TEXT))
    return round(value, 2) if isinstance(value, float) else value


def _clip(text: str, longest: int = _LONGEST_NAME) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def _lines(text: str) -> list[str]:
    """Return the first lines of `text`, and how many more there are."""
    lines = _clip(text.strip("\n"), _LONGEST_TEXT).splitlines()
    left = len(lines) - _MOST_LINES
    return lines[:_MOST_LINES] + ([f"… and {left} more lines"] if left > 0 else [])


def _class_name(text: str) -> str:
    """Return a status, without what it leaves out, or a kind of kernel as part of a class: one word, whatever it was."""
    return re.sub(r"[^a-z0-9-]", "-", text.partition(" (")[0].lower())[:40]


def _value(value: object, name: str = "") -> str:
    """Return a field of a fingerprint or a count as text."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "memory_bytes" and isinstance(value, int):
        return f"{value / 2**30:.1f} GiB"
    return f"{value:,}" if isinstance(value, int) else _clip(str(value))


# -- runs and machines ------------------------------------------------------------------------------------------------


def _columns(workloads: Sequence[_Workload]) -> list[tuple[Timer, str]]:
    """Return the timers that were measured, each with its name: both where a GPU and a CPU are shown."""
    labels = {
        timer: dict.fromkeys(each.times[timer].label for each in workloads if timer in each.times) for timer in Timer
    }
    return [(timer, ", ".join(names)) for timer, names in labels.items() if names]


def _environment_changes(shown: Sequence[Results]) -> list[str]:
    """Return ``driver 580.1 -> 580.2`` for each way in which a machine differs from the baselines that it was compared with."""
    workloads = [each for one in shown for each in one.workloads]
    comparisons = [
        compare(each.baseline.fingerprint, each.run.fingerprint) for each in workloads if each.baseline and each.run
    ]
    changes = [change for each in comparisons for change in (*each.foreign, *each.moved)]
    return [printable(text).replace("_", " ") for text in dict.fromkeys(map(str, changes))]


def _device(one: Results) -> str:
    """Return the kind of machine; nothing where nothing was measured."""
    return one.fingerprint.device if one.fingerprint else ""


# -- a workload -------------------------------------------------------------------------------------------------------


class _Time(NamedTuple):
    """One of the times of a workload, as it was measured and judged."""

    label: str
    sample: Sample
    mean_us: float  # of the replicates that are judged
    verdict: Verdict | None


class _Launch(NamedTuple):
    """A launch of this run beside its partner in the baseline. None: not there."""

    before: KernelRecord | None
    after: KernelRecord | None
    delta_us: float
    mark: str  # how the two differ; empty if they do not
    number: int | None  # in this run
    limit: str  # how near it came to what this GPU's reference kernels reached
    origin: Origin | None  # of the kernel of this run, else of the baseline's

    @property
    def has_moved(self) -> bool:
        """Return whether something else ran. The same kernel from another source does not count."""
        return self.mark not in ("", _OTHER_SOURCE)


class _Bar(NamedTuple):
    """A launch in a lane, from `x` on, in percent of its width."""

    x: float
    width: float
    kind: str
    title: str
    has_moved: bool


@dataclass(frozen=True)
class _Workload:
    """What the templates ask about a workload. `anchor`: its name for links within the page."""

    result: WorkloadResult
    tests: Sequence[TestResult]  # the failed ones first
    device: str
    anchor: str
    is_beside: bool  # the page lies beside its trace

    @property
    def status(self) -> str:
        return status_text(self.result)

    @property
    def order(self) -> tuple[int, float]:
        """Return what workloads are sorted by: the worst status first, and the largest change of the GPU time."""
        place = WORST_FIRST.index(self.result.status) if self.result.status is not None else len(WORST_FIRST)
        verdict = self.result.time_verdict(Timer.DEVICE)
        return place, -verdict.change.estimate if verdict is not None and verdict.change is not None else 0.0

    @cached_property
    def times(self) -> dict[Timer, _Time]:
        run = self.result.run
        return {
            timer: _Time(run.label(timer), sample, observe(sample).mean_us, self.result.time_verdict(timer))
            for timer in Timer
            if run is not None and (sample := run.sample(timer)) is not None
        }

    @property
    def device_time(self) -> _Time | None:
        return self.times.get(Timer.DEVICE)

    @property
    def other_verdicts(self) -> list[Verdict]:
        """Return those that neither a time nor a failed test shows."""
        shown = {
            *(time.label for time in self.times.values()),
            *(test.name for test in self.tests if test.outcome == "failed"),
        }
        return [verdict for verdict in self.result.verdicts if verdict.subject not in shown]

    def said(self, test: TestResult) -> list[str]:
        """Return what a test said, each thing once: a verdict is named, and a reason above the tests not repeated."""
        if not test.said or test.said == self.result.unavailable:
            return []
        verdict = self.result.end_of(test)
        return _lines(test.said) if verdict is None else [f"the verdict on {verdict.subject}"]

    @property
    def links(self) -> list[tuple[str, str]]:
        """Return (label, link) of the trace, and of the profiler's table that a run leaves beside it.

        A results file is untrusted: nothing but a trace below the page's folder is a link.
        """
        trace = self.result.trace or ""
        if not self.is_beside or not _TRACE.fullmatch(trace):
            return []
        return [("trace", trace), ("table", f"{trace.removesuffix('.json.gz')}.txt")]

    @cached_property
    def launches(self) -> list[_Launch]:
        """Return the launches of this run and those of the baseline that it lacks, in order."""
        if self.result.run is None:
            return []
        run, baseline = self.result.run, self.result.baseline
        stored: Sequence[KernelRecord] = run.kernels
        old: Sequence[Origin | None] = ()
        if baseline is not None and baseline.entries:  # in the time that the run is compared with
            judged = self.result.time_verdict(Timer.DEVICE)
            stored = baseline.entry_like(run.kernels)[0].kernels_in(judged.before_us if judged is not None else None)
            old = baseline.origins
        before, after = (iter(_origins(*each)) for each in ((stored, old), (run.kernels, run.origins)))
        limits = iter(limit_shares(self.result))
        found: list[_Launch] = []
        numbers = count(1)
        for change in align(stored, run.kernels):
            origin = next(before) if change.before is not None else None
            number, limit = None, ""
            if change.after is not None:
                number, origin, limit = next(numbers), next(after), limit_text(change.after.identity, next(limits))
            found.append(_Launch(change.before, change.after, change.delta_us, _mark(change), number, limit, origin))
        return found

    @property
    def lanes(self) -> list[tuple[str, int, float, list[_Bar]]]:
        """Return (label, launches, us, bars) of the baseline and of this run, on one scale; nothing without a baseline."""
        if self.result.baseline is None:
            return []
        lanes = {
            "baseline": [(each.before, each) for each in self.launches if each.before],
            "this run": [(each.after, each) for each in self.launches if each.after],
        }
        totals = {label: sum(kernel.device_time_us for kernel, _ in row) for label, row in lanes.items()}
        scale = max(totals.values()) / 100
        if not 0 < scale < math.inf:
            return []
        found = []
        for label, row in lanes.items():
            starts = accumulate((kernel.device_time_us for kernel, _ in row), initial=0.0)
            bars = [
                _Bar(
                    start / scale,
                    kernel.device_time_us / scale,
                    kernel.identity.kind,
                    _bar_title(kernel),
                    each.has_moved,
                )
                for start, (kernel, each) in zip(starts, row, strict=False)
                if kernel.device_time_us / scale >= _SHORTEST_BAR
            ]
            found.append((label, len(row), totals[label], bars))
        return found

    @property
    def modules(self) -> list[tuple[str, int, float, float]]:
        """Return (module, its kernels, their time, that in the baseline), in us, the longest first; nothing without origins."""
        rows: dict[str, list[float]] = {}
        for launch in self.launches:
            row = rows.setdefault(launch.origin.module if launch.origin is not None else _UNKNOWN, [0, 0.0, 0.0])
            row[0] += launch.after is not None
            row[1] += launch.after.device_time_us if launch.after is not None else 0.0
            row[2] += launch.before.device_time_us if launch.before is not None else 0.0
        ordered = sorted(rows.items(), key=lambda item: -item[1][1])
        return (
            [(name, int(kernels), us, before) for name, (kernels, us, before) in ordered]
            if set(rows) - {_UNKNOWN}
            else []
        )


def _workloads(shown: Sequence[Results]) -> Iterator[_Workload]:
    """Yield the workloads of all runs; `shown` has the newest run first, and links are made for that one only."""
    numbers = count(1)
    for one in shown:
        tests: dict[str | None, list[TestResult]] = {}
        for test in sorted(one.tests, key=_by_outcome):
            tests.setdefault(test.workload, []).append(test)
        for result in one.workloads:
            anchor = f"w{next(numbers)}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', result.id)[:100]}"
            yield _Workload(result, tests.get(result.id, []), _device(one), anchor, is_beside=one is shown[0])


def _origins(kernels: Sequence[KernelRecord], origins: Sequence[Origin | None]) -> Sequence[Origin | None]:
    """Return where each kernel comes from; None for all of them where the two do not belong together."""
    return origins if len(origins) == len(kernels) else [None] * len(kernels)


def _bar_title(kernel: KernelRecord) -> str:
    return f"{_clip(kernel.identity.shown)}: {kernel_us(kernel.device_time_us)} us"


def _mark(change: KernelChange[KernelRecord]) -> str:
    if change.before is None:
        return "new"
    if change.after is None:
        return "gone"
    if change.same_identity:
        return ""
    configured = configuration_change(change.before.identity, change.after.identity)
    return "other configuration" if configured else _OTHER_SOURCE
