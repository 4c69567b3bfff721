"""The workflows of the templates, and their steps run as a runner of GitHub Actions runs them."""

from __future__ import annotations

import subprocess
from typing import Any

import yaml

from .sandbox import TEMPLATES, Sandbox

__all__ = ["WORKFLOWS", "load", "run_step", "run_steps", "step"]

WORKFLOWS = sorted((TEMPLATES / "github-actions").glob("*.yml"))


def load(name: str) -> dict[Any, Any]:
    """A workflow. YAML 1.1 reads its key `on` as True."""
    return yaml.safe_load((TEMPLATES / "github-actions" / name).read_text())


def run_steps(workflow: dict[Any, Any]) -> list[tuple[str, str]]:
    """(job and name, shell text) of every step that runs one."""
    return [
        (f"{job}: {each['name']}", each["run"])
        for job, described in workflow["jobs"].items()
        for each in described["steps"]
        if "run" in each
    ]


def step(workflow: dict[Any, Any], name: str) -> str:
    """The shell text of the only step of this name."""
    (text,) = [text for title, text in run_steps(workflow) if title.endswith(f": {name}")]
    return text


def run_step(sandbox: Sandbox, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As `shell: bash` does it: a file, -e and -o pipefail. Its outputs and summary are files in the sandbox."""
    script = sandbox.folder / "step.sh"
    script.write_text(text)
    files = {name: sandbox.folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.touch()
    temporary = sandbox.folder / "runner-temp"
    temporary.mkdir(exist_ok=True)
    given = {name: str(path) for name, path in files.items()} | {"RUNNER_TEMP": str(temporary)} | environment
    return sandbox.run("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script), **given)
