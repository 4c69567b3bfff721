"""A bucket in memory."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import fsspec
import pytest


@pytest.fixture
def bucket() -> Iterator[str]:
    location = f"memory://{uuid4().hex}/history"
    yield location
    fsspec.filesystem("memory").store.clear()
