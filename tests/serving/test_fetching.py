"""A trace served to the Perfetto UI: all of it, as it is in its file."""

from __future__ import annotations

import gzip
import http.client
import os
import queue
import threading
from pathlib import Path

import pytest

from kernelgauge import serving
from kernelgauge.errors import TraceError
from kernelgauge.serving import Ended
from tests.builders import waits_for_a_writer
from tests.serving.served import MEGABYTE, TRACE, UI, serve_here, served

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
