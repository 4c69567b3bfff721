"""`kernelgauge show --open` and `kernelgauge publish`."""

from __future__ import annotations

import http.client
import os
import queue
import signal
import socket
import sys
import threading
import webbrowser
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from kernelgauge.cli import main, traces
from tests.builders import chrome, kernel

TRACE = chrome(kernel(1, 0.0))
UI = "https://ui.perfetto.dev"


def url_in(link: str) -> str:
    """Return the URL that the Perfetto UI fetches when it is opened with this link: it decodes the parameter once."""
    assert link.startswith(f"{UI}/#!/?url=")
    return parse_qs(urlsplit(link).fragment.partition("?")[2])["url"][0]


# -- show --open ----------------------------------------------------------------------------------------------------


@pytest.fixture
def open_trace(tmp_path, monkeypatch, capsys):
    """Open a trace, and do this with its URL as the page in a browser does. Return exit code, output and errors."""
    assert traces.ADDRESS == ("127.0.0.1", 9001)
    monkeypatch.setattr(traces, "ADDRESS", ("127.0.0.1", 0))  # another process may have Perfetto's port

    def call(page, content=TRACE, name="mlp.json"):
        (tmp_path / name).write_bytes(content)
        monkeypatch.setattr(webbrowser, "open", lambda link: page(url_in(link)))
        return (main(["show", str(tmp_path / name), "--open"]), *capsys.readouterr())

    return call


def fetch(url: str, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=10)
    connection.request(method, parts.path, headers={"Origin": UI})
    response = connection.getresponse()
    return response, response.read()


@pytest.mark.parametrize(
    "name", ["mlp.json", "a b+c&d=e#f?g%20.json", "x\udcff\u4e2d.json", "\x1b[31m.json.gz", "large"]
)
def test_open_serves_file_once_and_ends(open_trace, name):
    fetched, content = [], bytes(16 << 20) if name == "large" else TRACE
    code, out, err = open_trace(lambda url: fetched.append((url, *fetch(url))), content, name)
    [(url, response, body)] = fetched
    assert (code, err, response.status, body == content) == (0, "", 200, True)
    assert response.headers["Access-Control-Allow-Origin"] == UI
    assert response.headers["Content-Length"] == str(len(content))
    assert (url_in(out.strip()), out.strip().isprintable()) == (url, True)
    with pytest.raises(ConnectionRefusedError):
        fetch(url)


def test_open_serves_nothing_else(open_trace):
    statuses, paths = [], set()

    def page(url: str) -> None:
        parts = urlsplit(url)
        base = f"http://{parts.netloc}"
        paths.add(parts.path)
        with pytest.raises(ConnectionRefusedError):  # it listens on loopback only
            socket.create_connection(("127.0.0.2", parts.port or 0), timeout=5)
        others = (f"{base}/", f"{base}/mlp.json", f"{base}/../../etc/passwd", f"{url}/", url.rpartition("/")[0])
        statuses.extend(fetch(other)[0].status for other in others)
        statuses.append(fetch(f"{base}/status", "POST")[0].status)  # the page looks for a trace_processor
        statuses.append(fetch(url)[0].status)

    assert [open_trace(page)[0] for _ in range(2)] == [0, 0]
    assert statuses == [*[404] * 5, 501, 200] * 2
    assert len(paths) == 2  # the path is a secret of 128 bits
    assert all(len(path.split("/")[1]) >= 22 for path in paths)


def test_open_waits_after_broken_fetch(open_trace):
    urls, ended = queue.SimpleQueue(), []

    def page(url: str) -> None:
        address, path = ("127.0.0.1", urlsplit(url).port or 0), urlsplit(url).path
        with socket.create_connection(address, timeout=5), socket.create_connection(address, timeout=5) as client:
            client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            assert client.recv(1 << 10)
        urls.put(url)

    command = threading.Thread(target=lambda: ended.append(open_trace(page, bytes(64 << 20))))
    command.start()
    url = urls.get(timeout=60)
    command.join(timeout=0.5)
    assert command.is_alive()
    assert len(fetch(url)[1]) == 64 << 20
    command.join(timeout=60)
    assert ended[0][::2] == (0, "")


def test_open_without_browser_waits_for_the_page(open_trace):
    def no_browser(url: str) -> bool:
        threading.Thread(target=fetch, args=(url,)).start()
        return False

    assert open_trace(no_browser)[0] == 0


def test_open_interrupted_exits_with_130(open_trace):
    def page(url: str) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        assert open_trace(page)[0] == 130
    finally:
        signal.signal(signal.SIGINT, before)


def test_open_port_taken_is_an_error(open_trace, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(traces, "ADDRESS", other.getsockname())
        port = other.getsockname()[1]
        code, out, err = open_trace(fetch)
    assert (code, out, "in use" in err) == (2, "", True)
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert f"ss -ltnp 'sport = :{port}'" in err


@pytest.mark.parametrize("name", [".", "none.json", "fifo.json", "\x1b[2J.json"])
def test_open_without_file_is_an_error(tmp_path, capsys, name):
    os.mkfifo(tmp_path / "fifo.json")
    assert main(["show", str(tmp_path / name), "--open"]) == 2
    err = capsys.readouterr().err
    assert ("no such trace file" in err, "ls reports/latest/traces" in err, "\x1b" in err) == (True, True, False)


# -- publish --------------------------------------------------------------------------------------------------------

MLP, TABLE = "traces/mlp-eager.json.gz", "traces/mlp-eager.txt"


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    root = tmp_path / "reports" / "latest"
    (root / "traces").mkdir(parents=True)
    for name in ("results.json", MLP, TABLE):
        (root / name).write_bytes(name.encode())
    return root


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """An empty memory:// of this test's own: path -> file."""
    store: dict[str, object] = {}
    monkeypatch.setattr(MemoryFileSystem, "store", store)
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    return store


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("destination", ["{}/to", "file://{}/to/"])
def test_publish_overwrites_and_deletes_nothing(reports, tmp_path, capsys, destination):
    (tmp_path / "to" / "traces").mkdir(parents=True)
    (tmp_path / "to" / TABLE).write_bytes(b"old")
    (tmp_path / "to" / "other.json.gz").write_bytes(b"kept")
    assert main(["publish", str(reports), destination.format(tmp_path)]) == 0
    assert contents(tmp_path / "to") == contents(reports) | {"other.json.gz": b"kept"}
    assert capsys.readouterr().out == f"3 files -> {destination.format(tmp_path)}\n"


def test_publish_prints_a_link_for_each_trace(reports, memory, capsys):
    (reports / "traces" / "a b%.json.gz").write_bytes(b"\x1f\x8b")
    assert main(["publish", str(reports), "memory://perf", "--public-url", "https://bucket.example/perf/"]) == 0
    _, *links = capsys.readouterr().out.splitlines()
    base = "https://bucket.example/perf/traces"
    assert [url_in(link) for link in links] == [f"{base}/a%20b%25.json.gz", f"{base}/mlp-eager.json.gz"]
    assert {path: file.getvalue() for path, file in memory.items()} == {
        f"/perf/{key}": content for key, content in contents(reports).items()
    }


def test_publish_one_trace_prints_its_link(tmp_path, memory, capsys):
    (tmp_path / "mlp.json").write_bytes(TRACE)
    assert main(["publish", str(tmp_path / "mlp.json"), "memory://perf", "--public-url", "https://host"]) == 0
    first, link = capsys.readouterr().out.splitlines()
    assert (first, url_in(link)) == ("1 file -> memory://perf", "https://host/mlp.json")
    assert list(memory) == ["/perf/mlp.json"]


def test_publish_leaves_out_links_and_hidden_files(reports, tmp_path, memory):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"secret")
    for name, target in (("file", "secret/key"), ("folder", "secret"), ("again", "reports/latest")):
        (reports / name).symlink_to(tmp_path / target)
    (reports / ".cache").mkdir()
    for name in (".cache/x", "traces/.mlp.json.gz.x1y2.tmp"):
        (reports / name).write_bytes(b"half")
    assert main(["publish", str(reports), "memory://perf"]) == 0
    assert sorted(memory) == ["/perf/results.json", f"/perf/{MLP}", f"/perf/{TABLE}"]


class ObjectStore(AsyncFileSystem):
    """Store files asynchronously, as s3fs does, in the file system of fsspec that is in memory."""

    async def _pipe_file(self, path, value, **_):
        fsspec.filesystem("memory").pipe_file(path, value)


def test_publish_makes_no_folders_in_an_object_store(reports, memory, monkeypatch):
    store = ObjectStore()
    monkeypatch.setattr(store, "makedirs", lambda *_, **__: pytest.fail("s3fs would make a missing bucket"))
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: (store, "/perf"))
    assert main(["publish", str(reports), "s3://perf"]) == 0
    assert sorted(memory) == ["/perf/results.json", f"/perf/{MLP}", f"/perf/{TABLE}"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["reports/none", "memory://perf"], "nothing to publish"),
        (["reports/latest", ""], "invalid location"),
        (["reports/latest", "memory://perf", "--public-url", "http://host"], "https:// only"),
        (["reports/latest", "nonesuch://me:secret@host/\x1b[2J"], "nonesuch://***@host/\\x1b[2J"),
        (["reports/latest", "s3://bucket/perf"], "Install s3fs"),
    ],
)
def test_publish_in_vain_is_an_error(reports, memory, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(reports.parents[1])
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules["fsspec.registry"].__dict__["_registry"], "s3", raising=False)
    assert main(["publish", *arguments]) == 2
    err = capsys.readouterr().err
    assert (reason in err, "me:secret" in err, "\x1b" in err, memory) == (True, False, False, {})


@pytest.mark.parametrize("error", [PermissionError(13, "Access Denied"), RuntimeError("no credentials")])
def test_publish_names_the_error_of_a_store(reports, memory, monkeypatch, capsys, error):
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    assert main(["publish", str(reports), "memory://perf"]) == 2
    err = capsys.readouterr().err
    assert all(text in err for text in (f"{type(error).__name__}: {error}", "memory://perf"))
