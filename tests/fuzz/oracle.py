"""What must hold of any file whatever: its rows are rows or rejects, and none is lost unseen."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from stages.contract.errors import ConfigurationError, DataError
from stages.contract.schemas import REJECTS
from stages.rows.formats import delimited, read_file, suffix_of
from stages.rows.formats.record import Record
from stages.rows.reading import Reject, Row, read_rows
from stages.rows.stage import _table as rows_table

PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, 1),
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}
COLUMNAR = (".arrow", ".parquet")
LONGEST_DETAIL, LONGEST_MESSAGE = 300, 4000
# A control character in a message can rewrite a terminal, and a line break makes two of it.
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BOM = b"\xef\xbb\xbf"
# What may lie between the values of a file of JSON without being one.
_BETWEEN = re.compile(rb"(?:[ \t\r\n\x0b\x0c,:\[\]{}]|\xef\xbb\xbf)*")
# Files of which more than the rows is left out, as the contract of `json_array` says.
_SAYS_MORE = re.compile(
    rb'"(?:Instances|data|dataset|examples|items|records|rows|samples|train)"\s*:\s*\['
)


class Fault(AssertionError):
    """Something that must not happen to any file."""


def check(path: Path, dialect: str = "auto") -> str:
    """Read a file in all ways and compare them; give "read", or the kind of a refusal.

    Raises
    ------
    Fault
        If a row is lost, a message is no sentence, or the tables cannot be written.
    """
    try:
        records = list(read_file(path)) if path.stat().st_size else []
    except (DataError, ConfigurationError) as error:
        return _refusal(error, path)
    if suffix_of(path) not in COLUMNAR and path.suffix not in PACK:
        _check_places(path, records)
    try:
        outcomes = list(read_rows(str(path), dialect))
    except (DataError, ConfigurationError) as error:
        return _refusal(error, path)
    _check_outcomes(records, outcomes)
    _check_tables(outcomes)
    return "read"


def check_packed(path: Path, content: bytes, pack: str) -> None:
    """Compare what a text file gives with what the same bytes give when they are packed."""
    path.write_bytes(content)
    packed = path.with_name(path.name + pack)
    packed.write_bytes(PACK[pack](content))
    if _all(path) != _all(packed):
        raise Fault(f"{packed.name} does not give what {path.name} gives")


def _all(path: Path) -> list[Record] | str:
    try:
        return list(read_file(path))
    except DataError as error:
        return str(error).partition(": ")[2]


def _refusal(error: Exception, path: Path) -> str:
    message = str(error)
    if _CONTROL.search(message):
        raise Fault(f"a message holds control characters: {message[:500]!r}") from error
    if len(message) > LONGEST_MESSAGE:
        raise Fault(f"a message of {len(message)} characters: {message[:500]!r}") from error
    if path.name not in message and "rows." not in message:
        raise Fault(f"a message that names no file: {message[:500]!r}") from error
    return type(error).__name__


def _check_places(path: Path, records: Sequence[Record]) -> None:
    """Check that each byte of a file is in one record or between two of them."""
    content = path.read_bytes()
    end = len(_BOM) if content.startswith(_BOM) else 0
    gaps = []
    for record in records:
        raw = record.raw
        if raw is None or content[record.offset : record.offset + len(raw)] != raw:
            _lost(record, "has other bytes than its place in the file")
        if record.offset < end:
            _lost(record, "overlaps the one before")
        gaps.append(content[end : record.offset])
        end = record.offset + len(raw)
    gaps.append(content[end:])
    if suffix_of(path) in (".csv", ".tsv"):
        _check_csv_gaps(path, gaps, content)
    elif not _SAYS_MORE.search(content):
        for gap in gaps:
            if not _BETWEEN.fullmatch(gap):
                raise Fault(f"{path.name}: bytes in no record: {gap[:200]!r}")


def _check_csv_gaps(path: Path, gaps: Sequence[bytes], content: bytes) -> None:
    head, *others = gaps
    for gap in others:
        if gap.strip(b"\r\n"):
            raise Fault(f"{path.name}: bytes in no record: {gap[:200]!r}")
    delimiter = delimited._delimiter(content[: 1 << 16], prefers_tab=".tsv" in path.suffixes)
    text = io.StringIO(head.decode("utf-8-sig", "surrogateescape"), newline="")
    rows = [cells for cells in csv.reader(text, delimiter=delimiter) if cells]
    if len(rows) > 1:
        raise Fault(f"{path.name}: rows in no record: {rows[1:3]!r}")


def _lost(record: Record, what: str) -> NoReturn:
    raise Fault(f"the record of line {record.line} at {record.offset} {what}")


def _check_outcomes(records: Sequence[Record], outcomes: Sequence[Row | Reject]) -> None:
    """Check that each record became a row or a reject that holds its bytes."""
    several = any(isinstance(item, Row) and item.dialect == "instances" for item in outcomes)
    several = several or any("instances" in (record.value or {}) for record in records)
    if len(outcomes) < len(records) or (len(outcomes) > len(records) and not several):
        raise Fault(f"{len(records)} records became {len(outcomes)} rows and rejects")
    if several:
        return
    for record, item in zip(records, outcomes, strict=True):
        if isinstance(item, Row):
            if item.source_line != record.line:
                raise Fault(f"the row of line {record.line} says line {item.source_line}")
        elif (item.line, item.byte_offset, item.raw) != (
            record.line, record.offset, record.raw_bytes(),
        ):  # fmt: skip
            raise Fault(f"the reject of line {record.line} is not the record")


def _check_tables(outcomes: Sequence[Row | Reject]) -> None:
    """Check that rows and rejects can be written, and that `meta` is JSON for every reader."""
    rows = [item for item in outcomes if isinstance(item, Row)]
    rows_table(rows, 0).validate(full=True)
    for row in rows:
        json.loads(row.meta, parse_constant=_no_json)
    rejects = [item for item in outcomes if isinstance(item, Reject)]
    for reject in rejects:
        if not reject.reason or _CONTROL.search(reject.detail):
            raise Fault(f"the detail of a reject is no line: {reject.detail[:300]!r}")
        if len(reject.detail) > LONGEST_DETAIL:
            raise Fault(f"the detail of a reject has {len(reject.detail)} characters")
    columns: dict[str, list[Any]] = {
        name: [getattr(reject, name) for reject in rejects]
        for name in ("file", "line", "byte_offset", "reason", "detail", "raw")
    }
    columns |= {"row_id": [None] * len(rejects), "stage": ["rows"] * len(rejects)}
    pa.Table.from_pydict(columns, schema=REJECTS).validate(full=True)


def _no_json(word: str) -> NoReturn:
    raise Fault(f"meta holds {word}")
