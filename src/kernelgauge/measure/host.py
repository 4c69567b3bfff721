"""What the host does in a call, counted: calls of functions of Python and C, and lines of the
user's code. No clock has a part.

`cProfile` counts in C: it disturbs neither Dynamo nor the call. Work within one function of C is
not seen.
"""

from __future__ import annotations

import builtins
import cProfile
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from types import CodeType, FrameType
from typing import Any

from ..errors import shown_path
from ..run import LINES, OF_THREADS, Origin
from .compiler import Owner, owner_of, source_line
from .device import Device
from .instance import Instance, collector_paused

_CALLS = 2  # that are counted; one more where they differ
_MOST_EVENTS = 1_000_000  # lines that run: a loop of more is as long as that
_MOST_LINES = 2  # of code that call a function, the most frequent first
_OF_INDUCTOR = re.compile(r"\bc[a-z2-7]{51}\.")  # a module of C++ that it compiled
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
    problem: str = ""

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
    """Count the functions of a few more calls, and the lines of one.

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
    while len(every) < _CALLS or (len(every) == _CALLS and every[0] != every[1]):
        with _calling(instance, device):
            counts, origins = _read(_entries(instance.call))
        every.append(counts)
    most = reduce(or_, every)
    spread = reduce(or_, (most - counts for counts in every))
    if not is_compiled and sys.gettrace() is None:
        with _calling(instance, device), _tracing() as lines:
            instance.call()
        most[LINES] = sum(lines.values())
        dearest = (
            source_line(file, number) for (file, number), _ in lines.most_common(_MOST_LINES)
        )
        origins[short(LINES)] = tuple(Origin("", (line,)) for line in dearest)
    return HostWork(most, spread, origins)


def is_profiled() -> bool:
    """Return whether a profiler of Python runs already."""
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    return sys.getprofile() is not None or bool(
        monitoring and monitoring.get_tool(monitoring.PROFILER_ID)
    )


@contextmanager
def _calling(instance: Instance, device: Device) -> Iterator[None]:
    instance.prepare()
    device.synchronize()
    with collector_paused():
        yield
        device.synchronize()


def _entries(call: Callable[[], object]) -> list[Any]:
    """Return what `cProfile` counts of a call, in this thread and in those that start in it."""
    profiles, before = [cProfile.Profile()], threading.getprofile()

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
    return [entry for each in profiles for entry in each.getstats()]


def _read(entries: list[Any]) -> tuple[Counter[str], dict[str, tuple[Origin, ...]]]:
    """Return how often each function was called, and where those of the user's code are that call
    it.
    """
    counts: Counter[str] = Counter()
    callers: dict[Any, Any] = {}
    for entry in entries:
        counts[_name(entry.code)] += entry.callcount
        module = "" if isinstance(entry.code, str) else OF_THREADS.match(_name(entry.code))
        for called in entry.calls or ():
            callers.setdefault(called.code, entry.code)
            name = _name(called.code)
            if module and name.startswith("<"):  # chance says how often they are called
                counts[name] -= called.callcount
                counts[f"<{module[0]}: {name[1:]}"] += called.callcount
    del counts[""]
    return +counts, {
        short(name): (origin,)
        for code in sorted(callers, key=lambda code: not _is_yours(callers[code]))
        if (name := _name(code)) and (origin := _defined(code, callers))
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


def _name(code: CodeType | str) -> str:
    """Return the name of a function; empty for our own."""
    if isinstance(code, str):
        return "" if "_lsprof" in code else function_in_c(code)
    owner = owner_of(code.co_filename)
    name = getattr(code, "co_qualname", code.co_name)  # Python 3.11
    # A generator expression counts once for each step, and one over a set ends where the order of
    # hashes lets it.
    return (
        ""
        if owner == "kernelgauge" or code.co_name == "<genexpr>"
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


@contextmanager
def _tracing() -> Iterator[Counter[tuple[str, int]]]:
    """Yield how often each line of the user's code runs in this thread, by file and number."""
    lines: Counter[tuple[str, int]] = Counter()
    left = _MOST_EVENTS

    def enter(frame: FrameType, *_: object) -> Callable[..., Any] | None:
        return run if owner_of(frame.f_code.co_filename) == "user" else None

    def run(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal left
        if event == "line":
            lines[frame.f_code.co_filename, frame.f_lineno] += 1
            left -= 1
            if left == 0:
                sys.settrace(None)
        return run if left else None

    sys.settrace(enter)
    try:
        yield lines
    finally:
        sys.settrace(None)
