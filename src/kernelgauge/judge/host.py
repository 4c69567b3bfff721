"""What the host does in a call beside its ops: functions that it calls more often than in the
baseline, and their lines.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from ..run import LINES, OF_RUNTIME, OF_SESSION, OF_THREADS, Origin, Run
from ..trace import is_dispatched
from .evidence import Cause, HostCalls

if TYPE_CHECKING:
    from .baseline import Baseline

# Calls of functions that are more than this, and than this share of all, are more work. An
# unchanged call makes the same ones.
_LEAST_CALLS, _LEAST_SHARE = 10, 0.05
_LEAST_LINES, _LEAST_LINES_SHARE = 100, 0.10  # that run, of the user's code: a loop
# What one more op, kernel or graph break brings along: 68 calls at most, of `torch.func.vmap`, among
# 24 kinds of ops (torch 2.13).
_CALLS_OF_AN_OP = 100
_VARIES = 0.05  # calls that vary by this share from call to call are not compared
# of all calls: functions with fewer are one sum in a file. A whole model calls some hundred
_KEPT_SHARE = 1 / 200
_NAMED_SHARE = 0.10  # of what is more, at one line
# For the order of causes alone: of a line, of any function, and of one that is judged by itself.
_LINE_US, _CALL_US, _WORK_US = 0.05, 0.1, 10.0
# Beside an op of 1 us or more, a call of a function of yours, or of one of C that takes so long under
# the counter, is little: `list.append` takes 0.1 us. So are two lines.
_SHORT_US, _LINES_OF_AN_OP = 0.25, 2
# A call of a function of C that takes so long under the counter is work. `posix.fspath` takes 0.1 us,
# `sorted` of three numbers 0.7, `str.split` of 300 words 6. Beside three or four busy jobs on two
# cores, 369 cheap calls take 2.4 at most in each of eight processes (tests/plugin/host_costs.py).
_WORK_LEAST_US = 3.0
# Sums: a function may change its name.
YOURS, OTHERS, THREADS = "(your functions)", "(other functions)", "threading"

# Short as they may be, they wait for others, or change how all that follows runs.
_ALWAYS_WORK = re.compile(
    r"<(time\.sleep|_warnings\.warn|(\w+: )?_thread\.start\w*"
    r"|(posix|_socket|function socket)\.(?!fspath)[\w.]+"  # calls of the system
    r"|torch\.\S*\b(item|tolist|numpy|synchronize)"
    # switches; those of a part, such as Dynamo's, come with its work
    r"|torch(\._C)?\._?set_(?!grad_enabled)\w+)>"
    r"|json\.(dump|load)s?"  # they call an encoder in C that no profiler sees
)


def is_work(name: str, us: Mapping[str, float]) -> bool:
    """Return whether one more call of a function is a loss by itself.

    `us`: how long a call takes, as `Run.host_us` has it.
    """
    is_long = _is_of_c(name) and us.get(name, 0.0) >= _WORK_LEAST_US
    return is_long or bool(_ALWAYS_WORK.fullmatch(name) or OF_SESSION.match(name))


def _is_of_c(name: str) -> bool:
    """Return whether a function is written in C, and neither handles threads nor runs ops."""
    is_known = OF_RUNTIME.match(name) or OF_THREADS.match(name)
    return name.startswith("<") and not is_known


def _is_short(name: str, us: Mapping[str, float]) -> bool:
    return name == YOURS or (_is_of_c(name) and us.get(name, 0.0) <= _SHORT_US)


def _is_of_python(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _has_own_count(name: str, us: Mapping[str, float]) -> bool:
    """Return whether a function is no part of a sum, however seldom it is called."""
    return is_work(name, us) or (_is_of_python(name) and not OF_THREADS.match(name))


def _sum_of(name: str) -> str:
    """Return the sum that a function belongs to: those of the user's, of a package, or of Python
    and torch.
    """
    if ".py:" in name:
        return YOURS
    package = name.partition(".")[0]
    if OF_THREADS.match(name):
        return THREADS
    is_known = name[0] in "<(" or package in ("torch", "generated") or _is_of_python(name)
    return OTHERS if is_known else package


def most_called(work: Mapping[str, int]) -> dict[str, int]:
    """Return what a file keeps of `Run.host_work`: functions with a share of the calls, and sums of
    the others.
    """
    least, kept = _KEPT_SHARE * work_total(work), Counter[str]()
    for name, count in work.items():
        is_kept = count >= least or _has_own_count(name, {}) or _is_of_c(name) or name == LINES
        kept[name if is_kept else _sum_of(name)] += count
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

    Another Python or torch calls others for the same work. Other work on the device brings calls
    along: only more than that counts then, but for Python's own library and C.
    """
    old, new, us, varying = baseline.host_work, run.host_work, run.host_us, baseline.host_spread
    machines = [(each.fingerprint.python, each.fingerprint.torch) for each in (baseline, run)]
    steady = sum(
        count for name, count in varying.items() if not OF_THREADS.match(name)
    ) <= _VARIES * work_total(old)
    if not old or not new or machines[0] != machines[1] or not steady:
        return {}
    allowed = Counter(
        {name: max(each, run.host_spread.get(name, 0)) for name, each in varying.items()}
    )
    brought = _CALLS_OF_AN_OP * _new_ops(baseline, run)
    least = _KEPT_SHARE * work_total(old)

    def counted_as(name: str) -> str:
        """Return what a call counts for: the function, or the sum that it is a part of."""
        whole = _sum_of(name)
        is_alone = whole not in old or max(old.get(name, 0), new.get(name, 0)) >= least
        return (
            name
            if _has_own_count(name, us)
            or name == LINES
            or (whole in (OTHERS, THREADS) and is_alone)
            else whole
        )

    moved: Counter[str] = Counter()
    limits: Counter[str] = Counter()
    for name in {*old, *new}:
        is_known = name != LINES or (name in old and name in new)
        is_of_threads = bool(OF_THREADS.match(name)) and not is_work(name, us)
        if is_known and not ((varying or run.host_spread) and is_of_threads):
            counted = _sum_of(name) if brought and _comes_with_ops(name, us) else counted_as(name)
            moved[counted] += new.get(name, 0) - old.get(name, 0)
            limits[counted] += 2 * allowed[name]
    for name in moved if brought else ():
        if _comes_with_ops(name, us):
            moved[name] = max(0, moved[name] - brought)
    return {name: count for name, count in moved.items() if abs(count) > limits[name]}


def _new_ops(baseline: Baseline, run: Run) -> int:
    """Return how many ops, kernels and graph breaks are other ones than in the baseline; 0: none."""
    ops = Counter(each.name for each in run.ops if is_dispatched(each.name))
    breaks = run.counts.graph_breaks - baseline.counts.graph_breaks
    if ops == baseline.ops and not breaks:
        return 0
    kernels, usual = (
        Counter(each.identity.name for each in side)
        for side in (run.kernels, baseline.entries[0].kernels)
    )
    return max(1, (ops - Counter(baseline.ops)).total() + (kernels - usual).total() + abs(breaks))


def _comes_with_ops(name: str, us: Mapping[str, float]) -> bool:
    return not (is_work(name, us) or name == LINES or _is_of_python(name))


def _beside_ops(baseline: Baseline) -> int:
    """Return how often a call can come with each run of an op, and no more: with the most frequent."""
    return max((n for name, n in baseline.ops.items() if is_dispatched(name)), default=0)


def _has_more_lines(baseline: Baseline, moved: Mapping[str, int], sign: int = 1) -> bool:
    least = max(
        _LEAST_LINES,
        _LEAST_LINES_SHARE * baseline.host_work.get(LINES, 0),
        _LINES_OF_AN_OP * _beside_ops(baseline),
    )
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
        short = sum(count for name, count in counts.items() if _is_short(name, run.host_us))
        sums.append(sum(counts.values()) - min(short, _beside_ops(baseline)))
        changed.append(
            sums[-1] >= least
            or any(is_work(name, run.host_us) for name in counts)
            or _has_more_lines(baseline, moved, sign)
        )
    if not any(changed):
        return {}
    is_more = changed[0] and (sums[0] > sums[1] or _has_more_lines(baseline, moved))
    return {"host_work": is_more or (None if changed[0] else False)}


def host_causes(baseline: Baseline, run: Run) -> list[tuple[Cause, Sequence[Origin]]]:
    """Return which functions are called more often, by the line of code that calls them; else the
    one that is called less.
    """
    if not (loss := is_host_loss(baseline, run)):
        return []
    moved, old, new = other_calls(baseline, run), baseline.host_work, run.host_work
    if not any(_has_more_lines(baseline, moved, sign) for sign in (1, -1)):
        moved.pop(LINES, None)
    places: dict[object, list[str]] = {}
    for name in dict.fromkeys((*run.host_work_origins, *new)):
        is_more = moved.get(name, moved.get(_sum_of(name), 0)) > 0  # of a sum no part is known
        if new.get(name, 0) > old.get(name, 0) and is_more:
            lines = [origin.lines for origin in run.host_work_origins.get(name, ())]
            places.setdefault(lines[0] if lines else (), []).append(name)
    causes = [_cause(names, baseline, run) for names in places.values()]
    if not causes or loss["host_work"] is False:
        fewer = max(moved, key=lambda name: -moved[name])
        return [(Cause(HostCalls(fewer, old.get(fewer), new.get(fewer, 0))), ())]
    dearest = max(cause.weight_us for cause, _ in causes)
    return [each for each in causes if each[0].weight_us >= _NAMED_SHARE * dearest]


def _specificity(name: str, us: Mapping[str, float]) -> int:
    """Return how much a function says of its line: a switch of torch more than the ``with`` around
    it, and a ``<listcomp>`` less than what it calls.
    """
    if name.endswith(">") and not name.startswith("<"):
        return 0
    if name.startswith("<torch") and is_work(name, us):
        return 4
    return 3 if _has_own_count(name, us) else 1 + (".py:" in name)


def _cause(names: Sequence[str], baseline: Baseline, run: Run) -> tuple[Cause, Sequence[Origin]]:
    """Return what is called more often at one line: the first function, and how many calls there
    are in all.
    """
    old, new, us = baseline.host_work, run.host_work, run.host_us
    more = {name: new[name] - old.get(name, 0) for name in names}
    costs = {
        name: us.get(
            name, _WORK_US if is_work(name, us) else _LINE_US if name == LINES else _CALL_US
        )
        for name in names
    }
    cost_us = sum(costs[name] * count for name, count in more.items())
    is_loop = 2 * _LINE_US * more.get(LINES, 0) >= cost_us
    name = LINES if is_loop else max(names, key=lambda name: _specificity(name, us))
    is_in_sum = (
        name not in old
        and not (_has_own_count(name, us) or _is_of_c(name))
        and _sum_of(name) in old
    )
    before = None if is_in_sum else old.get(name, 0)
    change = HostCalls(name, before, new[name], sum(more.values()))
    return Cause(change, weight_us=cost_us), run.host_work_origins.get(name, ())[:1]
