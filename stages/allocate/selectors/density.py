"""Rows from where few others are: inverse propensity by a kernel density (arXiv 2402.09668)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import FloatArray, blocks_of, id_order, read_rows
from stages.allocate.inclusion import inclusion_probabilities, systematic
from stages.allocate.neighbours import squared_distances
from stages.allocate.weights import to_mean_one
from stages.contract.errors import require_above_zero, require_at_least, require_one_of


@dataclass(kw_only=True)
class Density:
    """Draw rows without replacement with chances in proportion to 1 / density^alpha.

    The density of a row x is the mean of exp(-norm(x - y)^2 / (2 h^2)) over all rows y, each
    counted as often as it has duplicates. A row counts itself by its own share; the mean over the
    others is estimated on at most `reference_rows` of them, drawn at random. h is `bandwidth` times
    the median distance between these. Systematic sampling in a random order meets the chances
    exactly. Time O(N reference_rows dim); memory: the reference rows, their distances and one
    block.

    Attributes
    ----------
    alpha : float
        0 is uniform; 1 makes the kept rows even over the space.
    bandwidth : float
        Width of the kernel; above 0.
    reference_rows : int
        Rows that the density is measured by; with all rows it is exact.
    feature : str
        embedding (as clustered), or a feature of the pass by its name.
    weights : str
        multiplicity (the paper weighs nothing: evenness is what it wants), or inverse: m / pi,
        which undoes it.
    """

    ratio_of: ClassVar[str] = "candidates"

    alpha: float = 1.0
    bandwidth: float = 0.5
    reference_rows: int = 2000
    feature: str = "embedding"
    weights: str = "multiplicity"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_at_least("allocate.selector.alpha", self.alpha, 0.0)
        require_above_zero("allocate.selector.bandwidth", self.bandwidth, "0.5 is half the median")
        require_at_least("allocate.selector.reference_rows", self.reference_rows, 1)
        require_one_of("allocate.selector.weights", self.weights, ("multiplicity", "inverse"))

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        by_id = id_order(candidates)
        draws = candidates.draw(rng)[by_id]
        order = by_id[np.argsort(draws, kind="stable")]
        references = by_id[np.sort(np.argsort(draws, kind="stable")[: self.reference_rows])]
        densities = self._densities(candidates, references)
        # Logarithms, since a large alpha makes powers that no number can hold.
        spread = -self.alpha * np.log(densities[order])
        chances = inclusion_probabilities(np.exp(spread - spread.max()), budget.num_rows)
        start_rng = rng.spawn(1)[0]
        found = systematic(chances, start_rng.random())
        kept = order[found]
        raw = candidates.multiplicity[kept].astype(np.float64)
        if self.weights == "inverse":
            raw = raw / chances[found]
        places = np.argsort(kept)
        return kept[places], to_mean_one(raw[places])

    def _densities(self, candidates: Candidates, references: IntArray) -> FloatArray:
        """Measure every row by itself and by the reference rows, which stand for all others."""
        points = read_rows(candidates, self.feature, references).astype(np.float64)
        copies = candidates.multiplicity.astype(np.float64)
        width = self.bandwidth * median_distance(points)
        own = np.full(candidates.num_rows, -1)
        own[references] = np.arange(references.size)
        found = np.empty(candidates.num_rows)
        for block in blocks_of(id_order(candidates)):
            rows = read_rows(candidates, self.feature, block).astype(np.float64)
            others = others_density(rows, points, copies[references], width, own[block])
            share = copies[block] / copies.sum()
            found[block] = share + (1.0 - share) * others
        return found


def median_distance(points: FloatArray) -> float:
    """Give the median distance between two different rows; 1 where it would be 0."""
    pairs = squared_distances(points, points)[np.triu_indices(points.shape[0], 1)]
    median = float(np.sqrt(np.median(pairs))) if pairs.size else 0.0
    return median if median > 0 else 1.0


def others_density(
    rows: FloatArray, points: FloatArray, copies: FloatArray, width: float, own: IntArray
) -> FloatArray:
    """Give the Gaussian kernel's mean over the points that are other rows.

    Parameters
    ----------
    rows : ndarray of shape (num_rows, dim)
        Where it is taken.
    points : ndarray of shape (num_points, dim)
        Reference rows.
    copies : ndarray of shape (num_points,)
        How often each point counts.
    width : float
        h, above 0.
    own : ndarray of shape (num_rows,), int64
        The point that each row itself is, which does not count; -1 where it is none.

    Returns
    -------
    ndarray of shape (num_rows,), float64
        0 where there is no other point.
    """
    kernel = np.exp(-squared_distances(rows, points) / (2.0 * width**2))
    itself = np.flatnonzero(own >= 0)
    kernel[itself, own[itself]] = 0.0
    mass = np.full(own.size, copies.sum())
    mass[itself] -= copies[own[itself]]
    means: FloatArray = kernel @ copies / np.where(mass > 0, mass, 1.0)
    return means
