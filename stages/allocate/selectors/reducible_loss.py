"""The rows on which a reference model is most ahead (RHO-LOSS, arXiv 2206.07137, taken once)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import keep_largest, read_score


@dataclass(kw_only=True)
class ReducibleLoss:
    """Keep the largest loss - reference.loss: not learnt yet, and yet learnable.

    The paper's reference is trained on held-out rows, and rows are ranked again in every batch;
    here it is any second model (one tuned on good data, of the same family, is a stand-in), and one
    ranking. Weights by multiplicity.
    """

    ratio_of: ClassVar[str] = "candidates"

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return ("loss", "reference.loss")

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        scores = read_score(candidates, "loss") - read_score(candidates, "reference.loss")
        return keep_largest(candidates, budget, rng, scores)
