"""The best rows of a list, without those like a better one (DEITA's filter, arXiv 2312.15685)."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import (
    FloatArray,
    id_order,
    multiplicity_weights,
    read_rows,
    read_score,
)
from stages.allocate.neighbours import unit_rows
from stages.contract.errors import require

log = logging.getLogger(__name__)

# Rows are read so many at a time, since rows in order of a score are all over the parts.
ROWS_READ = 16384
BLOCK = 512


@dataclass(kw_only=True)
class DeitaRepr:
    """Go down the rows by score; accept one unless its cosine with an accepted one is too large.

    DEITA's score comes from two fine-tuned judges; here it is any signal. Where the list ends
    before the budget is met, the refused rows fill up in order of the list, which is logged.
    Weights by multiplicity. Time O(N k dim); memory: the accepted rows in float64, and
    16,384 more.

    Attributes
    ----------
    signal : str
        The score, largest first: loss, el2n, ..., num_tokens, or random.
    threshold : float
        tau, in (0, 1].
    feature : str
        embedding (as clustered), or a feature of the pass by its name; its direction counts.
    """

    ratio_of: ClassVar[str] = "candidates"

    signal: str = "loss"
    threshold: float = 0.9
    feature: str = "embedding"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require(
            0.0 < self.threshold <= 1.0,
            f"allocate.selector.threshold={self.threshold} must lie in (0, 1]; 0.9 is the paper's",
        )

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return (self.feature, *(() if self.signal == "random" else (self.signal,)))

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        random = self.signal == "random"
        scores = candidates.draw(rng) if random else read_score(candidates, self.signal)
        by_id = id_order(candidates)
        order = by_id[np.argsort(-scores[by_id], kind="stable")]
        accepted = self._accept(candidates, order, budget.num_rows)
        if accepted.size < budget.num_rows:
            refused = order[~np.isin(order, accepted)]
            log.warning(
                "allocate: %d rows are less similar than allocate.selector.threshold=%s; "
                "%d others fill up",
                accepted.size,
                self.threshold,
                budget.num_rows - accepted.size,
            )
            filled = refused[: budget.num_rows - accepted.size]
            accepted = np.concatenate([accepted, filled])
        kept = np.sort(accepted)
        return kept, multiplicity_weights(candidates, kept)

    def _accept(self, candidates: Candidates, order: IntArray, count: int) -> IntArray:
        """Go down the list, reading and comparing it in blocks."""
        chosen: list[IntArray] = []
        accepted: list[FloatArray] = []
        missing = count
        for start in range(0, order.size, ROWS_READ):
            listed = order[start : start + ROWS_READ]
            by_id = np.argsort(candidates.row_ids[listed])
            read = unit_rows(read_rows(candidates, self.feature, listed[by_id]))
            rows = np.empty_like(read)
            rows[by_id] = read
            for low in range(0, listed.size, BLOCK):
                block = rows[low : low + BLOCK]
                places = accept_block(block, accepted, self.threshold)[:missing]
                accepted.append(block[places])
                chosen.append(listed[low + places])
                missing -= places.size
                if missing == 0:
                    return np.concatenate(chosen)
        return np.concatenate(chosen)


def accept_block(rows: FloatArray, accepted: list[FloatArray], threshold: float) -> IntArray:
    """Say which unit rows of a block are accepted, one after the other.

    A row is compared with the accepted ones only; DEITA's own code also counts the refused rows
    of the same batch.
    """
    largest = np.full(rows.shape[0], -np.inf)
    for part in accepted:
        if part.shape[0]:
            largest = np.maximum(largest, (rows @ part.T).max(axis=1))
    similar = rows @ rows.T
    found = []
    for row in range(rows.shape[0]):
        if largest[row] <= threshold:
            found.append(row)
            largest = np.maximum(largest, similar[row])
    return np.array(found, np.int64)
