"""A folder of reports copied to any store that fsspec knows, and links that open its traces in the Perfetto UI."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import fsspec  # type: ignore[import-untyped]
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]
from fsspec.registry import known_implementations  # type: ignore[import-untyped]

from .errors import PublishingError
from .perfetto import PERFETTO_UI, perfetto_link
from .printable import printable

__all__ = ["Copy", "Folder", "Found", "Plan", "find", "plan", "public_base", "publish"]

# As huggingface_hub reads them (utils/_hf_uris.py): a revision ends at a slash, but for refs/pr/N and refs/convert/NAME.
_HUGGING_FACE = re.compile(
    r"hf://(?P<kind>datasets|buckets)/(?P<name>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert/[\w.-]+|pr/\d+)|[^/]+))?(?:/(?P<path>.*))?"
)
# A fetch that the page's Content-Security-Policy and its service worker let through: https, without a query
# (perfetto, docs/visualization/deep-linking-to-perfetto-ui.md; ui/src/service_worker/service_worker.ts).
_FETCHABLE = re.compile(r"https://[^\s/?#@]+(/[^\s?#]*)?")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")


@dataclass(frozen=True)
class Found:
    """A file of the folder. `key`: its path below the folder, with slashes."""

    key: str
    size_bytes: int


@dataclass(frozen=True)
class Folder:
    """What lies in a folder. `left_out`: what is not published, with the reason."""

    root: Path
    files: tuple[Found, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copy:
    """One file to copy. `key`: below the destination; `link`: opens it in Perfetto, for a trace with a public address."""

    source: Path
    key: str
    size_bytes: int
    link: str | None = None


@dataclass(frozen=True)
class Plan:
    """What goes where. Nothing but these files is touched at the destination."""

    destination: str
    copies: tuple[Copy, ...]
    left_out: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(copy.size_bytes for copy in self.copies)

    @property
    def lines(self) -> list[str]:
        """For the terminal: how much, what is left out, and a link for each trace."""
        return [
            f"{len(self.copies)} files, {self.size_bytes / 1e6:.1f} MB -> {_shown(self.destination)}",
            *(f"left out: {reason}" for reason in self.left_out),
            *(f"{printable(copy.key)}  {copy.link}" for copy in self.copies if copy.link),
        ]


def publish(
    reports: Path,
    destination: str,
    *,
    public_url: str | None = None,
    ui: str = PERFETTO_UI,
    dry_run: bool = False,
    progress: Callable[[Copy], object] | None = None,
) -> Plan:
    """Copy a folder of reports to a URL of fsspec or a local folder; returns what was, or with `dry_run` would be, copied.

    `public_url`: where the files of `destination` can be fetched by anybody, for the links; known for datasets and
    buckets of Hugging Face. The store must let the page read (Access-Control-Allow-Origin). What is there already is
    written again, and nothing is deleted. `progress` is called after each file.

    Raises `PublishingError`.
    """
    planned = plan(find(reports), destination, public_url=public_url, ui=ui)
    again = printable(shlex.join(["kernelgauge", "publish", str(reports), _shown(destination)]))
    store, base = _store(destination, again)
    if isinstance(store, LocalFileSystem):
        _check_outside(reports, Path(base))
    for done, copy in enumerate(() if dry_run else planned.copies):
        _check_regular(copy.source)
        target = f"{base.rstrip('/')}/{copy.key}"
        try:
            if not store.async_impl:  # object stores have no folders, and s3fs would make a missing bucket
                store.makedirs(target.rpartition("/")[0], exist_ok=True)
            store.put_file(str(copy.source), target)
        except Exception as error:  # each store has errors of its own: botocore's and google.auth's are no OSError
            raise _failed(error, destination, again, f" (after {done} of {len(planned.copies)} files)") from error
        if progress is not None:
            progress(copy)
    return planned


def find(reports: Path) -> Folder:
    """Every regular file below a folder, in order of name; links are not followed, hidden files are a writer's own.

    Raises `PublishingError` if the folder cannot be read.
    """
    found: list[Found] = []
    left_out: list[str] = []
    try:
        pending = [reports]
        while pending:
            with os.scandir(pending.pop()) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
            for entry in visible:
                key = Path(entry.path).relative_to(reports).as_posix()
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif reason := _unfit(entry):
                    left_out.append(f"{printable(key)} ({reason})")
                else:
                    found.append(Found(key, entry.stat(follow_symlinks=False).st_size))
    except OSError as error:
        raise PublishingError(
            "cannot read the reports",
            where=printable(str(reports)),
            got=printable(str(error)),
            expected="the folder that a run has left, such as reports/latest",
            next_command="pytest perf",
        ) from error
    return Folder(reports, tuple(sorted(found, key=lambda file: file.key)), tuple(sorted(left_out)))


def plan(folder: Folder, destination: str, *, public_url: str | None = None, ui: str = PERFETTO_UI) -> Plan:
    """Which file goes where, with a link for every `.json.gz`. Pure. Raises `PublishingError` for a wrong address."""
    if not folder.files:
        raise PublishingError(
            "there is nothing to publish",
            where=printable(str(folder.root)),
            expected="files",
            next_command="pytest perf",
        )
    if not destination or "::" in destination or re.match(r"(?i)https?://", destination):
        raise PublishingError(
            "reports cannot be copied there",
            got=_shown(destination) or "no destination",
            expected="a folder or the URL of a store: s3://BUCKET/PREFIX, gs://..., hf://datasets/OWNER/NAME, file:///...",
            next_command="kernelgauge publish REPORTS s3://BUCKET/PREFIX --public-url https://HOST/PREFIX",
        )
    base = public_url or public_base(destination)
    if base is not None and not _FETCHABLE.fullmatch(base):
        raise PublishingError(
            "the Perfetto UI cannot fetch from this public URL",
            got=_shown(base),
            expected="https://HOST/PATH, without a query, a fragment or a password",
        )
    copies = tuple(
        Copy(
            folder.root / file.key,
            file.key,
            file.size_bytes,
            perfetto_link(f"{base.rstrip('/')}/{quote(file.key)}", ui=ui)
            if base is not None and file.key.endswith(".json.gz")
            else None,
        )
        for file in folder.files
    )
    return Plan(destination, copies, folder.left_out)


def public_base(destination: str) -> str | None:
    """The https address of a destination where the URL tells it: datasets and buckets of Hugging Face. Else None.

    ``hf://datasets/OWNER/NAME@REVISION/PATH`` -> ``https://huggingface.co/datasets/OWNER/NAME/resolve/REVISION/PATH``,
    as `huggingface_hub.hf_hub_url` and `HfFileSystem.url` build them. A bucket has no revisions. A private one has this
    address too, but the page is not let in.
    """
    parts = _HUGGING_FACE.fullmatch(destination)
    if parts is None or (parts["kind"] == "buckets" and parts["revision"]):
        return None
    revision = "" if parts["kind"] == "buckets" else "/" + quote(unquote(parts["revision"] or "main"), safe="")
    path = (parts["path"] or "").strip("/")
    return f"https://huggingface.co/{parts['kind']}/{parts['name']}/resolve{revision}" + (path and f"/{quote(path)}")


def _unfit(entry: os.DirEntry[str]) -> str | None:
    """Why a file is not published."""
    if entry.is_symlink():
        return "a symbolic link"
    if not entry.is_file(follow_symlinks=False):
        return "not a regular file"
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return None


def _check_regular(source: Path) -> None:
    """That the file is still what was found: a run may write at the same time."""
    try:
        if stat.S_ISREG(os.lstat(source).st_mode):
            return
        got = "not a regular file any more"
    except OSError as error:
        got = str(error.strerror)
    raise PublishingError(
        "a report has changed while it was published",
        where=printable(str(source)),
        got=got,
        next_command="kernelgauge publish REPORTS DEST   (again, once the run has ended)",
    )


def _check_outside(reports: Path, target: Path) -> None:
    inside, outside = target.resolve(), reports.resolve()
    if inside.is_relative_to(outside):
        raise PublishingError(
            "reports cannot be published into themselves",
            where=printable(str(inside)),
            expected=printable(f"a folder outside of {outside}"),
        )


def _store(destination: str, again: str) -> tuple[Any, str]:
    """The file system of a destination, and its path there."""
    try:
        store, base = fsspec.core.url_to_fs(destination)
    except Exception as error:  # as in `publish`: it may connect
        raise _failed(error, destination, again) from error
    return store, str(base)


def _failed(error: Exception, destination: str, again: str, progress: str = "") -> PublishingError:
    next_command = f"{again}   (once it can be written; what is there is written again)"
    if isinstance(error, ImportError):
        protocol = fsspec.core.split_protocol(destination)[0]
        package = known_implementations.get(protocol, {}).get("class", "").partition(".")[0]
        # fsspec's own stores name what they need in the message.
        next_command = (
            f"pip install {package}" if package not in ("", "fsspec") else f"{again}   (once it is installed)"
        )
    return PublishingError(
        "the reports cannot be published",
        where=_shown(destination),
        got=_shown(f"{type(error).__name__}: {error}") + progress,
        next_command=next_command,
    )


def _shown(url: str) -> str:
    return printable(_PASSWORD.sub("***", url))
