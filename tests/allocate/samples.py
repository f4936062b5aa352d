"""Candidates made of arrays, for tests that need no disk."""

import zlib
from collections.abc import Sequence

import numpy as np

from stages.allocate.candidates import Candidates


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
