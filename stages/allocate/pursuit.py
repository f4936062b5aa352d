"""Few rows whose weighted sum is a given vector: orthogonal matching pursuit, weights above 0."""

import numpy as np
import numpy.typing as npt

from stages.allocate.neighbours import FloatArray, IntArray, Rows


def match_sum(
    rows: Rows,
    target: npt.NDArray[np.float64],
    quota: int,
    *,
    ridge: float,
    tolerance: float,
) -> tuple[IntArray, FloatArray]:
    """Choose at most `quota` rows and weights above 0 whose sum comes near the target.

    Greedy for min norm(sum_i x_i a_i - b)^2 + lambda norm(x)^2: add the row of the largest
    a_i . r that is above 0, solve for x on the chosen rows, and leave out the row of the smallest
    weight while it is not above 0 (as TAGCOS, arXiv 2407.15235; GradMatch, arXiv 2103.00123). A row
    that was left out does not come back. It ends early where norm(r) <= tolerance norm(b), or where
    no row points along r.

    The inverse of the Gram matrix is kept and updated, O(s^2) a step with s rows chosen, so all
    is O(quota n dim + quota^3); memory beyond the rows is quota^2.

    Parameters
    ----------
    rows : ndarray of shape (num_rows, dim)
        a_i.
    target : ndarray of shape (dim,)
        b.
    quota : int
        Most rows.
    ridge : float
        lambda in units of the mean of norm(a_i)^2; above 0.
    tolerance : float
        Of the residual.

    Returns
    -------
    chosen : ndarray of shape (num_chosen,), int64
        In the order of choice.
    weights : ndarray of shape (num_chosen,), float64
        Above 0.
    """
    wide = rows.astype(np.float64)
    scale = float(np.einsum("ij,ij->", wide, wide)) / wide.shape[0]
    lift = ridge * scale
    towards = wide @ target
    free = np.ones(wide.shape[0], bool)
    chosen: list[int] = []
    inverse = np.zeros((0, 0))
    weights = np.zeros(0)
    residual = target.astype(np.float64)
    enough = tolerance * float(np.linalg.norm(target))
    while len(chosen) < quota and free.any() and np.linalg.norm(residual) > enough:
        along = np.where(free, wide @ residual, -np.inf)
        best = int(np.argmax(along))
        if along[best] <= 0.0:
            break
        free[best] = False
        cross = wide[chosen] @ wide[best]
        inverse = _with_one_more(inverse, cross, float(wide[best] @ wide[best]) + lift)
        chosen.append(best)
        weights = inverse @ towards[chosen]
        while weights.size and weights.min() <= 0.0:
            out = int(np.argmin(weights))
            inverse = _with_one_less(inverse, out)
            del chosen[out]
            weights = inverse @ towards[chosen]
        residual = target - weights @ wide[chosen]
    return np.array(chosen, np.int64), weights


def _with_one_more(inverse: FloatArray, cross: FloatArray, corner: float) -> FloatArray:
    """Give the inverse of [[G, c], [c, corner]] from that of G."""
    moved = inverse @ cross
    rest = corner - float(cross @ moved)
    size = cross.size
    grown = np.empty((size + 1, size + 1))
    grown[:size, :size] = inverse + np.outer(moved, moved) / rest
    grown[:size, size] = grown[size, :size] = -moved / rest
    grown[size, size] = 1.0 / rest
    return grown


def _with_one_less(inverse: FloatArray, out: int) -> FloatArray:
    """Give the inverse of G without row and column `out` from that of G."""
    column = np.delete(inverse[:, out], out)
    kept = np.delete(np.delete(inverse, out, axis=0), out, axis=1)
    smaller: FloatArray = kept - np.outer(column, column) / inverse[out, out]
    return smaller
