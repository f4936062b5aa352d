"""Batches by a budget of tokens, over rows sorted by length, so that little is padding."""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def token_batches(lengths: IntArray, tokens_per_batch: int) -> list[IntArray]:
    """Group rows into batches whose padded size stays within a budget.

    The longest rows come first, so that a batch too large for the device shows itself at the
    start. A row longer than the budget is a batch of its own.

    Parameters
    ----------
    lengths : ndarray of shape (num_rows,), int64
        Tokens of each row.
    tokens_per_batch : int
        Bound of rows times longest row of a batch.

    Returns
    -------
    list of ndarray of int64
        Positions into `lengths`, each exactly once.
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    start = 0
    while start < order.size:
        longest = max(1, int(lengths[order[start]]))
        count = max(1, tokens_per_batch // longest)
        batches.append(order[start : start + count])
        start += count
    return batches


def pad_rows(rows: list[npt.NDArray[np.int32]], fill: int) -> IntArray:
    """Lay rows of different lengths into one array of shape (num_rows, longest), padded right."""
    longest = max(row.size for row in rows)
    padded = np.full((len(rows), longest), fill, dtype=np.int64)
    for index, row in enumerate(rows):
        padded[index, : row.size] = row
    return padded
