"""How good a selection is, without training: what its weighted rows lose of the full gradient.

All figures are taken on the judge sketch, whose random maps no selector has seen, so that a
selector cannot fit its noise. With g_i the judge sketch of row i, m_i its multiplicity, the full
gradient is G = sum m_i g_i / sum m_i, and the error of kept rows with weights w_i is

    || sum w_i g_i / sum w_i - G || / || G ||

once over the whole epoch, once per cluster (each against its own full mean), and once per
synchronized step, which is what an optimizer sees. Beside it stand random draws of as many rows,
weighted by multiplicity, through the same sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Candidates, IntArray
from stages.allocate.weights import to_mean_one

BLOCK_ROWS = 8192
# Of the coverage radius, which compares rows with rows: so many of each are enough.
COVERAGE_ROWS = 4096

Array = npt.NDArray[np.float64]
ReadJudge = Callable[[IntArray], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Weighted:
    """A weighting of all candidates; most weights are zero.

    Attributes
    ----------
    rows : ndarray of shape (num_kept,), int64
        Increasing positions.
    weights : ndarray of shape (num_kept,), float64
        Above 0.
    """

    rows: IntArray
    weights: Array


def random_draws(
    candidates: Candidates, num_rows: int, rng: np.random.Generator, count: int
) -> list[Weighted]:
    """Draw random selections of the same size, weighted by multiplicity."""
    draws = []
    for _ in range(count):
        rows = np.sort(rng.choice(candidates.num_rows, num_rows, replace=False)).astype(np.int64)
        mass = candidates.multiplicity[rows].astype(np.float64)
        draws.append(Weighted(rows, to_mean_one(mass)))
    return draws


def cluster_sums(
    candidates: Candidates, read_judge: ReadJudge, selections: Sequence[Weighted]
) -> tuple[Array, Array]:
    """Sum the judge sketch per cluster under several weightings, in one pass by blocks.

    Parameters
    ----------
    candidates : Candidates
        All rows.
    read_judge : callable
        increasing positions -> ndarray of shape (len(positions), dim), float32.
    selections : sequence of Weighted
        The weightings.

    Returns
    -------
    sums : ndarray of shape (len(selections) + 1, num_clusters, dim), float64
        sum of w_i g_i over each cluster; the first one is that of all rows by multiplicity.
    masses : ndarray of shape (len(selections) + 1, num_clusters), float64
        sum of w_i over each cluster.
    """
    num_rows, num_clusters = candidates.num_rows, candidates.num_clusters
    whole = Weighted(np.arange(num_rows), candidates.multiplicity.astype(np.float64))
    weightings = [whole, *selections]
    sums: Array | None = None
    masses = np.zeros((len(weightings), num_clusters))
    for start in range(0, num_rows, BLOCK_ROWS):
        places = np.arange(start, min(start + BLOCK_ROWS, num_rows))
        judge = read_judge(places).astype(np.float64)
        if sums is None:
            sums = np.zeros((len(weightings), num_clusters, judge.shape[1]))
        for which, weighting in enumerate(weightings):
            first, last = np.searchsorted(weighting.rows, [start, places[-1] + 1])
            rows, weights = weighting.rows[first:last], weighting.weights[first:last]
            clusters = candidates.cluster[rows]
            masses[which] += np.bincount(clusters, weights=weights, minlength=num_clusters)
            order = np.argsort(clusters, kind="stable")
            groups, starts = np.unique(clusters[order], return_index=True)
            if groups.size:
                weighted = judge[rows[order] - start] * weights[order, None]
                sums[which, groups] += np.add.reduceat(weighted, starts, axis=0)
    assert sums is not None
    return sums, masses


def relative_errors(sums: Array, masses: Array) -> tuple[Array, Array]:
    """Compare each weighting with the first, over the whole and per cluster.

    Returns
    -------
    whole : ndarray of shape (num_weightings - 1,), float64
    per_cluster : ndarray of shape (num_weightings - 1, num_clusters), float64
        NaN for a cluster of which nothing is kept.
    """
    means = sums.sum(axis=1) / masses.sum(axis=1)[:, None]
    whole = _relative(means[1:], means[0])
    inside = np.divide(
        sums, masses[:, :, None], out=np.full_like(sums, np.nan), where=masses[:, :, None] > 0
    )
    return whole, _relative(inside[1:], inside[0])


def _relative(found: Array, wanted: Array) -> Array:
    norms = np.linalg.norm(wanted, axis=-1)
    gaps: Array = np.linalg.norm(found - wanted, axis=-1)
    return gaps / np.where(norms > 0, norms, 1.0)


def step_errors(
    plan: IntArray, selection: Weighted, read_judge: ReadJudge, full_mean: Array
) -> Array:
    """Compare the gradient of synchronized steps with the full one.

    Parameters
    ----------
    plan : ndarray of shape (num_steps, ...), int64
        Positions into the kept rows of each step.
    selection : Weighted
        The kept rows, with weights of mean 1; a step divides by its number of rows, as the
        objective "sample" does.
    read_judge : callable
        increasing positions -> judge sketches.
    full_mean : ndarray of shape (dim,), float64
        G.

    Returns
    -------
    ndarray of shape (num_steps,), float64
    """
    errors = []
    for step in plan.reshape(plan.shape[0], -1):
        kept = np.sort(step)
        judge = read_judge(selection.rows[kept]).astype(np.float64)
        errors.append(selection.weights[kept] @ judge / kept.size)
    return _relative(np.stack(errors), full_mean)


def coverage_radius(candidates: Candidates, kept: IntArray, rng: np.random.Generator) -> Array:
    """Measure how far rows are from the nearest kept one: the mean and the largest distance.

    Distances are those of the clustering. On sets of more than a few thousand rows both sides
    are random samples of that size, and the figures are estimates.

    Returns
    -------
    ndarray of shape (2,), float64
        Mean and largest distance.
    """
    rows = np.arange(candidates.num_rows)
    rows, kept = (
        np.sort(rng.choice(x, COVERAGE_ROWS, replace=False)) if x.size > COVERAGE_ROWS else x
        for x in (rows, kept)
    )
    near = candidates.read_embeddings(kept).astype(np.float64)
    nearest = []
    for start in range(0, rows.size, 512):
        block = candidates.read_embeddings(rows[start : start + 512]).astype(np.float64)
        squares = np.square(block).sum(1)[:, None] - 2 * block @ near.T + np.square(near).sum(1)
        nearest.append(np.sqrt(np.maximum(squares, 0.0).min(axis=1)))
    gaps = np.concatenate(nearest)
    return np.array([gaps.mean(), gaps.max()])


def mix_shift(candidates: Candidates, selection: Weighted) -> dict[str, float]:
    """Measure how far kept rows, by weight, move the mix of sources and of lengths.

    Returns
    -------
    dict of str to float
        `sources` and `lengths`: total variation distance, in [0, 1], between the shares before
        and after; lengths in ten bins of equal mass.
    """
    mass = candidates.multiplicity.astype(np.float64)
    edges = np.quantile(candidates.num_tokens, np.linspace(0, 1, 11)[1:-1])
    bins = np.searchsorted(edges, candidates.num_tokens, side="right")
    return {
        "sources": _total_variation(candidates.source, mass, selection),
        "lengths": _total_variation(bins.astype(np.int32), mass, selection),
    }


def _total_variation(groups: npt.NDArray[np.int32], mass: Array, selection: Weighted) -> float:
    size = int(groups.max()) + 1
    before = np.bincount(groups, weights=mass, minlength=size)
    after = np.bincount(groups[selection.rows], weights=selection.weights, minlength=size)
    return float(0.5 * np.abs(before / before.sum() - after / after.sum()).sum())
