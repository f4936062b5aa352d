"""What is kept of a row that is longer than the model's window. Functions of arrays only."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evenshard.shards import IGNORED_LABEL

Ids = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]
Keep = Callable[[Ids, int, bool], Indices]


def count_targets(labels: Ids) -> int:
    """Count the tokens that are predicted and trained.

    Parameters
    ----------
    labels : ndarray of shape (num_tokens,)
        Token ids, -100 where nothing is trained. The first is never predicted.
    """
    return int(np.count_nonzero(labels[1:] != IGNORED_LABEL))


def keep_left(labels: Ids, max_length: int, keep_first: bool) -> Indices:
    """Keep the first `max_length` tokens.

    Parameters
    ----------
    labels : ndarray of shape (num_tokens,)
        Token ids, -100 where nothing is trained.
    max_length : int
        Most tokens that may stay.
    keep_first : bool
        Of no effect here.

    Returns
    -------
    ndarray of shape (at most max_length,)
        Indices of the kept tokens, increasing.
    """
    return np.arange(min(labels.size, max_length))


def keep_answer(labels: Ids, max_length: int, keep_first: bool) -> Indices:
    """Drop the prompt from its left so that the answers fit, and only then the answers' end.

    Parameters
    ----------
    labels : ndarray of shape (num_tokens,)
        Token ids, -100 where nothing is trained.
    max_length : int
        Most tokens that may stay.
    keep_first : bool
        Whether the first token begins the text for the model and has to stay.

    Returns
    -------
    ndarray of shape (at most max_length,)
        Indices of the kept tokens, increasing. At least one stands before the first target,
        so that it is predicted from something.
    """
    targets = np.flatnonzero(labels != IGNORED_LABEL)
    first_target = int(targets[0]) if targets.size else 0
    num_pinned = int(keep_first and first_target > 0)
    # The token right before the first target stays, unless a pinned one serves.
    num_droppable = first_target - max(num_pinned, 1)
    num_dropped = min(max(labels.size - max_length, 0), max(num_droppable, 0))
    kept = np.delete(np.arange(labels.size), np.s_[num_pinned : num_pinned + num_dropped])
    return kept[:max_length]


SHORTEN: dict[str, Keep] = {"truncate": keep_left, "keep_answer": keep_answer}
POLICIES = (*SHORTEN, "reject")
