"""The soft cap: by hand, then deferred acceptance against the plain greedy walk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.cluster.capacity import capped_labels, exceeds_cap, place_rest, soft_capacity
from tests.artifacts import SEEDED

SIZES = st.tuples(st.integers(1, 60), st.integers(1, 6))


@pytest.mark.parametrize(
    ("num_rows", "num_clusters", "slack", "expected"),
    [
        (10, 4, 0.5, 4),  # 3.75
        (8, 4, 0.5, 3),  # 3 exactly
        (10, 4, 0.0, 3),  # 2.5
        (12, 4, 0.0, 3),
        (7, 7, 0.0, 1),
        (1, 1, 0.5, 2),  # 1.5
        (30, 3, 0.1, 11),  # 11, though 1.1 * 30 / 3 is a little more in floating point
        (1000, 10, 0.07, 107),
    ],
)
def test_the_capacity_by_hand(
    num_rows: int, num_clusters: int, slack: float, expected: int
) -> None:
    assert soft_capacity(num_rows, num_clusters, slack) == expected


@pytest.mark.parametrize(
    ("sizes", "slack", "expected"),
    [
        ([4, 2, 2, 2], 0.5, True),  # 4 > 3.75
        ([3, 3, 2, 2], 0.5, False),
        ([3, 2, 2, 1], 0.5, False),  # 3 = 3
        ([3, 3, 3], 0.0, False),
        ([4, 3, 2], 0.0, True),
        ([5], 0.0, False),
    ],
)
def test_when_the_cap_is_exceeded_by_hand(sizes: list[int], slack: float, expected: bool) -> None:
    assert exceeds_cap(np.array(sizes), slack) is expected


def greedy(
    candidates: np.ndarray, distances: np.ndarray, capacity: int, num_clusters: int
) -> np.ndarray:
    """Walk over all pairs by (distance, row, centre): the paper's way."""
    triples = sorted(
        (distances[row, place], row, candidates[row, place])
        for row in range(candidates.shape[0])
        for place in range(candidates.shape[1])
    )
    labels = np.full(candidates.shape[0], -1)
    room = np.full(num_clusters, capacity)
    for _, row, center in triples:
        if labels[row] < 0 and room[center] > 0:
            labels[row] = center
            room[center] -= 1
    return labels


def nearest_first(distances: np.ndarray, num_candidates: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(distances, axis=1, kind="stable")[:, :num_candidates]
    return order.astype(np.int32), np.take_along_axis(distances, order, axis=1)


def draw(shape: tuple[int, int], levels: int, seed: int) -> np.ndarray:
    """Draw distances of few levels, so that many tie."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, levels, shape) / np.float32(7)).astype(np.float32)


def test_the_cap_by_hand() -> None:
    distances = np.array(
        [[0.1, 0.9], [0.2, 0.3], [0.3, 0.4], [0.4, 0.8]], np.float32
    )  # all prefer centre 0, which holds two: the nearest two stay
    labels, chosen = capped_labels(*nearest_first(distances, 2), 2, 2)
    assert labels.tolist() == [0, 0, 1, 1]
    assert chosen.tolist() == np.float32([0.1, 0.2, 0.4, 0.8]).tolist()


def test_ties_go_to_the_earlier_row() -> None:
    distances = np.array([[0.5, 0.6], [0.5, 0.6], [0.5, 0.6]], np.float32)
    labels, _ = capped_labels(*nearest_first(distances, 2), 1, 2)
    assert labels.tolist() == [0, 1, -1]


@SEEDED
@given(SIZES, st.integers(1, 40), st.integers(1, 20), st.integers(0, 10_000))
def test_the_cap_equals_the_greedy_walk_whatever_ties(
    shape: tuple[int, int], levels: int, capacity: int, seed: int
) -> None:
    distances = draw(shape, levels, seed)
    candidates, near = nearest_first(distances, shape[1])
    labels, chosen = capped_labels(candidates, near, capacity, shape[1])
    assert labels.tolist() == greedy(candidates, near, capacity, shape[1]).tolist()
    for row, label in enumerate(labels):
        assert chosen[row] == (distances[row, label] if label >= 0 else 0)


@SEEDED
@given(SIZES, st.integers(1, 5), st.integers(1, 40), st.floats(0, 1), st.integers(0, 10_000))
def test_few_candidates_equal_the_greedy_walk_and_the_rest_finds_room(
    shape: tuple[int, int], num_candidates: int, levels: int, slack: float, seed: int
) -> None:
    num_rows, num_clusters = shape
    distances = draw(shape, levels, seed)
    candidates, near = nearest_first(distances, min(num_candidates, num_clusters))
    capacity = soft_capacity(num_rows, num_clusters, slack)
    labels, chosen = capped_labels(candidates, near, capacity, num_clusters)
    assert labels.tolist() == greedy(candidates, near, capacity, num_clusters).tolist()
    rest = np.flatnonzero(labels < 0)
    placed, far = place_rest(labels, distances[rest].astype(np.float64), capacity)
    labels[rest], chosen[rest] = placed, far
    assert labels.min(initial=0) >= 0
    assert np.bincount(labels, minlength=num_clusters).max() <= capacity
    assert chosen.tolist() == distances[np.arange(num_rows), labels].tolist()


@SEEDED
@given(SIZES, st.integers(1, 40), st.integers(0, 10_000))
def test_no_row_and_centre_would_both_rather_have_each_other(
    shape: tuple[int, int], levels: int, seed: int
) -> None:
    num_rows, num_clusters = shape
    distances = draw(shape, levels, seed)
    capacity = soft_capacity(num_rows, num_clusters, 0.0)
    labels, chosen = capped_labels(*nearest_first(distances, num_clusters), capacity, num_clusters)
    assert labels.min() >= 0
    for center in range(num_clusters):
        held = np.flatnonzero(labels == center)
        if held.size < capacity:
            assert np.all(chosen <= distances[:, center])
        else:
            envious = np.flatnonzero(distances[:, center] < chosen)
            assert np.all(distances[envious, center] >= distances[held, center].max())


def test_the_rest_is_placed_nearest_first_by_hand() -> None:
    labels = np.array([0, 0, -1, 1, -1], np.int32)  # capacity 2: room for 0, 1 and 2 rows
    to_all = np.array([[0.0, 0.5, 0.7], [0.0, 0.4, 0.9]])
    placed, chosen = place_rest(labels, to_all, 2)
    assert placed.tolist() == [2, 1]
    assert chosen.tolist() == np.float32([0.7, 0.4]).tolist()
