"""Arrow batches as records: what the Parquet, Arrow and hub formats share."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from stages.rows.formats.record import Record, without_nulls

ROWS_PER_BATCH = 1000

_UNREADABLE = (ValueError, OverflowError, TypeError, pa.ArrowException)


def records(batches: Iterator[Any]) -> Iterator[Record]:
    """Give the rows of Arrow batches, numbered from 1; a bad value rejects its own row only."""
    first = 1
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_PER_BATCH):
            piece = batch.slice(start, ROWS_PER_BATCH)
            try:
                values = piece.to_pylist()
            except _UNREADABLE:
                yield from _one_by_one(piece, first + start)
                continue
            for number, value in enumerate(values, start=first + start):
                yield Record(number, -1, without_nulls(value))
        first += batch.num_rows


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
