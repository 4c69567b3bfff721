"""`kernelgauge open` and `kernelgauge publish`: traces in the Perfetto UI."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..perfetto import PERFETTO_PORT, PERFETTO_UI
from .output import Commands, Exit, say

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    opening = commands.add_parser(
        "open",
        help="serve one trace to the Perfetto UI in your browser",
        description="Serve one trace file on this machine's loopback address, and print the link that opens it in the "
        "Perfetto UI. Nothing is uploaded. Ends by itself when the page has fetched the file.",
        allow_abbrev=False,
    )
    opening.add_argument("trace", type=Path, metavar="TRACE")
    opening.add_argument("--browse", action="store_true", help="open the link in a browser")
    opening.add_argument("--port", type=int, default=PERFETTO_PORT, help=f"default: {PERFETTO_PORT}")
    opening.add_argument("--ui", default=PERFETTO_UI, metavar="URL", help=f"default: {PERFETTO_UI}")
    opening.add_argument(
        "--timeout", type=float, default=300.0, metavar="SECONDS", help="end when nobody came (default: 300)"
    )
    opening.set_defaults(command=_open)
    publishing = commands.add_parser(
        "publish",
        help="copy a folder of reports to a bucket, and print Perfetto links for its traces",
        description="Copy a folder of reports to a local path or any URL that fsspec knows (s3://, gs://, hf://, ...). "
        "What is there already is written again, and nothing is deleted.",
        allow_abbrev=False,
    )
    publishing.add_argument("reports", type=Path, metavar="REPORTS", help="such as reports/latest")
    publishing.add_argument("destination", metavar="DEST")
    publishing.add_argument(
        "--public-url", metavar="URL", help="where anybody can fetch the files of DEST; known for hf:// datasets"
    )
    publishing.add_argument("--ui", default=PERFETTO_UI, metavar="URL", help=f"default: {PERFETTO_UI}")
    publishing.add_argument("--dry-run", action="store_true", help="print, and copy nothing")
    publishing.set_defaults(command=_publish)


def _open(options: argparse.Namespace) -> Exit:
    from ..serving import serve_trace

    ended = serve_trace(
        options.trace,
        announce=say,
        port=options.port,
        ui=options.ui,
        browse=options.browse,
        timeout_seconds=options.timeout,
    )
    say(ended.value)
    return Exit.YES


def _publish(options: argparse.Namespace) -> Exit:
    from ..publishing import publish

    planned = publish(
        options.reports,
        options.destination,
        public_url=options.public_url,
        ui=options.ui,
        dry_run=options.dry_run,
    )
    say("\n".join(planned.lines))
    return Exit.YES
