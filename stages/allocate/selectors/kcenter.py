"""A cover: no row is far from a kept one (k-center; as a core-set in arXiv 1708.00489)."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import WITHIN, FloatArray, choose_within, read_rows
from stages.allocate.keep import farthest_first
from stages.allocate.neighbours import nearest_rows
from stages.contract.errors import require, require_at_least, require_one_of

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class KCenter:
    """Add the row that is farthest from all kept ones, from the row nearest to its centre on.

    Within clusters the weights are cluster shares, over all rows multiplicities. Time
    O(n k dim) in each group, and O(n^2 dim) where outliers are cut; memory: the rows of one
    group, in float64.

    Attributes
    ----------
    within : str
        clusters (quotas in proportion to their rows) or all.
    feature : str
        embedding (as clustered), or a feature of the pass by its name.
    outliers : float
        This share of a group, the rows farthest from their `neighbours`-th neighbour, is passed
        over first, since the cover would take them all; as far as enough rows are left.
    neighbours : int
        k of that distance.
    """

    ratio_of: ClassVar[str] = "candidates"

    within: str = "clusters"
    feature: str = "embedding"
    outliers: float = 0.01
    neighbours: int = 10

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.within", self.within, WITHIN)
        require(
            0.0 <= self.outliers < 1.0,
            f"allocate.selector.outliers={self.outliers} must lie in [0, 1); 0.01 is one in 100",
        )
        require_at_least("allocate.selector.neighbours", self.neighbours, 1)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""

        def pick(
            positions: IntArray, quota: int, rng: np.random.Generator
        ) -> tuple[IntArray, FloatArray]:
            rows = read_rows(candidates, self.feature, positions)
            inside = without_outliers(rows, quota, self.outliers, self.neighbours)
            start = int(np.argmin(candidates.distance[positions[inside]]))
            chosen = inside[farthest_first(rows[inside], quota, start=start)]
            return chosen, candidates.multiplicity[positions[chosen]].astype(np.float64)

        return choose_within(candidates, budget, rng, pick, within=self.within)


def without_outliers(
    rows: npt.NDArray[np.float32], quota: int, share: float, neighbours: int
) -> IntArray:
    """List the rows that are not the loneliest, at least `quota` of them, increasing."""
    num_rows = rows.shape[0]
    passed = min(int(share * num_rows), num_rows - quota)
    if passed == 0:
        return np.arange(num_rows)
    distances, _ = nearest_rows(rows, neighbours)
    loneliest_last = np.argsort(distances[:, -1], kind="stable")
    log.info("allocate: passed over %d of %d rows as outliers", passed, num_rows)
    return np.sort(loneliest_last[: num_rows - passed])
