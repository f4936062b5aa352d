"""Weighted rows of each cluster that make up its mean gradient (TAGCOS, arXiv 2407.15235)."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import FloatArray, choose_within, read_rows
from stages.allocate.neighbours import unit_rows
from stages.allocate.pursuit import match_sum
from stages.contract.errors import require_above_zero, require_at_least

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Tagcos:
    """Match each cluster's mean of unit gradients by orthogonal matching pursuit.

    The paper's features are projected Adam directions over checkpoints; here they are one pass's
    feature, scaled to length 1. Where a pursuit ends early it starts again on the rows that are
    left (as the paper does); where none of those points towards the mean, those that point away
    least fill up with the least weight so far, which is logged. The paper drops the
    coefficients; here they are the weights, scaled to the cluster's share of the original rows.
    Multiplicity counts in the mean and in the shares. Quotas are in proportion to the clusters'
    rows. Time O(k n dim + k^3) in each cluster; memory: its rows in float64, and k x k.

    Attributes
    ----------
    feature : str
        target_row, head_sketch, or another feature of the pass.
    ridge : float
        Weight of norm(x)^2, above 0; the paper's is 1.
    tolerance : float
        A pursuit ends where the residual is this part of the mean.
    """

    ratio_of: ClassVar[str] = "candidates"

    feature: str = "target_row"
    ridge: float = 1.0
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_above_zero("allocate.selector.ridge", self.ridge, "the paper's is 1.0")
        require_at_least("allocate.selector.tolerance", self.tolerance, 0.0)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""

        def pick(
            positions: IntArray, quota: int, rng: np.random.Generator
        ) -> tuple[IntArray, FloatArray]:
            rows = unit_rows(read_rows(candidates, self.feature, positions))
            copies = candidates.multiplicity[positions].astype(np.float64)
            target = copies @ rows / copies.sum()
            return pursue(rows, target, quota, ridge=self.ridge, tolerance=self.tolerance)

        return choose_within(candidates, budget, rng, pick, within="clusters")


def pursue(
    rows: FloatArray, target: FloatArray, quota: int, *, ridge: float, tolerance: float
) -> tuple[IntArray, FloatArray]:
    """Pursue the target again and again on the rows that are left, until the quota is met."""
    left = np.arange(rows.shape[0])
    chosen: list[IntArray] = []
    weights: list[FloatArray] = []
    missing = quota
    while missing:
        found, coefficients = match_sum(
            rows[left], target, missing, ridge=ridge, tolerance=tolerance
        )
        if found.size == 0:
            least = min((float(part.min()) for part in weights), default=1.0)
            found = np.argsort(-(rows[left] @ target), kind="stable")[:missing]
            coefficients = np.full(found.size, least)
            log.info("allocate: %d of %d rows fill up, for no row points on", missing, quota)
        chosen.append(left[found])
        weights.append(coefficients)
        left = np.delete(left, found)
        missing -= found.size
    return np.concatenate(chosen), np.concatenate(weights)
