"""What is asked: a workload is one module, in one variant, at one shape, dtype and pass.

This module does not import torch, so that a list of workloads can be read, filtered and compared anywhere. The
functions on a workload do, when the measuring code calls them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from .errors import WorkloadError
from .judge.expectation import Expectation
from .run import Timer

if TYPE_CHECKING:
    import torch


__all__ = ["Dtype", "Matrix", "Pass", "Workload"]

Dtype = Literal["bf16", "fp16", "fp32"]
Pass = Literal["forward", "train"]
Matrix = Literal["default", "full"]

_NAME = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*")


@dataclass(frozen=True)
class Workload:
    """One entry of a suite.

    Attributes:
        module: name of the family, for example ``mlp``. Workloads of one module compute the same function.
        variant: how it runs, for example ``eager``, ``compiled`` or ``liger``.
        build: returns the ``nn.Module`` (or any callable) to measure. Called on the device, under a fixed seed, once
            for each replicate; where CUDA graphs are replayed, once for all of one measurement.
        inputs: returns the positional arguments. Called like ``build``; floating-point tensors are cast to ``dtype``.
        shape: the numbers that tell this workload from its siblings; part of the id.
        dtype: ``bf16``, ``fp16`` or ``fp32``.
        pass_: ``forward`` (without autograd), or ``train``: forward, sum and backward.
        compile: keyword arguments for ``torch.compile``; None runs ``build()``'s result as it is.
        reference: builds the module that numerics are compared with, in float64, with this module's parameters. None:
            the module itself, uncompiled.
        expectations: what must be seen in the trace, and on which architecture and configuration.
        graph_breaks: how many are known and accepted.
        matrix: ``default`` is always run, ``full`` only under ``--perf-matrix full``.
        needs_gpu: why it cannot run on a CPU; None if it can.
        sensitivity: the slowdown that a PASS may miss, as a fraction, by timer: ``{"device_time": 0.02}``. A timer that is
            not named has that of the project (ini option ``kernelgauge_sensitivity``).
    """

    module: str
    variant: str
    build: Callable[[], Any]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    shape: tuple[int, ...] = ()
    dtype: Dtype = "bf16"
    pass_: Pass = "forward"
    compile: Mapping[str, Any] | None = None
    reference: Callable[[], Any] | None = None
    expectations: tuple[Expectation, ...] = field(default=(), repr=False)
    graph_breaks: int = 0
    matrix: Matrix = "default"
    needs_gpu: str | None = None
    sensitivity: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, text in (("module", self.module), ("variant", self.variant)):
            if not _NAME.fullmatch(text):
                raise WorkloadError(
                    f"a workload's {what} becomes a file name and a test id",
                    got=repr(text),
                    expected="letters, digits, '_', and single '-' between them",
                )

        where = f"workload {self.module}-{self.variant}"
        if not isinstance(self.shape, tuple) or not all(isinstance(number, int) for number in self.shape):
            raise WorkloadError("a workload's shape is a tuple of ints", where=where, got=repr(self.shape))
        if self.compile is not None and not isinstance(self.compile, Mapping):
            raise WorkloadError(
                "a workload's compile holds keyword arguments for torch.compile",
                where=where,
                got=repr(self.compile),
                expected="a dict, {} for the defaults, or None",
            )
        for timer, fraction in self.sensitivity.items():
            if timer not in [each.value for each in Timer] or not 0 < fraction < math.inf:
                raise WorkloadError(
                    "invalid sensitivity",
                    where=where,
                    got=f"{timer!r}: {fraction!r}",
                    expected=f"a positive fraction for {', '.join(each.value for each in Timer)}",
                )
        for what, value, allowed in (
            ("dtype", self.dtype, get_args(Dtype)),
            ("pass_", self.pass_, get_args(Pass)),
            ("matrix", self.matrix, get_args(Matrix)),
        ):
            if value not in allowed:
                raise WorkloadError(f"unknown {what}", where=where, got=repr(value), expected=", ".join(allowed))

    @property
    def id(self) -> str:
        """For example ``mlp-compiled-bf16-64x128x768x3072``; stable, and unique within a suite."""
        parts = [self.module, self.variant, self.dtype, "x".join(map(str, self.shape))]
        if self.pass_ != "forward":
            parts.insert(2, self.pass_)  # before the shape: the id of one workload is no substring of another's
        return "-".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.id
