"""Weights that undo the selection: a kept row stands for those of its cluster that are not."""

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import TRIED, Candidates
from stages.contract.errors import DataError

log = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]
FEW = 8


def cluster_share_weights(
    clusters: npt.NDArray[np.int32],
    multiplicity: npt.NDArray[np.int64] | FloatArray,
    mass: FloatArray,
) -> FloatArray:
    """Weigh kept rows so that every cluster counts by its share of the original mixture.

    w_i = (n_k / N) * T * m_i / sum of m_j over the kept rows of cluster k. With K = W, equal
    quotas and no duplicates this is the paper's W n_k / N (CluSTER, arXiv 2609.12584).

    Parameters
    ----------
    clusters : ndarray of shape (num_kept,), int
        Cluster of each kept row.
    multiplicity : ndarray of shape (num_kept,)
        How many original rows each stands for as an exact duplicate; or any weights above 0 that
        a method gives to the rows of a cluster.
    mass : ndarray of shape (num_clusters,)
        n_k, original rows of each cluster; those of clusters without kept rows must have been
        moved to another.

    Returns
    -------
    ndarray of shape (num_kept,), float64
        Weights above 0 with mean 1.
    """
    kept_mass = np.bincount(clusters, weights=multiplicity, minlength=mass.size)
    assert not np.any((kept_mass == 0) & (mass > 0)), "a cluster with mass keeps no row"
    per_row = mass / np.where(kept_mass > 0, kept_mass, 1.0)
    weights: FloatArray = per_row[clusters] * multiplicity * (clusters.size / mass.sum())
    return weights


def to_mean_one(weights: FloatArray) -> FloatArray:
    """Scale positive weights to mean 1."""
    scaled: FloatArray = weights * (weights.size / weights.sum())
    return scaled


def effective_sample_size(weights: FloatArray) -> float:
    """Give the share of rows that equal weights would need for the same variance (Kish 1965)."""
    return float(weights.sum() ** 2 / (weights.size * np.square(weights).sum()))


def least_mix(fits: Callable[[float], bool], rounds: int) -> float:
    """Find by bisection how far one thing must be mixed with another that fits.

    Parameters
    ----------
    fits : callable
        Whether a part in [0, 1] of the other is enough; once it is, all larger ones are.
    rounds : int
        Halvings of [0, 1].

    Returns
    -------
    float
        The upper end of what is left: a part that fits, or 1.
    """
    low, high = 0.0, 1.0
    for _ in range(rounds):
        middle = 0.5 * (low + high)
        if fits(middle):
            high = middle
        else:
            low = middle
    return high


def level_by_cluster(
    clusters: npt.NDArray[np.int32], weights: FloatArray, num_clusters: int
) -> FloatArray:
    """Give every row the mean weight of its cluster's kept rows; the clusters' sums stay.

    Parameters
    ----------
    clusters : ndarray of shape (num_kept,), int
        Cluster of each kept row.
    weights : ndarray of shape (num_kept,)
        Above 0.
    num_clusters : int
        K.

    Returns
    -------
    ndarray of shape (num_kept,), float64
        Equal inside a cluster, to the last bit.
    """
    sums = np.bincount(clusters, weights=weights, minlength=num_clusters)
    kept = np.bincount(clusters, minlength=num_clusters)
    level: FloatArray = (sums / np.maximum(kept, 1))[clusters]
    return level


def first_few(values: npt.NDArray[np.generic]) -> str:
    """Name the first values in a message, and how many more there are."""
    text = str(values[:FEW].tolist())
    return text if values.size <= FEW else f"{text} and {values.size - FEW} more"


def merge_empty(
    quotas: npt.NDArray[np.int64], mass: FloatArray, centers: npt.NDArray[np.float32]
) -> FloatArray:
    """Move the mass of clusters that keep no row to the nearest cluster that keeps some.

    Parameters
    ----------
    quotas : ndarray of shape (num_clusters,)
        Rows kept of each.
    mass : ndarray of shape (num_clusters,)
        n_k.
    centers : ndarray of shape (num_clusters, dim)
        Where the clusters are.

    Returns
    -------
    ndarray of shape (num_clusters,)
        The new masses; zero where the quota is zero.
    """
    heir = heirs(quotas, mass, centers)
    return np.bincount(heir, weights=mass, minlength=mass.size).astype(np.float64)


def heirs(
    quotas: npt.NDArray[np.int64], mass: FloatArray, centers: npt.NDArray[np.float32]
) -> npt.NDArray[np.int64]:
    """Name the cluster whose kept rows stand for each cluster: itself, or the nearest kept one.

    Parameters
    ----------
    quotas, mass, centers
        See `merge_empty`.

    Returns
    -------
    ndarray of shape (num_clusters,), int64
    """
    found = np.arange(mass.size)
    kept = np.flatnonzero(quotas > 0)
    for cluster in np.flatnonzero((quotas == 0) & (mass > 0)):
        offsets = centers[kept].astype(np.float64) - centers[cluster]
        found[cluster] = kept[int(np.argmin(np.einsum("ij,ij->i", offsets, offsets)))]
    return found


def shared_mass(
    candidates: Candidates, quotas: npt.NDArray[np.int64], on_empty_quota: str
) -> FloatArray:
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
            f"clusters {first_few(empty)} would keep no row of {first_few(mass[empty])}; raise the "
            f"budget to at least {candidates.num_clusters} rows, lower cluster.num_clusters, or "
            f"set allocate.on_empty_quota=merge"
        )
    if on_empty_quota != TRIED:
        log.warning(
            "allocate: clusters %s keep no row; their mass of %d %s goes to the nearest",
            first_few(empty),
            int(mass[empty].sum()),
            candidates.counts,
        )
    return merge_empty(quotas, mass, candidates.centers)
