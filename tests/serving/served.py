"""What the tests of serving share: a trace that a thread serves, and what is refused before."""

from __future__ import annotations

import http.client
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kernelgauge.errors import TraceError
from kernelgauge.serving import Ended, serve_trace
from tests.builders import chrome, kernel

SOURCE = Path(__file__).parents[2] / "src"
UI = "https://perfetto.example"
TRACE = chrome(kernel(1, 0.0))
MEGABYTE = 1 << 20


@dataclass
class Served:
    """A trace that a thread serves now. `outcome`: what `serve_trace` returned or raised, once it has."""

    link: str
    outcome: queue.Queue[object] = field(default_factory=queue.Queue)

    @property
    def url(self) -> str:
        """What the page asks for: it decodes the parameter once."""
        return parse_qs(urlsplit(self.link).fragment.partition("?")[2])["url"][0]

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    def ends(self, within_seconds: float = 5.0) -> object:
        return self.outcome.get(timeout=within_seconds)

    def ask(
        self, method: str = "GET", path: str | None = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request(method, self.path if path is None else path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response, body

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def tell(self, request: str) -> str:
        """Send these bytes, and take the first line of the answer."""
        with self.connect() as connection:
            connection.sendall(request.encode("latin-1"))
            return connection.makefile("rb").readline().decode("latin-1").strip()


@contextmanager
def served(path: Path, **changes: Any) -> Iterator[Served]:
    links: queue.Queue[str] = queue.Queue()
    outcome: queue.Queue[object] = queue.Queue()
    asked: dict[str, Any] = {"port": 0, "ui": UI, "timeout_seconds": 10.0, "grace_seconds": 0.0} | changes

    def serve() -> None:
        try:
            outcome.put(serve_trace(path, announce=links.put, **asked))
        except TraceError as error:
            outcome.put(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    it = Served(links.get(timeout=5), outcome)
    try:
        yield it
    finally:
        with suppress(OSError, http.client.HTTPException):
            it.ask()  # it ends after a fetch
        thread.join(timeout=15)
        assert not thread.is_alive()


def serve_here(path: Path, **changes: Any) -> Ended:
    """For what is refused before anything is served."""
    asked: dict[str, Any] = {"announce": lambda link: None, "port": 0, "ui": UI, "timeout_seconds": 0.0} | changes
    return serve_trace(path, **asked)
