"""K-means' functions of arrays: preparing rows, distances, floors, splits."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.cluster.kmeans import (
    distances_to,
    fit_centers,
    nearest_centers,
    num_distinct,
    small_clusters,
    split_center,
)
from stages.embed.reading import prepare
from tests.artifacts import SEEDED, blobs
from tests.conftest import ROOT


def rows_of(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def test_rows_are_scaled_to_unit_length_and_zero_stays_zero() -> None:
    found = prepare(rows_of([3, 4], [0, 0], [-2, 0]), normalize=True, mean=None)
    assert found.dtype == np.float32
    assert found.tolist() == np.float32([[0.6, 0.8], [0, 0], [-1, 0]]).tolist()


def test_the_mean_is_subtracted_before_rows_are_scaled() -> None:
    raw, mean = rows_of([4, 6], [1, 2]), np.array([1.0, 2.0])
    assert prepare(raw, normalize=False, mean=mean).tolist() == [[3, 4], [0, 0]]
    found = prepare(raw, normalize=True, mean=mean)
    assert found.tolist() == np.float32([[0.6, 0.8], [0, 0]]).tolist()
    assert raw.tolist() == [[4, 6], [1, 2]], "the raw rows are left as they are"


def test_tiny_and_huge_rows_are_scaled_without_loss() -> None:
    found = prepare(rows_of([3e-30, 4e-30], [3e30, 4e30]), normalize=True, mean=None)
    assert np.allclose(found, [[0.6, 0.8]] * 2)


def test_distinct_rows_are_counted_up_to_what_is_enough() -> None:
    rows = rows_of([1, 2], [1, 2], [3, 4], [1, 2], [5, 6])
    assert [num_distinct(rows, enough) for enough in (1, 2, 3, 9)] == [1, 2, 3, 3]


def test_zeros_of_either_sign_are_one_row() -> None:
    assert num_distinct(rows_of([0.0, 1.0], [-0.0, 1.0]), 2) == 1


@SEEDED
@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 5), st.integers(0, 10_000))
def test_distances_equal_the_norms_of_differences(
    num_rows: int, num_clusters: int, dim: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(num_rows, dim)).astype(np.float32)
    centers = rng.normal(size=(num_clusters, dim)).astype(np.float32)
    differences = rows[:, None, :].astype(np.float64) - centers[None].astype(np.float64)
    expected = np.linalg.norm(differences, axis=2)
    assert np.allclose(distances_to(rows, centers), expected, atol=1e-6)
    candidates, near = nearest_centers(rows, centers, num_clusters)
    assert np.all(np.diff(near, axis=1) >= 0)
    assert np.array_equal(
        np.sort(candidates, axis=1)[:, :], np.tile(range(num_clusters), (num_rows, 1))
    )
    assert np.allclose(near, np.sort(expected, axis=1), atol=1e-6)


def test_of_equally_near_centres_the_lower_number_comes_first() -> None:
    candidates, _ = nearest_centers(rows_of([0, 0]), rows_of([1, 0], [0, 1], [-1, 0]), 2)
    assert candidates.tolist() == [[0, 1]]


def test_small_clusters_by_hand() -> None:
    centers = rows_of([0], [1], [10], [11])
    sizes = np.array([2, 50, 3, 50])
    assert small_clusters(centers, sizes, 5).tolist() == [0, 2]
    assert small_clusters(centers, sizes, 3).tolist() == [0]
    assert small_clusters(centers, sizes, 2).tolist() == []
    assert small_clusters(centers, sizes, 0).tolist() == []


def test_two_small_neighbours_make_one_that_is_large_enough() -> None:
    centers = rows_of([0], [1], [10])
    assert small_clusters(centers, np.array([3, 4, 50]), 5).tolist() == [0]


def test_one_cluster_is_always_left() -> None:
    centers = rows_of([0], [1], [10])
    assert small_clusters(centers, np.array([1, 1, 1]), 100).size == 2


@SEEDED
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 20), st.integers(0, 99))
def test_what_a_merge_leaves_reaches_the_floor(sizes: list[int], least: int, seed: int) -> None:
    centers = np.random.default_rng(seed).normal(size=(len(sizes), 2)).astype(np.float32)
    dropped = small_clusters(centers, np.array(sizes), least)
    left = np.setdiff1d(np.arange(len(sizes)), dropped)
    assert left.size >= 1
    assert np.all(np.diff(dropped) > 0)
    # A cluster that was large enough by itself never goes.
    assert all(sizes[k] < least for k in dropped)
    total, lone = sum(sizes), left.size == 1
    assert lone or total >= least * left.size


def test_a_split_finds_the_two_halves() -> None:
    rows = rows_of([0, 0], [0, 1], [10, 0], [10, 1])
    halves = split_center(rows, least=2, n_init=3, seed=0)
    assert halves is not None
    assert sorted(halves.tolist()) == [[0, 0.5], [10, 0.5]]


def test_equal_rows_cannot_be_split() -> None:
    assert split_center(np.ones((5, 3), np.float32), least=1, n_init=1, seed=0) is None


def test_rows_that_differ_in_their_last_digit_end_a_split() -> None:
    """Both centres round to the same, one half gets all rows, and 2-means began again for ever."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        rows = np.tile((5 * rng.standard_normal(576)).astype(np.float32), (100, 1))
        some = rng.random(100) < 0.5
        rows[some, seed] = np.nextafter(rows[some, seed], np.float32(99))
        rows = prepare(rows, normalize=True, mean=None)
        halves = split_center(rows, least=16, n_init=2, seed=0)
        assert halves is None or len(halves) == 2


FIT_ALONE = """
import hashlib, sys
import numpy as np
from threadpoolctl import threadpool_limits
from stages.cluster.kmeans import fit_centers
assert "sklearn" not in sys.modules and "torch" not in sys.modules
rows = np.random.default_rng(0).standard_normal((4000, 64)).astype(np.float32)
with threadpool_limits(1):  # as the stage sets it, before anything has loaded scikit-learn
    print(hashlib.sha256(fit_centers(rows, 4, n_init=2, seed=0).tobytes()).hexdigest())
"""


def test_a_fit_is_the_same_whatever_was_loaded_before_and_for_any_number_of_threads() -> None:
    found = set()
    for threads in ("1", "2", "4"):
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", FIT_ALONE], cwd=ROOT, env=environment, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


def test_a_split_sets_far_rows_aside() -> None:
    rows = rows_of([0, 0], [0, 1], [10, 0], [10, 1], [500, 0])
    halves = split_center(rows, least=2, n_init=3, seed=0)
    assert halves is not None
    assert sorted(halves.tolist()) == [[0, 0.5], [10, 0.5]]
    assert split_center(rows, least=3, n_init=3, seed=0) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_fit_finds_separated_groups_and_is_the_same_twice(seed: int) -> None:
    rows = blobs([40, 30, 20], seed=seed)
    centers = fit_centers(rows, 3, n_init=5, seed=seed)
    assert centers.dtype == np.float32
    assert np.array_equal(centers, fit_centers(rows, 3, n_init=5, seed=seed))
    labels = nearest_centers(rows, centers, 1)[0][:, 0]
    assert sorted(np.bincount(labels).tolist()) == [20, 30, 40]
    for k in range(3):
        assert np.allclose(centers[k], rows[labels == k].mean(axis=0), atol=1e-5)
