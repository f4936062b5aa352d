"""Greedy covers: D^2 seeding, and facility location with the rows that each choice stands for."""

import heapq
import math

import numpy as np
import numpy.typing as npt

from stages.allocate.neighbours import FloatArray, IntArray, Rows, squared_distances

# Up to so many rows the matrix of all pairs is held (32 MB, three times) and the choice is exact.
EXACT_ROWS = 2000
# Distances that the stochastic greedy holds at one time, as many as that matrix has.
PAIRS_AT_ONCE = EXACT_ROWS**2


def squared_seeding(
    rows: Rows, quota: int, *, first: int, uniforms: npt.NDArray[np.float64]
) -> IntArray:
    """Choose rows by k-means++ seeding: each with a chance of its squared distance to the chosen.

    Arthur and Vassilvitskii 2007. Where all distances are 0 the rest is drawn evenly.

    Parameters
    ----------
    rows : ndarray of shape (num_rows, dim)
        The rows.
    quota : int
        How many to choose, at least 1.
    first : int
        The first row.
    uniforms : ndarray of shape (quota,)
        Random numbers in [0, 1), one for each step; that of the first row is not used.

    Returns
    -------
    ndarray of shape (quota,), int64
        Positions in the order of choice, none twice.
    """
    wide = rows.astype(np.float64)
    squares = np.einsum("ij,ij->i", wide, wide)
    gaps = np.full(squares.size, np.inf)
    free = np.ones(squares.size, bool)
    chosen = np.empty(quota, np.int64)
    current = first
    for step in range(quota):
        if step > 0:
            sums = np.cumsum(gaps)
            if sums[-1] <= 0.0:
                sums = np.cumsum(free.astype(np.float64))
            current = int(np.searchsorted(sums, uniforms[step] * sums[-1], side="right"))
            if current == squares.size:  # the product was rounded up to the whole sum
                current = int(np.searchsorted(sums, sums[-1], side="left"))
        chosen[step] = current
        free[current] = False
        to_current = squares - 2.0 * (wide @ wide[current]) + squares[current]
        gaps = np.minimum(gaps, np.maximum(to_current, 0.0))
        gaps[~free] = 0.0
    return chosen


def facility_location(
    rows: Rows,
    mass: npt.NDArray[np.float64],
    quota: int,
    *,
    draws: npt.NDArray[np.float64],
    epsilon: float,
    exact_rows: int = EXACT_ROWS,
) -> IntArray:
    """Choose medoids greedily: the least sum of distances to the nearest (CRAIG, arXiv 1906.01827).

    Exact greedy up to `exact_rows` rows, within 1 - 1/e of the best; above, each step looks at
    ceil(n / quota * log(1 / epsilon)) rows (stochastic greedy, arXiv 1409.7938), 1 - 1/e -
    epsilon in the mean, O(n^2 dim log(1 / epsilon)) in all.

    Parameters
    ----------
    rows : ndarray of shape (num_rows, dim)
        The rows.
    mass : ndarray of shape (num_rows,)
        How much each row's distance counts.
    quota : int
        How many to choose, at least 1.
    draws : ndarray of shape (num_rows,)
        Random numbers; their order is that in which the stochastic greedy looks at rows.
    epsilon : float
        In (0, 1).
    exact_rows : int
        Bound of the exact greedy.

    Returns
    -------
    ndarray of shape (quota,), int64
        Positions in the order of choice. Ties go to the earlier row.
    """
    wide = rows.astype(np.float64)
    # The gain of the first choice is counted from here: no distance in the group is larger.
    away = 2.0 * float(np.sqrt(np.einsum("ij,ij->i", wide, wide).max()))
    gaps = np.full(wide.shape[0], away)
    if wide.shape[0] <= exact_rows:
        return _lazy_greedy(np.sqrt(squared_distances(wide, wide)), mass, gaps, quota)
    return _stochastic_greedy(wide, mass, gaps, quota, np.argsort(draws, kind="stable"), epsilon)


def _lazy_greedy(
    distances: FloatArray, mass: npt.NDArray[np.float64], gaps: FloatArray, quota: int
) -> IntArray:
    """Choose exactly; gains only fall, so an old gain is an upper bound (Minoux 1978)."""
    chosen: list[int] = []
    first = mass @ np.maximum(gaps[:, None] - distances, 0.0)
    bounds = [(-gain, row, 0) for row, gain in enumerate(first.tolist())]
    heapq.heapify(bounds)
    while len(chosen) < quota:
        _, row, seen = bounds[0]
        if seen == len(chosen):
            heapq.heappop(bounds)
            chosen.append(row)
            gaps = np.minimum(gaps, distances[:, row])
        else:
            gain = float(mass @ np.maximum(gaps - distances[:, row], 0.0))
            heapq.heapreplace(bounds, (-gain, row, len(chosen)))
    return np.array(chosen, np.int64)


def _stochastic_greedy(
    wide: FloatArray,
    mass: npt.NDArray[np.float64],
    gaps: FloatArray,
    quota: int,
    order: IntArray,
    epsilon: float,
) -> IntArray:
    """Look at the next few rows of a random order that goes round, by blocks of distances."""
    looked = math.ceil(wide.shape[0] / quota * math.log(1.0 / epsilon))
    width = max(1, PAIRS_AT_ONCE // wide.shape[0])
    chosen: list[int] = []
    waiting = order
    while len(chosen) < quota:
        seen, waiting = np.sort(waiting[:looked]), waiting[looked:]
        best, best_gain, nearer = 0, -np.inf, gaps
        for start in range(0, seen.size, width):
            distances = np.sqrt(squared_distances(wide, wide[seen[start : start + width]]))
            gains = mass @ np.maximum(gaps[:, None] - distances, 0.0)
            at = int(np.argmax(gains))
            if gains[at] > best_gain:
                best, best_gain = start + at, gains[at]
                nearer = np.minimum(gaps, distances[:, at])
        chosen.append(int(seen[best]))
        gaps = nearer
        waiting = np.concatenate([waiting, np.delete(seen, best)])
    return np.array(chosen, np.int64)
