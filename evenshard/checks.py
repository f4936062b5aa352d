"""What must hold of a set of shards, as functions of arrays: rows, weights, coverage, balance.

Nothing here touches a disk. `evenshard.verify` reads the files and asks these. Longer than other
files, since what a set promises is read in one piece.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evenshard.shards import IGNORED_LABEL, MANIFEST, Manifest

Array = npt.NDArray[Any]

LISTS = ("input_ids", "labels")
COUNTS_PER_BLOCK = 1 << 22  # bounds the (window, cluster) table of the coverage check
MEAN_TOLERANCE = 1e-4
STATED_TOLERANCE = 1e-4
IMBALANCE_TOLERANCE = 1e-3
DEVIATION_TOLERANCE = 1e-4  # rows; the stated one is of floats

ROW_RULES = {
    "length": "have labels or num_tokens unlike the length of input_ids",
    "token": "hold a negative token id",
    "target": "have no trained target beyond position 0: all their labels are -100",
    "label": "have a trained label unlike the token at its place in input_ids",
    "weight": "have a weight that is not finite and > 0",
    "multiplicity": "have a multiplicity below 1",
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: which check, in which file, and what was found and expected."""

    check: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class ShardColumns(NamedTuple):
    """The numbers of one shard, each of shape (rows,)."""

    file: str
    row_id: Array
    num_tokens: Array
    cluster: Array
    weight: Array


def check_arithmetic(manifest: Manifest) -> Iterator[Problem]:
    """Check that the manifest's numbers agree with each other."""
    size, micro_batch = manifest["world_size"], manifest["micro_batch"]
    accumulation, steps = manifest["accumulation"], manifest["steps_per_epoch"]
    workers, clusters = manifest["workers"], manifest["clusters"]
    rows, tokens = manifest["rows"], manifest["tokens"]
    per_step = size * micro_batch * accumulation
    for name, stated, value, text in (
        ("rows", rows, size * manifest["rows_per_worker"], "world_size * rows_per_worker"),
        ("rows", rows, steps * per_step, "steps_per_epoch * the rows of a step"),
        ("rows", rows, sum(worker["rows"] for worker in workers), "the sum of workers' rows"),
        ("rows", rows, sum(cluster["kept"] for cluster in clusters), "the sum of clusters' kept"),
        (
            "tokens",
            tokens,
            sum(worker["tokens"] for worker in workers),
            "the sum of workers' tokens",
        ),
        ("world_size", size, len(workers), "the number of workers"),
    ):
        if stated != value:
            yield Problem("manifest", MANIFEST, f"{name}={stated} must equal {value}, {text}")
    for name, value in (
        ("world_size", size),
        ("micro_batch", micro_batch),
        ("accumulation", accumulation),
        ("steps_per_epoch", steps),
    ):
        if value < 1:
            yield Problem("manifest", MANIFEST, f"{name}={value} must be >= 1")
    for cluster in clusters:
        if not 0 <= cluster["kept"] <= cluster["candidates"] <= cluster["mass"]:
            yield Problem("manifest", MANIFEST, f"must hold kept <= candidates <= mass: {cluster}")
    for worker in workers:
        if worker["rows"] != manifest["rows_per_worker"]:
            text = f"rows={worker['rows']} must equal rows_per_worker={manifest['rows_per_worker']}"
            yield Problem("rows", worker["file"], text)


def row_faults(batch: pa.RecordBatch) -> Iterator[tuple[str, Array]]:
    """Give for each rule of rows a mask of shape (rows,) of those that break it."""
    (ids_at, ids), (labels_at, labels) = (_offsets_and_values(batch[name]) for name in LISTS)
    lengths = np.diff(ids_at)
    unlike = (lengths != np.diff(labels_at)) | (lengths != batch["num_tokens"].to_numpy())
    yield "length", unlike
    yield "token", _counts(ids < 0, ids_at[:-1], ids_at[1:]) > 0
    trained = labels != IGNORED_LABEL
    after_first = np.minimum(labels_at[:-1] + 1, labels_at[1:])  # label 0 is never predicted
    yield "target", _counts(trained, after_first, labels_at[1:]) == 0
    if np.array_equal(ids_at, labels_at):  # else the rows are told by "length"
        yield "label", _counts(trained & (labels != ids), ids_at[:-1], ids_at[1:]) > 0
    weights = batch["weight"].to_numpy()
    yield "weight", ~(np.isfinite(weights) & (weights > 0))
    yield "multiplicity", batch["multiplicity"].to_numpy() < 1


def _offsets_and_values(lists: pa.ListArray) -> tuple[Array, Array]:
    """Give offsets of shape (rows + 1,) that begin at 0, and the values they cut."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0], lists.flatten().to_numpy()


def _counts(marks: Array, starts: Array, stops: Array) -> Array:
    """Count the marks in each range [start, stop)."""
    running = np.concatenate([[0], np.cumsum(marks)])
    counts: Array = running[stops] - running[starts]
    return counts


def check_row_ids(shards: Sequence[ShardColumns]) -> Iterator[Problem]:
    """Check that no row comes twice in the set."""
    if not shards:
        return
    row_ids = np.concatenate([shard.row_id for shard in shards])
    owners = np.repeat(np.arange(len(shards)), [len(shard.row_id) for shard in shards])
    order = np.argsort(row_ids, kind="stable")
    again = np.flatnonzero(np.diff(row_ids[order]) == 0)
    if again.size:
        first, second = (shards[owners[order[again[0] + i]]].file for i in (0, 1))
        text = f"row_id={row_ids[order[again[0]]]} comes in {first} and again in {second}"
        yield Problem("row_id", second, f"{text}; {again.size} row ids are not unique")


def check_weights(shards: Sequence[ShardColumns], manifest: Manifest) -> Iterator[Problem]:
    """Check that weights have mean 1 over the set, and the spread that the manifest states."""
    weights = np.concatenate([shard.weight for shard in shards]).astype(np.float64)
    if not np.isfinite(weights).all():
        return  # told by file
    mean = weights.mean()
    if abs(mean - 1) > MEAN_TOLERANCE:
        yield Problem("weights", "set", f"the mean weight is {mean:.6g}, must be 1")
    found = {
        "min": weights.min(),
        "max": weights.max(),
        "effective_sample_size": weights.sum() ** 2 / (len(weights) * (weights**2).sum()),
    }
    facts = dict[str, Any](manifest["weights"])
    for name, value in found.items():
        stated = facts[name]
        if not math.isclose(value, stated, rel_tol=STATED_TOLERANCE):
            text = f"weights.{name} is {value:.6g}, the manifest says {stated:.6g}"
            yield Problem("weights", "set", text)


def check_clusters(shards: Sequence[ShardColumns], manifest: Manifest) -> Iterator[Problem]:
    """Check each cluster's kept rows and, if they are pinned, the worker that holds them."""
    clusters, counts = np.unique(np.concatenate([s.cluster for s in shards]), return_counts=True)
    found = dict(zip(clusters.tolist(), counts.tolist(), strict=True))
    stated = {cluster["cluster"]: cluster["kept"] for cluster in manifest["clusters"]}
    for cluster in sorted(found.keys() | stated.keys()):
        rows, kept = found.get(cluster, 0), stated.get(cluster, 0)
        if rows != kept:
            text = f"cluster {cluster} has {rows} rows, the manifest says kept={kept}"
            yield Problem("clusters", "set", text)
    if manifest["schedule"]["kind"] == "pinned":
        for rank, shard in enumerate(shards):
            wrong = np.unique(shard.cluster[shard.cluster % len(shards) != rank])
            if wrong.size:
                text = f"pinned worker {rank} must not hold rows of clusters {wrong[:8].tolist()}"
                yield Problem("pinned", shard.file, text)


def check_coverage(shards: Sequence[ShardColumns], manifest: Manifest) -> Iterator[Problem]:
    """Check that windows of steps hold each cluster's share, and running counts keep its line.

    The steps after the last full window need no check of their own: they hold what is left of
    each cluster, which is its share to the row where the last full window ends on its line.
    """
    per_step = manifest["accumulation"] * manifest["micro_batch"]  # rows of a worker
    clusters = np.stack([shard.cluster for shard in shards])  # (worker, position)
    names, flat = np.unique(clusters, return_inverse=True)
    by_step = flat.reshape(len(shards), -1, per_step).transpose(1, 0, 2)
    steps = by_step.reshape(len(by_step), -1)  # (step, row of it), numbers of clusters
    window = manifest["schedule"]["window_steps"]
    if 1 <= window <= len(steps):
        yield from _check_windows(steps, names, window)
    else:
        text = f"schedule.window_steps={window} must be in 1..{len(steps)}, the steps of an epoch"
        yield Problem("coverage", MANIFEST, text)
    found = _largest_deviation(steps, len(names)) / len(steps)
    stated = manifest["schedule"]["max_deviation"]
    if not abs(found - stated) <= DEVIATION_TOLERANCE:  # NaN is unlike any number
        text = f"schedule.max_deviation is {found:.4f} rows, the manifest says {stated:.4f}"
        yield Problem("deviation", "set", text)


def _check_windows(steps: Array, names: Array, window: int) -> Iterator[Problem]:
    """Check each full window, and the running counts at its end, by whole numbers alone."""
    num_steps, num_windows = len(steps), len(steps) // window
    by_window = steps[: num_windows * window].reshape(num_windows, -1)
    kept = np.bincount(steps.ravel(), minlength=len(names))  # (cluster,)
    least, most = kept * window // num_steps, -(-kept * window // num_steps)  # floor and ceil
    running = np.zeros_like(kept)
    num_uneven, num_off, uneven, off = 0, 0, "", ""
    block = max(1, COUNTS_PER_BLOCK // len(names))
    for start in range(0, num_windows, block):
        counts = _count_by_row(by_window[start : start + block], len(names))
        rows, ks = np.nonzero((counts < least) | (counts > most))
        num_uneven += len(np.unique(rows))
        if rows.size and not uneven:
            step, k = (start + int(rows[0])) * window, ks[0]
            uneven = (
                f"steps {step}..{step + window - 1} hold {counts[rows[0], k]} rows of cluster "
                f"{names[k]}, must be in {least[k]}..{most[k]}"
            )
        sums = running + np.cumsum(counts, axis=0)  # at the end of each window
        running = sums[-1]
        ends = np.arange(start + 1, start + 1 + len(counts)) * window
        # Times num_steps, where the line of a cluster is a whole number too.
        rows, ks = np.nonzero(np.abs(sums * num_steps - ends[:, None] * kept) >= num_steps)
        num_off += len(np.unique(rows))
        if rows.size and not off:
            end, k = int(ends[rows[0]]), ks[0]
            off = (
                f"steps 0..{end - 1} hold {sums[rows[0], k]} rows of cluster {names[k]}, must be "
                f"less than a row from {end * kept[k] / num_steps:.2f}"
            )
    if num_uneven:
        text = f"{uneven}; {num_uneven} of {num_windows} windows are not covered evenly"
        yield Problem("coverage", "set", text)
    if num_off:
        text = f"{off}; {num_off} of {num_windows} windows end a row or more off"
        yield Problem("coverage", "set", text)


def _largest_deviation(steps: Array, num_clusters: int) -> int:
    """Find how far a running count leaves its line at most, over all steps, in rows * num_steps.

    It is met just before a step with rows of the cluster, or at one, so memory is that of the
    rows, whatever the number of clusters.
    """
    num_steps, rows_per_step = steps.shape
    order = np.argsort(steps.ravel(), kind="stable")  # by cluster, then by step
    cluster, step = steps.ravel()[order], order // rows_per_step
    kept = np.bincount(cluster, minlength=num_clusters)
    before = np.arange(cluster.size) - (np.cumsum(kept) - kept)[cluster]
    begins = np.ones(cluster.size, np.bool_)  # the first row of a cluster in a step
    begins[1:] = (cluster[1:] != cluster[:-1]) | (step[1:] != step[:-1])
    ends = np.append(begins[1:], True)
    slope = kept[cluster]
    low = before[begins] * num_steps - step[begins] * slope[begins]
    high = (before[ends] + 1) * num_steps - (step[ends] + 1) * slope[ends]
    return int(max(np.abs(low).max(), np.abs(high).max()))


def _count_by_row(values: Array, num_values: int) -> Array:
    """Count each of 0..num_values-1 in each row of a matrix: (rows, any) to (rows, num_values)."""
    keys = np.arange(len(values))[:, None] * num_values + values
    counts: Array = np.bincount(keys.ravel(), minlength=len(values) * num_values)
    return counts.reshape(len(values), num_values)


def check_imbalance(shards: Sequence[ShardColumns], manifest: Manifest) -> Iterator[Problem]:
    """Check the stated balance of tokens: how much longer a step is than its workers' mean."""
    rows_per_step = manifest["accumulation"] * manifest["micro_batch"]
    lengths = np.stack([shard.num_tokens for shard in shards]).astype(np.int64)
    tokens = lengths.reshape(len(shards), -1, rows_per_step).sum(axis=2)  # (worker, step)
    total = tokens.mean(axis=0).sum()
    stated = manifest["schedule"]["imbalance"]
    found = tokens.max(axis=0).sum() / total if total else math.inf
    if not abs(found - stated) <= IMBALANCE_TOLERANCE:  # NaN is unlike any number
        text = f"schedule.imbalance is {found:.4f}, the manifest says {stated:.4f}"
        yield Problem("imbalance", "set", text)
