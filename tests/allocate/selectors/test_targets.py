"""Selectors towards rows of the user: by hand, and against the plain loop."""

import numpy as np
import pytest

from stages.allocate.selectors.less_lite import LessLite
from stages.allocate.selectors.rds_plus import RdsPlus, take_turns
from tests.allocate.samples import by_hand
from tests.allocate.selectors.helpers import kept_rows

FEATURES = [[1, 0], [0, 5], [-1, 0], [3, 3]]


def test_less_lite_by_hand() -> None:
    one = by_hand(FEATURES, targets=[[7, 0]])  # cosines 1, 0, -1, 0.71
    assert kept_rows(LessLite(), one, 2) == [0, 3]
    two = by_hand(FEATURES, targets=[[7, 0], [0, 0.1]])
    assert kept_rows(LessLite(over="nearest"), two, 2) == [0, 1]
    assert kept_rows(LessLite(over="mean"), two, 1) == [3]


def test_targets_take_turns_by_hand() -> None:
    nearest = np.array([[0, 1, 2], [0, 2, 1]])
    assert take_turns(nearest, 3, all_rows=3).tolist() == [0, 2, 1]
    assert take_turns(nearest, 2, all_rows=3).tolist() == [0, 2]
    assert take_turns(np.array([[0], [0]]), 2, all_rows=3) is None


def test_rds_plus_by_hand() -> None:
    rows = by_hand([[1, 0], [9, 1], [0, 1], [1, 1], [-1, -1]], targets=[[1, 0], [0, 1]])
    assert kept_rows(RdsPlus(), rows, 1) == [0]
    assert kept_rows(RdsPlus(), rows, 2) == [0, 2]
    assert kept_rows(RdsPlus(), rows, 3) == [0, 1, 2]
    assert kept_rows(RdsPlus(), rows, 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("num_targets", [1, 3, 12])
@pytest.mark.parametrize("count", [1, 7, 60, 90])
def test_rds_plus_remembers_as_much_as_it_needs(
    num_targets: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.allocate.groups.ROWS_PER_BLOCK", 13)
    rng = np.random.default_rng(num_targets)
    features = rng.normal(size=(90, 3))
    targets = np.ones((num_targets, 3)) + rng.normal(size=(num_targets, 3)) * 0.01
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    aims = targets / np.linalg.norm(targets, axis=1, keepdims=True)
    taken: list[int] = []
    while len(taken) < count:  # the targets want the same rows, so that lists run dry
        cosines = unit @ aims[len(taken) % num_targets]
        cosines[taken] = -np.inf
        taken.append(int(np.argmax(cosines)))
    rows = by_hand(features.tolist(), targets=targets.tolist())
    assert kept_rows(RdsPlus(), rows, count) == sorted(taken)
