"""CSV and TSV by the standard library's `csv`: every cell is text, NA and 007 included.

One pass over the file: no cell's type is guessed, newlines and quotes inside cells are kept. The
delimiter is the one of comma, semicolon and tab that cuts the first row into most cells.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from stages.contract.errors import DataError
from stages.contract.shown import one_line
from stages.rows.formats.opening import CHUNK_BYTES, MAX_ROW_BYTES, opening, trouble
from stages.rows.formats.record import Record, is_utf8

BOM = b"\xef\xbb\xbf"


def read(path: Path) -> Iterator[Record]:
    """Read the rows under a header; a row with more or fewer cells than it is `broken_csv_row`.

    Raises
    ------
    DataError
        If the header cannot be read, or names a column twice (columns without a name may repeat).
    """
    csv.field_size_limit(MAX_ROW_BYTES)
    with opening(path) as stream:
        head = stream.peek(CHUNK_BYTES)
        delimiter = _delimiter(head, prefers_tab=".tsv" in path.suffixes)
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        lines = _Lines(text, offset=len(BOM) if head.startswith(BOM) else 0)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            header = next((cells for cells in reader if cells), None)
        except csv.Error as error:
            fault = one_line(str(error))
            raise DataError(f"{path}: the header cannot be read ({fault}); repair it") from error
        header = header or []
        if not is_utf8("".join(header)):
            raise DataError(f"{path}: the header is not UTF-8; save the file as UTF-8")
        twice = next((name for name in header if name and header.count(name) > 1), "")
        if twice:
            raise DataError(
                f"{path}: the header names the column {one_line(twice)} {header.count(twice)} "
                "times; give each column a name of its own"
            )
        yield from _rows(reader, lines, header, stream)


def _rows(
    reader: "Iterator[list[str]]", lines: "_Lines", header: list[str], stream: io.BufferedReader
) -> Iterator[Record]:
    cut = False
    while True:
        lines.begin_row()
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            yield from lines.broken(str(error))
            continue
        if not cells:
            continue
        record = lines.row(header, cells)
        reason, detail = trouble(stream)
        cut = bool(reason) and not lines.taken[-1].endswith(("\n", "\r"))
        yield (
            Record(record.line, record.offset, None, record.raw, reason, detail) if cut else record
        )
    reason, detail = trouble(stream)
    if reason and not cut:
        yield Record(lines.line + 1, lines.offset, None, b"", reason, detail)


def _delimiter(head: bytes, *, prefers_tab: bool) -> str:
    text = head.decode("utf-8-sig", "replace")
    order = "\t,;" if prefers_tab else ",;\t"

    def cells(delimiter: str) -> int:
        try:
            return len(next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), []))
        except csv.Error:
            return 0

    return max(order, key=cells)


class _Lines:
    """Hands lines to a csv reader and remembers those of the row that it is reading.

    Attributes
    ----------
    taken : list of str
        Lines of the present row.
    line, offset : int
        Number of the last line handed over, and first byte after it.
    """

    def __init__(self, text: io.TextIOWrapper, *, offset: int) -> None:
        self._text = text
        self.taken: list[str] = []
        self.line = 0
        self.offset = offset
        self._row_offset = offset
        self._row_chars = 0
        self._inside = False  # a line of which a piece was handed over

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._text.readline(MAX_ROW_BYTES)
        if not line:
            raise StopIteration
        self.taken.append(line)
        self._row_chars += len(line)
        self.line += not self._inside
        self.offset += _num_bytes(line)
        goes_on = self._inside
        self._inside = len(line) >= MAX_ROW_BYTES and not line.endswith(("\n", "\r"))
        if goes_on or self._row_chars >= MAX_ROW_BYTES:
            raise csv.Error(f"a row of {MAX_ROW_BYTES} characters or more")
        return line

    def begin_row(self) -> None:
        """Forget the lines of the row before."""
        self.taken = []
        self._row_offset = self.offset
        self._row_chars = 0

    def row(self, header: list[str], cells: list[str]) -> Record:
        """Make the record of the row that was just read."""
        line = self.line - len(self.taken) + 1
        text = "".join(self.taken)
        raw = text.encode("utf-8", "surrogateescape").removesuffix(b"\n").removesuffix(b"\r")
        if len(cells) != len(header):
            detail = f"{len(cells)} cells, the header has {len(header)}"
            return Record(line, self._row_offset, None, raw, "broken_csv_row", detail)
        if not is_utf8(text):
            return Record(line, self._row_offset, None, raw, "not_utf8", "bytes that are not UTF-8")
        return Record(line, self._row_offset, dict(zip(header, cells, strict=True)), raw)

    def broken(self, detail: str) -> Iterator[Record]:
        """Reject each line of a row that cannot be read, so that no line is lost unseen."""
        first = self.line - len(self.taken) + 1
        offset = self._row_offset
        for index, text in enumerate(self.taken):
            raw = text.encode("utf-8", "surrogateescape")
            more = f" (in the row that begins at line {first})" if index else ""
            stripped = raw.removesuffix(b"\n").removesuffix(b"\r")
            yield Record(first + index, offset, None, stripped, "broken_csv_row", detail + more)
            offset += len(raw)


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))
