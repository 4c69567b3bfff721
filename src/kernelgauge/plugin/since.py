"""`--perf-since REV`: deselect all tests if nothing has changed but documentation and other tests.

It is a heuristic that errs on the side of running. What a test reaches cannot be found out without
a GPU: branches for a GPU do not run on a CPU, and imports are computed. So each changed file counts
for every test. Free are only texts, and files of tests that this run does not ask for, if no code
names them. A baseline counts for its own workload.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from .. import processes
from ..errors import KernelgaugeError
from .suites import Suites, workload_of

_TEXTS = (".md", ".rst")


def deselect(
    config: pytest.Config, items: Sequence[pytest.Item], suites: Suites
) -> tuple[list[pytest.Item], str]:
    """Return the tests that a change may reach, and what to say.

    Raises `KernelgaugeError` without git, and for an unknown revision.
    """
    revision = str(suites.options.since)
    try:
        tree = _Tree(config, suites)
        changed = tree.changed(processes.commit(revision))
        counts = tree.first_that_counts([each for each in changed if each not in tree.baselines])
    except (OSError, RuntimeError) as error:  # no git; a loop of links
        raise KernelgaugeError("--perf-since cannot read the repository", got=str(error)) from error
    outside = [each for each in items if not each.path.resolve().is_relative_to(tree.top)]
    own = {tree.baselines[each] for each in changed if each in tree.baselines}
    kept = [each for each in items if counts or outside or str(workload_of(each)) in own]
    every, running = (
        {str(workload_of(it)) for it in several if workload_of(it)} for several in (items, kept)
    )
    number, reason = len(every - running), counts or next(iter(changed if own else []), None)
    why = f"{reason} has changed since {revision}" if reason else f"the same code as {revision}"
    return kept, f"kernelgauge: {number} of {len(every)} workloads deselected: {why}"


class _Tree:
    """A working tree of git; its files by their paths in it.

    Attributes: baselines: the workload of each.
    """

    def __init__(self, config: pytest.Config, suites: Suites) -> None:
        root, options = config.rootpath, suites.options
        self.top = Path(processes.git("-C", str(root), "rev-parse", "--show-toplevel")).resolve()
        self._reports = options.reports.resolve()
        files = (getattr(each, "__file__", None) for each in [*sys.modules.values()])
        places = (Path(options.invoked_from, each.partition("::")[0]) for each in config.args)
        # what runs: loaded modules, and the files and folders that pytest was given
        self._runs = {Path(each).resolve() for each in (*filter(None, files), *places)}
        self.baselines = {
            str(file.resolve().relative_to(self.top)): name
            for name in suites.workloads
            for file in options.baselines.glob(f"*/{name}.json")
            if file.resolve().is_relative_to(self.top)
        }

    def _listed(self, arguments: str) -> list[str]:
        text = processes.git("-C", str(self.top), *arguments.split())
        return [each for each in text.split("\0") if each]

    def changed(self, commit: str) -> list[str]:
        """Return the files that are not those of a commit, but for what runs and installations
        make.
        """
        new = self._listed(
            "ls-files -z --others --exclude-standard --directory --no-empty-directory"
        )
        tagged = self._listed("ls-files -z -v")
        # git does not look at these
        hidden = [each[2:] for each in tagged if each[0] == "S" or each[0].islower()]
        diff = f"diff -z --name-only --no-renames --ignore-submodules=none {commit} --"
        return sorted(
            {
                *self._listed(diff),
                *(each for each in new if not self._is_made(self.top / each)),
                *(each for each in hidden if (self.top / each).exists()),
            }
        )

    def _is_made(self, path: Path) -> bool:
        made = path.suffix == ".egg-info" or path.name == "__pycache__"
        return made or (path / "pyvenv.cfg").exists() or path.is_relative_to(self._reports)

    def first_that_counts(self, files: Collection[str]) -> str | None:
        """Return the first file that may matter to a test of this run."""
        if counts := next((each for each in files if not self._may_be_free(each)), None):
            return counts
        entries = (each.split("\t") for each in self._listed("ls-files -z -s") if files)
        tracked = {file: mode.startswith("120000") for mode, file in entries}
        targets = [(self.top / file).resolve() for file, is_link in tracked.items() if is_link]
        texts = [
            "\n".join(_names(self.top / each))
            for each in tracked
            if each.endswith(".py") and each != "setup.py" and not self._may_be_free(each)
        ]
        for each in map(Path, files):
            is_linked = any((self.top / each).is_relative_to(target) for target in targets)
            folder = each.parts[0] if each.suffix in _TEXTS else each.parent.name
            parts = {each.stem, folder, each.suffix if each.suffix in _TEXTS else each.stem} - {""}
            if is_linked or any(part in text for text in texts for part in parts):
                return str(each)
        return None

    def _may_be_free(self, file: str) -> bool:
        path = Path(file)
        is_text = path.suffix in _TEXTS and path.parts[0] in (path.name, "docs")
        is_test = path.match("test_*.py") or path.match("*_test.py")
        place = self.top / path
        runs = place.is_symlink() or not self._runs.isdisjoint((place, *place.parents))
        return (is_text or is_test) and not runs


def _names(file: Path) -> Iterator[str]:
    """Yield what a file imports, and its strings but for docstrings; all of it if it is no Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except FileNotFoundError:  # removed: that counts
        return
    except (SyntaxError, ValueError):
        yield file.read_text(errors="replace")
        return
    docstrings = {each.value for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (getattr(node, "module", None) or "", *(each.name for each in node.names))
        elif isinstance(node, ast.Constant) and node not in docstrings:
            yield str(node.value)
