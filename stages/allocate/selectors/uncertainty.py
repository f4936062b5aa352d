"""The rows that the model is least sure of (uncertainty sampling, by any signal)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import WITHIN, FloatArray, keep_largest, read_score
from stages.contract.errors import require_one_of


@dataclass(kw_only=True)
class Uncertainty:
    """Keep the rows of the largest (or smallest) signal.

    Weights by multiplicity, within clusters by cluster shares.

    Attributes
    ----------
    signal : str
        entropy (mean over positions, in nats), least_confidence (1 - mean of max_v p), or any
        signal.
    keep : str
        largest or smallest.
    within : str
        all, or clusters (quotas in proportion to their rows).
    """

    ratio_of: ClassVar[str] = "candidates"

    signal: str = "entropy"
    keep: str = "largest"
    within: str = "all"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.keep", self.keep, ("largest", "smallest"))
        require_one_of("allocate.selector.within", self.within, WITHIN)

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return (signal_of(self.signal),)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        scores = read_uncertainty(candidates, self.signal)
        if self.keep == "smallest":
            scores = -scores
        return keep_largest(candidates, budget, rng, scores, within=self.within)


def read_uncertainty(candidates: Candidates, name: str) -> FloatArray:
    """Read a signal, or 1 - max_p for `least_confidence`, of the model or of `reference`."""
    scores = read_score(candidates, signal_of(name))
    return 1.0 - scores if name.endswith("least_confidence") else scores


def signal_of(name: str) -> str:
    """Name the signal that an uncertainty is taken from."""
    return name.replace("least_confidence", "max_p")
