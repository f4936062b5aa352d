"""What a trainer imports: weighted rows in their order, on any number of ranks, and checks.

Importing this loads numpy and pyarrow; names that need torch bring it when they are first used.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from evenshard.checks import Problem
from evenshard.plan import Plan
from evenshard.shards import ShardError, StrPath, find_shard
from evenshard.shardset import ShardSet
from evenshard.startup import check_start, diagnose
from evenshard.verify import verify

if TYPE_CHECKING:
    from evenshard.collate import PadCollator as PadCollator
    from evenshard.collate import WeightCollator as WeightCollator
    from evenshard.dataset import SetRows as SetRows
    from evenshard.dataset import ShardRows as ShardRows
    from evenshard.loader import ShardLoader as ShardLoader
    from evenshard.loader import make_loader as make_loader
    from evenshard.loss import step_denominator as step_denominator
    from evenshard.loss import weighted_loss as weighted_loss
    from evenshard.loss_check import check_loss as check_loss
    from evenshard.sampler import ShardSampler as ShardSampler
    from evenshard.stock import make_loss as make_loss
    from evenshard.stock import set_loss as set_loss
    from evenshard.trainer import WeightedShards as WeightedShards

# Names that need torch (the mixin also transformers), and where they are.
_ON_USE = {
    "PadCollator": "evenshard.collate",
    "SetRows": "evenshard.dataset",
    "ShardLoader": "evenshard.loader",
    "ShardRows": "evenshard.dataset",
    "ShardSampler": "evenshard.sampler",
    "WeightCollator": "evenshard.collate",
    "WeightedShards": "evenshard.trainer",
    "check_loss": "evenshard.loss_check",
    "make_loader": "evenshard.loader",
    "make_loss": "evenshard.stock",
    "set_loss": "evenshard.stock",
    "step_denominator": "evenshard.loss",
    "weighted_loss": "evenshard.loss",
}

__all__ = [
    "PadCollator",
    "Plan",
    "Problem",
    "SetRows",
    "ShardError",
    "ShardLoader",
    "ShardRows",
    "ShardSampler",
    "ShardSet",
    "WeightCollator",
    "WeightedShards",
    "__version__",
    "check_loss",
    "check_start",
    "diagnose",
    "load_shard",
    "make_loader",
    "make_loss",
    "set_loss",
    "step_denominator",
    "verify",
    "weighted_loss",
]

try:
    __version__ = version("evenshard")
except PackageNotFoundError:  # a source checkout that is not installed
    __version__ = "0+source"


def __getattr__(name: str) -> Any:
    """Import a name that needs torch when it is asked for."""
    if name not in _ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ON_USE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
