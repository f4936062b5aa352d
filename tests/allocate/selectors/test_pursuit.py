"""Matching pursuit: by hand, against a direct solution, and what is done where it ends early."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.pursuit import match_sum
from stages.allocate.selectors.gradmatch import GradMatch
from stages.allocate.selectors.tagcos import Tagcos, pursue
from stages.allocate.selectors.uniform import Uniform
from tests.allocate.samples import by_hand, candidates
from tests.allocate.selectors.helpers import kept_rows, select
from tests.artifacts import SEEDED


def test_a_pursuit_by_hand() -> None:
    rows, target = np.eye(3), np.array([3.0, 2.0, 0.0])
    chosen, weights = match_sum(rows, target, 3, ridge=1.0, tolerance=0.0)
    assert chosen.tolist() == [0, 1]  # the third does not point along what is left
    assert np.allclose(weights, [1.5, 1.0])  # 3 / (1 + 1), 2 / (1 + 1); the mean square is 1
    chosen, _ = match_sum(rows, target, 1, ridge=1.0, tolerance=0.0)
    assert chosen.tolist() == [0]


@SEEDED
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_a_pursuit_solves_for_the_rows_that_it_chose(seed: int, quota: int) -> None:
    rng = np.random.default_rng(seed)
    rows, target = rng.normal(size=(25, 4)), rng.normal(size=4) * 10
    chosen, weights = match_sum(rows, target, quota, ridge=0.1, tolerance=1e-3)
    assert chosen.size <= quota
    assert len(set(chosen.tolist())) == chosen.size
    assert np.all(weights > 0)
    own = rows[chosen]
    lift = 0.1 * np.square(rows).sum() / 25
    direct = np.linalg.solve(own @ own.T + lift * np.eye(chosen.size), own @ target)
    assert np.allclose(weights, direct, rtol=1e-6, atol=1e-9)


def test_a_pursuit_finds_the_rows_that_made_the_target() -> None:
    rows = np.random.default_rng(0).normal(size=(30, 200))
    target = 2 * rows[4] + 5 * rows[17]
    chosen, weights = match_sum(rows, target, 10, ridge=1e-9, tolerance=1e-6)
    assert chosen.tolist() == [17, 4]
    assert np.allclose(weights, [5, 2])


def test_a_pursuit_of_nothing_chooses_nothing() -> None:
    chosen, weights = match_sum(np.zeros((3, 2)), np.zeros(2), 2, ridge=1.0, tolerance=0.0)
    assert chosen.size == weights.size == 0


def test_gradmatch_by_hand_is_filled_up_at_random(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rows = by_hand([[1, 0], [1, 0], [0, 1], [0, -1]], multiplicity=[2, 1, 2, 2])
    found = set()
    for seed in range(20):
        kept, weights = select(GradMatch(ridge=1e-6), rows, 2, seed=seed)
        # The sum is (3, 0), which row 0 with weight 3 makes; the other row stands for its own
        # duplicates.
        assert kept[0] == 0
        raw = np.array([3.0, 1.0 if kept[1] == 1 else 2.0])
        assert np.allclose(weights, raw / raw.mean(), atol=1e-5)
        found.add(kept[1])
    assert found == {1, 2, 3}
    assert "the pursuit chose 1 of 2 rows" in caplog.text


def test_gradmatch_goes_into_clusters_beyond_its_dimensions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rows = candidates([20, 20], dim=4)  # features of 12 dimensions
    for count, within in ((12, "all"), (13, "clusters")):
        caplog.clear()
        auto = select(GradMatch(), rows, count)
        assert f"within {within}" in caplog.text
        plain = select(GradMatch(within=within), rows, count)
        assert auto[0] == plain[0]
        assert np.array_equal(auto[1], plain[1])


def test_gradmatch_weights_of_clusters_are_in_original_rows() -> None:
    rows = by_hand([[1, 0], [1, 0], [0, 1]], cluster=[0, 0, 1])
    exact = GradMatch(ridge=1e-9, within="clusters")
    kept, weights = select(exact, rows, 2)
    assert kept == [0, 2]
    assert np.allclose(weights, [4 / 3, 2 / 3])  # 2 and 1 before scaling
    # The cluster at 100 keeps nothing; its row counts for the nearest cluster.
    rows = by_hand([[1], [1], [100], [102], [102]], cluster=[0, 0, 1, 2, 2])
    kept, weights = select(exact, rows, 2)
    assert kept == [0, 3]
    assert np.allclose(weights, [0.8, 1.2])  # 2 rows, and 2 + 1


def test_gradmatch_comes_nearer_to_the_whole_gradient_than_chance() -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(200, 30)) + rng.normal(size=30) * 0.3
    rows = by_hand(features.tolist())
    whole = features.mean(axis=0)

    def error(selector: object, seed: int) -> float:
        kept, weights = select(selector, rows, 15, seed=seed)
        return float(np.linalg.norm(weights @ features[kept] / 15 - whole))

    by_chance = np.mean([error(Uniform(), seed) for seed in range(20)])
    assert error(GradMatch(ridge=0.01), 0) < 0.7 * by_chance


def test_tagcos_starts_again_and_then_takes_what_points_away_least() -> None:
    rows = np.array([[-1.0, 0.0], [1, 0], [1, 0], [-0.6, 0.8]])
    target = np.array([1.0, 0.0]) / 3
    chosen, weights = pursue(rows, target, 4, ridge=1e-9, tolerance=1e-4)
    assert chosen.tolist() == [1, 2, 3, 0]
    assert np.allclose(weights, 1 / 3)


def test_tagcos_weighs_by_its_coefficients_and_the_clusters_share() -> None:
    rows = by_hand(
        [[1, 0], [1, 0], [0, 2], [0, 3]], cluster=[0, 0, 0, 1], multiplicity=[2, 1, 1, 4]
    )
    kept, weights = select(Tagcos(ridge=1.0), rows, 3)
    # The first cluster gives two rows. Its mean of unit rows is (3, 1) / 4: row 0 with 3 / 8, what
    # is left is (3, 2) / 8; then row 1, and both have 3 / 4 / 3 = 1 / 4. Shares are 4 of 8.
    assert kept == [0, 1, 3]
    assert np.allclose(weights, [0.75, 0.75, 1.5])


def test_tagcos_looks_at_directions_only() -> None:
    features = np.random.default_rng(0).normal(size=(20, 5)) + 0.5
    scales = np.random.default_rng(1).lognormal(size=(20, 1))
    plain, scaled = by_hand(features.tolist()), by_hand((features * scales).tolist())
    assert kept_rows(Tagcos(), plain, 6) == kept_rows(Tagcos(), scaled, 6)
