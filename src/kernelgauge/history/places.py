"""Where a history lies: a folder, or any URL that fsspec knows. Lists, reads and adds files; a file is never changed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from ..errors import ResultsError, StorageError
from ..printable import printable
from ..regular_file import regular_file

__all__ = ["MOST_BYTES", "Bucket", "Folder", "Place", "place", "shown_location"]

# 100 workloads make 30 kB.
MOST_BYTES = 64 << 20
_AT_ONCE = 256  # objects that are held in memory
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")


class Place(Protocol):
    """Keys are paths below the history, with slashes. Hidden files are a writer's own and not listed."""

    def keys(self) -> list[str]:
        """Every file, and with a slash at its end every folder that cannot be listed.

        Raises `ResultsError` if there is no such place, or nothing of it can be listed.
        """
        ...

    def read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | str]]:
        """Key and content of each, in this order; a text in place of the content says why it cannot be read."""
        ...

    def add(self, key: str, content: bytes) -> bool:
        """Write a file as a whole; False if it was there. Raises `StorageError`."""
        ...


def place(location: str) -> Place:
    """Of a local path or a URL of fsspec. Raises `ResultsError` for an address that can be neither."""
    protocol, separator, path = location.partition("://")
    nowhere = not location or bool(separator and (not protocol or not path))  # else it is the current folder
    if nowhere or "\x00" in location or "::" in location or re.match(r"(?i)https?://", location):
        raise ResultsError(
            "a history cannot lie there",
            got=shown_location(location) or "no location",
            expected="a folder or the URL of a store: s3://BUCKET/PREFIX, gs://..., hf://buckets/OWNER/NAME",
        )
    if not separator:
        return Folder(Path(location))
    return Folder(Path(path)) if protocol in ("file", "local") else Bucket(location)


def shown_location(location: str) -> str:
    """For a terminal: without a password."""
    return printable(_PASSWORD.sub("***", location))


class Folder:
    """A local folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def keys(self) -> list[str]:
        found: list[str] = []
        pending = [""]
        while pending:
            below = pending.pop()
            try:
                with os.scandir(self.root / below) as listed:
                    for each in listed:
                        if each.is_dir(follow_symlinks=False):
                            pending.append(f"{below}{each.name}/")
                        elif not each.name.startswith("."):
                            found.append(below + each.name)
            except OSError as error:
                if not below:
                    raise _no_history(str(self.root), error) from error
                found.append(below)
        return found

    def read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | str]]:
        for key in keys:
            try:
                yield key, self._content(key)
            except OSError as error:
                yield key, error.strerror or str(error)

    def _content(self, key: str) -> bytes | str:
        with regular_file(f"{self.root}/{key}") as descriptor:
            size = os.fstat(descriptor).st_size
            if size > MOST_BYTES:
                return f"more than {MOST_BYTES} bytes"
            content = os.read(descriptor, size + 1)
        return content if len(content) == size else "it is being written"

    def add(self, key: str, content: bytes) -> bool:
        path = self.root / key
        with suppress(OSError):
            if self._content(key) == content:
                return False
        from ..baselines import write_atomically  # a reader does not wait for locks

        try:
            write_atomically(path, content)
            for folder in (path.parent, path.parent.parent, self.root):  # else a power failure may forget the name
                _flush(folder)
        except (StorageError, OSError) as error:
            raise _unwritable(str(path), getattr(error, "got", None) or str(error)) from error
        return True


class Bucket:
    """A store that fsspec knows."""

    def __init__(self, location: str) -> None:
        import fsspec  # type: ignore[import-untyped]

        self.location = location
        try:
            store, base = fsspec.core.url_to_fs(location)
        except Exception as error:  # each store has errors of its own: botocore's and google.auth's are no OSError
            raise _no_history(location, error) from error
        self._store: Any = store
        self._base = str(base).rstrip("/")

    def keys(self) -> list[str]:
        try:
            self._store.invalidate_cache()  # others write at the same time
            found = self._store.find(self._base)
        except Exception as error:  # as above
            raise _no_history(self.location, error) from error
        keys = (str(path).removeprefix(self._base).lstrip("/") for path in found)
        # An object whose name ends with a slash stands for a folder.
        return [key for key in keys if not key.endswith("/") and not key.rpartition("/")[2].startswith(".")]

    def read(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes | str]]:
        """As many requests at once as the store's client makes: one by one, a year of them takes minutes."""
        left = iter(keys)
        while some := list(islice(left, _AT_ONCE)):
            try:
                contents = self._store.cat([self._path(key) for key in some], on_error="return")
            except Exception as error:  # as above
                raise _no_history(self.location, error) from error
            for key in some:
                content = contents.get(self._path(key), "it is not there any more")
                yield key, bytes(content) if isinstance(content, (bytes, bytearray)) else str(content)

    def add(self, key: str, content: bytes) -> bool:
        target = self._path(key)
        try:
            if self._has(target, content):
                return False
            if self._store.async_impl:  # an object store: an object appears as a whole, and there are no folders
                self._store.pipe_file(target, content)
            else:
                folder, _, name = target.rpartition("/")
                temporary = f"{folder}/.{name}.{uuid4().hex}.tmp"
                self._store.makedirs(folder, exist_ok=True)
                self._store.pipe_file(temporary, content)
                self._store.mv(temporary, target)
        except Exception as error:  # as above
            raise _unwritable(f"{self.location.rstrip('/')}/{key}", f"{type(error).__name__}: {error}") from error
        return True

    def _has(self, target: str, content: bytes) -> bool:
        self._store.invalidate_cache()
        try:
            return bool(self._store.cat_file(target) == content)
        except FileNotFoundError:
            return False

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}"


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _no_history(location: str, error: Exception) -> ResultsError:
    missing = isinstance(error, FileNotFoundError)
    return ResultsError(
        "the history cannot be reached",
        where=shown_location(location),
        got="there is no such folder" if missing else shown_location(f"{type(error).__name__}: {error}"),
        expected="a folder or a bucket that results were added to",
        next_command="kernelgauge history add RESULTS --to HISTORY",
    )


def _unwritable(where: str, got: str) -> StorageError:
    return StorageError(
        "cannot add to the history",
        where=shown_location(where),
        got=shown_location(got),
        expected="a place that can be written",
        next_command="kernelgauge history add RESULTS --to HISTORY   (again: what is there already stays)",
    )
