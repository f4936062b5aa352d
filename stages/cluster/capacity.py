"""The paper's soft cap: no cluster holds more than a fixed number of rows.

The paper walks over all (row, centre) pairs by increasing distance and assigns a row whenever
it is free and the centre has room. Since a row and a centre rank each other by the same
distance, that walk is the stable matching of rows and centres, and deferred acceptance finds
the same one in a few vectorised rounds (Gale and Shapley 1962): every free row asks its
nearest centre that has not refused it, and every centre keeps its nearest rows.
"""

import numpy as np
import numpy.typing as npt

from stages.cluster.kmeans import FloatArray, IntArray


def soft_capacity(num_rows: int, num_clusters: int, slack: float) -> int:
    """Give the largest size that the cap allows, ceil((1 + slack) N / K)."""
    return int(np.ceil((1.0 + slack) * num_rows / num_clusters - 1e-9))


def exceeds_cap(sizes: npt.NDArray[np.int64], slack: float) -> bool:
    """Say whether the largest cluster is over (1 + slack) N / K."""
    return bool(sizes.max() > (1.0 + slack) * sizes.sum() / sizes.size)


def capped_labels(
    candidates: IntArray, distances: FloatArray, capacity: int, num_clusters: int
) -> tuple[IntArray, FloatArray]:
    """Assign rows to centres of bounded capacity, nearest pairs first.

    Parameters
    ----------
    candidates : ndarray of shape (num_rows, num_candidates), int32
        Centres of each row, nearest first.
    distances : ndarray of the same shape, float32
        Their distances.
    capacity : int
        Rows that a centre can hold.
    num_clusters : int
        Number of centres.

    Returns
    -------
    labels : ndarray of shape (num_rows,), int32
        The centre of each row; -1 where all of its candidates were full.
    distances : ndarray of shape (num_rows,), float32
        Distance to it; 0 where there is none.
    """
    num_rows, num_candidates = candidates.shape
    asked = np.zeros(num_rows, np.int64)
    labels = np.full(num_rows, -1, np.int32)
    free = np.arange(num_rows)
    while free.size:
        labels[free] = candidates[free, asked[free]]
        crowded = np.flatnonzero(
            np.bincount(labels[labels >= 0], minlength=num_clusters) > capacity
        )
        refused = []
        for center in crowded:
            rows = np.flatnonzero(labels == center)
            order = np.lexsort((rows, distances[rows, asked[rows]]))
            refused.append(rows[order[capacity:]])
        free = np.concatenate(refused) if refused else np.empty(0, np.int64)
        labels[free] = -1
        asked[free] += 1
        free = free[asked[free] < num_candidates]
    found = labels >= 0
    chosen = np.where(
        found, distances[np.arange(num_rows), np.minimum(asked, num_candidates - 1)], 0
    )
    return labels, chosen.astype(np.float32)


def place_rest(
    labels: IntArray, distances_to_all: npt.NDArray[np.float64], capacity: int
) -> tuple[IntArray, FloatArray]:
    """Give rows whose candidates were all full the nearest centre with room, nearest first.

    Parameters
    ----------
    labels : ndarray of shape (num_rows,), int32
        -1 for the rows in question.
    distances_to_all : ndarray of shape (num_unplaced, num_clusters), float64
        Distances of those rows to every centre, in order of the rows.
    capacity : int
        Rows that a centre can hold.

    Returns
    -------
    new_labels : ndarray of shape (num_unplaced,), int32
    new_distances : ndarray of shape (num_unplaced,), float32
    """
    num_clusters = distances_to_all.shape[1]
    room = capacity - np.bincount(labels[labels >= 0], minlength=num_clusters)
    flat = np.argsort(distances_to_all, axis=None, kind="stable")
    rows, centers = np.unravel_index(flat, distances_to_all.shape)
    placed = np.full(distances_to_all.shape[0], -1, np.int32)
    for row, center in zip(rows.tolist(), centers.tolist(), strict=True):
        if placed[row] < 0 and room[center] > 0:
            placed[row] = center
            room[center] -= 1
    chosen = distances_to_all[np.arange(placed.size), placed].astype(np.float32)
    return placed, chosen
