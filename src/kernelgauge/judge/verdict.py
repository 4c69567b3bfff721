"""What to conclude: verdicts, as an enum with reasons."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from ..errors import printable
from ..run import Timer

# Subjects of verdicts, beside the labels of the timers.
DECLARED = "declared structure"  # what the workload declares: without this verdict, nothing may be stored
STRUCTURE = "structure"  # against the baseline
NUMERICS = "numerics"
TIME_LABELS = frozenset(label for timer in Timer for label in timer.labels)
RATIO = "ratio"  # of the times of two variants in one run
MEASUREMENT = "measurement"  # it failed


REASON_WIDTH = 69  # with its label, 80 columns
_MOST_LINES = 12  # of a failure in the terminal
_LAST = ("baseline", "accept", "next")  # what to do about it


class Status(str, Enum):
    """What is said of a workload, the worst first."""

    INVALID = "INVALID"  # the measurement cannot be trusted, or the result is wrong
    REGRESSED = "REGRESSED"
    CHANGED = "CHANGED"  # other structure, and neither a count nor a time shows a loss
    UNDECIDED = "UNDECIDED"  # less sensitive than asked for, or not of what was profiled
    INCOMPARABLE = "INCOMPARABLE"  # the baseline is of another kind of machine
    NO_BASELINE = "NO_BASELINE"
    IMPROVED = "IMPROVED"
    PASS = "PASS"
    NOT_JUDGED = "NOT_JUDGED"  # shown only: the baseline does not know this machine, or knows it at another speed

    @property
    def fails(self) -> bool:
        return self in (Status.REGRESSED, Status.CHANGED, Status.INVALID)

    @property
    def decided(self) -> bool:
        """Whether nothing is left to decide. The rest is skipped, and under --perf-strict it fails."""
        return self not in (Status.UNDECIDED, Status.NO_BASELINE, Status.INCOMPARABLE)


WORST_FIRST = tuple(Status)


@dataclass(frozen=True)
class RelativeChange:
    """A change against the baseline, as a fraction (0.05 is 5 % slower), with a confidence interval.

    `low` and `high` are None where nothing is known about the noise. `sensitivity`: a slowdown that fails in 95 of 100
    runs; None: not known.
    """

    estimate: float
    low: float | None
    high: float | None
    confidence: float
    sensitivity: float | None = None

    @property
    def shown_sensitivity(self) -> str:
        """The sensitivity in percent with two digits, rounded up: no smaller slowdown is promised."""
        if self.sensitivity is None:
            return "-"
        percent = 100 * self.sensitivity
        unit = 10.0 ** (math.floor(math.log10(percent)) - 1)
        rounded = math.ceil(percent / unit) * unit
        return f"+{rounded:.0f} %" if rounded >= 100 else f"+{rounded:.3g} %"

    def __str__(self) -> str:
        estimate = f"{100 * self.estimate:+.2f} %"
        if self.low is None or self.high is None:
            return f"{estimate} (no interval)"
        return f"{estimate} ({100 * self.low:+.2f} … {100 * self.high:+.2f})"


@dataclass(frozen=True)
class Reason:
    """One line under a verdict: a label ("why", "rest", "baseline", "accept") and what it says."""

    label: str
    text: str

    @property
    def lines(self) -> list[str]:
        """The lines of a terminal: the label stands before the first."""
        text = self.text.replace("\n", "\n" + 11 * " ")
        return [printable(line) for line in f"  {self.label:<8} {text}".split("\n")]


@dataclass(frozen=True)
class Verdict:
    """The conclusion about one subject ("structure", "GPU time", ...) of one workload."""

    status: Status
    workload: str
    subject: str
    headline: str
    reasons: tuple[Reason, ...] = ()
    before_us: float | None = None
    after_us: float | None = None
    change: RelativeChange | None = None

    @property
    def is_by_baseline(self) -> bool:
        """Whether a baseline is what the run differs from: accepting the run overrules it. The rest is declared in code."""
        return self.subject in {STRUCTURE, *TIME_LABELS}

    def only(self, label: str) -> Verdict:
        """Return it with the reasons of one label."""
        return replace(self, reasons=tuple(reason for reason in self.reasons if reason.label == label))

    def because(self, *reasons: Reason) -> Verdict:
        return replace(self, reasons=(*self.reasons, *reasons))

    def brief(self, *, see: str = "", width: int | None = None) -> str:
        """Return it in at most twelve lines, without the kernels one by one.

        Args:
            see: the test that has named its causes already.
            width: of a terminal, in columns: longer lines are cut. None: lines stay whole.
        """
        left_out = ("kernels", "counts", "trace", *_LAST, *(("cause", "code", "also") if see else ()))
        reasons = [reason for reason in self.reasons if reason.label not in left_out]
        reasons[:0] = [Reason("cause", f"see {see}")] if see else []
        counts = ", ".join(reason.text for reason in self.reasons if reason.label == "counts")
        reasons += [Reason("counts", counts)] if counts else []
        lines = str(replace(self, reasons=tuple(reasons))).split("\n")
        last = [line for reason in self.reasons if reason.label in _LAST for line in reason.lines]
        most = _MOST_LINES - len(last)
        if len(lines) > most:
            lines = [*lines[: most - 1], f"  {'more':<8} in the report, or with pytest -v"]
        return "\n".join(line if width is None else cut_line(line, width) for line in [*lines, *last])

    def __str__(self) -> str:
        first = printable(f"{self.workload}: {self.status.value}  {self.headline}")
        return "\n".join([first, *(line for reason in self.reasons for line in reason.lines)])


def cut_line(line: str, width: int) -> str:
    """Return a line that fits: the folders of a path and the middle of a module's path go first, then the end."""
    for pattern in (_FOLDERS, _MODULE):
        if len(line) > width:
            line = pattern.sub(r"\1…\2", line, count=1)
    return line if len(line) <= width else f"{line[: width - 1].rstrip(' ,._')}…"


# ``transformers/models/llama/modeling_llama.py:12`` -> ``transformers/…/modeling_llama.py:12``
_FOLDERS = re.compile(r"((?:^|(?<=\s))[\w.-]+/)[\w./-]+(/[\w.-]+:\d+)")
# ``model.model.layers.*.self_attn  file.py:12`` -> ``model.…self_attn  file.py:12``
_MODULE = re.compile(r"(\s[\w*]+\.)\S{6,}(\.[\w*{},]+(?: \([a-z ]+\))?  \S+:\d+)")


def settled(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts on a workload, with PASS for IMPROVED where a time of it was not judged or is not as good."""
    verdicts = list(verdicts)
    times = [each for each in verdicts if each.subject in TIME_LABELS]
    doubtful = next((each for each in times if each.status not in (Status.PASS, Status.IMPROVED)), None)
    if doubtful is None:
        return verdicts
    why = Reason("why", f"not called IMPROVED: {doubtful.subject} is {doubtful.status.value}")
    return [
        replace(each, status=Status.PASS).because(why) if each.status is Status.IMPROVED else each for each in verdicts
    ]


def worst(statuses: list[Status]) -> Status | None:
    """Return the status that a table shows for a workload with several verdicts; None for none."""
    return min(statuses, key=WORST_FIRST.index, default=None)
