"""`kernelgauge show`, `diff` and `publish`: traces of torch.profiler, without a GPU."""

from __future__ import annotations

import argparse
import gc
import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..errors import KernelgaugeError, TraceError, printable, printable_url
from ..trace import Trace, parse_blocks
from ..trace.reader import BLOCK_BYTES
from . import Commands, Exit, say, terminal

if TYPE_CHECKING:
    from ..report.text import Section
    from ..trace.summary import Summary

_TOP = 20
PERFETTO_UI = "https://ui.perfetto.dev"


def add_commands(commands: Commands) -> None:
    show = _add(
        commands,
        "show",
        "explain one trace: its kernels, what launched them, why the GPU was idle",
        "Explain a trace of torch.profiler (.json or .json.gz): where the time of a step went, its kernels in order or in "
        "groups, launch configurations, launching ops and shapes, the host's ops.",
    )
    show.add_argument("trace", metavar="TRACE")
    groupings = ("launch", "config", "name", "op", "module")
    show.add_argument("--by", choices=groupings, help="what a row is of (default: config; of few: launch)")
    _add_selection(show)
    show.set_defaults(command=_show)
    diff = _add(
        commands,
        "diff",
        "compare two traces",
        "Compare two traces of torch.profiler: kernels that were fused, replaced, added, removed or launched with another "
        "configuration, changes of their times, and changes on the host. The time of a step comes first.",
    )
    diff.add_argument("before", metavar="BEFORE")
    diff.add_argument("after", metavar="AFTER")
    _add_selection(diff)
    diff.add_argument(
        "--fail-on-change",
        action="store_true",
        help="exit with 1 if kernels or launch configurations changed (times do not count); with 2 if a trace is "
        "incomplete or has no kernels",
    )
    diff.set_defaults(command=_diff)
    publish = _add(
        commands,
        "publish",
        "copy reports to a bucket, and print Perfetto links for their traces",
        "Copy a folder of reports, or one trace, to a local path or any URL that fsspec knows (s3://, gs://, hf://, ...). "
        "Existing files are overwritten; nothing is deleted. Hidden files and symbolic links are left out.",
    )
    publish.add_argument("reports", type=Path, metavar="REPORTS", help="for example reports/latest")
    publish.add_argument("destination", metavar="DEST")
    publish.add_argument("--public-url", metavar="URL", help="the public address of DEST, for the links")
    publish.set_defaults(command=_publish)


def _add(commands: Commands, name: str, short: str, description: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=short, description=description, allow_abbrev=False)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose what a table shows, and in which form."""
    about = f"rows of each table; 0 for all (default: {_TOP})"
    parser.add_argument("--top", type=int, default=_TOP, metavar="N", help=about)
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("--step", type=int, metavar="N", help="only ProfilerStep#N")
    selection.add_argument("--region", metavar="NAME", help="only record_function(NAME)")
    selection.add_argument("--whole", action="store_true", help="the whole trace, not each profiler step")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print JSON, with times in microseconds and full names")
    forms.add_argument("--markdown", action="store_true", help="print Markdown for a pull request")


def _show(options: argparse.Namespace) -> Exit:
    from ..report.trace_json import json_text, show_data
    from ..report.traces import show_page

    summary = _summary(options.trace, options)
    if options.by == "module" and not any(kernel.module for kernel in summary.kernels):
        raise TraceError(
            "no kernel has a module",
            where=options.trace,
            got="no rows of nn.Module around the ops",
            expected="a trace of torch.profiler.profile(with_stack=True, with_modules=True)",
            next_command=f"kernelgauge show {options.trace} --by op",
        )
    if options.json:
        say(json_text(show_data(summary, name=printable(options.trace), by=options.by)))
    else:
        say(_formed(show_page(summary, name=Path(options.trace).name, top=_top(options), by=options.by), options))
    return Exit.YES


def _diff(options: argparse.Namespace) -> Exit:
    from ..report.trace_json import compare_data, json_text
    from ..report.traces import TraceComparison, compare_page

    sides = [_summary(path, options) for path in (options.before, options.after)]
    comparison = TraceComparison(*sides)
    if options.json:
        say(json_text(compare_data(comparison, names=(printable(options.before), printable(options.after)))))
    else:
        names = (Path(options.before).name, Path(options.after).name)
        names = names if names[0] != names[1] else (options.before, options.after)
        say(_formed(compare_page(comparison, names=names, top=_top(options)), options))
    if options.fail_on_change and comparison.gpu_changed:
        return Exit.NO
    # Fail closed: an incomplete trace cannot show that nothing changed.
    is_incomplete = any(side.problems_inside or side.not_read or not side.kernels for side in sides)
    return Exit.TROUBLE if options.fail_on_change and is_incomplete else Exit.YES


def _top(options: argparse.Namespace) -> int:
    return options.top if options.top > 0 else sys.maxsize


def _formed(page: list[Section], options: argparse.Namespace) -> str:
    from ..report.text import as_markdown, as_text

    return as_markdown(page) if options.markdown else as_text(page, **terminal())


def _summary(path: str, options: argparse.Namespace) -> Summary:
    """Summarize the selected windows: by default the profiler's steps, or the whole trace if there are none."""
    from ..trace.summary import summarize_trace

    with uncollected():
        trace = read_trace(path)
        name = options.region if options.step is None else f"ProfilerStep#{options.step}"
        windows = [trace.whole()] if options.whole else None if name is None else trace.regions(name)
        if windows == []:
            there = sorted({mark.name for mark in trace.annotations})
            more = f" and {len(there) - _TOP} more" if len(there) > _TOP else ""
            got = f"{', '.join(there[:_TOP])}{more}" or "no annotations"
            raise TraceError(f"there is no {name} in the trace", where=path, got=got)
        return summarize_trace(trace, windows)


@contextmanager
def uncollected() -> Iterator[None]:
    """Read a trace in this. It is a million small objects without a cycle: looking for one takes a seventh of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def read_trace(path: Path | str) -> Trace:
    """Read a trace of torch.profiler, gzip or JSON. Raises `TraceError` for anything else."""
    try:
        with open(path, "rb") as file:
            stream = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
            return parse_blocks(iter(partial(stream.read, BLOCK_BYTES), b""), where=str(path))
    except (OSError, EOFError, ValueError, zlib.error) as error:  # a NUL in the path is a ValueError
        is_damaged = isinstance(error, (gzip.BadGzipFile, EOFError, zlib.error))
        raise TraceError(
            "cannot read the trace",
            where=str(path),
            got=f"damaged gzip: {error}" if is_damaged else str(error),
            expected="a whole gzip file" if is_damaged else "a file that can be read",
        ) from error


# -- the Perfetto UI ----------------------------------------------------------------------------------------------------


def _publish(options: argparse.Namespace) -> Exit:
    """Copy a folder of reports, or one trace. Each trace gets a Perfetto link if it has a public address."""
    from ..results.files import put_files

    source, url = options.reports, options.public_url
    paths = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    folder = source.parent if source.is_file() else source
    files = {path.relative_to(folder).as_posix(): path for path in paths if not path.is_symlink()}
    files = {key: path for key, path in files.items() if "/." not in f"/{key}"}
    if not files:
        raise KernelgaugeError("nothing to publish", where=printable(str(source)), next_command="pytest perf")
    if url is not None and not url.startswith("https://"):
        raise KernelgaugeError("the Perfetto UI fetches from https:// only", got=printable_url(url))
    put_files(options.destination, ((key, path.read_bytes()) for key, path in files.items()))
    say(printable_url(f"{len(files)} {'file' if len(files) == 1 else 'files'} -> {options.destination}"))
    for key in files:
        if url is not None and (key.endswith(".json.gz") or source.is_file()):
            address = f"{url.rstrip('/')}/{quote(key)}"
            say(f"{PERFETTO_UI}/#!/?url={quote(address, safe=':/')}")  # the page decodes `url` once
    return Exit.YES
