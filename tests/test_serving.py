"""A trace served to the Perfetto UI: to nobody else, from nowhere else, and not for longer than it takes."""

from __future__ import annotations

import gzip
import http.client
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kernelgauge import serving
from kernelgauge.errors import ServingError, TraceError
from kernelgauge.perfetto import PERFETTO_PORT, PERFETTO_UI, perfetto_link
from kernelgauge.serving import Ended, Progress, serve_trace
from tests.builders import chrome, kernel, waits_for_a_writer

SOURCE = Path(__file__).parents[1] / "src"
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


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.json"
    path.write_bytes(TRACE)
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """More than the buffers of a connection hold; sparse."""
    path = tmp_path / "large.json"
    path.touch()
    os.truncate(path, 64 * MEGABYTE)
    return path


def serve_here(path: Path, **changes: Any) -> Ended:
    """For what is refused before anything is served."""
    asked: dict[str, Any] = {"announce": lambda link: None, "port": 0, "ui": UI, "timeout_seconds": 0.0} | changes
    return serve_trace(path, **asked)


# -- one fetch ------------------------------------------------------------------------------------------------------


def test_the_page_gets_the_whole_file_and_then_it_ends(trace: Path) -> None:
    with served(trace) as it:
        response, body = it.ask(Origin=UI)
        assert (response.status, body) == (200, TRACE)
        assert response.headers["Content-Length"] == str(len(TRACE))
        assert response.headers["Access-Control-Allow-Origin"] == UI
        assert response.headers["Vary"] == "Origin"
        assert response.headers["Cache-Control"] == "no-store"
        assert it.ends() is Ended.FETCHED
        with pytest.raises(ConnectionRefusedError):
            it.connect()


def test_a_compressed_trace_is_sent_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mlp.json.gz"
    path.write_bytes(gzip.compress(TRACE))
    with served(path) as it:
        response, body = it.ask(**{"Accept-Encoding": "gzip, deflate"})
        assert response.headers["Content-Encoding"] is None
        assert body == path.read_bytes()


def test_the_link_opens_the_url_of_the_file_in_the_page(trace: Path) -> None:
    with served(trace, ui=f"{UI}/v1/") as it:
        assert it.link.startswith(f"{UI}/v1/#!/?url=http://127.0.0.1:{it.port}/")
        assert it.link.endswith("/mlp.json")
        assert it.ask(Origin=UI)[1] == TRACE


def test_nobody_can_guess_the_path_of_the_file(trace: Path) -> None:
    paths = set()
    for _ in range(3):
        with served(trace) as it:
            paths.add(it.path)
    assert len(paths) == 3
    assert all(len(path.split("/")[1]) >= 22 for path in paths)  # 128 bits


@pytest.mark.parametrize("name", ["a b+c&d=e#f?g%20.json", "\u4e2d\u6587.json", "x\udcff.json", "\x1b[31m.json"])
def test_a_file_of_any_name_can_be_fetched(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(TRACE)
    with served(path) as it:
        assert it.link.isascii()
        assert it.link.isprintable()
        assert it.ask()[1] == TRACE


def test_a_large_file_is_sent_whole_and_in_small_parts(large: Path) -> None:
    with large.open("r+b") as file:
        file.seek(40 * MEGABYTE + 7)
        file.write(b"here")
    descriptor = os.open(large, os.O_RDONLY)
    offer = serving.Offer(descriptor, large.stat().st_size, "/x", ("127.0.0.1:1",), UI, "large")
    try:
        assert max(len(chunk) for chunk in offer.chunks()) <= MEGABYTE
    finally:
        os.close(descriptor)
    with served(large) as it:
        assert it.ask()[1] == large.read_bytes()


def test_a_disk_that_reads_less_than_it_was_asked_for_loses_nothing(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.pread
    monkeypatch.setattr(serving.os, "pread", lambda descriptor, size, offset: read(descriptor, min(size, 7), offset))
    with served(trace) as it:
        assert it.ask()[1] == TRACE


def test_two_pages_at_once_both_get_the_whole_file(large: Path) -> None:
    sizes: queue.Queue[int] = queue.Queue()
    with served(large) as it:
        clients = [threading.Thread(target=lambda: sizes.put(len(it.ask()[1]))) for _ in range(2)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert [sizes.get(timeout=1), sizes.get(timeout=1)] == [64 * MEGABYTE] * 2
        assert it.ends() is Ended.FETCHED


def test_within_the_grace_it_can_be_fetched_again(trace: Path) -> None:
    with served(trace, grace_seconds=1.0) as it:
        assert it.ask()[1] == it.ask()[1] == TRACE
        assert it.ends() is Ended.FETCHED


# -- who may have it ------------------------------------------------------------------------------------------------


def test_a_head_is_answered_without_the_file_and_ends_nothing(trace: Path) -> None:
    with served(trace) as it:
        response, body = it.ask("HEAD")
        assert (response.status, response.headers["Content-Length"], body) == (200, str(len(TRACE)), b"")
        time.sleep(0.3)
        assert it.ask()[1] == TRACE


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/mlp.json",
        "/..",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/status",
        "*",
        "mlp.json",
    ],
)
def test_any_other_path_is_not_found(trace: Path, path: str) -> None:
    with served(trace) as it:
        response, body = it.ask(path=path)
        assert (response.status, body) == (404, b"")


@pytest.mark.parametrize("change", ["{}?x", "{}/", "{}/..", "{}/../mlp.json", "{}%00", "http://x{}"])
def test_only_the_exact_path_is_served(trace: Path, change: str) -> None:
    with served(trace) as it:
        own = f"127.0.0.1:{it.port}"
        assert it.ask(path=change.format(it.path), Host=own)[0].status == 404
        assert it.ask(path=it.path.rpartition("/")[0] + "/")[0].status == 404  # no listing of the folder


@pytest.mark.parametrize(
    "host", ["evil.example:{}", "127.0.0.1", "localhost", "127.0.0.1:1", "127.0.0.1:{}.evil.example", ""]
)
def test_a_request_with_the_name_of_another_host_is_refused(trace: Path, host: str) -> None:
    with served(trace) as it:
        response, body = it.ask(Host=host.format(it.port))
        assert (response.status, body) == (403, b"")


def test_a_request_with_no_host_or_with_two_is_refused(trace: Path) -> None:
    with served(trace) as it:
        own = f"Host: 127.0.0.1:{it.port}\r\n"
        assert it.tell(f"GET {it.path} HTTP/1.0\r\n\r\n").endswith("403 Forbidden")
        assert it.tell(f"GET {it.path} HTTP/1.1\r\n{own}Host: evil.example\r\n\r\n").endswith("403 Forbidden")
        assert it.tell(f"GET {it.path} HTTP/1.1\r\n{own}\r\n").endswith("200 OK")


def test_this_machine_may_be_called_localhost(trace: Path) -> None:
    with served(trace) as it:
        assert it.ask(Host=f"localhost:{it.port}")[1] == TRACE


def test_it_listens_on_one_address_only(trace: Path) -> None:
    with served(trace) as it, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", it.port), timeout=5)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", f"{UI}.evil.example", f"{UI}:8443", UI.upper(), PERFETTO_UI]
)
def test_another_page_is_refused_and_ends_nothing(trace: Path, origin: str) -> None:
    with served(trace) as it:
        response, body = it.ask(Origin=origin)
        assert (response.status, body) == (403, b"")
        assert response.headers["Access-Control-Allow-Origin"] is None
        time.sleep(0.3)
        assert it.ask()[1] == TRACE


def test_a_client_that_is_no_page_needs_no_permission(trace: Path) -> None:
    with served(trace) as it:
        response, _ = it.ask()
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (200, None)


def test_a_preflight_is_answered_to_the_page(trace: Path) -> None:
    with served(trace) as it:
        response, body = it.ask("OPTIONS", Origin=UI, **{"Access-Control-Request-Private-Network": "true"})
        assert (response.status, body) == (200, b"")
        assert response.headers["Access-Control-Allow-Origin"] == UI
        assert response.headers["Access-Control-Allow-Methods"] == "GET, HEAD"
        assert response.headers["Access-Control-Allow-Private-Network"] == "true"
        response, _ = it.ask("OPTIONS", Origin="https://evil.example")
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (403, None)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_sent(trace: Path, method: str) -> None:
    with served(trace) as it:
        response, body = it.ask(method)
        assert (response.status, response.headers["Allow"], body) == (405, "GET, HEAD, OPTIONS", b"")
    assert trace.read_bytes() == TRACE


def test_the_page_learns_at_once_that_this_is_no_trace_processor(trace: Path) -> None:
    with served(trace) as it:
        response, body = it.ask("POST", "/status", Origin=UI)
        assert (response.status, response.headers["Access-Control-Allow-Origin"], body) == (404, UI, b"")
        assert it.ask(Origin=UI)[1] == TRACE


@pytest.mark.parametrize(
    "request_bytes",
    [
        "\r\n\r\n",
        "BREW /x HTTP/1.1\r\n\r\n",
        "GET\r\n\r\n",
        "\x16\x03\x01",
        "GET / HTTP/9\r\n\r\n",
        "GET / HTTP/1.1\r\n" + "a: b\r\n" * 200,
    ],
)
def test_nonsense_harms_nobody_and_prints_nothing(
    trace: Path, request_bytes: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with served(trace) as it:
        with it.connect() as connection:
            connection.sendall(request_bytes.encode("latin-1"))
        assert it.ask()[1] == TRACE
        assert it.ends() is Ended.FETCHED
    assert capfd.readouterr() == ("", "")


# -- when it ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "ended"),
    [
        (Progress(99.0), None),
        (Progress(91.0), None),
        (Progress(90.0), Ended.TIMED_OUT),
        (Progress(90.0, transfers=1), Ended.TIMED_OUT),  # it has stalled
        (Progress(99.0, fetched=True), None),  # the grace
        (Progress(98.0, fetched=True), Ended.FETCHED),
        (Progress(98.0, fetched=True, transfers=1), None),  # another is under way
        (Progress(90.0, fetched=True, transfers=1), Ended.FETCHED),  # the other has stalled
    ],
)
def test_it_ends_after_a_whole_fetch_and_the_grace_or_when_nothing_moves(
    progress: Progress, ended: Ended | None
) -> None:
    assert progress.ended(100.0, timeout_seconds=10.0, grace_seconds=2.0) is ended


def test_it_ends_by_itself_when_nobody_comes(trace: Path) -> None:
    with served(trace, timeout_seconds=0.3) as it:
        started = time.monotonic()
        assert it.ends() is Ended.TIMED_OUT
        assert time.monotonic() - started < 2


def test_clients_that_say_nothing_hold_up_neither_a_fetch_nor_the_end(trace: Path) -> None:
    with served(trace) as it:
        started = time.monotonic()
        silent = [it.connect() for _ in range(40)]
        assert it.ask()[1] == TRACE
        assert it.ends() is Ended.FETCHED
        assert time.monotonic() - started < 0.9  # a second: a connection was dropped and tried again
        assert [client.recv(1) for client in silent] == [b""] * 40  # they were hung up on
        for client in silent:
            client.close()


def test_clients_that_say_nothing_or_half_of_it_do_not_stretch_the_timeout(trace: Path) -> None:
    with served(trace, timeout_seconds=0.5) as it, it.connect() as silent, it.connect() as slow:
        slow.sendall(b"GET /")
        assert it.ends(within_seconds=3) is Ended.TIMED_OUT
        assert silent.recv(1) == b""


def test_requests_for_anything_else_do_not_stretch_the_timeout(trace: Path) -> None:
    with served(trace, timeout_seconds=0.5) as it:
        deadline = time.monotonic() + 3
        with suppress(OSError):  # at last nobody listens
            while time.monotonic() < deadline:
                assert it.ask("POST", "/status", Origin=UI)[0].status == 404
        assert time.monotonic() < deadline
        assert it.ends() is Ended.TIMED_OUT


def test_a_client_that_leaves_in_the_middle_has_not_fetched_it(large: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(large) as it:
        with it.connect() as connection:
            connection.sendall(f"GET {it.path} HTTP/1.1\r\nHost: 127.0.0.1:{it.port}\r\n\r\n".encode())
            assert connection.recv(MEGABYTE)
        time.sleep(0.5)
        assert it.outcome.empty()
        assert len(it.ask()[1]) == 64 * MEGABYTE
        assert it.ends() is Ended.FETCHED
    assert capfd.readouterr() == ("", "")


def test_a_client_that_stops_reading_does_not_hold_up_the_end(large: Path) -> None:
    with served(large, timeout_seconds=0.5) as it, it.connect() as connection:
        connection.sendall(f"GET {it.path} HTTP/1.1\r\nHost: 127.0.0.1:{it.port}\r\n\r\n".encode())
        assert it.ends(within_seconds=5) is Ended.TIMED_OUT


def test_a_slow_client_is_served_for_longer_than_the_timeout(large: Path) -> None:
    with served(large, timeout_seconds=0.6) as it, it.connect() as connection:
        started = time.monotonic()
        connection.sendall(f"GET {it.path} HTTP/1.1\r\nHost: 127.0.0.1:{it.port}\r\n\r\n".encode())
        reader = connection.makefile("rb")
        while reader.readline().strip():
            pass
        taken = 0
        while part := reader.read(4 * MEGABYTE):
            taken += len(part)
            time.sleep(0.1)
        assert taken == 64 * MEGABYTE
        assert time.monotonic() - started > 1.2
        assert it.ends() is Ended.FETCHED


def test_ctrl_c_ends_it(trace: Path) -> None:
    script = (
        "import signal, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from kernelgauge.serving import serve_trace\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job inherits that it is ignored
        "show = lambda link: print(link, flush=True)\n"
        "print(serve_trace(Path(sys.argv[2]), announce=show, port=0, ui='https://perfetto.example').name)"
    )
    with subprocess.Popen([sys.executable, "-c", script, SOURCE, trace], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(UI)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=10)[0] == "INTERRUPTED\n"
    assert process.returncode == 0


# -- the file -------------------------------------------------------------------------------------------------------


def test_a_fifo_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    fifo = tmp_path / "trace.json"
    os.mkfifo(fifo)
    waits, error = waits_for_a_writer(fifo, lambda: serve_here(fifo))
    assert not waits
    assert isinstance(error, TraceError)
    assert error.got == "not a regular file"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="not a regular file"):
        serve_here(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        serve_here(tmp_path / "none.json")


def test_the_name_of_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        serve_here(tmp_path / "\x1b[2J.json")
    assert "\x1b" not in str(caught.value)


def test_what_is_put_in_its_place_is_not_served(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "secret"
    other.write_text("secret")
    with served(trace) as it:
        trace.unlink()
        trace.symlink_to(other)
        assert it.ask()[1] == TRACE


def test_a_file_that_shrinks_meanwhile_is_an_error_and_no_fetch(large: Path) -> None:
    with served(large) as it:
        os.truncate(large, MEGABYTE)
        with pytest.raises(http.client.IncompleteRead):
            it.ask()
        error = it.ends()
        assert isinstance(error, TraceError)
        assert (error.got, error.expected) == (f"{MEGABYTE} bytes", f"{64 * MEGABYTE} bytes, as when it was opened")


# -- the port and the page ------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_an_error_with_the_next_command(trace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServingError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            serve_here(trace, port=port)
    assert "in use" in (caught.value.got or "")
    assert "--port" in (caught.value.next_command or "")


def test_a_port_that_is_none_is_an_error(trace: Path) -> None:
    with pytest.raises(ServingError, match="70000"):
        serve_here(trace, port=70000)


@pytest.mark.parametrize("ui", [PERFETTO_UI, f"{PERFETTO_UI}/", f"{PERFETTO_UI}:443/v50/", PERFETTO_UI.upper()])
def test_a_port_that_the_page_must_not_fetch_from_is_refused(trace: Path, ui: str) -> None:
    with pytest.raises(ServingError, match="from port 9002") as caught:
        serve_here(trace, ui=ui, port=9002)
    assert str(PERFETTO_PORT) in (caught.value.expected or "")


@pytest.mark.parametrize(
    ("ui", "origin"),
    [
        ("http://localhost:10000", "http://localhost:10000"),
        ("HTTPS://Perfetto.Example:443/v50/", "https://perfetto.example"),
        ("http://perfetto.example:80", "http://perfetto.example"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
    ],
)
def test_a_ui_of_ones_own_is_served_by_its_origin(trace: Path, ui: str, origin: str) -> None:
    with served(trace, ui=ui) as it:
        response, body = it.ask(Origin=origin)
        assert (response.headers["Access-Control-Allow-Origin"], body) == (origin, TRACE)


@pytest.mark.parametrize(
    "ui",
    ["", "perfetto.example", "file:///tmp/ui", "https://", "http://h:x", "http://[", "https://h/?a=b", "https://h/#!/"],
)
def test_an_address_that_is_no_ui_is_refused(trace: Path, ui: str) -> None:
    with pytest.raises(ServingError, match="not the address of a Perfetto UI"):
        serve_here(trace, ui=ui)


@pytest.mark.parametrize("url", ["https://h/a%20b/c.json.gz", "https://h/a+b&c=d#e?f"])
def test_the_page_decodes_a_link_to_the_url_that_was_meant(url: str) -> None:
    link = perfetto_link(url)
    assert link.startswith(f"{PERFETTO_UI}/#!/?url=https://h/a")
    assert parse_qs(link.partition("?")[2]) == {"url": [url]}


# -- the browser ----------------------------------------------------------------------------------------------------


def test_a_browser_is_opened_only_if_asked_and_after_the_link_was_shown(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(webbrowser, "open", opened.put)
    with served(trace) as it:
        pass
    assert opened.empty()
    with served(trace, browse=True) as it:
        assert opened.get(timeout=5) == it.link


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_browser_that_blocks_or_is_missing_does_not_hold_up_the_fetch(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    closed = threading.Event()

    def blocks(link: str) -> bool:
        closed.wait(timeout=30)
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "open", blocks)
    with served(trace, browse=True) as it:
        assert it.ask()[1] == TRACE
        assert it.ends() is Ended.FETCHED
    closed.set()
    time.sleep(0.1)
    assert capfd.readouterr() == ("", "")
