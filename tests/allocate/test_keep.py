"""The keep rules: by hand, exact counts, and the cover against the best by brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.keep import RULES, farthest_first, keep_rows
from tests.artifacts import FEW, SEEDED

DISTANCES = np.array([0.5, 0.1, 0.9, 0.3, 0.9, 0.1], np.float32)
NORMS = np.array([3, 1, 2, 7, 7, 0], np.float32)


def kept(rule: str, quota: int, *, seed: int = 0) -> list[int]:
    return keep_rows(
        rule,
        quota,
        distances=DISTANCES,
        norms=NORMS,
        embeddings=DISTANCES[:, None],
        draws=np.random.default_rng(seed).random(6),
    ).tolist()


@pytest.mark.parametrize(
    ("rule", "quota", "expected"),
    [
        ("farthest", 1, [2]),  # of equal ones the earlier
        ("farthest", 3, [0, 2, 4]),
        ("nearest", 1, [1]),
        ("nearest", 3, [1, 3, 5]),
        ("mixed", 4, [1, 2, 4, 5]),
        ("mixed", 3, [1, 2, 4]),  # the odd one is far
        ("mixed", 1, [4]),
        ("largest_norm", 1, [3]),
        ("largest_norm", 3, [0, 3, 4]),
        ("kcenter", 2, [1, 2]),  # from the row nearest to the centre to the farthest from it
        ("kcenter", 3, [0, 1, 2]),
    ],
)
def test_what_a_rule_keeps_by_hand(rule: str, quota: int, expected: list[int]) -> None:
    assert kept(rule, quota) == expected


@SEEDED
@given(st.sampled_from(RULES), st.integers(1, 40), st.floats(0, 1), st.integers(0, 10_000))
def test_every_rule_keeps_exactly_the_quota(
    rule: str, num_rows: int, share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    quota = round(share * num_rows)
    embeddings = rng.integers(0, 3, (num_rows, 2)).astype(np.float32)  # many are the same
    found = keep_rows(
        rule,
        quota,
        distances=rng.integers(0, 5, num_rows).astype(np.float32),
        norms=rng.integers(0, 5, num_rows).astype(np.float32),
        embeddings=embeddings,
        draws=rng.random(num_rows),
    )
    assert found.dtype == np.int64
    assert found.size == quota
    assert np.all(np.diff(found) > 0)
    assert np.all((found >= 0) & (found < num_rows))


@SEEDED
@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 10_000))
def test_farthest_and_nearest_split_a_cluster_without_ties(
    num_rows: int, quota: int, seed: int
) -> None:
    quota = min(quota, num_rows)
    distances = np.random.default_rng(seed).permutation(num_rows).astype(np.float32)
    found = {
        rule: keep_rows(
            rule,
            size,
            distances=distances,
            norms=distances,
            embeddings=None,
            draws=np.zeros(num_rows),
        ).tolist()
        for rule, size in (("farthest", quota), ("nearest", num_rows - quota))
    }
    assert sorted(found["farthest"] + found["nearest"]) == list(range(num_rows))


def test_random_follows_the_draws() -> None:
    assert kept("random", 3, seed=1) == kept("random", 3, seed=1)
    assert len({tuple(kept("random", 3, seed=seed)) for seed in range(10)}) > 1


def radius(rows: np.ndarray, chosen: tuple[int, ...]) -> float:
    gaps = np.linalg.norm(rows[:, None] - rows[list(chosen)][None], axis=2)
    return float(gaps.min(axis=1).max())


@FEW
@given(st.integers(3, 9), st.integers(1, 3), st.integers(0, 10_000))
def test_the_cover_is_at_most_twice_the_best(num_rows: int, quota: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(num_rows, 2)).astype(np.float32)
    best = min(radius(rows, chosen) for chosen in itertools.combinations(range(num_rows), quota))
    for start in range(num_rows):
        chosen = farthest_first(rows, quota, start=start)
        assert chosen[0] == start
        assert len(set(chosen.tolist())) == quota
        assert radius(rows, tuple(chosen)) <= 2 * best + 1e-5


def test_the_cover_by_hand() -> None:
    rows = np.array([[0], [1], [10], [11], [5]], np.float32)
    assert farthest_first(rows, 4, start=0).tolist() == [0, 3, 4, 1]


def test_the_cover_of_equal_rows_repeats_none() -> None:
    assert sorted(farthest_first(np.ones((4, 2), np.float32), 4, start=2)) == [0, 1, 2, 3]
