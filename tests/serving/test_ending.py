"""A trace is not served for longer than it takes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from kernelgauge.serving import Ended, Progress
from tests.serving.served import MEGABYTE, SOURCE, TRACE, UI, served


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
