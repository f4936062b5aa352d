"""Chances where values lie far apart, against logarithms; and densities that no draw decides."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.candidates import Budget
from stages.allocate.inclusion import inclusion_probabilities
from stages.allocate.selectors.density import Density, median_distance
from tests.allocate.samples import by_hand, candidates
from tests.artifacts import SEEDED


def chances_by_logarithms(logs: np.ndarray, count: int) -> np.ndarray:
    """min(1, c x): sure rows leave one by one, the rest counts at least a millionth of its mean."""
    order = np.argsort(-logs)
    chances = np.ones(logs.size)
    for sure in range(count):
        rest = order[sure:]
        sizes = np.exp(logs[rest] - logs[rest].max())
        if sure == count - 1 or (count - sure) * sizes[0] < sizes.sum():
            sizes = np.maximum(sizes, 1e-6 * sizes.mean())
            chances[rest] = np.minimum(1.0, (count - sure) * sizes / sizes.sum())
            return chances
    return chances


@SEEDED
@given(
    seed=st.integers(0, 100_000),
    size=st.integers(1, 40),
    share=st.floats(0, 1),
    decades=st.sampled_from([1.0, 10.0, 200.0]),
)
def test_chances_are_those_by_logarithms(
    seed: int, size: int, share: float, decades: float
) -> None:
    rng = np.random.default_rng(seed)
    exponents = rng.uniform(-decades, decades, size)
    count = 1 + int(share * (size - 1))
    found = inclusion_probabilities(10.0**exponents, count)
    expected = chances_by_logarithms(exponents * np.log(10.0), count)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-9)
    assert found.sum() == pytest.approx(count)


@pytest.mark.parametrize("huge", [1e4, 1e9, 1e14, 1e200])
def test_one_huge_value_leaves_the_others_their_differences(huge: float) -> None:
    importance = [huge, *[1.0] * 300, *[10.0] * 300, *[100.0] * 300]
    found = inclusion_probabilities(importance, 91)
    expected = [1.0, *(90 * np.array([1.0, 10.0, 100.0]) / (300 * 111))]
    assert found[[0, 1, 301, 601]].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("importance", "count", "expected"),
    [
        ([5, 0, 0], 2, [1, 0.5, 0.5]),
        ([5, 3, 0, 0], 2, [1, 1 - 2e-6 / 3, 1e-6 / 3, 1e-6 / 3]),
        ([0, 0, 7], 3, [1, 1, 1]),
    ],
)
def test_a_row_of_no_importance_keeps_a_chance(
    importance: list[float], count: int, expected: list[float]
) -> None:
    found = inclusion_probabilities(importance, count)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_lonely_row_is_as_lonely_whichever_rows_are_references() -> None:
    points = np.random.default_rng(0).normal(size=(60, 3)).tolist()
    rows = by_hand([*points, [90.0, 0.0, 0.0]], multiplicity=[1] * 60 + [3])
    # All but references are counted too, so the densities are about those by all rows.
    for references in (np.arange(20), np.array([*range(19), 60]), np.arange(61)):
        found = Density()._densities(rows, references)
        assert found[60] == pytest.approx(3 / 63)
        assert found[:60].min() > 1 / 63


@SEEDED
@given(seed=st.integers(0, 10_000))
def test_with_all_rows_as_references_the_density_is_that_of_the_plain_loop(seed: int) -> None:
    rows = candidates([7, 5], seed=seed)
    points = rows.read_embeddings(np.arange(12)).astype(np.float64)
    width = 0.5 * median_distance(points)
    plain = np.zeros(12)
    for i, j in np.ndindex(12, 12):
        square = np.square(points[i] - points[j]).sum()
        plain[i] += rows.multiplicity[j] * np.exp(-square / (2 * width**2))
    found = Density()._densities(rows, np.random.default_rng(seed).permutation(12))
    assert found.tolist() == pytest.approx((plain / rows.multiplicity.sum()).tolist(), rel=1e-6)


@pytest.mark.parametrize("num_references", [200, 2000])
def test_a_few_lonely_rows_do_not_make_the_choice_uniform(num_references: int) -> None:
    rng = np.random.default_rng(0)
    dense, spread, far = (rng.normal(size=(n, 8)) * s for n, s in ((900, 1), (100, 3), (5, 30)))
    rows = by_hand(np.concatenate([dense, spread, far]).tolist())
    rows = dataclasses.replace(rows, row_ids=rng.permutation(1005))
    selector = Density(reference_rows=num_references)
    kept, _ = selector.select(rows, Budget(200), np.random.default_rng(1))
    numbers = np.bincount(np.digitize(kept, [900, 1000]), minlength=3)
    # By the density over all rows 97.1, 97.9 and 5 are expected; a uniform choice has 179, 20, 1.
    assert 90 < numbers[0] < 104 and 91 < numbers[1] < 105 and numbers[2] == 5
