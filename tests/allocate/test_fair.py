"""Proportionate-fair steps: floor or ceiling in each, and never a whole row off the line."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.allocate.fair import periodic_counts, step_counts
from tests.artifacts import SEEDED


def whole_total(quotas: list[int], num_steps: int) -> np.ndarray:
    """Add to the first quota what makes the sum a multiple of the steps."""
    array = np.array(quotas, np.int64)
    array[0] += -array.sum() % num_steps
    return array


def check_fair(counts: np.ndarray, quotas: np.ndarray, num_steps: int) -> None:
    assert counts.shape == (num_steps, quotas.size)
    assert np.array_equal(counts.sum(axis=0), quotas)
    assert np.all(counts.sum(axis=1) == quotas.sum() // num_steps)
    assert np.all(counts >= quotas // num_steps)
    assert np.all(counts <= -(-quotas // num_steps))
    steps = np.arange(1, num_steps + 1)[:, None]
    # In units of 1 / num_steps rows, so that nothing is rounded.
    off = np.abs(np.cumsum(counts, axis=0) * num_steps - steps * quotas[None, :])
    assert off.max() < num_steps


@pytest.mark.parametrize(
    ("quotas", "num_steps", "expected"),
    [
        ([2, 2], 2, [[1, 1], [1, 1]]),
        ([4, 0], 2, [[2, 0], [2, 0]]),
        ([7], 7, [[1]] * 7),
        ([9, 0, 3], 3, [[3, 0, 1]] * 3),
    ],
)
def test_steps_by_hand(quotas: list[int], num_steps: int, expected: list[list[int]]) -> None:
    assert step_counts(np.array(quotas), num_steps).tolist() == expected


def test_a_lone_row_has_a_step_of_its_own_by_hand() -> None:
    counts = step_counts(np.array([3, 1]), 4)
    assert sorted(counts.tolist()) == [[0, 1], [1, 0], [1, 0], [1, 0]]


@SEEDED
@example([5, 5, 5, 5, 5, 5, 1], 31)
@example([1] * 12, 5)
@example([59, 1, 30, 30, 20, 40], 60)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=12), st.integers(1, 60))
def test_steps_are_fair_for_any_quotas(quotas: list[int], num_steps: int) -> None:
    array = whole_total(quotas, num_steps)
    check_fair(step_counts(array, num_steps), array, num_steps)


@SEEDED
@given(st.integers(1, 12), st.integers(1, 60), st.floats(1.1, 8), st.integers(0, 10_000))
def test_steps_are_fair_for_skewed_quotas(
    num_clusters: int, num_steps: int, skew: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sizes = 1 + 500.0 / skew ** rng.permutation(num_clusters)
    array = whole_total(sizes.astype(np.int64).tolist(), num_steps)
    check_fair(step_counts(array, num_steps), array, num_steps)


@SEEDED
@given(st.integers(2, 12), st.integers(2, 60), st.integers(0, 10_000))
def test_steps_are_fair_where_weights_are_heavy(
    num_clusters: int, num_steps: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    array = whole_total(rng.integers(num_steps // 2, num_steps, num_clusters).tolist(), num_steps)
    check_fair(step_counts(array, num_steps), array, num_steps)


@pytest.mark.parametrize("seed", range(3))
def test_a_million_rows_overflow_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_steps = 4099
    array = whole_total(rng.integers(1, 250_000, 9).tolist(), num_steps)
    check_fair(step_counts(array, num_steps), array, num_steps)


@SEEDED
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=8),
    st.integers(1, 30),
    st.integers(1, 90),
)
def test_more_or_fewer_steps_than_the_period_stay_on_the_line(
    amounts: list[int], period: int, num_steps: int
) -> None:
    array = whole_total(amounts, period)
    counts = periodic_counts(array, period, num_steps)
    assert np.all(counts.sum(axis=1) == array.sum() // period)
    assert np.all((counts >= array // period) & (counts <= -(-array // period)))
    steps = np.arange(1, num_steps + 1)[:, None]
    assert np.abs(np.cumsum(counts, axis=0) * period - steps * array).max() < period
