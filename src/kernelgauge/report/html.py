"""Results -> one HTML page that needs nothing else: no network, no library, and no script to be read.

The templates walk through the results; here is what a template cannot do well. Every text may come from a stranger's
trace: the environment cuts each one, makes it printable and escapes it. The page's policy (CSP) allows the one style sheet
and the one script in it by their hashes, so that no other markup could run or load anything.
"""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..errors import printable
from ..judge import WORST_FIRST
from ..judge.baseline import compare
from ..results import Results, TestResult
from ..results.files import slug
from ..run import Origin, Timer
from ..trace.difference import align
from ..trace.kernel import KernelRecord, configuration_change, configuration_text
from .findings import baseline_commits, findings, next_step, notable_verdicts, reasons
from .summary import Row, conditions_text, counts_text, describe, notes, overall
from .text import counted, percent, short_commit, us
from .words import headline

_PACKAGE = "kernelgauge.report"
_LONGEST_NAME, _LONGEST_TEXT = 200, 4000  # characters
_TRACE = re.compile(r"(?:\w[\w.-]*/)?traces/\w[\w.-]*\.json\.gz", re.ASCII)  # beside the page, or in a machine's folder


def html(results: Sequence[Results]) -> str:
    """Return the page of one run, or of several: runs or kinds of GPU, the newest last.

    Of each kind of machine the newest run is shown. Links lead to files beside the newest run's `results.json`: the page
    belongs into the same folder.
    """
    newest: dict[str, Results] = {}
    for one in reversed(results):
        newest.setdefault(one.fingerprint.device if one.fingerprint else "", one)
    shown = list(newest.values())
    workloads = _workloads(shown)
    pairs = [(each.result.baseline, each.result.run) for each in workloads]
    environments = [compare(baseline.fingerprint, run.fingerprint) for baseline, run in pairs if baseline and run]
    return render_page(
        "page.html",
        script="report.js",
        status=overall(shown),
        sentence=", ".join(counts_text(shown)),
        findings=findings(shown),
        not_failing=[verdict for one in shown for verdict in notable_verdicts(one)],
        next_step=next_step(shown),
        commits=", ".join(dict.fromkeys(short_commit(one.commit) for one in shown)),
        baseline_commits=baseline_commits(shown),
        shown=shown,
        workloads=workloads,
        anchors={each.result.id: each.anchor for each in reversed(workloads)},  # of twins on two GPUs that of the worse
        timers=dict.fromkeys((timer, time.label) for each in workloads for timer, time in each.times.items()),
        # No section of a workload shows these: none may be lost.
        other_tests=[test for one in shown for test in one.tests if test.workload not in {x.id for x in one.workloads}],
        notes=[line for one in shown for line in (*notes(one), *conditions_text(one.runs, one.not_watched))],
        changes=dict.fromkeys(str(each) for each in environments if not each.identical),
    )


def render_page(template: str, *, script: str = "", **content: object) -> str:
    """Return a page whose policy allows its own style sheet and script, and nothing else.

    `script` is a file beside the template.
    """
    style, code = _asset("report.css"), _asset(script) if script else ""
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
    )
    made.filters.update(clip=_clip, lines=_lines, value=_value, css=_css, us=us, percent=percent, shell=shlex.join)
    made.filters.update(
        headline=headline, reasons=reasons, conditions=conditions_text, configuration=configuration_text
    )
    # The newline stands between lines that are untrusted themselves.
    made.globals.update(counted=counted, describe=describe, newline=Markup("\n"))
    return made


def _asset(name: str) -> str:
    return (files(_PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def _source(content: str) -> str:
    """Return how a policy names a style sheet or a script within the page."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def _written(value: object) -> object:
    """Return what a template's expression writes: of a text, a short one without control characters."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(_clip(value, _LONGEST_TEXT))


def _clip(text: str, longest: int = _LONGEST_NAME) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def _lines(text: str) -> list[str]:
    return _clip(text.strip("\n"), _LONGEST_TEXT).splitlines()


def _css(text: str) -> str:
    """Return a status or a kind of kernel as part of a class: one word, whatever it was."""
    return re.sub(r"[^a-z0-9-]", "-", text.lower())[:40]


def _value(value: object) -> str:
    """Return a field of a fingerprint or a count as text."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else _clip(str(value))


class _Launch(NamedTuple):
    """A launch of this run beside its partner in the baseline. None: not there."""

    before: KernelRecord | None
    after: KernelRecord | None
    mark: str  # how the two differ; empty if they do not
    origin: Origin | None  # of the kernel of this run, else of the baseline's

    @property
    def delta_us(self) -> float:
        before, after = (each.device_time_us if each else 0.0 for each in (self.before, self.after))
        return after - before


@dataclass(frozen=True)
class _Workload(Row):
    """What the templates ask about a workload."""

    anchor: str  # its name for links within the page
    tests: Sequence[TestResult]
    is_beside: bool  # the page lies beside its trace

    @property
    def trace(self) -> str:
        """Return a link to the trace. A results file is untrusted: nothing but a trace below the page's folder is one."""
        trace = self.result.trace or ""
        return trace if self.is_beside and _TRACE.fullmatch(trace) else ""

    @cached_property
    def launches(self) -> list[_Launch]:
        """Return the launches of this run and those of the baseline that it lacks, in order."""
        run, baseline = self.result.run, self.result.baseline
        if run is None:
            return []
        stored: Sequence[KernelRecord] = run.kernels
        old: Sequence[Origin | None] = ()
        if baseline is not None and baseline.entries:  # in the time that the run is compared with
            judged = self.result.time_verdict(Timer.DEVICE)
            stored = baseline.entry_like(run.kernels)[0].kernels_in(judged.before_us if judged is not None else None)
            old = baseline.origins if len(baseline.origins) == len(stored) else ()
        before, after = iter(old), iter(run.origins)
        found: list[_Launch] = []
        for old_kernel, kernel in align(stored, run.kernels):
            origin = next(before, None) if old_kernel is not None else None
            origin = next(after, None) if kernel is not None else origin
            if old_kernel is None or kernel is None:
                mark = "new" if old_kernel is None else "gone"
            else:
                mark = "other configuration" if configuration_change(old_kernel.identity, kernel.identity) else ""
            found.append(_Launch(old_kernel, kernel, mark, origin))
        return found


def _workloads(shown: Sequence[Results]) -> list[_Workload]:
    """Return the workloads of all runs, the worst status first. Links are made for the newest run only, which is the first."""
    found: list[_Workload] = []
    for one in shown:
        for result in one.workloads:
            tests = [test for test in one.tests if test.workload == result.id]
            found.append(_Workload(result, f"w{len(found)}-{slug(result.id)}", tests, is_beside=one is shown[0]))
    places = {status: place for place, status in enumerate((*WORST_FIRST, None))}
    return sorted(found, key=lambda each: places[each.result.status])
