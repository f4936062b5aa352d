"""Which tokens are trained, by the characters that each stands for. Functions of arrays only."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stages.tokens.spans import Span


def answer_runs(offsets: npt.NDArray[np.int64], spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Find the first and the last token that touch an answer, for each answer that has any.

    Parameters
    ----------
    offsets : ndarray of shape (num_tokens, 2)
        Characters of each token, half-open. Several tokens of one character have the same.
    spans : sequence of (int, int)
        Characters of each answer, half-open.

    Returns
    -------
    list of (int, int)
        Indices of tokens, both inclusive.
    """
    if not len(offsets):
        return []
    starts, stops = offsets[:, 0], offsets[:, 1]
    # A token without width stands for what lies between its neighbour on the left and itself.
    reached = np.concatenate([[0], np.maximum.accumulate(stops)[:-1]])
    starts = np.where(starts == stops, np.minimum(reached, starts), starts)
    touching = (np.flatnonzero((starts < stop) & (stops > start)) for start, stop in spans)
    return [(int(tokens[0]), int(tokens[-1])) for tokens in touching if tokens.size]


def trained(num_tokens: int, runs: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Mark the tokens from the first to the last of each answer.

    Parameters
    ----------
    num_tokens : int
        Of the row.
    runs : sequence of (int, int)
        As `answer_runs` gives them.

    Returns
    -------
    ndarray of shape (num_tokens,)
        True where a token is trained.
    """
    mask = np.zeros(num_tokens, dtype=np.bool_)
    for first, last in runs:
        mask[first : last + 1] = True
    return mask
