"""`kernelgauge bisect`: the commit or the package that changed a workload, in a small repository."""

import re
import zipfile
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kernelgauge import processes
from kernelgauge.errors import MeasurementError
from kernelgauge.run import Run
from tests.builders import counts, one_test
from tests.commands.conftest import (
    FIRST,
    Command,
    Process,
    commit_all,
    commit_fixture_test,
    git,
    measured,
)


def commit(model: str, *, suite: str | None = "new") -> str:
    """Commit a model, even if it is that of the last commit.

    `suite`: the text of its suite; None: it has none.
    """
    Path("model.txt").write_text(model)
    with Path("count.txt").open("a") as file:
        file.write("x")
    if suite is not None:
        Path("perf").mkdir(exist_ok=True)
        Path("perf", "suite.txt").write_text(suite)
    return commit_all(f"Model {model}")


@pytest.fixture
def bisect(repository: Path, process: Process, kernelgauge: Command) -> Command:
    def call(*arguments: str, good: str = "good", bad: str = "HEAD") -> tuple[int, str, str]:
        return kernelgauge("bisect", "--good", good, "--bad", bad, "-k", FIRST, *arguments)

    return call


def history(models: Sequence[str]) -> list[str]:
    """Commit the models in order. The first one is tagged `good`."""
    commits = [commit(model) for model in models]
    git("tag", "good", commits[0])
    return commits


def found(out: str) -> list[str]:
    return re.findall(r"(?m)^commit   (\w+)$", out)


def test_slower_commit_is_found_by_its_times(bisect: Command, process: Process) -> None:
    commits = history(["205"] * 10 + ["207.5"] * 7)
    code, out, _ = bisect()
    assert (code, found(out)) == (0, [commits[10]])
    texts = (r"Ann <ann@example\.org>", r"subject  Model 207\.5", f"{len(process.seen)} processes")
    verdict = rf"{FIRST}: REGRESSED  GPU time 205\.\d -> 207\.\d us  \+1\.\d\d %"
    assert all(re.search(text, out) for text in (*texts, verdict, "measured again: 6 processes"))
    assert len(process.seen) == 6 + 4 * 4 + 2 * 4
    assert [each.model for each in process.seen[:6]] == [
        "205",
        "207.5",
        "207.5",
        "205",
        "205",
        "207.5",
    ]
    assert all(each.variables == {"TORCHINDUCTOR_DETERMINISTIC": "1"} for each in process.seen)
    assert process.seen[6].arguments == ["perf", "-k", FIRST]


def test_other_kernels_are_found_with_one_process_a_state(
    bisect: Command, process: Process
) -> None:
    commits = history(["205"] * 21 + ["205 fewer"] * 12)
    code, out, _ = bisect()
    assert (code, found(out)) == (0, [commits[21]])
    texts = ("structure: CHANGED  kernels differ from the good end", "exact", "1 kernel gone")
    assert all(text in out for text in texts)
    assert len(process.seen) == 6 + 5
    assert process.seen[-1].arguments[-2:] == ["-m", "not timing"]


def test_slower_fixture_test_is_found_by_its_times(bisect: Command, process: Process) -> None:
    test = replace(one_test("test_mlp", subject="end to end"), node="test_ops.py::test_mlp")
    process.change = lambda results: replace(results, tests=(replace(test, workload=FIRST),))
    commits = history(["205", "205", "215"])
    code, out, _ = bisect("-k", "test_mlp")
    assert (code, found(out)) == (0, [commits[2]])
    assert re.search(r"REGRESSED  GPU time 20\d\.\d -> 21\d\.\d us", out)
    assert {tuple(each.arguments) for each in process.seen} == {("perf", "-k", "test_mlp")}


def test_exact_change_is_found_behind_a_commit_that_hangs(
    repository: Path, kernelgauge: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test with the fixture, in processes of pytest."""
    monkeypatch.setenv("KERNELGAUGE_LOCKS", str(repository.parent))
    monkeypatch.setattr(processes, "_LEAST_SILENCE_S", 6.0)
    monkeypatch.setattr(processes, "_OF_LONGEST", 3)  # on a busy machine
    good = commit_fixture_test("Good")
    commit_fixture_test("Hang", "import time\nwhile True:\n    time.sleep(1)")
    commit_fixture_test("Same")
    bad = commit_fixture_test("Copy", counts=counts(copies=3))
    ends = ("--good", good, "--bad", "HEAD", "-k", "test_mlp")
    code, out, err = kernelgauge("bisect", *ends, "--", "-m", "not timing")
    assert (code, found(out), "counts   copies 0 -> 3" in out) == (0, [bad], True)
    assert "test_ops-test_mlp: REGRESSED" in out
    assert ", 3 of them of the ends" in out  # the good one still works behind the hang
    assert "it fails: a process that measures hangs: it said nothing for " in err


CHANGES = {
    "two": (
        ["205"] * 5 + ["205 fewer"] * 6 + ["205 fewer breaks"] * 6,
        [5, 11],
        "there is a later change",
    ),
    # which only times show
    "recompiles": (["205"] * 7 + ["205 recompiles"] * 6, [7], "recompiles 0 -> 1"),
    "taken back": (
        ["205"] * 4 + ["230 fewer"] * 5 + ["205"] * 4 + ["208"] * 4,
        [13],
        "a third state",
    ),
    "broken": (["205"] * 8 + ["broken"] + ["205"] * 2 + ["208"] * 6, [11], "Model 208"),
    "precision": (["205"] * 4 + ["190 tf32"] * 4, [4], ""),
    # After three processes of each end the host's change is sure, and that of the GPU is not.
    "gpu first": (["205 host=50"] * 3 + ["205 host=60"] * 3 + ["207.5 host=60"] * 3, [6], ""),
    "slow host": (["205 host=50"] * 10 + ["205 host=53"] * 7, [10], "host dispatch "),
    # The cause leaves out what other commits changed.
    "cause": (
        ["205"] * 4 + ["205 gate=66"] * 4 + ["225 gate=66 down=73"] * 4,
        [8],
        "53.0 -> 73.0 us",
    ),
    "skipped": (
        ["205"] * 4 + ["broken"] + ["205 fewer"] * 4,
        [],
        "broken   skipped: ImportError: ",
    ),
    "same": (["205"] * 3, [], "nothing to bisect: the ends do not differ"),
    # The processes of the ends take turns: A B B A.
    # The ends have no speed of the host in common: the change is larger than that.
    "other speed": (["205 host=50"] * 3 + ["205 host=250"] * 3, [3], "host dispatch "),
    "host scatters": (
        ["205 host=50"] * 4,
        [],
        "undecided: the processes of the ends differ too much in host dispatch",
    ),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "gpu first": {"noise": 0.004},
    "slow host": {"speeds": (1.0, 1.5, 1.0, 1.0, 1.0, 1.6, 1.0)},
    "other speed": {"speeds": (1.0, 2.0, 2.0, 1.0, 1.0, 2.0)},
    "host scatters": {"speeds": (1.0, 1.5, 1.5, 1.0)},
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_found(bisect: Command, process: Process, name: str) -> None:
    models, changed, text = CHANGES[name]
    vars(process).update(SETTINGS.get(name, {}))
    commits = history(models)
    code, out, _ = bisect()
    assert (code, found(out)) == (0 if changed else 1, [commits[index] for index in changed])
    assert text in out
    assert out.count("cause ") == 1 or name != "cause"
    assert len(process.seen) == 24 or "scatters" not in name
    assert [each.model for each in process.seen].count("broken") < 2


@pytest.mark.parametrize(
    ("models", "lost", "changed"),
    [
        # it looks slower, and is not
        (["205"] * 6 + ["205 lost"] + ["205"] * 2 + ["207.5"] * 4, "207.5", 9),
        # it looks unchanged, and is slower
        (["205"] * 3 + ["207.5"] * 3 + ["207.5 lost"] + ["207.5"] * 6, "205", 3),
    ],
)
def test_commit_lost_to_noise_does_not_mislead(
    bisect: Command,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    models: list[str],
    lost: str,
    changed: int,
) -> None:
    run_of = process.run_of

    def disturbed(model: str, last_argument: str) -> Run:
        is_disturbed = "lost" in model and sum("lost" in each.model for each in process.seen) <= 3
        return run_of(lost if is_disturbed else model, last_argument)

    monkeypatch.setattr(process, "run_of", disturbed)
    commits = history(models)
    code, out, _ = bisect()
    assert (code, found(out)) == (0, [commits[changed]])
    # the middle one, which was measured again
    assert [each.model for each in process.seen].count(models[6]) > 3


def test_change_in_steps_is_no_answer(bisect: Command) -> None:
    """No commit of them is a half of what the ends differ by."""
    history([f"{205 + 0.6 * place:.1f}" for place in range(9)])
    code, out, _ = bisect()
    assert (code, found(out)) == (1, [])
    assert "the change comes in steps" in out
    assert "1 suspect is left" in out


def test_lost_machine_stops_the_search(bisect: Command, process: Process) -> None:
    commits = history(["205"] * 8 + ["205 fewer"] * 8)
    process.after = 6
    assert bisect()[0] == 130
    process.after, process.is_machine_lost = None, True
    code, _, err = bisect()
    assert (code, "an end cannot be measured" in err) == (2, True)
    process.is_machine_lost = False
    assert found(bisect()[1]) == [commits[8]]


def test_working_tree_stays_as_it_is(bisect: Command, process: Process, repository: Path) -> None:
    git("tag", "good", commit("205", suite=None))  # it gets that of the bad end
    for model in ("205", "205 fewer", "205 fewer"):
        commit(model)
    Path("model.txt").write_text("999")
    Path("perf", "suite.txt").write_text("unsaved")
    Path("untracked.txt").write_text("mine")
    before = git("status", "--porcelain"), git("rev-parse", "HEAD"), git("branch")
    assert bisect()[0] == 0
    assert Path("model.txt").read_text() == "999"
    assert (git("status", "--porcelain"), git("rev-parse", "HEAD"), git("branch")) == before
    assert {each.suite for each in process.seen} == {"new"}
    assert not any(repository in (each.folder, *each.folder.parents) for each in process.seen)
    assert len(git("worktree", "list").splitlines()) == 1


def test_good_end_on_a_side_branch_shows_its_merge(bisect: Command) -> None:
    history(["205", "205"])
    trunk = git("branch", "--show-current").strip()
    git("checkout", "-qb", "side")
    side = commit("205")
    git("checkout", "-q", trunk)
    commit("205 fewer")
    git("merge", "-q", "--no-ff", "-s", "ours", "-m", "Merge side", "side")
    commit("205 fewer")
    code, out, _ = bisect(good=side)
    assert (code, "subject  Merge side" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--good", "HEAD"], "bisect needs two ends"),
        (["--good", "HEAD~1", "--bad", "HEAD", "--packages", "a", "b"], "bisect needs two ends"),
        (["--good", "nowhere", "--bad", "HEAD"], "git knows no revision nowhere"),
        (["--good", "HEAD", "--bad", "HEAD~1"], "no commits to bisect"),
        (
            ["--good", "HEAD~1", "--bad", "HEAD", "--suite", "absent"],
            "--bad HEAD has no such suite",
        ),
        # as PowerShell writes it
        (["--packages", "utf-16.txt", "utf-16.txt"], "not a list of pip freeze"),
        (["--packages", "same.txt", "same.txt"], "same packages"),
        (["--good", "HEAD~1", "--bad", "HEAD"], "selects 2 workloads"),
    ],
)
@pytest.mark.usefixtures("repository")
def test_search_of_wrong_ends_is_an_error(
    process: Process, kernelgauge: Command, arguments: Any, said: str
) -> None:
    process.runs = [(measured("mlp-a"), measured("mlp-b"))]
    Path("utf-16.txt").write_text("aaa==1\n", encoding="utf-16")
    freeze("same.txt", "aaa==1")
    history(["205"] * 3)
    code, _, err = kernelgauge("bisect", "-k", "x", *arguments)
    assert (code, len(process.seen), len(git("worktree", "list").splitlines())) == (
        2,
        "2 workloads" in said,
        1,
    )
    assert said in err
    assert "mlp-a, mlp-b" in err or "2 workloads" not in said


def wheel(folder: Path, name: str, version: str, text: str) -> str:
    """Make a wheel with one module, whose text a `Process` reads.

    Return its line of `pip freeze`.
    """
    path = folder / f"{name}-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"# {text}")
        for file, content in (
            ("METADATA", metadata),
            ("WHEEL", "Wheel-Version: 1.0\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"{name}-{version}.dist-info/{file}", content)
    return f"{name} @ {path.as_uri()}"


def freeze(name: str, *lines: str) -> str:
    Path(name).write_text("".join(f"{line}\n" for line in lines))
    return name


@pytest.fixture
def bisect_packages(repository: Path, process: Process, kernelgauge: Command) -> Command:
    (repository / "perf").mkdir()
    (repository / "perf" / "suite.txt").write_text("new")
    return partial(kernelgauge, "bisect", "-k", FIRST, "--packages")


def test_package_is_found_and_installed_elsewhere(
    bisect_packages: Command, process: Process, tmp_path: Path
) -> None:
    texts = {("aaa", 1): "", ("aaa", 2): "", ("bbb", 1): "205", ("bbb", 2): "208", ("ccc", 1): ""}
    lines = {
        (name, version): wheel(tmp_path, name, str(version), text)
        for (name, version), text in texts.items()
    }
    good = freeze(
        "good.txt", "# comment", "-e /a/folder", "PyTest==8.0", lines["aaa", 1], lines["bbb", 1]
    )
    bad = freeze("bad.txt", "pytest==8.0", lines["aaa", 2], lines["bbb", 2], lines["ccc", 1])
    code, out, err = bisect_packages(good, bad)
    assert (code, err.count("installing")) == (0, 5)
    assert f"package  {lines['bbb', 1]} -> {lines['bbb', 2]}" in out
    assert "ccc is not in every list" in err
    assert {tuple(each.arguments) for each in process.seen} == {("perf", "-k", FIRST)}
    assert find_spec("aaa") is None


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for pip. Return the requirements whose package changes the kernels."""
    changing: list[str] = []

    def install(requirement: str, folder: Path, **_: Any) -> Path:
        if requirement == "aaa==gone":
            raise MeasurementError("it cannot be installed")
        (folder / "module.py").write_text("205 fewer" if requirement in changing else "")
        return folder

    monkeypatch.setattr(processes, "install", install)
    return changing


def test_packages_are_changed_after_what_they_need(
    bisect_packages: Command, changing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here torch needs sympy by way of another package, and two packages need each other."""
    changing.append("torch==2")
    needs = {
        "torch": ["Other>=1"],
        "other": ["sympy"],
        "sympy": ["aaa; extra == 'x'"],
        "aaa": ["bbb"],
        "bbb": ["aaa"],
    }
    # which packaging refuses
    needs["torch"][:0] = ["legacy>=1.9.*", "odd; platform_machine ~= '1.0'"]
    monkeypatch.setattr(metadata, "requires", needs.get)
    names = ("torch", "aaa", "sympy", "bbb")
    ends = [freeze(f"{version}.txt", *(f"{name}=={version}" for name in names)) for version in "12"]
    code, out, err = bisect_packages(*ends)
    assert code == 0
    assert "found: 4: torch==2\npackage  torch==1 -> torch==2" in out
    assert "process 7: 2: aaa==2" in err
    assert "process 8: 3: bbb==2" in err
    assert err.index(", 4 suspects") < err.index(", 2 suspects")  # of kernels, which are exact


def test_version_is_found_over_several_lists(
    bisect_packages: Command, process: Process, changing: list[str]
) -> None:
    changing += ["aaa==3", "aaa==4", "aaa==5"]
    lists = [freeze(f"{version}.txt", f"aaa=={version}") for version in range(6)]
    code, out, _ = bisect_packages(*lists)
    assert (code, "package  aaa==2 -> aaa==3" in out, len(process.seen)) == (0, True, 6 + 2)
    lists[3] = freeze("gone.txt", "aaa==gone")
    code, out, _ = bisect_packages(*lists)
    assert (code, "2 suspects are left" in out, "skipped: " in out) == (1, True, True)
