from pathlib import Path

import pytest

from .sandbox import Sandbox


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    sandbox = Sandbox(tmp_path / "sandbox")
    sandbox.folder.mkdir()
    sandbox.prepare()
    return sandbox
