"""`kernelgauge review`, `accept` and `calibrate`: make baselines from saved results, or from fresh processes."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ..errors import KernelgaugeError, UpdateRefused, printable
from . import Commands, Exit, note, say, terminal

if TYPE_CHECKING:
    from ..baselines import BaselineStore
    from ..baselines.calibration import Calibration
    from ..judge import PlannedChange, Review, Reviewed
    from ..results import Results

__all__ = ["add_commands"]

_RESULTS = Path("reports", "latest")
_VANISHED = "vanished"
_GROUPS = ("same-speed", "speed", "configuration", "kernels", "new", _VANISHED)  # of what can be accepted
# The root of a project has one of these: where pytest leaves its reports, or where it finds its configuration.
_MARKS = (str(_RESULTS), "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", ".git")
_FEWEST_PROCESSES = 2
_MARKDOWN_WIDTH = 100
_MOST_NAMED = 8  # workloads in a command
_MOST_SHOWN = 200  # characters of an expression


def add_commands(commands: Commands) -> None:
    reviewing = commands.add_parser(
        "review",
        help="compare saved results with the baselines",
        description="Compare the results of a run with the baselines of its machine: changes of the environment, then "
        "the workloads in groups, each with its evidence. Exits with 1 if anything waits for acceptance.",
        allow_abbrev=False,
    )
    _add_places(reviewing)
    reviewing.add_argument("--markdown", action="store_true", help="print Markdown for a pull request")
    reviewing.set_defaults(command=_review)
    accepting = commands.add_parser(
        "accept",
        help="store saved results as the baselines",
        description="Store the results of a run as the baselines of its machine, without measuring again: all workloads, "
        "or those that both --group and -k select. Exits with 1 if any of them is refused.",
        allow_abbrev=False,
    )
    _add_places(accepting)
    accepting.add_argument(
        "--add",
        action="store_true",
        help="add the measurements to the baselines instead of replacing them, for a GPU that they do not know",
    )
    accepting.add_argument("--group", action="append", choices=_GROUPS, metavar="GROUP", help=", ".join(_GROUPS))
    accepting.add_argument(
        "-k", dest="expression", metavar="EXPRESSION", help="as in pytest, for example 'mlp and not eager'"
    )
    accepting.add_argument("--dry-run", action="store_true", help="show the changes, and write nothing")
    accepting.add_argument(
        "--force", action="store_true", help="accept refused workloads too, where possible; also needed under CI"
    )
    accepting.set_defaults(command=_accept)
    _add_calibrate(commands)


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        metavar="RESULTS",
        help=f"a results.json, or a folder with one or with folders of them (default: {_RESULTS} of this project)",
    )
    parser.add_argument(
        "--baselines",
        type=Path,
        metavar="DIR",
        help="folder of the baselines (default: the one that the run was compared with)",
    )


def _load(options: argparse.Namespace) -> tuple[list[tuple[Path, Results]], BaselineStore]:
    """Return saved results with their files, and the baselines that they belong to."""
    from ..baselines import BaselineStore
    from ..baselines.acceptance import load

    root = _project_root()
    loaded = load(options.results or [root / _RESULTS])
    return loaded, BaselineStore(options.baselines or root / _recorded_baselines([each for _, each in loaded]))


def _shown(
    waiting: Sequence[Review], loaded: Sequence[tuple[Path, Results]], store: BaselineStore, *, width: int, color: bool
) -> str:
    from ..report.baselines import review_text
    from ..report.wording import short_commit
    from ..results import revision
    from ..results.files import slug

    here = revision(Path.cwd())

    def code(commit: str | None) -> str:
        """Return the commit that was measured, and whether another one is checked out by now."""
        elsewhere = commit is not None and not commit.endswith("+") and here not in (None, commit)
        return f"commit {short_commit(commit)}" + (f"; checked out: {short_commit(here)}" if elsewhere else "")

    texts = []
    for each in waiting:
        folder = slug(each.device)
        sources = [
            ("results", f"{file}   {results.started_at}, {code(results.commit)}")
            for file, results in loaded
            if results.fingerprint is not None and slug(results.fingerprint.device) == folder
        ]
        sources.append(("stored", str(store.root / folder)))
        texts.append(review_text(each, sources=sources, width=width, color=color))
    return "\n".join(texts)


def _project_root() -> Path:
    """Return the nearest folder from here upwards that looks like the root of a project, relative to here; else here."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if any((folder / mark).exists() for mark in _MARKS):
            return Path(os.path.relpath(folder, here))
    return Path()


def _recorded_baselines(loaded: Sequence[Results]) -> PurePosixPath:
    """Return the folder that the results were compared with, from the root of the project. It must lie in the project."""
    folders = sorted({results.baselines for results in loaded})
    folder = PurePosixPath(folders[0])
    if len(folders) > 1 or folder.is_absolute() or ".." in folder.parts or "\0" in str(folder):
        raise KernelgaugeError(
            "the results do not say which baselines of this project they belong to",
            got=printable(", ".join(folders)),
            expected="one folder in the project",
            next_command=printable(f"kernelgauge review --baselines {folders[0]}"),
        )
    return folder


def _require_force_under_ci(options: argparse.Namespace, command: str, reason: str) -> None:
    """Raise `UpdateRefused` if the command would store baselines in a CI job that does not force it."""
    if os.environ.get("CI") and not (options.force or options.dry_run):
        raise UpdateRefused(
            f"{command} is refused under CI: {reason}",
            got="the environment variable CI is set",
            next_command=f"kernelgauge {command} --force ...   (in a job whose purpose is to record)",
        )


def _review(options: argparse.Namespace) -> Exit:
    from ..baselines.acceptance import pending
    from ..report.baselines import fenced

    loaded, store = _load(options)
    waiting = pending([results for _, results in loaded], store)
    if options.markdown:
        say(fenced(_shown(waiting, loaded, store, width=_MARKDOWN_WIDTH, color=False)))
    else:
        width, color = terminal()
        say(_shown(waiting, loaded, store, width=width, color=color))
    return Exit.YES if all(each.settled for each in waiting) else Exit.NO


def _accept(options: argparse.Namespace) -> Exit:
    from ..baselines.acceptance import pending, select

    _require_force_under_ci(options, "accept", "a job that accepts its own result gates nothing")
    matches = matcher(options.expression)

    def is_wanted(each: Reviewed) -> bool:
        # A workload that is declared only where some package is installed vanishes elsewhere: to remove a file, one must say so.
        group = each.group.value
        return (group in options.group if options.group else group != _VANISHED) and matches(each.workload)

    loaded, store = _load(options)
    # One lock over the review and the writing: what is shown is what is written.
    with nullcontext() if options.dry_run else store.locked():
        waiting = pending([results for _, results in loaded], store)
        width, color = terminal()
        say(_shown(waiting, loaded, store, width=width, color=color))
        if not any(matches(each.workload) for one in waiting for each in one.reviewed):
            say(printable(f"no workload of this review matches -k {options.expression!r}"))
            return Exit.NO
        plans: list[tuple[str, list[PlannedChange]]] = []
        refused: list[Reviewed] = []
        for each in waiting:
            plan, wrong = select(each, is_wanted, add=options.add, force=options.force)
            plans.append((each.device, plan))
            refused += wrong
        gone = sum(each.group.value == _VANISHED for one in waiting for each in one.reviewed if matches(each.workload))
        if gone and not options.group:
            say(f"{gone} vanished: stays in {store.root}; to remove: kernelgauge accept --group {_VANISHED}")
        return _apply(plans, refused, store, dry_run=options.dry_run)


def _apply(
    plans: Sequence[tuple[str, list[PlannedChange]]],
    refused: Sequence[Reviewed],
    store: BaselineStore,
    *,
    dry_run: bool,
) -> Exit:
    from ..judge import Action
    from ..report.baselines import plan_text

    width, color = terminal()
    for each in refused:
        say(printable(f"refused: {each.workload}: {'; '.join(each.doubts)}"))
    if refused:
        say(printable(f"to measure it again, in full and on a quiet machine: {_measuring(refused)}"))
        say("to accept it as it is, where possible: add --force")
    plan = [change for _, changes in plans for change in changes]
    say(plan_text(plan, width=width, color=color) if plan else "nothing to accept")
    if plan and dry_run:
        say("nothing was written: a dry run")
    elif plan:
        store.apply_all(plans)
        removed = sum(change.action is Action.TRIM for change in plan)
        counts = {"written to": len(plan) - removed, "removed from": removed}
        parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        say(printable(f"{parts} {store.root}"))
    return Exit.NO if refused else Exit.YES


def _measuring(refused: Sequence[Reviewed]) -> str:
    """Return the command that measures workloads again."""
    suites = sorted({each.candidate.suite for each in refused if each.candidate is not None})
    chosen = ["-k", " or ".join(each.workload for each in refused)] if len(refused) <= _MOST_NAMED else []
    return shlex.join(["pytest", *suites, *chosen])


def matcher(expression: str | None) -> Callable[[str], bool]:
    """Return whether a workload's id matches `-k`: substrings, `and`, `or`, `not`, parentheses. None matches every id.

    Raises `KernelgaugeError` if the expression is invalid.
    """
    if expression is None:
        return lambda _: True
    # Private, and the only implementation there is: one of our own would mean something else in some corner, and what
    # is accepted is what `pytest perf -k` has measured. It is imported here, since pytest takes longer than the command.
    from _pytest.mark.expression import Expression

    def matches(workload: str) -> bool:
        def is_in(name: str, /) -> bool:  # no keyword arguments: -m takes name(key=value), -k does not
            return name.lower() in f"[{workload}]".lower()  # as in the name of its tests

        return compiled.evaluate(is_in)  # type: ignore[arg-type]

    try:
        compiled = Expression.compile(expression)
        matches("")  # so that what cannot be evaluated is found before anything is done
    except Exception as error:  # pytest 8 and 9 have different ones
        raise KernelgaugeError(
            "-k: invalid expression",
            got=printable(f"{expression[:_MOST_SHOWN]!r}: {str(error) or 'nested too deep'}"),
            expected="as for pytest, for example -k 'mlp and not eager'",
        ) from error
    return matches


# -- calibrate -----------------------------------------------------------------------------------------------------------


def _add_calibrate(commands: Commands) -> None:
    calibrating = commands.add_parser(
        "calibrate",
        help="measure how noisy this machine is, and record baselines that know it",
        description="Run the suite in fresh processes with empty compile caches, print the noise of each workload, the "
        "smallest change that it shows and the autotuner's choices, and store them with the baselines. Every other argument "
        "goes to pytest: kernelgauge calibrate perf -k mlp",
        allow_abbrev=False,
    )
    calibrating.add_argument("--processes", type=_processes, default=10, metavar="N", help="default: 10")
    calibrating.add_argument(
        "--gpus",
        type=_gpus,
        default=[],
        metavar="0,1,...",
        help="measure on these in parallel, one process at a time on each; shows how GPUs of one kind differ",
    )
    calibrating.add_argument(
        "--add",
        action="store_true",
        help="add to what is stored instead of replacing it: the GPUs of another host, or more processes",
    )
    calibrating.add_argument("--dry-run", action="store_true", help="print, and store nothing")
    calibrating.add_argument("--force", action="store_true", help="store under CI too")
    calibrating.set_defaults(command=_calibrate)


def _processes(text: str) -> int:
    if not text.isdecimal() or int(text) < _FEWEST_PROCESSES:
        raise argparse.ArgumentTypeError(
            f"a whole number from {_FEWEST_PROCESSES}, got {text!r}: noise shows between processes"
        )
    return int(text)


def _gpus(text: str) -> list[str]:
    gpus = [gpu.strip() for gpu in text.split(",") if gpu.strip()]
    if len(set(gpus)) < len(gpus):
        raise argparse.ArgumentTypeError(f"each GPU once, got {text!r}: two processes on one disturb each other")
    return gpus


def _calibrate(options: argparse.Namespace) -> Exit:
    from ..baselines import BaselineStore
    from ..baselines.calibration import calibrate, draw

    _require_force_under_ci(options, "calibrate", "a job that records its own baselines gates nothing")
    measured = draw(options.pytest_arguments, processes=options.processes, gpus=options.gpus, progress=note)
    store = BaselineStore(Path(measured[0].baselines))
    with nullcontext() if options.dry_run else store.locked():
        found = calibrate(measured, store, add=options.add)
        _show(found)
        if not options.dry_run:
            store.apply(found.device, found.plan)
            say(f"{len(found.baselines)} written to {store.root}")
    return Exit.NO if found.refused else Exit.YES


def _show(calibration: Calibration) -> None:
    from ..report.baselines import calibration_text, choices_text

    width, color = terminal()
    lines = [
        calibration_text(calibration.baselines, comparisons=calibration.comparisons, width=width, color=color),
        *choices_text(calibration.baselines),
        *(f"not stored: {workload}: {why}" for workload, why in calibration.refused.items()),
    ]
    say("\n".join(lines))
