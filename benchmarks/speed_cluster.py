"""K-means against ten starts of scikit-learn on all rows, and the cap against a greedy walk."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from benchmarks.results import Figure
from benchmarks.speed_timing import interleaved, ratio
from stages.cluster.capacity import capped_labels, soft_capacity
from stages.cluster.kmeans import distances_to, nearest_centers
from stages.cluster.stage import ClusterConfig, fit
from stages.embed.reading import prepare

FloatArray = npt.NDArray[np.float32]
Found = dict[str, Any]


def generated(num_rows: int, dim: int, seed: int) -> FloatArray:
    """Generate rows in 15 overlapping groups of unequal size, of unit length."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(15, 2.0))
    centers = rng.normal(size=(15, dim)).astype(np.float32)
    groups = rng.choice(15, num_rows, p=shares)
    rows = centers[groups] + 2.0 * rng.standard_normal((num_rows, dim), np.float32)
    return prepare(rows, normalize=True, mean=None)


def inertia(rows: FloatArray, centers: FloatArray) -> float:
    """Sum squared distances to the nearest centre."""
    return float(np.square(distances_to(rows, centers).min(axis=1)).sum())


def own_centers(rows: FloatArray, num_clusters: int) -> FloatArray:
    """Fit as the stage does with its defaults: on a sample, with its number of starts."""
    settings = ClusterConfig(num_clusters=num_clusters)
    sample = rows
    if settings.fit_rows < len(rows):
        rng = np.random.default_rng(settings.seed)
        sample = rows[np.sort(rng.choice(len(rows), settings.fit_rows, replace=False))]
    with threadpool_limits(1):
        centers = fit(sample, num_clusters, settings)
        nearest_centers(rows, centers, 1)
    return centers


def sklearn_centers(rows: FloatArray, num_clusters: int) -> FloatArray:
    """Fit as scikit-learn does on all rows with ten starts."""
    with threadpool_limits(1):
        model = KMeans(n_clusters=num_clusters, n_init=10, random_state=0).fit(rows)
    centers: FloatArray = model.cluster_centers_.astype(np.float32)
    return centers


def measure_kmeans(num_rows: int, dim: int, num_clusters: int) -> list[Figure]:
    """Compare the fit of the cluster stage with ten starts on all rows."""
    rows = generated(num_rows, dim, 0)
    found: Found = {}

    def way(name: str, fitted: Callable[[FloatArray, int], FloatArray]) -> Callable[[], None]:
        return lambda: found.__setitem__(name, fitted(rows, num_clusters))

    seconds = interleaved(
        {"own": way("own", own_centers), "sklearn": way("sklearn", sklearn_centers)}, 1
    )
    label = f"cluster, {num_rows} x {dim}, K = {num_clusters}"
    return [
        Figure(
            f"{label}: inertia over that of sklearn with n_init=10",
            inertia(rows, found["own"]) / inertia(rows, found["sklearn"]),
            1.005,
            "lower",
        ),
        Figure(
            f"{label}: time over that of sklearn with n_init=10",
            ratio(seconds, "own", "sklearn"),
            0.25,
            "lower",
        ),
        Figure(f"{label}: seconds of sklearn", float(np.median(seconds["sklearn"])), None, "lower"),
    ]


def greedy_labels(
    candidates: npt.NDArray[np.int32], distances: FloatArray, capacity: int, num_clusters: int
) -> npt.NDArray[np.int32]:
    """Walk over all pairs by distance, then row, then rank: the paper's way."""
    order = np.argsort(distances, axis=None, kind="stable")
    rows, places = np.unravel_index(order, distances.shape)
    centers = candidates[rows, places]
    labels = np.full(len(candidates), -1, np.int32)
    room = [capacity] * num_clusters
    taken = [False] * len(candidates)
    for row, center in zip(rows.tolist(), centers.tolist(), strict=True):
        if not taken[row] and room[center] > 0:
            taken[row] = True
            labels[row] = center
            room[center] -= 1
    return labels


def measure_cap(num_rows: int, num_clusters: int, rounds: int) -> list[Figure]:
    """Compare deferred acceptance with the greedy walk, under a cap that binds."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(num_clusters, 16)).astype(np.float32)
    shares = rng.dirichlet(np.full(num_clusters, 0.5))
    rows = centers[rng.choice(num_clusters, num_rows, p=shares)]
    rows = rows + rng.standard_normal(rows.shape, np.float32)
    candidates, distances = nearest_centers(rows, centers, num_clusters)
    capacity = soft_capacity(num_rows, num_clusters, 0.5)
    found: Found = {}
    asked = (candidates, distances, capacity, num_clusters)
    seconds = interleaved(
        {
            "own": lambda: found.__setitem__("own", capped_labels(*asked)[0]),
            "greedy": lambda: found.__setitem__("greedy", greedy_labels(*asked)),
        },
        rounds,
    )
    label = f"soft cap, {num_rows} x {num_clusters}"
    same = float(np.mean(found["own"] == found["greedy"]))
    return [
        Figure(f"{label}: share of labels equal to the greedy walk's", same, 1.0, "higher"),
        Figure(
            f"{label}: rows that the cap moved",
            float(np.mean(found["own"] != candidates[:, 0])),
            None,
            "lower",
        ),
        Figure(
            f"{label}: time over that of the greedy walk",
            ratio(seconds, "own", "greedy"),
            0.1,
            "lower",
        ),
    ]
