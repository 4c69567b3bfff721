"""`kernelgauge review` and `kernelgauge accept`: baselines from the results of a run that has ended."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import KernelgaugeError, UpdateRefused
from ..printable import printable
from .output import Commands, Exit, say, terminal

if TYPE_CHECKING:
    from ..accepting import Chosen, Loaded, Pending
    from ..judge import Reviewed
    from ..report.review import Source
    from ..storage import BaselineStore

__all__ = ["add_commands"]

_RESULTS = Path("reports", "latest")
_BASELINES = Path("baselines")
_GROUPS = ("same-speed", "speed", "configuration", "kernels", "new", "vanished")  # of what can be accepted


def add_commands(commands: Commands) -> None:
    reviewing = commands.add_parser(
        "review",
        help="what saved results would change in the baselines, in groups",
        description="Compare the results of a run with the baselines of its machine: what moved in the environment, then the "
        "workloads in groups, each with its evidence and the change since the first baseline that was accepted. Exits with 1 "
        "if anything waits for acceptance.",
        allow_abbrev=False,
    )
    _add_places(reviewing)
    reviewing.add_argument("--markdown", action="store_true", help="for a pull request")
    reviewing.set_defaults(command=_review)
    accepting = commands.add_parser(
        "accept",
        help="store saved results as the baselines: all, by group, by -k, or one by one",
        description="Store the results of a run as the baselines of its machine, without measuring again. In a terminal it "
        "asks; a script says what is meant. Options of different kinds narrow each other. Exits with 1 if any that was asked "
        "for is refused.",
        allow_abbrev=False,
    )
    _add_places(accepting)
    accepting.add_argument("--all", action="store_true", help="whatever can be accepted")
    accepting.add_argument(
        "--add",
        action="store_true",
        help="add the processes to those of the baselines instead of replacing them: for a GPU that they do not know",
    )
    accepting.add_argument("--group", action="append", choices=_GROUPS, metavar="GROUP", help=", ".join(_GROUPS))
    accepting.add_argument("-k", dest="expression", metavar="EXPRESSION", help="as for pytest: 'mlp and not eager'")
    accepting.add_argument("--workload", action="append", metavar="ID")
    accepting.add_argument("--yes", action="store_true", help="do not ask whether to write")
    accepting.add_argument("--dry-run", action="store_true", help="show, and store nothing")
    accepting.add_argument(
        "--force", action="store_true", help="what is refused too, as far as a baseline can be made of it; and under CI"
    )
    accepting.set_defaults(command=_accept)


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        metavar="RESULTS",
        help=f"a results.json, or a folder that holds one, or folders that do (default: {_RESULTS})",
    )
    parser.add_argument(
        "--baselines", type=Path, default=_BASELINES, metavar="DIR", help=f"their folder (default: {_BASELINES})"
    )


def _read(options: argparse.Namespace) -> tuple[Loaded, list[Pending], BaselineStore]:
    from ..accepting import load, pending
    from ..storage import BaselineStore

    loaded = load(options.results or [_RESULTS])
    store = BaselineStore(options.baselines)
    return loaded, pending([each for _, each in loaded.results], store, now=datetime.now(timezone.utc)), store


def _review(options: argparse.Namespace) -> Exit:
    from ..report.review import review_markdown

    loaded, waiting, store = _read(options)
    if options.markdown:
        pages = [review_markdown(each.review, sources=_sources(loaded, each, store)) for each in waiting]
        say("\n".join(pages))
    else:
        say(_text(loaded, waiting, store))
    return Exit.YES if all(each.review.settled for each in waiting) else Exit.NO


def _text(loaded: Loaded, waiting: Sequence[Pending], store: BaselineStore) -> str:
    from ..report.review import review_text

    width, color = terminal()
    pages = [
        review_text(each.review, sources=_sources(loaded, each, store), width=width, color=color) for each in waiting
    ]
    return "\n".join(pages)


def _sources(loaded: Loaded, waiting: Pending, store: BaselineStore) -> list[Source]:
    from ..report.review import Source, commit_text
    from ..storage import slug

    folder = slug(waiting.device)
    told = [
        Source("results", f"{file}   {results.started_at}, commit {commit_text(results.commit)}")
        for file, results in loaded.results
        if results.fingerprint is not None and slug(results.fingerprint.device) == folder
    ]
    skipped = [Source("skipped", text) for text in loaded.skipped]
    return [*told, Source("stored", str(store.root / folder)), *skipped]


def _accept(options: argparse.Namespace) -> Exit:
    if os.environ.get("CI") and not (options.force or options.dry_run):
        raise UpdateRefused(
            "accept is refused under CI: a job that accepts its own result gates nothing",
            got="the environment variable CI is set",
            next_command="kernelgauge accept --force ...   (in a job whose purpose is to record)",
        )
    selects = options.group or options.expression is not None or options.workload
    if options.all and selects:
        raise KernelgaugeError("--all leaves nothing to --group, -k and --workload", expected="one or the other")
    asks = _is_terminal()
    if not (options.all or selects or asks or options.add):
        raise KernelgaugeError(
            "nothing says what to accept, and nobody can be asked",
            expected="--all, --add, --group GROUP, -k EXPRESSION or --workload ID",
            next_command="kernelgauge review",
        )
    loaded, waiting, store = _read(options)
    chosen = _selected(options, waiting) if options.all or options.add or selects else None
    say(_text(loaded, waiting, store))
    if chosen is None:
        chosen = _asked(waiting, force=options.force)
    if options.expression is not None and not _matches_any(options.expression, waiting):
        say(printable(f"no workload of this review matches -k {options.expression!r}"))
        return Exit.NO
    return _apply(options, chosen, store, confirm=asks and not options.yes)


def _selected(options: argparse.Namespace, waiting: Sequence[Pending]) -> list[Chosen]:
    from ..accepting import choose, choose_to_add

    wanted = _wanted(options)
    known = {each.workload for one in waiting for each in one.review.reviewed}
    unknown = [name for name in options.workload or () if name not in known]
    if unknown:
        raise KernelgaugeError("no such workload in the results or the baselines", got=printable(", ".join(unknown)))
    chooses = choose_to_add if options.add else choose
    return [chooses(each, wanted, force=options.force) for each in waiting]


def _wanted(options: argparse.Namespace) -> Callable[[Reviewed], bool]:
    tests: list[Callable[[Reviewed], bool]] = []
    if options.group:
        tests.append(lambda each: each.group.value in options.group)
    if options.workload:
        tests.append(lambda each: each.workload in options.workload)
    if options.expression is not None:
        from .keywords import matcher

        matches = matcher(options.expression)
        tests.append(lambda each: matches(each.workload))
    return lambda each: all(test(each) for test in tests)


def _matches_any(expression: str, waiting: Sequence[Pending]) -> bool:
    from .keywords import matcher

    matches = matcher(expression)
    return any(matches(each.workload) for one in waiting for each in one.review.reviewed)


def _asked(waiting: Sequence[Pending], *, force: bool) -> list[Chosen]:
    """Group by group: y, n, s (one by one), q (ask no more, and keep what was said yes to)."""
    from ..accepting import choose
    from ..judge import Group

    chosen: list[Chosen] = []
    stopped = False
    for one in waiting:
        possible = choose(one, lambda _: True, force=force)
        names: set[str] = set()
        for group in Group:
            found = [each.workload for each in possible.accepted if each.group is group]
            if not found or stopped:
                continue
            answer = _answer(f"accept {group.heading}: {len(found)}? [y/n/s/q] ", "ynsq")
            singly = answer == "s"
            for name in found:
                if singly and not stopped:
                    answer = _answer(f"  {printable(name)}? [y/n/q] ", "ynq")
                stopped = stopped or answer == "q"
                if answer == "y" and not stopped:
                    names.add(name)
        chosen.append(choose(one, _one_of(names), force=force))
    return chosen


def _one_of(names: set[str]) -> Callable[[Reviewed], bool]:
    return lambda each: each.workload in names


def _answer(question: str, letters: str) -> str:
    """One of `letters`; the end of the input is a q, for nobody is there any more."""
    while True:
        try:
            answer = input(question).strip().lower()
        except EOFError:
            return "q"
        if answer in tuple(letters):
            return answer


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _apply(options: argparse.Namespace, chosen: Sequence[Chosen], store: BaselineStore, *, confirm: bool) -> Exit:
    from ..accepting import store_all
    from ..report.terminal import plan_text

    width, color = terminal()
    refused = [each for one in chosen for each in one.refused]
    for each in refused:
        say(printable(f"refused: {each.workload}: {'; '.join(each.refused)}"))
    plan = [change for one in chosen for change in one.plan]
    ends = Exit.NO if refused else Exit.YES
    if not plan:
        say("nothing to accept")
        return ends
    say(plan_text(plan, width=width, color=color))
    if options.dry_run:
        say("nothing was written: a dry run")
        return ends
    if confirm and _answer(f"write {len(plan)} to {printable(str(store.root))}? [y/n] ", "ynq") != "y":
        say("nothing was written")
        return Exit.NO
    store_all(chosen, store)
    say(printable(f"{len(plan)} written to {store.root}"))
    return ends
