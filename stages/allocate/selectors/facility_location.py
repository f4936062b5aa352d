"""Medoids with the number of rows that each stands for (CRAIG, arXiv 1906.01827)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.greedy import facility_location
from stages.allocate.groups import WITHIN, FloatArray, choose_within, read_rows
from stages.allocate.neighbours import nearest_of
from stages.contract.errors import require, require_one_of


@dataclass(kw_only=True)
class FacilityLocation:
    """Choose rows greedily so that the sum of distances to the nearest kept row is small.

    A kept row weighs as the original rows that are nearest to it, duplicates included; within
    clusters their sum is the cluster's share. Groups of at most 2000 rows are chosen exactly with
    a matrix of their pairs, larger ones by stochastic greedy, which holds blocks of
    (n / k) log(1 / epsilon) x n. Memory besides: the rows of one group, in float64.

    Attributes
    ----------
    within : str
        clusters (quotas in proportion to their rows) or all.
    feature : str
        embedding (as clustered), or a feature of the pass by its name.
    epsilon : float
        Of the stochastic greedy, in (0, 1): what it may lose in the mean.
    """

    ratio_of: ClassVar[str] = "candidates"

    within: str = "clusters"
    feature: str = "embedding"
    epsilon: float = 0.01

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.within", self.within, WITHIN)
        require(
            0.0 < self.epsilon < 1.0,
            f"allocate.selector.epsilon={self.epsilon} must lie in (0, 1); 0.01 is one in 100",
        )

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        draws = candidates.draw(rng)

        def pick(
            positions: IntArray, quota: int, rng: np.random.Generator
        ) -> tuple[IntArray, FloatArray]:
            rows = read_rows(candidates, self.feature, positions)
            mass = candidates.multiplicity[positions].astype(np.float64)
            chosen = facility_location(
                rows, mass, quota, draws=draws[positions], epsilon=self.epsilon
            )
            counts = np.bincount(nearest_of(rows, chosen), weights=mass, minlength=quota)
            return chosen, counts.astype(np.float64)

        return choose_within(candidates, budget, rng, pick, within=self.within)
