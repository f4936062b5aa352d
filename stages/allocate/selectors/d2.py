"""Difficult rows that are not each other's neighbours (D2 pruning, arXiv 2310.07931)."""

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.groups import (
    FloatArray,
    members_of,
    multiplicity_weights,
    read_rows,
    read_score,
)
from stages.allocate.neighbours import nearest_rows
from stages.contract.errors import require_at_least


@dataclass(kw_only=True)
class D2:
    """Spread difficulty over a graph of neighbours, then take the top row again and again.

    x_i <- x_i + sum_j exp(-forward d_ij^2) x_j over the neighbours; each taken row lowers its
    neighbours' x_j by exp(-backward d_ij^2) x_i. Distances are in units of their median, so that
    the two factors mean the same on any feature. The graph is made inside clusters, and the
    picks run over all rows; weights by multiplicity. Time O(sum of n_c^2 dim); memory: the rows of
    one cluster in float64, a block of its distances, and `neighbours` numbers per row.

    Attributes
    ----------
    signal : str
        The difficulty: loss, el2n, ... or num_tokens.
    neighbours : int
        Neighbours of a row.
    forward, backward : float
        gamma_f and gamma_r, at least 0.
    feature : str
        embedding (as clustered), or a feature of the pass by its name.
    """

    ratio_of: ClassVar[str] = "candidates"

    signal: str = "loss"
    neighbours: int = 10
    forward: float = 1.0
    backward: float = 1.0
    feature: str = "embedding"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_at_least("allocate.selector.neighbours", self.neighbours, 1)
        require_at_least("allocate.selector.forward", self.forward, 0.0)
        require_at_least("allocate.selector.backward", self.backward, 0.0)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, npt.NDArray[np.float64]]:
        """Choose exactly `budget.num_rows` rows."""
        # The graph in order of clusters, then ids; where a cluster is small, rows lack neighbours.
        members = members_of(candidates)
        order = np.concatenate(members)
        distances = np.full((order.size, self.neighbours), np.inf)
        neighbours = np.zeros((order.size, self.neighbours), np.int64)
        start = 0
        for own in members:
            if own.size > 1:
                rows = read_rows(candidates, self.feature, own)
                near, places = nearest_rows(rows, self.neighbours)
                distances[start : start + own.size, : near.shape[1]] = near
                neighbours[start : start + own.size, : near.shape[1]] = start + places
            start += own.size
        finite = distances[np.isfinite(distances)]
        median = float(np.median(finite)) if finite.size else 0.0
        distances = distances / (median if median > 0 else 1.0)
        scores = read_score(candidates, self.signal)[order]
        found = take_and_lower(
            spread_forward(scores, distances, neighbours, self.forward),
            edge_weights(distances, self.backward),
            neighbours,
            budget.num_rows,
            ties=candidates.row_ids[order],
        )
        kept = np.sort(order[found])
        return kept, multiplicity_weights(candidates, kept)


def edge_weights(distances: FloatArray, gamma: float) -> FloatArray:
    """Give exp(-gamma d^2); 0 where there is no neighbour."""
    there = np.isfinite(distances)
    return np.where(there, np.exp(-gamma * np.square(np.where(there, distances, 0.0))), 0.0)


def spread_forward(
    scores: FloatArray, distances: FloatArray, neighbours: IntArray, gamma: float
) -> FloatArray:
    """Add to each row its neighbours' scores, the near ones more."""
    weights = edge_weights(distances, gamma)
    spread: FloatArray = scores + np.einsum("ij,ij->i", weights, scores[neighbours])
    return spread


def take_and_lower(
    scores: FloatArray, weights: FloatArray, neighbours: IntArray, count: int, *, ties: IntArray
) -> IntArray:
    """Take the largest score, lower its neighbours', and again; ties by the smaller id."""
    current = scores.tolist()
    ids = ties.tolist()
    heap = [(-score, ids[row], row) for row, score in enumerate(current)]
    heapq.heapify(heap)
    taken = np.zeros(scores.size, bool)
    chosen: list[int] = []
    while len(chosen) < count:
        score, _, row = heapq.heappop(heap)
        if taken[row] or -score != current[row]:
            continue  # an older score of a row
        taken[row] = True
        chosen.append(row)
        for other, weight in zip(neighbours[row].tolist(), weights[row].tolist(), strict=True):
            if weight > 0.0 and not taken[other]:
                current[other] -= weight * current[row]
                heapq.heappush(heap, (-current[other], ids[other], other))
    return np.array(chosen, np.int64)
