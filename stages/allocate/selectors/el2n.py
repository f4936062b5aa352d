"""The rows that the model gets most wrong, by the norm of the error vector (EL2N)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import WITHIN, keep_largest, read_score
from stages.contract.errors import require_one_of, require_share


@dataclass(kw_only=True)
class El2n:
    """Keep the largest EL2N = mean over positions of norm(p - e_y) (arXiv 2107.07075).

    The paper averages ten networks early in training; here it is one pass of the given model.
    Weights by multiplicity, within clusters by cluster shares.

    Attributes
    ----------
    drop_hardest : float
        This share of the very largest is passed over, as noise.
    within : str
        all, or clusters (quotas in proportion to their rows).
    """

    ratio_of: ClassVar[str] = "candidates"

    drop_hardest: float = 0.0
    within: str = "all"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_share("allocate.selector.drop_hardest", self.drop_hardest, zero_allowed=True)
        require_one_of("allocate.selector.within", self.within, WITHIN)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        return keep_largest(
            candidates,
            budget,
            rng,
            read_score(candidates, "el2n"),
            within=self.within,
            drop_hardest=self.drop_hardest,
        )
