"""Rows by the bound of their gradient's norm, weighted so that the sum stays unbiased."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import read_score
from stages.allocate.inclusion import inclusion_probabilities, systematic
from stages.allocate.weights import to_mean_one
from stages.contract.errors import DataError, require_share

log = logging.getLogger(__name__)

LEAST_GAIN = 1.1


@dataclass(kw_only=True)
class Importance:
    """Draw rows with chances in proportion to a signal, and weigh them by m / chance.

    Katharopoulos and Fleuret 2018 (arXiv 1803.00942), without replacement: chances
    pi = min(1, c m G) that sum to the budget, met exactly by systematic sampling in a random
    order (Madow 1949), weights m / pi before scaling. A row of m duplicates has the chance of m
    rows. Memory: a few numbers per row.

    Attributes
    ----------
    signal : str
        G, at least 0: grad_norm_bound (the paper's), el2n, loss, ...
    uniform_share : float
        This part of the chances is the same for all rows; it bounds the largest weights.
    """

    ratio_of: ClassVar[str] = "candidates"

    signal: str = "grad_norm_bound"
    uniform_share: float = 0.0

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_share("allocate.selector.uniform_share", self.uniform_share, zero_allowed=True)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        order = np.argsort(candidates.draw(rng), kind="stable")
        copies = candidates.multiplicity[order].astype(np.float64)
        norms = read_score(candidates, self.signal)[order]
        if norms.min() < 0:
            raise DataError(
                f"allocate.selector.signal={self.signal} has values below 0 (least "
                f"{norms.min():.4g}), and chances must be >= 0; choose another signal"
            )
        report_gain(self.signal, gain(norms, copies))
        mixed = copies.copy()
        if norms.any():
            mixed = (1.0 - self.uniform_share) * copies * norms / (copies @ norms)
            mixed += self.uniform_share * copies / copies.sum()
        chances = inclusion_probabilities(mixed, budget.num_rows)
        found = systematic(chances, rng.spawn(1)[0].random())
        kept, raw = order[found], copies[found] / chances[found]
        places = np.argsort(kept)
        return kept[places], to_mean_one(raw[places])


def gain(norms: npt.NDArray[np.float64], copies: npt.NDArray[np.float64]) -> float:
    """Give tau, the multiple of the batch size that these chances are worth, as the paper does.

    tau = (1 - norm(g - u)^2 / norm(g)^2)^(-1/2) with g the chances and u = 1 / N, over the
    original rows, which is the root mean square of the norms over their mean.
    """
    mean = float(copies @ norms / copies.sum())
    square = float(copies @ np.square(norms) / copies.sum())
    return float(np.sqrt(square)) / mean if mean > 0 else 1.0


def report_gain(signal: str, tau: float) -> None:
    """Say the gain, and warn where it is not worth the spread of the weights."""
    log.info("allocate: importance by %s, gain tau=%.3f", signal, tau)
    if tau < LEAST_GAIN:
        log.warning(
            "allocate: importance by %s has gain tau=%.3f < %s; uniform is as good",
            signal,
            tau,
            LEAST_GAIN,
        )
