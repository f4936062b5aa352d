"""A uniform random subset: the baseline that every other selection stands beside."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.weights import to_mean_one


@dataclass(kw_only=True)
class Uniform:
    """Keep rows at random, every row as likely as every other."""

    ratio_of: ClassVar[str] = "candidates"

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows; a row weighs as its exact duplicates together."""
        # By the smallest numbers, so that a smaller budget keeps a part of a larger one's rows.
        order = np.argsort(candidates.draw(rng), kind="stable")
        kept = np.sort(order[: budget.num_rows])
        return kept, to_mean_one(candidates.multiplicity[kept].astype(np.float64))
