"""Traces in the Perfetto UI: served from this machine, or copied to a store that the UI can fetch from."""

from __future__ import annotations

import os
import secrets
import threading
import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import BinaryIO
from urllib.parse import quote

from ..errors import SharingError, TraceError, printable, printable_url

__all__ = ["publish", "serve_trace"]

PERFETTO_UI = "https://ui.perfetto.dev"
# The only address of this machine that the page's Content-Security-Policy lets it fetch from
# (perfetto, ui/src/frontend/index.ts).
ADDRESS = ("127.0.0.1", 9001)


def serve_trace(path: Path, *, announce: Callable[[str], object]) -> None:
    """Serve one trace file to the Perfetto UI, and return when the page has fetched it.

    `announce` gets the link, which a browser opens then, if there is one.

    Raises `TraceError` if there is no such file, and `SharingError` if the port is taken.
    """
    if not path.is_file():
        raise TraceError("no such trace file", where=printable(str(path)), next_command="ls reports/latest/traces")
    with path.open("rb") as trace, _Server(trace) as server:
        link = _perfetto_link(f"http://{ADDRESS[0]}:{server.server_address[1]}{server.path}")
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        try:
            announce(link)
            webbrowser.open(link)
            server.fetched.wait()
        finally:
            server.shutdown()


def publish(source: Path, destination: str, *, public_url: str | None = None) -> list[str]:
    """Copy a folder of reports, or one trace, to a path or a URL of fsspec. Return what to print, a line each.

    Files that exist at the destination are overwritten, and nothing is deleted. Hidden files and symbolic links are
    left out. Each trace gets a Perfetto link if the destination has a public address: `public_url`, or that of hf://.

    Raises `SharingError` if there is nothing to copy, or the destination refuses it.
    """
    import fsspec  # type: ignore[import-untyped]

    files = _files(source)
    if not files:
        raise SharingError("nothing to publish", where=printable(str(source)), next_command="pytest perf")
    if not destination:  # fsspec would take the current folder
        raise SharingError("no destination", expected="a folder, or a URL such as s3://BUCKET/PREFIX")
    if public_url is not None and not public_url.startswith("https://"):
        raise SharingError("the Perfetto UI fetches from https:// only", got=printable_url(public_url))
    lines = [f"{len(files)} {'file' if len(files) == 1 else 'files'} -> {printable_url(destination)}"]
    try:
        store, base = fsspec.core.url_to_fs(destination)
        targets = {key: f"{base.rstrip('/')}/{key}" for key in files}
        if not store.async_impl:  # async stores have no folders, and s3fs would create a missing bucket
            for folder in {target.rpartition("/")[0] for target in targets.values()}:
                store.makedirs(folder, exist_ok=True)
        store.put([str(path) for path in files.values()], list(targets.values()))
        traces = {key: target for key, target in targets.items() if key.endswith(".json.gz") or source.is_file()}
        if public_url is not None:
            lines += [_perfetto_link(f"{public_url.rstrip('/')}/{quote(key)}") for key in traces]
        elif destination.startswith("hf://"):
            lines += [_perfetto_link(store.url(target)) for target in traces.values()]
    except Exception as error:  # the errors of botocore or google.auth are no OSError
        raise SharingError(
            "cannot publish the reports",
            where=printable_url(destination),
            got=printable_url(f"{type(error).__name__}: {error}"),
            next_command="kernelgauge publish REPORTS DEST   (run it again: it overwrites the files already copied)",
        ) from error
    return lines


class _Server(ThreadingTCPServer):
    """Serves one file in a thread for each connection: browsers open spare ones that send nothing."""

    allow_reuse_address = True  # otherwise the port stays taken for a minute after a fetch
    daemon_threads = True  # a spare connection must not delay the end

    def __init__(self, trace: BinaryIO) -> None:
        self.trace = trace
        # A secret path: other users and other pages of this machine's browser can reach the port too.
        self.path = f"/{secrets.token_urlsafe(16)}/{quote(Path(trace.name).name, errors='surrogateescape')}"
        self.fetched = threading.Event()
        try:
            super().__init__(ADDRESS, _Handler)
        except OSError as error:
            raise SharingError(
                f"cannot listen on {ADDRESS[0]}:{ADDRESS[1]}",
                got=error.strerror,
                next_command=f"ss -ltnp 'sport = :{ADDRESS[1]}'   (names the process that uses it)",
            ) from error

    def handle_error(self, *_: object) -> None:
        """Print nothing: the page says when a fetch breaks off, and can repeat it."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path != self.server.path:
            self.send_error(404)
            return
        size = os.fstat(self.server.trace.fileno()).st_size
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", PERFETTO_UI)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.connection.sendfile(self.server.trace) == size:
            self.server.fetched.set()

    def log_message(self, *_: object) -> None:
        """Print nothing: the path is a secret."""


def _files(source: Path) -> dict[str, Path]:
    """Return the files to publish, by their path below the destination."""
    if source.is_file():
        return {source.name: source}
    found = [(path.relative_to(source), path) for path in sorted(source.rglob("*"))]
    return {
        key.as_posix(): path
        for key, path in found
        if path.is_file() and not path.is_symlink() and not any(part.startswith(".") for part in key.parts)
    }


def _perfetto_link(url: str) -> str:
    """Return the address at which the Perfetto UI opens a trace. The page decodes `url` once."""
    return f"{PERFETTO_UI}/#!/?url={quote(url, safe=':/')}"
