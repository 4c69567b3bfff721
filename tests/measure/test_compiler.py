"""What is asked of the compiler itself."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
import torch._inductor.config as inductor

from kernelgauge.errors import KernelgaugeError
from kernelgauge.measure.compiler import take_deterministic_choices


def use(monkeypatch: pytest.MonkeyPatch, config: SimpleNamespace) -> None:
    """Let `torch._inductor.config` be this."""
    monkeypatch.setattr(torch._inductor, "config", config)
    monkeypatch.setitem(sys.modules, "torch._inductor.config", config)


def test_deterministic_choices_are_inductors_own_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(deterministic=False)
    use(monkeypatch, config)
    take_deterministic_choices()
    assert config.deterministic is True


def test_torch_has_that_switch_from_the_version_on_that_the_error_names() -> None:
    major, minor = map(int, torch.__version__.split(".")[:2])
    assert hasattr(inductor, "deterministic") is ((major, minor) >= (2, 10))


def test_a_torch_without_the_switch_is_an_error_that_names_it_and_the_way_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = SimpleNamespace()
    use(monkeypatch, older)
    with pytest.raises(KernelgaugeError) as raised:
        take_deterministic_choices()
    error = raised.value
    assert "kernelgauge_deterministic" in error.what
    assert str(torch.__version__) in (error.got or "")
    assert error.expected == "torch 2.10 or newer"
    assert "kernelgauge calibrate" in (error.next_command or "")
    assert vars(older) == {}
