"""The rows whose gradient points where the user's own rows point: LESS without its training."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import keep_largest, score_by_targets
from stages.allocate.neighbours import unit_rows
from stages.contract.errors import require_one_of


@dataclass(kw_only=True)
class LessLite:
    """Keep the largest cosine with the target rows.

    LESS (arXiv 2402.04333) averages over checkpoints of a warm-up, with Adam's directions; this is
    one pass of the given model, so it has its own name. Weights by multiplicity. Time
    O(N targets dim); memory: the targets and one block.

    Attributes
    ----------
    over : str
        nearest: the largest cosine over targets (each its own subtask); mean: the mean over all
        (one subtask).
    feature : str
        target_row, head_sketch, or another feature of the pass.
    """

    ratio_of: ClassVar[str] = "candidates"

    over: str = "nearest"
    feature: str = "target_row"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.over", self.over, ("nearest", "mean"))

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return (self.feature, f"targets.{self.feature}")

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        scores = score_by_targets(candidates, self.feature, self.over, unit_rows)
        return keep_largest(candidates, budget, rng, scores)
