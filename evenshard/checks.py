"""What must hold of a set of shards, as functions of arrays: rows, weights, coverage, balance.

Nothing here touches a disk. `evenshard.verify` reads the files and asks these.
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
    """Check that every full window of steps holds each cluster's share, to the row."""
    window = manifest["schedule"]["window_steps"]
    if window < 1:
        yield Problem("coverage", MANIFEST, f"schedule.window_steps={window} must be >= 1")
        return
    size = len(shards)
    names, flat = np.unique(np.stack([shard.cluster for shard in shards]), return_inverse=True)
    clusters = flat.reshape(size, -1)  # (worker, position)
    width = window * manifest["accumulation"] * manifest["micro_batch"]  # positions of a window
    num_windows = clusters.shape[1] // width
    full = clusters[:, : num_windows * width].reshape(size, num_windows, width)
    by_window = full.transpose(1, 0, 2).reshape(num_windows, size * width)
    shares = np.bincount(flat.ravel(), minlength=len(names)) * size * width
    least, most = shares // flat.size, -(-shares // flat.size)  # (cluster,), floor and ceil
    num_bad, first = 0, ""
    block = max(1, COUNTS_PER_BLOCK // len(names))
    for start in range(0, num_windows, block):
        counts = _count_by_row(by_window[start : start + block], len(names))
        rows, ks = np.nonzero((counts < least) | (counts > most))
        num_bad += len(np.unique(rows))
        if rows.size and not first:
            step, k = (start + int(rows[0])) * window, ks[0]
            first = (
                f"steps {step}..{step + window - 1} hold {counts[rows[0], k]} rows of cluster "
                f"{names[k]}, must be in {least[k]}..{most[k]}"
            )
    if num_bad:
        text = f"{first}; {num_bad} of {num_windows} windows are not covered evenly"
        yield Problem("coverage", "set", text)


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
