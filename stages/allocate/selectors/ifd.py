"""The rows whose prompt helps least with the answer (IFD: Cherry, Superfiltering)."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import FloatArray, id_order, multiplicity_weights, read_score
from stages.contract.errors import DataError, require_one_of

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Ifd:
    """Keep the largest instruction-following difficulty below 1.

    IFD compares the loss of an answer after its prompt with that of the answer alone; at 1 or
    above the prompt did not help. Where fewer rows than the budget lie below 1, the smallest of
    the others fill it up, which is logged. Weights by multiplicity.

    Attributes
    ----------
    ratio : str
        loss: loss / answer_alone_loss (Cherry, arXiv 2308.12032); or ppl: the ratio of
        perplexities, exp(loss - answer_alone_loss) (Superfiltering, arXiv 2402.00530).
    """

    ratio_of: ClassVar[str] = "candidates"

    ratio: str = "loss"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.ratio", self.ratio, ("loss", "ppl"))

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return ("loss", "answer_alone_loss")

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        order = id_order(candidates)
        scores = difficulty(
            read_score(candidates, "loss")[order],
            read_score(candidates, "answer_alone_loss")[order],
            self.ratio,
        )
        dropped = scores >= 1.0
        # Below 1 the largest first, then from 1 upwards.
        places = np.lexsort((np.where(dropped, scores, -scores), dropped))[: budget.num_rows]
        filled = int(dropped[places].sum())
        if filled:
            log.warning(
                "allocate: only %d rows have an IFD below 1; %d of the smallest above fill up",
                places.size - filled,
                filled,
            )
        kept = np.sort(order[places])
        return kept, multiplicity_weights(candidates, kept)


def difficulty(with_prompt: FloatArray, alone: FloatArray, ratio: str) -> FloatArray:
    """Compute IFD; two losses of 0 are a ratio of 1.

    Raises
    ------
    DataError
        If a loss is below 0.
    """
    if with_prompt.min() < 0 or alone.min() < 0:
        raise DataError("loss and answer_alone_loss must be >= 0; embed the rows again")
    if ratio == "ppl":
        return np.exp(with_prompt - alone)
    scores = np.full(alone.size, np.inf)
    np.divide(with_prompt, alone, out=scores, where=alone > 0)
    return np.where(with_prompt == alone, 1.0, scores)
