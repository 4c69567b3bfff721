"""An evaluation as Markdown, and as a plot of the share caught against the size of the slowdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from .data import Level, Process
from .evaluate import (
    DESIGNS,
    KERNEL_FLOOR_US,
    OUR_NAME,
    TIE,
    Achieved,
    BaselineKind,
    Caught,
    Evaluation,
    Share,
    Tie,
    Where,
    ties,
)

__all__ = ["markdown", "plot"]

_NO_DATA = "-"
_OFF = 0.05  # of a level
_BASELINES: dict[tuple[BaselineKind, Where], str] = {
    ("all others", "same GPU"): "all other processes of the GPU",
    ("one process", "same GPU"): "one other process of the GPU",
    ("all others", "other GPU"): "all processes of another GPU",
}
_TIMES = {"device": "GPU time", "host": "dispatch time"}
_INTERVALS = (
    "Shares with Wilson's 95 % interval for as many trials as there are test processes: workloads and pairs of one "
    "process are not independent."
)
_MATCHED = (
    '"Matched": the lowest thresholds, one for each workload, that keep the peer at {rates} of unchanged suites '
    "flagged. They are chosen in hindsight on the same processes, which favours the peer."
)
_KERNELS = (
    '"Kernel durations": mean over profiler sessions of 12 calls each, of their median sum of kernel durations. They are '
    f"{OUR_NAME}'s own sessions. A change of {KERNEL_FLOOR_US:g} µs or less is not flagged."
)


def markdown(
    evaluation: Evaluation,
    processes: Sequence[Process] = (),
    title: str = "What each method catches",
) -> str:
    """Return all tables; `processes` adds what their files say about wall times and about the
    injection.
    """
    machines = ", ".join(f"{gpu}: {count}" for gpu, count in evaluation.processes.items())
    rates = ", ".join(
        f"{rate:.1%} ({_BASELINES[kind, 'same GPU']})"
        for kind, rate in evaluation.matched_rate.items()
    )
    parts = [
        f"# {title}",
        f"Processes by GPU: {machines}. {_INTERVALS}",
        _MATCHED.format(rates=rates),
        _KERNELS,
        "## False alarms: suites without any slowdown that were flagged",
        _alarms(evaluation),
        "## Ties",
        _ties(ties(evaluation)),
    ]
    for baseline, where in DESIGNS:
        for module, kind in _panels(evaluation.caught):
            if _rows(evaluation.caught, baseline, where, module, kind):
                parts.append(
                    f"## Caught: {module}, slower {_TIMES[kind]}; baseline: {_BASELINES[baseline, where]}"
                )
                parts.append(_caught(evaluation, baseline, where, module, kind))
    if any("calibration" in process.meta for process in processes):
        parts += ["## What the injection costs", _injection(processes)]
    if any("wall_seconds" in process.meta for process in processes):
        parts += ["## Wall time of one measurement", _wall_times(processes)]
    return "\n\n".join(parts) + "\n"


def plot(evaluation: Evaluation, path: Path) -> None:
    """Plot a panel for each module and kind of slowdown, a line for each method; the suffix of
    `path` sets the format.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = _panels(evaluation.caught)
    columns = max(1, len(panels))
    figure = Figure(figsize=(4.2 * columns, 5.2))
    axes = figure.subplots(1, columns, sharey=True, squeeze=False)
    suites = {
        row.method: row.suites
        for row in evaluation.alarms
        if (row.baseline, row.where) == ("all others", "same GPU")
    }
    handles = {}
    for axis, (module, kind) in zip(axes[0], panels, strict=False):
        for place, method in enumerate(evaluation.methods):
            rows = _rows(evaluation.caught, "all others", "same GPU", module, kind)
            points = [
                (row.level.percent, 100 * row.share.share) for row in rows if row.method == method
            ]
            if not points:
                continue
            is_ours = method == OUR_NAME
            label = (
                f"{method}: {suites[method].hits}/{suites[method].trials} unchanged suites flagged"
            )
            (handles[label],) = axis.plot(
                *zip(*points, strict=True),
                label=label,
                color="black" if is_ours else f"C{place % 10}",
                linestyle="-" if is_ours else ("--", ":")[place // 10 % 2],
                linewidth=2.5 if is_ours else 1.4,
                marker="o",
                zorder=3 if is_ours else 2,
            )
        levels = _levels(evaluation.caught, module, kind)
        axis.set_xscale("log")
        axis.set_xticks(
            [level.percent for level in levels], [f"{level.percent:g}" for level in levels]
        )
        axis.minorticks_off()
        axis.set_ylim(-3, 103)
        axis.set_title(f"{module}, slower {_TIMES[kind]}")
        axis.set_xlabel(f"slowdown, % of {_TIMES[kind]}")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("caught, %")
    figure.tight_layout()
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            ncol=2,
            fontsize=8,
        )
    # Text as text takes less than half of what its outlines take. Without a date, and with fixed
    # ids, equal plots are equal files.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": OUR_NAME}):
        figure.savefig(
            path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None
        )


def _alarms(evaluation: Evaluation) -> str:
    found = {(row.method, row.baseline, row.where): row.suites for row in evaluation.alarms}
    return _table(
        ["method", *(f"baseline: {_BASELINES[design]}" for design in DESIGNS)],
        (
            [method, *(_cell(found.get((method, *design))) for design in DESIGNS)]
            for method in evaluation.methods
        ),
    )


def _ties(found: Sequence[Tie]) -> str:
    """Return a sentence for each peer."""
    levels: dict[tuple[str, BaselineKind], dict[str, list[str]]] = {}
    for tie in found:
        by_module = levels.setdefault((tie.method, tie.baseline), {})
        by_module.setdefault(f"{tie.module}, {_TIMES[tie.level.kind]}", []).append(
            f"+{tie.level.percent:g} %"
        )
    sentences = []
    for (method, baseline), by_module in levels.items():
        where = "; ".join(
            f"{module} {', '.join(percents)}" for module, percents in by_module.items()
        )
        sentences.append(
            f"- **{method}** ties with {OUR_NAME} at {where} (baseline: {_BASELINES[baseline, 'same GPU']})."
        )
    rule = (
        f"A peer ties where it catches at most {100 * TIE:g} points less than {OUR_NAME}, with no larger share of false "
        "alarms."
    )
    return "\n".join([rule, "", *(sentences or ["No peer ties."])])


def _caught(
    evaluation: Evaluation, baseline: BaselineKind, where: Where, module: str, kind: str
) -> str:
    levels = _levels(evaluation.caught, module, kind)
    found = {
        (row.method, row.level): row.share
        for row in _rows(evaluation.caught, baseline, where, module, kind)
    }
    methods = [
        method for method in evaluation.methods if any((method, level) in found for level in levels)
    ]
    achieved = [evaluation.achieved.get((module, level)) for level in levels]
    return _table(
        ["method", *(_label(level, one) for level, one in zip(levels, achieved, strict=True))],
        [
            [
                "achieved, median",
                *(_NO_DATA if one is None else f"{one.median:+.2%}" for one in achieved),
            ],
            [
                "achieved, 10th to 90th percentile",
                *(
                    _NO_DATA if one is None else f"{one.low:+.2%} to {one.high:+.2%}"
                    for one in achieved
                ),
            ],
            *(
                [method, *(_cell(found.get((method, level))) for level in levels)]
                for method in methods
            ),
        ],
    )


def _label(level: Level, achieved: Achieved | None) -> str:
    """Name a column by the achieved slowdown where that is not the intended one."""
    if achieved is None or abs(100 * achieved.median / level.percent - 1) <= _OFF:
        return f"+{level.percent:g} %"
    return f"+{100 * achieved.median:.1f} % (intended: {level.percent:g} %)"


def _injection(processes: Sequence[Process]) -> str:
    """Return medians over processes: what a spin's launch adds to the dispatch, and what the spin
    takes.
    """
    found: dict[str, list[dict[str, float]]] = {}
    for process in processes:
        for workload, calibration in process.meta.get("calibration", {}).items():
            found.setdefault(workload, []).append(calibration)
    columns = {
        "GPU time, us": "device_us",
        "shortest spin, us": "spin_us",
        "dispatch, us": "plain_us",
        "dispatch with a spin, us": "spun_us",
    }
    return _table(
        ["workload", *columns],
        (
            [
                workload,
                *(f"{np.median([one[name] for one in measured]):.2f}" for name in columns.values()),
            ]
            for workload, measured in found.items()
        ),
    )


def _wall_times(processes: Sequence[Process]) -> str:
    seconds: dict[str, list[float]] = {}
    for process in processes:
        for key, wall in process.meta.get("wall_seconds", {}).items():
            seconds.setdefault(key.rsplit("/", 1)[-1], []).append(float(wall))
    return _table(
        ["method", "measurements", "median s", "longest s"],
        (
            [method, str(len(found)), f"{np.median(found):.3f}", f"{max(found):.3f}"]
            for method, found in sorted(seconds.items())
        ),
    )


def _panels(caught: Sequence[Caught]) -> list[tuple[str, str]]:
    return sorted(
        {(row.module, row.level.kind) for row in caught}, key=lambda panel: (panel[1], panel[0])
    )


def _levels(caught: Sequence[Caught], module: str, kind: str) -> list[Level]:
    return sorted({row.level for row in caught if row.module == module and row.level.kind == kind})


def _rows(
    caught: Sequence[Caught], baseline: BaselineKind, where: Where, module: str, kind: str
) -> list[Caught]:
    asked = (baseline, where, module, kind)
    return [row for row in caught if (row.baseline, row.where, row.module, row.level.kind) == asked]


def _cell(share: Share | None) -> str:
    if share is None or not share.trials:
        return _NO_DATA
    low, high = share.interval
    return f"{share.hits}/{share.trials} = {share.share:.0%} [{low:.0%}, {high:.0%}]"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
