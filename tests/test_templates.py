"""The templates are valid and safe, and use options and commands that exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelgauge.cli import main

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "templates"
SLURM = TEMPLATES / "slurm"
# The environment of this Python, whether it is active or not.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def names(pattern: str) -> list[str]:
    return sorted(path.relative_to(TEMPLATES).as_posix() for path in TEMPLATES.glob(pattern))


def check(program: str, *arguments: str, text: str = "") -> None:
    """Fail with the output of a checker if it does not exit with 0."""
    found = shutil.which(program, path=PATH)
    if found is None:
        pytest.skip(f"{program} is not installed: it is in the extra 'templates'")
    done = subprocess.run([found, *arguments], input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check_shell(text: str) -> None:
    check("shellcheck", "--shell=bash", "--enable=quote-safe-variables", "-", text=text)


@pytest.mark.parametrize("name", names("github-actions/*.yml"))
def test_workflow_is_valid_and_safe(name):
    yaml = pytest.importorskip("yaml")
    path = TEMPLATES / name
    check("check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(path))
    check("zizmor", "--offline", "--quiet", str(path))
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        for step in job["steps"]:
            check_shell(f"set -eo pipefail\n{step.get('run', ':')}\n")


@pytest.mark.parametrize("name", names("kubernetes/*.yaml"))
def test_manifests_are_valid(name):
    yaml = pytest.importorskip("yaml")
    checker = pytest.importorskip("kubernetes_validate")
    for manifest in yaml.safe_load_all((TEMPLATES / name).read_text()):
        checker.validate(manifest, "1.29", strict=True)  # the oldest with backoffLimitPerIndex
        checker.validate(manifest, checker.latest_version(), strict=True)
        [container] = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        assert container["command"] == ["bash", "-euo", "pipefail", "-c"]
        check_shell('set -euo pipefail\n: "$SHARDS" "$JOB_COMPLETION_INDEX"\n' + container["args"][0])


# sbatch copies the script, runs each task of the array, and answers with an id, or under --wait with the exit code.
# The node of task 2 dies: it kills the script that started srun.
STAND_INS = {
    "sbatch": r"""
array=1 output=/dev/null wait=""
for argument; do
  case $argument in
    --array=*) array=${argument#*=} tasks=yes ;;
    --output=*) output=${argument#*=} ;;
    --wait) wait=yes ;;
  esac
done
cp "${!#}" "$CALLS.spooled"
code=0
for ((task = ${array%-*}; task <= ${array#*-}; task++)); do
  if [[ -n ${tasks:-} ]]; then export SLURM_ARRAY_TASK_ID=$task; fi
  bash "$CALLS.spooled" > "${output/\%a/$task}" 2>&1 || code=$?
done
echo "4711;cluster"
if [[ -n $wait ]]; then exit "$code"; fi
""",
    "srun": 'if [[ $SLURM_ARRAY_TASK_ID == 2 ]]; then kill -KILL "$PPID"; exit 1; fi\nexec "$@"\n',
    "nvidia-smi": "",
    "pytest": 'while [[ $1 != kernelgauge_reports=* ]]; do shift; done\nmkdir -p "${1#*=}/latest"\n',
    "kernelgauge": 'echo "shard 2/3 is missing"\nexit 1\n',
}


def test_slurm_night_with_a_dead_node_merges_the_rest_and_fails(tmp_path):
    for script in SLURM.iterdir():
        check_shell(script.read_text())
    (tmp_path / "programs").mkdir()
    for name, text in STAND_INS.items():
        program = tmp_path / "programs" / name
        program.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> "$CALLS"\n{text}')
        program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path / 'programs'}:{os.defpath}:/usr/bin:/bin",
        "CALLS": str(tmp_path / "calls"),
        "SHARDS": "3",
    }
    submit = str(SLURM / "submit.sh")
    done = subprocess.run(
        [submit], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "shard 2/3 is missing" in done.stdout
    [night] = (tmp_path / "reports" / "nightly").iterdir()
    calls = [shlex.split(call) for call in (tmp_path / "calls").read_text().splitlines()]
    shards = [call[call.index("--perf-shard") + 1] for call in calls if call[0] == "pytest"]
    assert shards == ["1/3", "3/3"]
    assert calls[-1] == ["kernelgauge", "merge", f"{night}/shard-1/", f"{night}/shard-3/", "--to", f"{night}/merged"]


def test_containerfile_copies_what_the_build_needs():
    text = (TEMPLATES / "Containerfile").read_text().replace("\\\n", " ")
    for command in re.findall(r"(?m)^RUN (.*)", text):
        check_shell(f': "$TORCH_INDEX" "$TORCH"\n{command}\n')
    copied = {source for line in re.findall(r"(?m)^COPY (.*)", text) for source in line.split()[:-1]}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "src"}
    [user] = re.findall(r"(?m)^USER (\d+)", text)
    assert f"runAsUser: {user}\n" in (TEMPLATES / "kubernetes" / "cronjob.yaml").read_text()


def test_options_and_commands_of_the_templates_exist(pytestconfig, capsys):
    text = "\n".join((TEMPLATES / name).read_text() for name in names("*/*"))
    unknown = object()
    options = set(re.findall(r"--perf-[a-z-]+[a-z]", text))
    assert "--perf-strict" in options
    assert [option for option in options if pytestconfig.getoption(option, default=unknown) is unknown] == []
    commands = re.findall(r"kernelgauge ([a-z]+|history show) (?=[\"$r-])(.*)", text.replace("\\\n", " "))
    assert {command for command, _ in commands} == {"bisect", "compare", "merge", "review", "history show"}
    for command, arguments in commands:
        with pytest.raises(SystemExit):
            main([*command.split(), "--help"])
        known = capsys.readouterr().out
        assert [
            option for option in re.findall(r"--[a-z]+", arguments.partition(" -- ")[0]) if option not in known
        ] == []
