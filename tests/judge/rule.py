"""The rule of these tests: that of a time of the device, unless a test says otherwise."""

from __future__ import annotations

from typing import Any

from kernelgauge.judge import Policy
from tests import builders


def policy(**changes: Any) -> Policy:
    return builders.policy(**({"of_the_host": False} | changes))
