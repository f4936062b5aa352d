"""Arrow batches as records: what the Parquet, Arrow and hub formats share.

Rows may be of any length, so what is in memory at a time is bounded in bytes and not in rows only.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from stages.rows.formats.record import Record, json_text, without_nulls

ROWS_PER_BATCH = 1000
BYTES_PER_BATCH = 32 << 20

_UNREADABLE = (ValueError, OverflowError, TypeError, RecursionError, pa.ArrowException)


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


def sound(batch: Any) -> Any:
    """Give a record batch back if no value of it lies outside its memory.

    Arrow trusts the places of values that a file states, and so would read, or die of, whatever
    stands there. Text that is not UTF-8 is let through, since that is the fault of its row only.

    Raises
    ------
    pyarrow.ArrowInvalid
        If it is not sound.
    """
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        for column in batch.columns:
            _as_bytes(column).validate(full=True)
    return batch


def _one_by_one(batch: Any, first: int) -> Iterator[Record]:
    for index in range(batch.num_rows):
        row = batch.slice(index, 1)
        number = first + index
        try:
            value = _values(row)
        except UnicodeDecodeError as error:
            yield Record(number, -1, None, _salvage(row), "not_utf8", str(error))
        except _UNREADABLE as error:
            yield Record(number, -1, None, _salvage(row), "unreadable_value", str(error))
        else:
            yield Record(number, -1, without_nulls(value))


def _values(row: Any) -> dict[str, Any]:
    """Read a batch of one row; times that Python's cannot hold are given as text."""
    values = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            (values[name],) = column.to_pylist()
        except UnicodeDecodeError:
            raise
        except _UNREADABLE:
            (values[name],) = column.cast(_retyped(column.type, _time_as_text)).to_pylist()
    return values


def _salvage(row: Any) -> bytes:
    """Write what can be read of a row as JSON, its text as bytes, for the table of rejects."""
    values: dict[str, Any] = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            (values[name],) = _as_bytes(column).to_pylist()
        except _UNREADABLE:
            values[name] = str(column.type)
    return json_text(values).encode()


def _as_bytes(column: Any) -> Any:
    """See the text of a column as the bytes that it is."""
    if pa.types.is_dictionary(column.type):
        return pa.DictionaryArray.from_arrays(column.indices, _as_bytes(column.dictionary))
    return column.view(_retyped(column.type, _text_as_bytes))


def _text_as_bytes(kind: Any) -> Any:
    return {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }.get(kind, kind)


def _time_as_text(kind: Any) -> Any:
    return pa.string() if pa.types.is_temporal(kind) else kind


def _retyped(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Change the types inside an Arrow type."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_retyped(field.type, change)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_retyped(kind.key_type, change), _retyped(kind.item_type, change))
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.list_ if types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_retyped(kind.value_type, change)))
    if types.is_fixed_size_list(kind):
        inner = kind.value_field.with_type(_retyped(kind.value_type, change))
        return pa.list_(inner, kind.list_size)
    return change(kind)
