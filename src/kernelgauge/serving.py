"""One trace file served to the Perfetto UI: on this machine, to that page, until it has been fetched."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import quote, urlsplit

from .errors import ServingError, TraceError
from .perfetto import PERFETTO_PORT, PERFETTO_UI, perfetto_link
from .printable import printable
from .regular_file import IrregularFileError, regular_file

__all__ = ["Ended", "Offer", "Progress", "serve_trace"]

_POLL_SECONDS = 0.1
_STALLED_SECONDS = 30.0  # a connection that neither asks nor takes a chunk for so long is dropped
_CHUNK_BYTES = 1 << 18
_HEADERS = {
    "Allow": "GET, HEAD, OPTIONS",
    "Access-Control-Allow-Methods": "GET, HEAD",
    # Chrome before 142 asks so before a public page reaches this machine; later ones ask the user.
    "Access-Control-Allow-Private-Network": "true",
    "Cache-Control": "no-store",
    "Content-Type": "application/octet-stream",
    "Vary": "Origin",
    "X-Content-Type-Options": "nosniff",
}


class Ended(Enum):
    """Why the serving ended, as a sentence."""

    FETCHED = "the trace was fetched"
    TIMED_OUT = "nothing fetched the trace in time (a browser may first ask whether the page may reach this machine)"
    INTERRUPTED = "stopped before the trace was fetched"


def serve_trace(
    path: Path,
    *,
    announce: Callable[[str], object],
    port: int = PERFETTO_PORT,
    ui: str = PERFETTO_UI,
    browse: bool = False,
    timeout_seconds: float = 300.0,
    grace_seconds: float = 2.0,
) -> Ended:
    """Serve one file to a Perfetto UI, and say why it ended. Blocks; Ctrl-C ends it too.

    `announce` gets the link as soon as it can be opened; `browse` opens it here. `port` 0 takes a free one, for a `ui`
    of one's own. A `.gz` is sent as it is: the page unpacks it.

    Raises `TraceError` if the file is no regular file, cannot be read or shrinks meanwhile, and `ServingError` if the
    port is taken or the page would not fetch from it.
    """
    origin = _origin(ui)
    if origin == PERFETTO_UI and port != PERFETTO_PORT:
        raise ServingError(
            f"{PERFETTO_UI} cannot fetch a trace from port {port}",
            expected=f"port {PERFETTO_PORT}, the only one that the page's Content-Security-Policy allows",
            next_command=f"kernelgauge open TRACE --ui http://HOST:PORT --port {port}   (a Perfetto UI of your own)",
        )
    with _opened(path) as descriptor, _listening(port) as server:
        bound = server.server_address[1]
        server.offer = Offer(
            descriptor,
            os.fstat(descriptor).st_size,
            path=f"/{secrets.token_urlsafe(16)}/{quote(os.fsencode(path.name), safe='')}",
            hosts=(f"127.0.0.1:{bound}", f"localhost:{bound}"),
            origin=origin,
            where=printable(str(path)),
        )
        link = perfetto_link(f"http://127.0.0.1:{bound}{server.offer.path}", ui=ui)
        try:
            announce(link)
            if browse:  # not here: a browser in the terminal would block
                threading.Thread(target=_browse, args=(link,), daemon=True).start()
            return _wait(server, timeout_seconds, grace_seconds)
        except KeyboardInterrupt:
            return Ended.INTERRUPTED


@dataclass(frozen=True)
class Progress:
    """How far the fetching is. `last_seconds`: of the monotonic clock, when somebody last asked for or took a part."""

    last_seconds: float
    transfers: int = 0
    fetched: bool = False
    failure: TraceError | None = None

    def ended(self, now_seconds: float, timeout_seconds: float, grace_seconds: float) -> Ended | None:
        """Whether to stop now, and why: after a whole fetch and the grace, or when nothing has moved for too long."""
        idle_seconds = now_seconds - self.last_seconds
        if self.fetched and not self.transfers and idle_seconds >= grace_seconds:
            return Ended.FETCHED
        if idle_seconds >= timeout_seconds:
            return Ended.FETCHED if self.fetched else Ended.TIMED_OUT
        return None


@dataclass(frozen=True)
class Offer:
    """The file, already open, and who may have it under which path of a URL."""

    descriptor: int
    size_bytes: int
    path: str
    hosts: tuple[str, ...]
    origin: str
    where: str

    def refuses(self, *, hosts: Sequence[str], origin: str | None, path: str) -> HTTPStatus | None:
        """Why a request is refused, None if it is not. `hosts`: every Host header; `origin`: the Origin header.

        The Host is checked against DNS rebinding: a page whose own name points to 127.0.0.1 needs no permission to
        read from here, but its requests carry that name.
        """
        if len(hosts) != 1 or hosts[0] not in self.hosts or origin not in (None, self.origin):
            return HTTPStatus.FORBIDDEN
        return None if path == self.path else HTTPStatus.NOT_FOUND

    def chunks(self) -> Iterator[bytes]:
        """The file in parts. Raises `TraceError` if it cannot be read to the size that it had when it was opened."""
        sent = 0
        while sent < self.size_bytes:
            try:  # pread: each connection has its own place in the one descriptor
                chunk = os.pread(self.descriptor, min(_CHUNK_BYTES, self.size_bytes - sent), sent)
            except OSError as error:
                raise TraceError("cannot read the trace", where=self.where, got=str(error)) from error
            if not chunk:
                raise TraceError(
                    "the trace became shorter while it was served",
                    where=self.where,
                    got=f"{sent} bytes",
                    expected=f"{self.size_bytes} bytes, as when it was opened",
                )
            sent += len(chunk)
            yield chunk


class _Handler(BaseHTTPRequestHandler):
    """One request. HTTP/1.0 (http.server's default) closes the connection after it: none is kept alive."""

    server: _Server
    timeout = _STALLED_SECONDS
    server_version, sys_version = "kernelgauge", ""

    def do_GET(self) -> None:
        if self._answer(length=self.server.offer.size_bytes):
            self.server.send_file(self.wfile.write)

    def do_HEAD(self) -> None:
        self._answer(length=self.server.offer.size_bytes)

    def do_OPTIONS(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        # The page posts to /status to look for a trace_processor: it must learn at once that this is none.
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED)

    do_PUT = do_PATCH = do_DELETE = do_POST  # noqa: N815  (http.server's names)

    def _answer(self, status: HTTPStatus = HTTPStatus.OK, *, length: int = 0) -> bool:
        """Send the head of the answer; whether the request was accepted."""
        offer, origin = self.server.offer, self.headers.get("Origin")
        refused = offer.refuses(hosts=self.headers.get_all("Host", []), origin=origin, path=self.path)
        if refused is None:
            self.server.tell()
        self.send_response(refused or status)
        self.send_header("Content-Length", str(0 if refused else length))
        if origin == offer.origin:
            self.send_header("Access-Control-Allow-Origin", origin)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        return refused is None

    def log_message(self, *_: object) -> None:
        """Nothing: the link is a secret, and a library does not print."""


class _Server(ThreadingMixIn, TCPServer):
    """A thread for each connection: a browser opens spare ones that say nothing, and the one that asks must not wait.

    Not an `HTTPServer`, which looks this machine's name up in the DNS.
    """

    allow_reuse_address = True  # else the port is taken for a minute after a fetch
    request_queue_size = 64  # at socketserver's 5, a browser's spare connections make the next wait a second
    timeout = _POLL_SECONDS
    offer: Offer

    def __init__(self, port: int) -> None:
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self.progress = Progress(time.monotonic())
        super().__init__(("127.0.0.1", port), _Handler)

    def tell(self, *, transfers: int = 0, fetched: bool = False, failure: TraceError | None = None) -> None:
        """Something moved: note it, from any thread."""
        with self._lock:
            last = self.progress
            self.progress = Progress(
                time.monotonic(), last.transfers + transfers, last.fetched or fetched, last.failure or failure
            )

    def send_file(self, write: Callable[[bytes], object]) -> None:
        self.tell(transfers=1)
        whole, failure = False, None
        try:
            for chunk in self.offer.chunks():
                write(chunk)
                self.tell()
            whole = True
        except TraceError as error:
            failure = error
        finally:
            self.tell(transfers=-1, fetched=whole, failure=failure)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that breaks off harms only itself."""

    def server_close(self) -> None:
        """Wake the threads that wait for a client, and join them: the descriptor that they read from is about to close."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


def _wait(server: _Server, timeout_seconds: float, grace_seconds: float) -> Ended:
    server.tell()  # the clock starts when the link has been shown
    while True:
        server.handle_request()
        progress = server.progress
        if progress.failure is not None:
            raise progress.failure
        ended = progress.ended(time.monotonic(), timeout_seconds, grace_seconds)
        if ended is not None:
            return ended


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file: what is put at the path later is not what is served."""
    where = printable(str(path))
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(regular_file(path))
        except IrregularFileError as error:
            raise TraceError("cannot read the trace", where=where, got=str(error), expected="a file") from error
        except OSError as error:
            raise TraceError("cannot read the trace", where=where, got=error.strerror) from error
        yield descriptor


def _listening(port: int) -> _Server:
    try:
        return _Server(port)
    except (OSError, OverflowError) as error:
        raise ServingError(
            f"cannot listen on 127.0.0.1:{port}",
            got=str(error),
            expected="a free port",
            next_command=f"ss -ltnp 'sport = :{port}'   (who has it?)   "
            "kernelgauge open TRACE --ui http://HOST:PORT --port 0   (a Perfetto UI of your own)",
        ) from error


def _origin(ui: str) -> str:
    """The origin of a page as browsers send it: ``https://Host:443/path/`` -> ``https://host``."""
    with suppress(ValueError):  # no address, or a port that is no number
        parts = urlsplit(ui)
        standard = {"http": 80, "https": 443}.get(parts.scheme)
        if standard and parts.hostname and not (parts.query or parts.fragment or parts.username):
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port not in (None, standard) else "")
    raise ServingError(
        "not the address of a Perfetto UI",
        got=printable(ui),
        expected="http://HOST[:PORT] or https://HOST[:PORT]",
        next_command=f"kernelgauge open TRACE --ui {PERFETTO_UI}",
    )


def _browse(link: str) -> None:
    with suppress(webbrowser.Error):  # the link has been shown
        webbrowser.open(link)
