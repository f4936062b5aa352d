"""The rows of the largest gradient in the LM head (GraNd, of the head only)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import (
    WITHIN,
    FloatArray,
    blocks_of,
    id_order,
    keep_largest,
    read_score,
)
from stages.contract.errors import require_one_of, require_share


@dataclass(kw_only=True)
class HeadGrand:
    """Keep the largest norm of a row's mean gradient in the LM head (arXiv 2107.07075).

    Weights by multiplicity, within clusters by cluster shares. Memory: a block of sketches.

    Attributes
    ----------
    by : str
        bound: the signal head_grad_norm, mean of norm(p - e_y) norm(h), which is at least the
        norm of the mean; or sketch: the norm of the row's head_sketch, an estimate of the norm
        itself, which needs that feature in the pass.
    drop_hardest : float
        This share of the very largest is passed over, as noise.
    within : str
        all, or clusters (quotas in proportion to their rows).
    """

    ratio_of: ClassVar[str] = "candidates"

    by: str = "bound"
    drop_hardest: float = 0.0
    within: str = "all"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.by", self.by, ("bound", "sketch"))
        require_share("allocate.selector.drop_hardest", self.drop_hardest, zero_allowed=True)
        require_one_of("allocate.selector.within", self.within, WITHIN)

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return ("head_grad_norm",) if self.by == "bound" else ("head_sketch",)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        if self.by == "bound":
            scores = read_score(candidates, "head_grad_norm")
        else:
            scores = sketch_norms(candidates)
        return keep_largest(
            candidates,
            budget,
            rng,
            scores,
            within=self.within,
            drop_hardest=self.drop_hardest,
        )


def sketch_norms(candidates: Candidates) -> FloatArray:
    """Take the norm of every row's head_sketch, block by block."""
    norms = np.empty(candidates.num_rows)
    for block in blocks_of(id_order(candidates)):
        norms[block] = np.linalg.norm(candidates.read_feature("head_sketch", block), axis=1)
    return norms
