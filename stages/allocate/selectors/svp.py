"""The rows that another, smaller model is least sure of (selection via proxy, arXiv 1906.11829)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import WITHIN, keep_largest
from stages.allocate.selectors.uncertainty import read_uncertainty, signal_of
from stages.contract.errors import require_one_of


@dataclass(kw_only=True)
class Svp:
    """Keep the rows of the largest uncertainty under the reference model.

    Weights by multiplicity, within clusters by cluster shares.

    Attributes
    ----------
    measure : str
        entropy, least_confidence (1 - mean of max_v p), loss or el2n, of the reference model.
    within : str
        all, or clusters (quotas in proportion to their rows).
    """

    ratio_of: ClassVar[str] = "candidates"

    measure: str = "entropy"
    within: str = "all"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        measures = ("entropy", "least_confidence", "loss", "el2n")
        require_one_of("allocate.selector.measure", self.measure, measures)
        require_one_of("allocate.selector.within", self.within, WITHIN)

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return (signal_of(f"reference.{self.measure}"),)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        scores = read_uncertainty(candidates, f"reference.{self.measure}")
        return keep_largest(candidates, budget, rng, scores, within=self.within)
