"""Who is near whom: exact neighbours by blocks of rows, so that no N x N matrix exists."""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32] | npt.NDArray[np.float64]

BLOCK = 512


def unit_rows(rows: Rows) -> FloatArray:
    """Scale rows to length 1; a row of zeros stays."""
    wide = rows.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    scaled: FloatArray = wide / np.where(norms > 0, norms, 1.0)
    return scaled


def squared_distances(left: FloatArray, right: FloatArray) -> FloatArray:
    """Compute squared Euclidean distances, of shape (len(left), len(right)), never below 0."""
    squares = (
        np.einsum("ij,ij->i", left, left)[:, None]
        - 2.0 * (left @ right.T)
        + np.einsum("ij,ij->i", right, right)[None, :]
    )
    distances: FloatArray = np.maximum(squares, 0.0)
    return distances


def nearest_rows(rows: Rows, num_neighbours: int) -> tuple[FloatArray, IntArray]:
    """Find the nearest other rows of each row by brute force, nearest first.

    Time is O(N^2 dim), memory beyond the rows one block of N distances.

    Parameters
    ----------
    rows : ndarray of shape (num_rows, dim)
        The rows.
    num_neighbours : int
        k; all other rows where there are fewer.

    Returns
    -------
    distances : ndarray of shape (num_rows, k), float64
        Euclidean.
    neighbours : ndarray of shape (num_rows, k), int64
        Of equally near rows the earlier comes first; which of them has the last place is
        settled in a fixed way.
    """
    wide = rows.astype(np.float64)
    num_rows = wide.shape[0]
    width = min(num_neighbours, num_rows - 1)
    distances = np.empty((num_rows, width))
    neighbours = np.empty((num_rows, width), np.int64)
    for start in range(0, num_rows, BLOCK):
        squares = squared_distances(wide[start : start + BLOCK], wide)
        own = np.arange(squares.shape[0])
        squares[own, start + own] = np.inf
        nearest = _smallest(squares, width)
        neighbours[start : start + BLOCK] = nearest
        distances[start : start + BLOCK] = np.sqrt(np.take_along_axis(squares, nearest, axis=1))
    return distances, neighbours


def _smallest(values: FloatArray, width: int) -> IntArray:
    """List the columns of the smallest values of each row, the smallest first."""
    if width < values.shape[1]:
        found = np.sort(np.argpartition(values, width, axis=1)[:, :width], axis=1)
    else:
        found = np.broadcast_to(np.arange(width), values.shape)
    order = np.argsort(np.take_along_axis(values, found, axis=1), axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)


def most_similar_before(rows: Rows) -> tuple[FloatArray, IntArray]:
    """Find for each row the earlier row of the largest cosine, as SemDeDup's upper triangle does.

    Parameters
    ----------
    rows : ndarray of shape (num_rows, dim)
        In the order in which they are kept.

    Returns
    -------
    cosines : ndarray of shape (num_rows,), float64
        -inf for the first row.
    earlier : ndarray of shape (num_rows,), int64
        The earlier row; -1 for the first, and the first of equals.
    """
    unit = unit_rows(rows)
    num_rows = unit.shape[0]
    cosines = np.full(num_rows, -np.inf)
    earlier = np.full(num_rows, -1, np.int64)
    for start in range(0, num_rows, BLOCK):
        stop = min(start + BLOCK, num_rows)
        similar = unit[start:stop] @ unit[:stop].T
        later = np.arange(stop)[None, :] >= np.arange(start, stop)[:, None]
        similar[later] = -np.inf
        best = np.argmax(similar, axis=1)
        cosines[start:stop] = similar[np.arange(stop - start), best]
        earlier[start:stop] = best
    earlier[0] = -1
    return cosines, earlier


def nearest_of(rows: Rows, chosen: IntArray) -> IntArray:
    """Give for each row the index into `chosen` of the nearest chosen row; itself if chosen.

    Memory beyond the rows: one block of distances to the chosen.
    """
    wide = rows.astype(np.float64)
    owner = np.empty(wide.shape[0], np.int64)
    for start in range(0, wide.shape[0], BLOCK):
        squares = squared_distances(wide[start : start + BLOCK], wide[chosen])
        owner[start : start + BLOCK] = np.argmin(squares, axis=1)
    owner[chosen] = np.arange(chosen.size)
    return owner
