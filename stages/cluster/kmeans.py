"""K-means on a sample, nearest centres for everyone: functions of arrays.

Distances are computed in float64, since the difference of squares loses half the digits and
the keep rules sort by it.
"""

import warnings

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]


def num_distinct(embeddings: FloatArray, enough: int) -> int:
    """Count distinct rows, at most `enough` of them."""
    seen: set[bytes] = set()
    for row in embeddings + np.float32(0.0):  # so that -0.0 and 0.0 are the same bytes
        seen.add(row.tobytes())
        if len(seen) >= enough:
            break
    return len(seen)


def fit_centers(sample: FloatArray, num_clusters: int, *, n_init: int, seed: int) -> FloatArray:
    """Fit k-means by scikit-learn.

    Parameters
    ----------
    sample : ndarray of shape (num_rows, dim), float32
        Prepared embeddings with at least `num_clusters` distinct rows.
    num_clusters, n_init, seed : int
        As scikit-learn's `n_clusters`, `n_init`, `random_state`.

    Returns
    -------
    ndarray of shape (num_clusters, dim), float32
    """
    return _lloyd(sample, num_clusters, "k-means++", n_init=n_init, seed=seed)


def fit_from_starts(
    sample: FloatArray, num_clusters: int, *, n_init: int, start_rows: int, seed: int
) -> FloatArray:
    """Fit k-means, with the starts compared on a part of the rows.

    Starts differ by which groups they find, which a part shows as well; the best one goes on over
    all rows. Where the rows are no more than the part, this is `fit_centers`.

    Parameters
    ----------
    sample : ndarray of shape (num_rows, dim), float32
        Prepared embeddings with at least `num_clusters` distinct rows.
    num_clusters, n_init, seed : int
        As for `fit_centers`.
    start_rows : int
        Rows on which the starts are compared; at least `num_clusters`.

    Returns
    -------
    ndarray of shape (num_clusters, dim), float32
    """
    if start_rows >= len(sample) or n_init == 1:
        return fit_centers(sample, num_clusters, n_init=n_init, seed=seed)
    places = np.random.default_rng(seed).choice(len(sample), start_rows, replace=False)
    best = fit_centers(sample[np.sort(places)], num_clusters, n_init=n_init, seed=seed)
    return _lloyd(sample, num_clusters, best, n_init=1, seed=seed)


def _lloyd(
    sample: FloatArray, num_clusters: int, init: str | FloatArray, *, n_init: int, seed: int
) -> FloatArray:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    # Sums depend on the number of threads. The limit reaches only what is loaded, so a caller's
    # that was set before the import above does not reach scikit-learn.
    with threadpool_limits(1), warnings.catch_warnings():
        # Duplicates can leave a start with fewer distinct centres; the caller has counted them.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(n_clusters=num_clusters, init=init, n_init=n_init, random_state=seed)
        centers: FloatArray = model.fit(sample).cluster_centers_.astype(np.float32)
    return centers


def distances_to(embeddings: FloatArray, centers: FloatArray) -> npt.NDArray[np.float64]:
    """Compute all Euclidean distances, of shape (num_rows, num_clusters), float64."""
    rows = embeddings.astype(np.float64)
    points = centers.astype(np.float64)
    squares = (
        np.einsum("ij,ij->i", rows, rows)[:, None]
        - 2.0 * (rows @ points.T)
        + np.einsum("ij,ij->i", points, points)[None, :]
    )
    distances: npt.NDArray[np.float64] = np.sqrt(np.maximum(squares, 0.0))
    return distances


def nearest_centers(
    embeddings: FloatArray, centers: FloatArray, num_candidates: int
) -> tuple[IntArray, FloatArray]:
    """List the nearest centres of every row, nearest first, ties by the lower number.

    Returns
    -------
    candidates : ndarray of shape (num_rows, num_candidates), int32
        Numbers of centres.
    distances : ndarray of the same shape, float32
        Euclidean distances.
    """
    distances = distances_to(embeddings, centers).astype(np.float32)
    order = np.argsort(distances, axis=1, kind="stable")[:, :num_candidates]
    return order.astype(np.int32), np.take_along_axis(distances, order, axis=1)


def small_clusters(centers: FloatArray, sizes: npt.NDArray[np.int64], least: int) -> IntArray:
    """List the clusters to merge away so that every other one reaches a floor.

    The smallest cluster goes first; its rows count for the nearest centre that is left.

    Parameters
    ----------
    centers : ndarray of shape (num_clusters, dim)
        Centres.
    sizes : ndarray of shape (num_clusters,)
        Rows of each.
    least : int
        The floor, in rows.
    """
    between = distances_to(centers, centers)
    np.fill_diagonal(between, np.inf)
    left = sizes.astype(np.int64).copy()
    dropped: list[int] = []
    alive = np.ones(sizes.size, bool)
    while alive.sum() > 1:
        smallest = int(np.argmin(np.where(alive, left, np.iinfo(np.int64).max)))
        if left[smallest] >= least:
            break
        alive[smallest] = False
        dropped.append(smallest)
        heir = int(np.argmin(np.where(alive, between[smallest], np.inf)))
        left[heir] += left[smallest]
    return np.array(sorted(dropped), np.int32)


def split_center(sample: FloatArray, *, least: int, n_init: int, seed: int) -> FloatArray | None:
    """Cut the rows of one cluster in two by 2-means, neither half below a floor.

    A few far rows make a half of their own; they are set aside and the rest is cut instead.

    Parameters
    ----------
    sample : ndarray of shape (num_rows, dim), float32
        Rows of the cluster.
    least : int
        The floor of a half, in rows of the sample.
    n_init, seed : int
        As for `fit_centers`.

    Returns
    -------
    ndarray of shape (2, dim), float32, or None
        The centres of the halves; None where no such cut is found.
    """
    while len(sample) >= max(2, 2 * least) and num_distinct(sample, 2) == 2:
        halves = fit_centers(sample, 2, n_init=n_init, seed=seed)
        labels = nearest_centers(sample, halves, 1)[0][:, 0]
        sizes = np.bincount(labels, minlength=2)
        if sizes.min() >= max(1, least):
            return halves
        if sizes.min() == 0:  # rows that differ by less than a centre's last digit
            return None
        sample = sample[labels == np.argmax(sizes)]
    return None
