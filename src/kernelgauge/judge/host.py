"""What the host does in a call beside its ops: functions that it calls more often than in the
baseline, and their lines.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import msgspec

from ..run import LINES, OF_CLOCK, OF_RUNTIME, OF_SESSION, OF_THREADS, Origin, Run
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
_VARIES = 0.05  # lines are not compared where calls vary by more than this share from call to call
# of all calls: functions of torch and C with fewer are judged as one sum
_LEAST_ALONE = 1 / 200
_NAMED_SHARE = 0.10  # of what is more, at one line
# For the order of causes alone: of a line, of any function, and of one that is judged by itself.
_LINE_US, _CALL_US, _WORK_US = 0.05, 0.1, 10.0
# Beside an op of 1 us or more, a call of a function of yours is little, or of one of these: whatever
# they are given, they take 0.1 us. A clock would tell some of them from others by chance. So are two
# lines.
_SHORT = re.compile(
    r"<(_abc\._abc_(instance|subclass)check|builtins\.(callable|getattr|hasattr|id|isinstance|issubclass|iter|len|setattr)"
    r"|(collections\.deque|dict|set)\.(add|append|get|items|keys|pop|popleft|values)|list\.append"
    r"|math\.(ceil|exp|floor|is\w+|log2?|sqrt)|str\.(ends|starts)with"
    r"|time\.(monotonic|perf_counter|time)(_ns)?)>"
)
_LINES_OF_AN_OP = 2
_LINES_OF_A_CALL = 10  # more lines than so many for each new call of your functions: a loop
# A call of a function of C that takes so long under the counter is work. `posix.fspath` takes 0.1 us,
# `sorted` of three numbers 0.7, `str.split` of 300 words 6. Beside three or four busy jobs on two
# cores, 369 cheap calls take 2.4 at most in each of eight processes (tests/plugin/host_costs.py).
_WORK_LEAST_US = 3.0
# Sums: a function may change its name.
YOURS, OTHERS, THREADS = "(your functions)", "(other functions)", "threading"

_READS = r"torch\.\S*\b(item|tolist|numpy)"  # the numbers of a tensor
# Short as they may be, they wait for others, or change how all that follows runs.
_ALWAYS_WORK = re.compile(
    r"<(time\.sleep|_warnings\.warn|(\w+: )?_thread\.start\w*"
    r"|(posix|_socket|function socket)\.(?!fspath)[\w.]+"  # calls of the system
    rf"|{_READS}|torch\.\S*(synchronize|emptyCache)"
    r"|\S+\.cuda[A-Z]\w+"  # of CUDA's runtime
    # switches; those of a part, such as Dynamo's, come with its work
    r"|torch(\._C)?\._?set_(?!grad_enabled)\w+)>"
    r"|json\.(dump|load)s?"  # they call an encoder in C that no profiler sees
)

# The time of these is that of the op that an operator runs, as in ``abs(x)``.
_OPERATORS = re.compile(r"<(_operator\.\w+|builtins\.(abs|divmod|pow|round))>")
# A library's functions that look an attribute or a class up: they call a dozen others for one
# ``self.seen = 3``.
_LOOKUPS = re.compile(r"(?!.*\.py:).*\.__((del|get|set)attr|instancecheck)__")


def is_work(name: str, us: Mapping[str, float]) -> bool:
    """Return whether one more call of a function is a loss by itself.

    `us`: how long a call takes, as `Run.host_us` has it.
    """
    is_known = _is_of_c(name) and not _SHORT.fullmatch(name)
    is_long = is_known and us.get(name, 0.0) >= _WORK_LEAST_US
    return is_long or bool(_ALWAYS_WORK.fullmatch(name) or OF_SESSION.match(name))


def reads_tensor(name: str) -> bool:
    """Return whether a function gives the numbers of a tensor to Python, by ops that no line names."""
    return bool(re.fullmatch(f"<{_READS}>", name))


def _is_of_c(name: str) -> bool:
    """Return whether a function is written in C, and neither handles threads nor runs ops."""
    is_known = OF_RUNTIME.match(name) or OF_THREADS.match(name) or _OPERATORS.fullmatch(name)
    return name.startswith("<") and not is_known


def _short_calls(counts: Mapping[str, int]) -> int:
    """Return how many calls there are of the most frequent short function: yours are one."""
    short: Counter[str] = Counter()
    for name, count in counts.items():
        if name == YOURS or _is_yours(name) or _SHORT.fullmatch(name):
            short[name if name[0] == "<" else YOURS] += count
    return max(short.values(), default=0)


def _is_yours(name: str) -> bool:
    return ".py:" in name


def _is_of_python(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _has_own_count(name: str, us: Mapping[str, float]) -> bool:
    """Return whether a function is no part of a sum, however seldom it is called."""
    return is_work(name, us) or (_is_of_python(name) and not OF_THREADS.match(name))


def _sum_of(name: str) -> str:
    """Return the sum that a function belongs to: those of the user's, of a package, or of Python
    and torch.
    """
    if _is_yours(name):
        return YOURS
    package = name.partition(".")[0]
    if OF_THREADS.match(name):
        return THREADS
    is_known = name[0] == "<" or package in ("torch", "generated") or _is_of_python(name)
    return OTHERS if is_known else package


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


def _is_same_software(baseline: Baseline, run: Run) -> bool:
    old, new = baseline.fingerprint, run.fingerprint
    return (old.python, old.torch) == (new.python, new.torch)


def is_no_longer_counted(baseline: Baseline, run: Run) -> bool:
    """Return whether a run lacks the host work of its baseline, and no other software explains it."""
    return bool(baseline.host_work) and not run.host_work and _is_same_software(baseline, run)


def varies_much(baseline: Baseline) -> bool:
    """Return whether so many calls vary that the lines do too."""
    varying = sum(
        -count if name == OF_CLOCK else count
        for name, count in baseline.host_spread.items()
        if not OF_THREADS.match(name)
    )
    return varying > _VARIES * work_total(baseline.host_work)


def unseen_in(baseline: Baseline, run: Run) -> str:
    """Return what of the host's work is not compared, and why; empty if all is."""
    if not (baseline.host_work and run.host_work and varies_much(baseline)):
        return ""
    return (
        f"host work was compared in part: more than {100 * _VARIES:g} % of the calls vary in the "
        "baseline, so lines of your code are not compared, nor are calls within that range"
    )


def other_calls(baseline: Baseline, run: Run) -> dict[str, int]:
    """Return how many calls more or fewer each function has, or each sum of functions, beyond what
    varies by itself in the baseline.

    A function that varies there excuses no other, and is part of a sum only if it is gone: another
    may stand in for it. What varies in the run alone excuses nothing but threads that were there.

    Another Python or torch calls others for the same work. Other work on the device brings calls
    along: only more than that counts then, but for Python's own library and C.
    """
    old, new, us, varying = baseline.host_work, run.host_work, run.host_us, baseline.host_spread
    if not old or not new or not _is_same_software(baseline, run):
        return {}
    has_chance = any(map(OF_THREADS.match, old)) and any(
        map(OF_THREADS.match, (*varying, *run.host_spread))
    )
    inner = _calls_of_lookups(old, run)
    brought = _CALLS_OF_AN_OP * _new_ops(baseline, run)
    least = _LEAST_ALONE * work_total(old)

    def counted_as(name: str) -> str:
        """Return what a call counts for: the function, or the sum that it is a part of."""
        whole = _sum_of(name)
        is_alone = max(old.get(name, 0), new.get(name, 0)) >= least
        return (
            name
            if _has_own_count(name, us)
            or name == LINES
            or _is_excused(name, baseline, run)
            or (whole in (OTHERS, THREADS) and is_alone)
            else whole
        )

    moved: Counter[str] = Counter()
    limits: Counter[str] = Counter()
    for name in {*old, *new}:
        is_known = name != LINES or (name in old and name in new and not varies_much(baseline))
        is_of_threads = bool(OF_THREADS.match(name)) and not is_work(name, us)
        if is_known and not (has_chance and is_of_threads):
            is_sum = brought and _comes_with_ops(name, us) and not _is_excused(name, baseline, run)
            counted = _sum_of(name) if is_sum else counted_as(name)
            moved[counted] += new.get(name, 0) - old.get(name, 0) - inner[name]
            limits[counted] += 2 * varying.get(name, 0)
    for name in moved if brought else ():
        if _comes_with_ops(name, us):
            moved[name] = max(0, moved[name] - brought)
    return {name: count for name, count in moved.items() if abs(count) > limits[name]}


def _calls_of_lookups(old: Mapping[str, int], run: Run) -> Counter[str]:
    """Return how many of its new calls a function has from a lookup: a part of one call."""
    more = Counter(run.host_work) - Counter(old)
    lookups = {name for name in more if _LOOKUPS.fullmatch(name)}
    own = _own_calls(more, lookups, run) if lookups else more
    return Counter(
        {
            name: count - own[name] * (not name.endswith("__instancecheck__"))
            for name, count in more.items()
            if not is_work(name, run.host_us)
        }
    )


def _is_excused(name: str, baseline: Baseline, run: Run) -> bool:
    return name in baseline.host_spread and name in run.host_work


def _new_ops(baseline: Baseline, run: Run) -> int:
    """Return how many ops, kernels and graph breaks are other ones than in the baseline; 0: none."""
    ops = Counter(each.name for each in run.ops if is_dispatched(each.name))
    breaks = run.counts.graph_breaks - baseline.counts.graph_breaks
    if ops == baseline.ops and not breaks:
        return 0
    kernels, usual = (
        Counter(each.identity.name for each in side) for side in (run.kernels, baseline.kernels)
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
        sums.append(sum(counts.values()) - min(_short_calls(counts), _beside_ops(baseline)))
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
    by = {
        name: (new.get(name, 0) - old.get(name, 0), moved.get(name, moved.get(_sum_of(name), 0)))
        for name in dict.fromkeys((*run.host_work_origins, *new, *old))
        if name in moved or not _is_excused(name, baseline, run)
    }
    more = {name: count for name, (count, of_sum) in by.items() if count > 0 < of_sum}
    if not more or loss["host_work"] is False:
        fewer = min(by, key=lambda name: by[name][0] if by[name][1] < 0 else 0)
        return [(Cause(HostCalls(fewer, old.get(fewer, 0), new.get(fewer, 0))), ())]
    calls = sum(count for name, count in more.items() if _is_yours(name))
    causes = [_cause(place, baseline, run) for place in _places(more, baseline, run)]
    if more.get(LINES, 0) <= _LINES_OF_A_CALL * calls:  # they run since functions are called
        of_lines = [each for each in causes if getattr(each[0].change, "function", "") == LINES]
        causes = [each for each in causes if each not in of_lines]
        least_us = min((cause.weight_us for cause, _ in causes), default=math.inf)
        for cause, origins in of_lines:
            us = min(cause.weight_us, least_us)
            causes.append((msgspec.structs.replace(cause, weight_us=us), origins))
    dearest = max(cause.weight_us for cause, _ in causes)
    return [each for each in causes if each[0].weight_us >= _NAMED_SHARE * dearest]


def with_needed_callers(run: Run, baseline: Baseline) -> Run:
    """Return a run with the callers of those functions alone that it calls more often than the
    baseline: no others choose a line.
    """
    more = Counter(run.host_work) - Counter(baseline.host_work)
    callers = {name: run.host_work_callers[name] for name in more if name in run.host_work_callers}
    return msgspec.structs.replace(run, host_work_callers=callers)


def _specificity(name: str, us: Mapping[str, float], called: AbstractSet[str]) -> int:
    """Return how much a function says of its line: a switch of torch more than the ``with`` around
    it, and a ``<listcomp>`` less than what it calls.

    `called`: functions that the line itself calls.
    """
    if name.endswith(">") and not name.startswith("<"):
        return 0
    if name.startswith("<torch") and is_work(name, us):
        return 4
    if name not in called and not _is_yours(name):
        return 0
    return 3 if _has_own_count(name, us) else 1 + _is_yours(name)


def _own_calls(more: Mapping[str, int], makers: AbstractSet[str], run: Run) -> dict[str, int]:
    """Return how many of its new calls are not made inside new calls of the `makers`.

    These make their share of the calls; and one each, if nothing else can have made them.
    """
    own = {}
    for name, count in more.items():
        made = {
            caller: n
            for caller, n in run.host_work_callers.get(name, {}).items()
            if caller in makers
        }
        by_share = sum(n * more[caller] / run.host_work[caller] for caller, n in made.items())
        one_each = sum(min(n, more[caller]) for caller, n in made.items())
        by_others = run.host_work[name] - sum(made.values())
        own[name] = max(0, round(count - max(by_share, min(one_each, count - by_others))))
    return own


def _places(
    more: Mapping[str, int], baseline: Baseline, run: Run
) -> list[tuple[Sequence[Origin], Counter[str], set[str]]]:
    """Return the lines that make new calls, how many of each function, and which functions they
    call themselves.

    What a new call makes belongs to its line. A function of the user's that did not run before is
    new code, and what its lines call belongs to them.
    """
    callers = run.host_work_callers
    makers = {each for each in more if each in baseline.host_work or not _is_yours(each)}
    own = _own_calls(more, makers, run)

    def root_of(name: str) -> str:
        """Return the function that the user's code calls anew, and that calls this one."""
        found = [name]
        for each in found:  # it grows
            by = callers.get(each, {})
            if each != name and own[each] and any(map(_is_yours, by)):
                return each
            found += [caller for caller in by if caller in makers and caller not in found]
        return name

    def line_of(name: str) -> Sequence[Origin]:
        """Return the line that makes as many calls as are new, else the most frequent one."""
        origins = run.host_work_origins.get(name, ())
        return [each for each in origins if 0 < own[name] == each.calls][:1] or origins[:1]

    places: dict[object, tuple[Sequence[Origin], Counter[str], set[str]]] = {}
    for is_own in (True, False):
        for name in more:
            if calls := own[name] if is_own else more[name] - own[name]:
                origins = line_of(root := name if is_own else root_of(name))
                key = origins[0].lines if origins else ()
                _, counts, called = places.setdefault(key, (origins, Counter(), set()))
                counts[name] += calls
                called |= {name} & {root}
    return list(places.values())


def _cause(
    place: tuple[Sequence[Origin], Counter[str], set[str]], baseline: Baseline, run: Run
) -> tuple[Cause, Sequence[Origin]]:
    """Return what is called more often at one line: the first function, and how many calls there
    are in all.
    """
    (origins, more, called), us = place, run.host_us
    costs = {
        name: us.get(
            name, _WORK_US if is_work(name, us) else _LINE_US if name == LINES else _CALL_US
        )
        for name in more
    }
    cost_us = sum(costs[name] * count for name, count in more.items())
    is_loop = 0 < more[LINES] >= cost_us / (2 * _LINE_US)  # a call may take 0.0 us
    name = LINES if is_loop else max(more, key=lambda name: _specificity(name, us, called))
    change = HostCalls(name, baseline.host_work.get(name, 0), run.host_work[name], more.total())
    lines = [each.lines for each in origins]
    of_name = [each for each in run.host_work_origins.get(name, ()) if [each.lines] == lines]
    return Cause(change, weight_us=cost_us), of_name or origins
