"""A training step: forward, backward, and a step of the optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import WorkloadError
from ..workload import Workload


class TrainingStep:
    """One step of a module, as `Workload.training` says it. Calling it with batches trains once.

    `loss`: returns the loss of a batch.

    Raises `WorkloadError` if the optimizer has no parameter of the module, or others too.
    """

    def __init__(self, workload: Workload, module: Any, loss: Callable[[Any], torch.Tensor]) -> None:
        assert workload.training is not None
        training, self._module, self._loss = workload.training, module, loss
        own = list(module.parameters()) if isinstance(module, nn.Module) else []
        learning = [each for each in own if each.requires_grad]
        if not learning:
            got = "a function" if not isinstance(module, nn.Module) else f"{len(own)} parameters that need no gradient"
            raise WorkloadError(
                f"{workload.id}: there is nothing to train", got=got, expected="a module with parameters"
            )
        self._optimizer = training.optimizer(learning)
        given = {id(each) for group in self._optimizer.param_groups for each in group["params"]}
        if foreign := len(given - set(map(id, own))):
            raise WorkloadError(
                f"{workload.id}: its optimizer has parameters of another module",
                got=f"{foreign} of {len(given)} are not the module's",
                expected="an optimizer of the parameters that it is called with",
            )
        self._clipped = learning if training.clip_norm is not None else []
        self._clip_norm = training.clip_norm or 0.0
        self._scaler = None if training.scaler is None else training.scaler()
        self._schedule = None if training.schedule is None else training.schedule(self._optimizer)
        self._update = self._updated if training.compile is None else torch.compile(self._updated, **training.compile)
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._saved_states: list[tuple[Any, Any]] = []

    def __call__(self, batches: Sequence[Any]) -> None:
        for batch in batches:
            loss = self._loss(batch)
            if len(batches) > 1:
                loss = loss / len(batches)
            torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))
        self._update()
        if self._schedule is not None:
            self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _updated(self) -> None:
        if self._clipped:
            if self._scaler is not None:
                self._scaler.unscale_(self._optimizer)
            torch.nn.utils.clip_grad_norm_(self._clipped, self._clip_norm)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()

    # -- its state: parameters, buffers, and what the optimizer keeps ---------------------------------------------------

    def save(self) -> None:
        """Remember the state of now. Call it behind a step: an optimizer makes its state with the first one."""
        kept = (each for state in self._optimizer.state.values() for each in state.values())
        tensors = [*self._module.state_dict(keep_vars=True).values(), *kept]
        self._saved = [(each, each.detach().clone()) for each in tensors if isinstance(each, torch.Tensor)]
        others = [each for each in (self._scaler, self._schedule) if each is not None]
        self._saved_states = [(each, copy.deepcopy(each.state_dict())) for each in others]

    def restore(self) -> None:
        """Put the saved state back, at the same addresses: nothing compiles again."""
        with torch.no_grad():
            for tensor, value in self._saved:
                tensor.copy_(value)
        for each, state in self._saved_states:
            each.load_state_dict(copy.deepcopy(state))
