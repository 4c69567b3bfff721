"""A scheduler of pytest-xdist: every worker runs its own share, and whoever replaces it the rest of that one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdist.scheduler import EachScheduling  # type: ignore[import-untyped]

from .errors import KernelgaugeError

__all__ = ["ShareScheduling"]


class ShareScheduling(EachScheduling):  # type: ignore[misc]
    """`EachScheduling` takes two workers for twins whose specifications are spelt alike, as all of one host are: the one
    that replaces a dead worker would wait for, or begin, another's part. Here the share tells them apart.
    """

    collection_is_completed: bool

    def __init__(self, config: Any, log: Any, share_key: str) -> None:
        super().__init__(config, log)
        self._share_key = share_key
        self._left: dict[str, tuple[list[str], list[int]]] = {}  # by share: what was collected, what is not run yet

    def _share(self, node: Any) -> str:
        return str(node.gateway.spec.env[self._share_key])

    @property
    def tests_finished(self) -> bool:
        return (
            self.collection_is_completed
            and not any(pending for _, pending in self._left.values())
            and all(len(pending) < 2 for pending in self.node2pending.values())
        )

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        ids = list(collection)
        self.node2collection[node] = ids
        before, pending = self._left.pop(self._share(node), (ids, list(range(len(ids)))))
        if ids != before:
            raise KernelgaugeError(
                "the worker that replaces a dead one has collected other tests", got=self._share(node)
            )
        self.node2pending[node] = pending
        if not self.collection_is_completed:
            self.collection_is_completed = len({self._share(each) for each in self.node2collection}) >= self.numnodes

    def remove_node(self, node: Any) -> str | None:
        pending = self.node2pending.pop(node)
        if node not in self._started:  # it was given nothing yet: whoever replaces it runs all
            return None
        crashed = self.node2collection[node][pending.pop(0)] if pending else None
        self._left[self._share(node)] = (self.node2collection[node], pending)
        return crashed

    def schedule(self) -> None:
        for node, pending in self.node2pending.items():
            if node in self.node2collection and node not in self._started:
                self._started.append(node)
                if pending:
                    node.send_runtest_some(pending)
                node.shutdown()
