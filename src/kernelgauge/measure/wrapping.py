"""Replace private functions of torch and Triton for a while."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any


def wrap(wrappers: ExitStack, owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a method by `function`, which gets the original first, until `wrappers` closes.

    Do nothing if this version of torch or Triton lacks it.
    """
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "is_wrapped_by_us"):
        return
    wrapped: Any = wraps(original)(lambda *args, **kwargs: function(original, *args, **kwargs))
    wrapped.is_wrapped_by_us = True
    was = vars(owner)[name]
    setattr(owner, name, staticmethod(wrapped) if isinstance(was, staticmethod) else wrapped)
    wrappers.callback(setattr, owner, name, was)
