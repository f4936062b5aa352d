"""Which row stands for which: groups of equal digests, and the multiplicity of the row kept."""

import numpy as np

from stages.screen.grams import Codes, Ints


def first_of_equals(high: Codes, low: Codes) -> Ints:
    """Give for each row the first row of the same digest, which is itself where there is none.

    About 40 bytes a row: the digest, an order, and the answer.

    Parameters
    ----------
    high, low : ndarray of shape (num_rows,), uint64
        The two halves of each row's digest.
    """
    order = np.lexsort((low, high))  # stable: equal digests stay in order of their rows
    begins = np.ones(order.size, np.bool_)
    begins[1:] = (high[order[1:]] != high[order[:-1]]) | (low[order[1:]] != low[order[:-1]])
    leaders = order[np.flatnonzero(begins)]
    first = np.empty(order.size, np.int64)
    first[order] = leaders[np.cumsum(begins) - 1]
    return first


def sum_multiplicity(stands_for: Ints, multiplicity: Ints) -> Ints:
    """Sum the multiplicities of all rows that a row stands for; 0 where another stands for it.

    Parameters
    ----------
    stands_for : ndarray of shape (num_rows,), int64
        For each row the one that is kept in its place.
    multiplicity : ndarray of shape (num_rows,), int64
        Of each row by itself; 0 for a row that is left out of the count.
    """
    sums: Ints = np.zeros(stands_for.size, np.int64)
    np.add.at(sums, stands_for, multiplicity)
    return sums


def group_facts(stands_for: Ints, counted: np.ndarray) -> dict[str, int]:
    """Count the rows that another stands for, their groups, and the largest group.

    Parameters
    ----------
    stands_for : ndarray of shape (num_rows,), int64
        For each row the first of its group.
    counted : ndarray of shape (num_rows,), bool
        Which rows count.
    """
    sizes = np.bincount(stands_for[counted])
    several = sizes[sizes > 1]
    return {
        "rows": int((several - 1).sum()),
        "groups": int(several.size),
        "largest_group": int(several.max(initial=0)),
    }
