"""`kernelgauge review`, `accept` and `calibrate`: make baselines from saved results, or from fresh processes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ..errors import KernelgaugeError, UpdateRefused, printable
from .output import Commands, Exit, say, terminal

if TYPE_CHECKING:
    from ..baselines import BaselineStore
    from ..baselines.acceptance import Chosen, Loaded, Pending
    from ..baselines.calibration import Calibration
    from ..judge import Reviewed
    from ..report.review import Line

__all__ = ["add_commands"]

_RESULTS = Path("reports", "latest")
_GROUPS = ("same-speed", "speed", "configuration", "kernels", "new", "vanished")  # of what can be accepted
# The root of a project has one of these: where pytest leaves its reports, or where it finds its configuration.
_MARKS = (str(_RESULTS), "pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", ".git")
_FEWEST_PROCESSES = 2
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


@dataclass(frozen=True)
class _Read:
    """Hold saved results, and their review against the baselines of a folder."""

    loaded: Loaded
    waiting: list[Pending]
    store: BaselineStore

    def text(self) -> str:
        from ..report.review import review_text

        width, color = terminal()
        return "\n".join(
            review_text(each.review, sources=self._sources(each), width=width, color=color) for each in self.waiting
        )

    def markdown(self) -> str:
        from ..report.review import review_markdown

        return "\n".join(review_markdown(each.review, sources=self._sources(each)) for each in self.waiting)

    def _sources(self, waiting: Pending) -> list[Line]:
        from ..files import slug
        from ..report.review import Line, commit_text

        folder = slug(waiting.device)
        measured = [
            Line("results", f"{file}   {results.started_at}, commit {commit_text(results.commit)}")
            for file, results in self.loaded.results
            if results.fingerprint is not None and slug(results.fingerprint.device) == folder
        ]
        skipped = [Line("skipped", text) for text in self.loaded.skipped]
        return [*measured, Line("stored", str(self.store.root / folder)), *skipped]


def _read(options: argparse.Namespace) -> _Read:
    from ..baselines import BaselineStore
    from ..baselines.acceptance import load, pending

    root = _project_root()
    loaded = load(options.results or [root / _RESULTS])
    store = BaselineStore(options.baselines or root / _recorded_baselines(loaded))
    return _Read(loaded, pending([each for _, each in loaded.results], store, now=datetime.now(timezone.utc)), store)


def _project_root() -> Path:
    """Return the nearest folder from here upwards that looks like the root of a project, relative to here; else here."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if any((folder / mark).exists() for mark in _MARKS):
            return Path(os.path.relpath(folder, here))
    return Path()


def _recorded_baselines(loaded: Loaded) -> PurePosixPath:
    """Return the folder that the results were compared with, from the root of the project. It must lie in the project."""
    folders = sorted({results.baselines for _, results in loaded.results})
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
    read = _read(options)
    say(read.markdown() if options.markdown else read.text())
    return Exit.YES if all(each.review.settled for each in read.waiting) else Exit.NO


def _accept(options: argparse.Namespace) -> Exit:
    from ..baselines.acceptance import choose, choose_to_add

    _require_force_under_ci(options, "accept", "a job that accepts its own result gates nothing")
    matches = matcher(options.expression) if options.expression is not None else None
    read = _read(options)
    say(read.text())
    names = [each.workload for one in read.waiting for each in one.review.reviewed]
    if matches is not None and not any(map(matches, names)):
        say(printable(f"no workload of this review matches -k {options.expression!r}"))
        return Exit.NO

    def wanted(each: Reviewed) -> bool:
        in_group = not options.group or each.group.value in options.group
        return in_group and (matches is None or matches(each.workload))

    chooses = choose_to_add if options.add else choose
    chosen = [chooses(each, wanted, force=options.force) for each in read.waiting]
    return _apply(chosen, read.store, dry_run=options.dry_run)


def _apply(chosen: Sequence[Chosen], store: BaselineStore, *, dry_run: bool) -> Exit:
    from ..baselines.acceptance import store_all
    from ..report.terminal import plan_text

    width, color = terminal()
    refused = [each for one in chosen for each in one.refused]
    for each in refused:
        say(printable(f"refused: {each.workload}: {'; '.join(each.refused)}"))
    plan = [change for one in chosen for change in one.plan]
    if not plan:
        say("nothing to accept")
    else:
        say(plan_text(plan, width=width, color=color))
        if dry_run:
            say("nothing was written: a dry run")
        else:
            store_all(chosen, store)
            say(printable(f"{len(plan)} written to {store.root}"))
    return Exit.NO if refused else Exit.YES


def matcher(expression: str) -> Callable[[str], bool]:
    """Return whether a workload's id matches `-k`: substrings, `and`, `or`, `not`, parentheses.

    Raises `KernelgaugeError` if the expression is invalid.
    """
    # Private, and the only implementation there is: one of our own would mean something else in some corner, and what
    # is accepted is what `pytest perf -k` has measured. It is imported here, since pytest takes longer than the command.
    from _pytest.mark import expression as pytest_expression

    # pytest 8 has an error of its own, pytest 9 raises SyntaxError. What is nested too deep ends in one of the others.
    errors = (SyntaxError, RecursionError, MemoryError, getattr(pytest_expression, "ParseError", SyntaxError))

    def is_in(text: str, name: str, **values: object) -> bool:
        if values:  # pytest's -m takes name(key=value), its -k does not
            raise SyntaxError("call parameters are not supported")
        return name.lower() in text.lower()  # substrings in any case, as pytest's KeywordMatcher

    def matches(workload: str) -> bool:
        return compiled.evaluate(lambda name, /, **values: is_in(workload, name, **values))

    try:
        compiled = pytest_expression.Expression.compile(expression)
        matches("")  # so that what cannot be evaluated is found before anything is done
    except errors as error:
        raise KernelgaugeError(
            "-k: invalid expression",
            got=printable(f"{_clipped(expression)}: {str(error) or 'nested too deep'}"),
            expected="as for pytest, for example -k 'mlp and not eager'",
        ) from error
    return matches


def _clipped(expression: str) -> str:
    if len(expression) <= _MOST_SHOWN:
        return repr(expression)
    return f"{expression[:_MOST_SHOWN]!r}... ({len(expression)} characters)"


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
    calibrating.set_defaults(command=_calibrate, passes_arguments_on=True)


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
    from ..baselines.calibration import calibrate, draw, planned, store

    _require_force_under_ci(options, "calibrate", "a job that records its own baselines gates nothing")
    files = draw(
        options.pytest_arguments,
        processes=options.processes,
        gpus=options.gpus,
        progress=lambda what: print(what, file=sys.stderr, flush=True),  # noqa: T201
    )
    calibration = calibrate(files)
    if options.dry_run:
        plan = planned(calibration, add=options.add)
        _show(plan)
    else:
        plan = store(calibration, add=options.add, show=_show)
        say(f"{len(plan.baselines)} written to {plan.folder}")
    return Exit.NO if plan.refused else Exit.YES


def _show(calibration: Calibration) -> None:
    from ..report.calibration import calibration_text, choices_text

    width, color = terminal()
    lines = [
        calibration_text(calibration.baselines, comparisons=calibration.comparisons, width=width, color=color),
        *choices_text(calibration.baselines),
        *(f"not stored: {workload}: {why}" for workload, why in calibration.refused.items()),
    ]
    say("\n".join(lines))
