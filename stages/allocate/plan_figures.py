"""Figures of a plan, an array (steps, workers, rows per worker) of positions of kept rows."""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def places(plan: IntArray) -> tuple[npt.NDArray[np.int32], IntArray]:
    """Turn a plan into the worker and the position in its shard of every kept row."""
    num_steps, num_workers, rows_per_worker = plan.shape
    worker = np.empty(plan.size, np.int32)
    position = np.empty(plan.size, np.int64)
    worker[plan] = np.arange(num_workers, dtype=np.int32)[None, :, None]
    steps = np.arange(num_steps)[:, None, None] * rows_per_worker
    position[plan] = steps + np.arange(rows_per_worker)[None, None, :]
    return worker, position


def imbalance(plan: IntArray, num_tokens: IntArray) -> float:
    """Measure waiting: sum over steps of the busiest worker's tokens over the mean worker's."""
    tokens = num_tokens[plan].sum(axis=2)
    return float(tokens.max(axis=1).sum() / tokens.mean(axis=1).sum())


def max_deviation(plan: IntArray, clusters: npt.NDArray[np.int32], num_clusters: int) -> float:
    """Measure fairness: the largest distance, in rows, of a running count from its line.

    It is met just before a step with rows of the cluster, or at one, so memory is that of the
    rows, whatever the number of clusters.
    """
    num_steps = plan.shape[0]
    flat = plan.reshape(num_steps, -1)
    cluster, step = clusters[flat].ravel(), np.repeat(np.arange(num_steps), flat.shape[1])
    order = np.lexsort((step, cluster))
    cluster, step = cluster[order], step[order]
    sizes = np.bincount(cluster, minlength=num_clusters)
    starts = np.cumsum(sizes) - sizes
    before = np.arange(cluster.size) - starts[cluster]  # rows of the cluster that came earlier
    slope = (sizes / num_steps)[cluster]
    begins = np.ones(cluster.size, bool)
    begins[1:] = (cluster[1:] != cluster[:-1]) | (step[1:] != step[:-1])
    ends = np.append(begins[1:], True)
    low = before[begins] - step[begins] * slope[begins]
    high = before[ends] + 1 - (step[ends] + 1) * slope[ends]
    return float(max(np.abs(low).max(), np.abs(high).max()))
