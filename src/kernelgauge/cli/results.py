"""Commands on saved results: `kernelgauge report`, `history`, `review`, `accept`; and `calibrate`,
which makes its own.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ..errors import KernelgaugeError, ResultsError, printable
from ..results import (
    Results,
    TestResult,
    changed_sources,
    find_results,
    project_of,
    read_results,
    repeated_arguments,
    selector,
)
from ..results.files import write_atomically
from ..run import Timer
from . import SELECTION, Commands, Exit, add_command, note, say, say_page

if TYPE_CHECKING:
    from ..baselines import BaselineStore, Plans
    from ..judge.review import Reviewed
    from ..report.text import Section

_PAGE, _MARKDOWN = "write one self-contained page", "print Markdown for a pull request"
_RESULTS = Path("reports", "latest")
_FEWEST_PROCESSES = 2
_MARKDOWN_WIDTH = 100
_MOST_FILES = 4  # that have changed


def add_commands(commands: Commands) -> None:
    report = add_command(
        commands, "report", _report, "make one page of the results of several runs"
    )
    report.epilog = "Without an option: report.html and report.md beside the newest results."
    forms = report.add_mutually_exclusive_group()
    forms.add_argument("--html", metavar="FILE", help=_PAGE)
    forms.add_argument("--markdown", action="store_true", help=_MARKDOWN)
    report.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="a results.json, or a folder with some",
    )
    about = "show how workloads changed over many nights, and since when"
    history = add_command(commands, "history", _history, about)
    where = "a folder with a results.json of each run, under any names"
    history.add_argument("history", type=Path, metavar="HISTORY", help=where)
    history.add_argument(
        "--timer",
        choices=[each.value for each in Timer],
        metavar="TIMER",
        help=(
            f"{', '.join(each.value for each in Timer)} (default: device_time, and on a CPU "
            "end_to_end)"
        ),
    )
    history.add_argument("--html", metavar="FILE", help=f"also {_PAGE}")
    about = f"{SELECTION}; shows details"
    history.add_argument("-k", dest="expression", default="", metavar="EXPRESSION", help=about)
    _add_storing(commands)


def _add_storing(commands: Commands) -> None:
    """Add the commands that read or write baselines."""
    description = (
        "Show what differs, in groups, with its evidence. Exits with 1 if anything waits for "
        "acceptance."
    )
    reviewing = add_command(
        commands, "review", _review, "compare saved results with the baselines", description
    )
    reviewing.add_argument("--markdown", action="store_true", help=_MARKDOWN)
    description = (
        "Store all workloads, or those that -k selects, without measuring again. Exits with 1 if "
        "any is refused."
    )
    accepting = add_command(
        commands, "accept", _accept, "store saved results as the baselines", description
    )
    accepting.add_argument(
        "-k", dest="expression", default="", metavar="EXPRESSION", help=SELECTION
    )
    accepting.add_argument(
        "--because", default="", metavar="TEXT", help="keep this reason; review shows it"
    )
    about = "measure how noisy this machine is, and record it"
    description = (
        "Run the suite in fresh processes, show the noise of each workload, and store the "
        "baselines. "
        "Every other argument goes to pytest: kernelgauge calibrate perf -k mlp"
    )
    calibrating = add_command(commands, "calibrate", _calibrate, about, description)
    calibrating.add_argument(
        "--processes", type=_processes, default=10, metavar="N", help="default: 10"
    )
    saved = f"a results.json, or a folder with some (default: {_RESULTS})"
    stored = "folder of the baselines (default: that of the run)"
    for parser in (reviewing, accepting):
        parser.add_argument("results", nargs="*", type=Path, metavar="RESULTS", help=saved)
        parser.add_argument("--baselines", type=Path, metavar="DIR", help=stored)
    add = "add to the stored measurements, for example those of another GPU"
    force = "store under CI too; accept stores what it refuses, where possible"
    for parser in (accepting, calibrating):
        parser.add_argument("--add", action="store_true", help=add)
        parser.add_argument(
            "--dry-run", action="store_true", help="show the changes, and write nothing"
        )
        parser.add_argument("--force", action="store_true", help=force)


def _report(options: argparse.Namespace) -> Exit:
    from ..report.html import html
    from ..report.summary import summary_markdown

    read = [(read_results(file), file) for file in find_results(options.results)]
    read.sort(key=lambda each: each[0].started)
    results = [each for each, _ in read]
    if options.markdown:
        say(summary_markdown(results))
        return Exit.YES
    targets = {options.html: html}
    if not any(targets):
        beside = read[-1][1].parent
        targets = {str(beside / "report.html"): html, str(beside / "report.md"): summary_markdown}
    # All are made before any is written: an error leaves nothing half done.
    made = [(target, form(results)) for target, form in targets.items() if target]
    for target, content in made:
        write_atomically(Path(target), content.encode())
        note(f"written: {target}")
    return Exit.YES


def _history(options: argparse.Namespace) -> Exit:
    from ..report.stored import history_page
    from ..results.history import read_nights

    nights, not_shown = read_nights(
        options.history,
        timer=Timer(options.timer) if options.timer else None,
        matches=_matcher(options.expression),
    )
    if options.html:
        from ..report.html import as_html  # jinja2: only for a page

        page = history_page(nights, not_shown, with_details=True)
        facts = {
            "times": (
                "medians over the GPUs; a chart has a line for each GPU, from the first run to "
                "the last"
            )
        }
        write_atomically(
            Path(options.html), as_html(page, title="Performance over time", facts=facts).encode()
        )
        note(f"written: {options.html}")
    if not nights:
        say("no workload to show")
    if page := history_page(nights, not_shown, with_details=bool(options.expression)):
        say_page(page)
    return Exit.YES if nights else Exit.NO


# -- baselines -------------------------------------------------------------------------------------


def _processes(text: str) -> int:
    if (count := int(text)) < _FEWEST_PROCESSES:
        raise argparse.ArgumentTypeError(
            f"at least {_FEWEST_PROCESSES}: noise shows between processes"
        )
    return count


def _load(options: argparse.Namespace) -> tuple[list[Results], BaselineStore, Section]:
    """Return saved results in order of their start, their baselines, and lines that name both.

    Equal results count once. Raises `ResultsError` for a file that cannot be read, and if nothing
    was measured.
    """
    from ..baselines import BaselineStore
    from ..report.text import Line, Section, first, short_commit

    root = Path(os.path.relpath(project_of(Path.cwd())))
    paths = options.results or [root / _RESULTS]
    loaded: list[Results] = []
    lines: list[Line] = []
    for file in find_results(paths):
        results = read_results(file)
        if results.fingerprint is None or results in loaded:
            continue
        loaded.append(results)
        lines.append(
            Line("results", f"{file}   {results.started_at}, commit {short_commit(results.commit)}")
        )
        if changed := changed_sources(results, project_of(Path.cwd())):
            files = ", ".join(first(changed, _MOST_FILES))
            lines.append(Line("changed", f"{files}   (since that run: measure again)"))
    if not loaded:
        where = printable("; ".join(map(str, paths)))
        raise ResultsError("nothing was measured", where=where, next_command="pytest perf")
    store = BaselineStore(options.baselines or root / _recorded_baselines(loaded))
    return (
        sorted(loaded, key=attrgetter("started")),
        store,
        Section(lines=[*lines, Line("stored", str(store.root))]),
    )


def _recorded_baselines(several: Sequence[Results]) -> PurePosixPath:
    """Return the folder that the results were compared with, from the root of the project.

    It must lie in the project.
    """
    folders = sorted({results.baselines for results in several})
    folder = PurePosixPath(folders[0])
    if len(folders) > 1 or folder.is_absolute() or ".." in folder.parts or "\0" in str(folder):
        what = "the results do not say which baselines of this project they belong to"
        got, command = (
            printable(", ".join(folders)),
            printable(f"kernelgauge review --baselines {folders[0]}"),
        )
        raise KernelgaugeError(
            what, got=got, expected="one folder in the project", next_command=command
        )
    return folder


def _review(options: argparse.Namespace) -> Exit:
    from ..baselines import review
    from ..judge.review import Group
    from ..report.stored import review_page
    from ..report.text import Section, as_markdown, as_text

    several, store, lines = _load(options)
    reviews = review(several, store)
    page = [
        lines,
        *(part for device, reviewed in reviews.items() for part in review_page(device, reviewed)),
    ]
    if options.markdown:
        text = as_text(page, width=_MARKDOWN_WIDTH, color=False)
        say(as_markdown([Section(code=text.removesuffix("\n"))]))
    else:
        say_page(page)
    found = [each for reviewed in reviews.values() for each in reviewed]
    refused = [each for each in found if each.doubts]
    settled = (Group.SAME_SPEED, Group.UNTIMED, Group.NOT_MEASURED)
    waiting = [each for each in found if each.group not in settled and not each.doubts]
    if not (refused or waiting):
        return Exit.YES
    if not options.markdown:
        say("")
        if refused:
            _say_measuring(refused, reviews, several[-1])
        if waiting:
            say(printable(f"to accept it: {_again(options)} --because TEXT"))
        if len(waiting) > 1:
            options.expression = _selecting([waiting[0].workload], reviews)
            say(printable(f"to accept a part: {_again(options)} --because TEXT"))
    return Exit.NO


def _accept(options: argparse.Namespace) -> Exit:
    from ..baselines import Mode, judge_by_themselves, review, select
    from ..judge.review import Action
    from ..report.stored import creep_lines, plan_section
    from ..report.summary import recording_doubt
    from ..report.text import Section

    require_force_under_ci(options, "accept")
    matches = _matcher(options.expression)
    several, store, lines = _load(options)
    tests = [test for results in several for test in results.tests]
    say_page([lines])
    # One lock over the review and the writing: what is shown is what is written.
    with nullcontext() if options.dry_run else store.locked():
        reviews = review(several, store, Mode.ADD if options.add else Mode.ACCEPT)
        if not any(matches(each.workload, tests) for one in reviews.values() for each in one):
            say(printable(f"no workload of these results matches -k {options.expression!r}"))
            return Exit.NO
        plans, refused = select(
            reviews,
            lambda each: matches(each.workload, tests),
            force=options.force,
            because=options.because,
            # who selects nothing means what changes
            store=store if options.expression else None,
        )
        changes = [change for plan in plans.values() for change in plan]
        say_page([plan_section(changes)] if changes else [Section(lines=["nothing to accept"])])
        exit_code = _store(plans, refused, store, dry_run=options.dry_run)
        written = [each.workload for each in changes if each.action is not Action.KEEP]
        if doubt := recording_doubt(judge_by_themselves(several[-1:], plans)):
            say(f"warning: {doubt}")
        if written and not (options.because or options.dry_run):
            # they stay as they are when it runs again
            options.expression = _selecting(written, reviews)
            say(printable(f"to keep why: {_again(options)} --because TEXT"))
        if options.because and not written and not refused:
            say("the reason was kept nowhere: name with -k the baselines that get it")
        if refused:
            _say_measuring(refused, reviews, several[-1])
            say("to accept it as it is, where possible: add --force")
        for line in creep_lines(changes):
            say(line)
        return exit_code


def _selecting(names: Iterable[str], reviews: Mapping[str, Sequence[Reviewed]]) -> str:
    """Return what `-k` must say to select these workloads and no others of a review."""
    known = {each.workload for one in reviews.values() for each in one}
    return " or ".join(selector(each, known) for each in names)


def _say_measuring(
    refused: Sequence[Reviewed], reviews: Mapping[str, Sequence[Reviewed]], results: Results
) -> None:
    """Print the command that measures refused workloads again."""
    root = project_of(Path.cwd())
    suites = sorted({os.path.relpath(root / each.suite) for each in refused if each.suite})
    chosen = ("-k", _selecting((each.workload for each in refused), reviews))
    command = shlex.join(["pytest", *suites, *chosen, *repeated_arguments(results.arguments)])
    say(printable(f"to measure it again, in full and on a quiet machine: {command}"))


def _again(options: argparse.Namespace) -> str:
    """Return the command that accepts the same results."""
    parts = ["kernelgauge", "accept", *map(str, options.results)]
    parts += ["--baselines", str(options.baselines)] if options.baselines else []
    parts += ["-k", options.expression] if getattr(options, "expression", "") else []
    parts += [f"--{each}" for each in ("add", "force") if getattr(options, each, False)]
    return shlex.join(parts)


def _matcher(expression: str) -> Callable[[str, Iterable[TestResult]], bool]:
    """Return whether pytest's `-k` would select one of the tests of a workload: each word is a part
    of the workload's id, or of the name, class or path of the test. An empty one matches all.

    Raises `KernelgaugeError` if the expression is invalid.
    """
    if not expression:
        return lambda *_: True
    # Private, and the only implementation there is. Imported here, since pytest takes longer than
    # the command.
    from _pytest.mark.expression import Expression

    def matches(workload: str, tests: Iterable[TestResult]) -> bool:
        nodes = {each.node for each in tests if each.workload == workload} or {""}
        return any(map(is_selected, (_keywords(workload, node) for node in nodes)))

    def is_selected(keywords: str) -> bool:
        return compiled.evaluate(lambda part: part.lower() in keywords)  # type: ignore[arg-type]

    try:
        compiled = Expression.compile(expression)
        is_selected("")  # refuses name(key=value), which -m takes and -k does not
    except Exception as error:  # pytest 8 and 9 have different ones
        got = printable(f"{expression[:200]!r}: {error}")
        expected = SELECTION
        raise KernelgaugeError("-k: invalid expression", got=got, expected=expected) from error
    return matches


def _keywords(workload: str, node: str) -> str:
    """Return what a word of `-k` may be a part of, on lines of their own."""
    file, _, test = node.partition("::")
    return "\n".join([f"[{workload}]", *file.split("/"), *test.split("::")]).lower()


def _calibrate(options: argparse.Namespace) -> Exit:
    from ..baselines import BaselineStore, Mode, plan_update
    from ..processes import run_processes
    from ..report.stored import calibration_section, red_nights_a_year

    require_force_under_ci(options, "calibrate")
    measured = run_processes(options.pytest_arguments, processes=options.processes)
    store = BaselineStore(Path(measured[0].baselines))
    with nullcontext() if options.dry_run else store.locked():
        plans, refused = plan_update(measured, store, Mode.ADD if options.add else Mode.CALIBRATE)
        changes = [change for plan in plans.values() for change in plan]
        baselines = {
            change.workload: change.baseline for change in changes if change.baseline is not None
        }
        if not baselines and not refused:
            raise KernelgaugeError("nothing to calibrate: no workload was measured")
        comparisons = max(1, measured[0].comparisons)
        say_page([calibration_section(baselines, comparisons=comparisons)])
        nights = red_nights_a_year(baselines, comparisons=comparisons)
        say(
            f"unchanged code is red in about {nights:.1f} nights a year, where a fresh "
            "process confirms"
        )
        return _store(plans, refused, store, dry_run=options.dry_run)


def require_force_under_ci(options: argparse.Namespace, command: str) -> None:
    """Raise `KernelgaugeError` if the command would store baselines in a CI job that does not force
    it.
    """
    if os.environ.get("CI") and not (options.force or getattr(options, "dry_run", False)):
        what = (
            f"{command} is refused under CI (CI is set): a job that accepts its own result gates "
            "nothing"
        )
        force = f"kernelgauge {command} --force ...   (in a job whose purpose is to record)"
        raise KernelgaugeError(what, next_command=force)


def _store(
    plans: Plans, refused: Sequence[Reviewed], store: BaselineStore, *, dry_run: bool
) -> Exit:
    from ..baselines import written_text
    from ..report.stored import refusal_lines

    for line in refusal_lines(refused):
        say(f"refused: {line}")
    if dry_run:
        say("nothing was written: a dry run")
    elif any(plans.values()):
        store.apply(plans)
        say(printable(written_text(plans, str(store.root))))
    return Exit.NO if refused else Exit.YES
