"""Reports copied to a store: what goes where is planned first, nothing else is touched, and every failure is named."""

from __future__ import annotations

import os
import sys
import threading
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs
from urllib.request import urlopen

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from kernelgauge.errors import PublishingError
from kernelgauge.publishing import Folder, Found, find, plan, public_base, publish

TRACE, TABLE = "traces/mlp-eager.json.gz", "traces/mlp-eager.txt"
PUBLIC = "https://bucket.example/perf"
FOLDER = Folder(Path("reports/latest"), (Found("junit.xml", 3), Found(TRACE, 10), Found(TABLE, 5)))


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """What a run leaves."""
    root = tmp_path / "reports" / "latest"
    (root / "traces").mkdir(parents=True)
    (root / "junit.xml").write_bytes(b"<x>")
    (root / TRACE).write_bytes(b"\x1f\x8b trace")
    (root / TABLE).write_bytes(b"table")
    return root


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An empty memory:// of this test's own: path -> file."""
    store: dict[str, Any] = {}
    monkeypatch.setattr(MemoryFileSystem, "store", store)
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    return store


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def fetched_by(link: str | None) -> str:
    """The URL that the page asks for when it is opened with this link: it decodes the parameter once."""
    assert link is not None
    return parse_qs(link.partition("?")[2])["url"][0]


# -- the plan -------------------------------------------------------------------------------------------------------


def test_every_file_keeps_its_place_below_the_destination() -> None:
    planned = plan(FOLDER, "s3://bucket/perf")
    assert [(str(copy.source), copy.key, copy.size_bytes) for copy in planned.copies] == [
        ("reports/latest/junit.xml", "junit.xml", 3),
        (f"reports/latest/{TRACE}", TRACE, 10),
        (f"reports/latest/{TABLE}", TABLE, 5),
    ]
    assert planned.size_bytes == 18


def test_only_a_trace_with_a_public_address_gets_a_link() -> None:
    assert [copy.link for copy in plan(FOLDER, "s3://bucket/perf").copies] == [None, None, None]
    links = {copy.key: copy.link for copy in plan(FOLDER, "s3://bucket/perf", public_url=f"{PUBLIC}/").copies}
    assert links == {"junit.xml": None, TRACE: f"https://ui.perfetto.dev/#!/?url={PUBLIC}/{TRACE}", TABLE: None}


def test_the_link_is_for_the_ui_that_was_asked_for() -> None:
    planned = plan(FOLDER, "s3://bucket", public_url=PUBLIC, ui="https://perfetto.example/v1/")
    assert planned.copies[1].link == f"https://perfetto.example/v1/#!/?url={PUBLIC}/{TRACE}"


def test_the_page_asks_for_the_file_whatever_its_name_is() -> None:
    folder = Folder(Path("r"), (Found("a b&c=d#e?f+g%20.json.gz", 1),))
    (copy,) = plan(folder, "s3://bucket", public_url=f"{PUBLIC}/x%20y").copies
    assert fetched_by(copy.link) == f"{PUBLIC}/x%20y/a%20b%26c%3Dd%23e%3Ff%2Bg%2520.json.gz"


@pytest.mark.parametrize(
    "public_url",
    [
        "http://bucket.example/perf",
        "bucket.example/perf",
        f"{PUBLIC}?X-Amz-Signature=1",
        f"{PUBLIC}#x",
        "https://user:secret@bucket.example/",
        "https://",
        f"{PUBLIC}/a b",
        f"{PUBLIC}\n",
    ],
)
def test_a_public_url_that_the_page_does_not_fetch_from_is_refused(public_url: str) -> None:
    with pytest.raises(PublishingError, match="cannot fetch from this public URL") as caught:
        plan(FOLDER, "s3://bucket", public_url=public_url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("destination", ["", "https://bucket.example/perf", "HTTP://h/x", "simplecache::s3://bucket"])
def test_a_destination_that_is_no_store_is_refused(destination: str) -> None:
    with pytest.raises(PublishingError, match="cannot be copied there") as caught:
        plan(FOLDER, destination)
    assert "s3://BUCKET/PREFIX --public-url" in (caught.value.next_command or "")


def test_nothing_to_publish_is_an_error() -> None:
    with pytest.raises(PublishingError, match="nothing to publish"):
        plan(Folder(Path("reports/latest"), ()), "s3://bucket")


def test_the_lines_say_how_much_what_is_missing_and_where_to_look() -> None:
    folder = Folder(FOLDER.root, (Found("\x1b[2J.json.gz", 2_500_000), *FOLDER.files), ("link (a symbolic link)",))
    first, missing, strange, trace = plan(folder, "ftp://me:secret@host/perf", public_url=PUBLIC).lines
    assert first == "4 files, 2.5 MB -> ftp://***@host/perf"
    assert missing == "left out: link (a symbolic link)"
    assert strange == rf"\x1b[2J.json.gz  https://ui.perfetto.dev/#!/?url={PUBLIC}/%251B%255B2J.json.gz"
    assert trace.startswith(f"{TRACE}  https://")


# -- Hugging Face ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("destination", "base"),
    [
        ("hf://datasets/me/perf", "https://huggingface.co/datasets/me/perf/resolve/main"),
        ("hf://datasets/me/perf/h200/1", "https://huggingface.co/datasets/me/perf/resolve/main/h200/1"),
        ("hf://datasets/me/perf@v1/a b/", "https://huggingface.co/datasets/me/perf/resolve/v1/a%20b"),
        ("hf://datasets/me/perf@refs/pr/3/h200", "https://huggingface.co/datasets/me/perf/resolve/refs%2Fpr%2F3/h200"),
        ("hf://datasets/me/perf@a%2Fb/h200", "https://huggingface.co/datasets/me/perf/resolve/a%2Fb/h200"),
        ("hf://datasets/me/perf/x@y", "https://huggingface.co/datasets/me/perf/resolve/main/x%40y"),
        ("hf://buckets/me/perf/h200", "https://huggingface.co/buckets/me/perf/resolve/h200"),
        ("hf://buckets/me/perf", "https://huggingface.co/buckets/me/perf/resolve"),
        ("hf://buckets/me/perf@main/h200", None),  # a bucket has no revisions
        ("hf://datasets/perf", None),
        ("hf://me/perf", None),  # a model
        ("s3://datasets/me/perf", None),
        ("datasets/me/perf", None),
    ],
)
def test_the_address_of_a_dataset_or_bucket_is_known(destination: str, base: str | None) -> None:
    assert public_base(destination) == base


@pytest.mark.parametrize(
    "destination",
    [
        "hf://datasets/me/perf",
        "hf://datasets/me/perf@v1/a b/c",
        "hf://datasets/me/perf@refs/pr/3/h200",
        "hf://datasets/me/perf@a%2Fb/x",
    ],
)
def test_the_address_is_the_one_that_the_hub_library_builds(destination: str) -> None:
    hub = pytest.importorskip("huggingface_hub")
    parsed = pytest.importorskip("huggingface_hub.utils").parse_hf_uri(f"{destination}/{TRACE}")
    expected = hub.hf_hub_url(
        parsed.id, parsed.path_in_repo, repo_type="dataset", revision=parsed.revision, endpoint="https://huggingface.co"
    )
    assert fetched_by(plan(FOLDER, destination).copies[1].link) == expected


def test_a_public_url_of_ones_own_comes_before_the_known_one() -> None:
    link = plan(FOLDER, "hf://datasets/me/perf", public_url=PUBLIC).copies[1].link
    assert fetched_by(link) == f"{PUBLIC}/{TRACE}"


# -- the folder -----------------------------------------------------------------------------------------------------


def test_every_file_of_the_folder_is_found_in_order(reports: Path) -> None:
    assert find(reports) == Folder(reports, (Found("junit.xml", 3), Found(TRACE, 8), Found(TABLE, 5)))


def test_a_file_that_is_being_written_is_not_found(reports: Path) -> None:
    (reports / "traces" / ".mlp.json.gz.x1y2.tmp").write_bytes(b"half")
    (reports / ".cache").mkdir()
    (reports / ".cache" / "x").write_bytes(b"x")
    assert len(find(reports).files) == 3


def test_links_are_not_followed_and_it_is_said(reports: Path, tmp_path: Path, memory: dict[str, Any]) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"secret")
    (reports / "file").symlink_to(tmp_path / "secret" / "key")
    (reports / "folder").symlink_to(tmp_path / "secret")
    (reports / "again").symlink_to(reports)
    (reports / "gone").symlink_to(tmp_path / "nowhere")
    published = publish(reports, "memory://perf")
    assert published.left_out == tuple(f"{name} (a symbolic link)" for name in ["again", "file", "folder", "gone"])
    assert sorted(memory) == ["/perf/junit.xml", f"/perf/{TRACE}", f"/perf/{TABLE}"]


def test_what_is_no_file_or_has_no_name_for_a_store_is_left_out(reports: Path) -> None:
    os.mkfifo(reports / "fifo")
    (reports / "x\udcff.txt").write_bytes(b"x")
    assert find(reports).left_out == ("fifo (not a regular file)", r"x\udcff.txt (its name is not UTF-8)")


def test_a_folder_may_itself_be_a_link(reports: Path, tmp_path: Path) -> None:
    (tmp_path / "newest").symlink_to(reports)
    assert [file.key for file in find(tmp_path / "newest").files] == ["junit.xml", TRACE, TABLE]


@pytest.mark.parametrize("name", ["none", "file"])
def test_reports_that_are_no_folder_are_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(PublishingError, match="cannot read the reports") as caught:
        find(tmp_path / name)
    assert caught.value.next_command == "pytest perf"


# -- the copy -------------------------------------------------------------------------------------------------------


def test_a_local_folder_gets_every_file(reports: Path, tmp_path: Path) -> None:
    published = publish(reports, str(tmp_path / "to" / "here"))
    assert contents(tmp_path / "to" / "here") == contents(reports)
    assert (len(published.copies), published.size_bytes) == (3, 16)


@pytest.mark.parametrize("destination", ["file://{}/to", "local://{}/to", "{}/to/"])
def test_a_local_folder_may_be_written_as_a_url(reports: Path, tmp_path: Path, destination: str) -> None:
    publish(reports, destination.format(tmp_path))
    assert contents(tmp_path / "to") == contents(reports)


def test_a_relative_folder_is_below_the_current_one(
    reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(Path("reports/latest"), "to")
    assert contents(tmp_path / "to") == contents(reports)


def test_a_store_gets_every_file(reports: Path, memory: dict[str, Any]) -> None:
    publish(reports, "memory://perf/h200/")
    found = {path: file.getvalue() for path, file in memory.items()}
    assert found == {f"/perf/h200/{key}": content for key, content in contents(reports).items()}


def test_the_root_of_a_store_is_a_destination(reports: Path, memory: dict[str, Any]) -> None:
    publish(reports, "memory://")
    assert sorted(memory) == ["/junit.xml", f"/{TRACE}", f"/{TABLE}"]


def test_a_store_that_keeps_the_slash_at_the_end_gets_the_same_names(
    reports: Path, memory: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: (fsspec.filesystem("memory"), "/perf/"))
    publish(reports, "memory://perf/")
    assert sorted(memory) == ["/perf/junit.xml", f"/perf/{TRACE}", f"/perf/{TABLE}"]


def test_a_second_copy_changes_nothing_and_nothing_else_is_touched(reports: Path, memory: dict[str, Any]) -> None:
    fsspec.filesystem("memory").pipe_file("/perf/of-another-run.json.gz", b"kept")
    first = publish(reports, "memory://perf")
    before = {path: file.getvalue() for path, file in memory.items()}
    assert publish(reports, "memory://perf") == first
    assert {path: file.getvalue() for path, file in memory.items()} == before
    assert before["/perf/of-another-run.json.gz"] == b"kept"


def test_a_file_that_has_changed_is_written_again(reports: Path, tmp_path: Path) -> None:
    publish(reports, str(tmp_path / "to"))
    (reports / TABLE).write_bytes(b"new")
    publish(reports, str(tmp_path / "to"))
    assert (tmp_path / "to" / TABLE).read_bytes() == b"new"


def test_a_dry_run_plans_and_copies_nothing(reports: Path, memory: dict[str, Any]) -> None:
    planned = publish(reports, "memory://perf", dry_run=True)
    assert len(planned.copies) == 3
    assert not memory


def test_progress_is_told_after_each_file(reports: Path, memory: dict[str, Any]) -> None:
    told: list[tuple[str, bool]] = []
    publish(reports, "memory://perf", progress=lambda copy: told.append((copy.key, f"/perf/{copy.key}" in memory)))
    assert told == [("junit.xml", True), (TRACE, True), (TABLE, True)]


def test_what_was_published_can_be_fetched_where_the_link_says(reports: Path, tmp_path: Path) -> None:
    """With a real server of the folder; its address is changed for the plan, which takes nothing but https."""
    published = publish(reports, str(tmp_path / "to"), public_url="https://host/")
    url = fetched_by(published.copies[1].link)
    with served(tmp_path / "to") as base, urlopen(url.replace("https://host", base), timeout=5) as answer:
        assert answer.read() == (reports / TRACE).read_bytes()


class served:  # noqa: N801  (a context manager)
    def __init__(self, folder: Path) -> None:
        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(folder))

            def log_message(self, *_: object) -> None:
                pass

        self.server = TCPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


# -- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "traces", "new/folder", "../latest/x"])
def test_reports_are_not_published_into_themselves(reports: Path, below: str) -> None:
    before = contents(reports)
    for destination in (f"{reports}/{below}", f"file://{reports}/{below}"):
        with pytest.raises(PublishingError, match="into themselves"):
            publish(reports, destination)
    assert contents(reports) == before


def test_a_link_into_the_reports_is_seen_through(reports: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").symlink_to(reports / "traces")
    with pytest.raises(PublishingError, match="into themselves"):
        publish(reports, str(tmp_path / "elsewhere" / "x"))


def test_a_folder_beside_the_reports_with_a_longer_name_is_outside(reports: Path) -> None:
    publish(reports, f"{reports}-published")
    assert contents(reports.with_name("latest-published")) == contents(reports)


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules["fsspec.registry"].__dict__["_registry"], "s3", raising=False)
    with pytest.raises(PublishingError, match="Install s3fs") as caught:
        publish(reports, "s3://bucket/perf")
    assert caught.value.next_command == "pip install s3fs"


def test_a_package_that_a_store_of_fsspec_needs_is_named(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paramiko", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"].__dict__["_registry"], "sftp", raising=False)
    with pytest.raises(PublishingError, match='requires "paramiko"') as caught:
        publish(reports, "sftp://host/perf")
    assert (caught.value.next_command or "").endswith("sftp://host/perf   (once it is installed)")


def test_a_protocol_that_nobody_knows_is_an_error(reports: Path) -> None:
    with pytest.raises(PublishingError, match="Protocol not known: nonesuch"):
        publish(reports, "nonesuch://bucket/perf")


@pytest.mark.parametrize(
    "error",
    [PermissionError(13, "Access Denied"), ConnectionError("no route"), RuntimeError("Unable to locate credentials")],
)
def test_a_store_that_fails_is_an_error_that_says_how_far_it_came(
    reports: Path, memory: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    put = MemoryFileSystem.put_file

    def fails_at_the_second(self: MemoryFileSystem, source: str, target: str) -> None:
        if target.endswith(TRACE):
            raise error
        put(self, source, target)

    monkeypatch.setattr(MemoryFileSystem, "put_file", fails_at_the_second)
    with pytest.raises(PublishingError) as caught:
        publish(reports, "memory://perf")
    assert caught.value.__cause__ is error
    assert caught.value.where == "memory://perf"
    assert caught.value.got == f"{type(error).__name__}: {error} (after 1 of 3 files)"
    assert (caught.value.next_command or "").startswith(f"kernelgauge publish {reports} memory://perf ")
    assert list(memory) == ["/perf/junit.xml"]


def test_a_folder_that_cannot_be_made_is_an_error(reports: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    with pytest.raises(PublishingError, match="after 0 of 3 files"):
        publish(reports, str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_a_password_is_not_shown(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(url: str) -> None:
        raise OSError(f"cannot connect to {url} \x1b[2J")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuses)
    with pytest.raises(PublishingError, match=r"ftp://\*\*\*@host") as caught:
        publish(reports, "ftp://me:secret@host/perf")
    assert "secret" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_an_object_store_is_not_asked_to_make_folders(
    reports: Path, memory: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing bucket is an error, which s3fs's `makedirs` would turn into a new bucket."""
    made: list[str] = []
    monkeypatch.setattr(MemoryFileSystem, "makedirs", lambda self, path, exist_ok=False: made.append(path))
    monkeypatch.setattr(MemoryFileSystem, "put_file", lambda self, source, target: None)
    publish(reports, "memory://perf")
    assert made == ["/perf", "/perf/traces", "/perf/traces"]
    monkeypatch.setattr(MemoryFileSystem, "async_impl", True)
    publish(reports, "memory://perf")
    assert len(made) == 3


@pytest.mark.parametrize("becomes", ["a link", "nothing"])
def test_a_report_that_changes_between_the_plan_and_the_copy_is_an_error(
    reports: Path, tmp_path: Path, memory: dict[str, Any], becomes: str
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")

    def swap(_: object) -> None:
        (reports / TABLE).unlink(missing_ok=True)
        if becomes == "a link":
            (reports / TABLE).symlink_to(tmp_path / "secret")

    with pytest.raises(PublishingError, match="has changed while it was published"):
        publish(reports, "memory://perf", progress=swap)
    assert f"/perf/{TABLE}" not in memory
