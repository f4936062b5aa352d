"""Formats, one file each: a path in, records out. The table below chooses by the name's ending."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from stages.rows.formats import arrow, delimited, hub, json_array, jsonl, parquet
from stages.rows.formats.opening import COMPRESSIONS, opening
from stages.rows.formats.record import Record, from_json

__all__ = ["FORMATS", "Record", "hub", "known_suffixes", "read_file", "suffix_of"]


_PEEK_BYTES = 1 << 20


def _json(path: Path) -> Iterator[Record]:
    """Read a .json file: lines if its first line is one whole object among others, else values."""
    return jsonl.read(path) if _is_lines(path) else json_array.read(path)


def _is_lines(path: Path) -> bool:
    with opening(path) as stream:
        first = b""
        while not first and (line := stream.readline(_PEEK_BYTES)):
            first = line.removeprefix(jsonl.BOM).strip()
            if first.startswith(b"["):
                return False
        if from_json(first, 1, 0).value is None:
            return False
        return any(line.strip() for line in _peeked(stream))


def _jsonl(path: Path) -> Iterator[Record]:
    """Read a .jsonl file: lines, unless it is an array or objects over several lines each."""
    return json_array.read(path) if _is_array(path) else jsonl.read(path)


def _is_array(path: Path) -> bool:
    """Say whether a file begins as an array of objects does, or as an object over several lines.

    A line that is broken must not make an array of a file of lines, so what is no line must
    look like what it is said to be.
    """
    with opening(path) as stream:
        lines = (line.removeprefix(jsonl.BOM).strip() for line in _peeked(stream))
        first, second = [*itertools.islice(filter(None, lines), 2), b"", b""][:2]
    if first in (b"{", b"["):
        return second[:1] in ((b'"', b"}") if first == b"{" else (b"{", b"[", b"]"))
    if not first.startswith(b"[") or first[1:].lstrip()[:1] not in (b"{", b"["):
        return False
    record = from_json(first, 1, 0)
    if record.reason == "not_json":
        inside = first.endswith(b"{") and second.startswith(b'"')
        return len(first) >= _PEEK_BYTES or inside or first.endswith((b",", b"}"))
    return record.value is None and not second


def _peeked(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(_PEEK_BYTES):
        yield line


FORMATS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".arrow": arrow.read,
    ".csv": delimited.read,
    ".json": _json,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".parquet": parquet.read,
    ".tsv": delimited.read,
}

_COLUMNAR = (".arrow", ".parquet")


def suffix_of(path: Path) -> str:
    """Give the ending that decides a file's format, or "" if no format knows the file."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    if packed:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    return "" if suffix not in FORMATS or (packed and suffix in _COLUMNAR) else suffix


def known_suffixes() -> str:
    """Name the endings of all formats, for messages."""
    return f"{', '.join(FORMATS)} (text also with {', '.join(COMPRESSIONS)})"


def read_file(path: Path) -> Iterator[Record]:
    """Read a file whose format is known."""
    return FORMATS[suffix_of(path)](path)
