"""How many rows of each cluster every step holds: a proportionate-fair sequence.

Cluster k has q_k of the T kept rows and should give each of the S steps q_k / S rows, which is
seldom whole. Its whole part goes to every step; the fractions are scheduled like periodic tasks
of weight (q_k mod S) / S on as many processors as the fractions sum to, by the algorithm PD2
(Anderson and Srinivasan, "Mixed Pfair/ERfair scheduling of asynchronous periodic tasks", 2004).
PD2 is optimal for such tasks, so every step holds the floor or the ceiling of the exact number,
and the running count of each cluster never leaves the exact line by a whole row.
"""

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
    tasks = np.flatnonzero(parts)
    per_step = int(parts.sum()) // period
    if tasks.size == 0:
        return counts
    running = _Tasks(parts[tasks], period)
    for step in range(num_steps):
        chosen = running.choose(step, per_step)
        counts[step, tasks[chosen]] += 1
    return counts


class _Tasks:
    """Periodic tasks of weight parts / period in (0, 1), and the next subtask of each.

    Subtask i (from 1) of a task of weight w must run in the slots [floor((i-1)/w), ceil(i/w)).
    Among those released, PD2 prefers the earliest deadline; then those whose window overlaps
    the next one's; then, for weights of at least one half, the later group deadline, which is
    where a chain of windows of length two would end.
    """

    def __init__(self, parts: IntArray, period: int) -> None:
        self.parts = parts
        self.period = period
        self.next = np.ones(parts.size, np.int64)
        self.release = np.zeros(parts.size, np.int64)
        self.deadline = np.zeros(parts.size, np.int64)
        self.overlap = np.zeros(parts.size, np.int64)
        self.group = np.zeros(parts.size, np.int64)
        self._refresh(np.arange(parts.size))

    def choose(self, slot: int, count: int) -> IntArray:
        """Run `count` tasks in a slot and advance them to their next subtasks."""
        ready = np.flatnonzero(self.release <= slot)
        assert ready.size >= count, "the fractions always leave enough released subtasks"
        order = np.lexsort((ready, -self.group[ready], -self.overlap[ready], self.deadline[ready]))
        chosen = ready[order[:count]]
        self.next[chosen] += 1
        self._refresh(chosen)
        return chosen

    def _refresh(self, tasks: IntArray) -> None:
        parts, index = self.parts[tasks], self.next[tasks]
        self.release[tasks] = (index - 1) * self.period // parts
        self.deadline[tasks] = -(-index * self.period // parts)
        self.overlap[tasks] = (index * self.period % parts != 0).astype(np.int64)
        slack = self.period - parts
        ceiling = -(-self.deadline[tasks] * slack // self.period)
        group = -(-ceiling * self.period // slack)
        self.group[tasks] = np.where(2 * parts >= self.period, group, 0)
