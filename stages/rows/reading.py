"""Records of files become conversations, one at a time.

A row that cannot be read, or is no conversation, comes out as a reject and ends nothing. A file
has one dialect; a row that lacks its columns and holds another's, as in merged files, is read by
its own.
"""

import hashlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stages.contract.errors import DataError
from stages.contract.fingerprint import canonical_json
from stages.contract.shown import one_line
from stages.rows.dialects import DIALECTS, Columns, Conversation, Message, Problem
from stages.rows.formats import Record
from stages.rows.formats.record import json_text
from stages.rows.source import Found, choose, find

log = logging.getLogger(__name__)

SAMPLE_ROWS = 1000
SAMPLE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation.

    Attributes
    ----------
    source_file : str
        Path relative to the data set's folder.
    source_line : int
        Line or row number in it, from 1.
    source : str
        The row's own word for where it is from, else `source_file`.
    uid : str
        The row's own id as text, else 16 hexadecimal digits of the messages' SHA-256.
    messages : list of {"role", "content"}
        Who said what.
    meta : str
        JSON of every other column.
    dialect : str
        How the row was written.
    """

    source_file: str
    source_line: int
    source: str
    uid: str
    messages: list[Message]
    meta: str
    dialect: str


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that cannot be used, where it is, and why."""

    file: str
    line: int
    byte_offset: int
    reason: str
    detail: str
    raw: bytes

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.file}:{self.line} {self.reason}{detail}"


def read_rows(path: str, dialect: str = "auto") -> Iterator[Row | Reject]:
    """Read all rows that a path names, in order, one at a time.

    Raises
    ------
    ConfigurationError
        If the path leads nowhere.
    DataError
        If a file is empty, or holds something else than conversations.
    """
    yield from read_found(find(path), dialect)


def read_found(
    files: Sequence[Found], dialect: str, *, quiet: bool = False
) -> Iterator[Row | Reject]:
    """Read the rows of some files; logs each distinct choice of dialect once unless `quiet`."""
    said: set[tuple[str, tuple[str, ...]]] = set()
    for found in files:
        records = found.records() if found.on_hub or found.path.stat().st_size else iter(())
        name = ""
        empty = True
        while sample := _first(records):
            empty = False
            values = [record.value for record in sample if record.value is not None]
            if values and not name:
                choice = name, columns = choose(found.name, values, dialect)
                if choice not in said and not quiet:
                    log.info("rows: %s is %s (%s)", found.name, name, ", ".join(columns))
                said.add(choice)
            for record in sample:
                own = _own_dialect(record.value, name) if dialect == "auto" else name
                if own != name and (own, ()) not in said and not quiet:
                    log.info("rows: %s:%d and rows like it are %s", found.name, record.line, own)
                    said.add((own, ()))
                yield from _outcomes(record, found.name, own)
        if empty:
            raise DataError(f"{found.path} is empty: it holds no rows; remove it or fill it")


def _first(records: Iterator[Record]) -> list[Record]:
    """Take the next 1000 records, or fewer if they are large."""
    sample: list[Record] = []
    num_bytes = 0
    for record in itertools.islice(records, SAMPLE_ROWS):
        sample.append(record)
        num_bytes += len(record.raw or b"")
        if num_bytes >= SAMPLE_BYTES:
            break
    return sample


def _own_dialect(value: Columns | None, dialect: str) -> str:
    """Give the dialect of a file, or another one for a row that is a conversation only in it."""
    if value is None or DIALECTS[dialect].told_by(value):
        return dialect
    for name, other in DIALECTS.items():
        if other.told_by(value):
            items = list(other.convert(value))
            return dialect if any(isinstance(item, Problem) for item in items) else name
    return dialect


def _outcomes(record: Record, file: str, dialect: str) -> Iterator[Row | Reject]:
    """Turn a record into its rows and rejects."""
    if record.value is None:
        yield _reject(record, file, record.reason, record.detail)
        return
    for item in DIALECTS[dialect].convert(record.value):
        if isinstance(item, Problem):
            yield _reject(record, file, item.reason, item.detail)
            continue
        try:
            meta = json_text(item.rest)
        except RecursionError:
            yield _reject(record, file, "not_json", "nested too deeply")
            continue
        yield Row(
            source_file=file,
            source_line=record.line,
            source=_source(item.rest) or file,
            uid=_uid(item),
            messages=item.messages,
            meta=meta,
            dialect=dialect,
        )


def _reject(record: Record, file: str, reason: str, detail: str) -> Reject:
    raw = record.raw_bytes()
    return Reject(file, record.line, record.offset, reason, one_line(detail), raw)


def _source(rest: Columns) -> str:
    source = rest.get("source", "")
    return source if type(source) is str else ""


def _uid(conversation: Conversation) -> str:
    for name in ("id", "uid"):
        value = conversation.rest.get(name, "")
        if value != "":
            return str(value) if isinstance(value, str) else json_text(value)
    return hashlib.sha256(canonical_json(conversation.messages).encode()).hexdigest()[:16]
