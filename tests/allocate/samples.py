"""Candidates made of arrays, for tests that need no disk."""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from stages.allocate.candidates import Candidates, subset


def candidates(
    sizes: Sequence[int],
    *,
    seed: int = 0,
    constant: bool = False,
    duplicates: bool = True,
    dim: int = 4,
) -> Candidates:
    """Draw clusters of the given sizes in a shuffled order; `constant` makes all features alike."""
    rng = np.random.default_rng(seed)
    num_rows = int(np.sum(sizes))
    cluster = rng.permutation(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes))
    centers = rng.normal(size=(len(sizes), dim)).astype(np.float32)
    embeddings = (centers[cluster] + 0.1 * rng.normal(size=(num_rows, dim))).astype(np.float32)
    distance = np.linalg.norm(embeddings - centers[cluster], axis=1).astype(np.float32)
    if constant:
        embeddings, distance = np.ones_like(embeddings), np.zeros_like(distance)

    def read_signal(name: str) -> np.ndarray:
        if constant:
            return np.ones(num_rows, np.float32)
        return np.random.default_rng(zlib.crc32(name.encode())).random(num_rows, np.float32) + 0.1

    def read_feature(name: str, places: np.ndarray) -> np.ndarray:
        if constant:
            return np.ones((places.size, 3 * dim), np.float32)
        mixed = np.random.default_rng(zlib.crc32(name.encode())).normal(size=(dim, 3 * dim))
        return (embeddings[places] @ mixed).astype(np.float32)

    return Candidates(
        row_ids=np.flatnonzero(rng.permutation(num_rows + num_rows // 8) < num_rows),
        cluster=cluster,
        distance=distance,
        multiplicity=rng.integers(1, 4 if duplicates else 2, num_rows).astype(np.int64),
        num_tokens=rng.integers(5, 60, num_rows).astype(np.int64),
        source=rng.integers(0, 3, num_rows).astype(np.int32),
        centers=centers,
        read_signal=read_signal,
        read_embeddings=lambda places: embeddings[places],
        read_feature=read_feature,
        read_targets=lambda name: read_feature(name, np.arange(min(5, num_rows))),
    )


def permuted(rows: Candidates, order: np.ndarray) -> Candidates:
    """The same candidates in another order; their row ids no longer increase."""
    return subset(rows, order)


def by_hand(
    features: Sequence[Sequence[float]] | None = None,
    *,
    cluster: Sequence[int] | None = None,
    signals: Mapping[str, Sequence[float]] | None = None,
    multiplicity: Sequence[int] | None = None,
    num_tokens: Sequence[int] | None = None,
    source: Sequence[int] | None = None,
    targets: Sequence[Sequence[float]] | None = None,
) -> Candidates:
    """Candidates of written numbers; every feature, and the embedding, is `features`."""
    columns = [features, cluster, multiplicity, num_tokens, source, *(signals or {}).values()]
    num_rows = next(len(column) for column in columns if column is not None)
    points = np.zeros((num_rows, 1)) if features is None else np.array(features)
    points = points.astype(np.float32)
    clusters = np.array([0] * num_rows if cluster is None else cluster, np.int32)
    members = [points[clusters == k] for k in range(clusters.max() + 1)]
    centers = np.stack([own.mean(axis=0) for own in members]).astype(np.float32)
    ones = [1] * num_rows
    return Candidates(
        row_ids=np.arange(num_rows),
        cluster=clusters,
        distance=np.linalg.norm(points - centers[clusters], axis=1).astype(np.float32),
        multiplicity=np.array(ones if multiplicity is None else multiplicity, np.int64),
        num_tokens=np.array(ones if num_tokens is None else num_tokens, np.int64),
        source=np.array([0] * num_rows if source is None else source, np.int32),
        centers=centers,
        read_signal=lambda name: np.array((signals or {})[name], np.float32),
        read_embeddings=lambda places: points[places],
        read_feature=lambda name, places: points[places],
        read_targets=lambda name: np.array(targets, np.float32),
    )
