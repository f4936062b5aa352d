"""Random selections: quotas, chances and weights by hand, and chances met over seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.groups import members_of
from stages.allocate.inclusion import (
    defensive,
    inclusion_probabilities,
    race,
    race_chances,
    systematic,
)
from stages.allocate.quota import proportional, smallest_first, water_fill
from stages.allocate.selectors.density import Density, median_distance, others_density
from stages.allocate.selectors.importance import Importance, gain
from stages.allocate.selectors.loss_rank import LossRank, rank_shares
from stages.allocate.selectors.stratified import Stratified, spreads
from stages.allocate.selectors.uniform import Uniform
from stages.contract.errors import DataError
from tests.allocate.samples import by_hand, candidates
from tests.allocate.selectors.helpers import kept_rows, select
from tests.artifacts import FEW, SEEDED


@pytest.mark.parametrize(
    ("amounts", "sizes", "total", "expected"),
    [
        ([10, 20, 30, 40], [10, 20, 30, 40], 10, [1, 2, 3, 4]),
        ([1, 1, 98], [1, 1, 98], 5, [1, 1, 3]),  # at least one each
        ([5, 9, 7], [5, 9, 7], 2, [0, 1, 1]),  # not enough for all: the largest
        ([100, 1], [2, 10], 5, [2, 3]),  # the first has only two
        ([7, 3], [9, 9], 3, [2, 1]),
        ([53, 24, 23], [53, 24, 23], 6, [3, 2, 1]),  # by divisors q + 1 it were 4, 1, 1
        ([1, 1], [5, 5], 3, [2, 1]),  # a tie: the lower number
        ([0, 0, 4], [4, 8, 2], 6, [1, 3, 2]),  # what varies first, then by sizes
        ([0, 0], [2, 6], 4, [1, 3]),
        ([3, 0, 3], [4, 0, 4], 5, [3, 0, 2]),
    ],
)
def test_quotas_in_proportion_by_hand(
    amounts: list[int], sizes: list[int], total: int, expected: list[int]
) -> None:
    assert proportional(np.array(amounts), np.array(sizes), total).tolist() == expected


@SEEDED
@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 9)), min_size=1, max_size=8))
def test_quotas_in_proportion_are_exact_and_grow_with_the_total(
    clusters: list[tuple[int, float]],
) -> None:
    sizes = np.array([size for size, _ in clusters])
    amounts = np.array([amount for _, amount in clusters])
    before = np.zeros_like(sizes)
    for total in range(int(sizes.sum()) + 1):
        quotas = proportional(amounts, sizes, total)
        assert quotas.sum() == total
        assert np.all((before <= quotas) & (quotas <= sizes))
        if total >= np.count_nonzero(sizes):
            assert np.all((quotas > 0) == (sizes > 0))
        before = quotas


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [
        ([1, 10, 4], 9, [1, 4, 4]),
        ([3, 3, 3], 7, [2, 2, 3]),
        ([0, 5], 5, [0, 5]),
        ([2, 2], 4, [2, 2]),
    ],
)
def test_the_smallest_is_served_first(sizes: list[int], total: int, expected: list[int]) -> None:
    assert smallest_first(np.array(sizes), total).tolist() == expected


@SEEDED
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.floats(0, 1))
def test_the_smallest_first_is_water_filling_but_for_the_odd_rows(
    sizes: list[int], share: float
) -> None:
    total = int(share * sum(sizes))
    quotas = smallest_first(np.array(sizes), total)
    assert quotas.sum() == total
    assert np.all(quotas <= sizes)
    assert np.all(abs(quotas - water_fill(np.array(sizes), total)) <= 1)


@pytest.mark.parametrize(
    ("importance", "count", "expected"),
    [
        ([1, 1, 2, 4], 2, [0.25, 0.25, 0.5, 1]),
        ([1, 1, 2, 4], 3, [0.5, 0.5, 1, 1]),
        ([3, 3, 3], 2, [2 / 3, 2 / 3, 2 / 3]),
        ([0, 0], 1, [0.5, 0.5]),
        ([1, 5, 2], 3, [1, 1, 1]),
    ],
)
def test_chances_by_hand(importance: list[float], count: int, expected: list[float]) -> None:
    assert np.allclose(inclusion_probabilities(importance, count), expected)


@SEEDED
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.integers(1, 40))
def test_chances_sum_to_the_count(importance: list[float], count: int) -> None:
    count = min(count, len(importance))
    chances = inclusion_probabilities(importance, count)
    assert np.all((chances > 0) & (chances <= 1))
    assert chances.sum() == pytest.approx(count)
    for start in (0.0, 0.3, 1 - 2**-53):
        found = systematic(chances, start)
        assert found.size == count
        assert np.all(np.diff(found) > 0)
        assert 0 <= found[0] <= found[-1] < len(importance)


def test_chances_are_mixed_just_as_far_as_is_bearable() -> None:
    share, importance = np.array([0.25, 0.25, 0.5]), np.array([0.0, 0.0, 1.0])

    def bearable(chances: np.ndarray) -> bool:
        return bool(np.all(share / chances <= 1.25))  # no chance below 0.2 and 0.4

    # Mixed by t, the chances of one row are t/4, t/4 and 1 - t/2: the first binds, at t = 0.8.
    mixed = defensive(importance, share, 1, bearable)
    assert mixed == pytest.approx([0.2, 0.2, 0.6], abs=1e-5)
    plain = inclusion_probabilities(importance, 1)
    assert np.array_equal(defensive(importance, share, 1, lambda chances: True), plain)
    assert defensive(importance, share, 1, lambda chances: False) == pytest.approx(share)


def test_systematic_sampling_by_hand() -> None:
    chances = np.array([0.5, 0.5, 1.0, 1.0])
    assert systematic(chances, 0.4).tolist() == [0, 2, 3]
    assert systematic(chances, 0.6).tolist() == [1, 2, 3]
    assert systematic(chances, 0.5).tolist() == [1, 2, 3]  # a row has its lower end, not its upper


def test_systematic_sampling_takes_no_sure_row_twice_for_rounding() -> None:
    chances, start = np.array([0.6, 0.7, 1.0, 0.8, 0.9]), 0.1 + 0.2
    sums = np.cumsum(chances)
    plain = np.searchsorted(sums * (4 / sums[-1]), start + np.arange(4), side="right")
    assert plain.tolist() == [0, 2, 2, 4]  # the third row is a rounding error longer than 1
    assert systematic(chances, start).tolist() == [0, 2, 3, 4]


@FEW
@given(st.integers(0, 1000))
def test_systematic_sampling_meets_every_chance_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chances = inclusion_probabilities(rng.lognormal(0, 2, 12), 5)
    hits = np.zeros(12)
    for start in (np.arange(500) + 0.5) / 500:  # every start in turn: no chance is left
        hits[systematic(chances, start)] += 1
    assert np.all(abs(hits / 500 - chances) <= 1.01 / 500)


def test_a_race_draws_the_first_by_its_share_and_is_nested() -> None:
    rng = np.random.default_rng(0)
    first = np.zeros(3)
    for _ in range(4000):
        first[race([1, 2, 5], rng.random(3))[0]] += 1
    assert np.allclose(first / 4000, [1 / 8, 2 / 8, 5 / 8], atol=0.03)  # four deviations


def test_the_chances_of_a_race_are_those_that_are_counted() -> None:
    rng = np.random.default_rng(0)
    shares = rng.lognormal(0, 1, 200)
    chances = race_chances(shares, 60)
    assert chances.sum() == pytest.approx(60)
    counted = np.zeros(200)
    for _ in range(2000):
        counted[race(shares, rng.random(200))[:60]] += 1
    assert np.all(abs(counted / 2000 - chances) < 0.055)  # deviation at most 0.0112
    assert np.allclose(race_chances([1, 1, 1, 1], 3), 0.75)
    assert race_chances([1, 9], 2).tolist() == [1, 1]


def test_stratified_quotas_are_in_proportion_and_weights_are_shares() -> None:
    rows = by_hand(cluster=[0] * 4 + [1] * 8, multiplicity=[1, 1, 1, 1] + [1] * 7 + [5])
    kept, weights = select(Stratified(), rows, 3)
    assert np.bincount(rows.cluster[kept]).tolist() == [1, 2]
    shares = np.bincount(rows.cluster[kept], weights=weights) / 3
    assert np.allclose(shares, [4 / 16, 12 / 16])


def test_neyman_gives_more_rows_to_what_varies() -> None:
    features = [[0], [0], [0], [0], [0], [2], [0], [2]]
    signals = {"loss": [0, 2, 0, 2, 5, 5, 5, 5]}
    rows = by_hand(features, cluster=[0, 0, 0, 0, 1, 1, 1, 1], signals=signals)
    kept, weights = select(Stratified(quota="neyman"), rows, 4)
    assert np.bincount(rows.cluster[kept]).tolist() == [1, 3]
    assert np.allclose(weights, [2, 2 / 3, 2 / 3, 2 / 3])
    kept, _ = select(Stratified(quota="neyman", spread="loss"), rows, 4)
    assert np.bincount(rows.cluster[kept]).tolist() == [3, 1]


def test_neyman_gives_more_rows_to_the_larger_of_equally_varied_clusters() -> None:
    rows = by_hand([[0], [2]] * 6, cluster=[0] * 8 + [1] * 4)
    kept, _ = select(Stratified(quota="neyman"), rows, 6)
    assert np.bincount(rows.cluster[kept]).tolist() == [4, 2]


def test_the_spread_counts_duplicates_by_hand() -> None:
    rows = by_hand([[0], [3]], multiplicity=[2, 1])
    # The mean is 1; (2 * 1)^2 and (1 * 2)^2 over two rows.
    assert spreads(rows, members_of(rows), "embedding").tolist() == [2.0]


def test_the_spread_in_blocks_is_the_plain_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.allocate.groups.ROWS_PER_BLOCK", 3)
    rows = candidates([7, 1, 12], seed=3)
    expected = []
    for own in members_of(rows):
        points = rows.read_embeddings(own).astype(float)
        copies = rows.multiplicity[own][:, None]
        parts = copies * (points - (copies * points).sum(0) / copies.sum())
        expected.append(np.sqrt(np.square(parts).sum() / own.size))
    assert np.allclose(spreads(rows, members_of(rows), "embedding"), expected)


def test_neyman_has_the_smaller_error_of_the_weighted_mean() -> None:
    rng = np.random.default_rng(0)
    features = np.concatenate([rng.normal(0, 0.1, (40, 1)), rng.normal(5, 3, (40, 1))])
    rows = by_hand(features.tolist(), cluster=[0] * 40 + [1] * 40)
    errors = {}
    for quota in ("proportional", "neyman"):
        found = []
        for seed in range(200):
            kept, weights = select(Stratified(quota=quota), rows, 20, seed=seed)
            found.append(float(weights @ features[kept, 0]) / 20 - float(features.mean()))
        errors[quota] = np.std(found)
        assert abs(np.mean(found)) < 4 * errors[quota] / np.sqrt(200)  # unbiased
    assert errors["neyman"] < errors["proportional"]


def test_importance_weighs_a_row_by_one_over_its_chance() -> None:
    # Chances 2 m G / 8 = 1/4, 1/4, 1/2, 1.
    rows = by_hand(signals={"grad_norm_bound": [1, 1, 1, 4]}, multiplicity=[1, 1, 2, 1])
    hits = np.zeros(4)
    for seed in range(800):
        kept, weights = select(Importance(), rows, 2, seed=seed)
        hits[kept] += 1
        raw = np.array([4.0, 4.0, 4.0, 1.0])[kept]  # m / pi
        assert np.allclose(weights, raw / raw.mean())
    assert np.allclose(hits / 800, [0.25, 0.25, 0.5, 1.0], atol=0.07)  # four deviations
    assert hits[3] == 800


def test_equal_importance_leaves_equal_weights_however_many_duplicates() -> None:
    rows = by_hand(signals={"el2n": [3, 3, 3]}, multiplicity=[2, 1, 1])
    _, weights = select(Importance(signal="el2n"), rows, 2)
    assert np.allclose(weights, 1.0)


def test_a_uniform_share_bounds_the_weights() -> None:
    rows = by_hand(signals={"loss": [1e-6] * 9 + [1.0]})
    _, weights = select(Importance(signal="loss", uniform_share=1.0), rows, 4)
    assert np.allclose(weights, 1.0)
    _, weights = select(Importance(signal="loss", uniform_share=0.5), rows, 4)
    assert weights.max() / weights.min() <= 10 / 0.5


def test_the_gain_by_hand_and_its_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert gain(np.array([1.0, 3.0]), np.ones(2)) == pytest.approx(np.sqrt(5) / 2)
    assert gain(np.array([1.0, 3.0]), np.array([3.0, 1.0])) == pytest.approx(np.sqrt(3) / 1.5)
    # The same by the paper's own formula.
    g, u = np.array([1, 3]) / 4, np.full(2, 1 / 2)
    assert (1 - ((g - u) ** 2).sum() / (g**2).sum()) ** -0.5 == pytest.approx(np.sqrt(5) / 2)
    select(Importance(signal="loss"), by_hand(signals={"loss": [1, 3]}), 1)
    assert "uniform is as good" not in caplog.text
    select(Importance(signal="loss"), by_hand(signals={"loss": [2, 3]}), 1)
    assert "gain tau=1.020 < 1.1; uniform is as good" in caplog.text


def test_importance_refuses_a_signal_below_zero() -> None:
    rows = by_hand(signals={"loss": [1, -2]})
    with pytest.raises(DataError, match=r"signal=loss has values below 0 \(least -2"):
        select(Importance(signal="loss"), rows, 1)


def test_the_shares_of_ranks_by_hand() -> None:
    # 8^(-1/3), 8^(-3/3), 8^(-2/3) = 1/2, 1/8, 1/4.
    assert np.allclose(rank_shares(np.array([3.0, 1.0, 2.0]), 8.0), [4 / 7, 1 / 7, 2 / 7])
    shares = rank_shares(np.array([5.0, 5.0, 1.0]), 8.0)
    assert shares[0] == shares[1]
    assert shares[0] / shares[2] == pytest.approx(8**0.5)  # ranks 1.5 and 3 of 3
    # The top of many is about `pressure` times as likely as the last.
    many = rank_shares(np.arange(1000.0), 100.0)
    assert many[-1] / many[0] == pytest.approx(100.0, rel=0.01)


def test_loss_ranks_are_drawn_nested_and_without_pressure_as_uniform() -> None:
    rows = candidates([20, 30])
    drawn = [set(kept_rows(LossRank(), rows, count, seed=1)) for count in (5, 20, 50)]
    assert drawn[0] < drawn[1] < drawn[2]
    flat = kept_rows(LossRank(pressure=1.0), rows, 12, seed=4)
    assert flat == kept_rows(Uniform(), rows, 12, seed=4)


def test_inverse_weights_of_ranks_keep_the_mean() -> None:
    rng = np.random.default_rng(0)
    loss = rng.lognormal(0, 1, 100)
    rows = by_hand(signals={"loss": loss.tolist()})
    means = {"multiplicity": [], "inverse": []}
    for seed in range(200):
        for weights in means:
            kept, found = select(LossRank(pressure=10.0, weights=weights), rows, 30, seed=seed)
            means[weights].append(float(found @ loss[kept]) / 30)
    assert np.mean(means["multiplicity"]) > 1.2 * loss.mean()
    assert np.mean(means["inverse"]) == pytest.approx(loss.mean(), rel=0.03)


def test_the_kernel_density_by_hand() -> None:
    rows, points = np.array([[0.0], [0.0]]), np.array([[0.0], [2.0]])
    found = others_density(rows, points, np.array([1.0, 3.0]), width=1.0, own=np.array([-1, 0]))
    # The first row is no point and looks at both; the second is the first point.
    assert found.tolist() == pytest.approx([(1 + 3 * np.exp(-2)) / 4, np.exp(-2)])
    lonely = others_density(rows[:1], points[:1], np.ones(1), width=1.0, own=np.array([0]))
    assert lonely.tolist() == [0.0]
    assert median_distance(np.array([[0.0], [1.0], [3.0]])) == pytest.approx(2.0)
    assert median_distance(np.ones((5, 2))) == 1.0


def test_density_keeps_the_lonely_row_and_alpha_zero_does_not_care() -> None:
    features = [[0, 0]] * 9 + [[100, 0]]
    rows = by_hand(features)
    hits = {0.0: 0, 1.0: 0}
    for seed in range(200):
        for alpha in hits:
            hits[alpha] += 9 in kept_rows(Density(alpha=alpha, bandwidth=1.0), rows, 2, seed=seed)
    # 1 / 0.1 against nine times 1 / 0.9: half of all chances, which is one of two rows for sure.
    assert hits[1.0] == 200
    assert 10 < hits[0.0] < 75  # 40 expected, deviation 5.7


def test_inverse_weights_of_density_undo_it() -> None:
    rows = by_hand([[0, 0]] * 9 + [[100, 0]])
    kept, weights = select(Density(weights="inverse"), rows, 2)
    assert kept[1] == 9
    assert np.allclose(weights, np.array([9, 1]) / 5)
