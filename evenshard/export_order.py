"""The order of rows in one file: that of a plan for a job, or whole repeats instead of weights."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenshard.export_card import Job
from evenshard.plan import Plan
from evenshard.repeat import (
    cluster_variation,
    enough_rows,
    laps,
    largest_gap,
    repeat_counts,
    total_variation,
)
from evenshard.shards import ShardError
from evenshard.shardset import ShardSet

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """Numbers of rows in pieces, the job they are for, and figures as texts and as numbers."""

    pieces: Iterable[IntArray]
    job: Job
    num_rows: int
    figures: dict[str, str]
    repeats: dict[str, float] = field(default_factory=dict)


def epoch_order(plan: Plan, *, strided: bool) -> Iterator[IntArray]:
    """Order the rows of epoch 0 so that a sampler deals each rank what the plan gives it.

    Parameters
    ----------
    plan : Plan
        Without padding.
    strided : bool
        Whether ranks take rows by turns, else whole micro-batches.

    Yields
    ------
    ndarray of shape (world_size * micro_batch,), int64
        Numbers of the rows of one micro-batch of all ranks.
    """
    by_rank = [plan.batches(0, rank) for rank in range(plan.world_size)]
    for batches in zip(*by_rank, strict=True):
        rows = np.stack(batches)  # (rank, row of a micro-batch)
        yield (rows.T if strided else rows).reshape(-1)


def order_steps(
    shards: ShardSet, world_size: int | None, micro_batch: int | None, *, strided: bool
) -> Order:
    """Order the set for a job, by default for the set's own world size and micro-batch.

    Raises
    ------
    ShardError
        If the job does not fit the set, or ranks would get padding.
    """
    plan = Plan(shards, world_size=world_size, micro_batch=micro_batch)
    if plan.pads:
        raise ShardError(_padding_message(plan))
    job = Job(plan.world_size, plan.micro_batch, plan.accumulation)
    figures = {"rows": f"{shards.num_rows} in {plan.num_steps} steps"}
    return Order(epoch_order(plan, strided=strided), job, shards.num_rows, figures)


def _padding_message(plan: Plan) -> str:
    works = []
    for world_size in range(1, 4 * max(plan.shards.world_size, plan.world_size) + 1):
        try:
            other = Plan(plan.shards, world_size, plan.micro_batch, objective=plan.objective)
        except ShardError:
            continue
        if not other.pads:
            works.append(str(world_size))
    remedy = f"these world sizes work: {', '.join(works)}" if works else "take another micro_batch"
    name = plan.shards.manifest["name"]
    return (
        f"world_size={plan.world_size} with micro_batch={plan.micro_batch} gives ranks padding, "
        f"which a file cannot hold; {remedy}, or cut the set anew with "
        f"`make reshard NAME={name} WORLD_SIZE={plan.world_size}`"
    )


def order_repeats(
    shards: ShardSet,
    world_size: int | None,
    micro_batch: int | None,
    *,
    num_rows: int | None,
    allow_drop: bool,
) -> Order:
    """Repeat the rows as their weights say, by default as often as brings shares within 5 %.

    Raises
    ------
    ShardError
        If the number of rows is no multiple of a micro-batch of all ranks, or is too small.
    """
    job = Job(
        shards.world_size if world_size is None else world_size,
        shards.micro_batch if micro_batch is None else micro_batch,
        shards.accumulation,
    )
    for name, value in (("world_size", job.world_size), ("micro_batch", job.micro_batch)):
        if value < 1:
            raise ShardError(f"{name}={value} must be >= 1; leave it out to take the set's")
    order = np.concatenate(list(epoch_order(Plan(shards), strided=False)))
    weights = shards.column("weight").reshape(-1)[order].astype(np.float64)
    members = np.unique(shards.cluster.reshape(-1)[order], return_inverse=True)[1]
    unit = job.world_size * job.micro_batch
    if num_rows is None:
        enough = shards.num_rows if allow_drop else enough_rows(weights, members)
        num_rows = -(-enough // unit) * unit
    elif num_rows % unit or num_rows < 1:
        below, above = num_rows // unit * unit, (num_rows // unit + 1) * unit
        near = f"{below} or {above}" if below > 0 else str(unit)
        raise ShardError(
            f"repeat_rows={num_rows} must be a multiple of {unit}, world_size * micro_batch, "
            f"or ranks would get unlike numbers of rows; take {near}"
        )
    counts = repeat_counts(weights, members, num_rows, allow_drop=allow_drop)
    places = np.concatenate(list(laps(counts, members)))
    gap = largest_gap(members[places], int(members.max()) + 1, job.step_rows)
    repeats = {
        "least": int(counts.min()),
        "most": int(counts.max()),
        "rows_left_out": int((counts == 0).sum()),
        "row_total_variation": total_variation(counts, weights),
        "cluster_total_variation": cluster_variation(counts, weights, members),
        "unweighted_total_variation": total_variation(np.ones_like(counts), weights),
        "largest_gap": gap,
    }
    figures = _repeat_figures(repeats, num_rows / shards.num_rows, num_rows)
    return Order(iter([order[places]]), job, num_rows, figures, repeats)


def _repeat_figures(repeats: dict[str, float], times: float, num_rows: int) -> dict[str, str]:
    unweighted = repeats["unweighted_total_variation"]
    return {
        "rows": f"{num_rows}, {times:.3g} times the set's",
        "repeats of a row": f"{repeats['least']} to {repeats['most']}",
        "rows left out": str(repeats["rows_left_out"]),
        "error of rows' shares": (
            f"{repeats['row_total_variation']:.2%} (total variation; {unweighted:.2%} if every "
            f"row came once)"
        ),
        "error of clusters' shares": f"{repeats['cluster_total_variation']:.2%} (total variation)",
        "departure of a step": (
            f"at most {repeats['largest_gap']:.1f} rows of any cluster from its share"
        ),
    }
