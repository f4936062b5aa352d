"""Sampling without replacement by unequal chances, and the chance that each row had.

A row that is kept with chance pi stands for 1 / pi rows (Horvitz and Thompson 1952): weighted
so, the kept rows' sum is that of all rows in the mean over the seeds.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stages.allocate.weights import least_mix

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# No row counts less than this part of the mean, so that none has the chance 0.
LEAST = 1e-6
BISECTIONS = 30


def inclusion_probabilities(importance: npt.ArrayLike, count: int) -> FloatArray:
    """Give every row a chance in proportion to its importance, min(1, c x), summing to `count`.

    Parameters
    ----------
    importance : array of shape (num_rows,)
        Finite, at least 0. Of the rows that are not kept for sure, values below a millionth of
        their mean count as that.
    count : int
        Rows that are to be kept, at most the number of rows.

    Returns
    -------
    ndarray of shape (num_rows,), float64
        In (0, 1].
    """
    sizes = finite(importance)
    assert 0 < count <= sizes.size, (count, sizes.size)
    order = np.argsort(-sizes, kind="stable")
    falling = sizes[order]
    rest = np.cumsum(falling[::-1])[::-1]  # the sum of a size and all smaller ones
    left = count - np.arange(sizes.size)
    # Zeros are never sure, and the last place stays open: the others share a chance of it.
    surely = (left * falling >= rest) & (falling > 0) & (left > 1)
    num_sure = int(np.argmin(surely))
    # Lifted only now: one huge value owns the mean of all, and would make the others equal.
    unsure = np.sort(order[num_sure:])
    lifted = above_zero(sizes[unsure])
    total = np.cumsum(np.sort(lifted))[-1]
    chances = np.ones(sizes.size)
    chances[unsure] = np.minimum(1.0, (count - num_sure) * lifted / total)
    return chances


def defensive(
    importance: npt.ArrayLike,
    share: FloatArray,
    count: int,
    fits: Callable[[FloatArray], bool],
) -> FloatArray:
    """Mix chances by importance with those by share, just so far that the weights are bearable.

    A row of little importance that is drawn all the same stands for very many. A part of the
    chances that follows the rows' shares bounds that (defensive mixtures, Hesterberg 1995).

    Parameters
    ----------
    importance : array of shape (num_rows,)
        As for `inclusion_probabilities`.
    share : ndarray of shape (num_rows,)
        Of the whole, above 0; sums to 1.
    count : int
        Rows that are to be kept.
    fits : callable
        Whether chances will do. Where not even those by share alone do, these are given.
    """
    chances = inclusion_probabilities(importance, count)
    if fits(chances):
        return chances
    sizes = above_zero(importance)
    sizes = sizes / sizes.sum()

    def mixed(part: float) -> FloatArray:
        return inclusion_probabilities((1 - part) * sizes + part * share, count)

    return mixed(least_mix(lambda part: fits(mixed(part)), BISECTIONS))


def above_zero(importance: npt.ArrayLike) -> FloatArray:
    """Lift values to at least a millionth of their mean; all alike where all are 0."""
    sizes = finite(importance)
    mean = float(sizes.mean())
    return np.maximum(sizes, LEAST * mean) if mean > 0 else np.ones_like(sizes)


def finite(importance: npt.ArrayLike) -> FloatArray:
    """Take values as float64; what is not finite, or below 0, is a fault of ours."""
    sizes = np.asarray(importance, np.float64)
    assert np.all(np.isfinite(sizes)) and np.all(sizes >= 0), "importance must be finite, >= 0"
    return sizes


def systematic(chances: FloatArray, start: float) -> IntArray:
    """Draw rows with exactly these chances, by equal steps along their running sum (Madow 1949).

    Parameters
    ----------
    chances : ndarray of shape (num_rows,)
        In (0, 1], summing to a whole number up to rounding. In a random order, so that
        neighbours do not shut each other out.
    start : float
        Random in [0, 1).

    Returns
    -------
    ndarray of shape (count,), int64
        Increasing positions.
    """
    count = round(float(chances.sum()))
    sums = np.cumsum(chances)
    sums *= count / sums[-1]
    found = np.searchsorted(sums, start + np.arange(count), side="right")
    # Rounding must not take a row of chance 1 twice, nor run over the end.
    steps = np.arange(count)
    found = np.maximum.accumulate(found - steps) + steps
    return np.minimum(found, chances.size - count + steps).astype(np.int64)


def race(shares: npt.ArrayLike, draws: FloatArray) -> IntArray:
    """Order rows as if drawn one by one without replacement, each by its share of what is left.

    The arrival times -log(U) / P of exponential clocks. The first k rows of the order are a draw
    of k, so draws are nested.

    Parameters
    ----------
    shares : array of shape (num_rows,)
        P, in any unit; at least 0.
    draws : ndarray of shape (num_rows,)
        U, uniform in [0, 1).
    """
    times = -np.log1p(-draws) / above_zero(shares)
    return np.argsort(times, kind="stable").astype(np.int64)


def race_chances(shares: npt.ArrayLike, count: int) -> FloatArray:
    """Approximate the chance of a place among the first `count` of a `race`.

    1 - exp(-P t), with t such that they sum to `count`: the clocks stopped at a fixed time
    (Rosen 1972, asymptotically exact).
    """
    rates = above_zero(shares)
    rates = rates / rates.sum()
    if count == rates.size:
        return np.ones(rates.size)
    low, high = 0.0, 1.0
    while -np.expm1(-rates * high).sum() < count:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        if -np.expm1(-rates * middle).sum() < count:
            low = middle
        else:
            high = middle
    chances: FloatArray = -np.expm1(-rates * high)
    return chances
