"""Data sets by their hub name, through the `datasets` package; their split is `train`."""

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from stages.contract.errors import ConfigurationError, DataError
from stages.contract.shown import one_line
from stages.rows.formats.columnar import ROWS_PER_BATCH, records, sound
from stages.rows.formats.record import Record

log = logging.getLogger(__name__)


def read(name: str) -> Iterator[Record]:
    """Read the rows of a data set of the hub; images and sounds are not decoded.

    Raises
    ------
    DataError
        If its files are damaged: how many rows are lost could not be said.
    """
    tables = _load(name).with_format("arrow").iter(batch_size=ROWS_PER_BATCH)
    try:
        yield from records(sound(batch) for table in tables for batch in table.to_batches())
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"rows.path={name} cannot be read ({one_line(str(error))}); remove what the package "
            "datasets keeps of it, and fetch it again"
        ) from error


def fingerprint(name: str) -> str:
    """Give the text by which `datasets` knows the content that the name stands for today."""
    return str(_load(name)._fingerprint)


@lru_cache(maxsize=2)
def _load(name: str) -> Any:
    """Load the train split.

    Raises
    ------
    ConfigurationError
        If `datasets` is not installed, or the name cannot be loaded.
    """
    try:
        import datasets
    except ImportError as error:
        raise ConfigurationError(
            f"rows.path={name} is no file here, and data sets of the hub need the package "
            "'datasets'; run make setup (or pip install datasets), or give a file"
        ) from error
    try:
        return datasets.load_dataset(name, split="train")
    except Exception as error:
        raise ConfigurationError(
            f"rows.path={name} is no file here, and cannot be loaded as a data set of the hub: "
            f"{type(error).__name__}: {error}; check the name and the network, or give a file"
        ) from error
