"""What the host does in a call, counted: calls of functions of Python and C, and lines of the
user's code. No clock has a part.

`cProfile` counts in C: it disturbs neither Dynamo nor the call. Work within one function of C is
not seen.
"""

from __future__ import annotations

import ast
import builtins
import cProfile
import linecache
import math
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, reduce
from importlib.util import resolve_name
from operator import itemgetter, or_
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple, TypeVar, cast

from ..errors import is_profiled, shown_path
from ..run import (
    LINES,
    OF_CLOCK,
    OF_RUNTIME,
    OF_SESSION,
    OF_THREADS,
    RUN_OF_CALLS,
    Origin,
    SourceLine,
)
from .compiler import Owner, owner_of, source_line, statements
from .device import Device
from .instance import Instance, collector_paused
from .nvml import digest
from .reach import attributes_of, is_a

_K = TypeVar("_K")
Class = tuple[str, str]  # its file, and its name
_MOST_EVENTS = 1_000_000  # lines that run: a loop of more is as long as that
# One call pauses beside each look at a clock, and for so long in all: a progress bar refreshes each
# 0.1 s.
_PAUSE_S, _PAUSES_S = 0.1, 2.0
_CLOCKS = re.compile(r"<time\.(monotonic|perf_counter|time)(_ns)?>")
# What `_cheap_calls` take at most in nine of ten of 147 workloads, on a quiet AMD EPYC (torch 2.13).
_CHEAP_US = 5.5
_MOST_LINES = 2  # of code that call a function, the most frequent first
# Once it is imported, it wraps functions that run eagerly: `torch.manual_seed`, those of einops.
_OF_DYNAMO = re.compile(r"torch\.(_dynamo|_compile)\.")
_OF_COMPILER = ("__compiled_fn", "__resume_at")  # names that Dynamo gives, with numbers
_OF_INDUCTOR = re.compile(r"\bc[a-z2-7]{51}\.")  # a module of C++ that it compiled
_COMPREHENSION = re.compile(r"(\.<locals>)?\.<(genexpr|\w+comp)>$")
_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith)
_PATH = re.compile(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")  # ``settings.max_size.value``
_SUPER = "super"  # in `_Source.defined`: calls of another constructor, with the defaults in them
_MOST_IMPORTS = 3  # of one name, from package to package
_MOST_STEPS = 3  # from a statement to what gives it a value: a method of a class, and its attribute
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PARTS, _NUMBERS = re.compile(r"[.:]"), re.compile(r"[\d_]+")
_SHOWN_AS = (
    (re.compile(r"<built-in method (\S+) of (\S+) object.*>"), r"<\2.\1>"),
    (re.compile(r"<built-in (?:method|function) (\S+)>"), r"<\1>"),
    (re.compile(r"<(?:method|slot wrapper) '(\w+)' of '(\S+)' objects>"), r"<\2.\1>"),
)


@dataclass(frozen=True)
class HostWork:
    """How often each function runs in a call, by its name, and how far this varies; empty: not
    counted, and why.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    spread: Mapping[str, int] = field(default_factory=dict)  # between calls, of those that vary
    # by the name, as `short` has it
    origins: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    us: Mapping[str, float] = field(default_factory=dict)  # that a call of a function of C takes
    # of each function, and how often each calls it
    callers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # how often each line of the user's code runs, by its code; empty: not counted
    lines: Mapping[str, int] = field(default_factory=dict)
    functions: str = ""  # as `Run.functions`
    problem: str = ""

    def with_runs(self, known: Mapping[str, int]) -> dict[str, int]:
        """Return how often lines run, by their code: as counted here, else as is known."""
        return {code: self.lines.get(code, runs) for code, runs in sorted(known.items())}

    def that_run(
        self, own: Mapping[str, Sequence[SourceLine]], used: Mapping[str, Sequence[SourceLine]]
    ) -> dict[str, tuple[SourceLine, ...]]:
        """Return the statements of functions without those that did not run, where that is known; and
        what they use of other functions, and outside of functions.
        """
        every = {each for statements in own.values() for each in statements}
        ran = {
            at: tuple(
                each
                for each in statements
                if not self.lines or each.code in self.lines or each.code.startswith(("def ", "@"))
            )
            for at, statements in own.items()
        }
        rest = {at: tuple(each) for at, each in used.items() if at not in own}
        return rest | {
            at: (*each, *(it for it in used.get(at, ()) if it not in every))
            for at, each in ran.items()
        }

    def located(self, calls: Mapping[str, tuple[Origin, ...]]) -> dict[str, tuple[Origin, ...]]:
        """Return where each function is called.

        `calls`: where a profiler has seen it, with the line; in their order.
        """
        known = {
            **calls,
            **{name: each for name, each in self.origins.items() if name not in calls},
        }
        places = {name: place for place, name in enumerate(known)}
        names = sorted(self.counts, key=lambda name: places.get(short(name), len(places)))
        return {name: known[short(name)] for name in names if short(name) in known}


def host_work_of(instance: Instance, device: Device, *, is_compiled: bool) -> HostWork:
    """Count the functions of a few more calls, and the lines of as many.

    `is_compiled`: lines would make Dynamo compile anew.
    """
    problem = "host work was not counted"
    if is_profiled():
        return HostWork(problem=f"{problem}: a profiler of Python runs")
    try:
        return _host_work(instance, device, is_compiled=is_compiled)
    except Exception as error:  # a call that profiles itself, say
        return HostWork(problem=f"{problem}: {type(error).__name__}: {error}")


def _host_work(instance: Instance, device: Device, *, is_compiled: bool) -> HostWork:
    every, origins = list[Counter[str]](), dict[str, tuple[Origin, ...]]()
    us, cheap_us = dict[str, float](), math.inf
    callers: dict[str, dict[str, int]] = {}
    versioned: set[tuple[str, str]] = set()
    for number in range(2 * RUN_OF_CALLS):
        if number == RUN_OF_CALLS == every.count(every[0]):
            break
        with _calling(instance, device):
            entries, cheap = _entries(instance.call), _entries(_cheap_calls)
        cheap_us = min(cheap_us, sum(_times_us(cheap).values()))
        counts, found = _read(entries)
        origins |= found
        callers |= _callers(entries)
        versioned |= {
            (_name(each.code), repr(_content(each.code)))
            for each in entries
            if _is_versioned(each.code)
        }
        every.append(counts)
        for name, each in _times_us(entries).items():  # a clock errs upwards
            us[name] = min(each, us.get(name, each))
    slowness = max(1.0, cheap_us / _CHEAP_US)
    us = {name: round(each / slowness, 1) for name, each in us.items()}
    # A rarer cost than that of each fifth call may be in none next time.
    most = _second_most(every)
    # One that is as rare may be of another thread: from Python 3.12 on, they are counted, too.
    codes = {content for name, content in versioned if not name or name in most}
    spread = reduce(or_, (most - counts for counts in every))
    spread |= _spread_by_clock(instance, device, most, entries)
    runs: Counter[str] = Counter()
    is_whole = True
    if not is_compiled and sys.gettrace() is None:
        traced, is_whole = _traced_calls(instance, device)
        lines = _second_most(traced)
        codes |= {f"{code.co_name} {counts}" for code, counts in _by_code(lines)}
        # of a call: two of them may take other branches
        most[LINES] = _second_most([Counter({LINES: each.total()}) for each in traced])[LINES]
        for (code, number), count in lines.items():
            runs[source_line(code.co_filename, number).code] += count
        # a lost cache is at the head of the function, and not in its dearest line
        origins[short(LINES)] = tuple(
            Origin(_shown_function(code), (source_line(code.co_filename, number),))
            for (code, number), _ in lines.most_common(_MOST_LINES)
        )
    functions = digest(repr(sorted(codes))) if is_whole else ""
    return HostWork(most, spread, origins, us, callers, runs, functions)


def _spread_by_clock(
    instance: Instance, device: Device, usual: Mapping[str, int], entries: list[Any]
) -> Counter[str]:
    """Return how many calls more or fewer each function has where those that read a clock are
    slower; their sum as `OF_CLOCK`, unless the user's code itself calls others.
    """
    reading = [
        each
        for each in entries
        if any(_CLOCKS.fullmatch(_name(called.code)) for called in each.calls or ())
    ]
    events = sum(2 * it.callcount for each in reading for it in (each, *each.calls))
    if not events:
        return Counter()
    codes, pause_s = {id(each.code) for each in reading}, min(_PAUSE_S, _PAUSES_S / events)

    def timer() -> float:  # which `cProfile` asks at each call and return
        if id(sys._getframe(1).f_code) in codes:
            time.sleep(pause_s)
        return time.perf_counter()

    slow: list[Any] = []
    with suppress(Exception), _calling(instance, device):  # it may have a time limit
        slow = _entries(instance.call, timer)
    if not slow:
        return Counter()
    counts = _read(slow)[0]
    spread = Counter({it: abs(counts[it] - usual.get(it, 0)) for it in {*counts, *usual}})
    of_user = (
        {(name, by): n for name, each in side.items() for by, n in each.items() if ".py:" in by}
        for side in map(_callers, (entries, slow))
    )
    if next(of_user) == next(of_user):
        spread[OF_CLOCK] = sum(n for name, n in spread.items() if not OF_THREADS.match(name))
    return +spread


def _second_most(every: Sequence[Counter[_K]]) -> Counter[_K]:
    """Return the second most of several calls, by key: a cost in each fifth is in two of ten."""
    names = reduce(or_, every)
    return +Counter({name: sorted(each[name] for each in every)[-2:][0] for name in names})


def _traced_calls(
    instance: Instance, device: Device
) -> tuple[list[Counter[tuple[CodeType, int]]], bool]:
    """Return how often each line runs in a few calls, and whether they were traced to their end.

    No call follows those that have run as many lines as may be traced in all.
    """
    every = list[Counter[tuple[CodeType, int]]]()
    for number in range(2 * RUN_OF_CALLS):
        is_dear = number * max((each.total() for each in every), default=0) > _MOST_EVENTS
        if is_dear or number == RUN_OF_CALLS == every.count(every[0]):
            break
        with _calling(instance, device), _tracing() as lines:
            instance.call()
            is_whole = sys.gettrace() is not None
        every.append(lines)
        if not is_whole:
            break
    return every, is_whole


def _by_code(lines: Mapping[tuple[CodeType, int], int]) -> Iterator[tuple[CodeType, list[int]]]:
    """Yield how often the lines of each function ran, in their order: comments move them."""
    found = defaultdict[CodeType, list[int]](list)
    for code, number in sorted(lines, key=itemgetter(1)):
        found[code].append(lines[code, number])
    yield from found.items()


def _shown_function(code: CodeType) -> str:
    """Return ``Net.forward()``, also for a comprehension in it; empty before Python 3.11."""
    parts = getattr(code, "co_qualname", "").split(".")
    name = ".".join(each for each in parts if not each.startswith("<"))
    return name and f"{name}()"


@contextmanager
def _calling(instance: Instance, device: Device) -> Iterator[None]:
    instance.prepare()
    device.synchronize()
    with collector_paused():
        yield
        device.synchronize()


def _entries(call: Callable[[], object], timer: Callable[[], float] | None = None) -> list[Any]:
    """Return what `cProfile` counts of a call, in this thread and in those that start in it."""
    profiles = [cProfile.Profile(timer) if timer else cProfile.Profile()]
    before = threading.getprofile()

    def start(*_: object) -> None:
        profiles.append(cProfile.Profile())
        profiles[-1].enable()

    try:
        if sys.version_info < (3, 12):  # later ones count all threads
            threading.setprofile(start)
        profiles[0].enable()
        call()
    finally:
        profiles[0].disable()
        threading.setprofile(before)
        for each in profiles:  # freeing an enabled one, of a thread that goes on, would end another
            each.disable()
    return [entry for each in profiles for entry in each.getstats()]


def _cheap_calls() -> None:
    """Call a few functions of C that take little: how long says how slow the host is."""
    format(3, "d"), math.sqrt(3.0), "abc".upper(), "a,b".split(","), sorted((3, 1, 2))


def _is_versioned(code: CodeType | str) -> bool:
    """Return whether no version of torch, Triton or Python says what a function does."""
    if isinstance(code, str):
        return False
    is_made = code.co_filename.startswith("<") and not code.co_filename.startswith("<frozen ")
    return is_made or owner_of(code.co_filename) in ("user", "library", "module of torch")


def _content(code: CodeType) -> Any:
    """Return what a function does, with those defined in it, as every process has it."""
    # Dynamo numbers what it compiles
    names = [each for each in code.co_names if not each.startswith(_OF_COMPILER)]
    variables = code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_name, code.co_code, names, variables, _constant(code.co_consts)


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _content(value)
    if isinstance(value, frozenset):
        return sorted(map(repr, map(_constant, value)))  # its order is of the process
    if isinstance(value, tuple):
        return list(map(_constant, value))
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _code(entry: Any) -> Any:
    """Return the code of an entry, as a key: that of Dynamo may hold constants without a hash."""
    try:
        hash(entry.code)
    except TypeError:  # a slice, a dict
        return entry.code.replace(co_consts=())
    return entry.code


def _read(entries: list[Any]) -> tuple[Counter[str], dict[str, tuple[Origin, ...]]]:
    """Return how often each function was called, and where those of the user's code are that call
    it.
    """
    counts: Counter[str] = Counter()
    callers: dict[Any, Any] = {}
    left = _of_the_code(entries)
    for code, count in left.items():
        counts[_name(code)] += count
    for entry in entries:
        caller = _code(entry)
        module = left[caller] and OF_THREADS.match(_name(caller))
        for called in entry.calls or ():
            callers.setdefault(_code(called), caller)
            name = _name(_code(called))
            if module and name.startswith("<"):  # chance says how often they are called
                counts[name] -= called.callcount
                counts[f"<{module[0]}: {name[1:]}"] += called.callcount
    del counts[""]
    return +counts, {
        short(name): (origin,)
        for code in sorted(callers, key=lambda code: not _is_yours(callers[code]))
        if (name := _name(code)) and (origin := _defined(code, callers))
    }


def _callers(entries: list[Any]) -> dict[str, dict[str, int]]:
    """Return which functions call each function, and how often. A comprehension is a part of the
    function around it.
    """
    found = defaultdict[str, Counter[str]](Counter)
    for entry in entries:
        caller = _COMPREHENSION.sub("", _name(entry.code, is_counted=False))
        for each in entry.calls or ():
            found[_name(each.code)][caller] += each.callcount
    return {name: dict(+each) for name, each in found.items() if name}


def _of_the_code(entries: list[Any]) -> Counter[Any]:
    """Return how often each function is called, but for calls of which the session decides."""
    left, called = Counter[Any](), defaultdict[Any, Counter[Any]](Counter)
    for entry in entries:
        left[_code(entry)] += entry.callcount
        for each in entry.calls or ():
            called[_code(entry)][_code(each)] += each.callcount
    found = [code for code in left if OF_SESSION.match(_name(code))]
    for code in found:  # it grows
        left -= called[code]  # which drops what nothing else calls
        found += [each for each in called[code] if each not in left and each not in found]
    for code in [each for each in left if _OF_DYNAMO.match(_name(each))]:
        left -= Counter({each: n for each, n in called[code].items() if _is_of_wrapper(each)})
        del left[code]
    return left


def _is_of_wrapper(code: Any) -> bool:
    """Return whether a wrapper of Dynamo calls a function for itself: it is not what it wraps."""
    return isinstance(code, str) or _name(code).startswith("torch.compiler.")


def _times_us(entries: list[Any]) -> dict[str, float]:
    """Return how long a call of each function of C takes, but for those of `OF_RUNTIME`."""
    found: dict[str, tuple[float, int]] = {}
    for entry in entries:
        if isinstance(entry.code, str) and (name := _name(entry.code)):
            seconds, count = found.get(name, (0.0, 0))
            found[name] = seconds + entry.inlinetime, count + entry.callcount
    return {
        name: 1e6 * seconds / count
        for name, (seconds, count) in found.items()
        if not OF_RUNTIME.match(name)
    }


def _is_yours(code: Any) -> bool:
    return isinstance(code, CodeType) and owner_of(code.co_filename) == "user"


def _defined(code: Any, callers: Mapping[Any, Any]) -> Origin | None:
    """Return the function of the user's code that a function is called in."""
    seen: set[Any] = set()
    while code is not None and code not in seen:
        if _is_yours(code):
            return Origin("", (source_line(code.co_filename, code.co_firstlineno),))
        seen.add(code)
        code = callers.get(code)
    return None


def _name(code: CodeType | str, *, is_counted: bool = True) -> str:
    """Return the name of a function; empty for our own, and for a generator expression if it is to
    be counted.
    """
    if isinstance(code, str):
        return "" if "_lsprof" in code else function_in_c(code)
    owner = owner_of(code.co_filename)
    name = getattr(code, "co_qualname", code.co_name)  # Python 3.11
    # A generator expression counts once for each step, and one over a set ends where the order of
    # hashes lets it.
    return (
        ""
        if owner == "kernelgauge" or (is_counted and code.co_name == "<genexpr>")
        else function_name(code.co_filename, owner, name)
    )


def function_name(file: str, owner: Owner, name: str) -> str:
    """Return ``copy.deepcopy``, or ``net.py:Net.forward`` of the user's."""
    file = shown_path(file)
    if owner == "user":
        return f"{file}:{name}"
    if owner == "generated" or (file.startswith("<") and not file.startswith("<frozen ")):
        return "generated." + _NUMBERS.sub("_", name)
    module = file.removeprefix("<frozen ").rstrip(">").removesuffix(".py").removesuffix("/__init__")
    return f"{module.replace('/', '.')}.{name}"


def function_in_c(text: str) -> str:
    """Return ``<list.append>`` for what Python prints of a function of C."""
    for pattern, shown in _SHOWN_AS:
        if found := pattern.fullmatch(text):
            return _OF_INDUCTOR.sub("generated.", found.expand(shown))
    return f"<{re.sub(r' at 0x[0-9a-f]+', '', text).strip('<>')}>"


def short(name: str) -> str:
    """Return what torch's profiler tells of a function's name as well: ``copy:deepcopy``,
    ``net:forward``, ``<sleep>``, and ``<.append>`` of a method: it has the type of the object.
    """
    *owner, end = _PARTS.split(name.strip("<>"))
    if not name.startswith("<"):
        return f"{name.partition('.')[0]}:{end}"
    of = owner[-1] if owner else ""
    is_type = of not in (of.lower(), of.upper()) or isinstance(getattr(builtins, of, None), type)
    return f"<{'.' * is_type}{end}>"


def lines_around(file: str, number: int) -> tuple[int, ...]:
    """Return the lines that begin the loops and the other blocks around a line within its function,
    the outermost first.
    """
    return _source(file).around.get(number, ((), ()))[1]


def statements_around(file: str, number: int) -> Sequence[SourceLine]:
    """Return the function around a line as ``def Net.forward``, its defaults, its decorators and its
    statements: one that calls nothing may decide what a line does.
    """
    own = _source(file).around.get(number, ((), ()))[0]
    return own if own and own[0].code.startswith("def ") else ()  # else outside of functions


def statements_used(
    file: str, own: Sequence[SourceLine], family: Mapping[Class, Sequence[Class]]
) -> dict[SourceLine, Sequence[SourceLine]]:
    """Return the statements that give values to a function, by the name that each defines: constants
    and functions of its file and of files that it imports, attributes and methods of its class and
    of classes that it names. Then those that give values to these, a few steps on.

    Args: own: the function, as `statements_around` returns it. family: of each class of a module,
        the classes whose attributes it may use.
    """
    of_class = file, own[0].code.removeprefix("def ").rpartition(".")[0]
    seen, found = {*own}, dict[SourceLine, Sequence[SourceLine]]()
    level = {(file, family.get(of_class, (of_class,))): [*own[1:]]}
    for _ in range(_MOST_STEPS):
        below = defaultdict[tuple[str, Sequence[Class]], list[SourceLine]](list)
        for (at, classes), above in level.items():
            for source, name, of in _names(at, classes, above):
                new = [it for it in _source(source).defined.get(name, ()) if it not in seen]
                if new:
                    seen.update(new)
                    below[source, of] += new
                    found[SourceLine(new[0].file, new[0].line, ".".join(name))] = new
        level = below
    return found


def _names(
    file: str, classes: Sequence[Class], statements: Iterable[SourceLine]
) -> Iterator[tuple[str, tuple[str, str], Sequence[Class]]]:
    """Yield what statements may name: its file, its class and its name, and the classes whose
    attributes it uses.
    """
    codes = {each.code for each in statements}
    for name in sorted({_SUPER, *(name for code in codes for name in re.findall(r"\w+", code))}):
        yield from ((source, (of, name), classes) for source, of in classes)
        yield file, ("", name), classes
    for path in sorted({path for code in codes for path in _PATH.findall(code)}):
        first, *rest = path.split(".")
        if found := _imported(file, first, rest):
            at, holder, (first, *rest) = found
            value = attributes_of(holder).get(first)
            inner = family_of(cast(type, value) if is_a(value, type) else type(value))
            yield at, ("", first), ()
            yield from ((source, (of, name), inner) for name in rest[:1] for source, of in inner)


def _imported(
    file: str, first: str, rest: Sequence[str]
) -> tuple[str, ModuleType, Sequence[str]] | None:
    """Return the file and the module of the user's that a name is defined in, and its names there;
    None if no module of the user's defines it.
    """
    holder, names = _module(file), [first, *rest]
    for _ in range(_MOST_IMPORTS):
        if holder is None or not names or names[0] not in _source(file).imported:
            break
        package = attributes_of(holder).get("__package__")
        loaded: list[tuple[str, Any]] = []
        for module, name in _source(file).imported[names[0]]:
            with suppress(ImportError):  # a relative import outside of a package
                loaded.append((name, sys.modules.get(resolve_name(module, package))))
        name, part = next((it for it in loaded if is_a(it[1], ModuleType)), ("", None))
        if part is None:
            return None
        names = [name] * bool(name) + names[1:]
        while is_a(part, ModuleType):
            holder = part
            part = attributes_of(part).get(names[0]) if names else None
            names = names[is_a(part, ModuleType) :]
        if not (file := _user_file(holder)):
            return None
    return (file, holder, names) if holder is not None and names else None


def _module(file: str) -> ModuleType | None:
    return sys.modules.get(_module_name(file))


@cache
def _module_name(file: str) -> str:
    return next((name for name, it in [*sys.modules.items()] if _user_file(it) == file), "")


def _user_file(module: Any) -> str:
    """Return the file of a module of the user's; empty: it is none."""
    file = attributes_of(module).get("__file__")
    return str(file) if file and owner_of(str(file)) == "user" else ""


def family_of(cls: type) -> tuple[Class, ...]:
    """Return a class and those that it inherits from, of the user's: the file and the name of each."""
    return tuple(
        (file, each.__qualname__.replace(".<locals>", ""))
        for each in cls.__mro__
        if (file := _user_file(sys.modules.get(each.__module__)))
    )


class _Source(NamedTuple):
    """What a file says of its lines."""

    # of each line: its function with the statements of it, and the lines that begin blocks around
    around: dict[int, tuple[Sequence[SourceLine], tuple[int, ...]]]
    # by the class, if any, and the name: the statements that give it a value, or that it runs
    defined: defaultdict[tuple[str, str], list[SourceLine]]
    # by the name here: the module and the name there of each import; without a name, the module
    imported: defaultdict[str, list[tuple[str, str]]]


_sources: dict[str, tuple[list[str], _Source]] = {}


def _source(file: str) -> _Source:
    lines = linecache.getlines(file)
    known, found = _sources.get(file, (None, _Source({}, defaultdict(list), defaultdict(list))))
    if known is not lines:  # the file has changed
        found = _Source({}, defaultdict(list), defaultdict(list))
        with suppress(SyntaxError):
            _note(ast.parse("".join(lines)), file, "", [], (), found)
        _sources[file] = lines, found
    return found


def _note(
    node: ast.AST,
    file: str,
    name: str,
    own: list[SourceLine],
    around: tuple[int, ...],
    found: _Source,
) -> None:
    """Note the function and the blocks around each line below a node. `own`: its statements so far."""
    for part, children in ast.iter_fields(node):
        is_inside = isinstance(node, _BLOCKS) and part in ("body", "orelse")
        above = (*around, node.lineno) if isinstance(node, _BLOCKS) and is_inside else around
        for each in children if isinstance(children, list) else ():
            if isinstance(each, (ast.ExceptHandler, ast.match_case)):
                _note(each, file, name, own, above, found)
            if not isinstance(each, ast.stmt):
                continue
            lines = range(each.lineno, (each.end_lineno or 0) + 1)
            if isinstance(each, _SCOPES):
                scope = f"{name}.{each.name}".lstrip(".")
                first = _heads(each, file, scope)
                found.around.update(dict.fromkeys(lines, (first, above)))
                _note(each, file, scope, first, (), found)
                found.defined[name, each.name] += first[not isinstance(each, ast.ClassDef) :]
                continue
            found.around.update(dict.fromkeys(lines, (own, above)))
            if isinstance(each, (ast.Import, ast.ImportFrom)):
                _note_imports(each, found)
            if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
                own.append(source_line(file, each.lineno))
                _note_values(each, name, own, found)
            _note(each, file, name, own, above, found)


def _note_imports(node: ast.Import | ast.ImportFrom, found: _Source) -> None:
    for it in node.names:
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.imported[it.asname or it.name].append((module, it.name))
        else:
            whole = it.name if it.asname else it.name.partition(".")[0]
            found.imported[it.asname or whole].append((whole, ""))


def _heads(node: ast.AST, file: str, scope: str) -> list[SourceLine]:
    """Return a function as ``def Net.forward``, its defaults as ``def Net.forward(n=3)``, and its
    decorators; none of a class.
    """
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    given = node.args
    defaults = [
        *zip(reversed((*given.posonlyargs, *given.args)), reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    codes = [(node.lineno, f"def {scope}")]
    codes += [
        (each.lineno, f"def {scope}({each.arg}={ast.unparse(value)})")
        for each, value in defaults
        if value is not None
    ]
    codes += [(it.lineno, f"@{ast.unparse(it)} def {scope}") for it in node.decorator_list]
    return [SourceLine(shown_path(file), *each) for each in codes]


def _note_values(node: ast.stmt, name: str, own: Sequence[SourceLine], found: _Source) -> None:
    """Note what a statement, the last of `own`, assigns: to an attribute, and outside of functions to
    a name; with the defaults that it uses.
    """
    is_in_function = own[0].code == f"def {name}"
    words = re.findall(r"\w+", own[-1].code)
    heads = {f"def {name}({each}" for each in words}
    used = [*(each for each in own if each.code.partition("=")[0] in heads), own[-1]]
    of_class = name.rpartition(".")[0] if is_in_function else name
    if name.endswith(".__init__") and ".__init__(" in own[-1].code:
        found.defined[of_class, _SUPER] += used
    for target in getattr(node, "targets", [getattr(node, "target", None)]):
        for each in ast.walk(target) if isinstance(target, ast.AST) else ():
            if isinstance(each, ast.Attribute):
                found.defined[of_class, each.attr] += used
            elif isinstance(each, ast.Name) and not is_in_function:
                found.defined[of_class, each.id].append(own[-1])


@contextmanager
def _tracing() -> Iterator[Counter[tuple[CodeType, int]]]:
    """Yield how often each line of the user's code runs in this thread, by code and number."""
    lines: Counter[tuple[CodeType, int]] = Counter()
    left = _MOST_EVENTS

    @cache
    def begins(file: str) -> Mapping[int, tuple[int, int]]:
        linecache.checkcache(file)
        return statements("".join(linecache.getlines(file)))

    def enter(frame: FrameType, *_: object) -> Callable[..., Any] | None:
        code, last = frame.f_code, (0, -1)

        def run(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
            nonlocal left, last
            if event == "line":
                number = frame.f_lineno
                first, _ = begins(code.co_filename).get(number, (number, number))
                at = first, frame.f_lasti
                # one statement on several lines is one, unless it loops
                lines[code, number] += at[0] != last[0] or at[1] <= last[1]
                last = at
                left -= 1
                if left == 0:
                    sys.settrace(None)
            return run if left else None

        return run if owner_of(code.co_filename) == "user" else None

    sys.settrace(enter)
    try:
        yield lines
    finally:
        sys.settrace(None)
