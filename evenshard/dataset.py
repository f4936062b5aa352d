"""Rows as torch datasets, of one shard or of a set: tokens stay in Arrow memory until asked for."""

import operator
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from evenshard.shards import IGNORED_LABEL, SHARD_SCHEMA, ShardError, StrPath
from evenshard.shardset import PADDING, ShardSet

try:
    import torch
    from torch.utils.data import Dataset
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "reading shards as a torch dataset needs torch, which is not installed; "
        "get it with `pip install torch`"
    ) from error


class ShardRows(Dataset[dict[str, torch.Tensor]]):
    """The rows of one shard, in the order in which they are to be trained.

    An item is `{"row_id": int64 scalar, "input_ids": int64 of shape (num_tokens,), "labels":
    int64 of shape (num_tokens,), "weight": float32 scalar}`.

    Parameters
    ----------
    path : path
        A file `worker-<rank>-of-<world size>.parquet`.

    Raises
    ------
    ShardError
        If the file has other columns than a shard.

    Notes
    -----
    Pickling keeps the path alone: a worker process that is spawned reads the file again, one
    that is forked shares the memory.
    """

    def __init__(self, path: StrPath) -> None:
        self.path = Path(path)
        with pq.ParquetFile(self.path, memory_map=True) as file:
            if not file.schema_arrow.equals(SHARD_SCHEMA):
                raise ShardError(
                    f"{self.path} has columns {', '.join(file.schema_arrow.names)} unlike a "
                    "shard's; `evenshard verify` on its folder says which differ"
                )
            table = file.read(columns=["row_id", "input_ids", "labels", "weight"])
        self._row_ids: npt.NDArray[np.int64] = table["row_id"].to_numpy()
        self._weights: npt.NDArray[np.float32] = table["weight"].to_numpy()
        self._input_ids = _Lists(table["input_ids"])
        self._labels = _Lists(table["labels"])

    def row_ids(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Give the row ids at these positions, without their tokens."""
        ids: npt.NDArray[np.int64] = self._row_ids[np.asarray(positions, np.int64)]
        return ids

    def __len__(self) -> int:
        return len(self._row_ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} must lie in [0, {len(self)}), the rows of {self.path}")
        row %= len(self)
        return {
            "row_id": torch.tensor(self._row_ids[row], dtype=torch.int64),
            "input_ids": torch.from_numpy(self._input_ids.row(row)),
            "labels": torch.from_numpy(self._labels.row(row)),
            "weight": torch.tensor(self._weights[row], dtype=torch.float32),
        }

    def __reduce__(self) -> tuple[type["ShardRows"], tuple[Path]]:
        return type(self), (self.path,)


class SetRows(Dataset[dict[str, torch.Tensor]]):
    """The rows of a whole set by number, `worker * rows_per_worker + position`.

    Items are those of `ShardRows`. A shard's file is read when a row of it is first asked for.
    The number -1 gives a row of padding: `row_id` -1, one token that is not trained, weight 0.

    Parameters
    ----------
    shards : ShardSet
        The set.

    Notes
    -----
    Pickling keeps the folder alone. Loader workers that are forked share the files that are open
    (see `open`); otherwise each reads what it needs, anew for every epoch.
    """

    def __init__(self, shards: ShardSet) -> None:
        self.shards = shards
        self._open: dict[int, ShardRows] = {}

    def open(self, workers: Iterable[int]) -> None:
        """Read the files of these shards now."""
        for worker in workers:
            self._shard(worker)

    def row_ids(self, numbers: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Give the row ids of rows by number, without their tokens."""
        return self.shards.row_ids(numbers)

    def __len__(self) -> int:
        return self.shards.num_rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        number = operator.index(index)
        if number == PADDING:
            return {
                "row_id": torch.tensor(PADDING, dtype=torch.int64),
                "input_ids": torch.zeros(1, dtype=torch.int64),
                "labels": torch.full((1,), IGNORED_LABEL, dtype=torch.int64),
                "weight": torch.tensor(0.0, dtype=torch.float32),
            }
        if not 0 <= number < len(self):
            raise IndexError(f"row {number} must lie in [0, {len(self)}), or be -1 for padding")
        worker, position = divmod(number, self.shards.rows_per_worker)
        return self._shard(worker)[position]

    def __reduce__(self) -> tuple[type["SetRows"], tuple[ShardSet]]:
        return type(self), (self.shards,)

    def _shard(self, worker: int) -> ShardRows:
        if worker not in self._open:
            self.shards.check_unchanged(worker)
            rows = ShardRows(self.shards.paths[worker])
            if len(rows) != self.shards.rows_per_worker:
                raise ShardError(
                    f"{rows.path} has {len(rows)} rows, its manifest says "
                    f"{self.shards.rows_per_worker}; copy the folder again"
                )
            self._open[worker] = rows
        return self._open[worker]


class _Lists:
    """A column of token lists, chunk by chunk as Arrow holds it: no copy, no limit of 2**31."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._offsets = [chunk.offsets.to_numpy() for chunk in chunks]
        self._values = [chunk.values.to_numpy() for chunk in chunks]
        # starts: (chunk,), the row at which each chunk begins
        self._starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])

    def row(self, row: int) -> npt.NDArray[np.int64]:
        """Copy one list out, of shape (num_tokens,)."""
        chunk = int(np.searchsorted(self._starts, row, side="right")) - 1
        start, stop = self._offsets[chunk][row - self._starts[chunk] :][:2]
        tokens: npt.NDArray[np.int64] = self._values[chunk][start:stop].astype(np.int64)
        return tokens
