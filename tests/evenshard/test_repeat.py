"""Repeats sum exactly, follow the weights, keep what they promise, and lie spread over the file."""

from typing import Any

import numpy as np
import pytest

from evenshard.repeat import (
    cluster_variation,
    enough_rows,
    laps,
    largest_gap,
    largest_remainder,
    repeat_counts,
    total_variation,
)
from evenshard.shards import ShardError


def no_floors(n: int) -> Any:
    return np.zeros(n, np.int64)


def test_largest_remainder_by_hand() -> None:
    # Of 10: shares 4.5, 3.3, 2.2; the one thing left goes to the remainder 0.5.
    assert largest_remainder(np.array([4.5, 3.3, 2.2]), 10, no_floors(3)).tolist() == [5, 3, 2]
    assert largest_remainder(np.array([1.0, 2.0, 5.0]), 16, no_floors(3)).tolist() == [2, 4, 10]


def test_floors_are_paid_by_the_others() -> None:
    # 0.2 of 4 is below its floor 1; the others share 3 as 1.9 : 1.9.
    counts = largest_remainder(np.array([0.2, 1.9, 1.9]), 4, np.ones(3, np.int64))
    assert counts[0] == 1 and sorted(counts[1:]) == [1, 2]
    # A floor may push a further one below its own: 8 of 10 are spoken for, then 1 and 1.
    counts = largest_remainder(np.array([5.0, 3.0, 2.0]), 10, np.array([8, 1, 1]))
    assert counts.tolist() == [8, 1, 1]


def test_counts_of_rows_by_hand() -> None:
    weights, clusters = np.array([0.5, 0.5, 0.5, 2.5]), np.array([0, 0, 0, 1])
    assert repeat_counts(weights, clusters, 8).tolist() == [1, 1, 1, 5]
    assert repeat_counts(weights, clusters, 4).tolist() == [1, 1, 1, 1]
    # Clusters have 1.5 and 2.5 of 4: the tie is decided, and one cluster keeps 1 or 2 rows.
    dropped = repeat_counts(weights, clusters, 4, allow_drop=True)
    assert dropped.sum() == 4 and dropped[3] in (2, 3)
    assert total_variation(np.array([1, 1, 1, 5]), weights) == pytest.approx(0)
    assert total_variation(np.array([1, 1, 1, 1]), weights) == pytest.approx(0.375)
    assert cluster_variation(np.array([0, 3, 0, 5]), weights, clusters) == pytest.approx(0)


def test_too_few_rows_name_the_way_out() -> None:
    with pytest.raises(ShardError, match=r"repeat_rows=3 must be >= 4, .*--allow-drop"):
        repeat_counts(np.ones(4), np.zeros(4, np.int64), 3)


def draw(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    clusters = rng.integers(0, rng.integers(1, 9), rng.integers(20, 200))
    weights = rng.lognormal(0, rng.uniform(0, 1), clusters.size).astype(np.float32)
    return weights.astype(np.float64), clusters


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_exact_and_every_row_comes(seed: int) -> None:
    weights, clusters = draw(seed)
    for num_rows in (weights.size, weights.size + 7, 5 * weights.size):
        counts = repeat_counts(weights, clusters, num_rows)
        assert counts.sum() == num_rows and counts.min() >= 1
    for num_rows in (1, 9, weights.size // 2, weights.size):
        counts = repeat_counts(weights, clusters, num_rows, allow_drop=True)
        assert counts.sum() == num_rows and counts.min() >= 0
        if num_rows >= 9:  # each of at most eight clusters keeps a row
            assert np.all(np.bincount(clusters, counts)[np.unique(clusters)] >= 1)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("allow_drop", [False, True])
def test_error_falls_as_the_file_grows(seed: int, allow_drop: bool) -> None:
    weights, clusters = draw(seed)
    errors = [
        total_variation(
            repeat_counts(weights, clusters, times * weights.size, allow_drop=allow_drop), weights
        )
        for times in (1, 8, 64, 512)
    ]
    assert errors[0] >= errors[1] >= errors[2] >= errors[3]
    # Without floors no count is more than two off its share: of a cluster, and in the cluster.
    assert errors[3] <= 1 / 512
    counts = repeat_counts(weights, clusters, 512 * weights.size, allow_drop=allow_drop)
    assert cluster_variation(counts, weights, clusters) <= 8 / (512 * weights.size)


def test_enough_rows() -> None:
    clusters = np.zeros(10, np.int64)
    assert enough_rows(np.ones(10), clusters) == 10
    weights = np.array([0.5] * 9 + [5.5])
    assert enough_rows(weights, clusters) == 20
    assert enough_rows(np.array([1e-6] * 9 + [10 - 9e-6]), clusters) == 160  # the most it takes


@pytest.mark.parametrize("seed", range(10))
def test_laps_hold_every_copy(seed: int) -> None:
    weights, clusters = draw(seed)
    counts = repeat_counts(weights, clusters, 4 * weights.size)
    taken = list(laps(counts, clusters))
    assert len(taken) == min(64, counts.max())
    for places in taken:
        assert np.all(np.diff(places) >= (counts.max() <= 64))
    assert np.array_equal(np.bincount(np.concatenate(taken), minlength=counts.size), counts)


def test_copies_of_a_row_lie_evenly_over_the_laps() -> None:
    counts = np.array([12, 4, 3, 1])
    taken = list(laps(counts, np.zeros(4, np.int64)))
    in_laps = [[lap for lap, places in enumerate(taken) if row in places] for row in range(4)]
    assert [len(found) for found in in_laps] == [12, 4, 3, 1]
    assert set(np.diff(in_laps[1])) == {3} and set(np.diff(in_laps[2])) == {4}


def test_clusters_come_evenly_along_the_file() -> None:
    rng = np.random.default_rng(0)
    clusters = rng.permuted(np.tile([0, 1, 2, 3], (200, 1)), axis=1).ravel()
    weights = np.array([2.2, 1.1, 0.5, 0.2])[clusters]
    counts = repeat_counts(weights, clusters, 4 * clusters.size)
    members = clusters[np.concatenate(list(laps(counts, clusters)))]
    assert largest_gap(members, 4, 32) < 8
    assert largest_gap(np.sort(members), 4, 32) > 14  # cluster by cluster would be far off


def test_gap_by_hand() -> None:
    assert largest_gap(np.array([0, 1, 0, 1, 0, 1]), 2, 2) == 0
    assert largest_gap(np.array([0, 0, 1, 1]), 2, 2) == 1
