"""Rows of every difficulty, but for the very hardest (CCS, arXiv 2210.15809)."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import FloatArray, id_order, multiplicity_weights, read_score
from stages.allocate.quota import smallest_first
from stages.contract.errors import require_at_least, require_share

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Ccs:
    """Drop the hardest, cut the rest into bins of equal width, and draw evenly from the bins.

    Bins are served from the smallest on, each with an equal part of what is left of the budget.
    Weights by multiplicity. Memory: a few numbers per row.

    Attributes
    ----------
    signal : str
        The difficulty: el2n, loss, ... or num_tokens.
    drop_hardest : float
        beta, the share of the largest that is dropped as mislabelled, as far as enough rows are
        left; the log shows them.
    num_bins : int
        Bins of equal width between the least and the largest score that are left.
    """

    ratio_of: ClassVar[str] = "candidates"

    signal: str = "el2n"
    drop_hardest: float = 0.05
    num_bins: int = 50

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_share("allocate.selector.drop_hardest", self.drop_hardest, zero_allowed=True)
        require_at_least("allocate.selector.num_bins", self.num_bins, 1)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        scores = read_score(candidates, self.signal)
        order = id_order(candidates)
        hardest_first = order[np.argsort(-scores[order], kind="stable")]
        dropped = min(int(self.drop_hardest * order.size), order.size - budget.num_rows)
        if dropped:
            log.info(
                "allocate: dropped the %d rows of the largest %s, from %.4g up; hardest row_ids %s",
                dropped,
                self.signal,
                scores[hardest_first[dropped - 1]],
                candidates.row_ids[hardest_first[: min(dropped, 10)]].tolist(),
            )
        left = hardest_first[dropped:]
        bins = equal_width_bins(scores[left], self.num_bins)
        quotas = smallest_first(np.bincount(bins, minlength=self.num_bins), budget.num_rows)
        draws = candidates.draw(rng)[left]
        by_bin = np.lexsort((draws, bins))
        starts = np.searchsorted(bins[by_bin], np.arange(self.num_bins))
        place_in_bin = np.arange(left.size) - starts[bins[by_bin]]
        kept = np.sort(left[by_bin[place_in_bin < quotas[bins[by_bin]]]])
        return kept, multiplicity_weights(candidates, kept)


def equal_width_bins(scores: FloatArray, num_bins: int) -> IntArray:
    """Find the bin of each score, counted from 0; all 0 where the scores are the same."""
    low, high = float(scores.min()), float(scores.max())
    if high <= low:
        return np.zeros(scores.size, np.int64)
    bins = np.floor((scores - low) / (high - low) * num_bins).astype(np.int64)
    return np.minimum(bins, num_bins - 1)
