"""Weights that undo the selection: a kept row stands for those of its cluster that are not."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def cluster_share_weights(
    clusters: npt.NDArray[np.int32],
    multiplicity: npt.NDArray[np.int64],
    mass: FloatArray,
) -> FloatArray:
    """Weigh kept rows so that every cluster counts by its share of the original mixture.

    w_i = (n_k / N) * T * m_i / sum of m_j over the kept rows of cluster k. With K = W, equal
    quotas and no duplicates this is the paper's W n_k / N (CluSTER, arXiv 2609.12584).

    Parameters
    ----------
    clusters : ndarray of shape (num_kept,), int
        Cluster of each kept row.
    multiplicity : ndarray of shape (num_kept,), int
        How many original rows each stands for as an exact duplicate.
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
    moved = mass.astype(np.float64).copy()
    kept = np.flatnonzero(quotas > 0)
    for cluster in np.flatnonzero((quotas == 0) & (mass > 0)):
        offsets = centers[kept].astype(np.float64) - centers[cluster]
        heir = kept[int(np.argmin(np.einsum("ij,ij->i", offsets, offsets)))]
        moved[heir] += moved[cluster]
        moved[cluster] = 0.0
    return moved
