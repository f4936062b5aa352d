"""Arrow IPC, both as a file and as a stream; `datasets.save_to_disk` writes the second."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from stages.contract.errors import DataError
from stages.contract.shown import one_line
from stages.rows.formats.columnar import records, sound
from stages.rows.formats.record import Record

_FILE_MAGIC = b"ARROW1"


def read(path: Path) -> Iterator[Record]:
    """Read the rows of an Arrow file or stream.

    Raises
    ------
    DataError
        If the file is damaged: how many rows are lost could not be said.
    """
    try:
        yield from records(_batches(path))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as Arrow IPC ({one_line(str(error))}); fetch it again"
        ) from error


def _batches(path: Path) -> Iterator[Any]:
    with pa.memory_map(str(path)) as source:
        magic = source.read(len(_FILE_MAGIC))
        source.seek(0)
        if magic == _FILE_MAGIC:
            with pa.ipc.open_file(source) as reader:
                for index in range(reader.num_record_batches):
                    yield sound(reader.get_batch(index))
        else:
            with pa.ipc.open_stream(source) as reader:
                yield from map(sound, reader)
