"""A torch loader that reads its own rows, in every world size, and cuts nothing twice.

loader = make_loader(dir, rank, world_size, collate=collate)
check_start(loader, loader.plan, rank)
for epoch in range(epochs): loader.set_epoch(epoch); train(loader)
"""

from collections.abc import Callable
from typing import Any

from evenshard.dataset import SetRows
from evenshard.diagnosis import find_other_objective, objective_of
from evenshard.plan import Plan
from evenshard.sampler import ShardSampler
from evenshard.shards import ShardError, StrPath
from evenshard.shardset import ShardSet

try:
    from torch.utils.data import DataLoader
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "torch":
        raise
    raise ImportError(
        "loading shards needs torch, which is not installed; get it with `pip install torch`"
    ) from error

Item = dict[str, Any]


class ShardLoader(DataLoader[Any]):
    """A DataLoader over `SetRows` in the order of a plan; `make_loader` makes it.

    torch gives a loader no `set_epoch`: it asks `loader.batch_sampler`, which is the
    `ShardSampler` here, also known as `sampler_of_shards`. `set_epoch` reaches it.
    """

    sampler_of_shards: ShardSampler

    def __init__(
        self,
        sampler: ShardSampler,
        collate: Callable[[list[Item]], Any],
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        other = find_other_objective(objective_of(collate), sampler.plan.objective)
        if other is not None:
            raise ShardError(other)
        rows = SetRows(sampler.plan.shards)
        rows.open(sampler.plan.workers_of(sampler.rank))  # once, for all workers that are forked
        super().__init__(
            rows,
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=num_workers,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
        )
        self.sampler_of_shards = sampler

    @property
    def plan(self) -> Plan:
        """The plan whose order this is."""
        return self.sampler_of_shards.plan

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives."""
        self.sampler_of_shards.set_epoch(epoch)


def make_loader(
    dir: StrPath | ShardSet,
    rank: int,
    world_size: int,
    *,
    collate: Callable[[list[Item]], Any],
    micro_batch: int | None = None,
    seed: int | None = None,
    objective: str | None = None,
    epoch: int = 0,
    start: int = 0,
    num_workers: int = 0,
    pin_memory: bool = False,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
) -> ShardLoader:
    """Make the loader of one rank.

    Parameters
    ----------
    dir : path or ShardSet
        A published folder.
    rank, world_size : int
        The global rank of this process, and the processes of the job; any number of them.
    collate : callable
        Makes a batch of a list of items `{row_id, input_ids, labels, weight}`.
    micro_batch, seed, objective : optional
        As `Plan` takes them; by default those of the set.
    epoch, start : int, default=0
        Where the first iteration begins: an epoch, and an optimizer step of it.
    num_workers, pin_memory, prefetch_factor, persistent_workers
        As torch takes them.

    Returns
    -------
    ShardLoader
        Give it to nothing that shards again. `loader.plan.accumulation` micro-batches make an
        optimizer step.

    Raises
    ------
    ShardError
        If the folder is not whole, cannot be trained by so many ranks, or the collator is a
        WeightCollator for another objective.
    """
    shards = dir if isinstance(dir, ShardSet) else ShardSet(dir)
    plan = Plan(shards, world_size, micro_batch, seed, objective)
    sampler = ShardSampler(plan, rank)
    sampler.set_epoch(epoch)
    sampler.set_step(start)
    return ShardLoader(
        sampler,
        collate,
        num_workers=num_workers,
        pin_memory=pin_memory,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
    )
