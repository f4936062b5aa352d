"""One call before training: every rank must read the rows that the plan gives it.

    check_start(loader, plan, rank)

Trainers cut a loader a second time, shuffle it, drop columns or pack rows, and say nothing. What
they did shows in the row ids: `look` takes them without moving the loader, `diagnose` compares
them with the plan and names the setting, and `check_start` lets all ranks know, so that the error
is raised on each and none waits for another.
Longer than other files, since each kind of loader is looked at in its own way.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.diagnosis import Batches as Batches
from evenshard.diagnosis import Seen as Seen
from evenshard.diagnosis import diagnose as diagnose
from evenshard.diagnosis import objective_of
from evenshard.plan import Plan
from evenshard.shards import ShardError

log = logging.getLogger(__name__)

MUCH_PADDING = 0.25
STEPS_LOOKED_AT = 2  # where only the batches themselves tell the row ids


class Report(NamedTuple):
    """What a rank tells the others."""

    num_batches: int | None
    fault: str | None
    job: Mapping[str, int | str] = {}  # what decides the order, as this rank has it


def check_start(
    loader: Any,
    plan: Plan,
    rank: int,
    group: Any = None,
    *,
    epoch: int = 0,
    start: int = 0,
    whole_epoch: bool = False,
) -> None:
    """Check on every rank that the loader gives the plan's rows; call it once, on all ranks.

    Parameters
    ----------
    loader : iterable of mappings, or sequence of mappings
        What the trainer will iterate over, after `accelerate.prepare` and its like; its position
        and the state of torch's random numbers stay as they are. Or the first batches, as a list.
        Row ids are taken from the loader's dataset where it is map-style, else from `row_id` in
        the batches.
    plan : Plan
        The plan of the job.
    rank : int
        The global rank of this process.
    group : ProcessGroup, optional
        The data-parallel ranks; by default all. Without an initialised `torch.distributed` this
        process alone is checked.
    epoch, start : int, default=0
        Where the loader begins. A loader with a `ShardSampler` knows it itself.
    whole_epoch : bool, default=False
        Read a stream to its end, which takes as long as reading takes in an epoch. Without it the
        first two steps are read, and ranks whose streams end early or late are not found: the
        ones that still train would wait for the others. Other loaders are always checked whole.

    Raises
    ------
    ShardError
        On all ranks alike, if any of them would train on other rows, drop weights, have another
        number of batches, or read another set than the others.
    """
    world_size = group_size(group)
    failure: Exception | None = None
    try:
        seen = look(
            loader,
            plan,
            world_size=world_size,
            epoch=epoch,
            start=start,
            whole_epoch=whole_epoch,
        )
        report = Report(
            seen.num_batches, diagnose(seen, plan, rank), _job(plan, seen.epoch, seen.begin)
        )
    except Exception as error:  # the other ranks wait for this one's report
        failure = error
        report = Report(None, f"{type(error).__name__}: {error}")
    fault = find_faults(gather(report, group))
    if fault is not None:
        raise ShardError(f"training would not follow the plan. {fault}") from failure
    if rank == 0 and plan.padding_share > MUCH_PADDING:
        log.warning(
            "%.0f%% of what the ranks pass is padding: %d ranks with micro-batches of %d take %d "
            "rows a step apart badly; a smaller micro-batch, or another number of ranks, fits",
            *(100 * plan.padding_share, plan.world_size, plan.micro_batch, plan.rows_in_step(0)),
        )


def find_faults(reports: Sequence[Report]) -> str | None:
    """Put the ranks' reports into one message, or None if all is well."""
    by_fault = _by_value([report.fault for report in reports])
    parts = [f"{_names(who)}: {fault}" for fault, who in by_fault.items()]
    counts = [report.num_batches for report in reports if report.num_batches is not None]
    if len(set(counts)) > 1:
        parts.append(
            f"ranks have different numbers of batches, {counts}: the ones with fewer would leave "
            f"the others waiting; give each rank a whole shard (`evenshard verify` on the folder)"
        )
    parts += _disagreements(reports)
    return "; ".join(parts) or None


def _job(plan: Plan, epoch: int, begin: int) -> dict[str, int | str]:
    """Name what decides which rows a rank gets, so that ranks can compare it."""
    return {
        "fingerprint": plan.shards.fingerprint,
        "seed": plan.seed,
        "objective": plan.objective,
        "world_size": plan.world_size,
        "micro_batch": plan.micro_batch,
        "epoch": epoch,
        "micro_batches done": begin,
    }


def _disagreements(reports: Sequence[Report]) -> list[str]:
    """Say what the ranks' plans differ in: each could follow its own, and miss rows together."""
    told = []
    for name in dict.fromkeys(name for report in reports for name in report.job):
        ranks = _by_value([report.job.get(name) for report in reports])
        if len(ranks) > 1:
            values = ", ".join(f"{value} on {_names(who)}" for value, who in ranks.items())
            what = "folder, copied whole" if name == "fingerprint" else name
            told.append(f"ranks have different plans, {name}={values}: give all the same {what}")
    return told


def _by_value(values: Sequence[int | str | None]) -> dict[int | str, list[int]]:
    """List the ranks of each value; None is none."""
    ranks: dict[int | str, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            ranks.setdefault(value, []).append(rank)
    return ranks


def _names(ranks: Sequence[int]) -> str:
    """List ranks, the first eight of them."""
    names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {names}"


def look(
    loader: Any,
    plan: Plan,
    *,
    world_size: int | None = None,
    epoch: int = 0,
    start: int = 0,
    whole_epoch: bool = False,
) -> Seen:
    """Look at what a loader gives, without moving it; see `check_start` for the parameters."""
    begin = start * plan.accumulation
    most = STEPS_LOOKED_AT * plan.accumulation
    count = None
    if isinstance(loader, Mapping | Sequence):
        first, ids = _read([loader] if isinstance(loader, Mapping) else loader)
    elif not isinstance(loader, Iterable) or isinstance(loader, Iterator):
        raise ShardError(
            f"loader={type(loader).__name__} must be a loader or a list of its first batches: "
            f"an iterator would lose the batches that are looked at"
        )
    elif _is_dispatcher(loader) and plan.world_size > 1:
        # To iterate over it is a collective call: where rank 0 fails, the others wait for ever.
        raise ShardError(
            "loader=DataLoaderDispatcher lets rank 0 read the rows of all ranks, as Accelerate and "
            "Trainer do with a stream: other ranks' files are never read, and a batch of a "
            "WeightCollator cannot be cut; set dispatch_batches=False for a stream of one file a "
            "rank or in block order; where each rank streams its own rows use "
            "prepare_data_loader(loader, num_processes=1, process_index=0)"
        )
    elif _is_map_style(loader):
        return _look_at_indices(loader, most, world_size, epoch, begin)
    else:
        if whole_epoch:  # and one batch more, for it may not end
            most = plan.num_steps * plan.accumulation - begin + 1
        first, ids, count = _first_batches(loader, most)
    if not ids:
        raise ShardError("the loader gives no batch; give it the rows of its shard")
    known = [batch for batch in ids if batch is not None]
    return Seen(
        tuple(known) if len(known) == len(ids) else None,
        frozenset(first),
        count,
        _count_sequences(first),
        world_size,
        epoch,
        begin,
        objective_of(getattr(loader, "collate_fn", None)),
    )


def _is_map_style(loader: Any) -> bool:
    """Whether indices tell what a loader will give."""
    from torch.utils.data import IterableDataset

    dataset = getattr(loader, "dataset", None)
    return (
        getattr(loader, "batch_sampler", None) is not None
        and hasattr(dataset, "__getitem__")
        and not isinstance(dataset, IterableDataset)
        and not _is_dispatcher(loader)
    )


def _is_dispatcher(loader: Any) -> bool:
    return type(loader).__name__ == "DataLoaderDispatcher"


def _look_at_indices(
    loader: Any, most: int, world_size: int | None, epoch: int, begin: int
) -> Seen:
    """Take the whole epoch from the indices of a map-style dataset, and load one batch."""
    import torch

    from evenshard.sampler import ShardSampler

    sampler = loader.batch_sampler
    while sampler is not None and not isinstance(sampler, ShardSampler):
        sampler = getattr(sampler, "batch_sampler", None)
    position = {} if sampler is None else dict(vars(sampler))
    if sampler is not None:
        if sampler.begin == len(sampler):  # resumed at the end of an epoch
            sampler.set_step(0)
        epoch, begin = sampler.epoch, sampler.begin
    try:
        with torch.random.fork_rng(devices=[]):
            indices = [list(batch) for batch in loader.batch_sampler]
            if not indices:
                raise ShardError("the loader gives no batch; give it the rows of its shard")
            batch = loader.collate_fn([loader.dataset[i] for i in indices[0]])
    finally:
        if sampler is not None:
            vars(sampler).update(position)
    return Seen(
        _row_ids(loader.dataset, indices, most, batch),
        frozenset(batch),
        len(indices),
        _count_sequences(batch),
        world_size,
        epoch,
        begin,
        objective_of(loader.collate_fn),
    )


def _row_ids(dataset: Any, indices: list[list[int]], most: int, batch: Any) -> Batches | None:
    """Find the row ids of batches of indices: of all where that is cheap, else of the first."""
    flat = np.array([index for batch in indices for index in batch], np.int64)
    if hasattr(dataset, "row_ids"):
        ids = dataset.row_ids(flat)
    elif "row_id" in (getattr(dataset, "column_names", None) or ()):  # of the package datasets
        ids = np.asarray(dataset["row_id"][:])[flat]
    elif isinstance(dataset[indices[0][0]], Mapping) and "row_id" in dataset[indices[0][0]]:
        indices = indices[:most]
        ids = np.array([int(dataset[i]["row_id"]) for batch in indices for i in batch])
    else:
        return (tuple(_ints(batch["row_id"])),) if "row_id" in batch else None
    cuts = np.cumsum([len(batch) for batch in indices])[:-1]
    return tuple(tuple(part.tolist()) for part in np.split(ids, cuts))


def _read(batches: Iterable[Any]) -> tuple[Any, list[tuple[int, ...] | None]]:
    """Keep the first batch, and of each the row ids, None where it has none."""
    first, ids = None, []
    for batch in batches:
        first = batch if first is None else first
        ids.append(tuple(_ints(batch["row_id"])) if "row_id" in batch else None)
    return first, ids


def _first_batches(loader: Any, most: int) -> tuple[Any, list[tuple[int, ...] | None], int | None]:
    """Read so many batches; the count is the loader's own where it does not end before."""
    import torch

    try:
        count = len(loader)
    except (TypeError, NotImplementedError):
        count = None
    with torch.random.fork_rng(devices=[]):
        epoch = getattr(loader, "iteration", None)
        first, ids = _read(islice(iter(loader), most))
    if len(ids) < most:  # it ended, whatever its length says
        count = len(ids)
    if hasattr(loader, "end"):  # Accelerate's loaders believe that they are still iterated over
        loader.end()
        if epoch is not None:
            loader.iteration = epoch  # and that an epoch is over, where they ended
    return first, ids, count


def _count_sequences(batch: Mapping[str, Any]) -> int | None:
    """Count the sequences that a batch marks inside its rows, if it does."""
    if "seq_lengths" in batch:
        return sum(len(_ints(lengths)) for lengths in batch["seq_lengths"])
    if "cu_seq_lens_q" in batch:
        return len(_ints(batch["cu_seq_lens_q"])) - 1
    if "position_ids" in batch:
        # Padding also has position 0, but nothing follows it.
        positions: npt.NDArray[Any] = np.atleast_2d(np.asarray(batch["position_ids"]))
        return int(((positions[:, :-1] == 0) & (positions[:, 1:] == 1)).sum())
    return None


def _ints(values: Any) -> list[int]:
    listed = values.tolist() if hasattr(values, "tolist") else values
    return [int(value) for value in (listed if isinstance(listed, list | tuple) else [listed])]


def group_size(group: Any) -> int | None:
    """Count the ranks of a process group, None where there is none."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_world_size(group)


def gather(report: Report, group: Any) -> list[Report]:
    """Give the reports of all ranks of a process group, to all of them."""
    import torch.distributed as dist

    world_size = group_size(group)
    if world_size is None:
        return [report]
    reports: list[Any] = [None] * world_size
    dist.all_gather_object(reports, report, group)
    return reports
