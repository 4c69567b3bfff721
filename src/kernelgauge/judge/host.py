"""What the host does in a call beside its ops: functions that it calls more often than in the
baseline, and their lines.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from ..run import LINES, Origin, Run
from ..trace import is_dispatched
from .evidence import Cause, HostCalls

if TYPE_CHECKING:
    from .baseline import Baseline

# Calls of functions that are more than this, and than this share of all, are more work. An
# unchanged call makes the same ones.
_LEAST_CALLS, _LEAST_SHARE = 10, 0.05
_LEAST_LINES, _LEAST_LINES_SHARE = 200, 0.10  # that run, of the user's code: a loop
_VARIES = 0.05  # calls that vary by this share from call to call are not compared
# of all calls: functions with fewer are one sum in a file. A whole model calls some hundred
_KEPT_SHARE = 1 / 200
_NAMED_SHARE = 0.10  # of what is more, at one line
# For the order of causes alone: of a line, of any function, and of one that is judged by itself.
_LINE_US, _CALL_US, _WORK_US = 0.05, 0.1, 10.0
# Sums: a function may change its name.
YOURS, OTHERS, THREADS = "(your functions)", "(other functions)", "threading"

# Whose functions take about a microsecond at most. One more call of any other of C, or of Python's
# own library, is work: of a file, a pattern, a copy, a dump.
_CHEAP = {name for name, each in vars(builtins).items() if isinstance(each, type)}.union(
    """
    builtins function generator coroutine async_generator mappingproxy types time sys abc bisect cmath codecs collections
    collections_abc contextlib contextvars Context ContextVar copyreg dataclasses enum functools heapq itertools math numbers
    operator os posixpath random re string thread typing warnings weakrefset torch triton generated pybind11_builtins
    """.split()
)
_ALWAYS_WORK = re.compile(
    r"<(time\.sleep|builtins\.(sum|sorted|print|input|exec|eval|compile|__import__)|list\.sort|re\.\w+\.\w+"
    r"|_warnings\.warn\w*|_thread\.start\w*|torch\.\S*\b(item|tolist|numpy|synchronize)"
    # switches; those of a part, such as Dynamo's, come with its work
    r"|torch(\._C)?\._?set_(?!grad_enabled)\w+)>"
    r"|threading\.Thread\.start|multiprocessing\.process\.BaseProcess\.start"
)
_OF_THREADS = re.compile(
    r"<?_?(thread(ing)?|queue|weakref(set)?|select(ors)?|signal|concurrent|multiprocessing|asyncio)\b"
)


def is_work(name: str) -> bool:
    """Return whether one more call of a function is a loss by itself."""
    module = name.lstrip("<").partition(".")[0].removeprefix("_")
    if module in _CHEAP or "." not in name or _OF_THREADS.match(name):
        return bool(_ALWAYS_WORK.fullmatch(name))
    return name.startswith("<") or module in sys.stdlib_module_names


def _sum_of(name: str) -> str:
    """Return the sum that a function belongs to: those of the user's, of a package, or of Python
    and torch.
    """
    if ".py:" in name:
        return YOURS
    package = name.partition(".")[0]
    if _OF_THREADS.match(name):
        return THREADS
    is_known = (
        name[0] in "<(" or package in sys.stdlib_module_names or package in ("torch", "generated")
    )
    return OTHERS if is_known else package


def most_called(work: Mapping[str, int]) -> dict[str, int]:
    """Return what a file keeps of `Run.host_work`: functions with a share of the calls, and sums of
    the others.
    """
    least, kept = _KEPT_SHARE * work_total(work), Counter[str]()
    for name, count in work.items():
        kept[name if count >= least or is_work(name) or name == LINES else _sum_of(name)] += count
    return dict(sorted(kept.items()))


def work_total(work: Mapping[str, int]) -> int:
    """Return how many calls there are."""
    return sum(count for name, count in work.items() if name != LINES)


def joined_work(
    sides: list[tuple[Mapping[str, int], Mapping[str, int]]],
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the work of several processes with its spread: where they differ, the most."""
    works = [Counter(work) for work, _ in sides if work]
    most = reduce(or_, works, Counter[str]())
    spread = reduce(
        or_, (*(Counter(varying) for _, varying in sides), *(most - work for work in works))
    )
    if not all(LINES in work for work in works):
        del most[LINES], spread[LINES]
    return dict(sorted(most.items())), dict(spread)


def other_calls(baseline: Baseline, run: Run) -> dict[str, int]:
    """Return how many calls more or fewer each function has, or each sum of functions, beyond what
    varies by itself.

    Another Python or torch calls others for the same work, and so does other work on the device:
    then only what Python's own library and C do beside it counts.
    """
    old, new, varying = baseline.host_work, run.host_work, baseline.host_spread
    machines = [(each.fingerprint.python, each.fingerprint.torch) for each in (baseline, run)]
    steady = sum(
        count for name, count in varying.items() if not _OF_THREADS.match(name)
    ) <= _VARIES * work_total(old)
    if not old or not new or machines[0] != machines[1] or not steady:
        return {}
    allowed = Counter(varying) | Counter(run.host_spread if varying else {})
    ops = Counter(each.name for each in run.ops if is_dispatched(each.name))
    has_other_ops = ops != baseline.ops or baseline.counts.graph_breaks != run.counts.graph_breaks
    least = _KEPT_SHARE * work_total(old)

    def counted_as(name: str) -> str:
        """Return what a call counts for: the function, or the sum that it is a part of."""
        whole = _sum_of(name)
        is_alone = name in old or whole not in old or new.get(name, 0) > least
        return (
            name
            if is_work(name) or name == LINES or (whole in (OTHERS, THREADS) and is_alone)
            else whole
        )

    moved: Counter[str] = Counter()
    limits: Counter[str] = Counter()
    for name in {*old, *new}:
        is_known = name != LINES or (name in old and name in new)
        is_left_out = (varying or run.host_spread) and _OF_THREADS.match(name) and not is_work(name)
        if is_known and not is_left_out and not (has_other_ops and _comes_with_ops(name)):
            moved[counted_as(name)] += new.get(name, 0) - old.get(name, 0)
            limits[counted_as(name)] += 2 * allowed[name]
    return {name: count for name, count in moved.items() if abs(count) > limits[name]}


def _comes_with_ops(name: str) -> bool:
    return not (is_work(name) or name == LINES or name.partition(".")[0] in sys.stdlib_module_names)


def _has_more_lines(baseline: Baseline, moved: Mapping[str, int], sign: int = 1) -> bool:
    least = max(_LEAST_LINES, _LEAST_LINES_SHARE * baseline.host_work.get(LINES, 0))
    return sign * moved.get(LINES, 0) >= least


def is_host_loss(baseline: Baseline, run: Run) -> dict[str, bool | None]:
    """Return whether the host's work is a loss, as `count_changes` does of counts; empty if it is
    the same.
    """
    moved = other_calls(baseline, run)
    least = max(_LEAST_CALLS, _LEAST_SHARE * work_total(baseline.host_work))
    sums, changed = list[int](), list[bool]()
    for sign in (1, -1):
        counts = {
            name: sign * count
            for name, count in moved.items()
            if sign * count > 0 and name != LINES
        }
        sums.append(sum(counts.values()))
        changed.append(
            sums[-1] >= least or any(map(is_work, counts)) or _has_more_lines(baseline, moved, sign)
        )
    if not any(changed):
        return {}
    is_more = changed[0] and (sums[0] > sums[1] or _has_more_lines(baseline, moved))
    return {"host_work": is_more or (None if changed[0] else False)}


def host_causes(baseline: Baseline, run: Run) -> list[tuple[Cause, Sequence[Origin]]]:
    """Return which functions are called more often, by the line of code that calls them; else the
    one that is called less.
    """
    if not is_host_loss(baseline, run):
        return []
    moved, old, new = other_calls(baseline, run), baseline.host_work, run.host_work
    if not _has_more_lines(baseline, moved):
        moved.pop(LINES, None)
    places: dict[object, list[str]] = {}
    for name in dict.fromkeys((*run.host_work_origins, *new)):
        if new.get(name, 0) > old.get(name, 0) and (name in moved or _sum_of(name) in moved):
            lines = [origin.lines for origin in run.host_work_origins.get(name, ())]
            places.setdefault(lines[0] if lines else (), []).append(name)
    causes = [_cause(names, baseline, run) for names in places.values()]
    if not causes:
        fewer = max(moved, key=lambda name: -moved[name])
        return [(Cause(HostCalls(fewer, old.get(fewer), new.get(fewer, 0))), ())]
    dearest = max(cause.weight_us for cause, _ in causes)
    return [each for each in causes if each[0].weight_us >= _NAMED_SHARE * dearest]


def _cause(names: Sequence[str], baseline: Baseline, run: Run) -> tuple[Cause, Sequence[Origin]]:
    """Return what is called more often at one line: the first function, and how many calls there
    are in all.
    """
    old, new = baseline.host_work, run.host_work
    more = {name: new[name] - old.get(name, 0) for name in names}
    costs = {
        name: _WORK_US if is_work(name) else _LINE_US if name == LINES else _CALL_US
        for name in names
    }
    us = sum(costs[name] * count for name, count in more.items())
    is_loop = 2 * _LINE_US * more.get(LINES, 0) >= us
    name = LINES if is_loop else max(names, key=lambda name: (is_work(name), ".py:" in name))
    is_in_sum = name not in old and not is_work(name) and _sum_of(name) in old
    before = None if is_in_sum else old.get(name, 0)
    change = HostCalls(name, before, new[name], sum(more.values()))
    return Cause(change, weight_us=us), run.host_work_origins.get(name, ())[:1]
