"""`-k`, with the meaning that it has for pytest."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import KernelgaugeError
from ..printable import printable

__all__ = ["matcher"]


_MOST_SHOWN = 200  # characters


def _clipped(expression: str) -> str:
    if len(expression) <= _MOST_SHOWN:
        return repr(expression)
    return f"{expression[:_MOST_SHOWN]!r}... ({len(expression)} characters)"


def matcher(expression: str) -> Callable[[str], bool]:
    """Whether a workload's id has what `expression` asks for: substrings, `and`, `or`, `not`, parentheses.

    Raises `KernelgaugeError` if it is no such expression.
    """
    # Private, and the only implementation there is: one of our own would mean something else in some corner, and what
    # is accepted is what `pytest perf -k` has measured. It is imported here, since pytest takes longer than the command.
    from _pytest.mark import expression as pytest_expression

    # pytest 8 has an error of its own, pytest 9 raises SyntaxError. What is nested too deep ends in one of the others.
    errors = (SyntaxError, RecursionError, MemoryError, getattr(pytest_expression, "ParseError", SyntaxError))

    def is_in(text: str, name: str, **values: object) -> bool:
        if values:  # pytest's -m takes name(key=value), its -k does not
            raise SyntaxError("call parameters are not supported")
        return name.lower() in text.lower()  # substrings in any case, as pytest's KeywordMatcher

    def matches(workload: str) -> bool:
        return compiled.evaluate(lambda name, /, **values: is_in(workload, name, **values))

    try:
        compiled = pytest_expression.Expression.compile(expression)
        matches("")  # so that what cannot be evaluated is found before anything is done
    except errors as error:
        raise KernelgaugeError(
            "-k is no expression",
            got=printable(f"{_clipped(expression)}: {str(error) or 'nested too deep'}"),
            expected="as for pytest, for example -k 'mlp and not eager'",
        ) from error
    return matches
