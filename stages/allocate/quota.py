"""How many rows each cluster gives: whole numbers that sum to what is kept, exactly."""

import heapq
import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def water_fill(sizes: IntArray, total: int, num_workers: int = 1) -> IntArray:
    """Share `total` equally among clusters that may be too small for an equal share.

    Every cluster gives min(size, level) rows; where the level is not whole, the clusters that
    can give one row more do so, the largest first, until the sum is exact. Where every worker
    can hold as many clusters, their workers take turns to give such a row, so that a pinned
    schedule is not spoilt by the odd rows.

    Parameters
    ----------
    sizes : ndarray of shape (num_clusters,)
        Rows that each cluster can give.
    total : int
        At most the sum of the sizes.
    num_workers : int
        W; worker r holds the clusters c with c mod W = r.

    Returns
    -------
    ndarray of shape (num_clusters,), int64
    """
    assert 0 <= total <= sizes.sum(), (total, sizes)
    low, high = 0, int(sizes.max(initial=0))
    while low < high:
        level = (low + high + 1) // 2
        if int(np.minimum(sizes, level).sum()) <= total:
            low = level
        else:
            high = level - 1
    quotas = np.minimum(sizes, low).astype(np.int64)
    left = total - int(quotas.sum())
    order = np.lexsort((np.arange(sizes.size), -sizes))
    can_give = order[sizes[order] > quotas[order]]
    if sizes.size % num_workers == 0:
        can_give = can_give[np.argsort(_turns(can_give % num_workers), kind="stable")]
    quotas[can_give[:left]] += 1
    return quotas


def _turns(owners: IntArray) -> IntArray:
    """Count for each entry how many earlier ones have the same owner."""
    by_owner = np.argsort(owners, kind="stable")
    sizes = np.bincount(owners)
    turns = np.empty(owners.size, np.int64)
    turns[by_owner] = np.arange(owners.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return turns


def proportional(
    amounts: npt.NDArray[np.float64] | IntArray, sizes: IntArray, total: int
) -> IntArray:
    """Share `total` in proportion to amounts, with at least a row each where that is possible.

    The method of equal proportions (Huntington 1921): the next row goes to the cluster with the
    largest amount / sqrt(q (q + 1)) among those that have rows left; a cluster without a row
    comes first. Quotas never fall when the total grows. Ties, and what is left when all
    clusters with an amount above 0 are full, go by sizes, then to the lower number.

    Parameters
    ----------
    amounts : ndarray of shape (num_clusters,)
        Finite, at least 0.
    sizes : ndarray of shape (num_clusters,)
        Rows that each cluster can give.
    total : int
        At most the sum of the sizes.

    Returns
    -------
    ndarray of shape (num_clusters,), int64
    """
    assert 0 <= total <= sizes.sum(), (total, sizes)
    assert np.all(np.isfinite(amounts)) and np.all(amounts >= 0), amounts
    quotas = np.zeros(sizes.size, np.int64)

    def turn(cluster: int) -> tuple[bool, float, float, int]:
        given = int(quotas[cluster])
        scale = math.sqrt(given * (given + 1)) or 1.0
        return given > 0, -amounts[cluster] / scale, -sizes[cluster] / scale, cluster

    turns = [turn(cluster) for cluster in np.flatnonzero(sizes).tolist()]
    heapq.heapify(turns)
    for _ in range(total):
        cluster = turns[0][3]
        quotas[cluster] += 1
        if quotas[cluster] < sizes[cluster]:
            heapq.heapreplace(turns, turn(cluster))
        else:
            heapq.heappop(turns)
    return quotas


def smallest_first(sizes: IntArray, total: int) -> IntArray:
    """Share `total` by serving the smallest first: min(size, floor(left / clusters left)).

    The allocation of CCS (arXiv 2210.15809) over score bins and of S2L (arXiv 2403.07384) over
    clusters. It gives what `water_fill` gives, but for who gets the odd rows.

    Parameters
    ----------
    sizes : ndarray of shape (num_groups,)
        Rows that each group can give.
    total : int
        At most the sum of the sizes.

    Returns
    -------
    ndarray of shape (num_groups,), int64
    """
    assert 0 <= total <= sizes.sum(), (total, sizes)
    quotas = np.zeros(sizes.size, np.int64)
    left = total
    for served, group in enumerate(np.argsort(sizes, kind="stable")):
        quotas[group] = min(int(sizes[group]), left // (sizes.size - served))
        left -= int(quotas[group])
    return quotas


def equal_rows(sizes: IntArray, ratio: Fraction, num_workers: int, rows_per_worker: int) -> int:
    """Count the rows that the paper's rule keeps: equal clusters, a ratio of the smallest.

    With as many clusters as workers every cluster gives A*B * floor(floor(ratio * min d) / A*B)
    rows (CluSTER, arXiv 2609.12584, with the floor that its code takes); otherwise the equal
    quotas are cut to whole steps.

    Parameters
    ----------
    sizes : ndarray of shape (num_clusters,)
        Rows d of each cluster.
    ratio : Fraction
        In (0, 1].
    num_workers, rows_per_worker : int
        W and A*B.
    """
    each = math.floor(ratio * int(sizes.min()))
    if sizes.size == num_workers:
        return each // rows_per_worker * rows_per_worker * num_workers
    per_step = num_workers * rows_per_worker
    return each * sizes.size // per_step * per_step
