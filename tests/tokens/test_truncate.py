"""Policies by hand on seven tokens: three of the prompt, an answer of two, two more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenshard.shards import IGNORED_LABEL
from stages.tokens.truncate import SHORTEN, count_targets, keep_answer, keep_left

#                   0     1     2    3  4  5  6
LABELS = np.array([-100, -100, -100, 7, 8, 9, 5], dtype=np.int32)


def test_the_first_label_is_never_a_target() -> None:
    assert count_targets(LABELS) == 4
    assert count_targets(LABELS[3:]) == 3
    assert count_targets(LABELS[:0]) == 0


@pytest.mark.parametrize(
    ("max_length", "keep_first", "expected"),
    [
        (9, False, [0, 1, 2, 3, 4, 5, 6]),
        (7, True, [0, 1, 2, 3, 4, 5, 6]),
        (6, False, [1, 2, 3, 4, 5, 6]),
        (6, True, [0, 2, 3, 4, 5, 6]),
        (5, False, [2, 3, 4, 5, 6]),
        (5, True, [0, 3, 4, 5, 6]),
        (4, False, [2, 3, 4, 5]),
        (4, True, [0, 3, 4, 5]),
        (2, False, [2, 3]),
        (2, True, [0, 3]),
    ],
)
def test_keep_answer_by_hand(max_length: int, keep_first: bool, expected: list[int]) -> None:
    assert keep_answer(LABELS, max_length, keep_first).tolist() == expected


def test_keep_left_by_hand() -> None:
    assert keep_left(LABELS, 4, True).tolist() == [0, 1, 2, 3]
    assert keep_left(LABELS, 40, True).tolist() == list(range(7))


def test_an_answer_without_prompt_is_cut_at_its_end() -> None:
    assert keep_answer(LABELS[3:], 2, True).tolist() == [0, 1]


@given(
    st.lists(st.sampled_from([-100, 1]), min_size=1, max_size=40),
    st.integers(2, 45),
    st.booleans(),
)
def test_kept_indices_increase_and_fit(labels: list[int], max_length: int, first: bool) -> None:
    array = np.array(labels, dtype=np.int32)
    for policy in SHORTEN.values():
        kept = policy(array, max_length, first)
        assert kept.size == min(array.size, max_length)
        assert (np.diff(kept) > 0).all()
    kept = keep_answer(array, max_length, first)
    left = keep_left(array, max_length, first)
    assert count_targets(array[kept]) >= min(count_targets(array[left]), 1)
    if array[0] == IGNORED_LABEL and count_targets(array):
        assert count_targets(array[kept]) > 0
