"""Runs of words that rows share with benchmarks, by hand and by a slow script."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.screen.leaks import Hit, LeakIndex, Text, leaked_shares, needed
from tests.artifacts import SEEDED

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def find(index: LeakIndex, rows: list[list[list[str]]]) -> list[Hit]:
    """Look up rows, each a list of texts, each a list of words."""
    texts = [(row, index.number(text)) for row, several in enumerate(rows) for text in several]
    return index.find(
        np.concatenate([numbers for _, numbers in texts]),
        np.array([numbers.size for _, numbers in texts], np.int64),
        np.array([row for row, _ in texts], np.int64),
    )


SIZES = [(20, 13, 13), (13, 13, 13), (12, 13, 12), (8, 13, 8), (7, 13, 0), (8, 8, 8), (7, 8, 0)]


@pytest.mark.parametrize(
    ("num_words", "ngram", "expected"), [*SIZES, (5, 5, 5), (4, 5, 0), (1, 1, 1), (0, 1, 0)]
)
def test_short_texts_are_matched_whole_or_not_at_all(
    num_words: int, ngram: int, expected: int
) -> None:
    assert needed(num_words, ngram) == expected


def test_a_row_must_share_all_words_in_a_row_of_one_text() -> None:
    item = list(ALPHABET[:15])
    index = LeakIndex([Text(0, 3, item)], 13)
    inside = ["x", *item[1:14], "y"]
    broken = [*item[:7], "x", *item[7:14]]
    split = [item[:7], item[7:]]
    assert find(index, [[inside], [broken], split, [item[:12]], [["x"], inside]]) == [
        Hit(0, 0, 3, " ".join(item[1:14]), 1 / 3),
        Hit(4, 0, 3, " ".join(item[1:14]), 1 / 3),
    ]


def test_a_short_item_is_evidence_only_as_a_whole() -> None:
    item = list(ALPHABET[:9])
    index = LeakIndex([Text(0, 1, item)], 13)
    hits = find(index, [[["x", *item]], [item[1:]], [[*item, "x", "y"]]])
    assert [(hit.row, hit.ngram, hit.share) for hit in hits] == [
        (0, "a b c d e f g h i", 1 / 2),
        (2, "a b c d e f g h i", 1 / 3),
    ]


def test_hits_name_each_benchmark_once_and_its_first_item() -> None:
    shared = list("abcde")
    texts = [Text(0, 1, shared), Text(0, 2, [*shared, "f"]), Text(1, 7, shared)]
    hits = find(LeakIndex(texts, 5), [[[*shared, "f"]]])
    assert hits == [
        Hit(0, 0, 1, "a b c d e", 0.5),
        Hit(0, 0, 2, "b c d e f", 0.5),
        Hit(0, 1, 7, "a b c d e", 0.5),
    ]


def test_an_index_of_nothing_finds_nothing() -> None:
    assert find(LeakIndex([], 13), [[["a"] * 20]]) == []


TEXTS = st.lists(st.sampled_from("ab"), max_size=12)


@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, min_size=1, max_size=6), st.integers(1, 9))
@SEEDED
def test_rows_leak_as_a_slow_script_says(
    items: list[list[str]], rows: list[list[str]], ngram: int
) -> None:
    index = LeakIndex([Text(0, i, item) for i, item in enumerate(items)], ngram)
    expected = {
        i
        for i, row in enumerate(rows)
        for item in items
        for size in [needed(len(item), ngram)]
        if size
        and {tuple(row[j : j + size]) for j in range(len(row) - size + 1)}
        & {tuple(item[j : j + size]) for j in range(len(item) - size + 1)}
    }
    hits = find(index, [[row] for row in rows])
    assert {hit.row for hit in hits} == expected
    assert all(0 < hit.share <= 1 for hit in hits)


def test_leaked_shares_of_pool_selection_and_chance() -> None:
    pool = np.arange(0, 2000, 2)
    leaked = np.array([0, 2, 4, 6, 8, 1, 3])  # odd ids are not in the pool
    selected = np.array([0, 2, 100, 102])
    shares = leaked_shares(leaked, pool, selected, np.random.default_rng(0), 4000)
    assert (shares.pool, shares.selection) == (0.005, 0.5)
    assert abs(shares.random_mean - 0.005) < 0.002
    assert (shares.random_low, shares.random_high) == (0.0, 0.0)
    whole = leaked_shares(leaked, pool, pool, np.random.default_rng(0), 3)
    assert whole.random_low == whole.random_high == whole.selection == whole.pool


def test_chance_agrees_with_drawn_selections() -> None:
    rng = np.random.default_rng(1)
    pool, leaked = np.arange(60), np.arange(20)
    drawn = [np.isin(rng.choice(pool, 15, replace=False), leaked).mean() for _ in range(4000)]
    shares = leaked_shares(leaked, pool, pool[:15], rng, 4000)
    assert abs(shares.random_mean - np.mean(drawn)) < 0.01
    assert abs(shares.random_low - np.quantile(drawn, 0.05)) < 0.07
    assert abs(shares.random_high - np.quantile(drawn, 0.95)) < 0.07
