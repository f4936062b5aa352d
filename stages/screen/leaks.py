"""Benchmark leakage: runs of n words that a row shares with an item of a test set.

A text of an item with fewer than n words is matched whole if it has at least `FEWEST_WORDS`;
shorter ones would match by chance. A run of words that several items of one benchmark hold counts
for the first of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stages.screen.grams import (
    Codes,
    Ints,
    count_windows,
    window_hashes,
    window_starts,
)

FEWEST_WORDS = 8
CODES_SEED = 20


@dataclass(frozen=True)
class Text:
    """One field of an item: where it is from, and its words as `bare_words` gives them."""

    benchmark: int
    line: int
    words: Sequence[str]


@dataclass(frozen=True)
class Hit:
    """What a row shares with an item.

    Attributes
    ----------
    row : int
        Place of the row.
    benchmark, line : int
        The item: number of its file, and its line there.
    ngram : str
        The first shared run of words.
    share : float
        How many of the row's runs of that many words the item holds, as a share.
    """

    row: int
    benchmark: int
    line: int
    ngram: str
    share: float


@dataclass(frozen=True)
class _Windows:
    """The windows of one size: sorted hashes, and the place and benchmark of each."""

    hashes: Codes
    places: Ints


@dataclass
class LeakIndex:
    """All runs of words of the benchmarks, ready for look-up.

    Attributes
    ----------
    texts : sequence of Text
        The fields of all items, in order of benchmark and line.
    ngram : int
        n, the number of words that must be shared.
    """

    texts: Sequence[Text]
    ngram: int
    numbers: dict[str, int] = field(init=False, repr=False)
    codes: Codes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Give each word a number (0 is any other word) and sort the windows of each size."""
        vocabulary = dict.fromkeys(word for text in self.texts for word in text.words)
        self.numbers = {word: number for number, word in enumerate(vocabulary, 1)}
        self._names = ["", *vocabulary]
        rng = np.random.default_rng(CODES_SEED)
        self.codes = rng.integers(0, 1 << 63, len(self._names), np.uint64)
        self._words = self.number(word for text in self.texts for word in text.words)
        lengths = np.array([len(text.words) for text in self.texts], np.int64)
        self._text_of = np.repeat(np.arange(lengths.size), lengths)
        self._benchmark_of = np.array([text.benchmark for text in self.texts], np.int64)
        sizes = {needed(int(length), self.ngram) for length in lengths} - {0}
        self._windows = {size: self._sorted_windows(lengths, size) for size in sorted(sizes)}

    def number(self, words: Iterable[str]) -> Ints:
        """Give each word its number, 0 where no benchmark has it."""
        get = self.numbers.get
        return np.array([get(word, 0) for word in words], np.int64)

    def find(self, words: Ints, lengths: Ints, row_of: Ints) -> list[Hit]:
        """Find what rows share with the benchmarks.

        Parameters
        ----------
        words : ndarray of shape (num_words,), int64
            Numbers of the words of all texts, end to end.
        lengths : ndarray of shape (num_texts,), int64
            Words of each text.
        row_of : ndarray of shape (num_texts,), int64
            The row of each text, increasing.

        Returns
        -------
        list of Hit
            One per row and item, in order of both.
        """
        found: dict[tuple[int, int, int], Hit] = {}
        text_of = np.repeat(np.arange(lengths.size), lengths)
        for size in sorted(self._windows, reverse=True):
            places, entries = self._matches(words, lengths, size)
            if not places.size:
                continue
            totals = np.bincount(row_of, weights=count_windows(lengths, size))
            texts = self._text_of[entries]
            shared: dict[tuple[int, int, int], list[int]] = {}
            for row, text, entry in zip(
                row_of[text_of[places]].tolist(), texts.tolist(), entries.tolist(), strict=True
            ):
                item = (row, self.texts[text].benchmark, self.texts[text].line)
                shared.setdefault(item, []).append(entry)
            for item, at in shared.items():
                ngram = " ".join(self._names[i] for i in self._words[at[0] : at[0] + size])
                hit = Hit(*item, ngram, len(at) / float(totals[item[0]]))
                found.setdefault(item, hit)  # the longest run is the evidence
        return [found[item] for item in sorted(found)]

    def _sorted_windows(self, lengths: Ints, size: int) -> _Windows:
        fits = np.array([needed(int(length), self.ngram) == size for length in lengths])
        starts = window_starts(lengths, size)
        starts = starts[fits[self._text_of[starts]]]
        hashes = window_hashes(self.codes[self._words], size)[starts]
        benchmarks = self._benchmark_of[self._text_of[starts]]
        order = np.lexsort((starts, benchmarks, hashes))
        hashes, benchmarks, starts = hashes[order], benchmarks[order], starts[order]
        first = np.ones(order.size, np.bool_)
        first[1:] = (hashes[1:] != hashes[:-1]) | (benchmarks[1:] != benchmarks[:-1])
        return _Windows(hashes[first], starts[first])

    def _matches(self, words: Ints, lengths: Ints, size: int) -> tuple[Ints, Ints]:
        """Give the places in `words` of shared windows, and their places in the benchmarks."""
        windows = self._windows[size]
        starts = window_starts(lengths, size)
        unknown = np.append(0, np.cumsum(words == 0))
        starts = starts[unknown[starts + size] == unknown[starts]]
        hashes = window_hashes(self.codes[words], size)[starts]
        left = np.searchsorted(windows.hashes, hashes, "left")
        right = np.searchsorted(windows.hashes, hashes, "right")
        counts = right - left
        starts = np.repeat(starts, counts)
        offsets = np.arange(starts.size) - np.repeat(np.cumsum(counts) - counts, counts)
        entries = windows.places[np.repeat(left, counts) + offsets]
        same = np.ones(starts.size, np.bool_)
        for offset in range(size):  # a collision of hashes is no hit
            same &= words[starts + offset] == self._words[entries + offset]
        return starts[same], entries[same]


def needed(num_words: int, ngram: int) -> int:
    """Say how many words in a row a text of so many is matched by; 0 if it is too short."""
    if num_words >= ngram:
        return ngram
    return num_words if num_words >= FEWEST_WORDS else 0


@dataclass(frozen=True)
class LeakedShares:
    """Leaked rows as a share of the pool, of the selection, and of random selections of its size.

    Attributes
    ----------
    pool, selection : float
        Shares in [0, 1].
    random_mean, random_low, random_high : float
        Mean, 5th and 95th percentile over the random selections.
    """

    pool: float
    selection: float
    random_mean: float
    random_low: float
    random_high: float


def leaked_shares(
    leaked_ids: Ints,
    pool_ids: Ints,
    selected_ids: Ints,
    rng: np.random.Generator,
    draws: int = 1000,
) -> LeakedShares:
    """Compare how much leaks into a selection with chance.

    Parameters
    ----------
    leaked_ids, pool_ids, selected_ids : ndarray of int64
        Row ids, each once: those that leak, those to choose from, and those chosen among them.
    rng : numpy.random.Generator
        Draws the random selections.
    draws : int
        How many; a random selection is drawn from the pool without replacement.
    """
    num_leaked = int(np.isin(pool_ids, leaked_ids).sum())
    size = selected_ids.size
    chance = rng.hypergeometric(num_leaked, pool_ids.size - num_leaked, size, draws) / size
    low, high = np.quantile(chance, [0.05, 0.95])
    return LeakedShares(
        pool=num_leaked / pool_ids.size,
        selection=float(np.isin(selected_ids, leaked_ids).mean()),
        random_mean=float(chance.mean()),
        random_low=float(low),
        random_high=float(high),
    )
