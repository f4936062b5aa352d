"""Figures of a selection: numbers by hand, and a plain loop beside the fast sums."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.candidates import Candidates
from stages.allocate.figures import Figures, beside_random, figures_of, random_figures
from stages.allocate.quality import (
    Weighted,
    cluster_sums,
    coverage_radius,
    mix_shift,
    random_draws,
    relative_errors,
    step_errors,
)
from tests.allocate.samples import candidates
from tests.artifacts import SEEDED

JUDGE = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 6.0]], np.float32)


def four(**changes: object) -> Candidates:
    """Two clusters of two rows; the third row stands for two originals."""
    base = candidates([2, 2], duplicates=False)
    fixed = {
        "cluster": np.array([0, 0, 1, 1], np.int32),
        "multiplicity": np.array([1, 1, 2, 1]),
        "num_tokens": np.array([10, 20, 30, 40]),
        "source": np.array([0, 1, 1, 0], np.int32),
    }
    return dataclasses.replace(base, **{**fixed, **changes})


def test_errors_by_hand() -> None:
    kept = Weighted(np.array([1, 2]), np.array([1.0, 1.0]))
    sums, masses = cluster_sums(four(), lambda places: JUDGE[places], [kept])
    # All rows: (1 + 3, 2 * 2 + 6) / 5 = (0.8, 2); kept: (3, 2) / 2 = (1.5, 1).
    assert sums[0].tolist() == [[4.0, 0.0], [0.0, 10.0]]
    assert masses.tolist() == [[2.0, 3.0], [1.0, 1.0]]
    whole, per_cluster = relative_errors(sums, masses)
    assert whole[0] == pytest.approx(np.hypot(0.7, 1.0) / np.hypot(0.8, 2.0))
    # Clusters: 3 against 2, and 2 against 10 / 3.
    assert per_cluster[0].tolist() == pytest.approx([0.5, 0.4])


def test_a_cluster_of_which_nothing_is_kept_has_no_error() -> None:
    kept = Weighted(np.array([0, 1]), np.array([1.0, 1.0]))
    sums, masses = cluster_sums(four(), lambda places: JUDGE[places], [kept])
    _, per_cluster = relative_errors(sums, masses)
    assert per_cluster[0][0] == 0.0 and np.isnan(per_cluster[0][1])


def test_all_rows_by_their_multiplicity_have_no_error() -> None:
    every = Weighted(np.arange(4), np.array([0.8, 0.8, 1.6, 0.8]))
    plan = np.array([[[0, 1]], [[2, 3]]])
    (figures,) = figures_of(
        four(), lambda places: JUDGE[places], [every], [plan], np.random.default_rng(0)
    )
    assert figures.gradient_error == pytest.approx(0.0, abs=1e-12)
    assert figures.cluster_error_worst == pytest.approx(0.0, abs=1e-12)
    assert figures.radius_max == pytest.approx(0.0, abs=1e-3)
    assert figures.shift_of_sources == pytest.approx(0.0, abs=1e-12)
    assert figures.tokens == 100


def test_the_error_of_a_step_by_hand() -> None:
    kept = Weighted(np.array([0, 3]), np.array([0.5, 1.5]))
    found = step_errors(
        np.array([[[0]], [[1]]]), kept, lambda places: JUDGE[places], np.array([3.0, 4.0])
    )
    # Steps hold (0.5, 0) and (0, 9); the full gradient is (3, 4), of length 5.
    assert found.tolist() == pytest.approx([np.hypot(2.5, 4.0) / 5, np.hypot(3.0, 5.0) / 5])


def test_the_mix_by_hand() -> None:
    # Sources before: (1 + 1, 1 + 2) / 5; after: all of source 1.
    shift = mix_shift(four(), Weighted(np.array([1, 2]), np.array([1.0, 1.0])))
    assert shift["sources"] == pytest.approx(0.4)
    # Each length is a bin of its own: |1/5 - 0| + |1/5 - 1/2| + |2/5 - 1/2| + |1/5 - 0|, halved.
    assert shift["lengths"] == pytest.approx(0.4)


def test_the_radius_by_hand() -> None:
    points = np.array([[0.0], [1.0], [5.0], [9.0]], np.float32)
    rows = four(read_embeddings=lambda places: points[places])
    found = coverage_radius(rows, np.array([0, 3]), np.random.default_rng(0))
    assert found.tolist() == pytest.approx([(0 + 1 + 4 + 0) / 4, 4.0])


@SEEDED
@given(seed=st.integers(0, 10_000), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_the_fast_sums_are_the_plain_loop(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    rows = candidates(sizes, seed=seed)
    judge = rng.normal(size=(rows.num_rows, 3)).astype(np.float32)
    kept = np.flatnonzero(rng.random(rows.num_rows) < 0.6)
    weights = rng.random(kept.size) + 0.1
    sums, masses = cluster_sums(rows, lambda p: judge[p], [Weighted(kept, weights)])
    for k in range(rows.num_clusters):
        inside = [(w, i) for w, i in zip(weights, kept, strict=True) if rows.cluster[i] == k]
        plain = sum((w * judge[i].astype(np.float64) for w, i in inside), np.zeros(3))
        assert np.allclose(sums[1, k], plain)
        assert masses[1, k] == pytest.approx(sum(w for w, _ in inside))


def test_random_draws_are_of_the_size_asked_and_weigh_by_multiplicity() -> None:
    rows = candidates([30, 20])
    for draw in random_draws(rows, 12, np.random.default_rng(0), 5):
        assert np.all(np.diff(draw.rows) > 0) and draw.rows.size == 12
        assert draw.weights.mean() == pytest.approx(1.0)
        per_copy = draw.weights / rows.multiplicity[draw.rows]
        assert per_copy.tolist() == pytest.approx([per_copy[0]] * 12)


def test_more_random_rows_leave_less_error() -> None:
    rows = candidates([300, 100])
    judge = np.random.default_rng(1).normal(size=(400, 6)).astype(np.float32) + 1
    errors = []
    for steps in (2, 20, 80):
        drawn = random_figures(
            rows, lambda p: judge[p], (steps, 2, 2), np.random.default_rng(0), num_draws=8
        )
        errors.append(np.mean([figures.gradient_error for figures in drawn]))
    assert errors[0] > errors[1] > errors[2]


def test_beside_random_by_hand() -> None:
    def figures(error: float) -> Figures:
        return Figures(error, [error, None], error, error, 1.0, 0.5, 0.7, 1.0, 0.1, 0.2, 30)

    found = beside_random(figures(0.1), [figures(0.2), figures(0.4)])
    assert found["random"]["gradient_error"] == pytest.approx(0.3)
    assert found["random_std"]["gradient_error"] == pytest.approx(np.sqrt(0.02))
    assert found["ratio_to_random"] == pytest.approx(1 / 3)
    assert found["draws"] == 2 and found["selection"]["cluster_errors"] == [0.1, None]
