"""A suite in fresh processes of pytest, in git worktrees and with other packages: for `calibrate`,
`compare` and `bisect`.

They measure and compare nothing.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import msgspec

from .errors import CLEAR_LINE, KernelgaugeError, MeasurementError, clear_status, printable
from .results import NAME, Results, ask_git, read_results
from .results.files import CHOICES, DOING, LOCKS, WAITING
from .run import KernelChoice

_SHOWN_LINES = 15  # of the output of a process or program that failed
_NO_TESTS = 5  # pytest.ExitCode.NO_TESTS_COLLECTED
# How long a process may say nothing, before it counts as one that hangs: while none has ended, then
# by the longest of those that have. It imports and compiles in silence. With a budget it may take
# what is left of that.
_FIRST_SILENCE_S, _LEAST_SILENCE_S, _OF_LONGEST = 900.0, 300.0, 5
_LEAST_OF_BUDGET_S = 120.0
_POLL_S = 1.0
# of a temporary folder; a file in it, which its process holds locked
_PREFIX, _OWNER = "kernelgauge-", ".owner"
# The kernel kills a process with its parent, however that ends (prctl(2), PR_SET_PDEATHSIG is 1).
# `preexec_fn` is not safe beside threads.
_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
# A job shows what the command concludes, and not each of its processes. pytest-benchmark times
# nothing in a worker.
_LEFT_OUT = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER")


def status_line(text: str, started: float, columns: int, left: str = "") -> str:
    """Return what rewrites the line of a terminal: a text, cut to its columns, the seconds since
    `started`, and what is left.
    """
    end = f", {time.monotonic() - started:.0f} s{left}"
    return f"{CLEAR_LINE}{printable(text)[: max(0, columns - 1 - len(end))]}{end}"


class Progress:
    """Processes as they go on, on standard error: one line on a terminal, which is rewritten; else
    a line for each of them.

    Args:
        most: how many there are at most. None: a search, which may end at any of them.
        budget_s: after which no further one begins.
        is_exact: whether all of them will run.

    Attributes:
        patience_s: how long the process that has begun may say nothing.
    """

    def __init__(
        self, most: int | None, *, budget_s: float = math.inf, is_exact: bool = False
    ) -> None:
        self._most, self._budget_s, self._about = most, budget_s, "about" if is_exact else "at most"
        self._started, self._begun = time.monotonic(), 0
        self._last, self._longest_s, self.patience_s = self._started, 0.0, 0.0
        self._text = self._left = ""

    def begin(self, text: str) -> None:
        """Say which process begins, and how long the rest takes by the mean of those before."""
        now = time.monotonic()
        seconds, took_s, self._last = now - self._started, now - self._last, now
        if self._begun and took_s < self.patience_s:  # another one was killed
            self._longest_s = max(self._longest_s, took_s)
        usual_s = (
            max(_LEAST_SILENCE_S, _OF_LONGEST * self._longest_s)
            if self._longest_s
            else _FIRST_SILENCE_S
        )
        self.patience_s = min(usual_s, max(_LEAST_OF_BUDGET_S, self._budget_s - seconds))
        if self._begun and self._most:
            rest = min(
                seconds / self._begun * (self._most - self._begun),
                max(0.0, self._budget_s - seconds),
            )
            self._left = f", {self._about} {rest:.0f} s left"
        self._begun += 1
        self._text = printable(text)
        if not sys.stderr.isatty():
            print(f"{self._text}{self._left}", file=sys.stderr)  # noqa: T201
        self(DOING)

    def __call__(self, line: str) -> None:
        """Show a line of the process that runs: one about waiting stays, and stands in a log too."""
        if line.startswith(WAITING):
            clear_status()
            print(printable(line), file=sys.stderr)  # noqa: T201
        elif sys.stderr.isatty():
            doing = line.removeprefix(DOING)
            text = f"{self._text}: {doing}" if doing else self._text
            columns = shutil.get_terminal_size().columns
            print(  # noqa: T201
                status_line(text, self._started, columns, self._left),
                end="",
                file=sys.stderr,
                flush=True,
            )


def run_processes(arguments: Sequence[str], *, processes: int) -> list[Results]:
    """Run `pytest *arguments` in fresh processes, each with empty compile caches. Autotuners choose
    in the first one, and the others take that.

    Raises `MeasurementError` if one of them fails: what is left would not be a fair sample.
    """
    measured: list[Results] = []
    progress = Progress(processes, is_exact=True)
    for number in range(1, processes + 1):
        progress.begin(f"process {number} of {processes}")
        choices = choices_of(measured[0]) if measured else {}
        measured.append(
            run_process(arguments, progress, patience_s=progress.patience_s, choices=choices)
        )
    return measured


def choices_of(results: Results) -> dict[str, tuple[KernelChoice, ...]]:
    """Return what autotuners chose, by workload."""
    return {each.workload: each.choices for each in results.runs}


def _hand_over(choices: Mapping[str, tuple[KernelChoice, ...]], folder: Path) -> dict[str, str]:
    """Write the choices that a process must take; return the environment variable that says so."""
    if not any(choices.values()):
        return {}
    file = folder / "choices.json"
    file.write_bytes(msgspec.json.encode(choices))
    return {CHOICES: str(file)}


def compile_caches(folder: str) -> dict[str, str]:
    """Return the environment variables that put the caches of Inductor and Triton into a folder."""
    return {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}


def run_process(
    arguments: Sequence[str],
    progress: Callable[[str], None] = lambda _: None,
    *,
    folder: Path | None = None,
    packages: Sequence[Path] = (),
    python: str = sys.executable,
    may_fail: bool = False,
    variables: Mapping[str, str] = MappingProxyType({}),
    patience_s: float = math.inf,
    choices: Mapping[str, tuple[KernelChoice, ...]] = MappingProxyType({}),
) -> Results:
    """Run `pytest *arguments` in a fresh process with empty compile caches, which measures and
    compares nothing.

    Args: folder: of the project, whose code it imports; None: this one, as it is installed.
        packages: folders whose modules come before those that are installed. may_fail: whether the
        tests of what a workload declares may fail. variables: of its environment, beside this
        process's. patience_s: how long it may say nothing (`Progress`). Then it is killed, with all
        that it has started. choices: of autotuners, by workload, that it must take.

    Raises `MeasurementError` if it leaves no results, fails or is killed, `KernelgaugeError` if it
    measures another folder's code.
    """
    with own_folder() as own:
        inherited = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        inherited |= variables
        # Its temporary files go away with it; the locks are those of all.
        own_files = {"TMPDIR": str(own), LOCKS: inherited.get(LOCKS) or tempfile.gettempdir()}
        environment = inherited | compile_caches(str(own)) | own_files | _hand_over(choices, own)
        imports = None if folder is None else Imports(folder, python)
        paths = (
            [*packages]
            if imports is None or folder is None
            else [folder / "src", folder, *imports.folders, *packages]
        )
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join(
                [*map(str, paths), inherited.get("PYTHONPATH", "")]
            )
        # `-p`: it may be importable without being installed.
        command = [
            python,
            "-m",
            "pytest",
            "-p",
            "kernelgauge.plugin",
            *arguments,
            "-q",
            f"--perf-calibrate={own}",
        ]
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WITH_PARENT, str(os.getpid()), *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            output = _watch(process, progress, patience_s, arguments)
        results = Path(own, "latest", NAME)
        if process.returncode == _NO_TESTS:
            raise MeasurementError(
                "no test is selected", next_command=shlex.join(["pytest", *arguments])
            )
        if process.returncode not in ((0, 1) if may_fail else (0,)) or not results.exists():
            raise MeasurementError(
                "a process that measures failed",
                got="\n".join(output[-_SHOWN_LINES:]),
                expected=None
                if may_fail
                else "every test to pass: noise is measured on unchanged code that works",
                next_command=shlex.join(["pytest", *arguments]),
            )
        if imports is not None:
            imports.require_own(results.with_name(LOADED).read_bytes())
        return read_results(results)


def _watch(
    process: subprocess.Popen[bytes],
    progress: Callable[[str], None],
    patience_s: float,
    arguments: Sequence[str],
) -> list[str]:
    """Show the progress of a process, and end all that it has started. Return its output."""
    output: list[str] = []
    try:
        for line in _lines(process, patience_s):
            output.append(line)
            if line.startswith((WAITING, DOING)):
                progress(line.strip())
    except subprocess.TimeoutExpired:
        raise MeasurementError(
            f"a process that measures hangs: it said nothing for {patience_s:.0f} s",
            got="\n".join(output[-_SHOWN_LINES:]),
            next_command=shlex.join(["pytest", *arguments]),
        ) from None
    finally:  # what it has started would disturb the next one
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return output


def _lines(process: subprocess.Popen[bytes], patience_s: float) -> Iterator[str]:
    """Yield each line of output until a process ends.

    Raises `TimeoutExpired` if it says nothing of ours for so long.
    """
    assert process.stdout is not None
    heard, rest, is_open = time.monotonic(), b"", True
    while is_open:
        left_s = heard + patience_s - time.monotonic()
        has_ended = process.poll() is not None
        if left_s <= 0 and not has_ended:
            raise subprocess.TimeoutExpired(process.args, patience_s)
        ready, _, _ = select.select(
            [process.stdout], [], [], 0.0 if has_ended else min(left_s, _POLL_S)
        )
        block = os.read(process.stdout.fileno(), 2**16) if ready else b""
        # what it has started may keep the pipe open
        is_open = bool(block) or not (ready or has_ended)
        *lines, rest = (rest + block).split(b"\n")
        for line in (each.decode(errors="replace").rstrip() for each in lines):
            if line.startswith((WAITING, DOING)):
                heard = time.monotonic()
            yield line
    if rest:
        yield rest.decode(errors="replace")
    process.wait(patience_s)


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a temporary folder, and remove it in the end.

    If this process is killed, the next one removes it.
    """
    _remove_abandoned()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX) as folder,
        Path(folder, "owner").open("w") as owner,
    ):
        with suppress(OSError):  # a file system without locks
            fcntl.flock(owner, fcntl.LOCK_EX)
            os.rename(owner.name, Path(folder, _OWNER))  # locked from its first moment on
        yield Path(folder)


def _remove_abandoned() -> None:
    """Remove the folders, and the worktrees in them, of processes that were killed."""
    for file in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError, KernelgaugeError):
            # nobody else's, who may have put a link there
            if file.parent.lstat().st_uid == os.getuid():
                _remove_if_abandoned(file)


def _remove_if_abandoned(owner: Path) -> None:
    folder, tree = owner.parent, owner.with_name("tree")
    with owner.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if its process lives
        if tree.exists():
            with suppress(KernelgaugeError):
                _remove_worktree(tree)
        shutil.rmtree(folder, ignore_errors=True)


# -- revisions and packages ------------------------------------------------------------------------


def git(*arguments: str) -> str:
    """Return what git prints.

    Raises `KernelgaugeError` if it fails. It runs no hooks: one may install packages.
    """
    # In a hook, git names the index of the commit that is being made: that of a worktree would
    # replace it.
    command = ("env", "-u", "GIT_INDEX_FILE", "git", "-c", "core.hooksPath=/dev/null", *arguments)
    return _output(*command, failure=f"git {arguments[0]} failed")


def commit(revision: str) -> str:
    """Return the hash of a commit. Raises `KernelgaugeError` if there is none of that name."""
    failure = f"git knows no revision {revision}"
    try:
        return _output("git", "rev-parse", "--verify", f"{revision}^{{commit}}", failure=failure)
    except KernelgaugeError as error:
        if Path(revision).exists():
            error.next_command = (
                f"--suite {shlex.quote(revision)}   (it is a path here, and not a revision)"
            )
        else:
            error.expected = "a branch, a tag or a commit   (a shallow clone lacks old ones: git fetch --unshallow)"
        raise


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check out a commit into a folder of its own. The working tree that the command is called in
    is not touched.

    Yields the folder that corresponds to the current one.
    """
    prefix = git("rev-parse", "--show-prefix")
    with own_folder() as folder:
        tree = folder / "tree"
        try:
            git("worktree", "add", "--detach", str(tree), commit)
            yield tree / prefix
        finally:
            with suppress(KernelgaugeError):
                _remove_worktree(tree)


def _remove_worktree(tree: Path) -> None:
    # Twice, because a checkout that was interrupted is locked. Pruning would forget worktrees of
    # others too, which are on a disk that is not mounted now. `-C`: it may be of another
    # repository.
    git("-C", str(tree), "worktree", "remove", "--force", "--force", str(tree))


def copy_suite(source: Path, tree: Path, suite: str, *, owner: str) -> None:
    """Put the suite of `owner` in place of that in a tree: every side is asked the same.

    Raises `KernelgaugeError` if it would lie outside of the tree: what is there is removed.
    """
    target = tree / suite
    if tree.resolve() not in target.resolve().parents:
        expected = "a path from the current folder to a part of it"
        raise KernelgaugeError(
            "the suite is outside of the working tree", got=suite, expected=expected
        )
    if not source.exists():
        expected = "a folder or a file: --suite PATH names it (default: perf)"
        raise KernelgaugeError(f"{owner} has no such suite", got=source.name, expected=expected)
    shutil.rmtree(target, ignore_errors=True)
    if target.is_file() or target.is_symlink():
        target.unlink()
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, ignore=ignored, symlinks=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def install(requirement: str, folder: Path, python: str = sys.executable) -> Path:
    """Install one package, without what it depends on, into a folder that modules can be imported
    from. Return the folder.

    Raises `MeasurementError` if pip fails.
    """
    pip = "pip install --no-deps --quiet --disable-pip-version-check --target".split()
    failure = f"{requirement} cannot be installed"
    _output(python, "-m", *pip, str(folder), requirement, failure=failure, raises=MeasurementError)
    return folder


def _output(*command: str, failure: str, raises: type[KernelgaugeError] = KernelgaugeError) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-_SHOWN_LINES:]
        raise raises(failure, got="\n".join(map(printable, lines)))
    return done.stdout.strip()


# -- imports ---------------------------------------------------------------------------------------

# what a process that measures leaves beside its results: the file of each module by its name
LOADED = "modules.json"
_SHOWN_MODULES = 3
# Folders with the code of others: from the list of vendored paths of github-linguist
# (lib/linguist/vendor.yml).
_VENDORED = re.compile(
    r"(?:^|/)(?:third[-_]?party|3rd[-_]?party|_?vendor(?:ed)?|extern(?:al)?s?|deps)/", re.IGNORECASE
)

# Folders of .pth files stand in `sys.path`. Setuptools' import hooks have a mapping of packages
# (setuptools 64 and later).
_ASK = """
import json, sys
from importlib.metadata import distributions
from os.path import dirname, join
from urllib.parse import unquote, urlparse
hooks = (sys.modules.get(getattr(each, "__module__", "")) for each in sys.meta_path)
mappings = [each for hook in hooks if isinstance(each := getattr(hook, "MAPPING", None), dict)]
folders = [*sys.path, *(dirname(path) for each in mappings for path in each.values())]
copies = {}  # files that were installed from a folder, which is not on the path, by the folder
for each in distributions():
    origin = json.loads(each.read_text("direct_url.json") or "{}")
    if "dir_info" in origin:
        folder = unquote(urlparse(origin["url"]).path)
        folders += [join(folder, "src"), folder]
        if not origin["dir_info"].get("editable"):
            copies[folder] = [str(each.locate_file(file)) for file in each.files or ()]
print(json.dumps({"prefixes": [sys.prefix, sys.base_prefix], "folders": folders, "copies": copies}))
"""


def loaded_modules() -> bytes:
    """Return the content of `LOADED`, of this process."""
    files = {name: str(getattr(each, "__file__", None)) for name, each in [*sys.modules.items()]}
    return json.dumps(
        {name: os.path.abspath(file) for name, file in files.items() if os.path.isfile(file)}
    ).encode()


class Imports:
    """The imports of a process in a checkout of the current folder's repository, or in the working
    tree itself.

    Attributes: folders: those of the checkout that correspond to what is installed for editing from
        the working tree, or from another clone of it. On PYTHONPATH, they come before that.
    """

    def __init__(self, folder: Path, python: str) -> None:
        asked = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, errors="replace", check=False
        )
        if asked.returncode:
            raise MeasurementError(
                "the interpreter fails", where=python, got=asked.stderr.strip()[-1000:]
            )
        installed = json.loads(asked.stdout.splitlines()[-1])
        here, self._tree = _top(Path.cwd()), _top(folder)
        # An environment may lie in the working tree, and that below the prefix of the system, as
        # /usr/local.
        prefixes = (Path(each).resolve() for each in installed["prefixes"])
        self._prefixes = [each for each in prefixes if not here.is_relative_to(each)]
        paths = [Path(each).resolve() for each in installed["folders"] if each]
        own = [path for path in paths if path.is_dir() and not self._is_apart(path)]
        commit = ask_git(folder, "rev-parse", "HEAD")
        clones = [
            top
            for top in set(map(_top, own)) - {here}
            if ask_git(top, "cat-file", "-t", commit) == "commit"
        ]
        self._others = [here, *clones]
        found = [
            self._tree / path.relative_to(top)
            for path in own
            for top in self._others
            if path.is_relative_to(top)
        ]
        self.folders = [path for path in dict.fromkeys(found) if path.is_dir()]
        copies = [(Path(origin).resolve(), files) for origin, files in installed["copies"].items()]
        own_copies = (
            files for origin, files in copies if any(map(origin.is_relative_to, self._others))
        )
        self._copies = {Path(file).resolve() for files in own_copies for file in files}

    def _is_apart(self, path: Path) -> bool:
        """Whether a path belongs to an environment."""
        return "site-packages" in path.parts or any(map(path.is_relative_to, self._prefixes))

    def require_own(self, loaded: bytes) -> None:
        """Raise `KernelgaugeError` if the process has loaded modules of the project that are not
        those of its checkout.
        """
        files = {name: Path(file).resolve() for name, file in json.loads(loaded).items()}
        installed = self._installed_packages(files)
        if foreign := [
            f"{name}: {file}"
            for name, file in files.items()
            if self._is_foreign(file) or name.partition(".")[0] in installed
        ]:
            package = foreign[0].partition(":")[0].partition(".")[0]
            raise KernelgaugeError(
                f"{package} is not imported from the revision that is measured: each one would have the same code",
                got="\n".join(
                    [*foreign[:_SHOWN_MODULES], *(["..."] if len(foreign) > _SHOWN_MODULES else [])]
                ),
                expected=f"a file in {self._tree}",
                next_command=f"pip uninstall {package}, then PYTHONPATH=FOLDER kernelgauge ...   "
                "(the folder in this repository that its package lies in)",
            )

    def _installed_packages(self, files: Mapping[str, Path]) -> set[str]:
        """Return the packages that are installed, as from a wheel, and of which the checkout has
        the code in a folder of its own.
        """
        tracked, found = set(ask_git(self._tree, "ls-files", "*.py").splitlines()), set[str]()
        for own in tracked:
            folder, name = os.path.split(os.path.dirname(own))
            init = files.get(name)
            if (
                not own.endswith("/__init__.py")
                or init is None
                or not self._is_apart(init)
                or _VENDORED.search(own)
            ):
                continue
            modules = [
                file for module, file in files.items() if f"{module}.".startswith(f"{name}.")
            ]
            paths = [
                os.path.join(folder, os.path.relpath(file, init.parents[1])) for file in modules
            ]
            if 2 * sum(path in tracked for path in paths) > len(paths):
                found.add(name)
        return found

    def _is_foreign(self, file: Path) -> bool:
        if file.suffix == ".so":  # nothing is built in a checkout (docs/bisect.md)
            return False
        is_in_another = any(map(file.is_relative_to, self._others)) and not file.is_relative_to(
            self._tree
        )
        return file in self._copies or (is_in_another and not self._is_apart(file))


def _top(folder: Path) -> Path:
    """Return the root of the working tree that a folder is in; the folder itself if it is in none."""
    return Path(ask_git(folder, "rev-parse", "--show-toplevel") or folder).resolve()
