"""JSON lines. A line ends at the byte 0x0A and nowhere else: U+2028 and CR are part of texts.

A line that is too long for one row is rejected in pieces, so that memory stays bounded and no byte
of it is lost.
"""

from collections.abc import Iterator
from pathlib import Path

from stages.rows.formats.opening import MAX_ROW_BYTES, opening, trouble
from stages.rows.formats.record import Record, from_json

BOM = b"\xef\xbb\xbf"


def read(path: Path) -> Iterator[Record]:
    """Read one JSON object per line; blank lines are skipped, all else is a record."""
    with opening(path) as stream:
        line, offset = 1, 0
        cut = inside = False
        while full := stream.readline(MAX_ROW_BYTES):
            ends = full.endswith(b"\n")
            raw = full.removesuffix(b"\n").removesuffix(b"\r")
            start = offset
            if offset == 0 and raw.startswith(BOM):
                raw, start = raw[len(BOM) :], len(BOM)
            inside = inside or (not ends and len(full) >= MAX_ROW_BYTES)
            reason, detail = trouble(stream)
            cut = bool(reason) and not ends
            if cut:
                yield Record(line, start, None, raw, reason, detail)
            elif raw.strip() and inside:
                detail = f"a line of {MAX_ROW_BYTES} bytes or more, rejected in pieces"
                yield Record(line, start, None, raw, "row_too_long", detail)
            elif raw.strip():
                yield from_json(raw, line, start)
            offset += len(full)
            line += ends
            inside = inside and not ends
        reason, detail = trouble(stream)
        if reason and not cut:
            yield Record(line, offset, None, b"", reason, detail)
