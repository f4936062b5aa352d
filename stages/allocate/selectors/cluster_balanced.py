"""CluSTER's selection (arXiv 2609.12584): equal quotas per cluster, weights by cluster share."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.keep import RULES, keep_rows
from stages.allocate.quota import water_fill
from stages.allocate.weights import cluster_share_weights, merge_empty
from stages.contract.errors import DataError, require_one_of

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ClusterBalanced:
    """Keep equally many rows of every cluster, and weigh them by the cluster's share.

    Attributes
    ----------
    keep : str
        Which rows of a cluster: farthest, nearest, mixed, random, largest_norm or kcenter.
    """

    ratio_of: ClassVar[str] = "smallest_cluster"

    keep: str = "farthest"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.keep", self.keep, RULES)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        sizes = candidates.sizes()
        quotas = water_fill(sizes, budget.num_rows)
        mass = shared_mass(candidates, quotas, budget.on_empty_quota)
        norms = candidates.read_signal("embedding_norm")
        rows = []
        # A generator per cluster, so that a smaller budget keeps a part of a larger one's rows.
        rngs = rng.spawn(candidates.num_clusters)
        for cluster in np.flatnonzero(quotas):
            members = np.flatnonzero(candidates.cluster == cluster)
            needs_embeddings = self.keep == "kcenter"
            chosen = keep_rows(
                self.keep,
                int(quotas[cluster]),
                distances=candidates.distance[members],
                norms=norms[members],
                embeddings=candidates.read_embeddings(members) if needs_embeddings else None,
                rng=rngs[cluster],
            )
            rows.append(members[chosen])
        kept = np.sort(np.concatenate(rows))
        weights = cluster_share_weights(
            candidates.cluster[kept], candidates.multiplicity[kept], mass
        )
        return kept, weights


def shared_mass(
    candidates: Candidates, quotas: IntArray, on_empty_quota: str
) -> npt.NDArray[np.float64]:
    """Give the mass that each cluster's kept rows stand for.

    Raises
    ------
    DataError
        If a cluster keeps no row and `on_empty_quota` is error.
    """
    mass = candidates.mass()
    empty = np.flatnonzero((quotas == 0) & (mass > 0))
    if empty.size == 0:
        return mass
    if on_empty_quota == "error":
        raise DataError(
            f"clusters {empty.tolist()} would keep no row of {mass[empty].tolist()}; raise the "
            f"budget to at least {candidates.num_clusters} rows, lower cluster.num_clusters, or "
            f"set allocate.on_empty_quota=merge"
        )
    log.warning(
        "allocate: clusters %s keep no row; their mass of %d rows goes to the nearest",
        empty.tolist(),
        int(mass[empty].sum()),
    )
    return merge_empty(quotas, mass, candidates.centers)
