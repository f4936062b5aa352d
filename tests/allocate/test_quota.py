"""Quotas and the weights that undo them: by hand, then for any sizes and multiplicities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.budget import exact
from stages.allocate.quota import equal_rows, water_fill
from stages.allocate.schedule import pinned_obstacle
from stages.allocate.weights import (
    cluster_share_weights,
    effective_sample_size,
    merge_empty,
    to_mean_one,
)
from tests.artifacts import SEEDED

SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [
        ([10, 10, 10], 9, [3, 3, 3]),
        ([10, 2, 10], 12, [5, 2, 5]),
        ([10, 20, 30], 10, [3, 3, 4]),  # the largest first
        ([30, 20, 10], 11, [4, 4, 3]),
        ([5, 5, 5], 4, [2, 1, 1]),
        ([1, 2, 3], 6, [1, 2, 3]),
        ([1, 2, 3], 0, [0, 0, 0]),
        ([0, 7, 0], 3, [0, 3, 0]),
        ([3, 100, 3, 100], 50, [3, 22, 3, 22]),
        ([4, 4, 9, 8], 2, [0, 0, 1, 1]),
    ],
)
def test_water_filling_by_hand(sizes: list[int], total: int, expected: list[int]) -> None:
    assert water_fill(np.array(sizes), total).tolist() == expected


@pytest.mark.parametrize(
    ("sizes", "total", "num_workers", "expected"),
    [
        # Workers hold 9 and 7, 5 and 5, 8 and 6, 6 and 5: an odd row of the larger of each.
        ([9, 5, 8, 6, 7, 5, 6, 5], 36, 4, [5, 5, 5, 5, 4, 4, 4, 4]),
        ([5, 5, 8, 5, 7, 6, 6, 9], 36, 4, [4, 4, 5, 4, 5, 5, 4, 5]),
        ([9, 9, 9, 9], 6, 2, [2, 2, 1, 1]),
        ([9, 8, 7, 6], 6, 2, [2, 2, 1, 1]),
        ([9, 5, 9, 5], 6, 2, [2, 2, 1, 1]),  # not both odd rows from the first worker
        ([9, 1, 9, 1], 8, 2, [3, 1, 3, 1]),  # the second has no more to give
        ([9, 5, 9], 5, 2, [2, 1, 2]),  # no equal number of clusters each: the largest
    ],
)
def test_odd_rows_are_dealt_over_the_workers_by_hand(
    sizes: list[int], total: int, num_workers: int, expected: list[int]
) -> None:
    assert water_fill(np.array(sizes), total, num_workers).tolist() == expected


@SEEDED
@given(
    num_workers=st.integers(1, 6),
    per_worker=st.integers(1, 5),
    rows_per_worker=st.integers(1, 7),
    ratio=st.floats(0.01, 1),
    seed=st.integers(0, 10_000),
)
def test_a_ratio_lets_every_worker_hold_its_own_clusters(
    num_workers: int, per_worker: int, rows_per_worker: int, ratio: float, seed: int
) -> None:
    sizes = np.random.default_rng(seed).integers(1, 40, num_workers * per_worker)
    rows = equal_rows(sizes, exact(ratio), num_workers, rows_per_worker)
    quotas = water_fill(sizes, rows, num_workers)
    assert quotas.sum() == rows and np.all(quotas <= sizes)
    assert quotas.max() - quotas.min() <= 1
    assert pinned_obstacle(quotas, num_workers) is None


@SEEDED
@given(SIZES, st.floats(0, 1), st.integers(1, 4))
def test_water_filling_is_exact_and_as_equal_as_can_be(
    sizes: list[int], share: float, num_workers: int
) -> None:
    total = int(share * sum(sizes))
    quotas = water_fill(np.array(sizes, np.int64), total, num_workers)
    assert quotas.sum() == total
    assert np.all((quotas >= 0) & (quotas <= sizes))
    unfilled = quotas[quotas < sizes]
    if unfilled.size:
        assert unfilled.max() - unfilled.min() <= 1
        assert quotas.max() <= unfilled.min() + 1


@pytest.mark.parametrize(
    ("sizes", "ratio", "num_workers", "rows_per_worker", "expected"),
    [
        ([10, 20, 30, 40], 1.0, 4, 1, 40),  # the paper: 10 of each
        ([10, 20, 30, 40], 0.55, 4, 1, 20),  # floor(5.5) = 5 of each
        ([10, 20, 30, 40], 1.0, 4, 4, 32),  # 8 of each, two steps of four
        ([10, 20, 30, 40], 0.3, 4, 4, 0),  # 3 of each is no step of four
        ([100, 100], 0.29, 2, 1, 58),  # 0.29 * 100 is 28.999...
        ([10, 20, 30], 1.0, 4, 1, 28),  # 3 clusters of 10 for 4 workers: 30, cut to 28
        ([10, 20, 30], 1.0, 2, 2, 28),
        ([7, 9, 9, 9, 9, 9], 1.0, 4, 2, 40),  # 42, cut to 40
        ([3, 9], 1.0, 4, 2, 0),
        ([0, 9], 1.0, 2, 1, 0),
    ],
)
def test_rows_of_a_ratio_by_hand(
    sizes: list[int], ratio: float, num_workers: int, rows_per_worker: int, expected: int
) -> None:
    assert equal_rows(np.array(sizes), exact(ratio), num_workers, rows_per_worker) == expected


@SEEDED
@given(SIZES, st.floats(0.01, 1), st.integers(1, 8), st.integers(1, 4))
def test_a_ratio_is_never_exceeded_and_gives_whole_steps(
    sizes: list[int], ratio: float, num_workers: int, rows_per_worker: int
) -> None:
    array = np.array(sizes, np.int64)
    rows = equal_rows(array, ratio, num_workers, rows_per_worker)
    assert rows % (num_workers * rows_per_worker) == 0
    assert rows <= ratio * min(sizes) * len(sizes) + 1e-6
    quotas = water_fill(array, rows)
    assert quotas.max() - quotas.min() <= 1
    if len(sizes) == num_workers:
        assert len(set(quotas.tolist())) == 1


def test_weights_by_hand_with_duplicates() -> None:
    # N = 8: cluster 0 stands for 6, cluster 1 for 2; T = 4.
    # Cluster 0 keeps multiplicities 1 and 2: shares 6/8 * 4 = 3, split 1 : 2.
    # Cluster 1 keeps 1 and 1: 2/8 * 4 = 1, split evenly.
    clusters, multiplicity = np.array([0, 1, 0, 1], np.int32), np.array([1, 1, 2, 1])
    weights = cluster_share_weights(clusters, multiplicity, np.array([6.0, 2.0]))
    assert weights.tolist() == [1.0, 0.5, 2.0, 0.5]


def test_equal_quotas_without_duplicates_give_the_papers_weight() -> None:
    mass = np.array([10.0, 30.0, 40.0])
    clusters = np.repeat(np.arange(3, dtype=np.int32), 2)
    weights = cluster_share_weights(clusters, np.ones(6, np.int64), mass)
    assert np.allclose(weights, 3 * np.repeat(mass, 2) / 80)  # W n_k / N


@SEEDED
@given(st.integers(1, 8), st.integers(1, 80), st.integers(0, 10_000))
def test_weights_reproduce_every_clusters_share(num_clusters: int, extra: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clusters = rng.permutation(
        np.concatenate([np.arange(num_clusters), rng.integers(0, num_clusters, extra)])
    ).astype(np.int32)
    multiplicity = rng.integers(1, 100, clusters.size)
    kept = np.bincount(clusters, weights=multiplicity)
    mass = kept + rng.integers(0, 1000, num_clusters)
    weights = cluster_share_weights(clusters, multiplicity, mass)
    assert np.all(weights > 0)
    assert abs(weights.mean() - 1) < 1e-12
    shares = np.bincount(clusters, weights=weights) / weights.sum()
    assert np.abs(shares - mass / mass.sum()).max() < 1e-12
    for k in range(num_clusters):
        per_copy = weights[clusters == k] / multiplicity[clusters == k]
        assert np.allclose(per_copy, per_copy[0], rtol=1e-12)


def test_the_mass_of_an_empty_cluster_goes_to_the_nearest_kept_by_hand() -> None:
    centers = np.array([[0.0], [1.0], [5.0], [6.0]], np.float32)
    mass = np.array([10.0, 3.0, 4.0, 0.0])
    moved = merge_empty(np.array([2, 0, 1, 0]), mass, centers)
    assert moved.tolist() == [13.0, 0.0, 4.0, 0.0]
    moved = merge_empty(np.array([0, 0, 1, 0]), mass, centers)
    assert moved.tolist() == [0.0, 0.0, 17.0, 0.0]
    assert mass.tolist() == [10.0, 3.0, 4.0, 0.0], "the given masses are left as they are"


@SEEDED
@given(st.integers(1, 8), st.integers(0, 10_000))
def test_merging_loses_no_mass(num_clusters: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    quotas = rng.integers(0, 2, num_clusters)
    quotas[rng.integers(num_clusters)] = 1
    mass = rng.integers(0, 50, num_clusters).astype(np.float64)
    centers = rng.normal(size=(num_clusters, 2)).astype(np.float32)
    moved = merge_empty(quotas, mass, centers)
    assert moved.sum() == mass.sum()
    assert np.all(moved[quotas == 0] == 0)
    assert np.all(moved[quotas > 0] >= mass[quotas > 0])


def test_effective_sample_size_by_hand() -> None:
    assert effective_sample_size(np.array([1.0, 1.0, 1.0])) == 1.0
    assert effective_sample_size(np.array([3.0, 1.0])) == pytest.approx(0.8)  # 16 / (2 * 10)


def test_weights_are_scaled_to_mean_one_by_hand() -> None:
    assert to_mean_one(np.array([1.0, 2.0, 3.0])).tolist() == [0.5, 1.0, 1.5]
