"""Near duplicates: MinHash proposes pairs of rows, their shingles decide.

Signatures are datasketch's. Rows that agree in one band of the signature are compared by the true
Jaccard similarity of their 5-word shingles, so no pair counts that is not near; a pair at the
threshold is missed with a probability of at most `MOST_MISSED`. Bands are compared by sorting
numbers and not by the library's dictionaries, which take some kilobytes a row.

The pairs form a forest: once two rows are in one group, through whatever chain, they are not
compared again. So a row is listed as near to an earlier one about once, however many it is near
to, and a thousand rows of one template cost a thousand comparisons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from stages.screen.grams import FACTOR, Codes, Ints, shingles

WORDS_PER_SHINGLE = 5
NUM_PERM = 128
MOST_MISSED = 0.01


@dataclass(frozen=True)
class Pair:
    """Two near rows by their places, `near` before `row`, and their Jaccard similarity."""

    row: int
    near: int
    similarity: float


def banding(threshold: float) -> tuple[int, int]:
    """Choose the longest bands that miss at most `MOST_MISSED` of the pairs at the threshold.

    Returns
    -------
    tuple of int
        Number of bands, and hashes in each.
    """
    for length in range(NUM_PERM, 1, -1):
        count = NUM_PERM // length
        if (1 - threshold**length) ** count <= MOST_MISSED:
            return count, length
    return NUM_PERM, 1


def shingle_set(codes: Codes) -> Codes:
    """Give the sorted set of a text's shingles, by the codes of its words."""
    return shingles(codes, WORDS_PER_SHINGLE)


def band_hashes(found: Codes, *, threshold: float, seed: int) -> Codes:
    """Hash the bands of the signature of a set of shingles.

    Parameters
    ----------
    found : ndarray of uint64
        A set of shingles, not empty.
    threshold : float
        Similarity from which rows are near.
    seed : int
        Of the permutations.

    Returns
    -------
    ndarray of shape (num_bands,), uint64
    """
    from datasketch import MinHash

    count, length = banding(threshold)
    signature = MinHash(
        NUM_PERM,
        seed=seed,
        scheme="affine64",
        hashfunc=int,
        permutations=_permutations(seed),
        hashvalues=_start(seed),
    )
    signature.update_batch(found.tolist())
    values = signature.hashvalues.astype(np.uint64)[: count * length].reshape(count, length)
    folded = np.zeros(count, np.uint64)
    for column in values.T:  # values: (band, hash); the hashes of a band become one number
        folded = folded * FACTOR + column
    return folded


@cache
def _permutations(seed: int) -> Any:
    from datasketch import MinHash

    return MinHash(NUM_PERM, seed=seed, scheme="affine64").permutations


@cache
def _start(seed: int) -> Any:
    from datasketch import MinHash

    return MinHash(NUM_PERM, seed=seed, scheme="affine64").hashvalues


def jaccard(a: Codes, b: Codes) -> float:
    """Compare two sorted sets: shared members over all members."""
    shared = np.intersect1d(a, b, assume_unique=True).size
    return float(shared / (a.size + b.size - shared))


@dataclass
class Forest:
    """Groups that grow by near pairs; the first row of a group is its root."""

    parents: list[int]

    def root(self, place: int) -> int:
        """Find the first row of a group, and shorten the way to it."""
        parents = self.parents
        while parents[place] != place:
            parents[place] = parents[parents[place]]
            place = parents[place]
        return place

    def join(self, a: int, b: int) -> None:
        """Make one group of two, by their roots."""
        self.parents[max(a, b)] = min(a, b)


def near_pairs(bands: Codes, sets: Sequence[Codes], threshold: float) -> tuple[list[Pair], Ints]:
    """Find near rows and join them into groups.

    Parameters
    ----------
    bands : ndarray of shape (num_rows, num_bands), uint64
        Hashes of the bands of each row's signature.
    sets : sequence of ndarray
        Each row's set of shingles.
    threshold : float
        Jaccard similarity from which two rows are near.

    Returns
    -------
    pairs : list of Pair
        The pairs that joined two groups, in order of `row`, then `near`.
    first : ndarray of shape (num_rows,), int64
        For each row the first of its group.
    """
    forest = Forest(list(range(len(sets))))
    refused: set[tuple[int, int]] = set()
    pairs: list[Pair] = []
    for band in bands.T:
        for members in _equal_runs(band):
            pairs += _join_members(members, sets, threshold, forest, refused)
    pairs.sort(key=lambda pair: (pair.row, pair.near))
    return pairs, np.array([forest.root(i) for i in range(len(sets))], np.int64)


def _equal_runs(values: Codes) -> list[list[int]]:
    """Give the places of each value that comes more than once, in order."""
    order = np.argsort(values, kind="stable")
    edges = np.flatnonzero(np.diff(values[order])) + 1
    starts, stops = np.append(0, edges), np.append(edges, order.size)
    several = np.flatnonzero(stops - starts > 1)
    return [order[starts[i] : stops[i]].tolist() for i in several]


def _join_members(
    members: list[int],
    sets: Sequence[Codes],
    threshold: float,
    forest: Forest,
    refused: set[tuple[int, int]],
) -> list[Pair]:
    """Compare the rows of one bucket that are not yet in one group."""
    pairs = []
    num_groups = len({forest.root(place) for place in members})
    for index, near in enumerate(members):
        if num_groups == 1:
            break
        for row in members[index + 1 :]:
            a, b = forest.root(near), forest.root(row)
            if a == b or (near, row) in refused:
                continue
            sizes = sets[near].size, sets[row].size
            similarity = 0.0
            if min(sizes) >= threshold * max(sizes):  # else they cannot share enough
                similarity = jaccard(sets[near], sets[row])
            if similarity >= threshold:
                forest.join(a, b)
                pairs.append(Pair(row, near, similarity))
                num_groups -= 1
            else:
                refused.add((near, row))
    return pairs
