"""Where a store lies: on a disk, or on any file system that pyarrow reaches by a URL.

A store on a disk is a `pathlib.Path`. One on a URL is a `RemotePath`, which can do the few
things that artifacts and drafts ask of a path. There is no rename on an object store: there a
result is what has a manifest, which is written last.
"""

import functools
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from stages.contract.errors import ConfigurationError, require

CHUNK = 8 << 20
MOST_HELD = 64 << 20


@dataclass(frozen=True)
class RemotePath:
    """A place on a file system that is reached by a URL; small enough to travel to workers.

    Attributes
    ----------
    url : str
        The store's, with its options: s3://bucket/store?region=eu-west-1.
    inner : str
        Names below it, joined by slashes; empty for the store itself.
    """

    url: str
    inner: str = ""

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(self.url, f"{self.inner}/{name}".lstrip("/"))

    def __str__(self) -> str:
        base, question, options = self.url.partition("?")
        place = f"{base.rstrip('/')}/{self.inner}" if self.inner else base
        return place + question + options

    @property
    def name(self) -> str:
        """The last name."""
        return self.inner.rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        """The folder that it lies in; that of the store is the store."""
        return RemotePath(self.url, self.inner.rpartition("/")[0])

    def with_name(self, name: str) -> "RemotePath":
        """Name a neighbour."""
        return self.parent / name

    def exists(self) -> bool:
        """Say whether there is a file or a folder."""
        return bool(self._info().type != pafs.FileType.NotFound)

    def stat(self) -> SimpleNamespace:
        """Give the size and the time of the last change, as `Path.stat` names them.

        Raises
        ------
        FileNotFoundError
            If there is nothing.
        """
        info = self._info()
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(f"{self} is not there")
        return SimpleNamespace(st_size=info.size, st_mtime_ns=info.mtime_ns or 0)

    def read_text(self, encoding: str = "utf-8") -> str:
        """Read a whole file as text."""
        with self.open() as stream:
            text: bytes = stream.read()
        return text.decode(encoding)

    def open(self) -> Any:
        """Open a file to read any range of it."""
        filesystem, base = _reach(self.url)
        return filesystem.open_input_file(self._place(base))

    def write(self, data: pa.Buffer | bytes) -> None:
        """Write a whole file at once; on an object store a reader sees all of it or nothing."""
        filesystem, base = _reach(self.url)
        place = self._place(base)
        if filesystem.type_name not in ("s3", "gcs", "abfs"):
            filesystem.create_dir(place.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(place) as stream:
            stream.write(data)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file."""
        filesystem, base = _reach(self.url)
        try:
            filesystem.delete_file(self._place(base))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def iterdir(self) -> Iterator["RemotePath"]:
        """List a folder, in order of its names."""
        filesystem, base = _reach(self.url)
        selector = pafs.FileSelector(self._place(base), allow_not_found=True)
        for info in sorted(filesystem.get_file_info(selector), key=lambda info: info.base_name):
            yield self / info.base_name

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """List a folder; the only pattern that is known is all of it."""
        require(pattern == "*", f"a store on a URL lists whole folders, not {pattern}")
        return self.iterdir()

    def _info(self) -> Any:
        filesystem, base = _reach(self.url)
        return filesystem.get_file_info(self._place(base))

    def _place(self, base: str) -> str:
        return f"{base}/{self.inner}" if self.inner else base


StorePath = Path | RemotePath


def store_path(store: str) -> StorePath:
    """Turn the setting `store` into a place: a URL where it is one, else a folder of a disk.

    Raises
    ------
    ConfigurationError
        If nothing answers at the URL, or pyarrow knows no such file system.
    """
    if "://" not in store:
        return Path(store)
    try:
        RemotePath(store).exists()
    except (OSError, ValueError, ImportError) as error:  # pyarrow's own are among these
        raise ConfigurationError(
            f"store={store} cannot be reached: {error}; see docs/cluster.md for URLs, and for "
            f"where the credentials of a store come from"
        ) from error
    return RemotePath(store)


def hash_cache_of(store: str, models: str) -> Path:
    """Say where the hashes of input files are remembered: in the store, if it is on a disk."""
    return Path(models if "://" in store else store) / "hashes"


def source(path: StorePath) -> Any:
    """Give what pyarrow reads a file from: its path, or an open file that fetches ranges."""
    return path.open() if isinstance(path, RemotePath) else path


def source_of_finished(path: StorePath, num_bytes: int) -> Any:
    """Give the same for a file that never changes again: a small one is fetched once and held.

    Selectors and figures read the same embeddings many times; over a network each time costs
    a round trip per column and row group. At most 16 files of 64 MiB are held.
    """
    if isinstance(path, RemotePath) and num_bytes <= MOST_HELD:
        return pa.BufferReader(_whole(path))
    return source(path)


@functools.lru_cache(maxsize=16)
def _whole(path: RemotePath) -> pa.Buffer:
    with path.open() as stream:
        return stream.read_buffer()


def copy_to_disk(path: StorePath, target: Path) -> None:
    """Copy a file of the store to a disk, and flush its bytes; its name is left to the caller."""
    if isinstance(path, Path):
        shutil.copyfile(path, target)
    else:
        with path.open() as stream, target.open("wb") as file:
            shutil.copyfileobj(stream, file, CHUNK)
    with target.open("rb+") as file:
        os.fsync(file.fileno())


def sha256_of(path: RemotePath) -> str:
    """Hash a file of a store on a URL, without holding all of it.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """
    digest = hashlib.sha256()
    with path.open() as stream:
        while data := stream.read(CHUNK):
            digest.update(data)
    return digest.hexdigest()


@functools.lru_cache(maxsize=16)
def _reach(url: str) -> tuple[Any, str]:
    filesystem, base = pafs.FileSystem.from_uri(url)
    return filesystem, base.rstrip("/")
