"""Weights: one for each cluster where that is asked, and messages that stay short."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.weights import first_few, level_by_cluster
from tests.artifacts import SEEDED


def test_levelled_weights_by_hand() -> None:
    clusters, weights = np.array([1, 0, 1, 1], np.int32), np.array([0.5, 1.5, 0.8, 1.2])
    found = level_by_cluster(clusters, weights, 3)
    assert found.tolist() == [2.5 / 3, 1.5, 2.5 / 3, 2.5 / 3]


@SEEDED
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 40))
def test_levelled_weights_are_one_for_each_cluster_and_keep_its_sum(
    seed: int, num_clusters: int, num_rows: int
) -> None:
    rng = np.random.default_rng(seed)
    clusters = rng.integers(0, num_clusters, num_rows).astype(np.int32)
    weights = rng.random(num_rows) + 0.01
    found = level_by_cluster(clusters, weights, num_clusters)
    for cluster in np.unique(clusters):
        own = clusters == cluster
        assert np.unique(found[own].astype(np.float32)).size == 1
        assert np.isclose(found[own].sum(), weights[own].sum(), rtol=1e-12)


def test_a_message_names_the_first_eight_by_hand() -> None:
    assert first_few(np.arange(3)) == "[0, 1, 2]"
    assert first_few(np.arange(8)) == "[0, 1, 2, 3, 4, 5, 6, 7]"
    assert first_few(np.arange(20_000)) == "[0, 1, 2, 3, 4, 5, 6, 7] and 19992 more"
