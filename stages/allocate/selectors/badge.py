"""Rows with large and different gradients (BADGE, arXiv 1906.03671)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.greedy import squared_seeding
from stages.allocate.groups import WITHIN, FloatArray, choose_within, read_rows
from stages.contract.errors import require_one_of


@dataclass(kw_only=True)
class Badge:
    """Choose by k-means++ seeding on raw gradient features: from the largest norm on.

    The paper takes the gradient for the model's own guess; here it is that for the right token,
    which an instruction set knows. The features are not normalised: their norm carries the
    uncertainty. Within clusters the weights are cluster shares, over all rows multiplicities.
    Time O(n k dim) in each group; memory: the rows of one group, in float64.

    Attributes
    ----------
    within : str
        clusters (quotas in proportion to their rows) or all.
    feature : str
        target_row, head_sketch, or another feature of the pass.
    """

    ratio_of: ClassVar[str] = "candidates"

    within: str = "clusters"
    feature: str = "target_row"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.within", self.within, WITHIN)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""

        def pick(
            positions: IntArray, quota: int, rng: np.random.Generator
        ) -> tuple[IntArray, FloatArray]:
            rows = read_rows(candidates, self.feature, positions)
            first = int(np.argmax(np.linalg.norm(rows, axis=1)))
            chosen = squared_seeding(rows, quota, first=first, uniforms=rng.random(quota))
            return chosen, candidates.multiplicity[positions[chosen]].astype(np.float64)

        return choose_within(candidates, budget, rng, pick, within=self.within)
