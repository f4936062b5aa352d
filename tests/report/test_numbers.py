import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.report.numbers import (
    STRIP_STEPS,
    cluster_rows,
    extremes,
    histogram,
    project,
    sample_both,
    sample_places,
    step_tokens,
    strip,
    worker_rows,
)
from tests.artifacts import SEEDED
from tests.report.pools import POOL


def test_clusters_by_hand() -> None:
    first, second = cluster_rows(POOL)
    assert first == {
        "cluster": 0,
        "rows": 4,
        "share": 6 / 8,
        "kept": 2,
        "kept_share": 0.5,
        "weight": 1.5 / 4,
        "loss": 2.5,
        "tokens": 25.0,
        "tokens_kept": 20.0,
    }
    assert second["share"] == 2 / 8 and second["loss"] == 6.0 and second["weight"] == 2.5 / 4


def test_a_cluster_of_which_nothing_is_kept_divides_by_no_zero() -> None:
    pool = dataclasses.replace(
        POOL,
        kept=np.array([0, 2]),
        weight=np.ones(2),
        worker=np.array([0, 1]),
        position=np.array([0, 0]),
    )
    assert cluster_rows(pool)[1]["tokens_kept"] == 0.0
    assert cluster_rows(pool)[1]["kept"] == 0


def test_the_nearest_and_the_farthest_are_apart_and_ties_go_to_the_earlier_row() -> None:
    nearest, farthest = extremes(POOL, 0, 2)
    assert nearest.tolist() == [1, 3]  # distances 0.1 and 0.2
    assert farthest.tolist() == [2, 0]  # 0.3 twice
    nearest, farthest = extremes(POOL, 0, 3)
    assert nearest.tolist() == [1, 3, 0] and farthest.tolist() == [2]
    nearest, farthest = extremes(POOL, 1, 3)
    assert nearest.tolist() == [5, 4] and farthest.tolist() == []


def test_tokens_of_steps_and_what_workers_get_by_hand() -> None:
    tokens = step_tokens(POOL)
    assert tokens.tolist() == [[10, 30], [50, 60]]
    first, second = worker_rows(POOL, tokens)
    assert first == {
        "worker": 0,
        "rows": 2,
        "tokens": 60,
        "clusters": 2,
        "weight": 0.75,
        "busiest": 0.0,
        "waits": pytest.approx(1 - 60 / 90),
    }
    assert second["busiest"] == 1.0 and second["waits"] == 0.0


def test_the_strip_sets_each_worker_beside_the_mean_of_its_step() -> None:
    cells = strip(step_tokens(POOL))
    assert [(c["step"], c["stop"], c["worker"], c["ratio"]) for c in cells] == [
        (0, 1, 0, 0.5),
        (0, 1, 1, 1.5),
        (1, 2, 0, pytest.approx(50 / 55)),
        (1, 2, 1, pytest.approx(60 / 55)),
    ]


@given(num_steps=st.integers(1, 700), num_workers=st.integers(1, 4))
@SEEDED
def test_the_strip_covers_every_step_once_and_has_bounded_length(
    num_steps: int, num_workers: int
) -> None:
    tokens = np.random.default_rng(num_steps).integers(1, 50, (num_steps, num_workers))
    cells = [c for c in strip(tokens) if c["worker"] == 0]
    assert len(cells) == min(num_steps, STRIP_STEPS)
    edges = [c["step"] for c in cells] + [cells[-1]["stop"]]
    assert edges[0] == 0 and edges[-1] == num_steps
    assert np.all(np.diff(edges) > 0)
    assert [c["stop"] for c in cells] == edges[1:]


def test_the_histogram_counts_every_weight() -> None:
    bins = histogram(np.array([0.5, 0.5, 1.0, 2.9]))
    assert sum(b["rows"] for b in bins) == 4
    assert bins[0]["rows"] == 2 and bins[-1]["rows"] == 1
    assert histogram(np.ones(5)) == [{"start": 1.0, "stop": 1.0, "rows": 5}]


def test_rows_on_a_line_are_laid_on_a_line() -> None:
    rows = np.array([[1, 2, 0], [2, 4, 0], [3, 6, 0]], np.float32)
    plane, others, share = project(rows, np.array([[2, 4, 0]], np.float32))
    assert share == pytest.approx(1.0)
    assert plane[:, 0].tolist() == pytest.approx([-(5**0.5), 0, 5**0.5])
    assert np.abs(plane[:, 1]).max() < 1e-9
    assert np.abs(others).max() < 1e-9


def test_the_plane_is_that_of_a_singular_value_decomposition() -> None:
    rows = np.random.default_rng(3).normal(size=(40, 6)).astype(np.float32)
    plane, _, share = project(rows, rows[:1])
    centred = rows.astype(np.float64) - rows.astype(np.float64).mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    expected = left[:, :2] * values[:2]
    assert np.abs(plane) == pytest.approx(np.abs(expected), abs=1e-6)
    assert share == pytest.approx(np.square(values[:2]).sum() / np.square(values).sum())


def test_one_dimension_and_equal_rows_are_laid_out_too() -> None:
    plane, _, share = project(np.array([[1.0], [3.0]], np.float32), np.zeros((1, 1), np.float32))
    assert plane[:, 0].tolist() == [-1.0, 1.0] and plane[:, 1].tolist() == [0.0, 0.0]
    assert share == 1.0
    plane, _, share = project(np.ones((3, 2), np.float32), np.ones((1, 2), np.float32))
    assert np.all(plane == 0) and share == 0.0


@given(
    num_kept=st.integers(0, 60),
    num_dropped=st.integers(0, 60),
    most=st.integers(2, 40),
    seed=st.integers(0, 9),
)
@SEEDED
def test_half_of_the_map_is_kept_where_there_are_enough_of_both(
    num_kept: int, num_dropped: int, most: int, seed: int
) -> None:
    kept = np.random.default_rng(seed).permutation(
        np.repeat([True, False], [num_kept, num_dropped])
    )
    places = sample_both(kept, most, np.random.default_rng(seed))
    assert places.size == min(most, kept.size)
    assert np.all(np.diff(places) > 0)
    drawn = int(kept[places].sum())
    assert drawn >= min(num_kept, most // 2)
    assert places.size - drawn >= min(num_dropped, most // 2)


def test_few_places_are_all_drawn() -> None:
    assert sample_places(3, 5, np.random.default_rng(0)).tolist() == [0, 1, 2]
    drawn = sample_places(100, 5, np.random.default_rng(0))
    assert drawn.size == 5 and np.all(np.diff(drawn) > 0)
