"""What a selector chooses from: arrays over all embedded rows, in order of the row ids."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

ROWS, TOKENS = "rows", "trained tokens"  # see Candidates.counts


@dataclass(frozen=True)
class Candidates:
    """Rows that can be kept.

    Attributes
    ----------
    row_ids : ndarray of shape (num_rows,), int64
        Increasing; what random draws are tied to, see `draw`.
    cluster : ndarray of shape (num_rows,), int32
        Cluster of each row.
    distance : ndarray of shape (num_rows,), float32
        Distance to its centre.
    multiplicity : ndarray of shape (num_rows,), int64
        How many original rows each stands for, or how many of their trained tokens, see `counts`.
    num_tokens : ndarray of shape (num_rows,), int64
        Length of each row.
    source : ndarray of shape (num_rows,), int32
        Number of the source that each row is of.
    centers : ndarray of shape (num_clusters, dim), float32
        Centres, in the space of the clustering.
    read_signal : callable
        name -> ndarray of shape (num_rows,), float32: a column of the embed table, or
        `reference.<column>`, that of the reference model. A ConfigurationError names the key to
        set where there is none.
    read_embeddings : callable
        increasing positions -> ndarray of shape (len(positions), dim), float32, prepared as the
        clustering saw them.
    read_feature : callable
        (name, increasing positions) -> ndarray of shape (len(positions), dim), float32, raw: a
        feature of the pass by its name (target_row, head_sketch, hidden_mean, position_mean).
        A ConfigurationError names the key to set where the pass did not make it.
    read_targets : callable
        (name) -> ndarray of shape (num_targets, dim), float32, the same feature of the rows that
        the user wants to do well on. A ConfigurationError where none were given.
    counts : str
        What multiplicities count: ROWS; or TOKENS for the objective token, see `objective.py`.
    """

    row_ids: IntArray
    cluster: npt.NDArray[np.int32]
    distance: FloatArray
    multiplicity: IntArray
    num_tokens: IntArray
    source: npt.NDArray[np.int32]
    centers: FloatArray
    read_signal: Callable[[str], FloatArray]
    read_embeddings: Callable[[IntArray], FloatArray]
    read_feature: Callable[[str, IntArray], FloatArray]
    read_targets: Callable[[str], FloatArray]
    counts: str = ROWS

    @property
    def num_rows(self) -> int:
        """Number of candidates."""
        return int(self.cluster.size)

    @property
    def num_clusters(self) -> int:
        """Number of clusters, K."""
        return int(self.centers.shape[0])

    def sizes(self) -> IntArray:
        """Count the rows d_k of each cluster."""
        return np.bincount(self.cluster, minlength=self.num_clusters).astype(np.int64)

    def mass(self) -> npt.NDArray[np.float64]:
        """Count the original rows n_k of each cluster, or their tokens, duplicates included."""
        return np.bincount(
            self.cluster, weights=self.multiplicity, minlength=self.num_clusters
        ).astype(np.float64)

    def draw(self, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Draw a number in [0, 1) for every row.

        It belongs to the row's id, so the same rows in another order, or with some of them
        missing, get the same numbers: a selection by the smallest numbers is nested over budgets
        and hardly moves when a row is rejected.
        """
        return rng.random(int(self.row_ids.max()) + 1)[self.row_ids]


def subset(candidates: Candidates, places: IntArray) -> Candidates:
    """Take candidates by their positions, some or all of them; clusters keep their numbers."""
    return replace(
        candidates,
        row_ids=candidates.row_ids[places],
        cluster=candidates.cluster[places],
        distance=candidates.distance[places],
        multiplicity=candidates.multiplicity[places],
        num_tokens=candidates.num_tokens[places],
        source=candidates.source[places],
        read_signal=lambda name: candidates.read_signal(name)[places],
        read_embeddings=lambda own: candidates.read_embeddings(places[own]),
        read_feature=lambda name, own: candidates.read_feature(name, places[own]),
    )


TRIED = "tried"  # see Budget.on_empty_quota


@dataclass(frozen=True)
class Budget:
    """How much a selector keeps.

    Attributes
    ----------
    num_rows : int
        Exactly so many distinct rows, a whole number of steps.
    on_empty_quota : str
        What happens to a cluster that would keep no row: its mass goes to the nearest kept
        cluster (merge; TRIED, too, but without a word), or the run stops (error).
    num_workers : int
        W, for those whose quotas should let worker r hold the clusters c with c mod W = r.
    """

    num_rows: int
    on_empty_quota: str = "merge"
    num_workers: int = 1


class Selector(Protocol):
    """A dataclass of options that chooses rows and weighs them.

    Attributes
    ----------
    ratio_of : str
        What `allocate.ratio` is a share of: candidates, or smallest_cluster.
    """

    @property
    def ratio_of(self) -> str:
        """What `allocate.ratio` is a share of."""

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose `budget.num_rows` rows: increasing positions, weights above 0 with mean 1."""
