"""CluSTER's selection (arXiv 2609.12584): equal quotas per cluster, weights by cluster share."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import members_of
from stages.allocate.keep import RULES, keep_rows
from stages.allocate.quota import water_fill
from stages.allocate.weights import cluster_share_weights, shared_mass
from stages.contract.errors import require_one_of


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
        quotas = water_fill(candidates.sizes(), budget.num_rows, budget.num_workers)
        mass = shared_mass(candidates, quotas, budget.on_empty_quota)
        norms = candidates.read_signal("embedding_norm") if self.keep == "largest_norm" else None
        draws = candidates.draw(rng)
        members = members_of(candidates)
        rows = []
        for cluster in np.flatnonzero(quotas):
            own = members[cluster]
            needs_embeddings = self.keep == "kcenter"
            chosen = keep_rows(
                self.keep,
                int(quotas[cluster]),
                distances=candidates.distance[own],
                norms=None if norms is None else norms[own],
                embeddings=candidates.read_embeddings(own) if needs_embeddings else None,
                draws=draws[own],
            )
            rows.append(own[chosen])
        kept = np.sort(np.concatenate(rows))
        weights = cluster_share_weights(
            candidates.cluster[kept], candidates.multiplicity[kept], mass
        )
        return kept, weights
