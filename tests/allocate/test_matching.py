"""Balanced sampling: numbers by hand, the plain loop, and promises over seeds."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.candidates import Budget
from stages.allocate.matching import Group, at_least_effective, calibrate, exchange, onto_sums
from stages.allocate.selectors.matched import Matched
from stages.allocate.weights import effective_sample_size
from tests.allocate.samples import by_hand, candidates
from tests.artifacts import FEW, SEEDED


def group_of(features: np.ndarray, cluster: np.ndarray, prior: np.ndarray | None = None) -> Group:
    """Build a group that stands for its own rows, each of the same share."""
    share = np.full(len(features), 1 / len(features))
    return Group(
        products=features @ features.T,
        pull=features @ (share @ features),
        cluster=cluster,
        wanted=np.bincount(cluster, share),
        prior=share if prior is None else prior,
    )


def error_of(features: np.ndarray, group: Group, kept: np.ndarray) -> float:
    carried = np.where(kept, group.carried(kept), 0.0)
    return float(np.linalg.norm(carried @ features - features.mean(axis=0)))


def test_an_exchange_by_hand() -> None:
    # Two of four numbers: 0 and 1 have mean 0.5, the mean of all is 3; 1 and 5 have it exactly.
    features = np.array([[0.0], [1.0], [5.0], [6.0]])
    group = group_of(features, np.zeros(4, np.int64))
    found = exchange(group, np.array([True, True, False, False]))
    assert error_of(features, group, found) == pytest.approx(0.0, abs=1e-12)
    assert found.tolist() in ([False, True, True, False], [True, False, False, True])


def test_rows_are_exchanged_inside_their_cluster_only() -> None:
    features = np.array([[0.0], [1.0], [5.0], [6.0]])
    group = group_of(features, np.array([0, 0, 1, 1]))
    found = exchange(group, np.array([True, False, True, False]))
    assert found[:2].sum() == 1 and found[2:].sum() == 1
    assert error_of(features, group, found) == pytest.approx(0.0, abs=1e-12)


@SEEDED
@given(seed=st.integers(0, 100_000), size=st.integers(4, 9), quota=st.integers(1, 3))
def test_no_single_exchange_is_left_that_would_help(seed: int, size: int, quota: int) -> None:
    """The plain loop over all pairs, with the shares as they stood at the first draw."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, 3))
    group = group_of(features, np.zeros(size, np.int64), rng.random(size) + 0.5)
    first = np.zeros(size, bool)
    first[rng.permutation(size)[:quota]] = True
    share = group.carried(first)

    def error(kept: np.ndarray) -> float:
        return float(np.square(np.where(kept, share, 0) @ features - features.mean(axis=0)).sum())

    found = exchange(group, first)
    assert found.sum() == quota
    assert error(found) <= error(first) + 1e-12
    for i, j in itertools.product(np.flatnonzero(found), np.flatnonzero(~found)):
        other = found.copy()
        other[i], other[j] = False, True
        assert error(other) >= error(found) - 1e-6 * error(first) - 1e-9


def test_calibrated_shares_by_hand() -> None:
    # Rows 0 and 4 should have mean 1 with shares that sum to 1: 3/4 and 1/4, if nothing holds them.
    features = np.array([[0.0], [4.0], [-1.0], [1.0]])
    group = group_of(features, np.zeros(4, np.int64))
    kept = np.array([True, True, False, False])
    free = calibrate(group, kept, ridge=1e-9, least=0.0, most=1.0)
    assert free.tolist() == pytest.approx([0.75, 0.25], abs=1e-4)
    held = calibrate(group, kept, ridge=1e9, least=0.0, most=1.0)
    assert held.tolist() == pytest.approx([0.5, 0.5], abs=1e-4)
    bounded = calibrate(group, kept, ridge=1e-9, least=0.0, most=0.6)
    assert bounded.tolist() == pytest.approx([0.6, 0.4], abs=1e-4)


@SEEDED
@given(seed=st.integers(0, 100_000), size=st.integers(1, 12), num_clusters=st.integers(1, 4))
def test_the_projection_is_the_nearest_point(seed: int, size: int, num_clusters: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = np.sort(
        np.concatenate([np.arange(num_clusters), rng.integers(0, num_clusters, size)])
    )
    values = rng.normal(size=cluster.size)
    low, high = np.full(cluster.size, 0.1), np.full(cluster.size, 2.0)
    counts = np.bincount(cluster)
    wanted = counts * rng.uniform(0.2, 1.9, num_clusters)
    found = onto_sums(values, cluster, wanted, low, high)
    assert np.allclose(np.bincount(cluster, found), wanted)
    assert np.all(found >= low - 1e-9) and np.all(found <= high + 1e-9)
    # Moving mass from one row to another of its cluster never brings it nearer.
    for i, j in itertools.permutations(range(cluster.size), 2):
        if cluster[i] == cluster[j] and found[i] > low[i] + 1e-6 and found[j] < high[j] - 1e-6:
            assert (found[i] - values[i]) <= (found[j] - values[j]) + 1e-6


def test_weights_are_mixed_just_as_far_as_needed() -> None:
    weights = np.array([3.7, 0.1, 0.1, 0.1])
    found = at_least_effective(weights, np.ones(4), 0.5)
    assert effective_sample_size(found) == pytest.approx(0.5, abs=1e-6)
    assert found.mean() == pytest.approx(1.0)
    assert at_least_effective(found, np.ones(4), 0.4) is found


def gap(rows: np.ndarray, weights: np.ndarray, features: np.ndarray, mass: np.ndarray) -> float:
    full = mass @ features / mass.sum()
    return float(np.linalg.norm(weights @ features[rows] / weights.sum() - full))


@FEW
@given(seed=st.integers(0, 10_000), group_rows=st.sampled_from([8, 32, 1024]))
def test_matched_rows_match_better_than_random_ones(seed: int, group_rows: int) -> None:
    rows = candidates([60, 40, 20], seed=seed, dim=3)
    features = rows.read_feature("head_sketch", np.arange(120)).astype(np.float64)
    mass = rows.multiplicity.astype(np.float64)
    kept, weights = Matched(group_rows=group_rows).select(
        rows, Budget(40), np.random.default_rng(seed)
    )
    rng = np.random.default_rng(seed + 1)
    draws = [np.sort(rng.choice(120, 40, replace=False)) for _ in range(20)]
    random = np.mean([gap(draw, mass[draw], features, mass) for draw in draws])
    assert gap(kept, weights, features, mass) < 0.5 * random
    assert effective_sample_size(weights) >= 0.5 - 1e-9
    # Each cluster carries its share of the original rows.
    carried = np.bincount(rows.cluster[kept], weights, 3) / weights.sum()
    if effective_sample_size(weights) > 0.5 + 1e-6:
        assert np.allclose(carried, rows.mass() / rows.mass().sum(), atol=1e-6)


@pytest.mark.parametrize("scales", [(1e-2, 10.0), (1e-3, 1e-2, 1.0, 100.0), (0.0, 1.0)])
@pytest.mark.parametrize("num_kept", [60, 500])
def test_clusters_of_very_unlike_gradients_leave_bearable_weights(
    scales: tuple[float, ...], num_kept: int
) -> None:
    rng = np.random.default_rng(0)
    features = np.concatenate([rng.normal(size=(500, 8)) * scale for scale in scales])
    rows = by_hand(features.tolist(), cluster=np.repeat(range(len(scales)), 500).tolist())
    kept, weights = Matched().select(rows, Budget(num_kept), np.random.default_rng(0))
    assert kept.size == num_kept
    assert effective_sample_size(weights) >= 0.5
    assert weights.max() <= 8.0
    mass = np.bincount(rows.cluster[kept], weights=weights)
    assert mass == pytest.approx([num_kept / len(scales)] * len(scales))


def test_one_row_with_most_of_the_copies_is_said_to_leave_unequal_weights(
    caplog: pytest.LogCaptureFixture,
) -> None:
    features = np.random.default_rng(0).normal(size=(40, 4))
    rows = by_hand(features.tolist(), cluster=[0] + [1] * 39, multiplicity=[1000] + [1] * 39)
    _, weights = Matched().select(rows, Budget(20), np.random.default_rng(0))
    assert effective_sample_size(weights) < 0.5
    assert "is below allocate.selector.least_effective=0.5" in caplog.text


def test_the_error_of_one_group_is_made_up_by_the_next() -> None:
    """Cut into many groups, the whole still matches about as well as one group does."""
    rows = candidates([400], seed=3, dim=3)
    features = rows.read_feature("head_sketch", np.arange(400)).astype(np.float64)
    mass = rows.multiplicity.astype(np.float64)

    def error(group_rows: int) -> float:
        kept, weights = Matched(group_rows=group_rows, within=0.0, ridge=0.01).select(
            rows, Budget(160), np.random.default_rng(0)
        )
        return gap(kept, weights, features, mass)

    alone = np.mean([gap(d, mass[d], features, mass) for d in np.array_split(np.arange(400), 10)])
    assert error(40) < 0.1 * alone


def test_a_piece_that_is_larger_than_a_group_still_stands_for_all_its_rows() -> None:
    rows = candidates([500], seed=5, dim=2)
    features = rows.read_feature("head_sketch", np.arange(500)).astype(np.float64)
    mass = rows.multiplicity.astype(np.float64)
    kept, weights = Matched(group_rows=50).select(rows, Budget(4), np.random.default_rng(0))
    assert kept.size == 4
    assert gap(kept, weights, features, mass) < 0.3 * np.linalg.norm(mass @ features / mass.sum())
