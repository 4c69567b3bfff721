"""The architecture: every import points down, only `plugin/` knows pytest, and `perf/` uses the
public API alone.
"""

import ast
import importlib
import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tools import size

import kernelgauge
from kernelgauge import standard
from kernelgauge.results import encode_results
from tests.builders import complete_results, passing

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "kernelgauge"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}

# From the ground up. A part imports those below it and nothing else, in functions and under
# TYPE_CHECKING too.
FLOORS = tuple(
    "errors trace run judge workload results baselines processes measure report plugin standard cli __main__".split()
)
KNOW_PYTEST = ("plugin/", "standard.py", "cli/results.py")  # the last one: -k, as pytest reads it
KNOW_TORCH = ("measure/", "plugin/", "workload.py")
PURE = ("trace", "judge")
OUTSIDE = "torch pytest _pytest triton pynvml rich os pathlib time datetime subprocess tempfile shutil socket random"
IMPURE = {*OUTSIDE.split(), "threading", "filelock"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, in any scope, with its absolute name."""
    package = ".".join(path.parent.relative_to(SOURCE).parts)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield base
            if base == "kernelgauge":
                yield from (f"kernelgauge.{alias.name}" for alias in node.names)


def test_package_has_few_entries() -> None:
    assert {name.split("/")[0].removesuffix(".py") for name in MODULES} == {"__init__", *FLOORS}
    assert len(MODULES) <= 70
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert lines["judge/timing.py"] <= 500  # the rule for times, on one page
    assert len([path for path in PACKAGE.iterdir() if path.name != "__pycache__"]) <= 17


def test_package_has_few_concepts() -> None:
    """A cap on the lines of a file makes files of just that length; concepts are what a reader must
    learn.
    """
    assert size.classes("src") <= 240
    assert size.tokens("src") <= 214_668
    assert size.kinds_of_evidence() <= 122


FUNCTIONS = [
    (name, node)
    for name, path in MODULES.items()
    for node in ast.walk(tree_of(path))
    if isinstance(node, ast.FunctionDef)
]
MOST_LINES, MOST_LEVELS = 60, 4


def lines_of(function: ast.FunctionDef) -> int:
    """Return how many lines a function has behind its signature and its docstring."""
    body = function.body[ast.get_docstring(function) is not None :]
    return function.end_lineno - body[0].lineno + 1 if body and function.end_lineno else 0


def levels_of(node: ast.AST) -> int:
    """Return how many blocks stand in each other, without those of functions within."""
    found = 0
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            is_elif = isinstance(node, ast.If) and [each] == node.orelse
            is_block = isinstance(each, (ast.If, ast.For, ast.While, ast.With, ast.Try))
            found = max(found, levels_of(each) + (is_block and not is_elif))
    return found


def test_function_fits_a_screen() -> None:
    assert {
        f"{name}: {node.name}": (lines_of(node), levels_of(node))
        for name, node in FUNCTIONS
        if lines_of(node) > MOST_LINES or levels_of(node) > MOST_LEVELS
    } == {}
    blocks = "if a:\n  pass\nelif b:\n  for c in d:\n    with e:\n      pass"
    assert levels_of(ast.parse(blocks)) == 3


def test_signature_names_what_it_takes() -> None:
    """A bag of anything, and a long tuple, do not."""
    found = []
    for name, node in FUNCTIONS:
        given = node.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        notes = filter(None, [node.returns, *(each.annotation for each in arguments if each)])
        for part in (part for note in notes for part in ast.walk(note)):
            if isinstance(part, ast.Subscript):
                kind, items = ast.unparse(part.value), part.slice
                is_long = isinstance(items, ast.Tuple) and len(items.elts) > 3
                is_bag = (kind, ast.unparse(items)) == ("dict", "(str, Any)")
                if is_bag or (kind == "tuple" and is_long):
                    found.append(f"{name}: {node.name}: {ast.unparse(part)}")
    assert found == []


def test_class_has_a_name_of_its_own() -> None:
    names = Counter(
        node.name
        for path in MODULES.values()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in names.items() if times > 1] == []


# Where texts are those of torch, and values of closed sets that have a space.
FOREIGN = ("measure/", "trace/reader.py", "trace/summary.py")
VALUES = {
    "kernel names",
    "interquartile mean",
    "lower decile of runs",
    "declared structure",
    "NVIDIA H200",
}
LABELS = ("label", "text", "said", "incomplete")  # attributes that hold words


def words_in(node: ast.expr, names: dict[str, list[str]]) -> list[str]:
    if isinstance(node, ast.Attribute):
        # which time a verdict is on
        is_subject = ast.unparse(node).startswith(("timer.", "Timer."))
        return [node.attr] if node.attr in LABELS and not is_subject else []
    if isinstance(node, ast.Name):
        return names.get(node.id, [])
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    texts = [
        each.value
        for each in parts
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    return [each for each in texts if " " in each.strip() and each not in VALUES]


def compared_words(trees: dict[str, ast.Module]) -> Iterator[str]:
    """Yield where code asks whether a text is a sentence, or what a label is: what it asks about is
    no data.
    """
    names: dict[str, list[str]] = {}
    for tree in trees.values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = words_in(node.value, {})
    for name, tree in trees.items():
        for node in ast.walk(tree):
            is_of_none = isinstance(node, ast.Compare) and isinstance(
                node.ops[0], (ast.Is, ast.IsNot)
            )
            if isinstance(node, ast.Compare) and not is_of_none:
                sides = [node.left, *node.comparators]
                if any(words_in(each, names) for each in sides):
                    yield f"{name}:{node.lineno}"


def test_no_code_compares_with_a_sentence_or_a_label() -> None:
    trees = {name: tree_of(path) for name, path in MODULES.items() if not name.startswith(FOREIGN)}
    assert list(compared_words(trees)) == []
    planted = ast.parse(
        'A = ("x y", "z")\nif line.label == "why" or a in A or a == "no times" or b != A: pass'
    )
    assert len(list(compared_words({"x": planted}))) == 4


def test_design_page_draws_the_floors() -> None:
    assert " < ".join(FLOORS[:-1]) in (ROOT / "docs" / "design" / "types.md").read_text()


@pytest.mark.parametrize("name", [name for name in MODULES if name != "__init__.py"])
def test_module_imports_only_what_it_may(name: str) -> None:
    part, found = name.split("/")[0].removesuffix(".py"), set(imports(MODULES[name]))
    outside = {each.split(".")[0] for each in found}
    assert name.startswith(KNOW_PYTEST) or not outside & {"pytest", "_pytest"}
    assert name.startswith(KNOW_TORCH) or not outside & {"torch", "triton"}
    imported = {each.split(".")[1] for each in found if each.startswith("kernelgauge.")}
    assert imported <= set(FLOORS[: FLOORS.index(part) + 1])
    # its door is enough
    assert part == "trace" or not any(each.startswith("kernelgauge.trace.") for each in found)
    # what is measured does not depend on how it is judged
    assert part != "measure" or "judge" not in imported
    if part in PURE:
        assert not outside & IMPURE
        assert "open(" not in MODULES[name].read_text()


RULES = {
    "decide": "judge/time_verdict.py: judge",
    # of two variants in one run: an interval, and no gate
    "margin_of": "judge/time_verdict.py: judge_ratio",
    # of GPU times that `judge` calls the same, in `compare`
    "by_chance": "judge/revisions.py: _judged_in_pairs",
}


def uses(name: str) -> Iterator[tuple[str, str]]:
    """Yield what of a module names a rule, be it to hand it on, and which one."""
    for part in tree_of(MODULES[name]).body:
        if not isinstance(part, ast.ImportFrom):
            yield from (
                (rule, f"{name}: {getattr(part, 'name', '')}")
                for rule in RULES.keys() & names_in(part)
            )


def test_one_function_alone_decides_on_a_time() -> None:
    assert sorted(
        use for name in MODULES if name != "judge/timing.py" for use in uses(name)
    ) == sorted(RULES.items())


PAIRS = "trace/difference.py"  # pairs the kernels of two runs
# Launches that stand side by side and are not those of two runs.
OF_ONE_RUN = {
    "judge/baseline.py: joined_entry",  # processes of one launch configuration
    "judge/time_verdict.py: _part",  # with workloads of the same run
    "judge/time_verdict.py: _twins",  # likewise
    "measure/profile.py: multiset_difference",  # sessions of one process
    "trace/kernel.py: launch_sequence",  # steps of one trace
    "trace/steps.py: alike",  # likewise
}
LAUNCHES = ("kernels", "executions")  # names of sequences of them
LAUNCH_TYPES = ("KernelRecord", "KernelIdentity", "Execution", "StepRow")
WALKS = ("zip", "zip_longest", "map", "compress")


def pairings(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield each function that is given two collections of launches, walks two together, or takes
    one from the other.
    """
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        types = {
            each.arg: ast.unparse(each.annotation) if each.annotation else ""
            for each in (*function.args.args, *function.args.kwonlyargs)
        }
        given = {
            name
            for name, held in types.items()
            if "[" in held and any(launch in held for launch in LAUNCH_TYPES)
        }
        if len(given) > 1:
            yield f"{name}: {function.name}"
        sides = given | set(LAUNCHES)
        for node in ast.walk(function):
            parts: list[ast.expr] = []
            if isinstance(node, ast.Call) and called(node) in WALKS:
                parts = node.args
            elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.BitAnd)):
                parts = [node.left, node.right]
            of_launches = [each for each in parts if names_in(each) & sides]
            if len(of_launches) > 1 or any(isinstance(each, ast.Starred) for each in of_launches):
                yield f"{name}: {function.name}"


def called(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def names_in(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    return {each.id for each in nodes if isinstance(each, ast.Name)} | {
        each.attr for each in nodes if isinstance(each, ast.Attribute)
    }


PLANTED = """
def a(run, old): return zip(run.kernels, old.kernels, strict=False)
def b(before: Sequence[KernelRecord], after: Sequence[KernelRecord]): return Counter(before) - Counter(after)
def c(runs): return [*itertools.zip_longest(*(each.kernels for each in runs))]
def d(before: Iterable[StepRow], after: Iterable[StepRow]): return {row for row in after if row in before}
def e(pair: tuple[KernelRecord, KernelRecord]): return has_worse_code(*pair)
"""


def test_kernels_of_two_runs_are_paired_in_one_place() -> None:
    """Whatever else compares launches, compares pairs that it is given."""
    trees = {name: tree_of(path) for name, path in MODULES.items() if name != PAIRS}
    assert {use for name, tree in trees.items() for use in pairings(name, tree)} == OF_ONE_RUN
    assert {*pairings("x", ast.parse(PLANTED))} == {"x: a", "x: b", "x: c", "x: d"}
    aligning = {"rapidfuzz.distance", "difflib"}
    assert not [name for name in trees if aligning & set(imports(MODULES[name]))]


def test_one_type_alone_is_a_launch_that_is_compared() -> None:
    fields = {
        node.name: {ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign)}
        for path in MODULES.values()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    }
    of_launches = {name for name, each in fields.items() if "identity: KernelIdentity" in each}
    # the second one is a moment on a device, before its launch is known
    assert of_launches == {"KernelRecord", "Execution"}


def test_no_two_public_things_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in tree_of(path).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    # Hooks of pytest and the families of commands have one name in each module.
    shared = {
        name: files
        for name, files in homes.items()
        if len(files) > 1 and not name.startswith("pytest_")
    }
    assert shared.pop("add_commands")
    assert shared == {}


SUITES = [
    path
    for folder in ("perf", "examples/gallery", "examples/adaptors")
    for path in (ROOT / folder).glob("*.py")
]


@pytest.mark.parametrize("path", sorted(SUITES), ids=lambda path: path.name)
def test_suite_uses_the_public_api_alone(path: Path) -> None:
    assert all(getattr(kernelgauge, name) for name in kernelgauge.__all__)
    public = {"kernelgauge": kernelgauge.__all__, "kernelgauge.standard": [*standard.__all__, "*"]}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("kernelgauge") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kernelgauge"):
            assert {alias.name for alias in node.names} <= set(public[node.module or ""])


TRACES = ROOT / "tests" / "data" / "h200"


@pytest.mark.parametrize(
    "command",
    [
        "trace EAGER",
        "trace EAGER COMPILED --json",
        "check-trace EAGER --baselines b.json --html x.html",
        "review",
        "history .",
        "report .",
    ],
)
def test_command_on_files_imports_no_torch(command: str, tmp_path: Path) -> None:
    paths = {
        "EAGER": str(TRACES / "mlp-eager.json.gz"),
        "COMPILED": str(TRACES / "mlp-compiled.json.gz"),
    }
    script = "import sys; from kernelgauge.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    saved = tmp_path / "reports" / "latest" / "results.json"
    saved.parent.mkdir(parents=True)
    saved.write_bytes(encode_results(complete_results(passing())))
    update = ["check-trace", paths["EAGER"], "--update", "--force", "--baselines", "b.json"]
    for arguments in ([update] if command.startswith("check") else []) + [command.split()]:
        line = [sys.executable, "-c", script, *(paths.get(each, each) for each in arguments)]
        done = subprocess.run(
            line, capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
        )
        loaded = set(done.stdout.splitlines()[-1].split())
        assert not loaded & {"torch", "triton", "pytest", "pynvml"}
        assert "kernelgauge.report.text" in loaded or arguments[0] not in ("trace", "review")
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (
            "kernelgauge.trace, kernelgauge.judge.review",
            "torch pytest triton rich numpy scipy pynvml",
        ),
        ("kernelgauge.report, kernelgauge.baselines", "torch pytest triton pynvml"),
        ("kernelgauge", "torch pytest triton rich"),
        # a session without a suite does not wait for it
        ("kernelgauge.plugin", "torch triton msgspec"),
    ],
)
def test_import_does_not_load_what_is_not_needed(modules: str, absent: str) -> None:
    script = f"import sys; sys.path.insert(0, sys.argv[1]); import {modules}; print(*sys.modules)"
    command = [sys.executable, "-c", script, str(SOURCE)]
    loaded = set(
        subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout.split()
    )
    assert set(modules.split(", ")) <= loaded
    assert not loaded & set(absent.split())
