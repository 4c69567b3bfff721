"""`kernelgauge publish`."""

import sys
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from kernelgauge.cli import main

MLP, TABLE = "traces/mlp-eager.json.gz", "traces/mlp-eager.txt"


def url_in(link: str) -> str:
    """Return the URL that the Perfetto UI fetches when it is opened with this link: it decodes the parameter once."""
    assert link.startswith("https://ui.perfetto.dev/#!/?url=")
    return parse_qs(urlsplit(link).fragment.partition("?")[2])["url"][0]


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
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_publish_overwrites_and_deletes_nothing(reports, tmp_path, capsys):
    (tmp_path / "to" / "traces").mkdir(parents=True)
    (tmp_path / "to" / TABLE).write_bytes(b"old")
    (tmp_path / "to" / "other.json.gz").write_bytes(b"kept")
    assert main(["publish", str(reports), f"file://{tmp_path}/to/"]) == 0
    assert contents(tmp_path / "to") == contents(reports) | {"other.json.gz": b"kept"}
    assert capsys.readouterr().out == f"3 files -> file://{tmp_path}/to/\n"


def test_publish_prints_a_link_for_each_trace(reports, memory, capsys):
    (reports / "traces" / "a b%.json.gz").write_bytes(b"\x1f\x8b")
    assert main(["publish", str(reports), "memory://perf", "--public-url", "https://bucket.example/perf/"]) == 0
    _, *links = capsys.readouterr().out.splitlines()
    base = "https://bucket.example/perf/traces"
    assert [url_in(link) for link in links] == [f"{base}/a%20b%25.json.gz", f"{base}/mlp-eager.json.gz"]
    assert {path: file.getvalue() for path, file in memory.items()} == {
        f"/perf/{key}": content for key, content in contents(reports).items()
    }
    memory.clear()
    assert main(["publish", str(reports / TABLE), "memory://perf", "--public-url", "https://host"]) == 0
    first, link = capsys.readouterr().out.splitlines()
    assert (first, url_in(link)) == ("1 file -> memory://perf", "https://host/mlp-eager.txt")
    assert list(memory) == ["/perf/mlp-eager.txt"]


def test_publish_leaves_out_links_hidden_files_and_folders(reports, tmp_path, memory):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"secret")
    for name, target in (("file", "secret/key"), ("folder", "secret"), ("again", "reports/latest")):
        (reports / name).symlink_to(tmp_path / target)
    (reports / ".cache").mkdir()
    for name in (".cache/x", "traces/.mlp.json.gz.x1y2.tmp"):
        (reports / name).write_bytes(b"half")
    assert main(["publish", str(reports), "memory://perf"]) == 0
    assert sorted(memory) == ["/perf/results.json", f"/perf/{MLP}", f"/perf/{TABLE}"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["reports/none", "memory://perf"], "nothing to publish"),
        (["reports/latest", ""], "invalid location"),
        (["reports/latest", "reports/latest/results.json"], "cannot write"),
        (["reports/latest", "memory://perf", "--public-url", "http://host"], "https:// only"),
        (["reports/latest", "nonesuch://me:secret@host/\x1b[2J"], "nonesuch://***@host/\\x1b[2J"),
        (["reports/latest", "s3://bucket/perf"], "Install s3fs"),
        (["reports/latest", "memory://full"], "memory://full/results.json\n  got      RuntimeError: no credentials"),
    ],
)
def test_publish_in_vain_is_an_error(reports, memory, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(reports.parents[1])
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules["fsspec.registry"].__dict__["_registry"], "s3", raising=False)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", Mock(side_effect=RuntimeError("no credentials")))
    assert main(["publish", *arguments]) == 2
    err = capsys.readouterr().err
    assert (reason in err, "me:secret" in err, "\x1b" in err, memory) == (True, False, False, {}), err
