"""Which rows of a cluster are kept, once it is known how many: the keep rules.

The reference code names its rules by what they drop; here they are named by what they keep.
"""

import numpy as np
import numpy.typing as npt

RULES = ("farthest", "nearest", "mixed", "random", "largest_norm", "kcenter")
BY_DISTANCE = ("farthest", "nearest", "mixed")  # rank rows by their distance from the centre
IntArray = npt.NDArray[np.int64]


def keep_rows(
    rule: str,
    quota: int,
    *,
    distances: npt.NDArray[np.float32],
    norms: npt.NDArray[np.float32] | None,
    embeddings: npt.NDArray[np.float32] | None,
    draws: npt.NDArray[np.float64],
) -> IntArray:
    """Choose exactly `quota` rows of one cluster; ties go to the earlier row.

    Parameters
    ----------
    rule : str
        farthest, nearest (by distance to the centre), mixed (half nearest, half farthest),
        random, largest_norm (of the raw embedding), kcenter (greedy farthest-first cover).
    quota : int
        At most the number of rows.
    distances : ndarray of shape (num_rows,), float32
        Of each row of the cluster to its centre.
    norms : ndarray of shape (num_rows,), float32, or None
        Of each row's raw embedding; only `largest_norm` reads them.
    embeddings : ndarray of shape (num_rows, dim), float32, or None
        Prepared embeddings; only `kcenter` reads them.
    draws : ndarray of shape (num_rows,)
        A random number for each row; `random` keeps the smallest, so a smaller quota keeps a
        part of a larger one's rows.

    Returns
    -------
    ndarray of shape (quota,), int64
        Positions, increasing.
    """
    rows = np.arange(distances.size)
    if rule == "farthest":
        chosen = np.lexsort((rows, -distances))[:quota]
    elif rule == "nearest":
        chosen = np.lexsort((rows, distances))[:quota]
    elif rule == "mixed":
        order = np.lexsort((rows, distances))
        near = quota // 2
        far = quota - near
        chosen = np.concatenate([order[:near], order[order.size - far :]])
    elif rule == "random":
        chosen = np.lexsort((rows, draws))[:quota]
    elif rule == "largest_norm":
        assert norms is not None
        chosen = np.lexsort((rows, -norms))[:quota]
    else:
        assert rule == "kcenter" and embeddings is not None, rule
        chosen = farthest_first(embeddings, quota, start=int(np.argmin(distances)))
    return np.sort(chosen).astype(np.int64)


def farthest_first(embeddings: npt.NDArray[np.float32], quota: int, *, start: int) -> IntArray:
    """Cover rows greedily: always add the row farthest from those chosen (Gonzalez 1985).

    The result's covering radius is at most twice the best possible.

    Parameters
    ----------
    embeddings : ndarray of shape (num_rows, dim), float32
        The rows.
    quota : int
        How many to choose.
    start : int
        The first row.
    """
    rows = embeddings.astype(np.float64)
    squares = np.einsum("ij,ij->i", rows, rows)
    gaps = np.full(squares.size, np.inf)
    chosen = np.empty(quota, np.int64)
    current = start
    for step in range(quota):
        chosen[step] = current
        to_current = squares - 2.0 * (rows @ rows[current]) + squares[current]
        gaps = np.minimum(gaps, np.maximum(to_current, 0.0))
        gaps[current] = -1.0
        current = int(np.argmax(gaps))
    return chosen
