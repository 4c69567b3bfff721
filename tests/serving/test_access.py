"""A trace is served to the page that was linked to, and to nobody else."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from kernelgauge.perfetto import PERFETTO_UI
from kernelgauge.serving import Ended
from tests.serving.served import TRACE, UI, served


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
