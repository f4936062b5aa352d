"""Parquet files, a batch of rows at a time."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stages.contract.errors import DataError
from stages.rows.formats.columnar import ROWS_PER_BATCH, records
from stages.rows.formats.record import Record


def read(path: Path) -> Iterator[Record]:
    """Read the rows of a Parquet file.

    Raises
    ------
    DataError
        If the file is damaged: how many rows are lost could not be said.
    """
    try:
        with pq.ParquetFile(path) as file:
            yield from records(file.iter_batches(batch_size=ROWS_PER_BATCH))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet ({error}); fetch it again") from error
