"""Runs of words as numbers: one 64-bit hash per window of words, computed without a loop.

The hash is a polynomial in 64-bit arithmetic over well mixed codes of the words. A hit is always
checked word by word or counted in sets, so a collision never makes one.
"""

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

FACTOR = np.uint64(0x9E3779B97F4A7C15)


def window_hashes(codes: Codes, size: int) -> Codes:
    """Hash every window of `size` neighbours.

    Parameters
    ----------
    codes : ndarray of shape (num_words,), uint64
        One well mixed number per word.
    size : int
        Words of a window.

    Returns
    -------
    ndarray of shape (max(0, num_words - size + 1),), uint64
    """
    count = max(0, codes.size - size + 1)
    hashes = np.zeros(count, np.uint64)
    for offset in range(size if count else 0):
        hashes = hashes * FACTOR + codes[offset : offset + count]
    return hashes


def window_starts(lengths: Ints, size: int) -> Ints:
    """Give the places where a window of `size` words lies inside one of the texts laid end to end.

    Parameters
    ----------
    lengths : ndarray of shape (num_texts,), int64
        Words of each text.
    size : int
        Words of a window.
    """
    ends = np.repeat(np.cumsum(lengths), lengths)
    places = np.arange(ends.size)
    return places[places + size <= ends]


def count_windows(lengths: Ints, size: int) -> Ints:
    """Count the windows of each text."""
    counts: Ints = np.maximum(lengths - size + 1, 0)
    return counts


def shingles(codes: Codes, size: int) -> Codes:
    """Give the sorted set of hashes of a text's windows; a shorter text is one window."""
    return np.unique(window_hashes(codes, min(size, codes.size))) if codes.size else codes
