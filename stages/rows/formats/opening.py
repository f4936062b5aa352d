"""Bytes of a file, compressed or not. What cannot be unpacked ends the stream, and is told.

The decompressors are fed by hand, since the file objects of the standard library lose what they
had already unpacked when the data turn out to be cut.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
CHUNK_BYTES = 1 << 16
PACKED_BYTES = 1 << 12  # what a broken place costs
UNPACKED_BYTES = 1 << 20  # at a time: a few packed bytes can stand for gigabytes
XZ_MEMORY_BYTES = 1 << 30  # a header can ask for 4 GiB; `xz -9` asks for 65 MiB
MAX_ROW_BYTES = 64 << 20  # of a line or a value of JSON; a longer one is a reject, in pieces


class Unpacked(io.RawIOBase):
    """A stream of unpacked bytes that ends where they cannot be read any further.

    Attributes
    ----------
    reason, detail : str
        Empty, or why the stream ended before its end.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._chunks = chunks
        self._rest = memoryview(b"")
        self.reason = ""
        self.detail = ""

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; 0 at the end."""
        while not self._rest:
            try:
                self._rest = memoryview(next(self._chunks))
            except StopIteration:
                return 0
            except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
                cut = isinstance(error, EOFError) or "runcated" in str(error)
                self.reason = "truncated_file" if cut else "broken_file"
                self.detail = str(error)
                return 0
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def opening(path: Path) -> io.BufferedReader:
    """Open a file for its bytes, unpacked if its name ends in .gz, .bz2, .xz or .zst."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        chunks = _unpack(path, _Gzip)
    elif suffix == ".bz2":
        chunks = _unpack(path, bz2.BZ2Decompressor)
    elif suffix == ".xz":
        chunks = _unpack(path, lambda: lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES))
    elif suffix == ".zst":
        chunks = _unpack_zstd(path)
    else:
        return io.BufferedReader(io.FileIO(path), CHUNK_BYTES)
    return io.BufferedReader(Unpacked(chunks), CHUNK_BYTES)


def trouble(stream: BinaryIO) -> tuple[str, str]:
    """Say why a stream ended early, as (reason, detail); both are empty if it did not."""
    raw = getattr(stream, "raw", None)
    return (raw.reason, raw.detail) if isinstance(raw, Unpacked) else ("", "")


class _Gzip:
    """The decompressor of gzip with the methods that those of bz2 and xz have."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        """Whether a member has ended."""
        return self._unpacker.eof

    @property
    def unused_data(self) -> bytes:
        """What stands behind the member that has ended."""
        return self._unpacker.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Unpack at most so many bytes."""
        waiting = self._unpacker.unconsumed_tail
        unpacked = self._unpacker.decompress(waiting + data, max_length)
        # What fills the length may leave more inside the unpacker than packed bytes.
        self.needs_input = not self._unpacker.unconsumed_tail and len(unpacked) < max_length
        return unpacked


def _unpack(path: Path, make: Callable[[], Any]) -> Iterator[bytes]:
    """Unpack a file that may consist of several members, one after the other."""
    with path.open("rb") as stream:
        unpacker = make()
        while data := stream.read(PACKED_BYTES):
            while data:
                if unpacker.eof:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    unpacker = make()
                yield unpacker.decompress(data, UNPACKED_BYTES)
                while not unpacker.eof and not unpacker.needs_input:
                    yield unpacker.decompress(b"", UNPACKED_BYTES)
                data = unpacker.unused_data
        if not unpacker.eof:
            raise EOFError("the compressed data end before their end mark")


def _unpack_zstd(path: Path) -> Iterator[bytes]:
    with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, "zstd") as stream:
        while data := stream.read(CHUNK_BYTES):
            yield data
