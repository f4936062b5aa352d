"""Batches by a budget of tokens: by hand, then what holds for any lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.embed.batching import pad_rows, token_batches
from tests.artifacts import SEEDED


def batches(lengths: list[int], budget: int) -> list[list[int]]:
    return [batch.tolist() for batch in token_batches(np.array(lengths, np.int64), budget)]


@pytest.mark.parametrize(
    ("lengths", "budget", "expected"),
    [
        ([3, 1, 2], 6, [[0, 2], [1]]),
        ([5, 5, 5, 5], 10, [[0, 1], [2, 3]]),
        ([2, 9, 2, 2], 6, [[1], [0, 2, 3]]),
        ([4, 4, 4], 3, [[0], [1], [2]]),
        ([1, 1, 1], 100, [[0, 1, 2]]),
        ([0, 0], 1, [[0], [1]]),
        ([], 8, []),
    ],
)
def test_batches_by_hand(lengths: list[int], budget: int, expected: list[list[int]]) -> None:
    assert batches(lengths, budget) == expected


@SEEDED
@given(st.lists(st.integers(0, 300), max_size=80), st.integers(1, 1000))
def test_every_row_comes_once_within_the_budget_longest_first(
    lengths: list[int], budget: int
) -> None:
    found = batches(lengths, budget)
    flat = [row for batch in found for row in batch]
    assert sorted(flat) == list(range(len(lengths)))
    ordered = [lengths[row] for row in flat]
    assert ordered == sorted(lengths, reverse=True)
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget


@SEEDED
@given(st.lists(st.integers(1, 50), min_size=2, max_size=40), st.integers(1, 400))
def test_no_batch_could_take_the_row_after_it(lengths: list[int], budget: int) -> None:
    found = batches(lengths, budget)
    for batch in found[:-1]:
        assert (len(batch) + 1) * lengths[batch[0]] > budget


def test_rows_are_padded_on_the_right_with_the_fill() -> None:
    rows = [np.array(values, np.int32) for values in ([7, 8, 9], [4], [])]
    padded = pad_rows(rows, -100)
    assert padded.dtype == np.int64
    assert padded.tolist() == [[7, 8, 9], [4, -100, -100], [-100, -100, -100]]
