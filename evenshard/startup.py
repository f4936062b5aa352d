"""One call before training: every rank must read the rows that the plan gives it.

    check_start(loader, plan, rank)

Trainers cut a loader a second time, shuffle it, drop columns or pack rows, and say nothing. What
they did shows in the row ids: `look` takes them without moving the loader, `diagnose` compares
them with the plan and names the setting, and `check_start` lets all ranks know, so that the error
is raised on each and none waits for another.
Longer than other files, since each trap has its own words.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenshard.plan import Plan
from evenshard.shards import ShardError
from evenshard.shardset import PADDING

STEPS_LOOKED_AT = 2  # where only the batches themselves tell the row ids
WEIGHT_COLUMNS = frozenset({"weight", "loss_weight"})
AGAIN = "accelerate.prepare, Trainer and DistributedSampler share a loader out among the ranks"

Batches = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Seen:
    """What a rank's loader gives.

    Attributes
    ----------
    batches : tuple of tuple of int, or None
        Row ids of the first micro-batches, or of all; None where nothing tells them.
    columns : frozenset of str
        Names in the first batch.
    num_batches : int or None
        Micro-batches that the loader gives, where it tells.
    sequences : int or None
        Sequences that the first batch marks inside its rows, where it does.
    world_size : int or None
        Ranks of the process group, where there is one.
    epoch, begin : int
        Where the loader begins: an epoch, and a micro-batch of it.
    """

    batches: Batches | None
    columns: frozenset[str]
    num_batches: int | None = None
    sequences: int | None = None
    world_size: int | None = None
    epoch: int = 0
    begin: int = 0


class Report(NamedTuple):
    """What a rank tells the others."""

    num_batches: int | None
    fault: str | None


def check_start(
    loader: Any, plan: Plan, rank: int, group: Any = None, *, epoch: int = 0, start: int = 0
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

    Raises
    ------
    ShardError
        On all ranks alike, if any of them would train on other rows, drop weights, or have
        another number of batches.
    """
    world_size = _group_size(group)
    failure: Exception | None = None
    try:
        seen = look(loader, plan, world_size=world_size, epoch=epoch, start=start)
        report = Report(seen.num_batches, diagnose(seen, plan, rank))
    except Exception as error:  # the other ranks wait for this one's report
        failure = error
        report = Report(None, f"{type(error).__name__}: {error}")
    fault = find_faults([report] if world_size is None else _gather(report, group, world_size))
    if fault is not None:
        raise ShardError(f"training would not follow the plan. {fault}") from failure


def find_faults(reports: Sequence[Report]) -> str | None:
    """Put the ranks' reports into one message, or None if all is well."""
    ranks: dict[str, list[int]] = {}
    for rank, report in enumerate(reports):
        if report.fault is not None:
            ranks.setdefault(report.fault, []).append(rank)
    parts = []
    for fault, who in ranks.items():
        names = ", ".join(map(str, who[:8])) + (", ..." if len(who) > 8 else "")
        parts.append(f"{'ranks' if len(who) > 1 else 'rank'} {names}: {fault}")
    counts = [report.num_batches for report in reports if report.num_batches is not None]
    if len(set(counts)) > 1:
        parts.append(
            f"ranks have different numbers of batches, {counts}: the ones with fewer would leave "
            f"the others waiting; give each rank a whole shard (`evenshard verify` on the folder)"
        )
    return "; ".join(parts) or None


def diagnose(seen: Seen, plan: Plan, rank: int) -> str | None:
    """Say what is wrong with a rank's loader and which setting to change; None if nothing is."""
    if seen.world_size is not None and seen.world_size != plan.world_size:
        return (
            f"the process group has world_size={seen.world_size}, must equal the plan's "
            f"{plan.world_size}; make the plan with world_size={seen.world_size}"
        )
    if seen.sequences is not None and seen.sequences > plan.micro_batch:
        return (
            f"a batch holds {seen.sequences} sequences, must be the plan's micro_batch="
            f"{plan.micro_batch}: rows were packed together, which drops their weights; "
            f"set packing=False"
        )
    if not seen.columns & WEIGHT_COLUMNS:
        return (
            f"batches hold {', '.join(sorted(seen.columns)) or 'nothing'} and neither weight nor "
            f"loss_weight: the trainer or the collator dropped the column; set "
            f"remove_unused_columns=False (in TRL also packing=False) and use WeightCollator"
        )
    if seen.batches is None:
        return (
            "neither the batches nor the loader's dataset hold row_id, so the order cannot be "
            "checked; keep the column (remove_unused_columns=False; WeightCollator with "
            "keep_row_ids=True) and set packing=False"
        )
    expected = _expected(seen, plan, rank)
    count = len(expected) if seen.num_batches is None else seen.num_batches
    if seen.batches == expected[: len(seen.batches)] and count == len(expected):
        return None
    pairs = zip(seen.batches, expected, strict=False)
    shared = min(len(seen.batches), len(expected))
    differs = next((i for i, (one, other) in enumerate(pairs) if one != other), shared)
    where = f"batch {differs} has rows {_short(seen.batches, differs)}, must have "
    where += f"{_short(expected, differs)}: "
    if set(chain(*seen.batches)) - set(chain(*expected)):
        return where + _explain_foreign(seen.batches, expected, differs, plan, rank)
    return where + _explain_own(seen.batches, expected, count, plan)


def _expected(seen: Seen, plan: Plan, rank: int) -> Batches:
    """Give the row ids of the plan from where the loader begins."""
    step, skipped = divmod(seen.begin, plan.accumulation)
    batches = list(plan.batches(seen.epoch, rank, step))[skipped:]
    numbers = np.array(batches, np.int64).reshape(-1, plan.micro_batch)
    return tuple(map(tuple, plan.shards.row_ids(numbers).tolist()))


def _explain_own(found: Batches, expected: Batches, count: int, plan: Plan) -> str:
    """Name the trap where a rank gets rows of its own alone."""
    rows, own = list(chain(*found)), list(chain(*expected))
    if rows == own[: len(rows)]:
        sizes = "/".join(map(str, sorted({len(batch) for batch in found})))
        if sizes != str(plan.micro_batch):
            return (
                f"batches have {sizes} rows, must have the plan's micro_batch={plan.micro_batch}; "
                f"set per_device_train_batch_size={plan.micro_batch}, or make the plan with "
                f"another micro_batch"
            )
        return (
            f"the loader has {count} batches, must have the plan's {len(expected)}: rows were "
            f"left out or added; give the whole shard, without drop_last or a limit of samples"
        )
    real = [row for row in rows if row != PADDING]
    if len(set(real)) < len(real) and len(set(own) & set(real)) == len(set(real)):
        return (
            "rows come more than once: an iterable dataset gives all its rows to each worker of "
            "the loader, and even_batches repeats rows; set num_workers=0, or use make_loader"
        )
    places = {row: place for place, row in enumerate(own)}
    at = [places[row] for row in real]
    if count < len(expected) or (len(at) > 1 and at == sorted(at)):
        part = f"sees {count} of its {len(expected)} batches, and not in a row"
        if count >= len(expected):  # or no count is known
            part = "gets its rows with gaps (or all shards' files lie in a row: use make_loader)"
        return (
            f"the rank {part}: its loader was cut again ({AGAIN}); use prepare_data_loader("
            f"loader, num_processes=1, process_index=0), evenshard's WeightedShards mixin, or no "
            f"DistributedSampler"
        )
    return (
        "these are the rank's rows in another order, and its steps no longer cover the clusters; "
        "set shuffle=False (Trainer: train_sampling_strategy='sequential'), and by set_epoch the "
        "epoch that is checked"
    )


def _explain_foreign(found: Batches, expected: Batches, differs: int, plan: Plan, rank: int) -> str:
    """Name the trap where a rank gets rows that are not its own."""
    shards = plan.shards
    rows = set(chain(*found)) - {PADDING}
    strangers = rows - set(shards.row_id.ravel().tolist())
    if strangers:
        return f"row_id={min(strangers)} is not in {shards.folder}; give the loader of this folder"
    if differs and differs >= min(len(found), len(expected)) - 1:
        return (
            f"the end of the epoch is filled with rows of its beginning, as Accelerate's "
            f"even_batches does; give the loader a multiple of {plan.rows_per_step} rows with "
            f"per_device_train_batch_size={plan.micro_batch}, or set dataloader_drop_last=True"
        )
    owners = [w for w in range(shards.world_size) if rows & set(shards.row_id[w].tolist())]
    mine = plan.workers_of(rank)
    if len(owners) == 1 and owners[0] not in mine:
        return (
            f"these are of shard {owners[0]}, rank {rank} reads {mine}; pass the global rank, and "
            f"with Accelerate or Trainer set dispatch_batches=False"
        )
    return (
        f"the rank gets rows of shards {owners}, must get those of {mine}: rows of all shards "
        f"were cut in another way than they lie. Accelerate, Trainer and Megatron take blocks of "
        f"a micro-batch (`evenshard export --to block`, dispatch_batches=False), "
        f"DistributedSampler takes strides (`evenshard export --to strided`), both with "
        f"shuffle=False; or use make_loader or the WeightedShards mixin"
    )


def _short(batches: Batches, index: int) -> str:
    if index >= len(batches):
        return "[]"
    rows = ", ".join(map(str, batches[index][:4]))
    return f"[{rows}{', ...' if len(batches[index]) > 4 else ''}]"


def look(
    loader: Any, plan: Plan, *, world_size: int | None = None, epoch: int = 0, start: int = 0
) -> Seen:
    """Look at what a loader gives, without moving it; see `check_start` for the parameters."""
    begin = start * plan.accumulation
    most = STEPS_LOOKED_AT * plan.accumulation
    count = None
    if isinstance(loader, Mapping | Sequence):
        batches = [loader] if isinstance(loader, Mapping) else list(loader)
    elif not isinstance(loader, Iterable) or isinstance(loader, Iterator):
        raise ShardError(
            f"loader={type(loader).__name__} must be a loader or a list of its first batches: "
            f"an iterator would lose the batches that are looked at"
        )
    elif _is_map_style(loader):
        return _look_at_indices(loader, most, world_size, epoch, begin)
    else:
        batches, count = _first_batches(loader, most)
    if not batches:
        raise ShardError("the loader gives no batch; give it the rows of its shard")
    ids = [tuple(_ints(batch["row_id"])) for batch in batches if "row_id" in batch]
    return Seen(
        tuple(ids) if len(ids) == len(batches) else None,
        frozenset(batches[0]),
        count,
        _count_sequences(batches[0]),
        world_size,
        epoch,
        begin,
    )


def _is_map_style(loader: Any) -> bool:
    """Whether indices tell what a loader will give. Accelerate's dispatcher moves them about."""
    from torch.utils.data import IterableDataset

    dataset = getattr(loader, "dataset", None)
    return (
        getattr(loader, "batch_sampler", None) is not None
        and hasattr(dataset, "__getitem__")
        and not isinstance(dataset, IterableDataset)
        and type(loader).__name__ != "DataLoaderDispatcher"
    )


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


def _first_batches(loader: Any, most: int) -> tuple[list[Any], int | None]:
    import torch

    try:
        count = len(loader)
    except (TypeError, NotImplementedError):
        count = None
    with torch.random.fork_rng(devices=[]):
        batches = list(islice(iter(loader), most))
    if hasattr(loader, "end"):  # Accelerate's loaders believe that they are still iterated over
        loader.end()
    return batches, count


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


def _group_size(group: Any) -> int | None:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_world_size(group)


def _gather(report: Report, group: Any, world_size: int) -> list[Report]:
    import torch.distributed as dist

    reports: list[Any] = [None] * world_size
    dist.all_gather_object(reports, report, group)
    return reports
