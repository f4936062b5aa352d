"""What a trainer imports: one worker's weighted rows, and the check of a folder of shards.

Importing this loads numpy and pyarrow; torch comes with the first `load_shard`.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from evenshard.checks import Problem
from evenshard.shards import ShardError, StrPath, find_shard
from evenshard.verify import verify

if TYPE_CHECKING:
    from evenshard.dataset import ShardRows

__all__ = ["Problem", "ShardError", "__version__", "load_shard", "verify"]

try:
    __version__ = version("evenshard")
except PackageNotFoundError:  # a source checkout that is not installed
    __version__ = "0+source"


def load_shard(dir: StrPath, rank: int, world_size: int | None = None) -> "ShardRows":
    """Open one worker's rows as a map-style torch dataset.

    Parameters
    ----------
    dir : path
        A folder that `make curate` or `make reshard` wrote.
    rank : int
        The global rank of this process.
    world_size : int, optional
        The number of processes of the job; if given, it must be the one the folder was made for.

    Returns
    -------
    ShardRows
        Items hold `row_id`, `input_ids`, `labels` and `weight`. Give it to a loader that does
        not shard again.

    Raises
    ------
    ShardError
        If the folder is incomplete, mixes sets, or does not fit the rank and world size.
    ImportError
        If torch is not installed.
    """
    path = find_shard(dir, rank, world_size)
    from evenshard.dataset import ShardRows

    return ShardRows(path)
