"""The rows that would teach what the user's own rows ask for (LESS, arXiv 2402.04333)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import keep_largest, score_by_targets
from stages.contract.errors import require_one_of
from stages.trajectory.stage import GRADIENTS


@dataclass(kw_only=True)
class Less:
    """Keep the rows whose Adam direction over a warm-up agrees most with the targets' gradients.

    A score is the sum over checkpoints of learning rate times cosine, over the sum of the rates;
    here the rate is constant, so it is the mean cosine. The feature `gradients` holds the folded
    directions of a row (of a target: its gradient) at all checkpoints so that the product of two
    rows is that mean; a row without a gradient has zeros, and the score 0. The paper warms up for
    4 epochs on a twentieth of the rows and keeps 8192 random signs of a gradient; here
    `trajectory.steps`, `.rows` and `.gradient_dim` say both. Weights by multiplicity.

    The dear part is before it: every row goes forth and back through the model at every
    checkpoint, each time two to three times the main pass, which `less_lite` saves.
    Here: time O(N targets dim), dim being checkpoints x gradient_dim; memory: the targets and one
    block.

    Attributes
    ----------
    over : str
        nearest: the largest score over targets (each its own subtask); mean: the mean over all
        (one subtask).
    """

    ratio_of: ClassVar[str] = "candidates"

    over: str = "nearest"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.over", self.over, ("nearest", "mean"))

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return (GRADIENTS, f"targets.{GRADIENTS}")

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        # Not scaled to length 1: each checkpoint's part has its length already.
        scores = score_by_targets(
            candidates, GRADIENTS, self.over, lambda rows: rows.astype(np.float64)
        )
        return keep_largest(candidates, budget, rng, scores)
