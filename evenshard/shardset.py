"""All shards of a published folder as one thing: what a plan needs of them, without torch."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from evenshard.shards import ShardError, StrPath, file_digest, find_shard, read_manifest


class ShardSet:
    """The shards of one folder, complete and of one set.

    Rows are named by (worker, position) or by one number, `worker * rows_per_worker + position`.

    Parameters
    ----------
    dir : path
        A folder that `make curate` or `make reshard` wrote.
    check_hashes : bool, default=False
        Read every file and compare its SHA-256 with the manifest's.

    Raises
    ------
    ShardError
        If the folder is incomplete, mixes sets, or was altered.
    """

    def __init__(self, dir: StrPath, *, check_hashes: bool = False) -> None:
        self.folder = Path(dir)
        self.manifest = read_manifest(self.folder)
        self.paths = [find_shard(self.folder, rank) for rank in range(self.world_size)]
        if check_hashes:
            for path, worker in zip(self.paths, self.manifest["workers"], strict=True):
                if file_digest(path) != worker["sha256"]:
                    raise ShardError(
                        f"{path} is not the file that its manifest describes (its SHA-256 "
                        f"differs); copy the folder again"
                    )

    @property
    def world_size(self) -> int:
        """Number of shards, W."""
        return self.manifest["world_size"]

    @property
    def micro_batch(self) -> int:
        """Rows of a worker in one forward pass, B."""
        return self.manifest["micro_batch"]

    @property
    def accumulation(self) -> int:
        """Forward passes of a step, A."""
        return self.manifest["accumulation"]

    @property
    def rows_per_worker(self) -> int:
        """Rows of each shard."""
        return self.manifest["rows_per_worker"]

    @property
    def num_rows(self) -> int:
        """Rows of all shards."""
        return self.manifest["rows"]

    @property
    def num_steps(self) -> int:
        """Synchronized steps of an epoch, S."""
        return self.manifest["steps_per_epoch"]

    @property
    def seed(self) -> int:
        """Seed of the set."""
        return self.manifest["seed"]

    @cached_property
    def cluster(self) -> npt.NDArray[np.int32]:
        """Cluster of every row, of shape (world_size, rows_per_worker)."""
        return self.column("cluster")

    @cached_property
    def num_tokens(self) -> npt.NDArray[np.int32]:
        """Length of every row, of shape (world_size, rows_per_worker)."""
        return self.column("num_tokens")

    @cached_property
    def row_id(self) -> npt.NDArray[np.int64]:
        """Row id of every row, of shape (world_size, rows_per_worker)."""
        return self.column("row_id")

    def column(self, name: str) -> npt.NDArray[Any]:
        """Read one column of numbers, of shape (world_size, rows_per_worker).

        Raises
        ------
        ShardError
            If a file has another number of rows than the manifest says.
        """
        columns = []
        for path in self.paths:
            column = pq.read_table(path, columns=[name])[name].to_numpy()
            if column.size != self.rows_per_worker:
                raise ShardError(
                    f"{path} has {column.size} rows, its manifest says {self.rows_per_worker}; "
                    f"copy the folder again"
                )
            columns.append(column)
        return np.stack(columns)
