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
    """Measure fairness: the largest distance, in rows, of a running count from its line."""
    num_steps = plan.shape[0]
    counts = np.zeros((num_steps, num_clusters), np.int64)
    flat = plan.reshape(num_steps, -1)
    np.add.at(counts, (np.arange(num_steps)[:, None], clusters[flat]), 1)
    running = np.cumsum(counts, axis=0)
    lines = np.arange(1, num_steps + 1)[:, None] * (running[-1] / num_steps)
    return float(np.abs(running - lines).max())
