"""The order of rows over the steps: by hand, and what stays as it was."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.order import balanced, kinds_of, prefix_errors, projected
from tests.artifacts import SEEDED


def test_an_order_by_hand() -> None:
    """Two rows up and two down: taken in turn, the sum never leaves one row's length."""
    gradients = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    steps = np.arange(4)[:, None]
    found = balanced(steps, np.zeros(4, np.int64), gradients)
    assert prefix_errors(steps, gradients).tolist() == [1.0, 2.0, 1.0, 0.0]
    assert prefix_errors(found, gradients).tolist() == [1.0, 0.0, 1.0, 0.0]


def test_kinds_by_hand() -> None:
    clusters = np.array([0, 0, 0, 0, 1, 1], np.int32)
    found = kinds_of(clusters, np.array([40, 10, 30, 20, 9, 5]))
    assert found.tolist() == [3, 0, 2, 1, 6, 4]


@SEEDED
@given(
    seed=st.integers(0, 100_000),
    num_steps=st.integers(1, 12),
    per_step=st.integers(1, 6),
    num_clusters=st.integers(1, 4),
)
def test_every_place_keeps_its_kind_and_no_row_is_lost(
    seed: int, num_steps: int, per_step: int, num_clusters: int
) -> None:
    rng = np.random.default_rng(seed)
    size = num_steps * per_step
    clusters = rng.integers(0, num_clusters, size).astype(np.int32)
    kinds = kinds_of(clusters, rng.integers(1, 9, size))
    assert np.array_equal(kinds // 4, clusters)
    steps = rng.permutation(size).reshape(num_steps, per_step)
    gradients = rng.normal(size=(size, 3))
    found = balanced(steps, kinds, gradients - gradients.mean(axis=0))
    assert np.array_equal(kinds[found], kinds[steps])
    assert np.array_equal(np.sort(found.ravel()), np.arange(size))


def test_balanced_prefixes_are_far_below_random_ones() -> None:
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(2000, 16))
    gradients -= gradients.mean(axis=0)
    kinds = kinds_of(rng.integers(0, 4, 2000).astype(np.int32), rng.integers(1, 99, 2000))
    random = [
        prefix_errors(rng.permutation(2000).reshape(-1, 8), gradients).max() for _ in range(5)
    ]
    found = balanced(rng.permutation(2000).reshape(-1, 8), kinds, gradients)
    assert prefix_errors(found, gradients).max() < 0.25 * min(random)


def test_a_projection_keeps_inner_products_and_short_features() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 2048)).astype(np.float32)
    short = projected(features, 0)
    exact, found = features @ features.T, short @ short.T
    assert short.shape == (40, 256)
    assert np.abs(found - exact).max() < 0.35 * 2048
    assert projected(features[:, :10], 0).shape == (40, 10)
