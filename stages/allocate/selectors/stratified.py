"""A random draw of every cluster: the classic stratified sample, the bar for learned selections."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import blocks_of, members_of, read_rows, read_score
from stages.allocate.needs import VECTORS
from stages.allocate.quota import proportional
from stages.allocate.weights import cluster_share_weights, shared_mass
from stages.contract.errors import require_one_of

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Stratified:
    """Draw rows at random inside clusters, with quotas by size or by size times spread.

    Every cluster gives at least one row where the budget allows. Inside a cluster each row is as
    likely, and a kept row stands for d_k / q_k rows (Horvitz and Thompson 1952), scaled so that
    the cluster counts by its share of the original rows: w_i = (n_k / N) T m_i / sum of m_j.
    Multiplicity m enters the weights and the spread. Memory: one block of a feature.

    Attributes
    ----------
    quota : str
        proportional (to the rows d_k), or neyman: to d_k S_k, which is best for the weighted mean
        of what the spread is measured on (Neyman 1934).
    spread : str
        What S_k is measured on, under neyman: a feature (embedding, target_row, head_sketch,
        hidden_mean, position_mean, trajectory, gradients), or any signal, or num_tokens.
    """

    ratio_of: ClassVar[str] = "candidates"

    quota: str = "proportional"
    spread: str = "embedding"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("allocate.selector.quota", self.quota, ("proportional", "neyman"))

    def needs(self) -> tuple[str, ...]:
        """Name what is read, for the check before any pass."""
        return (self.spread,) if self.quota == "neyman" else ()

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        sizes = candidates.sizes()
        members = members_of(candidates)
        amounts = sizes.astype(np.float64)
        if self.quota == "neyman":
            amounts *= spreads(candidates, members, self.spread)
            if not amounts.any():
                log.warning("allocate: %s does not vary in any cluster; by sizes", self.spread)
        quotas = proportional(amounts, sizes, budget.num_rows)
        mass = shared_mass(candidates, quotas, budget.on_empty_quota)
        draws = candidates.draw(rng)
        rows = [
            own[np.argsort(draws[own], kind="stable")[:quota]]
            for own, quota in zip(members, quotas, strict=True)
        ]
        kept = np.sort(np.concatenate(rows))
        weights = cluster_share_weights(
            candidates.cluster[kept], candidates.multiplicity[kept], mass
        )
        return kept, weights


def spreads(candidates: Candidates, members: list[IntArray], name: str) -> npt.NDArray[np.float64]:
    """Measure S_k, the standard deviation of a row's part in its cluster's weighted mean.

    S_k^2 = (1 / d_k) sum_i norm(m_i (x_i - c_k))^2, with c_k the mean weighted by m: the
    linearised variance of the ratio estimator that the weights make.

    Parameters
    ----------
    candidates : Candidates
        What there is.
    members : list of ndarray
        Positions of each cluster's rows.
    name : str
        A feature or a signal.

    Returns
    -------
    ndarray of shape (num_clusters,), float64
    """
    scores = None if name in VECTORS else read_score(candidates, name)
    found = np.zeros(len(members))
    for cluster, own in enumerate(members):
        shift = None
        counted = squared = total = 0.0  # sums of m, of m^2, and of m^2 norm(y)^2
        first = second = np.zeros(1)  # sums of m y and of m^2 y
        for block in blocks_of(own):
            rows = (
                read_rows(candidates, name, block).astype(np.float64)
                if scores is None
                else scores[block, None]
            )
            shift = rows[0] if shift is None else shift  # else the squares lose their digits
            rows = rows - shift
            copies = candidates.multiplicity[block].astype(np.float64)
            counted += copies.sum()
            squared += np.square(copies).sum()
            total += float(np.square(copies) @ np.einsum("ij,ij->i", rows, rows))
            first = first + copies @ rows
            second = second + np.square(copies) @ rows
        if own.size:
            mean = first / counted
            variance = total - 2.0 * float(mean @ second) + squared * float(mean @ mean)
            found[cluster] = np.sqrt(max(variance, 0.0) / own.size)
    return found
