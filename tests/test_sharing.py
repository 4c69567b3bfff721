"""`kernelgauge show --open` and `kernelgauge publish`."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import fsspec
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem

from kernelgauge import sharing
from kernelgauge.cli import main
from tests.builders import chrome, kernel

TRACE = chrome(kernel(1, 0.0))
UI = "https://ui.perfetto.dev"


def url_in(link: str) -> str:
    """Return the URL that the Perfetto UI fetches when it is opened with this link: it decodes the parameter once."""
    assert link.startswith(f"{UI}/#!/?url=")
    return parse_qs(urlsplit(link).fragment.partition("?")[2])["url"][0]


# -- open -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve on a free port: another process of this machine may have Perfetto's."""
    assert sharing.ADDRESS == ("127.0.0.1", 9001)
    monkeypatch.setattr(sharing, "ADDRESS", ("127.0.0.1", 0))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.json"
    path.write_bytes(TRACE)
    return path


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Do this with the URL of the trace, as the page in a browser does."""

    def does(action: Callable[[str], None]) -> None:
        monkeypatch.setattr(webbrowser, "open", lambda link: action(url_in(link)))

    return does


def fetch(url: str, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=10)
    connection.request(method, parts.path, headers={"Origin": UI})
    response = connection.getresponse()
    return response, response.read()


def test_open_serves_the_file_once_and_ends(trace, page, capsys):
    fetched = []
    page(lambda url: fetched.append((url, *fetch(url))))
    assert main(["show", str(trace), "--open"]) == 0
    [(url, response, body)] = fetched
    assert (response.status, body) == (200, TRACE)
    assert response.headers["Access-Control-Allow-Origin"] == UI
    assert response.headers["Content-Length"] == str(len(TRACE))
    assert [url_in(line) for line in capsys.readouterr().out.splitlines()] == [url]
    with pytest.raises(ConnectionRefusedError):
        fetch(url)


def test_open_listens_on_loopback_only(trace, page):
    def elsewhere(url: str) -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", urlsplit(url).port or 0), timeout=5)
        fetch(url)

    page(elsewhere)
    assert main(["show", str(trace), "--open"]) == 0


@pytest.mark.parametrize("name", ["a b+c&d=e#f?g%20.json", "\u4e2d\u6587.json", "x\udcff.json", "\x1b[31m.json.gz"])
def test_open_serves_a_file_of_any_name(tmp_path, page, capsys, name):
    (tmp_path / name).write_bytes(TRACE)
    bodies = []
    page(lambda url: bodies.append(fetch(url)[1]))
    assert main(["show", str(tmp_path / name), "--open"]) == 0
    assert bodies == [TRACE]
    assert capsys.readouterr().out.strip().isprintable()


def test_open_serves_a_file_larger_than_the_buffers(tmp_path, page):
    large = tmp_path / "large.json"
    large.write_bytes(os.urandom(1 << 16) * 256)
    bodies = []
    page(lambda url: bodies.append(fetch(url)[1]))
    assert main(["show", str(large), "--open"]) == 0
    assert bodies == [large.read_bytes()]


def test_open_serves_no_other_path_and_waits_on(trace, page):
    statuses = []

    def tries(url: str) -> None:
        base = url.partition("//")[2].partition("/")[0]
        others = [f"http://{base}{path}" for path in ("/", "/mlp.json", "/../../etc/passwd")]
        statuses.extend(fetch(other)[0].status for other in [*others, f"{url}/", url.rpartition("/")[0]])
        statuses.append(fetch(f"http://{base}/status", "POST")[0].status)  # the page looks for a trace_processor
        statuses.append(fetch(url)[0].status)

    page(tries)
    assert main(["show", str(trace), "--open"]) == 0
    assert statuses == [404] * 5 + [501, 200]


def test_open_path_cannot_be_guessed(trace, page):
    paths = set()
    for _ in range(3):
        page(lambda url: (paths.add(urlsplit(url).path), fetch(url)))
        main(["show", str(trace), "--open"])
    assert len(paths) == 3
    assert all(len(path.split("/")[1]) >= 22 for path in paths)  # 128 bits


def test_open_waits_after_a_fetch_that_broke_off(tmp_path, page, capfd):
    large = tmp_path / "large.json"
    large.touch()
    os.truncate(large, 64 << 20)
    sizes = []

    def breaks_off(url: str) -> None:
        parts = urlsplit(url)
        silent = socket.create_connection(("127.0.0.1", parts.port or 0), timeout=5)
        with socket.create_connection(("127.0.0.1", parts.port or 0), timeout=5) as client:
            client.sendall(f"GET {parts.path} HTTP/1.0\r\n\r\n".encode())
            assert client.recv(1 << 10)
        sizes.append(len(fetch(url)[1]))
        silent.close()

    page(breaks_off)
    assert main(["show", str(large), "--open"]) == 0
    assert sizes == [64 << 20]
    assert capfd.readouterr().err == ""


def test_open_without_a_browser_prints_the_link(trace, monkeypatch, capsys):
    monkeypatch.setattr(webbrowser, "open", lambda link: False)
    codes = []
    command = threading.Thread(target=lambda: codes.append(main(["show", str(trace), "--open"])))
    command.start()
    out = ""
    while not out:
        out += capsys.readouterr().out
    assert fetch(url_in(out.strip()))[1] == TRACE
    command.join(timeout=10)
    assert codes == [0]


def test_open_interrupted_ends(trace, page):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    page(lambda url: threading.Timer(0.2, signal.pthread_kill, (main_thread, signal.SIGINT)).start())
    try:
        assert main(["show", str(trace), "--open"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)


def test_open_port_taken_is_an_error(trace, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = other.getsockname()
        monkeypatch.setattr(sharing, "ADDRESS", address)
        assert main(["show", str(trace), "--open"]) == 2
    said = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{address[1]}" in said
    assert "in use" in said
    assert f"ss -ltnp 'sport = :{address[1]}'" in said


@pytest.mark.parametrize("name", [".", "none.json", "fifo.json", "\x1b[2J.json"])
def test_open_without_a_file_is_an_error(tmp_path, capsys, name):
    os.mkfifo(tmp_path / "fifo.json")
    assert main(["show", str(tmp_path / name), "--open"]) == 2
    said = capsys.readouterr().err
    assert "no such trace file" in said
    assert "ls reports/latest/traces" in said
    assert "\x1b" not in said


# -- publish --------------------------------------------------------------------------------------------------------

MLP, TABLE = "traces/mlp-eager.json.gz", "traces/mlp-eager.txt"


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    root = tmp_path / "reports" / "latest"
    (root / "traces").mkdir(parents=True)
    (root / "results.json").write_bytes(b"{}")
    (root / MLP).write_bytes(b"\x1f\x8b trace")
    (root / TABLE).write_bytes(b"table")
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


@pytest.mark.parametrize("destination", ["{}/to/here", "file://{}/to/here/"])
def test_publish_copies_every_file_to_a_folder(reports, tmp_path, capsys, destination):
    destination = destination.format(tmp_path)
    assert main(["publish", str(reports), destination]) == 0
    assert contents(tmp_path / "to" / "here") == contents(reports)
    assert capsys.readouterr().out == f"3 files -> {destination}\n"


def test_publish_copies_every_file_to_a_store(reports, memory):
    assert main(["publish", str(reports), "memory://perf/h200/"]) == 0
    found = {path: file.getvalue() for path, file in memory.items()}
    assert found == {f"/perf/h200/{key}": content for key, content in contents(reports).items()}


def test_publish_again_overwrites_and_deletes_nothing(reports, tmp_path):
    main(["publish", str(reports), str(tmp_path / "to")])
    (tmp_path / "to" / "other.json.gz").write_bytes(b"kept")
    (reports / TABLE).write_bytes(b"new")
    assert main(["publish", str(reports), str(tmp_path / "to")]) == 0
    assert contents(tmp_path / "to") == contents(reports) | {"other.json.gz": b"kept"}


def test_publish_prints_a_link_for_each_trace(reports, memory, capsys):
    (reports / "traces" / "a b%.json.gz").write_bytes(b"\x1f\x8b")
    assert main(["publish", str(reports), "memory://perf", "--public-url", "https://bucket.example/perf/"]) == 0
    _, *links = capsys.readouterr().out.splitlines()
    base = "https://bucket.example/perf/traces"
    assert [url_in(link) for link in links] == [f"{base}/a%20b%25.json.gz", f"{base}/mlp-eager.json.gz"]


def test_publish_one_trace_prints_its_link(tmp_path, memory, capsys):
    (tmp_path / "mlp.json").write_bytes(TRACE)
    assert main(["publish", str(tmp_path / "mlp.json"), "memory://perf", "--public-url", "https://host"]) == 0
    first, link = capsys.readouterr().out.splitlines()
    assert (first, url_in(link)) == ("1 file -> memory://perf", "https://host/mlp.json")
    assert sorted(memory) == ["/perf/mlp.json"]


def test_publish_to_hugging_face_takes_the_links_of_its_store(reports, memory, monkeypatch, capsys):
    store = fsspec.filesystem("memory")
    store.url = lambda path: f"https://huggingface.co/resolve/{path}"  # HfFileSystem.url
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: (store, url.removeprefix("hf://")))
    try:
        assert main(["publish", str(reports), "hf://datasets/me/perf@v1"]) == 0
    finally:
        del store.url
    first, link = capsys.readouterr().out.splitlines()
    assert first == "3 files -> hf://datasets/me/perf@v1"
    assert url_in(link) == f"https://huggingface.co/resolve/datasets/me/perf@v1/{MLP}"


def test_publish_leaves_out_links_and_hidden_files(reports, tmp_path, memory):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"secret")
    (reports / "file").symlink_to(tmp_path / "secret" / "key")
    (reports / "folder").symlink_to(tmp_path / "secret")
    (reports / "again").symlink_to(reports)
    (reports / ".cache").mkdir()
    (reports / ".cache" / "x").write_bytes(b"x")
    (reports / "traces" / ".mlp.json.gz.x1y2.tmp").write_bytes(b"half")
    assert main(["publish", str(reports), "memory://perf"]) == 0
    assert sorted(memory) == ["/perf/results.json", f"/perf/{MLP}", f"/perf/{TABLE}"]


def test_publish_makes_no_folders_in_an_object_store(reports, memory, monkeypatch):
    """Else s3fs would make a bucket that is missing."""
    store = AsyncFileSystemWrapper(fsspec.filesystem("memory"), asynchronous=False)
    monkeypatch.setattr(store, "makedirs", lambda *_, **__: pytest.fail("a folder was made"))
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: (store, "/perf"))
    assert main(["publish", str(reports), "s3://perf"]) == 0
    assert sorted(memory) == ["/perf/results.json", f"/perf/{MLP}", f"/perf/{TABLE}"]


@pytest.mark.parametrize("name", ["none", "empty"])
def test_publish_of_nothing_is_an_error(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert main(["publish", str(tmp_path / name), str(tmp_path / "to")]) == 2
    said = capsys.readouterr().err
    assert "nothing to publish" in said
    assert "pytest perf" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([""], "no destination"),
        (["memory://perf", "--public-url", "http://host"], "https:// only"),
        (["nonesuch://bucket"], "Protocol not known: nonesuch"),
    ],
)
def test_publish_to_a_wrong_address_is_an_error(reports, memory, capsys, arguments, said):
    assert main(["publish", str(reports), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not memory


def test_publish_names_a_missing_package(reports, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules["fsspec.registry"].__dict__["_registry"], "s3", raising=False)
    assert main(["publish", str(reports), "s3://bucket/perf"]) == 2
    assert "Install s3fs" in capsys.readouterr().err


@pytest.mark.parametrize("error", [PermissionError(13, "Access Denied"), RuntimeError("no credentials")])
def test_publish_names_the_error_of_a_store(reports, memory, monkeypatch, capsys, error):
    def refuses(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "put_file", refuses)
    assert main(["publish", str(reports), "memory://perf"]) == 2
    said = capsys.readouterr().err
    assert f"{type(error).__name__}: {error}" in said
    assert "memory://perf" in said
    assert "kernelgauge publish REPORTS DEST" in said


def test_publish_hides_a_password(reports, monkeypatch, capsys):
    def refuses(url: str) -> None:
        raise OSError(f"cannot connect to {url} \x1b[2J")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuses)
    assert main(["publish", str(reports), "ftp://me:secret@host/perf"]) == 2
    said = capsys.readouterr().err
    assert said.count("ftp://***@host/perf") == 2
    assert "secret" not in said
    assert "\x1b" not in said
