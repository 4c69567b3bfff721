"""A scheduler of pytest-xdist: each group of workloads on one worker, and one worker on each GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import (  # type: ignore[import-untyped]
    LoadFileScheduling,
    LoadGroupScheduling,
    LoadScopeScheduling,
)

from ..measure.nvml import VISIBLE

__all__ = ["OneWorkerOnEachGpu"]


class OneWorkerOnEachGpu(LoadScopeScheduling):  # type: ignore[misc]
    """The first worker that gets work on a GPU keeps that GPU while it lives: two would disturb each other.

    The other workers run the other tests, in the order and the scopes that ``--dist`` asks for.

    Args:
        groups: by pytest's id of a test; complete when the first worker has collected.
    """

    workqueue: Any
    assigned_work: Any

    def __init__(self, config: Any, log: Any, groups: Mapping[str, str]) -> None:
        super().__init__(config, log)
        self._groups = groups
        self._timing: dict[object, Any] = {}  # workers, by GPU
        of_others = {"loadfile": LoadFileScheduling, "loadscope": LoadScopeScheduling}
        self._of_others = of_others.get(config.getoption("dist"), LoadGroupScheduling)

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid) or str(self._of_others._split_scope(self, nodeid))

    def _gpu(self, node: Any) -> object:
        spec = node.gateway.spec
        return spec.env.get(VISIBLE) if spec.popen else spec.id

    def _assign_work_unit(self, node: Any) -> None:
        # A worker begins a test when it knows the next one, so one test alone would never begin.
        while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            if self._timing.setdefault(self._gpu(node), node) is not node:
                groups = set(self._groups.values())
                other = next((scope for scope in self.workqueue if scope not in groups), None)
                if other is None:
                    node.shutdown()
                    return
                self.workqueue.move_to_end(other, last=False)
            super()._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        if self._timing.get(self._gpu(node)) is node:
            del self._timing[self._gpu(node)]
        # What is complete would be assigned again, as work without a test, which never ends.
        left = {scope: tests for scope, tests in self.assigned_work[node].items() if not all(tests.values())}
        self.assigned_work[node] = left
        crashed: str | None = super().remove_node(node)
        return crashed
