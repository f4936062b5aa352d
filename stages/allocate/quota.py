"""How many rows each cluster gives: whole numbers that sum to what is kept, exactly."""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def water_fill(sizes: IntArray, total: int) -> IntArray:
    """Share `total` equally among clusters that may be too small for an equal share.

    Every cluster gives min(size, level) rows; where the level is not whole, the clusters that
    can give one row more do so, the largest first, until the sum is exact.

    Parameters
    ----------
    sizes : ndarray of shape (num_clusters,)
        Rows that each cluster can give.
    total : int
        At most the sum of the sizes.

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
    quotas[can_give[:left]] += 1
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
