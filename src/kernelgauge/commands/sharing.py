"""`kernelgauge open` and `kernelgauge publish`: traces in the Perfetto UI."""

from __future__ import annotations

import argparse
from pathlib import Path

from .output import Commands, Exit, say

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    opening = commands.add_parser(
        "open",
        help="open one trace in the Perfetto UI, without uploading it",
        description="Serve one trace file on 127.0.0.1:9001, and open it in the Perfetto UI. Nothing is uploaded. "
        "Ends when the page has fetched the file, or on Ctrl-C.",
        allow_abbrev=False,
    )
    opening.add_argument("trace", type=Path, metavar="TRACE")
    opening.add_argument("--no-browser", action="store_true", help="print the link, and open no browser")
    opening.set_defaults(command=_open)
    publishing = commands.add_parser(
        "publish",
        help="copy a folder of reports to a bucket, and print Perfetto links for its traces",
        description="Copy a folder of reports, or one trace, to a local path or any URL that fsspec knows (s3://, gs://, "
        "hf://, ...). Overwrites files that exist there, and deletes nothing. Leaves out hidden files and symbolic links.",
        allow_abbrev=False,
    )
    publishing.add_argument("reports", type=Path, metavar="REPORTS", help="such as reports/latest")
    publishing.add_argument("destination", metavar="DEST")
    publishing.add_argument(
        "--public-url", metavar="URL", help="where anybody can fetch the files of DEST; not needed for hf://"
    )
    publishing.set_defaults(command=_publish)


def _open(options: argparse.Namespace) -> Exit:
    from ..sharing import serve_trace

    serve_trace(options.trace, announce=say, browser=not options.no_browser)
    return Exit.YES


def _publish(options: argparse.Namespace) -> Exit:
    from ..sharing import publish

    say("\n".join(publish(options.reports, options.destination, public_url=options.public_url)))
    return Exit.YES
