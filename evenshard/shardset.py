"""All shards of a published folder as one thing: what a plan needs of them, without torch."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from evenshard.checks import check_arithmetic
from evenshard.shards import (
    ShardError,
    StrPath,
    file_digest,
    find_shard,
    read_manifest,
    shard_name,
)

PADDING = -1  # the number of a row that is none, and its row id


class ShardSet:
    """The shards of one folder, complete and of one set.

    Rows are named by (worker, position) or by one number, `worker * rows_per_worker + position`.
    Columns are read when they are first asked for, and kept.

    Parameters
    ----------
    dir : path
        A folder that `make curate` or `make reshard` wrote.
    check_hashes : bool, default=False
        Read every file and compare its SHA-256 with the manifest's. Without it, names, sizes and
        the manifest's own arithmetic are checked.

    Raises
    ------
    ShardError
        If the folder is incomplete, mixes sets, or was altered.
    """

    def __init__(self, dir: StrPath, *, check_hashes: bool = False) -> None:
        self.folder = Path(dir)
        self.manifest = read_manifest(self.folder)
        for problem in check_arithmetic(self.manifest):
            raise ShardError(f"{self.folder} was altered: {problem}; copy the folder again")
        find_shard(self.folder, 0)  # refuses a folder that mixes sets
        self.paths = [self._find(worker) for worker in range(self.world_size)]
        self._stamps = [_stamp(path) for path in self.paths]
        self._columns: dict[tuple[int, str], npt.NDArray[Any]] = {}
        if check_hashes:
            self._check_hashes()

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
    def fingerprint(self) -> str:
        """A name of the content: 16 hex digits over the files' hashes, in order."""
        hashes = "".join(worker["sha256"] for worker in self.manifest["workers"])
        return hashlib.sha256(hashes.encode()).hexdigest()[:16]

    def check_unchanged(self, worker: int) -> None:
        """Look at a shard's file before it is read late, perhaps hours after the first ones.

        Raises
        ------
        ShardError
            If another set has taken the folder's place: its rows would be mixed with this one's.
        """
        try:
            stamp = _stamp(self.paths[worker])
        except OSError as error:
            raise ShardError(f"{self.paths[worker]} is gone ({error}); copy it again") from error
        if stamp != self._stamps[worker]:
            _same_set(type(self)(self.folder), self.fingerprint)
            self._stamps[worker] = stamp

    @property
    def cluster(self) -> npt.NDArray[np.int32]:
        """Cluster of every row, of shape (world_size, rows_per_worker)."""
        return self.column("cluster")

    @property
    def num_tokens(self) -> npt.NDArray[np.int32]:
        """Length of every row, of shape (world_size, rows_per_worker)."""
        return self.column("num_tokens")

    @property
    def row_id(self) -> npt.NDArray[np.int64]:
        """Row id of every row, of shape (world_size, rows_per_worker)."""
        return self.column("row_id")

    def column(self, name: str) -> npt.NDArray[Any]:
        """Read one column of numbers, of shape (world_size, rows_per_worker).

        Raises
        ------
        ShardError
            If a file cannot be read, or has another number of rows than the manifest says.
        """
        return np.stack([self.shard_column(worker, name) for worker in range(self.world_size)])

    def shard_column(self, worker: int, name: str) -> npt.NDArray[Any]:
        """Read one column of numbers of one shard, of shape (rows_per_worker,)."""
        if (worker, name) not in self._columns:
            path = self.paths[worker]
            self.check_unchanged(worker)
            try:
                with pq.ParquetFile(path) as file:
                    column = file.read(columns=[name])[name].to_numpy()
            except (pa.ArrowException, OSError, KeyError) as error:
                raise ShardError(
                    f"{path}: column {name} cannot be read ({error}); copy the folder again"
                ) from error
            if column.size != self.rows_per_worker:
                raise ShardError(
                    f"{path} has {column.size} rows, its manifest says {self.rows_per_worker}; "
                    f"copy the folder again"
                )
            self._columns[worker, name] = column
        return self._columns[worker, name]

    def row_ids(self, numbers: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Give the row ids of rows by number; -1, padding, stays -1.

        Parameters
        ----------
        numbers : array-like of int, of any shape
            `worker * rows_per_worker + position`, or -1.

        Returns
        -------
        ndarray of the same shape, int64
        """
        rows = np.asarray(numbers, np.int64)
        ids = np.full(rows.shape, PADDING, np.int64)
        workers = np.where(rows == PADDING, PADDING, rows // self.rows_per_worker)
        for worker in np.unique(workers[workers != PADDING]).tolist():
            mine = workers == worker
            positions = rows[mine] - worker * self.rows_per_worker
            ids[mine] = self.shard_column(worker, "row_id")[positions]
        return ids

    def __reduce__(self) -> tuple[Any, tuple[type["ShardSet"], Path, str]]:
        return _reopen, (type(self), self.folder, self.fingerprint)

    def _find(self, worker: int) -> Path:
        path = self.folder / shard_name(worker, self.world_size)
        facts = self.manifest["workers"][worker]
        if facts["file"] != path.name:
            raise ShardError(
                f"{self.folder} names file={facts['file']!r} as worker {worker}, must be "
                f"{path.name!r}; copy the folder again"
            )
        if not path.is_file():
            raise ShardError(f"{path} is missing; copy the folder again")
        size = path.stat().st_size
        if size != facts["num_bytes"]:
            raise ShardError(
                f"{path} has {size} bytes, its manifest says {facts['num_bytes']}; copy it again"
            )
        return path

    def _check_hashes(self) -> None:
        for path, worker in zip(self.paths, self.manifest["workers"], strict=True):
            found = file_digest(path)
            if found != worker["sha256"]:
                raise ShardError(
                    f"{path} has sha256={found[:12]}..., its manifest says "
                    f"{worker['sha256'][:12]}...: it is another file; copy the folder again"
                )


def _reopen(kind: type[ShardSet], folder: Path, fingerprint: str) -> ShardSet:
    """Open a folder in another process, where it must be the set that it was."""
    return _same_set(kind(folder), fingerprint)


def _same_set(found: ShardSet, fingerprint: str) -> ShardSet:
    if found.fingerprint != fingerprint:
        raise ShardError(
            f"{found.folder} was replaced while it was in use: it holds the set with fingerprint="
            f"{found.fingerprint}, the job began with {fingerprint}; curate into another folder, "
            f"or start the job anew"
        )
    return found


def _stamp(path: Path) -> tuple[int, int]:
    """Give what changes when a file is written anew: its time and size."""
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size
