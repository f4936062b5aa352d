"""Another selector, over the rows that can still be learnt: loss above that of a reference."""

import logging
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray, Selector, subset
from stages.allocate.groups import FloatArray, id_order, read_score
from stages.allocate.needs import needs_of
from stages.allocate.selectors.matched import Matched
from stages.allocate.selectors.stratified import Stratified
from stages.allocate.selectors.uniform import Uniform
from stages.contract.errors import require_one_of, require_share

log = logging.getLogger(__name__)

INNER: dict[str, type[Selector]] = {
    "matched": Matched,
    "stratified": Stratified,
    "uniform": Uniform,
}


@dataclass(kw_only=True)
class Learnable:
    """Let another selector choose among the rows of the largest loss - reference.loss.

    Rows below are no candidates, so the mean that is kept is that of the learnable rows, and
    weights undo the choice among them only. Weights, time and memory are those of the inner
    selector. It runs with its defaults.

    Attributes
    ----------
    inner : str
        matched, stratified or uniform.
    share : float
        Of the rows, those of the largest reducible loss; more where the budget asks for more.
    """

    ratio_of: ClassVar[str] = "candidates"

    inner: str = "matched"
    share: float = 0.5

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.inner", self.inner, INNER)
        require_share("allocate.selector.share", self.share)

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return ("loss", "reference.loss", *needs_of(INNER[self.inner]()))

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        scores = read_score(candidates, "loss") - read_score(candidates, "reference.loss")
        count = max(budget.num_rows, math.ceil(self.share * candidates.num_rows))
        learnable = largest(candidates, scores, count)
        log.info(
            "allocate: %d of %d rows are learnable, loss - reference.loss >= %.4g",
            count,
            candidates.num_rows,
            scores[learnable].min(),
        )
        kept, weights = INNER[self.inner]().select(subset(candidates, learnable), budget, rng)
        return learnable[kept], weights


def largest(candidates: Candidates, scores: FloatArray, count: int) -> IntArray:
    """Give the increasing positions of the largest scores; ties go to the smaller row id."""
    order = id_order(candidates)
    return np.sort(order[np.argsort(-scores[order], kind="stable")[:count]])
