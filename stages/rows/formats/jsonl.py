"""JSON lines. A line ends at the byte 0x0A and nowhere else: U+2028 and CR are part of texts."""

from collections.abc import Iterator
from pathlib import Path

from stages.rows.formats.opening import opening, trouble
from stages.rows.formats.record import Record, from_json

BOM = b"\xef\xbb\xbf"


def read(path: Path) -> Iterator[Record]:
    """Read one JSON object per line; blank lines are skipped, all else is a record."""
    with opening(path) as stream:
        line = offset = 0
        cut = False
        for line, full in enumerate(stream, start=1):
            raw = full.removesuffix(b"\n").removesuffix(b"\r")
            if line == 1:
                raw = raw.removeprefix(BOM)
            reason, detail = trouble(stream)
            cut = bool(reason) and not full.endswith(b"\n")
            if cut:
                yield Record(line, offset, None, raw, reason, detail)
            elif raw.strip():
                yield from_json(raw, line, offset)
            offset += len(full)
        reason, detail = trouble(stream)
        if reason and not cut:
            yield Record(line + 1, offset, None, b"", reason, detail)
