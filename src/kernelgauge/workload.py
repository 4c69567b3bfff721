"""What is asked: a workload is one module, in one variant, at one shape, dtype and pass.

This module does not import torch, so that a list of workloads can be read, filtered and compared
anywhere. The functions on a workload do, when the measuring code calls them.
"""

from __future__ import annotations

import copy
import functools
import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, get_args

from .errors import WorkloadError
from .judge.structure import Expectation
from .run import TIMER_NAMES, Timer

Dtype = Literal["bf16", "fp16", "fp32"]
Pass = Literal["forward", "call", "train", "step"]
Matrix = Literal["default", "full"]

# Modules whose objects threads and processes share.
_OF_THREADS = {"threading", "queue", "concurrent", "multiprocessing", "asyncio"}
# Objects that refuse to be copied: each copy may make one anew.
_MOST_SHARED = 1000
_NAME = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*")


def to_name(text: str) -> str:
    """Return a text as a name of a module or variant: ``fused-attention (fp16)`` is
    ``fused-attention-fp16``.
    """
    return "-".join(re.findall(r"[A-Za-z0-9_]+", text))


@dataclass(frozen=True)
class Training:
    """How a workload with ``pass_="step"`` trains: forward, backward, and one step of the
    optimizer.

    Attributes: optimizer: returns the optimizer of the parameters that need gradients:
        ``partial(torch.optim.AdamW, lr=1e-4)``. micro_batches: how many forward and backward passes
        a step accumulates. Each calls ``inputs`` for its batch, and has its share of the loss.
        clip_norm: the norm that the gradients are clipped to; None: they are not. scaler: returns
        the ``torch.amp.GradScaler``; None: the loss is not scaled. schedule: returns the
        learning-rate schedule of an optimizer, which takes one step behind it. compile: keyword
        arguments for ``torch.compile`` of the optimizer's step with its clipping; None runs it as
        it is.
    """

    optimizer: Callable[[list[Any]], Any]
    micro_batches: int = 1
    clip_norm: float | None = None
    scaler: Callable[[], Any] | None = None
    schedule: Callable[[Any], Any] | None = None
    compile: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Workload:
    """One entry of a suite.

    Attributes: module: name of the family, for example ``mlp``. Workloads of one module compute the
        same function. variant: how it runs, for example ``eager``, ``compiled`` or ``liger``.
        build: returns the ``nn.Module`` (or any callable) to measure. Called on the device, under a
        fixed seed, once for each replicate; where CUDA graphs are replayed, once for all of one
        measurement. inputs: returns the positional arguments as a tuple; with keyword arguments, a
        pair of that tuple and a dict: ``((q, k, v), {"is_causal": True})``. Called like ``build``.
        Floating-point tensors, also in nested tuples, lists and dicts, are cast to ``dtype``;
        tensors of integers and booleans stay as they are. A generator function makes the workload a
        sequence: one call for each tuple that it yields. It runs before each sequence, untimed, and
        may take the built module as its argument: to make a cache for it, say. shape: the numbers
        that tell this workload from its siblings; part of the id. dtype: ``bf16``, ``fp16`` or
        ``fp32``; None leaves the module and its inputs as they are built: mixed precision, fp8,
        int8. pass_: ``forward`` (without autograd), ``call``: with autograd, for a function that
        may run a backward of its own, or ``train``: forward, sum and backward. An output's scalar
        ``loss`` is the sum, and so is an output that is one scalar; else every floating-point
        tensor in it is added. ``step``: that, and a step of the optimizer in `training`. training:
        how a ``step`` trains; for that pass alone. compile: keyword arguments for
        ``torch.compile``; None runs ``build()``'s result as it is. reference: builds the module
        that numerics are compared with, in float64, with this module's parameters. None: the module
        itself, uncompiled. expectations: what must be seen in the trace, and on which architecture
        and configuration. graph_breaks: how many there must be; None: as many as the baseline has.
        compiles: how many graphs its first call may compile, or its first sequence of calls; None:
        as many as the baseline. matrix: ``default`` is always run, ``full`` only under
        ``--perf-matrix full``. on_cpu: the workload that takes its place where there is no GPU, of
        a shape and dtype that fit a CPU. A text says why there is none. None: it runs on a CPU as
        it is. sensitivity: the slowdown that a PASS may miss, as a fraction, by timer:
        ``{"device_time": 0.02}``. A timer that is not named has that of the project (ini option
        ``kernelgauge_sensitivity``). gate: a smaller change is no finding; likewise
        (``kernelgauge_gate``). faster_than: the variant of the same module, pass, dtype and shape
        that this one must be faster than in each run. No baseline is needed. tolerance: the
        relative error that the result and the gradients may have beside their reference, as a
        fraction. None: what rounding explains. by: how much faster at least, as a fraction of the
        other variant's GPU time: 0.05 is 5 % less. name: the id; empty: it is made of module,
        variant, pass, dtype and shape.
    """

    module: str
    variant: str
    build: Callable[[], Any]
    inputs: Callable[..., Any]
    shape: tuple[int, ...] = ()
    dtype: Dtype | None = "bf16"
    pass_: Pass = "forward"
    compile: Mapping[str, Any] | None = None
    reference: Callable[[], Any] | None = None
    expectations: tuple[Expectation, ...] = field(default=(), repr=False)
    graph_breaks: int | None = None
    compiles: int | None = None
    matrix: Matrix = "default"
    on_cpu: Workload | str | None = field(default=None, repr=False)
    sensitivity: Mapping[str, float] = field(default_factory=dict)
    gate: Mapping[str, float] = field(default_factory=dict)
    faster_than: str | None = None
    by: float = 0.0
    tolerance: float | None = None
    training: Training | None = None
    name: str = ""

    @classmethod
    def from_callable(cls, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Workload:
        """Return the workload that calls a function, or a module, with these arguments.

        Each replicate has fresh copies of the tensors, and of a module that is not compiled. The
        function's name is the module's, its package is the variant, the shape of its first tensor
        is the shape, and dtypes stay as they are. Change any of it with ``dataclasses.replace``:
        ``replace(Workload.from_callable(rms_norm, x), variant="ours", pass_="train")``.
        """
        bare = function
        while isinstance(bare, functools.partial):
            bare = bare.func
        named: Any = bare if hasattr(bare, "__name__") else type(bare)
        tensors = (value for value in (*args, *kwargs.values()) if hasattr(value, "requires_grad"))
        return cls(
            module=to_name(named.__name__),
            variant=to_name((named.__module__ or "torch").split(".")[0]),
            build=functools.partial(copy_module, function),
            inputs=functools.partial(copy_arguments, (args, kwargs)),
            # A nested tensor has sizes that are no numbers.
            shape=next(
                (tuple(size for size in each.shape if type(size) is int) for each in tensors), ()
            ),
            dtype=None,
        )

    def __post_init__(self) -> None:
        __tracebackhide__ = True  # pytest ends the traceback at the suite's own line
        for what, got, expected in chain(self._faults(), self._faults_of_judging()):
            where = f"workload {self.module}-{self.variant}"
            raise WorkloadError(what, where=where, got=repr(got), expected=expected)

    def _faults(self) -> Iterator[tuple[str, object, str]]:
        """Yield what is wrong of the call: a sentence, what was given, and what is expected."""
        for what in ("module", "variant", *(("name",) if self.name else ())):
            if not _NAME.fullmatch(name := getattr(self, what)):
                named = f"a workload's {what} becomes a file name and a test id"
                yield named, name, "letters, digits, '_', and single '-' between them"
        shape = self.shape
        if not (isinstance(shape, tuple) and all(isinstance(each, int) for each in shape)):
            yield "invalid shape", shape, "a tuple of ints"
        if not (self.compile is None or isinstance(self.compile, Mapping)):
            expected = "arguments of torch.compile: a dict, {} for none; or None"
            yield "invalid compile", self.compile, expected
        names = {
            "dtype": (*get_args(Dtype), None),
            "pass_": get_args(Pass),
            "matrix": get_args(Matrix),
        }
        for what, allowed in names.items():
            if (value := getattr(self, what)) not in allowed:
                yield f"unknown {what}", value, ", ".join(map(str, allowed))
        if hasattr(self.build, "forward") and not isinstance(self.build, type):
            expected = "a function that returns the module: build=lambda: MyModule()"
            yield "build is a module", self.build, expected
        training = self.training
        if isinstance(training, Training) is not (self.pass_ == "step"):
            expected = "Training(optimizer=partial(torch.optim.AdamW, lr=1e-4)) with pass_='step', and only there"
            yield "invalid training", training, expected
        elif training and not (callable(training.optimizer) and training.micro_batches >= 1):
            expected = "a function that returns an optimizer; 1 batch or more"
            yield "invalid training", training, expected

    def _faults_of_judging(self) -> Iterator[tuple[str, object, str]]:
        for what in ("sensitivity", "gate"):
            if not _are_fractions(given := getattr(self, what)):
                expected = f"{{'end_to_end': 0.05}}: a positive fraction by time ({TIMER_NAMES})"
                yield f"invalid {what}", given, expected
        tolerance = self.tolerance
        is_number = isinstance(tolerance, (int, float))
        if not (tolerance is None or (is_number and 0 < tolerance < math.inf)):
            yield "invalid tolerance", tolerance, "a positive fraction: 0.02 is 2 %"
        is_fraction = isinstance(self.by, (int, float)) and 0 <= self.by < 1
        is_of_another = self.faster_than != self.variant and bool(not self.by or self.faster_than)
        if not (is_fraction and is_of_another):
            ratio = {"faster_than": self.faster_than, "by": self.by}
            expected = "what to be faster than, and the fraction of its time to save: 0 <= by < 1"
            yield "invalid faster_than", ratio, expected

    @property
    def id(self) -> str:
        """For example ``mlp-compiled-bf16-64x128x768x3072``; stable, and unique within a suite."""
        if self.name:
            return self.name
        parts = [self.module, self.variant, self.dtype or "", "x".join(map(str, self.shape))]
        if self.pass_ != "forward":
            # before the shape: the id of one workload is no substring of another's
            parts.insert(2, self.pass_)
        return "-".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.id


def _are_fractions(given: object) -> bool:
    """Return whether it is a mapping of times to positive fractions."""
    return isinstance(given, Mapping) and all(
        timer in [each.value for each in Timer]
        and isinstance(fraction, (int, float))
        and 0 < fraction < math.inf
        for timer, fraction in given.items()
    )


def is_copied(function: Any) -> bool:
    """Return whether a replicate has a copy of a function: of a module, but for one with parts that
    `nn.Module.compile` compiled.

    A copy of such a part is not compiled any more.
    """
    if not hasattr(function, "named_parameters"):
        return False
    return all(getattr(part, "_compiled_call_impl", None) is None for part in function.modules())


def copy_module(function: Any) -> Any:
    """Return a copy of a module where `is_copied` says so; else what is given."""
    return copy_deeply(function) if is_copied(function) else function


def copy_deeply(value: Any) -> Any:
    """Return a deep copy that shares what refuses to be copied: a lock, a thread pool, a file. The
    copy of a result that a module has kept has no graph.

    Another tensor or module that refuses is an error: a call may change it, and a cast would. So is a
    container, which fails by what is in it.
    """
    import torch

    never = (torch.Tensor, torch.nn.Module, dict, list, tuple, set, frozenset)
    memo: dict[int, Any] = {}
    shared: dict[int, Any] = {}
    attempts = []  # held, so that no other object takes an id in them
    while True:
        attempts.append(memo)
        try:
            return copy.deepcopy(value, memo)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            frames = [each for each, _ in traceback.walk_tb(error.__traceback__)]
            copied = [
                each.f_locals["x"] for each in frames if each.f_code is copy.deepcopy.__code__
            ]
            # Others use a queue through the lock in it, and wait for what comes to the original.
            whole = (
                each for each in copied if type(each).__module__.partition(".")[0] in _OF_THREADS
            )
            refused = next(whole, copied[-1])
            is_endless = id(refused) in shared or len(shared) == _MOST_SHARED
            is_result = isinstance(refused, torch.Tensor) and refused.grad_fn is not None
            if is_endless or (isinstance(copied[-1], never) and not is_result):
                raise
            shared[id(refused)] = refused.detach().clone() if is_result else refused
            # What has been copied is not copied again: weights are large. Attributes are: they may
            # lead to copies that are not done.
            underway = set(map(id, copied))
            done = {
                key: each
                for key, each in memo.items()
                if isinstance(each, torch.Tensor) and key not in underway and not vars(each)
            }
            memo = done | shared


def copy_arguments(arguments: Any) -> Any:
    """Return arguments with fresh copies of their tensors, in nested tuples, lists and dicts too."""
    import torch

    def copied(value: Any) -> Any:
        return copy_tensor(value) if isinstance(value, torch.Tensor) else value

    return torch.utils._pytree.tree_map(copied, arguments)


def copy_tensor(tensor: Any, *, copy: bool = True, **place: Any) -> Any:
    """Return a tensor as a leaf, copied and in another place or dtype if they are given, with the
    same strides.

    A copy by torch is dense: an expanded or a sliced tensor would be read by other kernels, or at
    another speed.
    """
    values = tensor.detach()
    new = values.to(**place, copy=copy)
    if str(values.layout) == "torch.strided" and values.numel() and new.stride() != values.stride():
        span = 1 + sum(
            (size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True)
        )
        new = (
            values.as_strided((span,), (1,))
            .to(**place, copy=copy)
            .as_strided(values.shape, values.stride(), 0)
        )
    return new.requires_grad_(tensor.requires_grad)
