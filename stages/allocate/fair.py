"""How many rows of each cluster every step holds: a proportionate-fair sequence.

Cluster k has q_k of the T kept rows and should give each of the S steps q_k / S rows, which is
seldom whole. Its whole part goes to every step; the fractions are scheduled like periodic tasks
of weight (q_k mod S) / S on as many processors as the fractions sum to, by the algorithm PD2
(Anderson and Srinivasan, "Mixed Pfair/ERfair scheduling of asynchronous periodic tasks", 2004).
PD2 is optimal for such tasks, so every step holds the floor or the ceiling of the exact number,
and the running count of each cluster never leaves the exact line by a whole row.
"""

import heapq

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def step_counts(quotas: IntArray, num_steps: int) -> IntArray:
    """Spread quotas over steps.

    Parameters
    ----------
    quotas : ndarray of shape (num_clusters,), int64
        Rows of each cluster; their sum is a multiple of `num_steps`.
    num_steps : int
        S.

    Returns
    -------
    ndarray of shape (num_steps, num_clusters), int64
        Rows of each cluster in each step; every row sums to sum(quotas) / S, every entry is
        floor or ceil of q_k / S, and every running sum is within less than 1 of its line.
    """
    return periodic_counts(quotas, num_steps, num_steps)


def periodic_counts(amounts: IntArray, period: int, num_steps: int) -> IntArray:
    """Schedule `num_steps` steps that give amounts[k] / period rows of cluster k each.

    Parameters
    ----------
    amounts : ndarray of shape (num_clusters,), int64
        Numerators; their sum is a multiple of `period`.
    period : int
        The common denominator.
    num_steps : int
        How many steps to schedule; it may differ from the period.

    Returns
    -------
    ndarray of shape (num_steps, num_clusters), int64
    """
    assert int(amounts.sum()) % period == 0, (amounts, period)
    whole, parts = np.divmod(amounts.astype(np.int64), period)
    counts = np.tile(whole, (num_steps, 1))
    per_step = int(parts.sum()) // period
    numerators = [int(value) for value in parts]
    # Released subtasks by priority, and the others by their release; one entry for each task.
    ready: list[tuple[int, ...]] = []
    waiting = [_subtask(k, 1, numerators[k], period) for k in np.flatnonzero(parts).tolist()]
    heapq.heapify(waiting)
    for step in range(num_steps):
        while waiting and waiting[0][0] <= step:
            heapq.heappush(ready, heapq.heappop(waiting)[1])
        for _ in range(per_step):
            *_, task, index = heapq.heappop(ready)
            counts[step, task] += 1
            heapq.heappush(waiting, _subtask(task, index + 1, numerators[task], period))
    return counts


def _subtask(task: int, index: int, parts: int, period: int) -> tuple[int, tuple[int, ...]]:
    """Give the slot in which a subtask is released, and its priority, the least first.

    Subtask i (from 1) of a task of weight w = parts / period must run in the slots
    [floor((i-1)/w), ceil(i/w)). Among those released, PD2 prefers the earliest deadline; then
    those whose window overlaps the next one's; then, for weights of at least one half, the later
    group deadline, which is where a chain of windows of length two would end.
    """
    deadline, rest = divmod(index * period, parts)
    overlaps = rest > 0
    deadline += overlaps
    group = 0
    if 2 * parts >= period:
        slack = period - parts
        chains = -(-deadline * slack // period)
        group = -(-chains * period // slack)
    return (index - 1) * period // parts, (deadline, -overlaps, -group, task, index)
