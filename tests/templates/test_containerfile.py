"""The container recipe, as far as a machine without a container engine can tell."""

import json
import re

import pytest

from .sandbox import TEMPLATES, shellcheck

ROOT = TEMPLATES.parent
CONTAINERFILE = TEMPLATES / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    """(keyword, what follows), comments and continuations resolved."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(keyword, rest.strip()) for keyword, _, rest in (line.partition(" ") for line in joined.splitlines())]


def of(keyword: str) -> list[str]:
    return [rest for each, rest in instructions() if each == keyword]


def test_every_instruction_is_one():
    assert {keyword for keyword, _ in instructions()} <= {"FROM", "RUN", "ARG", "COPY", "ENV", "USER", "WORKDIR", "CMD"}


def test_the_base_image_has_a_version_and_is_one_that_the_package_supports():
    (base,) = of("FROM")
    assert re.fullmatch(r"python:3\.1[0-3]-slim-\w+", base)


@pytest.mark.parametrize("text", of("RUN"))
def test_shellcheck_finds_nothing_in_a_step(text):
    assert shellcheck(': "$TORCH_INDEX" "$TORCH"\n' + text) == ""


def test_what_is_copied_is_what_the_build_of_the_package_needs():
    copied = {source for rest in of("COPY") for source in rest.split()[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    named = re.findall(
        r'^(?:readme = |license-files = \[)"([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert len(named) == 2
    assert copied == {"pyproject.toml", "src", *named}


def test_what_runs_is_not_root_and_is_the_user_of_the_manifests():
    assert instructions()[-1][0] == "CMD"
    (user,) = of("USER")
    assert int(user) > 0
    manifests = list((TEMPLATES / "kubernetes").glob("*.yaml"))
    assert manifests
    users = {each for path in manifests for each in re.findall(r"runAsUser: (\d+)", path.read_text())}
    assert users == {user}
    assert any(f"useradd --uid {user} " in text for text in of("RUN"))


def test_there_is_a_compiler_for_inductor_and_git_for_the_commit():
    assert any({"g++", "git"} <= set(text.split()) for text in of("RUN"))


def test_the_command_is_the_nightly_one():
    (command,) = of("CMD")
    assert json.loads(command)[:5] == ["pytest", "perf", "--perf-device", "cuda", "--perf-strict"]
