"""Rows of many copies under `matched`, its ridge against the closed form, and its first draw."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.candidates import Budget, Candidates
from stages.allocate.choose import Selection, checked
from stages.allocate.selectors.matched import Matched, Piece, first_draw
from stages.allocate.weights import effective_sample_size
from tests.allocate.samples import by_hand, candidates
from tests.artifacts import FEW, SEEDED


def with_copies(copies: list[int], *, seed: int = 0, num_rows: int = 200) -> Candidates:
    """The first rows stand for so many originals, all others for one."""
    features = np.random.default_rng(seed).normal(size=(num_rows, 8)) + 0.3
    half = num_rows // 2
    multiplicity = [*copies, *[1] * (num_rows - len(copies))]
    clusters = [0] * half + [1] * (num_rows - half)
    return by_hand(features.tolist(), cluster=clusters, multiplicity=multiplicity)


@pytest.mark.parametrize("copies", [1, 3, 20, 100])
@pytest.mark.parametrize("seed", range(5))
def test_a_row_of_many_copies_weighs_at_least_what_they_are_worth(copies: int, seed: int) -> None:
    """Above `max_weight` exactly that; below it the ridge weighs the error against the chance.

    A row that is kept surely should weigh its copies, and one that is not should weigh more; the
    regression may move both a little to let the gradients match.
    """
    rows = with_copies([copies], seed=seed)
    selected = Selection(*Matched().select(rows, Budget(100), np.random.default_rng(seed)))
    kept, weights = checked(selected, 100).rows, selected.weights
    worth = 100 * copies / rows.multiplicity.sum()
    if worth > 8.0:
        assert weights[kept == 0].tolist() == pytest.approx([worth], rel=1e-12)
    elif kept[0] == 0:
        assert weights[0] >= 0.9 * worth
    # Each cluster still carries its share.
    mass = np.bincount(rows.cluster[kept], weights)
    assert mass.tolist() == pytest.approx((100 * rows.mass() / rows.mass().sum()).tolist())


@FEW
@given(seed=st.integers(0, 1000), most=st.sampled_from([1.0, 2.0, 8.0]))
def test_all_rows_above_the_bound_by_their_copies_are_kept(seed: int, most: float) -> None:
    rng = np.random.default_rng(seed)
    copies = rng.choice([1, 2, 30, 400], 12, p=[0.4, 0.3, 0.2, 0.1])
    rows = with_copies(copies.tolist(), seed=seed, num_rows=60)
    budget = int(rng.integers(2, 61))
    worth = budget * rows.multiplicity / rows.multiplicity.sum()
    found = Selection(*Matched(max_weight=most).select(rows, Budget(budget, "tried"), rng))
    kept, weights = checked(found, budget).rows, found.weights
    alone = np.flatnonzero(worth > most)
    assert np.isin(alone, kept).all()
    assert weights[np.isin(kept, alone)].tolist() == pytest.approx(worth[alone].tolist())


def test_the_others_are_matched_and_weighed_as_if_the_heavy_row_were_not_there() -> None:
    rows = with_copies([60])
    kept, weights = Matched().select(rows, Budget(100), np.random.default_rng(0))
    features = rows.read_feature("head_sketch", np.arange(200)).astype(np.float64)
    full = rows.multiplicity @ features / rows.multiplicity.sum()
    error = np.linalg.norm(weights @ features[kept] / 100 - full)
    random = []
    for seed in range(20):
        draw = np.random.default_rng(seed).choice(np.arange(1, 200), 99, replace=False)
        rest = features[draw].mean(axis=0) * 199 + 60 * features[0]
        random.append(np.linalg.norm(rest / 259 - full))
    assert error < 0.3 * np.mean(random)
    assert effective_sample_size(weights[kept > 0]) >= 0.5


def test_a_row_above_the_bound_is_said_and_one_below_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def said(copies: int) -> bool:
        caplog.clear()
        with caplog.at_level("INFO"):
            rows = with_copies([copies])
            Matched().select(rows, Budget(100), np.random.default_rng(0))
        return "rows are worth more than allocate.selector.max_weight=8" in caplog.text

    assert said(60) and not said(3)


@FEW
@given(seed=st.integers(0, 1000), share=st.floats(0.02, 1))
def test_without_such_rows_nothing_is_set_apart(seed: int, share: float) -> None:
    rows = candidates([30, 20, 10], seed=seed)
    budget = Budget(max(1, int(share * 60)), "tried")
    found = Matched().select(rows, budget, np.random.default_rng(seed))
    plain = Matched()._choose(rows, budget, np.random.default_rng(seed))
    assert budget.num_rows * rows.multiplicity.max() <= 8 * rows.multiplicity.sum()
    assert all(np.array_equal(one, other) for one, other in zip(found, plain, strict=True))


def solved(
    features: np.ndarray, share: np.ndarray, prior: np.ndarray, within: float, ridge: float
) -> np.ndarray:
    """Minimise both squared errors and ridge norm^2 (v - v0)^2 under the sums of `CLUSTER`."""
    size, sums = CLUSTER.size, (np.arange(2)[:, None] == CLUSTER).astype(float)
    products = features @ features.T
    counted = products * (1 + within * (CLUSTER[:, None] == CLUSTER))
    penalty = np.diag(ridge * np.diag(products))
    whole = np.block([[counted + penalty, sums.T], [sums, np.zeros((2, 2))]])
    wanted = counted @ share + penalty @ prior
    return np.linalg.solve(whole, np.concatenate([wanted, sums @ share]))[:size]


CLUSTER = np.repeat([0, 1], [4, 5])


@pytest.mark.parametrize("within", [0.0, 0.5, 1.0, 9.0])
def test_the_ridge_is_that_of_the_closed_form_for_every_within(within: float) -> None:
    """All rows are kept, so they would carry their shares if the chances did not say otherwise."""
    rng = np.random.default_rng(1)
    features = (rng.normal(size=(9, 3)) + 1.0).astype(np.float32)
    share, chances = np.full(9, 1 / 9), rng.uniform(0.3, 1.0, 9)
    own = [np.flatnonzero(CLUSTER == k) for k in (0, 1)]
    pieces = [Piece(rows, rows, rows.size) for rows in own]
    matched = Matched(within=within, ridge=0.3)
    _, found, _ = matched._match(
        lambda rows: features[rows], pieces, share, chances, 0.0, Budget(9)
    )
    prior = share / chances
    prior *= (np.bincount(CLUSTER, share) / np.bincount(CLUSTER, prior))[CLUSTER]
    wide = features.astype(np.float64)
    documented = solved(wide, share, prior, within, 0.3 * (1 + within))
    assert found.tolist() == pytest.approx(documented.tolist(), rel=2e-3)
    if within > 0:
        alone = solved(wide, share, prior, within, 0.3)
        assert np.abs(found - alone).max() > 3 * np.abs(found - documented).max()
    assert np.ptp(documented) > 1e-2, "the chances do say otherwise"


def test_a_first_draw_of_few_rows_does_not_meet_its_chances_by_hand() -> None:
    assert first_draw(np.array([0.1, 0.9]), 1).tolist() == [False, True]
    assert first_draw(np.array([0.9, 0.1]), 1).tolist() == [True, False]


@SEEDED
@given(seed=st.integers(0, 10_000))
def test_a_first_draw_of_many_rows_is_in_proportion_to_its_chances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chances = rng.permutation(np.repeat([0.2, 0.6], 200))
    kept = first_draw(chances, 160)
    assert kept.sum() == 160
    assert 20 <= kept[chances == 0.2].sum() <= 60  # 40 expected
