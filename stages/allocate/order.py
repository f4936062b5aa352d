"""The order of kept rows over the steps: gradients in balance at every point of the epoch.

With z_i the weighted gradient of kept row i less the mean of all kept rows, an optimizer that has
seen the steps 1 .. p has followed the mean gradient up to the prefix sum of their z. Random
orders let it grow like the root of the number of rows; an order found by balancing vectors keeps
it bounded, which is what makes GraB (Lu et al. 2022) and CD-GraB (Cooper et al. 2023, arXiv
2302.00845, for parallel workers) converge faster than reshuffling. Here it is found offline, on
the features of the pass, over synchronized steps: a step is what all workers do together.

Only rows of one kind, that is of one cluster and of like length, change places, so the clusters of
every step, its lengths and its tokens stay what the schedule made them.
"""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

LENGTH_BUCKETS = 4
DIM = 256


def kinds_of(clusters: npt.NDArray[np.int32], num_tokens: IntArray) -> IntArray:
    """Tell which rows may change places: by cluster, and by quarter of its lengths.

    Parameters
    ----------
    clusters, num_tokens : ndarray of shape (num_kept,)
        Cluster and length of each row.

    Returns
    -------
    ndarray of shape (num_kept,), int64
    """
    order = np.lexsort((num_tokens, clusters))
    sizes = np.bincount(clusters)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    rank = np.arange(clusters.size) - starts
    bucket = rank * LENGTH_BUCKETS // np.repeat(sizes, sizes)
    kinds = np.empty(clusters.size, np.int64)
    kinds[order] = clusters[order] * LENGTH_BUCKETS + bucket
    return kinds


def balanced(steps: IntArray, kinds: IntArray, gradients: FloatArray) -> IntArray:
    """Give the rows of each kind new places, so that prefix sums over the steps stay small.

    Greedy herding (Welling 2009) along the plan: each place takes the row of its kind that is
    left and brings the sum so far nearest to zero.

    Parameters
    ----------
    steps : ndarray of shape (num_steps, rows_per_step), int64
        The plan: positions of rows, each once.
    kinds : ndarray of shape (num_kept,), int64
        Which rows may change places.
    gradients : ndarray of shape (num_kept, dim), float64
        z: weighted features less their mean.

    Returns
    -------
    ndarray of shape (num_steps, rows_per_step), int64
        The same rows; every place keeps its kind.
    """
    by_kind = np.argsort(kinds, kind="stable")
    cuts = np.cumsum(np.bincount(kinds))[:-1]
    pools = np.split(by_kind, cuts)
    left = [gradients[pool] for pool in pools]
    halves = [0.5 * np.einsum("ij,ij->i", rows, rows) for rows in left]
    sizes = [pool.size for pool in pools]
    total = np.zeros(gradients.shape[1])
    found = np.empty(steps.size, np.int64)
    for place, row in enumerate(steps.ravel()):
        kind = kinds[row]
        size = sizes[kind]
        pool, rows, half = pools[kind], left[kind], halves[kind]
        best = int(np.argmin(rows[:size] @ total + half[:size]))
        found[place] = pool[best]
        total += rows[best]
        last = size - 1
        pool[best], half[best], sizes[kind] = pool[last], half[last], last
        rows[best] = rows[last]
    return found.reshape(steps.shape)


def prefix_errors(steps: IntArray, gradients: FloatArray) -> FloatArray:
    """Measure the prefix sums: the length of the sum of z over the steps so far.

    Returns
    -------
    ndarray of shape (num_steps,), float64
    """
    sums = np.cumsum(gradients[steps].sum(axis=1), axis=0)
    lengths: FloatArray = np.sqrt(np.einsum("ij,ij->i", sums, sums))
    return lengths


def projected(features: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float32]:
    """Project features to a few hundred random directions, which is enough to order rows by.

    Signs divided by sqrt(DIM): inner products are right on average (Achlioptas 2003). Features
    that are no longer than that stay as they are.
    """
    dim = features.shape[1]
    if dim <= DIM:
        return features
    signs = np.random.default_rng(seed).choice(np.array([-1.0, 1.0], np.float32), (dim, DIM))
    projection: npt.NDArray[np.float32] = np.matmul(features, signs / np.float32(np.sqrt(DIM)))
    return projection
