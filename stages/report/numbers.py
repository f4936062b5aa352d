"""The numbers of the report. Functions of arrays: nothing here reads a file or writes a page."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

BINS = 24
# A strip of more steps is drawn by means of neighbouring steps.
STRIP_STEPS = 120


@dataclass(frozen=True)
class Pool:
    """All embedded rows and which of them are kept, as arrays in order of the row ids.

    Attributes
    ----------
    row_ids : ndarray of shape (num_rows,), int64
        Increasing.
    cluster : ndarray of shape (num_rows,), int32
    distance : ndarray of shape (num_rows,), float32
        To the centre of the row's cluster.
    multiplicity, num_tokens : ndarray of shape (num_rows,), int64
    loss : ndarray of shape (num_rows,), float32
        Nats per trained token.
    kept : ndarray of shape (num_kept,), int64
        Increasing positions among the rows.
    weight : ndarray of shape (num_kept,), float64
        Mean 1.
    worker, position : ndarray of shape (num_kept,), int64
        Place of each kept row.
    num_clusters, num_workers, rows_per_step : int
        `rows_per_step` counts those of one worker.
    """

    row_ids: IntArray
    cluster: npt.NDArray[np.int32]
    distance: npt.NDArray[np.float32]
    multiplicity: IntArray
    num_tokens: IntArray
    loss: npt.NDArray[np.float32]
    kept: IntArray
    weight: FloatArray
    worker: IntArray
    position: IntArray
    num_clusters: int
    num_workers: int
    rows_per_step: int

    @property
    def is_kept(self) -> npt.NDArray[np.bool_]:
        """Whether each row is kept, of shape (num_rows,)."""
        flags = np.zeros(self.row_ids.size, np.bool_)
        flags[self.kept] = True
        return flags


def sample_places(size: int, most: int, rng: np.random.Generator) -> IntArray:
    """Draw at most `most` of the places 0..size-1, in increasing order; all, if they are few."""
    if size <= most:
        return np.arange(size)
    return np.sort(rng.choice(size, most, replace=False)).astype(np.int64)


def sample_both(kept: npt.NDArray[np.bool_], most: int, rng: np.random.Generator) -> IntArray:
    """Draw rows for the map, half of them kept where there are enough of both kinds.

    A uniform sample of a set of which 1% is kept would show next to nothing of what is kept.

    Parameters
    ----------
    kept : ndarray of shape (num_rows,), bool
        Whether each row is kept.
    most : int
        So many at most, all kinds together.
    rng : numpy.random.Generator
        Draws them.

    Returns
    -------
    ndarray of shape (at most `most`,), int64
        Increasing places.
    """
    places = [np.flatnonzero(kept), np.flatnonzero(~kept)]
    half = most // 2
    room = [max(half, most - places[1].size), max(most - half, most - places[0].size)]
    drawn = [p[sample_places(p.size, m, rng)] for p, m in zip(places, room, strict=True)]
    return np.sort(np.concatenate(drawn)).astype(np.int64)


def project(rows: npt.NDArray[np.float32], others: npt.NDArray[np.float32]) -> tuple[Any, ...]:
    """Lay rows into the plane of their two directions of largest variance (PCA).

    The sign of a direction is free; here its largest entry is positive, so that the same rows
    give the same picture.

    Parameters
    ----------
    rows : ndarray of shape (num_rows, dim), float32
        The directions are those of these rows.
    others : ndarray of shape (num_others, dim), float32
        Laid into the same plane.

    Returns
    -------
    rows, others : ndarray of shape (num, 2), float64
    share : float
        Share of the variance that the plane holds, in [0, 1].
    """
    values = rows.astype(np.float64)
    mean = values.mean(axis=0)
    values -= mean
    variances, directions = np.linalg.eigh(values.T @ values)
    plane = directions[:, ::-1][:, :2]
    if plane.shape[1] < 2:
        plane = np.concatenate([plane, np.zeros((plane.shape[0], 1))], axis=1)
    largest = np.abs(plane).argmax(axis=0)
    plane = plane * np.where(plane[largest, [0, 1]] < 0, -1.0, 1.0)
    total = float(variances.sum())
    share = float(variances[::-1][:2].sum()) / total if total > 0 else 0.0
    return values @ plane, (others.astype(np.float64) - mean) @ plane, share


def cluster_rows(pool: Pool) -> list[dict[str, float]]:
    """Count and average each cluster.

    Returns
    -------
    list of dict
        cluster; rows (distinct); share (of the mass, duplicates included); kept; kept_share (of
        its rows); weight (share of the summed weight); loss and tokens (means); tokens_kept
        (mean over its kept rows, 0 where there are none).
    """
    count = pool.num_clusters
    labels = pool.cluster[pool.kept]
    rows = np.bincount(pool.cluster, minlength=count)
    mass = np.bincount(pool.cluster, weights=pool.multiplicity, minlength=count)
    kept = np.bincount(labels, minlength=count)
    weight = np.bincount(labels, weights=pool.weight, minlength=count)
    loss = np.bincount(pool.cluster, weights=pool.loss, minlength=count)
    tokens = np.bincount(pool.cluster, weights=pool.num_tokens, minlength=count)
    tokens_kept = np.bincount(labels, weights=pool.num_tokens[pool.kept], minlength=count)
    some, some_kept = np.maximum(rows, 1), np.maximum(kept, 1)
    columns = {
        "rows": rows,
        "share": mass / mass.sum(),
        "kept": kept,
        "kept_share": kept / some,
        "weight": weight / weight.sum(),
        "loss": loss / some,
        "tokens": tokens / some,
        "tokens_kept": tokens_kept / some_kept,
    }
    return [
        {"cluster": k, **{name: column[k].item() for name, column in columns.items()}}
        for k in range(count)
    ]


def extremes(pool: Pool, cluster: int, count: int) -> tuple[IntArray, IntArray]:
    """Find the rows of a cluster nearest to its centre and the farthest, none in both.

    Returns
    -------
    nearest, farthest : ndarray of int64
        Places among the rows: nearest first, and farthest first; ties go to the earlier row.
    """
    members = np.flatnonzero(pool.cluster == cluster)
    order = members[np.lexsort((members, pool.distance[members]))]
    nearest = order[:count]
    return nearest, order[nearest.size :][::-1][:count]


def histogram(weights: FloatArray) -> list[dict[str, float]]:
    """Count weights in bins of equal width from the smallest to the largest; one if all are equal.

    Returns
    -------
    list of dict
        start, stop, rows.
    """
    low, high = float(weights.min()), float(weights.max())
    if high - low < 1e-9 * max(high, 1.0):
        return [{"start": low, "stop": high, "rows": int(weights.size)}]
    counts, edges = np.histogram(weights, bins=BINS, range=(low, high))
    return [
        {"start": float(a), "stop": float(b), "rows": int(n)}
        for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


def step_tokens(pool: Pool) -> IntArray:
    """Sum the tokens of every worker in every step.

    Returns
    -------
    ndarray of shape (num_steps, num_workers), int64
    """
    steps = pool.position // pool.rows_per_step
    tokens = np.zeros((int(steps.max()) + 1, pool.num_workers), np.int64)
    np.add.at(tokens, (steps, pool.worker), pool.num_tokens[pool.kept])
    return tokens


def strip(tokens: IntArray) -> list[dict[str, float]]:
    """Set each worker's tokens of a step beside the mean worker's, for the picture.

    Parameters
    ----------
    tokens : ndarray of shape (num_steps, num_workers), int64
        As `step_tokens` gives them.

    Returns
    -------
    list of dict
        step and stop (a range of steps, from 0), worker, ratio (1 is even), tokens (per step).
        More than `STRIP_STEPS` steps are joined into so many ranges; a range's ratio is the mean
        of its steps'.
    """
    num_steps, num_workers = tokens.shape
    ratio = tokens / np.maximum(tokens.mean(axis=1, keepdims=True), 1e-12)
    edges = np.linspace(0, num_steps, min(num_steps, STRIP_STEPS) + 1).astype(np.int64)
    cells = []
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        ratios, sums = ratio[start:stop].mean(axis=0), tokens[start:stop].mean(axis=0)
        cells += [
            {"step": start, "stop": stop, "worker": w, "ratio": ratios[w], "tokens": sums[w]}
            for w in range(num_workers)
        ]
    return cells


def worker_rows(pool: Pool, tokens: IntArray) -> list[dict[str, float]]:
    """Say what each worker gets.

    Returns
    -------
    list of dict
        worker, rows, tokens, clusters (how many it holds rows of), weight (mean), busiest (share
        of the steps in which it has the most tokens), waits (of the time of its steps, the share
        in which it has nothing to do, if time is tokens).
    """
    labels = pool.cluster[pool.kept]
    longest = tokens.max(axis=1)
    busiest = np.bincount(tokens.argmax(axis=1), minlength=pool.num_workers) / len(tokens)
    waits = 1.0 - tokens.sum(axis=0) / max(int(longest.sum()), 1)
    found = []
    for worker in range(pool.num_workers):
        mine = pool.worker == worker
        found.append(
            {
                "worker": worker,
                "rows": int(mine.sum()),
                "tokens": int(tokens[:, worker].sum()),
                "clusters": int(np.unique(labels[mine]).size),
                "weight": float(pool.weight[mine].mean()),
                "busiest": float(busiest[worker]),
                "waits": float(waits[worker]),
            }
        )
    return found
