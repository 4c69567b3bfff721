"""The workloads that an expression of `-k` selects."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import KernelgaugeError, printable


def matcher(expression: str) -> Callable[[str], bool]:
    """Return whether a workload's id matches `-k` as its tests do in pytest. An empty expression matches all.

    Raises `KernelgaugeError` if the expression is invalid.
    """
    if not expression:
        return bool
    # Private, and the only implementation there is. Imported here, since pytest takes longer than the command.
    from _pytest.mark.expression import Expression

    def matches(workload: str) -> bool:
        name = f"[{workload}]".lower()  # as in the name of its tests

        def is_in(part: str, /) -> bool:  # no keyword arguments: -m takes name(key=value), -k does not
            return part.lower() in name

        return Expression.compile(expression).evaluate(is_in)  # type: ignore[arg-type]

    try:
        matches("")  # so that what cannot be evaluated is found before anything is done
    except Exception as error:  # pytest 8 and 9 have different ones
        got = printable(f"{expression[:200]!r}: {error}")
        expected = "as for pytest, for example -k 'mlp and not eager'"
        raise KernelgaugeError("-k: invalid expression", got=got, expected=expected) from error
    return matches
