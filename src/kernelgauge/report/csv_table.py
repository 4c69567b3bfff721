"""Results as a table for a spreadsheet: one row for each workload and timer."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO

from ..judge import RelativeChange, Verdict, observe
from ..printable import printable
from ..results import Results, WorkloadResult
from ..run import Timer

__all__ = ["COLUMNS", "csv_text"]

Cell = str | int | float | None

COLUMNS = (
    *("started_at", "kernelgauge", "gpu_model", "gpu", "driver", "cuda", "torch", "triton"),
    *("suite", "workload", "module", "variant", "dtype", "pass", "shape"),
    *("timer", "time_us", "baseline_us", "change_percent", "ci_low_percent", "ci_high_percent", "confidence_percent"),
    *("verdict", "launches", "kernels", "replicates", "iterations", "reason"),
)

# What a spreadsheet takes for a formula, or strips before it looks for one; OWASP, "CSV Injection"
# (https://owasp.org/www-community/attacks/CSV_Injection), the full-width forms of an Asian keyboard included.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def csv_text(results: Sequence[Results]) -> str:
    """A heading, then a row for each workload and timer that was measured or judged, in order.

    A workload without any has one row with an empty timer: its verdict, and the reason. Texts are quoted and cannot be
    formulas, numbers are numbers, what is not known is empty. Lines end in CR LF (RFC 4180).
    """
    stream = StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(COLUMNS)
    for each in results:
        for workload in each.workloads:
            writer.writerows([_harmless(cell) for cell in row] for row in _rows(each, workload))
    return stream.getvalue()


def _rows(results: Results, workload: WorkloadResult) -> Iterator[tuple[Cell, ...]]:
    what = (results.started_at, results.kernelgauge, *_machine(results, workload), *_workload(workload))
    timers = [timer for timer in Timer if _is_known(workload, timer)]
    for timer in timers:
        yield (*what, *_time(workload, timer))
    if not timers:
        status = workload.status
        said = workload.unavailable or next((each.headline for each in workload.verdicts if each.status is status), "")
        yield (*what, *_untimed(workload, None if status is None else status.value, said))


def _is_known(workload: WorkloadResult, timer: Timer) -> bool:
    measured = workload.run is not None and workload.run.sample(timer) is not None
    return measured or workload.verdict(timer.label) is not None


def _machine(results: Results, workload: WorkloadResult) -> tuple[Cell, ...]:
    known, gpu = results.machine_of(workload)
    software = (known.driver, known.cuda, known.torch, known.triton) if known is not None else (None,) * 4
    return (known.device if known else None, gpu, *software)


def _workload(workload: WorkloadResult) -> tuple[Cell, ...]:
    shape = "x".join(map(str, workload.shape))
    return (
        *(workload.suite, workload.id, workload.module, workload.variant, workload.dtype, workload.pass_),
        shape,
    )


def _time(workload: WorkloadResult, timer: Timer) -> tuple[Cell, ...]:
    run, verdict = workload.run, workload.verdict(timer.label)
    sample = run.sample(timer) if run is not None else None
    return (
        timer.value,
        None if sample is None else round(observe(sample).mean_us, 3),
        None if verdict is None or verdict.before_us is None else round(verdict.before_us, 3),
        *_change(verdict.change if verdict is not None else None),
        None if verdict is None else verdict.status.value,
        *_counts(workload),
        None if sample is None else len(sample.replicates_us),
        None if sample is None else sample.iterations,
        _reason(verdict),
    )


def _untimed(workload: WorkloadResult, status: str | None, said: str) -> tuple[Cell, ...]:
    return (None, None, None, None, None, None, None, status, *_counts(workload), None, None, said)


def _counts(workload: WorkloadResult) -> tuple[Cell, Cell]:
    run = workload.run
    return (None, None) if run is None else (run.counts.launches, run.counts.kernels)


def _change(change: RelativeChange | None) -> tuple[Cell, ...]:
    if change is None:
        return (None,) * 4
    fractions = (change.estimate, change.low, change.high, change.confidence)
    return tuple(None if value is None else round(100 * value, 4) for value in fractions)


def _reason(verdict: Verdict | None) -> str:
    return "" if verdict is None or verdict.status.passes else verdict.headline


def _harmless(cell: Cell) -> Cell:
    """A number as it is; a text in one line that no spreadsheet takes for a formula."""
    if not isinstance(cell, str):
        return cell
    shown = printable(cell)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown
