"""Near duplicates: bands, true similarity, chains; all pairs by a slow script."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.screen.grams import count_windows, window_hashes, window_starts
from stages.screen.near import (
    MOST_MISSED,
    NUM_PERM,
    Pair,
    band_hashes,
    banding,
    jaccard,
    near_pairs,
    shingle_set,
)
from stages.screen.text import word_code
from tests.artifacts import SEEDED
from tests.screen.samples import plain_shingles


def codes(text: str) -> np.ndarray:
    return np.array([word_code(word) for word in text.split()], np.uint64)


def find(texts: list[str], threshold: float = 0.8, seed: int = 0) -> tuple[list[Pair], list[int]]:
    sets = [shingle_set(codes(text)) for text in texts]
    bands = np.stack([band_hashes(s, threshold=threshold, seed=seed) for s in sets])
    pairs, first = near_pairs(bands, sets, threshold)
    return pairs, first.tolist()


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.8, 0.9, 0.99, 1.0])
def test_bands_miss_few_pairs_at_the_threshold(threshold: float) -> None:
    count, length = banding(threshold)
    assert count * length <= NUM_PERM
    missed = (1 - threshold**length) ** count
    assert missed <= MOST_MISSED or length == 1


def test_windows_stay_inside_their_texts() -> None:
    lengths = np.array([3, 0, 1, 2])
    assert window_starts(lengths, 2).tolist() == [0, 1, 4]
    assert count_windows(lengths, 2).tolist() == [2, 0, 0, 1]
    hashes = window_hashes(np.array([1, 2, 1, 2, 3], np.uint64), 2)
    assert hashes[0] == hashes[2] != hashes[1]
    assert window_hashes(np.zeros(1, np.uint64), 2).size == 0


def test_similarity_is_that_of_the_sets_of_five_words() -> None:
    a, b = "a b c d e f g", "a b c d e f x"
    assert shingle_set(codes(a)).size == 3
    assert jaccard(shingle_set(codes(a)), shingle_set(codes(b))) == 2 / 4
    assert jaccard(shingle_set(codes("a b")), shingle_set(codes("a b"))) == 1
    assert jaccard(shingle_set(codes("a b")), shingle_set(codes("a b c"))) == 0
    assert shingle_set(codes("")).size == 0


def test_chains_are_one_group_and_each_link_is_near() -> None:
    words = [f"w{i}" for i in range(40)]
    # Each text is the one before it, moved on by two words: 34 of 38 shingles are shared.
    texts = [
        " ".join(words[2 * i : 2 * i + 40] + [f"v{j}" for j in range(2 * i)]) for i in range(6)
    ]
    pairs, first = find(["quite another text of eight words, not near", *texts])
    assert first == [0, 1, 1, 1, 1, 1, 1]
    assert {pair.row for pair in pairs} == {2, 3, 4, 5, 6}
    assert all(pair.near < pair.row and pair.similarity >= 0.8 for pair in pairs)
    ends = jaccard(shingle_set(codes(texts[0])), shingle_set(codes(texts[-1])))
    assert ends < 0.8


def test_many_equal_texts_cost_one_pair_each() -> None:
    pairs, first = find(["one and the same text again"] * 500)
    assert first == [0] * 500
    assert [(pair.row, pair.near) for pair in pairs] == [(i, 0) for i in range(1, 500)]


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), min_size=1, max_size=12))
@SEEDED
def test_low_thresholds_find_every_pair_that_all_pairs_have(texts: list[list[str]]) -> None:
    threshold = 0.3
    sets = [plain_shingles(" ".join(text)) for text in texts]
    groups = list(range(len(texts)))
    for a, b in itertools.combinations(range(len(texts)), 2):
        if len(sets[a] & sets[b]) >= threshold * len(sets[a] | sets[b]):
            groups = [groups[a] if group == groups[b] else group for group in groups]
    pairs, first = find([" ".join(text) for text in texts], threshold)
    for pair in pairs:
        a, b = sets[pair.row], sets[pair.near]
        assert pair.similarity == len(a & b) / len(a | b) >= threshold
    # Never a pair too many: every group found is inside a true one.
    assert all(groups[i] == groups[j] for i, j in enumerate(first))


def test_seeds_decide_the_signature_and_nothing_else() -> None:
    found = shingle_set(codes("some text of more than five words"))
    one, two = (band_hashes(found, threshold=0.8, seed=seed) for seed in (0, 1))
    assert np.array_equal(one, band_hashes(found, threshold=0.8, seed=0))
    assert not np.array_equal(one, two)
