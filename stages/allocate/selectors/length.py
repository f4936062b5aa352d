"""The longest rows: the baseline that costs nothing (arXiv 2402.04833)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import keep_largest, read_score
from stages.contract.errors import require_one_of

SIGNAL_OF = {"row": "num_tokens", "answer": "num_targets"}


@dataclass(kw_only=True)
class Length:
    """Keep the longest rows first; ties go to the smaller row id.

    Many learned scores follow length, so they have to beat this. Weights by multiplicity.

    Attributes
    ----------
    of : str
        row (all its tokens), or answer (the tokens that are trained, signal `num_targets`).
    """

    ratio_of: ClassVar[str] = "candidates"

    of: str = "row"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.of", self.of, SIGNAL_OF)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        return keep_largest(candidates, budget, rng, read_score(candidates, SIGNAL_OF[self.of]))
