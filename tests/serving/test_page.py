"""Where a trace is served from, which page it is linked to, and the browser that opens it."""

from __future__ import annotations

import queue
import socket
import threading
import time
import webbrowser
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from kernelgauge.errors import ServingError
from kernelgauge.perfetto import PERFETTO_PORT, PERFETTO_UI, perfetto_link
from kernelgauge.serving import Ended
from tests.serving.served import TRACE, serve_here, served

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
