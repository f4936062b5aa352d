"""The common frame of selectors: rows in order of their ids, by cluster or all together.

Rows are always walked in order of their ids, so that ties go to the smaller id and a selection
does not depend on the order in which the candidates stand.
"""

import logging
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray
from stages.allocate.quota import proportional
from stages.allocate.weights import cluster_share_weights, shared_mass, to_mean_one
from stages.contract.errors import DataError

log = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]
# (positions in order of the ids, quota, generator) -> (chosen indexes into them, raw weights)
Pick = Callable[[IntArray, int, np.random.Generator], tuple[IntArray, FloatArray]]

WITHIN = ("clusters", "all")
ROWS_PER_BLOCK = 4096


def id_order(candidates: Candidates) -> IntArray:
    """List all positions in order of the row ids."""
    return np.argsort(candidates.row_ids, kind="stable").astype(np.int64)


def members_of(candidates: Candidates) -> list[IntArray]:
    """List the positions of each cluster's rows, in order of the row ids."""
    order = id_order(candidates)
    by_cluster = order[np.argsort(candidates.cluster[order], kind="stable")]
    return np.split(by_cluster, np.cumsum(candidates.sizes())[:-1])


def blocks_of(positions: IntArray) -> Iterator[IntArray]:
    """Cut positions into blocks that are read one at a time."""
    for start in range(0, positions.size, ROWS_PER_BLOCK):
        yield positions[start : start + ROWS_PER_BLOCK]


def read_rows(candidates: Candidates, feature: str, positions: IntArray) -> npt.NDArray[np.float32]:
    """Read a feature by its name; `embedding` is what was clustered, as it was clustered.

    Returns
    -------
    ndarray of shape (len(positions), dim), float32
    """
    if feature == "embedding":
        return candidates.read_embeddings(positions)
    return candidates.read_feature(feature, positions)


def read_score(candidates: Candidates, name: str) -> FloatArray:
    """Read a number per row by its name: `num_tokens`, or any signal.

    Raises
    ------
    DataError
        If some are not finite; none is ever replaced.
    """
    if name == "num_tokens":
        return candidates.num_tokens.astype(np.float64)
    scores = candidates.read_signal(name).astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(scores))
    if wrong.size:
        raise DataError(
            f"signal {name} is not finite in {wrong.size} of {scores.size} rows, the first "
            f"row_id {candidates.row_ids[wrong].min()}; choose by another signal"
        )
    return scores


def multiplicity_weights(candidates: Candidates, kept: IntArray) -> FloatArray:
    """Weigh kept rows by how many original rows each stands for, with mean 1."""
    return to_mean_one(candidates.multiplicity[kept].astype(np.float64))


def choose_within(
    candidates: Candidates,
    budget: Budget,
    rng: np.random.Generator,
    pick: Pick,
    *,
    within: str,
    shares: bool = True,
) -> tuple[IntArray, FloatArray]:
    """Choose among all rows, or inside each cluster by quotas in proportion to its rows.

    Parameters
    ----------
    candidates, budget, rng
        As a selector gets them.
    pick : callable
        Chooses exactly the quota in one group, with raw weights above 0.
    within : str
        clusters or all.
    shares : bool
        Whether each cluster's weights are scaled to its share of the original rows. Otherwise
        the raw weights are in units of original rows and only grow where the cluster inherits
        the mass of one that keeps none.

    Returns
    -------
    kept : ndarray of shape (budget.num_rows,), int64
        Increasing.
    weights : ndarray of the same shape, float64
        With mean 1.
    """
    if within == "all":
        order = id_order(candidates)
        chosen, raw = pick(order, budget.num_rows, rng)
        kept = order[chosen]
        places = np.argsort(kept)
        return kept[places], to_mean_one(raw[places])
    sizes = candidates.sizes()
    quotas = proportional(sizes, sizes, budget.num_rows)
    mass = shared_mass(candidates, quotas, budget.on_empty_quota)
    members = members_of(candidates)
    # A generator per cluster, so that one cluster's quota does not move another's rows.
    rngs = rng.spawn(candidates.num_clusters)
    rows, weights = [], []
    for cluster in np.flatnonzero(quotas):
        chosen, raw = pick(members[cluster], int(quotas[cluster]), rngs[cluster])
        rows.append(members[cluster][chosen])
        weights.append(raw)
    kept, raw = np.concatenate(rows), np.concatenate(weights)
    places = np.argsort(kept)
    kept, raw = kept[places], raw[places]
    clusters = candidates.cluster[kept]
    if shares:
        return kept, cluster_share_weights(clusters, raw, mass)
    own = candidates.mass()
    return kept, to_mean_one(raw * (mass / np.where(own > 0, own, 1.0))[clusters])


def score_by_targets(
    candidates: Candidates,
    feature: str,
    over: str,
    scaled: Callable[[npt.NDArray[np.float32]], FloatArray],
) -> FloatArray:
    """Score each candidate by its products with the rows that the user wants to do well on.

    Parameters
    ----------
    candidates : Candidates
        With targets.
    feature : str
        Of both.
    over : str
        nearest: the largest product; mean: the mean over all targets.
    scaled : callable
        Makes of features what is multiplied, such as rows of length 1 for cosines.

    Returns
    -------
    ndarray of shape (num_candidates,), float64
    """
    targets = scaled(candidates.read_targets(feature))
    scores: FloatArray = np.empty(candidates.num_rows)
    for block in blocks_of(id_order(candidates)):
        products = scaled(read_rows(candidates, feature, block)) @ targets.T
        scores[block] = products.max(axis=1) if over == "nearest" else products.mean(axis=1)
    return scores


def keep_largest(
    candidates: Candidates,
    budget: Budget,
    rng: np.random.Generator,
    scores: FloatArray,
    *,
    within: str = "all",
    drop_hardest: float = 0.0,
) -> tuple[IntArray, FloatArray]:
    """Keep the rows of the largest scores; weights by multiplicity, or by cluster shares.

    Parameters
    ----------
    candidates, budget, rng
        As a selector gets them.
    scores : ndarray of shape (num_rows,)
        Ties go to the smaller row id.
    within : str
        all, or clusters: the largest of each cluster.
    drop_hardest : float
        This share of the very largest is passed over, as far as enough rows are left.
    """

    def pick(
        positions: IntArray, quota: int, rng: np.random.Generator
    ) -> tuple[IntArray, FloatArray]:
        passed = min(int(drop_hardest * positions.size), positions.size - quota)
        order = np.argsort(-scores[positions], kind="stable")
        chosen = order[passed : passed + quota]
        if passed:
            log.info(
                "allocate: passed over the %d largest scores, down to %.4g",
                passed,
                scores[positions[order[passed - 1]]],
            )
        return chosen, candidates.multiplicity[positions[chosen]].astype(np.float64)

    return choose_within(candidates, budget, rng, pick, within=within)
