"""Starts of k-means that are compared on a part of the rows."""

import numpy as np
import pytest

from stages.cluster.kmeans import distances_to, fit_centers, fit_from_starts
from stages.cluster.stage import ClusterConfig
from tests.artifacts import blobs


def inertia(rows: np.ndarray, centers: np.ndarray) -> float:
    return float(np.square(distances_to(rows, centers).min(axis=1)).sum())


def test_a_part_that_is_the_whole_gives_the_plain_fit() -> None:
    rows = blobs([30, 20, 10], dim=4)
    plain = fit_centers(rows, 3, n_init=4, seed=7)
    for start_rows in (60, 1000):
        found = fit_from_starts(rows, 3, n_init=4, start_rows=start_rows, seed=7)
        assert found.tobytes() == plain.tobytes()


@pytest.mark.parametrize("seed", range(5))
def test_the_best_start_goes_on_over_all_rows(seed: int) -> None:
    rows = blobs([400, 300, 200, 100], dim=6, seed=seed, spread=0.3)
    plain = fit_centers(rows, 4, n_init=10, seed=seed)
    found = fit_from_starts(rows, 4, n_init=10, start_rows=200, seed=seed)
    again = fit_from_starts(rows, 4, n_init=10, start_rows=200, seed=seed)
    assert found.tobytes() == again.tobytes()
    assert inertia(rows, found) <= 1.005 * inertia(rows, plain)
    # It went on: no centre moves any more when rows are assigned once again.
    labels = distances_to(rows, found).argmin(axis=1)
    means = np.stack([rows[labels == k].mean(axis=0) for k in range(4)])
    np.testing.assert_allclose(found, means, atol=2e-3)


def test_how_many_rows_the_starts_see() -> None:
    assert ClusterConfig().start_rows(4) == 10_000
    assert ClusterConfig(num_clusters=400).start_rows(400) == 20_000
    assert ClusterConfig(fit_rows=1_000_000_000).start_rows(8) == 100_000_000
    assert ClusterConfig(fit_rows=300_000, n_init=3).start_rows(8) == 100_000
