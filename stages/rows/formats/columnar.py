"""Arrow batches as records: what the Parquet, Arrow and hub formats share.

Rows may be of any length, so what is in memory at a time is bounded in bytes and not in rows only.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from stages.rows.formats.record import Record, without_nulls

ROWS_PER_BATCH = 1000
BYTES_PER_BATCH = 32 << 20

_UNREADABLE = (ValueError, OverflowError, TypeError, pa.ArrowException)


def records(batches: Iterator[Any]) -> Iterator[Record]:
    """Give the rows of Arrow batches, numbered from 1; a bad value rejects its own row only."""
    first = 1
    for batch in batches:
        step = rows_within(batch.num_rows, batch.nbytes)
        for start in range(0, batch.num_rows, step):
            piece = batch.slice(start, step)
            try:
                values = piece.to_pylist()
            except _UNREADABLE:
                yield from _one_by_one(piece, first + start)
                continue
            for number, value in enumerate(values, start=first + start):
                yield Record(number, -1, without_nulls(value))
        first += batch.num_rows


def rows_within(num_rows: int, num_bytes: int) -> int:
    """Say how many rows like these are a batch."""
    return max(1, min(ROWS_PER_BATCH, BYTES_PER_BATCH * num_rows // max(num_bytes, 1)))


def _one_by_one(batch: Any, first: int) -> Iterator[Record]:
    for index in range(batch.num_rows):
        number = first + index
        try:
            value = batch.slice(index, 1).to_pylist()[0]
        except UnicodeDecodeError as error:
            yield Record(number, -1, None, b"", "not_utf8", str(error))
        except _UNREADABLE as error:
            yield Record(number, -1, None, b"", "unreadable_value", str(error))
        else:
            yield Record(number, -1, without_nulls(value))
