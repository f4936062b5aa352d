"""The rows most like each of the user's own rows, turn by turn (RDS+, arXiv 2503.01807)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import (
    FloatArray,
    blocks_of,
    id_order,
    multiplicity_weights,
    read_rows,
)
from stages.allocate.neighbours import unit_rows


@dataclass(kw_only=True)
class RdsPlus:
    """Let the target rows take turns: each takes the most similar row that is not yet taken.

    The feature is the mean of the hidden states weighted by position, compared by cosine.
    Weights by multiplicity. Each target remembers a little more than its own turns, and the rows
    are read again with twice as much where that was not enough. Time O(N targets dim); memory:
    targets x remembered rows, and one block.

    Attributes
    ----------
    feature : str
        position_mean (the paper's), or another feature of the pass.
    """

    ratio_of: ClassVar[str] = "candidates"

    feature: str = "position_mean"

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return (self.feature, f"targets.{self.feature}")

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        targets = unit_rows(candidates.read_targets(self.feature))
        remembered = 4 * -(-budget.num_rows // targets.shape[0]) + 16
        taken = None
        while taken is None:
            nearest = self._nearest(candidates, targets, remembered)
            taken = take_turns(nearest, budget.num_rows, all_rows=candidates.num_rows)
            remembered *= 2
        kept = np.sort(taken)
        return kept, multiplicity_weights(candidates, kept)

    def _nearest(self, candidates: Candidates, targets: FloatArray, count: int) -> IntArray:
        """List the positions of the `count` most similar rows of each target, the best first."""
        cosines = np.empty((targets.shape[0], 0))
        positions = np.empty((targets.shape[0], 0), np.int64)
        for block in blocks_of(id_order(candidates)):
            rows = unit_rows(read_rows(candidates, self.feature, block))
            cosines = np.concatenate([cosines, targets @ rows.T], axis=1)
            here = np.broadcast_to(block, (targets.shape[0], block.size))
            positions = np.concatenate([positions, here], axis=1)
            # Stable, and blocks come in order of the ids: ties go to the smaller id.
            best = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
            cosines = np.take_along_axis(cosines, best, axis=1)
            positions = np.take_along_axis(positions, best, axis=1)
        return positions


def take_turns(nearest: IntArray, count: int, *, all_rows: int) -> IntArray | None:
    """Let each target in turn take its best row that is left.

    Parameters
    ----------
    nearest : ndarray of shape (num_targets, num_remembered), int64
        Rows of each target, the best first.
    count : int
        How many are taken in all.
    all_rows : int
        Number of rows; a list as long as this never runs dry too early.

    Returns
    -------
    ndarray of shape (count,), int64, or None
        None if a list ran dry.
    """
    lists = [iter(row) for row in nearest.tolist()]
    taken: dict[int, None] = {}
    while True:
        for rows in lists:
            if len(taken) == count:
                return np.array(list(taken), np.int64)
            free = next((row for row in rows if row not in taken), None)
            if free is None:
                assert nearest.shape[1] < all_rows, "every row is taken before the count is met"
                return None
            taken[free] = None
