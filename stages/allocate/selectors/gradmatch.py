"""Few weighted rows whose gradients sum to that of all rows (GradMatch, arXiv 2103.00123)."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import WITHIN, FloatArray, choose_within, read_rows
from stages.allocate.pursuit import match_sum
from stages.contract.errors import require_above_zero, require_at_least, require_one_of

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class GradMatch:
    """Choose by orthogonal matching pursuit towards sum_i m_i g_i, with its weights.

    The pursuit can use about as many rows as the feature has dimensions; for more it runs inside
    clusters. Where it ends early, rows are added at random with the weight of their own
    duplicates (as the authors' code pads with weight 1), which is logged. Weights are in
    original rows and scaled together, never by cluster, since they match a sum. Time
    O(k n dim + k^3) in each group; memory: the rows of one group in float64, and k x k.

    Attributes
    ----------
    within : str
        all, clusters (quotas in proportion to their rows), or auto: all as long as the budget
        is at most the number of dimensions.
    feature : str
        target_row, head_sketch, or another feature of the pass.
    ridge : float
        Weight of norm(x)^2, in units of the mean of norm(g_i)^2; above 0.
    tolerance : float
        The pursuit ends where the residual is this part of the target.
    """

    ratio_of: ClassVar[str] = "candidates"

    within: str = "auto"
    feature: str = "target_row"
    ridge: float = 0.5
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.within", self.within, (*WITHIN, "auto"))
        require_above_zero("allocate.selector.ridge", self.ridge, "0.5 is usual")
        require_at_least("allocate.selector.tolerance", self.tolerance, 0.0)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        within = self.within
        if within == "auto":
            dim = read_rows(candidates, self.feature, np.array([0])).shape[1]
            within = "all" if budget.num_rows <= dim else "clusters"
            log.info("allocate: gradmatch within %s, feature of %d dimensions", within, dim)
        draws = candidates.draw(rng)

        def pick(
            positions: IntArray, quota: int, rng: np.random.Generator
        ) -> tuple[IntArray, FloatArray]:
            rows = read_rows(candidates, self.feature, positions)
            copies = candidates.multiplicity[positions].astype(np.float64)
            target = copies @ rows.astype(np.float64)
            chosen, weights = match_sum(
                rows, target, quota, ridge=self.ridge, tolerance=self.tolerance
            )
            padded = padding(chosen, quota, draws[positions])
            if padded.size:
                log.info("allocate: the pursuit chose %d of %d rows", chosen.size, quota)
            chosen = np.concatenate([chosen, padded])
            return chosen, np.concatenate([weights, copies[padded]])

        return choose_within(candidates, budget, rng, pick, within=within, shares=False)


def padding(chosen: IntArray, quota: int, draws: FloatArray) -> IntArray:
    """List the rows of the smallest draws that are not chosen, as many as the quota lacks."""
    order = np.argsort(draws, kind="stable")
    rest = order[~np.isin(order, chosen)]
    return rest[: quota - chosen.size].astype(np.int64)
