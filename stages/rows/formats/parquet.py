"""Parquet files, a batch of rows at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.contract.errors import DataError
from stages.contract.shown import one_line
from stages.rows.formats.columnar import records, rows_within, sound
from stages.rows.formats.record import Record

FIRST_ROWS = 100


def read(path: Path) -> Iterator[Record]:
    """Read the rows of a Parquet file.

    Raises
    ------
    DataError
        If the file is damaged: how many rows are lost could not be said.
    """
    try:
        with pq.ParquetFile(path) as file:
            yield from records(_batches(file))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as Parquet ({one_line(str(error))}); fetch it again"
        ) from error


def _batches(file: Any) -> Iterator[Any]:
    """Read batches of few rows first, and of more where rows turn out to be short."""
    num_rows = fitting = FIRST_ROWS
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(batch_size=num_rows, row_groups=[group]):
            fitting = rows_within(batch.num_rows, batch.nbytes)
            yield sound(batch)
        num_rows = fitting
