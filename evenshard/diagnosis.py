"""What is wrong with a rank's loader, from the row ids it gives: the trap, and the setting.

Nothing here touches a loader: `evenshard.startup` looks at one, and asks `diagnose`. Every trap
has its own words, and is told from the others by laying what a rank got beside what that trap
would have given it.
Longer than other files, for the words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from evenshard.plan import Plan
from evenshard.shardset import PADDING

WEIGHT_COLUMNS = frozenset({"weight", "loss_weight"})
AGAIN = "accelerate.prepare, Trainer and DistributedSampler share a loader out among the ranks"
UNCUT = (
    "use prepare_data_loader(loader, num_processes=1, process_index=0), evenshard's "
    "WeightedShards mixin, or no DistributedSampler and no split_dataset_by_node"
)

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
    objective : str or None
        What its collator makes weights for, where that tells.
    """

    batches: Batches | None
    columns: frozenset[str]
    num_batches: int | None = None
    sequences: int | None = None
    world_size: int | None = None
    epoch: int = 0
    begin: int = 0
    objective: str | None = None


def objective_of(collate: object) -> str | None:
    """Say for which objective a collator makes weights, where it tells."""
    found = getattr(collate, "objective", None)
    return found if isinstance(found, str) else None


def find_other_objective(collated: str | None, planned: str) -> str | None:
    """Say that weights are made for another loss than the plan's; None where they are not."""
    if collated in (None, planned):
        return None
    return (
        f'the collator makes weights for objective="{collated}", the plan is for "{planned}": each '
        f'row would count otherwise than it was curated for; use WeightCollator(..., "{planned}"), '
        f'or give the plan, too, objective="{collated}"'
    )


def diagnose(seen: Seen, plan: Plan, rank: int) -> str | None:
    """Say what is wrong with a rank's loader and which setting to change; None if nothing is."""
    if seen.world_size is not None and seen.world_size != plan.world_size:
        return (
            f"the process group has world_size={seen.world_size}, must equal the plan's "
            f"{plan.world_size}; make the plan with world_size={seen.world_size}"
        )
    other = find_other_objective(seen.objective, plan.objective)
    if other is not None:
        return other
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
    where = _first_difference(seen, expected)
    foreign = set(chain(*seen.batches)) - set(chain(*expected))
    is_part = not foreign and seen.num_batches is not None
    is_part = is_part and _was_cut(seen.batches, expected, seen.num_batches, plan, rank)
    files = None if is_part else _explain_files(seen.batches, plan, bool(foreign))
    if files is not None:
        return where + files
    if foreign:
        return where + _explain_foreign(seen.batches, expected, plan, rank)
    return where + _explain_own(seen.batches, expected, seen.num_batches, plan, rank)


def _expected(seen: Seen, plan: Plan, rank: int) -> Batches:
    """Give the row ids of the plan from where the loader begins."""
    step, skipped = divmod(seen.begin, plan.accumulation)
    batches = list(plan.batches(seen.epoch, rank, step))[skipped:]
    numbers = np.array(batches, np.int64).reshape(-1, plan.micro_batch)
    return tuple(map(tuple, plan.shards.row_ids(numbers).tolist()))


def _first_difference(seen: Seen, expected: Batches) -> str:
    found = seen.batches or ()
    index = _index_of_difference(found, expected)
    if index == len(found) and index != seen.num_batches:
        return ""  # as far as was looked
    return f"batch {index} has rows {_short(found, index)}, must have {_short(expected, index)}: "


def _index_of_difference(found: Batches, expected: Batches) -> int:
    """Find the first batch that is another one, or that only one of both has."""
    pairs = zip(found, expected, strict=False)
    shared = min(len(found), len(expected))
    return next((i for i, (one, other) in enumerate(pairs) if one != other), shared)


def _explain_files(found: Batches, plan: Plan, has_foreign: bool) -> str | None:
    """Name the trap of reading all files in a row, where no rank has one file as its own."""
    shards = plan.shards
    rows = list(chain(*found))
    places = {row: place for place, row in enumerate(shards.row_id.ravel().tolist())}
    at = [places.get(row, -1) for row in rows]  # worker * rows_per_worker + position
    gaps = {after - before for before, after in pairwise(at)}
    if -1 in at or len(gaps) > 1:
        return None
    file, gap = at[0] // shards.rows_per_worker, max(gaps, default=1)
    if plan.world_size == shards.world_size:
        if not has_foreign or gap < 2:
            return None
        return (
            f"these are every {gap}th row of all files in a row, from file {file} on: "
            f"split_dataset_by_node deals so where it is called twice, and DistributedSampler on "
            f"all files; call split_dataset_by_node once, on the {shards.world_size} files, and "
            f"nothing after it, or use make_loader"
        )
    if gap not in (1, plan.world_size):
        return None
    return (
        f"these follow each other in file {file}, but the folder has "
        f"{shards.world_size} files and the job {plan.world_size} ranks: a stream reads files one "
        f"after the other, and its steps do not cover the clusters; use make_loader or the "
        f"WeightedShards mixin, which lay the steps onto any number of ranks, or cut the set "
        f"anew with `make reshard WORLD_SIZE={plan.world_size}`"
    )


def _explain_own(
    found: Batches, expected: Batches, num_batches: int | None, plan: Plan, rank: int
) -> str:
    """Name the trap where a rank gets rows of its own alone."""
    rows, own = list(chain(*found)), list(chain(*expected))
    count = len(expected) if num_batches is None else num_batches
    is_prefix = rows == own[: len(rows)]
    if _was_cut(found, expected, num_batches, plan, rank) or (
        count < len(expected) and not is_prefix  # as of a shard that was short already
    ):
        part = f"sees {count} of its {len(expected)} batches, and not in a row"
        if is_prefix:
            part = f"sees {count} of its {len(expected)} batches (without a limit of samples)"
        elif num_batches is None:
            part = (
                "gets its rows with gaps (or all shards' files lie in a row: set "
                "dispatch_batches=False, or use make_loader)"
            )
        return f"the rank {part}: its loader was cut again ({AGAIN}); {UNCUT}"
    if is_prefix:
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
    if len(set(real)) < len(real):
        return (
            "rows come more than once: an iterable dataset gives all its rows to each worker of "
            "the loader, and even_batches repeats rows; set num_workers=0, or use make_loader"
        )
    places = {row: place for place, row in enumerate(own)}
    at = [places[row] for row in real]
    if len(at) > 1 and at == sorted(at):
        return (
            f"the rank gets its rows with gaps (or all shards' files lie in a row: use "
            f"make_loader): its loader was cut again ({AGAIN}); {UNCUT}"
        )
    return (
        "these are the rank's rows in another order, and its steps no longer cover the clusters; "
        "set shuffle=False (Trainer: train_sampling_strategy='sequential'; a stream: no "
        "shuffle()), and by set_epoch the epoch that is checked"
    )


def _was_cut(
    found: Batches, expected: Batches, num_batches: int | None, plan: Plan, rank: int
) -> bool:
    """Whether a rank has the W-th part of its own rows, as if they had been all ranks'."""
    size, num_expected = plan.world_size, len(expected)
    if size == 1 or num_expected == 1:
        return False
    rows, own = list(chain(*found)), list(chain(*expected))
    total = len(rows) if num_batches == len(found) else (num_batches or 0) * plan.micro_batch
    # Rounding and what fills the last step are less than a batch a rank.
    is_part = abs(total * size - len(own)) < size * plan.micro_batch and total < len(own)
    if num_batches is not None and not is_part:
        return False
    # What fills up the last step comes from the beginning, so places are taken modulo.
    blocks = [expected[(i * size + rank) % num_expected] for i in range(len(found))]
    strides = [own[(i * size + rank) % len(own)] for i in range(len(rows))]
    if list(found) == blocks or rows == strides:
        return True
    # Halves in a row begin where the plan does on rank 0 alone; elsewhere that is a limit.
    return is_part and (rank == 0 or rows != own[: len(rows)])


def _explain_foreign(found: Batches, expected: Batches, plan: Plan, rank: int) -> str:
    """Name the trap where a rank gets rows that are not its own."""
    shards = plan.shards
    rows = set(chain(*found)) - {PADDING}
    strangers = rows - set(shards.row_id.ravel().tolist())
    if strangers:
        return f"row_id={min(strangers)} is not in {shards.folder}; give the loader of this folder"
    differs = _index_of_difference(found, expected)
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
            f"these are of shard {owners[0]}, rank {rank} reads {mine}; pass the global rank, "
            f"with Accelerate or Trainer set dispatch_batches=False, and shuffle no stream: "
            f"shuffle() deals out the files in another order too"
        )
    return (
        f"the rank gets rows of shards {owners}, must get those of {mine}: rows of all shards "
        f"were cut in another way than they lie. Accelerate, Trainer and Megatron take blocks of "
        f"a micro-batch (`evenshard export --to block`, dispatch_batches=False), "
        f"DistributedSampler takes strides (`evenshard export --to strided`), both with "
        f"shuffle=False; or use make_loader or the WeightedShards mixin"
    )


def _short(batches: Sequence[Sequence[int]], index: int) -> str:
    if index >= len(batches):
        return "[]"
    rows = ", ".join(map(str, batches[index][:4]))
    return f"[{rows}{', ...' if len(batches[index]) > 4 else ''}]"
