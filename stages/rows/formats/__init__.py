"""Formats, one file each: a path in, records out. The table below chooses by the name's ending."""

from collections.abc import Callable, Iterator
from pathlib import Path

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
        return any(line.strip() for line in stream)


FORMATS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".arrow": arrow.read,
    ".csv": delimited.read,
    ".json": _json,
    ".jsonl": jsonl.read,
    ".ndjson": jsonl.read,
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
