"""Whole repeats instead of weights: how often each row comes, and in which order.

Counts are shared out by largest remainder, first among clusters and then among the rows of each,
so that a cluster's share is right to a row even where its rows' counts are coarse. Copies come
in laps over the set: a lap keeps the set's own order and takes each row at most once.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from evenshard.shards import ShardError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

GOLDEN = (5**0.5 - 1) / 2  # its multiples spread evenly over [0, 1)
MOST_LAPS = 64  # more copies of a row than this share laps; each lap reads the set once
MOST_TIMES = 16
GOOD_ERROR = 0.05


def largest_remainder(shares: FloatArray, total: int, floors: IntArray) -> IntArray:
    """Share whole things out in proportion, none below its floor, to an exact sum.

    Parameters
    ----------
    shares : ndarray of shape (n,)
        Above 0; only their proportions count.
    total : int
        At least the sum of the floors.
    floors : ndarray of shape (n,), int64
        What each gets even if its share is smaller; the others then have less to share.

    Returns
    -------
    ndarray of shape (n,), int64
        Whole parts of the shares, and one more for the largest remainders. Of equal remainders
        those are taken that lie evenly spread over the array.
    """
    assert total >= floors.sum(), (total, floors.sum())
    fixed = np.zeros(shares.size, np.bool_)
    targets = shares / shares.sum() * total
    while (below := ~fixed & (targets < floors)).any():
        fixed |= below
        if fixed.all():
            break
        left = total - floors[fixed].sum()
        targets = np.where(fixed, floors, shares / shares[~fixed].sum() * left)
    targets = np.where(fixed, floors, targets)
    counts = np.floor(targets).astype(np.int64)
    spread = np.arange(shares.size) * GOLDEN % 1
    order = np.lexsort((spread, counts - targets))
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def repeat_counts(
    weights: FloatArray, clusters: IntArray, num_rows: int, *, allow_drop: bool = False
) -> IntArray:
    """Say how often each row comes in a file of `num_rows` rows.

    Parameters
    ----------
    weights : ndarray of shape (rows,)
        Above 0.
    clusters : ndarray of shape (rows,)
        Cluster of each row.
    num_rows : int
        Sum of the counts.
    allow_drop : bool
        Whether a row may be left out; each cluster then keeps a row, where there is one for it.

    Raises
    ------
    ShardError
        If every row is to come and there are too few.
    """
    if num_rows < weights.size and not allow_drop:
        raise ShardError(
            f"repeat_rows={num_rows} must be >= {weights.size}, the rows of the set, each of "
            f"which comes at least once; raise --repeat-rows, or pass --allow-drop"
        )
    _, members, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    mass = np.bincount(members, weights).astype(np.float64)
    least = np.full(sizes.size, int(num_rows >= sizes.size)) if allow_drop else sizes
    quotas = largest_remainder(mass, num_rows, least.astype(np.int64))
    counts = np.zeros(weights.size, np.int64)
    by_cluster = np.split(np.argsort(members, kind="stable"), np.cumsum(sizes)[:-1])
    for rows, quota in zip(by_cluster, quotas, strict=True):
        floors = np.full(rows.size, int(not allow_drop), np.int64)
        counts[rows] = largest_remainder(weights[rows], int(quota), floors)
    return counts


def total_variation(counts: IntArray, weights: FloatArray) -> float:
    """Give half the sum of the differences of two distributions, in [0, 1]."""
    return float(np.abs(counts / counts.sum() - weights / weights.sum()).sum() / 2)


def cluster_variation(counts: IntArray, weights: FloatArray, clusters: IntArray) -> float:
    """Give the total variation between the clusters' shares."""
    members = np.unique(clusters, return_inverse=True)[1]
    rows, mass = np.bincount(members, counts), np.bincount(members, weights)
    return total_variation(rows.astype(np.int64), mass.astype(np.float64))


def enough_rows(weights: FloatArray, clusters: IntArray) -> int:
    """Choose the length of a file in which every row comes and the shares are nearly right.

    The fewest whole times of the rows, at most 16, with a total variation of at most 5 %.
    """
    for times in range(1, MOST_TIMES):
        counts = repeat_counts(weights, clusters, times * weights.size)
        if total_variation(counts, weights) <= GOOD_ERROR:
            return times * weights.size
    return MOST_TIMES * weights.size


def laps(counts: IntArray, clusters: IntArray) -> Iterator[IntArray]:
    """Order the copies: lap by lap over the rows, a row's copies evenly over the laps.

    Parameters
    ----------
    counts : ndarray of shape (rows,)
        Of the rows in the order of a lap.
    clusters : ndarray of shape (rows,)
        The rows that a lap takes of a cluster lie evenly spread over it.

    Yields
    ------
    ndarray of int64
        Places of the rows of one lap, rising. A place comes once, or side by side where a row
        has more copies than there are laps.
    """
    num_laps = min(MOST_LAPS, int(counts.max()))
    _, members, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    ranks = np.empty(counts.size, np.int64)
    ranks[np.argsort(members, kind="stable")] = np.arange(counts.size) - np.repeat(
        np.cumsum(sizes) - sizes, sizes
    )
    phases = np.floor(num_laps * (ranks * GOLDEN % 1)).astype(np.int64)
    places = np.arange(counts.size)
    for lap in range(num_laps):
        before, after = ((n * counts + phases) // num_laps for n in (lap, lap + 1))
        yield np.repeat(places, after - before)


def largest_gap(members: IntArray, num_clusters: int, step_rows: int) -> float:
    """Say how far any cluster's rows in a step depart from its share of the file.

    Parameters
    ----------
    members : ndarray of shape (rows,)
        Cluster of each row of the file, from 0 to `num_clusters` - 1.
    num_clusters : int
        Number of clusters.
    step_rows : int
        Rows of a step; a last step that is short is left out.
    """
    shares = np.bincount(members, minlength=num_clusters) / members.size * step_rows
    gap = 0.0
    for start in range(0, members.size - step_rows + 1, step_rows):
        found = np.bincount(members[start : start + step_rows], minlength=num_clusters)
        gap = max(gap, float(np.abs(found - shares).max()))
    return gap
