"""Clusters of a pool, made as the cluster room makes them: floors, then the soft cap."""

import time
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stages.cluster.capacity import capped_labels, exceeds_cap, place_rest, soft_capacity
from stages.cluster.kmeans import distances_to, fit_centers, nearest_centers, small_clusters

FloatArray = npt.NDArray[np.float32]

# Defaults of the cluster room.
SLACK, MIN_ROWS, N_INIT = 0.5, 16, 10


@dataclass(frozen=True)
class Clusters:
    """Clusters of rows.

    Attributes
    ----------
    labels : ndarray of shape (num_rows,), int32
    distances : ndarray of shape (num_rows,), float32
        To the row's own centre.
    centers : ndarray of shape (num_clusters, dim), float32
        Fewer than asked where some were under the floor.
    seconds : float
        CPU seconds that they took.
    """

    labels: npt.NDArray[np.int32]
    distances: FloatArray
    centers: FloatArray
    seconds: float


def cluster_rows(embeddings: FloatArray, count: int, seed: int) -> Clusters:
    """Cluster prepared embeddings; the last few answers are kept, since methods share them."""
    return _cluster(embeddings.tobytes(), embeddings.shape[1], count, seed)


@lru_cache(maxsize=4)
def _cluster(content: bytes, dim: int, count: int, seed: int) -> Clusters:
    embeddings = np.frombuffer(content, np.float32).reshape(-1, dim)
    began = time.process_time()
    centers = fit_centers(embeddings, count, n_init=N_INIT, seed=seed)
    least = min(MIN_ROWS, len(embeddings) // (2 * count))
    while True:
        nearest, distances = nearest_centers(embeddings, centers, len(centers))
        sizes = np.bincount(nearest[:, 0], minlength=len(centers))
        small = small_clusters(centers, sizes, least)
        if small.size == 0:
            break
        centers = np.delete(centers, small, axis=0)
    labels, distance = nearest[:, 0], distances[:, 0]
    if exceeds_cap(sizes, SLACK):
        capacity = soft_capacity(len(embeddings), len(centers), SLACK)
        labels, distance = capped_labels(nearest, distances, capacity, len(centers))
        rest = np.flatnonzero(labels < 0)
        if rest.size:
            to_all = distances_to(embeddings[rest], centers)
            labels[rest], distance[rest] = place_rest(labels, to_all, capacity)
    return Clusters(labels, distance, centers, time.process_time() - began)
