"""A history in a folder, used by way of the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from kernelgauge.cli import main
from kernelgauge.results import Results, encode_results


class History:
    """`kernelgauge history` on one location. Each call returns the exit code, standard output and standard error."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root / "history"
        self.location = str(self.root)
        self._reports = root / "reports"
        self._capsys = capsys

    def save(self, *results: Results) -> list[str]:
        """Write each as a run does. Return the folders."""
        folders = [self._reports / uuid4().hex for _ in results]
        for folder, each in zip(folders, results, strict=True):
            folder.mkdir(parents=True)
            (folder / "results.json").write_bytes(encode_results(each))
        return list(map(str, folders))

    def add(self, *results: Results | str) -> tuple[int, str, str]:
        """Add results, or what lies at a path."""
        paths = [each if isinstance(each, str) else self.save(each)[0] for each in results]
        return self.call("add", *paths, "--to", self.location)

    def show(self, *arguments: str) -> tuple[int, str, str]:
        return self.call("show", self.location, *arguments)

    def entries(self) -> dict[str, Any]:
        """Return the content of each file by key. Hidden files are temporary."""
        found = [path for path in sorted(self.root.rglob("*.json")) if not path.name.startswith(".")]
        return {path.relative_to(self.root).as_posix(): json.loads(path.read_bytes()) for path in found}

    def call(self, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        try:
            code = main(["history", *arguments])
        except SystemExit as stopped:  # argparse's
            code = int(stopped.code or 0)
        return code, *self._capsys.readouterr()


@pytest.fixture
def history(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setenv("COLUMNS", "80")
    return History(tmp_path, capsys)


@pytest.fixture(params=["folder", "bucket"])
def any_history(request: pytest.FixtureRequest, history: History) -> Iterator[History]:
    """In a folder, and in a bucket in memory."""
    if request.param == "bucket":
        history.location = f"memory://{uuid4().hex}/history"
    yield history
    fsspec.filesystem("memory").store.clear()
