"""What a selector chooses from: arrays over all embedded rows, in order of the row ids."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Candidates:
    """Rows that can be kept.

    Attributes
    ----------
    cluster : ndarray of shape (num_rows,), int32
        Cluster of each row.
    distance : ndarray of shape (num_rows,), float32
        Distance to its centre.
    multiplicity : ndarray of shape (num_rows,), int64
        How many original rows each stands for.
    num_tokens : ndarray of shape (num_rows,), int64
        Length of each row.
    centers : ndarray of shape (num_clusters, dim), float32
        Centres, in the space of the clustering.
    read_signal : callable
        name -> ndarray of shape (num_rows,), float32, a column of the embed table.
    read_embeddings : callable
        sorted positions -> ndarray of shape (len(positions), dim), float32, prepared as the
        clustering saw them.
    """

    cluster: npt.NDArray[np.int32]
    distance: npt.NDArray[np.float32]
    multiplicity: IntArray
    num_tokens: IntArray
    centers: npt.NDArray[np.float32]
    read_signal: Callable[[str], npt.NDArray[np.float32]]
    read_embeddings: Callable[[IntArray], npt.NDArray[np.float32]]

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
        """Count the original rows n_k of each cluster, duplicates included."""
        return np.bincount(
            self.cluster, weights=self.multiplicity, minlength=self.num_clusters
        ).astype(np.float64)


@dataclass(frozen=True)
class Budget:
    """How much a selector keeps.

    Attributes
    ----------
    num_rows : int
        Exactly so many distinct rows, a whole number of steps.
    on_empty_quota : str
        What happens to a cluster that would keep no row: its mass goes to the nearest kept
        cluster (merge), or the run stops (error).
    """

    num_rows: int
    on_empty_quota: str = "merge"


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
