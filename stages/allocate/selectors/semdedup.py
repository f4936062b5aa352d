"""Without the rows that another row says already (SemDeDup, arXiv 2303.09540)."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import FloatArray, members_of, read_rows
from stages.allocate.neighbours import most_similar_before, unit_rows
from stages.allocate.weights import cluster_share_weights, shared_mass
from stages.contract.errors import require_one_of

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SemDeDup:
    """Remove the rows that are most similar to an earlier row of their cluster.

    The rows of a cluster stand in an order; a row's redundancy is its largest cosine with an
    earlier one. The budget decides the threshold: the least redundant rows are kept, and the
    implied epsilon (1 - the largest cosine that is kept) is logged. What is removed counts for the
    row that it is most similar to, or for what that one counts for: weights are the original
    rows folded so, scaled by cluster shares (which changes nothing unless a cluster keeps none).
    Time O(sum of n_c^2 dim); memory: the rows of one cluster in float64, and a block of cosines.

    Attributes
    ----------
    order : str
        hard (the least similar to the centre first, so these are kept), easy, or random.
    feature : str
        embedding (as clustered), or a feature of the pass by its name; its direction counts.
    """

    ratio_of: ClassVar[str] = "candidates"

    order: str = "hard"
    feature: str = "embedding"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.order", self.order, ("hard", "easy", "random"))

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        draws = candidates.draw(rng)
        redundancy = np.empty(candidates.num_rows)
        earlier = np.arange(candidates.num_rows)
        for own in members_of(candidates):
            if own.size == 0:
                continue
            rows = unit_rows(read_rows(candidates, self.feature, own))
            order = self._order(rows, draws[own])
            redundancy[own[order]], before = most_similar_before(rows[order])
            earlier[own[order]] = own[order[np.maximum(before, 0)]]
        kept = np.sort(np.lexsort((candidates.row_ids, redundancy))[: budget.num_rows])
        largest = float(redundancy[kept].max())
        if largest > -np.inf:
            log.info("allocate: semdedup kept cosines up to %.4f", largest)
        counts = fold(kept, earlier, candidates.multiplicity)
        clusters = candidates.cluster[kept]
        quotas = np.bincount(clusters, minlength=candidates.num_clusters)
        mass = shared_mass(candidates, quotas, budget.on_empty_quota)
        return kept, cluster_share_weights(clusters, counts, mass)

    def _order(self, rows: FloatArray, draws: FloatArray) -> IntArray:
        """Order the unit rows of a cluster by their cosine with its mean, or by the draws."""
        if self.order == "random":
            return np.argsort(draws, kind="stable")
        similar = rows @ rows.mean(axis=0)
        return np.argsort(similar if self.order == "hard" else -similar, kind="stable")


def fold(kept: IntArray, earlier: IntArray, multiplicity: IntArray) -> FloatArray:
    """Count for each kept row the original rows whose chain of earlier rows first meets it.

    Parameters
    ----------
    kept : ndarray of shape (num_kept,), int64
        Positions, increasing.
    earlier : ndarray of shape (num_rows,), int64
        The most similar earlier row of each; itself where there is none.
    multiplicity : ndarray of shape (num_rows,), int64
        Of each row.

    Returns
    -------
    ndarray of shape (num_kept,), float64
    """
    heir = earlier.copy()
    heir[kept] = kept
    while True:
        further = heir[heir]
        if np.array_equal(further, heir):
            break
        heir = further
    counts = np.bincount(heir, weights=multiplicity, minlength=earlier.size)
    return counts[kept].astype(np.float64)
