"""From changed files to what is measured: never less than what the change can have moved."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from .sandbox import TEMPLATES

SCRIPT = TEMPLATES / "changed.py"
ROOT = TEMPLATES.parent

_spec = importlib.util.spec_from_file_location("changed", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
changed = importlib.util.module_from_spec(_spec)
sys.modules["changed"] = changed  # dataclasses look for their module there
_spec.loader.exec_module(changed)

MAP = """
# comment
docs/**       -> -
**/*.md       -> -
model/mlp/**  -> mlp
model/*.py    -> mlp and eager
linear.py     -> linear
build.toml    -> *
"""


def select(*paths: str, text: str = MAP) -> "changed.Selection":
    return changed.select(paths, changed.read_rules(text, where="map"), map_path="perf-map.txt")


def test_a_file_that_the_map_knows_selects_its_expression():
    assert select("model/mlp/deep/down.py").expression == "mlp"
    assert select("model/mlp/deep/down.py").run == "some"


def test_several_files_are_joined_and_each_expression_stands_once():
    chosen = select("model/mlp/a.py", "linear.py", "model/mlp/b.py", "docs/x.txt")
    assert (chosen.run, chosen.expression) == ("some", "mlp or linear")


def test_an_expression_with_words_of_its_own_is_put_in_parentheses_among_others():
    assert select("model/a.py").expression == "mlp and eager"
    assert select("model/a.py", "linear.py").expression == "(mlp and eager) or linear"


def test_all_lines_that_match_a_file_add_up():
    both = select("a/b.py", text="a/* -> one\na/b.py -> two\n")
    assert both.expression == "one or two"
    assert select("a/README.md", text="a/** -> one\n**/*.md -> -\n").expression == "one"


def test_files_that_cannot_change_a_time_select_nothing_and_say_so():
    nothing = select("docs/a/b.png", "README.md", "src/NOTES.md")
    assert (nothing.run, nothing.expression) == ("nothing", "")
    assert nothing.reasons[0] == '"docs/a/b.png": nothing (the map)'


@pytest.mark.parametrize("path", ["src/new.py", "Model/mlp/a.py", "model/mlp", "docs", "linear.pyc", "x/linear.py", ""])
def test_a_file_that_no_line_matches_selects_the_whole_suite(path):
    whole = select(path, "linear.py")
    assert (whole.run, whole.expression) == ("all", "")
    assert "no line of the map knows it" in whole.reasons[0]


def test_the_whole_suite_can_be_asked_for_and_outweighs_everything():
    assert select("build.toml", "linear.py", "docs/a").run == "all"


def test_a_change_of_the_map_selects_the_whole_suite_whatever_the_map_says_of_itself():
    assert select("perf-map.txt", text="** -> -\n").run == "all"


def test_no_changed_file_at_all_selects_the_whole_suite():
    assert select().run == "all"
    assert select().reasons == ("no changed file was named: whole suite",)


@pytest.mark.parametrize(
    ("glob", "path", "matched"),
    [
        ("*", "a", True),
        ("*", "a/b", False),
        ("a/*", "a/b", True),
        ("a/*", "a/b/c", False),
        ("a/**", "a/b/c", True),
        ("a/**", "a", False),
        ("**/b", "b", True),
        ("**/b", "a/a/b", True),
        ("**/b", "ab", False),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a?", "a/", False),
        ("a?", "ab", True),
        ("a.b", "axb", False),
        ("[ab]", "a", False),
        ("**", "a\nb/c", True),
    ],
)
def test_globs_match_whole_paths_and_a_star_stays_in_its_folder(glob, path, matched):
    assert changed.matches(glob, path) is matched


@pytest.mark.parametrize(
    "line",
    [
        "docs/**",
        "docs/** ->",
        " -> mlp",
        "docs/**->mlp",
        "a -> mlp; rm",
        "a -> $(x)",
        "a -> `x`",
        "a -> ml\x1fp",
        "a -> x -> y",
    ],
)
def test_a_line_that_cannot_be_read_is_refused_with_its_number(line):
    with pytest.raises(changed.MapError, match=r"perf-map\.txt, line 2"):
        changed.read_rules(f"# first\n{line}\n", where="perf-map.txt")


def run(map_path: Path, stdin: bytes) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-I", str(SCRIPT), "--map", str(map_path)], input=stdin, capture_output=True, check=False
    )


def test_the_answer_is_two_lines_that_a_step_of_github_actions_takes_as_outputs(tmp_path):
    path = tmp_path / "map"
    path.write_text(MAP)
    done = run(path, b"linear.py\0docs/a b\0")
    assert (done.returncode, done.stdout) == (0, b"run=some\nexpression=linear\n")
    assert done.stderr == b'"linear.py": -k linear (the map)\n"docs/a b": nothing (the map)\n'


def test_names_may_come_a_line_each_too(tmp_path):
    path = tmp_path / "map"
    path.write_text(MAP)
    assert run(path, b"linear.py\ndocs/a\n").stdout == b"run=some\nexpression=linear\n"


def test_a_name_that_would_end_its_line_writes_no_line_of_its_own(tmp_path):
    path = tmp_path / "map"
    path.write_text(MAP)
    done = run(path, b"a\nrun=nothing\n::error::x\xff\x1b[31m\0")
    assert done.stdout == b"run=all\nexpression=\n"
    assert done.stderr.count(b"\n") == 1
    assert b"\x1b" not in done.stderr


@pytest.mark.parametrize("text", [None, b"nonsense\n", b"\xff -> mlp\n"])
def test_without_a_readable_map_there_is_no_answer(tmp_path, text):
    path = tmp_path / "map"
    if text is not None:
        path.write_bytes(text)
    done = run(path, b"docs/a\0")
    assert (done.returncode, done.stdout) == (2, b"")
    assert str(path).encode() in done.stderr


def test_an_empty_expression_is_the_whole_suite_for_pytest_and_one_that_selects_nothing_ends_with_5(pytester):
    pytester.makepyfile(test_it="def test_mlp(): pass\ndef test_linear(): pass\n")
    pytester.runpytest("-p", "no:kernelgauge.plugin", "-k", "").assert_outcomes(passed=2)
    pytester.runpytest("-p", "no:kernelgauge.plugin", "-k", "mlp or linear").assert_outcomes(passed=2)
    pytester.runpytest("-p", "no:kernelgauge.plugin", "-k", "(mlp) or linear").assert_outcomes(passed=2)
    assert pytester.runpytest("-p", "no:kernelgauge.plugin", "-k", "stale").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def _own_map() -> list["changed.Rule"]:
    path = TEMPLATES / "perf-map.txt"
    return changed.read_rules(path.read_text(), where=str(path))


def test_every_line_of_the_map_in_the_templates_matches_a_file_of_this_repository():
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if files.returncode:
        pytest.skip("not a checkout of git")
    paths = [*files.stdout.split("\0")[:-1], "templates/changed.py"]
    assert [rule.glob for rule in _own_map() if not any(changed.matches(rule.glob, path) for path in paths)] == []


@pytest.mark.parametrize(
    "path",
    [
        "src/kernelgauge/judge/stats.py",
        "perf/modules.py",
        "perf/conftest.py",
        "pyproject.toml",
        "conftest.py",
        "tox.ini",
    ],
)
def test_the_map_in_the_templates_runs_everything_for_what_everything_reads(path):
    assert changed.select([path], _own_map(), map_path="perf-map.txt").run == "all"


def test_every_expression_of_the_map_in_the_templates_selects_workloads_of_the_suite():
    names = {path.stem for path in (ROOT / "baselines").glob("*/*.json")} | {"mlp-liger-hub-bf16-64x128x768x3072"}
    expressions = {rule.expression for rule in _own_map()} - {changed.NOTHING, changed.WHOLE_SUITE}
    assert {each for each in expressions if not any(each in name for name in names)} == set()
