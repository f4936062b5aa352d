"""Rows and weights whose weighted sum of features is that of all rows: balanced sampling.

A group has n rows with features x_i, of which some are kept. A kept row carries the share v_i of
the whole pool, the others none, and sum of v_i x_i should be a target vector: the same sum over
all rows that the group stands for, less the error that earlier groups have left. That is done in
three steps, each of which keeps the number of rows of every cluster:

1. draw rows with unequal chances, so that shares over chances are about right in the mean over
   draws (Horvitz and Thompson 1952), closely in large groups only;
2. exchange kept for left-out rows of the same cluster, the best pair first, as long as the error
   shrinks: what the cube method does for a sample (Deville and Tille 2004), by greedy descent;
3. calibrate the shares: ridge regression towards those of step 1, under the cluster's exact sum
   and bounds (Deville and Sarndal 1992).

Everything of a group is a function of the matrix of inner products, (n, n).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stages.allocate.weights import effective_sample_size, least_mix

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

EXCHANGES_PER_ROW = 2
ASCENT_STEPS = 150
BISECTIONS = 50


@dataclass(frozen=True)
class Group:
    """Rows that are matched together.

    Attributes
    ----------
    products : ndarray of shape (n, n), float64
        Inner products of the features.
    pull : ndarray of shape (n,), float64
        Inner products of the features with the target.
    cluster : ndarray of shape (n,), int64
        0, 1, ...: the cluster of each row, numbered inside the group.
    wanted : ndarray of shape (num_clusters,), float64
        The share that the kept rows of each cluster carry together.
    prior : ndarray of shape (n,), float64
        Share over chance of each row; only ratios inside a cluster matter.
    """

    products: Array
    pull: Array
    cluster: IntArray
    wanted: Array
    prior: Array

    def carried(self, kept: npt.NDArray[np.bool_]) -> Array:
        """Give each row the share that it would carry, at the scale of those that are kept."""
        sums = np.bincount(self.cluster, self.prior * kept, self.wanted.size)
        scale = self.wanted / np.where(sums > 0, sums, 1.0)
        scaled: Array = self.prior * scale[self.cluster]
        return scaled


def exchange(group: Group, kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Exchange rows of the same cluster while the error of the group shrinks.

    The best exchange of each cluster is made in turn, so the cost of one is that of a matrix of
    kept times left-out rows of one cluster.

    Parameters
    ----------
    group : Group
        The rows.
    kept : ndarray of shape (n,), bool
        The first draw.

    Returns
    -------
    ndarray of shape (n,), bool
        As many rows of each cluster.
    """
    kept = kept.copy()
    share = group.carried(kept)
    squares = np.diag(group.products)
    # Half the derivative of the squared error by the share that each row carries.
    slope = group.products @ np.where(kept, share, 0.0) - group.pull
    least_gain = 1e-9 * float(np.square(share[kept]) @ squares[kept])
    members = [np.flatnonzero(group.cluster == k) for k in range(group.wanted.size)]
    tables = [
        _Pairs.between(group.products, share, own[kept[own]], own[~kept[own]]) for own in members
    ]
    active = [pairs.out.size > 0 and pairs.new.size > 0 for pairs in tables]
    can_move = [k for k, moves in enumerate(active) if moves]
    left = EXCHANGES_PER_ROW * kept.size
    while any(active) and left > 0:
        for k in can_move:
            if not active[k]:
                continue
            pairs = tables[k]
            change, i, j = pairs.best(share, squares, slope)
            if change >= -least_gain:
                active[k] = False
                continue
            pairs.swap(group.products, share, i, j)
            out, new = pairs.new[j], pairs.out[i]  # they have changed places
            slope += share[new] * group.products[new] - share[out] * group.products[out]
            kept[out], kept[new] = False, True
            left -= 1
            for other in can_move:
                active[other] = True
    return kept


@dataclass
class _Pairs:
    """The kept and the left-out rows of one cluster, and what each pair has in common.

    Attributes
    ----------
    out, new : ndarray of int64
        Kept rows, which can go out, and left-out rows; an exchange swaps two entries.
    common : ndarray of shape (len(out), len(new)), float64
        Twice the inner product of both rows, times the shares that they carry.
    buffer : ndarray of the same shape, float64
        Room for what each exchange would change.
    """

    out: IntArray
    new: IntArray
    common: Array
    buffer: Array

    @classmethod
    def between(cls, products: Array, share: Array, out: IntArray, new: IntArray) -> "_Pairs":
        """Fill the table."""
        common = 2.0 * (products[np.ix_(out, new)] * share[out, None] * share[new])
        return cls(out, new, common, np.empty_like(common))

    def best(self, share: Array, squares: Array, slope: Array) -> tuple[float, int, int]:
        """Find the exchange that lowers the squared error most, and by how much.

        Of equal ones it is that of the smallest numbers of rows.
        """
        out, new = self.out, self.new
        loss = share[out] * (share[out] * squares[out] - 2.0 * slope[out])
        gain = share[new] * (share[new] * squares[new] + 2.0 * slope[new])
        change = np.add(loss[:, None], gain, out=self.buffer)
        change -= self.common
        lowest = change.min(axis=1)
        rows = np.flatnonzero(lowest == lowest.min())
        i = int(rows[np.argmin(out[rows])])
        columns = np.flatnonzero(change[i] == lowest[i])
        return float(lowest[i]), i, int(columns[np.argmin(new[columns])])

    def swap(self, products: Array, share: Array, i: int, j: int) -> None:
        """Exchange a kept row for a left-out one; only one row and one column change."""
        self.out[i], self.new[j] = self.new[j], self.out[i]
        out, new = self.out, self.new
        self.common[i] = 2.0 * (products[out[i], new] * share[out[i]] * share[new])
        self.common[:, j] = 2.0 * (products[out, new[j]] * share[out] * share[new[j]])


def calibrate(
    group: Group, kept: npt.NDArray[np.bool_], *, ridge: float, least: float, most: float
) -> Array:
    """Choose the shares that kept rows carry.

    They minimise the squared error plus ridge * sum of p_ii (v_i - v0_i)^2, with v0 the share over
    the chance and p_ii the product of a row with itself: features are sketches, and the noise of
    their inner products grows with the norms. `matched` counts the error inside clusters beside
    that of the whole, so its p_ii are (1 + within) norm(x_i)^2. Accelerated projected descent
    (Beck and Teboulle 2009).

    Parameters
    ----------
    group : Group
        The rows.
    kept : ndarray of shape (n,), bool
        Which are kept.
    ridge : float
        Above 0.
    least, most : float
        Bounds of a share; where a cluster's mean share lies outside, that bound is moved to it.

    Returns
    -------
    ndarray of shape (num_kept,), float64
        Each cluster sums to what it must carry.
    """
    rows = np.flatnonzero(kept)
    cluster, wanted = group.cluster[rows], group.wanted
    mean = (wanted / np.maximum(np.bincount(cluster, minlength=wanted.size), 1))[cluster]
    low, high = np.minimum(least, 0.5 * mean), np.maximum(most, mean)
    prior = onto_sums(group.carried(kept)[rows], cluster, wanted, low, high)
    inner = group.products[np.ix_(rows, rows)]
    penalty = ridge * np.diag(inner)
    pull = group.pull[rows] + penalty * prior
    system = inner + np.diag(penalty)
    step = 1.0 / max(float(np.linalg.eigvalsh(system)[-1]), 1e-300)
    shares, ahead, pace = prior, prior, 1.0
    for _ in range(ASCENT_STEPS):
        new = onto_sums(ahead - step * (system @ ahead - pull), cluster, wanted, low, high)
        faster = (1.0 + np.sqrt(1.0 + 4.0 * pace * pace)) / 2.0
        ahead = new + (pace - 1.0) / faster * (new - shares)
        shares, pace = new, faster
    return shares


def onto_sums(values: Array, cluster: IntArray, wanted: Array, low: Array, high: Array) -> Array:
    """Project onto the shares that lie in their bounds and sum to what each cluster must carry.

    The projection is clip(value - shift of the cluster). Its sum over a cluster falls with the
    shift along straight lines that bend where a row meets a bound, so the shift is found exactly:
    all bends are sorted, and the one before the wanted sum gives the line.
    """
    bends = np.concatenate([values - high, values - low])
    owner = np.concatenate([cluster, cluster])
    order = np.lexsort((bends, owner))
    bends = bends[order]
    # Rows between their bounds after each bend: a row joins at value - high, leaves at value - low.
    moving = np.cumsum(np.where(order < values.size, 1, -1))
    fallen = np.concatenate([[0.0], np.cumsum(moving[:-1] * np.diff(bends))])
    ends = np.cumsum(np.bincount(owner, minlength=wanted.size))
    starts = ends - np.bincount(owner, minlength=wanted.size)
    most = np.bincount(cluster, weights=high, minlength=wanted.size)
    filled = ends > starts
    first = np.where(filled, starts, 0)
    level = fallen[first] + most - wanted
    before = np.clip(
        np.searchsorted(fallen, level, side="right") - 1, first, np.maximum(ends - 1, 0)
    )
    shift = bends[before] + (level - fallen[before]) / np.maximum(moving[before], 1)
    found = np.clip(values - shift[cluster], low, high)
    total = np.bincount(cluster, weights=found, minlength=wanted.size)
    scaled: Array = found * (wanted / np.where(total > 0, total, 1.0))[cluster]
    return scaled


def at_least_effective(weights: Array, level: Array, least: float) -> Array:
    """Mix weights with level ones just so far that their effective sample size is `least`.

    Parameters
    ----------
    weights : ndarray of shape (num_kept,)
        With mean 1.
    level : ndarray of shape (num_kept,)
        Weights with mean 1 and a larger effective sample size, such as those by cluster alone.
    least : float
        A share of the rows, in (0, 1].
    """
    if effective_sample_size(weights) >= least:
        return weights

    def mixed(part: float) -> Array:
        return weights + part * (level - weights)

    return mixed(least_mix(lambda part: effective_sample_size(mixed(part)) >= least, BISECTIONS))
