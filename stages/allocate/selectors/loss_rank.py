"""Rows by the rank of their loss (online batch selection, arXiv 1511.06343, taken once)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import FloatArray, id_order, multiplicity_weights, read_score
from stages.allocate.inclusion import race, race_chances
from stages.allocate.weights import to_mean_one
from stages.contract.errors import require_at_least, require_one_of


@dataclass(kw_only=True)
class LossRank:
    """Draw rows without replacement, the top rank `pressure` times as likely as the last.

    P(rank r) is in proportion to exp(-log(pressure) r / N), rank 1 the largest; equal values
    share the mean of their ranks. Draws are nested over budgets.

    Attributes
    ----------
    pressure : float
        s_e of the paper, at least 1; 1 is uniform.
    signal : str
        What is ranked.
    weights : str
        multiplicity (the paper weighs nothing), or inverse: m / pi with pi the approximate
        chance of a row, 1 - exp(-P t), so that the sum over all rows is kept.
    """

    ratio_of: ClassVar[str] = "candidates"

    pressure: float = 100.0
    signal: str = "loss"
    weights: str = "multiplicity"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_at_least("allocate.selector.pressure", self.pressure, 1.0)
        require_one_of("allocate.selector.weights", self.weights, ("multiplicity", "inverse"))

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        order = id_order(candidates)
        shares = rank_shares(read_score(candidates, self.signal)[order], self.pressure)
        found = np.sort(race(shares, candidates.draw(rng)[order])[: budget.num_rows])
        kept = order[found]
        places = np.argsort(kept)
        kept = kept[places]
        if self.weights == "multiplicity":
            return kept, multiplicity_weights(candidates, kept)
        chances = race_chances(shares, budget.num_rows)[found][places]
        return kept, to_mean_one(candidates.multiplicity[kept] / chances)


def rank_shares(scores: FloatArray, pressure: float) -> FloatArray:
    """Give P of each row, summing to 1; the largest score has rank 1, equals the mean rank."""
    _, inverse, counts = np.unique(-scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2.0)[inverse]
    shares = np.exp(-np.log(pressure) * ranks / scores.size)
    normalised: FloatArray = shares / shares.sum()
    return normalised
