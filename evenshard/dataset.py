"""One worker's rows as a torch dataset: tokens stay in Arrow memory until a row is asked for."""

import operator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from evenshard.shards import SHARD_SCHEMA, ShardError, StrPath

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
