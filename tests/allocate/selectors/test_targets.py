"""Selectors towards rows of the user: by hand, and against the plain loop."""

import numpy as np
import pytest

from stages.allocate.candidates import Candidates
from stages.allocate.selectors.less import Less
from stages.allocate.selectors.less_lite import LessLite
from stages.allocate.selectors.rds_plus import RdsPlus, take_turns
from stages.trajectory.gradients import joined
from tests.allocate.samples import by_hand
from tests.allocate.selectors.helpers import kept_rows

FEATURES = [[1, 0], [0, 5], [-1, 0], [3, 3]]


def test_less_lite_by_hand() -> None:
    one = by_hand(FEATURES, targets=[[7, 0]])  # cosines 1, 0, -1, 0.71
    assert kept_rows(LessLite(), one, 2) == [0, 3]
    two = by_hand(FEATURES, targets=[[7, 0], [0, 0.1]])
    assert kept_rows(LessLite(over="nearest"), two, 2) == [0, 1]
    assert kept_rows(LessLite(over="mean"), two, 1) == [3]


# At two checkpoints each. Mean cosines with the first target: 1, 0, -1, 0.5 (nothing at the second)
# and 0.35 (1 / sqrt 2, 0); with the second: 0, 1, 0, 0, 0.85 (1 / sqrt 2, 1).
FOLDED = [
    [[4, 0], [1, 0]],
    [[0, 1], [0, 2]],
    [[-1, 0], [-5, 0]],
    [[9, 0], [0, 0]],
    [[2, 2], [0, 3]],
]


def of_gradients(folded: list[list[list[float]]], targets: list[list[list[float]]]) -> Candidates:
    rows, aims = (joined(np.array(a, np.float32)).astype(np.float64) for a in (folded, targets))
    return by_hand(rows.tolist(), targets=aims.tolist())


def test_less_by_hand() -> None:
    one = of_gradients(FOLDED, [[[3, 0], [7, 0]]])
    assert [kept_rows(Less(), one, count) for count in (1, 2, 3)] == [[0], [0, 3], [0, 3, 4]]
    two = of_gradients(FOLDED, [[[3, 0], [7, 0]], [[0, 9], [0, 1]]])
    assert kept_rows(Less(over="nearest"), two, 2) == [0, 1]
    assert kept_rows(Less(over="mean"), two, 1) == [4]  # 0.6; those of rows 0 and 1 are 0.5


def test_less_gives_rows_without_a_gradient_a_score_of_zero() -> None:
    silent = [[0.0, 0.0], [0.0, 0.0]]
    rows = of_gradients([FOLDED[2], silent, FOLDED[3]], [[[3, 0], [7, 0]]])  # -1, 0, 0.5
    assert [kept_rows(Less(), rows, count) for count in (1, 2)] == [[2], [1, 2]]
    aimless = of_gradients([FOLDED[2], silent, FOLDED[3]], [silent])  # all 0: the smaller ids
    assert kept_rows(Less(), aimless, 2) == [0, 1]


@pytest.mark.parametrize("over", ["nearest", "mean"])
@pytest.mark.parametrize("seed", range(5))
def test_less_is_the_plain_loop_over_checkpoints(
    over: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.allocate.groups.ROWS_PER_BLOCK", 7)
    rng = np.random.default_rng(seed)
    folded, aims = rng.normal(size=(40, 3, 6)), rng.normal(size=(4, 3, 6))
    scores = np.zeros((40, 4))
    for i, j in np.ndindex(40, 4):
        for x, y in zip(folded[i], aims[j], strict=True):
            scores[i, j] += x @ y / np.linalg.norm(x) / np.linalg.norm(y) / 3
    total = scores.max(axis=1) if over == "nearest" else scores.mean(axis=1)
    best = np.argsort(-total)
    assert total[best[9]] - total[best[10]] > 1e-4  # more than float16 can turn round
    rows = of_gradients(folded.tolist(), aims.tolist())
    assert kept_rows(Less(over=over), rows, 10) == sorted(best[:10])


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
