"""An evaluation as Markdown, and as a plot of the share caught against the size of the slowdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from .data import Process
from .evaluate import OUR_NAME, BaselineKind, Caught, Evaluation, Share, Where
from .levels import Level

__all__ = ["markdown", "plot"]

_NO_DATA = "-"
_BASELINES: dict[tuple[BaselineKind, Where], str] = {
    ("all others", "same GPU"): "all other processes of the GPU",
    ("one process", "same GPU"): "one other process of the GPU",
    ("all others", "other GPU"): "all processes of another GPU",
    ("one process", "other GPU"): "one process of another GPU",
}
_DESIGNS = list(_BASELINES)
_INTERVALS = (
    "Shares with Wilson's 95 % interval. It counts a test process and workload once, however many baselines it was "
    "compared with."
)
_MATCHED = (
    '"Matched": the lowest thresholds, one for each workload, that would have kept the peer at {rates} of suites with '
    'a false alarm on the same GPU. Chosen in hindsight on the same processes, which favours the peer; "matched on the '
    'others": chosen on all processes but the one that is judged, as one would have to before there is a change.'
)


def markdown(evaluation: Evaluation, processes: Sequence[Process] = (), title: str = "What each method catches") -> str:
    """`processes` adds the wall time that each method took."""
    machines = ", ".join(f"{gpu}: {count}" for gpu, count in evaluation.processes.items())
    rates = ", ".join(f"{rate:.1%} ({_BASELINES[kind, 'same GPU']})" for kind, rate in evaluation.matched_rate.items())
    parts = [
        f"# {title}",
        f"Processes by GPU: {machines}. {_INTERVALS}",
        _MATCHED.format(rates=rates),
        "## False alarms: suites without any slowdown that were flagged",
        _alarms(evaluation),
    ]
    for baseline, where in _DESIGNS:
        for module, kind in _panels(evaluation.caught):
            if _rows(evaluation.caught, baseline, where, module, kind):
                parts.append(f"## Caught: {module}, slower {kind}; baseline: {_BASELINES[baseline, where]}")
                parts.append(_caught(evaluation, baseline, where, module, kind))
    parts += ["## The peers' matched thresholds", _thresholds(evaluation)]
    if any("wall_seconds" in process.meta for process in processes):
        parts += ["## Wall time of one measurement", _wall_times(processes)]
    return "\n\n".join(parts) + "\n"


def plot(evaluation: Evaluation, path: Path, baseline: BaselineKind = "all others") -> None:
    """One panel for each module and kind of slowdown, one line for each method: a peer has one colour at all thresholds.

    The suffix of `path` says which format.
    """
    from matplotlib.figure import Figure

    panels = _panels(evaluation.caught)
    methods = [method for method in evaluation.methods if not method.endswith((" alone", " on the others"))]
    suites = {
        row.method: row.suites for row in evaluation.alarms if (row.baseline, row.where) == (baseline, "same GPU")
    }
    peers = list(dict.fromkeys(_first_word(method) for method in methods if method != OUR_NAME))
    columns = max(1, len(panels))
    figure = Figure(figsize=(4.2 * columns, 5.2))
    axes = figure.subplots(1, columns, sharey=True, squeeze=False)
    for axis, (module, kind) in zip(axes[0], panels, strict=False):
        for method in methods:
            rows = [row for row in _rows(evaluation.caught, baseline, "same GPU", module, kind) if row.method == method]
            if not rows:
                continue
            ours = method == OUR_NAME
            axis.plot(
                [row.level.percent for row in rows],
                [100 * row.share.share for row in rows],
                label=f"{method}: {suites[method].hits}/{suites[method].trials} unchanged suites flagged",
                color="black" if ours else f"C{peers.index(_first_word(method)) % 10}",
                linestyle="-" if ours else ("--" if method.endswith("matched") else ":"),
                linewidth=2.5 if ours else 1.4,
                marker="s" if "> 10 %" in method else "o",
                markersize=5,
                zorder=3 if ours else 2,
            )
        levels = _levels(evaluation.caught, module, kind)
        axis.set_xscale("log")
        axis.set_xticks([level.percent for level in levels], [f"{level.percent:g}" for level in levels])
        axis.minorticks_off()
        axis.set_ylim(-3, 103)
        axis.set_title(f"{module}, slower {kind}")
        axis.set_xlabel(f"slowdown, % of {kind} time")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("caught, %")
    handles = {
        label: handle for axis in axes[0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.tight_layout()
    if handles:
        figure.legend(
            list(handles.values()), list(handles), loc="upper center", bbox_to_anchor=(0.5, 0), ncol=2, fontsize=8
        )
    figure.savefig(path, bbox_inches="tight", dpi=110)


def _first_word(method: str) -> str:
    return method.split()[0].rstrip(",")


def _alarms(evaluation: Evaluation) -> str:
    columns = [(where, baseline) for where in get_args(Where) for baseline in get_args(BaselineKind)]
    found = {(row.method, row.where, row.baseline): row.suites for row in evaluation.alarms}
    return _table(
        ["method", *(f"{where}, baseline of {baseline}" for where, baseline in columns)],
        ([method, *(_cell(found.get((method, *column))) for column in columns)] for method in evaluation.methods),
    )


def _caught(evaluation: Evaluation, baseline: BaselineKind, where: Where, module: str, kind: str) -> str:
    levels = _levels(evaluation.caught, module, kind)
    found = {(row.method, row.level): row.share for row in _rows(evaluation.caught, baseline, where, module, kind)}
    methods = [method for method in evaluation.methods if any((method, level) in found for level in levels)]
    seen = [evaluation.seen.get((module, level)) for level in levels]
    return _table(
        ["method", *(f"+{level.percent:g} %" for level in levels)],
        [
            ["as our own timer saw it", *(_NO_DATA if change is None else f"{change:+.2%}" for change in seen)],
            *([method, *(_cell(found.get((method, level))) for level in levels)] for method in methods),
        ],
    )


def _thresholds(evaluation: Evaluation) -> str:
    workloads = list(dict.fromkeys(workload for found in evaluation.matched.values() for workload in found))
    return _table(
        ["peer", "baseline", *workloads],
        (
            [peer, baseline, *(_threshold(peer, found.get(workload)) for workload in workloads)]
            for (peer, baseline), found in evaluation.matched.items()
        ),
    )


def _threshold(peer: str, threshold: float | None) -> str:
    if threshold is None:
        return _NO_DATA
    return f"z {threshold:.1f}" if peer.startswith("Mann-Whitney") else f"{threshold:.2%}"


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
    return sorted({(row.module, row.level.kind) for row in caught}, key=lambda panel: (panel[1], panel[0]))


def _levels(caught: Sequence[Caught], module: str, kind: str) -> list[Level]:
    return sorted({row.level for row in caught if row.module == module and row.level.kind == kind})


def _rows(caught: Sequence[Caught], baseline: BaselineKind, where: Where, module: str, kind: str) -> list[Caught]:
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
