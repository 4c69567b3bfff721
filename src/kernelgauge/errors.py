"""Every error a user can meet (what, where, got, expected, and the next command), and text made
safe to print.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

_LONGEST = 5000  # characters of a part: a name in a damaged file may be as long as the file


class KernelgaugeError(Exception):
    """Base of all errors that kernelgauge raises on purpose.

    `what` is one sentence. The other parts are printed on lines of their own when they are known.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: str | None = None,
        expected: str | None = None,
        next_command: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.got = got
        self.expected = expected
        self.next_command = next_command

    @property
    def one_line(self) -> str:
        """The sentence and the next command, for a list."""
        return f"{self.what}; {self.next_command}" if self.next_command else self.what

    @property
    def details(self) -> list[tuple[str, str]]:
        """What is known beside the sentence and the next command: (label, text)."""
        parts = [("where", self.where), ("got", self.got), ("expected", self.expected)]
        return [
            (label, text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
            for label, text in parts
            if text
        ]

    def __str__(self) -> str:
        parts = [*self.details, *([("next", self.next_command)] if self.next_command else [])]
        indented = [(label, text.replace("\n", "\n" + 11 * " ")) for label, text in parts]
        return "\n".join([self.what, *(f"  {label:<9}{text}" for label, text in indented)])


class WorkloadError(KernelgaugeError):
    """A workload that is declared wrongly, or that fails to build, compile or run."""


class NoKernelsError(WorkloadError):
    """A workload that runs no kernel.

    `call_us`: how long the host takes for a call, in microseconds.
    """

    call_us = 0.0


class WorkloadUnavailable(KernelgaugeError):
    """A workload that cannot run on this machine for a reason that is no fault: it is skipped, and
    says why.
    """


class TraceError(KernelgaugeError):
    """A trace file that cannot be read."""


class BaselineError(KernelgaugeError):
    """A baseline that exists but cannot be used: corrupt, truncated, of a newer schema, or of
    something else.
    """


class NewerBaselineError(BaselineError):
    """A baseline that a newer version of kernelgauge wrote: it is neither read nor overwritten."""


class StorageError(KernelgaugeError):
    """A file that cannot be written or locked."""


class ResultsError(KernelgaugeError):
    """Saved results that cannot be read, or a report that cannot be made of them."""


class MeasurementError(KernelgaugeError):
    """A measurement that cannot be trusted after every retry, for example lost profiler records."""


class TimesError(MeasurementError):
    """Times that cannot be trusted, because of the machine. The structure that was measured is
    sound.
    """


def disturbed(workload: str, reasons: Iterable[str], *, expected: str) -> TimesError:
    """Return the error of a workload whose machine is throttled, or shared with others."""
    return TimesError(
        f"{workload}: the machine cannot be trusted now",
        got="; ".join(dict.fromkeys(reasons)),
        expected=expected,
        next_command=(
            "nvidia-smi   (who uses it?)   nvidia-smi -q -d PERFORMANCE   (is it throttled?)"
        ),
    )


NO_TIMES = "no test of a time was selected"
OTHER_KERNELS = "other kernels when it was timed than when it was profiled"


class OtherKernelsError(TimesError):
    """A time of other kernels, or of other launch configurations, than those that were profiled: a
    compiler chose them.
    """


# -- texts that are printed: names from traces and files are untrusted -----------------------------


def printable(text: str) -> str:
    """Return the text with every control, escape, bidirectional and otherwise unprintable character
    escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


CLEAR_LINE = "\r\x1b[2K"  # of a terminal: back to its start, and erase it


def clear_status() -> None:
    """Clear the line of a terminal that shows how far the work is (`processes.Progress`)."""
    if sys.stderr.isatty():
        print(CLEAR_LINE, end="", file=sys.stderr, flush=True)  # noqa: T201


def is_profiled() -> bool:
    """Return whether a profiler of Python runs already."""
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    return sys.getprofile() is not None or bool(
        monitoring and monitoring.get_tool(monitoring.PROFILER_ID)
    )


@lru_cache(maxsize=4096)  # each frame of a profiled call asks
def shown_path(file: str) -> str:
    """Return a path without the folders of this machine: from the packages, the working directory
    or where imports look.
    """
    for packages in ("site-packages/", "dist-packages/"):
        if packages in file:
            return file.rpartition(packages)[2]
    path = Path(file)
    for each in [os.getcwd(), *sorted(sys.path, key=len, reverse=True)]:
        if each and path.is_relative_to(each):
            return path.relative_to(each).as_posix()
    return path.name
