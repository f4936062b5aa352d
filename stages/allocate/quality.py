"""How good a selection is, without training: what its weighted rows lose of the full gradient.

All figures are taken on the judge sketch, whose random maps no selector has seen, so that a
selector cannot fit its noise. With g_i the judge sketch of row i, m_i its multiplicity, the full
gradient is G = sum m_i g_i / sum m_i, and the error of kept rows with weights w_i is

    || sum w_i g_i / sum w_i - G || / || G ||

once over the whole epoch, once per cluster (each against its own full mean), and once per
synchronized step, which is what an optimizer sees. For the objectives token and rank m_i and w_i
are what `objective.py` makes of them. Beside it stand random draws of as many rows,
weighted by multiplicity, through the same sums. Features are read a fixed number of times, for
however many selections and steps: `judge_sums` reads each judge sketch once, `coverage_radii` an
embedding at most twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import TOKENS, Candidates, IntArray
from stages.allocate.neighbours import BLOCK, squared_distances
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


def judge_sums(
    candidates: Candidates,
    read_judge: ReadJudge,
    selections: Sequence[Weighted],
    steps: Sequence[IntArray],
) -> tuple[Array, Array, list[Array]]:
    """Sum the judge sketch per cluster and per step under several weightings, in one pass.

    Every row is read once, by blocks of increasing positions. Memory beside a block is that of
    the sums.

    Parameters
    ----------
    candidates : Candidates
        All rows.
    read_judge : callable
        increasing positions -> ndarray of shape (len(positions), dim), float32.
    selections : sequence of Weighted
        The weightings.
    steps : sequence of ndarray of shape (num_steps, rows_per_step), int64
        For each selection, the positions into its rows that some steps hold; none twice.

    Returns
    -------
    sums : ndarray of shape (len(selections) + 1, num_clusters, dim), float64
        sum of w_i g_i over each cluster; the first one is that of all rows by multiplicity.
    masses : ndarray of shape (len(selections) + 1, num_clusters), float64
        sum of w_i over each cluster.
    step_sums : list of ndarray of shape (num_steps, dim), float64
        sum of w_i g_i over each step, for each selection. Where multiplicities count tokens, whose
        steps divide by their own weights, these are scaled to mean 1 in each step.
    """
    num_rows, num_clusters = candidates.num_rows, candidates.num_clusters
    whole = Weighted(np.arange(num_rows), candidates.multiplicity.astype(np.float64))
    weightings = [whole, *selections]
    masses = np.zeros((len(weightings), num_clusters))
    for which, each in enumerate(weightings):
        masses[which] = np.bincount(candidates.cluster[each.rows], each.weights, num_clusters)
    step_of = [_step_of_row(*pair) for pair in zip(selections, steps, strict=True)]
    dim = read_judge(np.arange(0)).shape[1]
    sums = np.zeros((len(weightings), num_clusters, dim))
    step_sums = [np.zeros((len(held), dim)) for held in steps]
    for start in range(0, num_rows, BLOCK_ROWS):
        places = np.arange(start, min(start + BLOCK_ROWS, num_rows))
        judge = read_judge(places).astype(np.float64)
        weights = np.zeros((len(weightings), places.size))
        for which, each in enumerate(weightings):
            first, last = np.searchsorted(each.rows, [start, start + places.size])
            here = each.rows[first:last] - start
            weights[which, here] = each.weights[first:last]
            if which > 0:
                step = np.full(places.size, -1)
                step[here] = step_of[which - 1][first:last]
                _add_by_group(step_sums[which - 1][None], step, weights[None, which], judge)
        _add_by_group(sums, candidates.cluster[places], weights, judge)
    if candidates.counts == TOKENS:
        for each, held, found in zip(selections, steps, step_sums, strict=True):
            found /= each.weights[held].mean(axis=1, keepdims=True)
    return sums, masses, step_sums


def _step_of_row(selection: Weighted, steps: IntArray) -> npt.NDArray[np.int32]:
    """Name the step that holds each kept row, -1 where none of the given steps does."""
    step_of = np.full(selection.rows.size, -1, np.int32)
    step_of[steps] = np.arange(len(steps), dtype=np.int32)[:, None]
    return step_of


def _add_by_group(
    sums: Array, groups: npt.NDArray[np.signedinteger], weights: Array, values: Array
) -> None:
    """Add the weighted sum of the rows of each group, leaving out those of group -1.

    Parameters
    ----------
    sums : ndarray of shape (num_weightings, num_groups, dim), float64
        Added to in place.
    groups : ndarray of shape (num_rows,), int
        Group of each row.
    weights : ndarray of shape (num_weightings, num_rows), float64
        Of each row in each weighting.
    values : ndarray of shape (num_rows, dim), float64
        What is summed.
    """
    order = np.argsort(groups, kind="stable")
    found, starts = np.unique(groups[order], return_index=True)
    for group, inside in zip(found, np.split(order, starts[1:]), strict=True):
        if group >= 0:
            sums[:, group] += weights[:, inside] @ values[inside]


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


def step_errors(step_sums: Array, rows_per_step: int, full_mean: Array) -> Array:
    """Compare the gradient of synchronized steps with the full one.

    Parameters
    ----------
    step_sums : ndarray of shape (num_steps, dim), float64
        sum of w_i g_i over each step, with weights of mean 1, as `judge_sums` gives it.
    rows_per_step : int
        M.
    full_mean : ndarray of shape (dim,), float64
        G.

    Returns
    -------
    ndarray of shape (num_steps,), float64
    """
    return _relative(step_sums / rows_per_step, full_mean)


def coverage_sample(rows: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw as many rows as `coverage_radii` should compare: all, or `COVERAGE_ROWS` of them."""
    if rows.size <= COVERAGE_ROWS:
        return rows
    return np.sort(rng.choice(rows, COVERAGE_ROWS, replace=False))


def coverage_radii(candidates: Candidates, rows: IntArray, kept: Sequence[IntArray]) -> Array:
    """Measure how far rows are from the nearest kept one: the mean and the largest distance.

    Distances are those of the clustering. The rows are read once and held; then what any of the
    selections kept is read once, by blocks.

    Parameters
    ----------
    candidates : Candidates
        All rows.
    rows : ndarray of shape (num_rows,), int64
        Increasing positions whose distances are taken.
    kept : sequence of ndarray, int64
        Increasing positions that each selection kept.

    Returns
    -------
    ndarray of shape (len(kept), 2), float64
        Mean and largest distance of each selection.
    """
    points = candidates.read_embeddings(rows).astype(np.float64)
    union = np.unique(np.concatenate(kept))
    squares = np.full((len(kept), rows.size), np.inf)
    for start in range(0, union.size, BLOCK_ROWS):
        places = union[start : start + BLOCK_ROWS]
        near = candidates.read_embeddings(places).astype(np.float64)
        for first in range(0, places.size, BLOCK):
            piece = places[first : first + BLOCK]
            to_piece = squared_distances(near[first : first + BLOCK], points)
            for which, own in enumerate(kept):
                inside = np.isin(piece, own, assume_unique=True)
                nearest = to_piece[inside].min(axis=0, initial=np.inf)
                squares[which] = np.minimum(squares[which], nearest)
    gaps = np.sqrt(squares)
    return np.stack([gaps.mean(axis=1), gaps.max(axis=1)], axis=1)


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
