"""The worked examples of CONTRIBUTING.md: each applies to the code as it is, in few files, and
works.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = re.findall(r"^```diff\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COUNT = """
from kernelgauge.judge.baseline import decode_baseline, encode_baseline
from kernelgauge.judge.structure import judge_structure
from kernelgauge.judge import Status
from tests.builders import baseline, counts, reasons, run

one, two = counts(streams=1), counts(streams=2)
stored = decode_baseline(encode_baseline(baseline(counts=one)), where="", workload=run().workload)
verdict = judge_structure(run(counts=two), stored)
assert (verdict.status, reasons(verdict, "counts")) == (Status.REGRESSED, ["streams 1 -> 2"])
assert judge_structure(run(counts=one), stored).status is Status.PASS
assert judge_structure(run(counts=two), baseline(counts=counts())).status is Status.PASS  # an older one
"""
CAUSE = """
from kernelgauge.judge.structure import judge_structure
from kernelgauge.report.findings import brief, with_words
from kernelgauge.results import decode_results, encode_results
from tests.builders import baseline, counts, results, run, workload

verdict = judge_structure(run(counts=counts(memsets=4)), baseline())
said = "cause    each call sets memory 4 times instead of 2"
assert said in brief(verdict)
file = encode_results(with_words(results(workload(verdict))))
assert said.encode() in file
assert decode_results(file, where="").workloads[0].verdicts[0].reasons == verdict.reasons
"""
FORMAT = """
import sys
from pathlib import Path
from kernelgauge import cli
from kernelgauge.results import encode_results
from tests.builders import results, verdict, workload

Path("results.json").write_bytes(encode_results(results(workload(verdict(), name="mlp"))))
assert cli.main(["report", "results.json", "--csv", "table.csv"]) == 0
assert Path("table.csv").read_text().splitlines()[1] == "mlp,4,205.1,205.1,+8.1 %,PASS"
"""
SOURCE = """
from pathlib import Path
from kernelgauge import cli

header = '"Kind","Agent_Id","Queue_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp",'
header += '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z"'
row = '"KERNEL_DISPATCH","Agent 4",1,"gemm(float*, int)",{0},{1},{2},256,1,1'
for name, us in (("before", 20), ("after", 30)):
    rows = [row.format(n, 10**15 + n * 10**5, 10**15 + n * 10**5 + us * 1000 + n) for n in range(9)]
    Path(f"{name}.csv").write_text("\\n".join([header, *rows, ""]))
baseline = ["--baselines", "b.json"]
assert cli.main(["check-trace", "--update", "--force", "before.csv", *baseline]) == 0
assert cli.main(["check-trace", "before.csv", *baseline]) == 0
assert cli.main(["check-trace", "after.csv", *baseline]) == 1
"""


FILES = (2, 3, 2, 1)  # that each touches. A cause: its facts, its rule and its words
CHECKS = (COUNT, CAUSE, FORMAT, SOURCE)


@pytest.mark.parametrize(
    ("example", "check", "files"), [*zip(EXAMPLES, CHECKS, FILES, strict=True)]
)
def test_example_applies_and_works(example: str, check: str, files: int, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "example.diff").write_text(example)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "-C1", "example.diff"], cwd=tmp_path, check=True)
    assert len(set(re.findall(r"^\+\+\+ b/(\S+)$", example, re.MULTILINE))) == files
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "src"), str(ROOT)])}
    subprocess.run([sys.executable, "-c", check], cwd=tmp_path, env=environment, check=True)


def test_stations_to_the_rule_are_functions_there() -> None:
    stations = re.findall(r"^\d\. `([\w/]+\.py)`, (.*?):", TEXT, re.MULTILINE)
    assert len(stations) == 6
    for file, names in stations:
        (path,) = (ROOT / "src").rglob(file)
        functions = {
            each.name
            for each in ast.walk(ast.parse(path.read_text()))
            if isinstance(each, ast.FunctionDef)
        }
        assert functions >= {*re.findall(r"`(\w+)`", names)}
