"""Figures of a selection: numbers by hand, and a plain loop beside the fast sums."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate import figures as figures_module
from stages.allocate import quality
from stages.allocate.candidates import Candidates
from stages.allocate.figures import Figures, beside_random, figures_of, random_figures
from stages.allocate.quality import (
    Weighted,
    coverage_radii,
    judge_sums,
    mix_shift,
    random_draws,
    relative_errors,
    step_errors,
)
from tests.allocate.samples import candidates
from tests.artifacts import SEEDED

NO_STEPS = np.empty((0, 1), np.int64)
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
    sums, masses, _ = judge_sums(four(), lambda places: JUDGE[places], [kept], [NO_STEPS])
    # All rows: (1 + 3, 2 * 2 + 6) / 5 = (0.8, 2); kept: (3, 2) / 2 = (1.5, 1).
    assert sums[0].tolist() == [[4.0, 0.0], [0.0, 10.0]]
    assert masses.tolist() == [[2.0, 3.0], [1.0, 1.0]]
    whole, per_cluster = relative_errors(sums, masses)
    assert whole[0] == pytest.approx(np.hypot(0.7, 1.0) / np.hypot(0.8, 2.0))
    # Clusters: 3 against 2, and 2 against 10 / 3.
    assert per_cluster[0].tolist() == pytest.approx([0.5, 0.4])


def test_a_cluster_of_which_nothing_is_kept_has_no_error() -> None:
    kept = Weighted(np.array([0, 1]), np.array([1.0, 1.0]))
    sums, masses, _ = judge_sums(four(), lambda places: JUDGE[places], [kept], [NO_STEPS])
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
    steps = np.array([[0], [1]])
    _, _, (sums,) = judge_sums(four(), lambda places: JUDGE[places], [kept], [steps])
    found = step_errors(sums, 1, np.array([3.0, 4.0]))
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
    found = coverage_radii(rows, np.arange(4), [np.array([0, 3]), np.array([1])])
    assert found[0].tolist() == pytest.approx([(0 + 1 + 4 + 0) / 4, 4.0])
    assert found[1].tolist() == pytest.approx([(1 + 0 + 4 + 8) / 4, 8.0])


@SEEDED
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    block=st.sampled_from([1, 3, 8192]),
)
def test_the_fast_sums_are_the_plain_loop(seed: int, sizes: list[int], block: int) -> None:
    rng = np.random.default_rng(seed)
    rows = candidates(sizes, seed=seed)
    judge = rng.normal(size=(rows.num_rows, 3)).astype(np.float32)
    selections, steps = [], []
    for share in (0.6, 1.0):
        kept = np.flatnonzero(rng.random(rows.num_rows) <= share)
        selections.append(Weighted(kept, rng.random(kept.size) + 0.1))
        steps.append(rng.permutation(kept.size)[: kept.size // 2 * 2].reshape(-1, 2)[:3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "BLOCK_ROWS", block)
        sums, masses, step_sums = judge_sums(rows, lambda p: judge[p], selections, steps)
    for which, chosen in enumerate(selections):
        plain = np.zeros((rows.num_clusters, 3))
        for weight, row in zip(chosen.weights, chosen.rows, strict=True):
            plain[rows.cluster[row]] += weight * judge[row].astype(np.float64)
        assert np.allclose(sums[which + 1], plain, rtol=0, atol=1e-12)
        mass = np.bincount(rows.cluster[chosen.rows], chosen.weights, rows.num_clusters)
        assert np.allclose(masses[which + 1], mass, rtol=0, atol=1e-12)
        for step, found in zip(steps[which], step_sums[which], strict=True):
            own = sum(chosen.weights[i] * judge[chosen.rows[i]].astype(np.float64) for i in step)
            assert np.allclose(found, own, rtol=0, atol=1e-12)


@SEEDED
@given(seed=st.integers(0, 10_000), num_rows=st.integers(2, 40), block=st.sampled_from([1, 7, 512]))
def test_the_radii_are_those_of_all_pairs(seed: int, num_rows: int, block: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(-9, 10, (num_rows, 3)).astype(np.float32)  # exact in any order of sums
    rows = dataclasses.replace(candidates([num_rows]), read_embeddings=lambda p: points[p])
    looked_at = np.flatnonzero(rng.random(num_rows) < 0.7)
    looked_at = looked_at if looked_at.size else np.arange(num_rows)
    kept = [np.sort(rng.permutation(num_rows)[: 1 + num_rows // k]) for k in (2, 3, 9)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "BLOCK", block)
        patch.setattr(quality, "BLOCK_ROWS", 2 * block)
        found = coverage_radii(rows, looked_at, kept)
    for radii, own in zip(found, kept, strict=True):
        apart = points[looked_at][:, None].astype(np.float64) - points[own]
        gaps = np.linalg.norm(apart, axis=2).min(axis=1)
        assert radii.tolist() == pytest.approx([gaps.mean(), gaps.max()], abs=1e-12)


@pytest.mark.parametrize("block", [16, 100, 8192])
@pytest.mark.parametrize(("num_rows", "num_draws"), [(40, 2), (400, 3), (400, 20), (1600, 20)])
def test_features_are_read_so_often_whatever_the_rows_the_steps_and_the_draws(
    num_rows: int, num_draws: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "BLOCK_ROWS", block)
    monkeypatch.setattr(quality, "COVERAGE_ROWS", 200)
    rows = candidates([num_rows // 2] * 2)
    reads: dict[str, list[np.ndarray]] = {"judge": [], "embedding": []}

    def embeddings(places: np.ndarray) -> np.ndarray:
        reads["embedding"].append(places)
        return rows.read_embeddings(places)

    def judge(places: np.ndarray) -> np.ndarray:
        reads["judge"].append(places)
        return rows.read_feature("judge", places)

    counted = dataclasses.replace(rows, read_embeddings=embeddings)
    shape = (num_rows // 4, 2, 1)
    random_figures(counted, judge, shape, np.random.default_rng(0), num_draws=num_draws)
    assert np.concatenate(reads["judge"]).tolist() == list(range(num_rows)), "each row once"
    first, *later = reads["embedding"]
    for places in (first, np.concatenate(later)):  # two passes, each in order and each row once
        assert np.all(np.diff(places) > 0)
    assert first.size == min(num_rows, 200)
    assert max(places.size for places in (*reads["judge"], *later)) <= block


def test_blocks_and_samples_change_no_figure_but_the_radii_and_those_hardly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = candidates([300, 200, 100], seed=3)
    rng = np.random.default_rng(0)
    kept = np.sort(rng.permutation(600)[:240])
    chosen = Weighted(kept, np.ones(240))
    plan = rng.permutation(240).reshape(60, 2, 2)

    def found() -> Figures:
        (own,) = figures_of(
            rows,
            lambda p: rows.read_feature("judge", p),
            [chosen],
            [plan],
            np.random.default_rng(1),
        )
        return own

    whole = found()
    monkeypatch.setattr(quality, "BLOCK_ROWS", 64)
    monkeypatch.setattr(quality, "COVERAGE_ROWS", 220)
    sampled = found()
    assert sampled.gradient_error == pytest.approx(whole.gradient_error, abs=1e-12)
    assert sampled.step_error == pytest.approx(whole.step_error, abs=1e-12)
    assert sampled.cluster_error_worst == pytest.approx(whole.cluster_error_worst, abs=1e-12)
    assert sampled.radius_mean == pytest.approx(whole.radius_mean, rel=0.2)
    assert sampled.radius_mean != whole.radius_mean
    monkeypatch.setattr(figures_module, "STEPS", 60)
    plain = rows.read_feature("judge", np.arange(600)).astype(np.float64)
    mean = rows.multiplicity @ plain / rows.multiplicity.sum()
    gaps = plain[kept][plan.reshape(60, 4)].mean(axis=1) - mean
    expected = np.linalg.norm(gaps, axis=1).mean() / np.linalg.norm(mean)
    assert found().step_error == pytest.approx(expected, abs=1e-12)


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
