"""What a row counts in the gradient that a trainer follows, which its objective decides.

With g_i the mean gradient of row i over its n_i trained tokens, w_i its weight and m_i its
multiplicity, an epoch of the kept rows follows sum u_i g_i / sum u_i, and should follow
sum M_i g_i / sum M_i over all rows:

    objective   u_i                                         M_i
    sample      w_i                                         m_i
    token       w_i n_i                                     m_i n_i
    rank        w_i B n_i / (trained tokens of the B rows   m_i
                of its micro-batch)

Under token a step divides by its own sum of u_i, under the others by its number of rows.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import TOKENS, Candidates, IntArray
from stages.allocate.weights import to_mean_one

Array = npt.NDArray[np.float64]


def as_counted(candidates: Candidates, num_targets: IntArray, objective: str) -> Candidates:
    """Let multiplicities be M_i, so that selectors and figures aim at the objective's gradient.

    Parameters
    ----------
    candidates : Candidates
        With multiplicities in rows.
    num_targets : ndarray of shape (num_rows,), int64
        n_i, above 0.
    objective : str
        sample, token or rank.
    """
    if objective != "token":
        return candidates
    return replace(candidates, multiplicity=candidates.multiplicity * num_targets, counts=TOKENS)


def weights_of(counted: Array, num_targets: IntArray, objective: str) -> Array:
    """Give the weights w_i, of mean 1, by which rows count as u_i.

    Parameters
    ----------
    counted : ndarray of shape (num_kept,)
        u_i with mean 1, as a selector gives them for what `as_counted` made.
    num_targets : ndarray of shape (num_kept,), int64
        n_i.
    objective : str
        sample, token or rank; for rank u_i is w_i wherever rows of a micro-batch are of one length.
    """
    return to_mean_one(counted / num_targets) if objective == "token" else counted


def counted_by(
    weights: Array, num_targets: IntArray, objective: str, plan: IntArray, micro_batch: int
) -> Array:
    """Give u_i, with mean 1, of kept rows that lie in a plan.

    Parameters
    ----------
    weights : ndarray of shape (num_kept,)
        w_i, with mean 1.
    num_targets : ndarray of shape (num_kept,), int64
        n_i.
    objective : str
        sample, token or rank.
    plan : ndarray of shape (num_steps, num_workers, rows_per_worker), int64
        Positions into the kept rows; so many in a row as `micro_batch` says go forth together.
    micro_batch : int
        B.
    """
    if objective == "token":
        return to_mean_one(weights * num_targets)
    if objective == "rank" and micro_batch > 1:
        batches = plan.reshape(-1, micro_batch)
        tokens = num_targets[batches]
        part = np.empty(weights.size)
        part[batches] = micro_batch * tokens / tokens.sum(axis=1, keepdims=True)
        return to_mean_one(weights * part)
    return weights
