"""Selectors by geometry: by hand, against brute force, and in blocks as in one piece."""

import itertools
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.greedy import facility_location, squared_seeding
from stages.allocate.neighbours import (
    most_similar_before,
    nearest_of,
    nearest_rows,
    unit_rows,
)
from stages.allocate.selectors.badge import Badge
from stages.allocate.selectors.d2 import D2, spread_forward, take_and_lower
from stages.allocate.selectors.deita_repr import DeitaRepr
from stages.allocate.selectors.facility_location import FacilityLocation
from stages.allocate.selectors.kcenter import KCenter
from stages.allocate.selectors.semdedup import SemDeDup, fold
from tests.allocate.samples import by_hand, candidates
from tests.allocate.selectors.helpers import kept_rows, select
from tests.artifacts import FEW

LINE = [[0], [1], [10], [11], [5]]


def test_kcenter_goes_from_the_middle_to_the_ends() -> None:
    rows = by_hand(LINE)  # the centre is 5.4
    assert kept_rows(KCenter(outliers=0.0), rows, 1) == [4]
    assert kept_rows(KCenter(outliers=0.0), rows, 2) == [3, 4]
    assert kept_rows(KCenter(outliers=0.0), rows, 3) == [0, 3, 4]


def test_kcenter_passes_over_the_loneliest_as_far_as_it_can() -> None:
    rows = by_hand([*LINE, [1000]])
    lonely = KCenter(outliers=0.2, neighbours=2)
    assert 5 in kept_rows(KCenter(outliers=0.0), rows, 2)
    assert 5 not in kept_rows(lonely, rows, 2)
    assert kept_rows(lonely, rows, 6) == list(range(6))


def test_kcenter_covers_each_cluster_or_all() -> None:
    rows = by_hand([[0], [1], [2], [100], [140], [180]], cluster=[0, 0, 0, 1, 1, 1])
    assert kept_rows(KCenter(outliers=0.0), rows, 4) == [0, 1, 3, 4]
    assert kept_rows(KCenter(outliers=0.0, within="all"), rows, 4) == [1, 3, 4, 5]


def test_seeding_by_hand() -> None:
    rows = np.array([[0.0], [1.0], [3.0]])
    for uniform, second in ((0.0, 0), (0.69, 0), (0.7, 1), (0.999, 1)):  # 9 and 4 of 13
        uniforms = np.array([0.0, uniform])
        assert squared_seeding(rows, 2, first=2, uniforms=uniforms).tolist() == [2, second]


def test_seeding_of_equal_rows_draws_evenly_and_none_twice() -> None:
    hits = np.zeros(4)
    for uniform in (np.arange(300) + 0.5) / 300:
        chosen = squared_seeding(np.ones((4, 2)), 2, first=0, uniforms=np.array([0.0, uniform]))
        hits[chosen[1]] += 1
    assert hits.tolist() == [0, 100, 100, 100]


@pytest.mark.parametrize("seed", range(10))
def test_seeding_takes_no_row_twice_for_rounding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.tile(rng.normal(size=7), (6, 1))  # a row's distance to itself is not always 0
    chosen = squared_seeding(rows, 6, first=0, uniforms=rng.random(6))
    assert sorted(chosen) == list(range(6))


def test_badge_begins_with_the_largest_norm_and_goes_far() -> None:
    rows = by_hand([[0, 1], [0, 1.1], [9, 0], [0, 1.2], [9.1, 0]])
    for seed in range(10):
        assert kept_rows(Badge(), rows, 1, seed=seed) == [4]
        kept = kept_rows(Badge(), rows, 2, seed=seed)
        assert kept[1] == 4
        assert kept[0] in (0, 1, 3)


def test_facility_location_by_hand_with_its_counts() -> None:
    rows = np.array([[0.0], [1], [2], [10], [11], [12]])
    ones, draws = np.ones(6), np.zeros(6)
    # From 2 and from 10 all lie 30 away; after 2, row 11 saves 25 and its neighbours 24.
    assert facility_location(rows, ones, 2, draws=draws, epsilon=0.1).tolist() == [2, 4]
    sample = by_hand(rows.tolist(), multiplicity=[1, 1, 1, 1, 1, 4])
    kept, weights = select(FacilityLocation(), sample, 2)
    # Now the last row counts four times: 35 from 11, and after it row 1 saves 28.
    assert kept == [1, 4]
    assert np.allclose(weights, np.array([3, 6]) * 2 / 9)


def test_facility_location_keeps_each_clusters_share() -> None:
    rows = candidates([17, 5, 30, 11])
    kept, weights = select(FacilityLocation(), rows, 20)
    shares = np.bincount(rows.cluster[kept], weights=weights) / 20
    assert np.allclose(shares, rows.mass() / rows.mass().sum())


def cost(rows: np.ndarray, mass: np.ndarray, chosen: list[int]) -> float:
    gaps = np.linalg.norm(rows[:, None] - rows[chosen][None], axis=2)
    return float(mass @ gaps.min(axis=1))


@FEW
@given(st.integers(0, 10_000))
def test_facility_location_is_greedy_and_near_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, mass = rng.normal(size=(9, 2)), rng.integers(1, 4, 9).astype(float)
    chosen = facility_location(rows, mass, 3, draws=rng.random(9), epsilon=0.1).tolist()
    for step in range(3):  # each choice is the best next one
        costs = [cost(rows, mass, [*chosen[:step], row]) for row in range(9)]
        assert cost(rows, mass, chosen[: step + 1]) <= min(costs) + 1e-9
    best = min(cost(rows, mass, list(three)) for three in itertools.combinations(range(9), 3))
    nothing = float(mass.sum()) * 2 * float(np.linalg.norm(rows, axis=1).max())
    assert nothing - cost(rows, mass, chosen) >= (1 - 1 / np.e) * (nothing - best)


@FEW
@given(st.integers(0, 10_000))
def test_stochastic_greedy_that_looks_at_all_rows_is_the_exact_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, mass, draws = rng.normal(size=(30, 3)), np.ones(30), rng.random(30)
    exact = facility_location(rows, mass, 8, draws=draws, epsilon=1e-9)
    looking = facility_location(rows, mass, 8, draws=draws, epsilon=1e-9, exact_rows=0)
    assert exact.tolist() == looking.tolist()
    few = facility_location(rows, mass, 8, draws=draws, epsilon=0.9, exact_rows=0)
    assert len(set(few.tolist())) == 8


@pytest.mark.parametrize("epsilon", [0.1, 0.5])
def test_stochastic_greedy_can_choose_every_row(epsilon: float) -> None:
    chosen = facility_location(
        np.ones((7, 2)), np.ones(7), 7, draws=np.arange(7.0), epsilon=epsilon, exact_rows=0
    )
    assert sorted(chosen) == list(range(7))


@FEW
@given(st.integers(2, 20), st.integers(1, 5), st.integers(0, 1000))
def test_neighbours_in_blocks_are_those_of_the_whole(num_rows: int, width: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.allocate.neighbours.BLOCK", 3)
        rows = np.random.default_rng(seed).normal(size=(num_rows, 2))
        gaps = np.linalg.norm(rows[:, None] - rows[None], axis=2)
        distances, neighbours = nearest_rows(rows, width)
        alone = gaps + np.diag(np.full(num_rows, np.inf))
        order = np.argsort(alone, axis=1)[:, : min(width, num_rows - 1)]
        assert np.array_equal(neighbours, order)
        assert np.allclose(distances, np.take_along_axis(gaps, order, axis=1))
        chosen = np.arange(0, num_rows, 2)
        assert np.array_equal(nearest_of(rows, chosen), np.argmin(gaps[:, chosen], axis=1))
        cosines = unit_rows(rows) @ unit_rows(rows).T
        found, earlier = most_similar_before(rows)
        assert found[0] == -np.inf
        assert earlier[0] == -1
        for row in range(1, num_rows):
            assert found[row] == pytest.approx(cosines[row, :row].max())
            assert earlier[row] == np.argmax(cosines[row, :row])


def test_difficulty_is_spread_and_taken_by_hand() -> None:
    scores, neighbours = np.array([3.0, 2.0]), np.array([[1], [0]])
    spread = spread_forward(scores, np.ones((2, 1)), neighbours, float(np.log(2)))
    assert np.allclose(spread, [4, 3.5])
    for weight, second in ((0.5, 1), (0.75, 2)):  # 3.5 - 2 = 1.5 and 3.5 - 3 = 0.5, against 1
        chosen = take_and_lower(
            np.array([4, 3.5, 1]),
            np.array([[weight], [weight], [0.0]]),
            np.array([[1], [0], [0]]),
            2,
            ties=np.arange(3),
        )
        assert chosen.tolist() == [0, second]


@FEW
@given(st.integers(0, 1000))
def test_the_heap_takes_what_a_plain_loop_takes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, weights = rng.random(15), rng.random((15, 3))
    neighbours = np.stack([rng.choice(np.delete(np.arange(15), i), 3, False) for i in range(15)])
    chosen = take_and_lower(scores, weights, neighbours, 15, ties=np.arange(15))
    current, expected = scores.copy(), []
    for _ in range(15):
        row = int(np.argmax(np.where(np.isin(np.arange(15), expected), -np.inf, current)))
        expected.append(row)
        current[neighbours[row]] -= weights[row] * current[row]
    assert chosen.tolist() == expected


def test_d2_prefers_a_row_of_its_own_to_the_neighbour_of_a_taken_one() -> None:
    rows = by_hand([[0], [0.1], [5], [9]], signals={"loss": [3, 2.9, 2, 0.5]})
    assert kept_rows(D2(neighbours=1, forward=100.0), rows, 2) == [0, 2]
    # The unit of the feature does not matter.
    wide = by_hand([[0], [10], [500], [900]], signals={"loss": [3, 2.9, 2, 0.5]})
    assert kept_rows(D2(neighbours=1, forward=100.0), wide, 2) == [0, 2]
    # Without messages it is the loss alone.
    alone = D2(neighbours=1, forward=1e9, backward=1e9, signal="loss")
    apart = by_hand([[0], [1], [2.1], [3.3]], signals={"loss": [3, 2.9, 2, 0.5]})
    assert kept_rows(alone, apart, 2) == [0, 1]


def test_d2_makes_its_graph_inside_clusters() -> None:
    features, loss = [[0], [0.1], [50], [50.1]], {"loss": [3, 2.9, 2, 1.9]}
    joined = by_hand(features, signals=loss)
    split = by_hand(features, cluster=[0, 1, 0, 1], signals=loss)
    assert kept_rows(D2(neighbours=1), joined, 2) == [0, 2]
    assert kept_rows(D2(neighbours=1), split, 2) == [0, 1]


def test_rows_are_folded_into_the_first_kept_row_of_their_chain() -> None:
    earlier, multiplicity = np.array([0, 0, 1, 2]), np.array([1, 2, 3, 4])
    assert fold(np.array([0, 2]), earlier, multiplicity).tolist() == [3, 7]
    assert fold(np.array([0]), earlier, multiplicity).tolist() == [10]


def test_semdedup_removes_the_double_and_counts_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rows = by_hand([[1, 0], [1, 0.01], [0, 1]], multiplicity=[1, 2, 1])
    # The mean leans to the first two, and of them to the second.
    kept, weights = select(SemDeDup(order="hard"), rows, 2)
    assert kept == [0, 2]
    assert np.allclose(weights, [1.5, 0.5])
    assert "semdedup kept cosines up to 0.0000" in caplog.text
    kept, weights = select(SemDeDup(order="easy"), rows, 2)
    assert kept == [1, 2]
    assert np.allclose(weights, [1.5, 0.5])


def test_semdedup_looks_inside_clusters_only() -> None:
    rows = by_hand([[1, 0], [1, 0], [0, 1], [1, 1]], cluster=[0, 1, 0, 1])
    assert kept_rows(SemDeDup(order="easy"), rows, 3) == [0, 1, 2]


def angles(*degrees: float) -> list[list[float]]:
    return [[float(np.cos(np.radians(a))), float(np.sin(np.radians(a)))] for a in degrees]


@pytest.mark.parametrize("block", [1, 2, 512])
def test_deita_compares_with_accepted_rows_only(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.allocate.selectors.deita_repr.BLOCK", block)
    # 20 degrees is refused (cosine 0.94 with 0); 40 is as near to 20, but only 0 counts.
    rows = by_hand(angles(0, 20, 40, 90), signals={"loss": [4, 3, 2, 1]})
    assert kept_rows(DeitaRepr(), rows, 2) == [0, 2]
    assert kept_rows(DeitaRepr(), rows, 3) == [0, 2, 3]


def test_deita_is_filled_up_in_order_of_the_list(caplog: pytest.LogCaptureFixture) -> None:
    rows = by_hand(angles(0, 1, 2, 90), signals={"loss": [1, 2, 3, 0]})
    assert kept_rows(DeitaRepr(), rows, 3) == [1, 2, 3]
    assert "2 rows are less similar than allocate.selector.threshold=0.9; 1 others" in caplog.text
    assert len(kept_rows(DeitaRepr(signal="random"), rows, 2)) == 2


def test_deita_reads_in_pieces_what_it_reads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = candidates([30, 33])
    selector = DeitaRepr(threshold=0.99)
    whole = [kept_rows(selector, rows, count) for count in (5, 20)]
    monkeypatch.setattr("stages.allocate.selectors.deita_repr.ROWS_READ", 7)
    assert [kept_rows(selector, rows, count) for count in (5, 20)] == whole
