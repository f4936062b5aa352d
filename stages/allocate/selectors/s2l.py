"""Rows of every kind of loss trajectory, the rare kinds first (S2L, arXiv 2403.07384)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import FloatArray, blocks_of, id_order, multiplicity_weights
from stages.allocate.quota import proportional, smallest_first
from stages.cluster.kmeans import fit_centers, nearest_centers, num_distinct
from stages.contract.errors import DataError, require_at_least, require_one_of

FIT_ROWS = 100_000


@dataclass(kw_only=True)
class S2l:
    """Cluster losses over checkpoints inside each source, and draw evenly from the clusters.

    Reads the feature `trajectory`: the row's loss at each checkpoint of a small model. In a source,
    clusters are served from the smallest on, each with an equal part of what is left (the
    authors' code leaves clusters of one or two rows to the end; here they come first as any
    other). Weights by multiplicity. k-means is fitted on at most 100,000 rows of a source; memory:
    all trajectories, rows x checkpoints, and the distances of one block to the centres.

    Attributes
    ----------
    num_trajectories : int
        Clusters of trajectories in a source; fewer where fewer differ.
    sources : str
        even (the smallest source first, each an equal part of what is left, as the authors do),
        or proportional to their rows.
    """

    ratio_of: ClassVar[str] = "candidates"

    num_trajectories: int = 100
    sources: str = "even"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_at_least("allocate.selector.num_trajectories", self.num_trajectories, 1)
        require_one_of("allocate.selector.sources", self.sources, ("even", "proportional"))

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return ("trajectory",)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows.

        Raises
        ------
        DataError
            If a loss is not finite; none is ever taken as 0.
        """
        order = id_order(candidates)
        draws = candidates.draw(rng)[order]
        trajectories = candidates.read_feature("trajectory", order)
        wrong = np.flatnonzero(~np.isfinite(trajectories).all(axis=1))
        if wrong.size:
            raise DataError(
                f"the trajectories of {wrong.size} rows are not finite, the first row_id "
                f"{candidates.row_ids[order[wrong[0]]]}; leave out the checkpoint that diverged"
            )
        sources = candidates.source[order]
        sizes = np.bincount(sources)
        even = self.sources == "even"
        quotas = (
            smallest_first(sizes, budget.num_rows)
            if even
            else proportional(sizes, sizes, budget.num_rows)
        )
        seeds = rng.spawn(1)[0].integers(2**31, size=sizes.size)
        chosen = []
        for source in np.flatnonzero(quotas):
            own = np.flatnonzero(sources == source)
            kinds = trajectory_kinds(
                trajectories[own], draws[own], self.num_trajectories, int(seeds[source])
            )
            chosen.append(own[draw_kinds(kinds, draws[own], int(quotas[source]))])
        kept = np.sort(order[np.concatenate(chosen)])
        return kept, multiplicity_weights(candidates, kept)


def trajectory_kinds(
    trajectories: npt.NDArray[np.float32], draws: FloatArray, num_kinds: int, seed: int
) -> IntArray:
    """Find the k-means cluster of every trajectory, fitted on those of the smallest draws."""
    fitted = trajectories[np.sort(np.argsort(draws, kind="stable")[:FIT_ROWS])]
    num_kinds = num_distinct(fitted, num_kinds)
    centers = fit_centers(fitted, num_kinds, n_init=1, seed=seed)
    kinds = np.empty(trajectories.shape[0], np.int64)
    for block in blocks_of(np.arange(kinds.size)):
        kinds[block] = nearest_centers(trajectories[block], centers, 1)[0][:, 0]
    return kinds


def draw_kinds(kinds: IntArray, draws: FloatArray, count: int) -> IntArray:
    """Draw `count` rows, the smallest draws of each kind, the smallest kind first."""
    names, numbers = np.unique(kinds, return_inverse=True)
    parts = smallest_first(np.bincount(numbers), count)
    chosen = []
    for kind in range(names.size):
        members = np.flatnonzero(numbers == kind)
        chosen.append(members[np.argsort(draws[members], kind="stable")[: parts[kind]]])
    return np.concatenate(chosen)
