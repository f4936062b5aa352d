"""S2L: the allocation by hand, and clear kinds of trajectories found."""

import numpy as np
import pytest

from stages.allocate.selectors.s2l import S2l, draw_kinds, trajectory_kinds
from stages.contract.errors import DataError
from tests.allocate.samples import by_hand
from tests.allocate.selectors.helpers import kept_rows


def test_kinds_are_drawn_the_smallest_first() -> None:
    kinds = np.array([0, 0, 0, 0, 1, 2, 2])
    draws = np.random.default_rng(0).random(7)
    found = draw_kinds(kinds, draws, 4)
    assert np.bincount(kinds[found]).tolist() == [2, 1, 1]
    assert set(draws[found[kinds[found] == 0]]) == set(np.sort(draws[:4])[:2])


def test_kinds_are_fitted_on_the_smallest_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.allocate.selectors.s2l.FIT_ROWS", 2)
    trajectories = np.array([[0], [0], [9], [9]], np.float32)
    alike = trajectory_kinds(trajectories, np.array([0.9, 0.8, 0.1, 0.2]), 2, 0)
    assert np.unique(alike).size == 1
    apart = trajectory_kinds(trajectories, np.array([0.1, 0.9, 0.2, 0.8]), 2, 0)
    assert apart[0] == apart[1] != apart[2] == apart[3]


@pytest.mark.parametrize(("sources", "expected"), [("even", [4, 4]), ("proportional", [6, 2])])
def test_sources_give_evenly_or_in_proportion(sources: str, expected: list[int]) -> None:
    rows = by_hand([[float(i), 1.0] for i in range(16)], source=[0] * 12 + [1] * 4)
    kept = kept_rows(S2l(num_trajectories=2, sources=sources), rows, 8)
    assert np.bincount(rows.source[kept]).tolist() == expected


def test_trajectories_are_clustered_inside_their_source() -> None:
    # Over both sources the two clusters would be the sources themselves.
    near, far = [[0.0], [0.0], [0.0], [1.0]], [[100.0]] * 4
    rows = by_hand(near + far, source=[0] * 4 + [1] * 4)
    for seed in range(5):
        assert 3 in kept_rows(S2l(num_trajectories=2), rows, 4, seed=seed)


def test_the_rare_trajectory_is_kept_whole() -> None:
    flat, falling = [[2.0, 2.0, 2.0]] * 8, [[2.0, 1.0, 0.5]] * 2
    rows = by_hand(flat + falling)
    for seed in range(5):
        kept = kept_rows(S2l(num_trajectories=2), rows, 4, seed=seed)
        assert kept[2:] == [8, 9]


def test_a_loss_that_is_not_finite_stops() -> None:
    rows = by_hand([[1.0, 2.0], [1.0, float("nan")]])
    with pytest.raises(DataError, match=r"trajectories of 1 rows are not finite.*row_id 1"):
        kept_rows(S2l(), rows, 1)
