"""Which worker sees which kept row when: equal rows, clusters in proportion, lengths alike.

Notation: W workers, A*B rows of a worker in a step, M = W*A*B, S = T / M steps, K clusters.
A plan is an array of shape (S, W, A*B) of positions into the kept rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stages.allocate.budget import StepShape
from stages.allocate.fair import periodic_counts, step_counts
from stages.allocate.weights import first_few
from stages.contract.errors import DataError

IntArray = npt.NDArray[np.int64]
ClusterArray = npt.NDArray[np.int32]
SCHEDULES = ("auto", "pinned", "dealt")
ENTRIES_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Schedule:
    """The plan and what it promises.

    Attributes
    ----------
    kind : str
        pinned (a worker holds its own clusters) or dealt (each step's rows are dealt so that
        tokens even out).
    reason : str
        Why this kind.
    window_steps : int
        Clusters are in proportion in every window of so many steps.
    plan : ndarray of shape (num_steps, num_workers, rows_per_worker), int64
        Positions into the kept rows.
    """

    kind: str
    reason: str
    window_steps: int
    plan: IntArray


def build_schedule(
    clusters: npt.NDArray[np.int32],
    num_tokens: IntArray,
    num_clusters: int,
    step: StepShape,
    *,
    kind: str,
    objective: str,
    rng: np.random.Generator,
    rearrange: Callable[[IntArray], IntArray] | None = None,
) -> Schedule:
    """Lay kept rows into steps.

    Parameters
    ----------
    clusters : ndarray of shape (num_kept,), int
        Cluster of each kept row; num_kept is a whole number of steps.
    num_tokens : ndarray of shape (num_kept,), int64
        Length of each.
    num_clusters : int
        K.
    step : StepShape
        W, A and B.
    kind : str
        auto, pinned or dealt.
    objective : str
        rank needs pinned, and auto then chooses it.
    rng : numpy.random.Generator
        Orders steps and workers.
    rearrange : callable, optional
        Steps of shape (num_steps, rows_per_step) -> the same with rows of one cluster and like
        length in each other's places, see `stages.allocate.order`.

    Raises
    ------
    DataError
        If pinned is asked, or needed, and not possible.
    """
    quotas = np.bincount(clusters, minlength=num_clusters).astype(np.int64)
    obstacle = pinned_obstacle(quotas, step.num_workers)
    if kind == "pinned" or (kind == "auto" and objective == "rank"):
        if obstacle is not None:
            raise DataError(
                f"allocate.schedule=pinned is not possible: {obstacle}; use "
                f"allocate.schedule=dealt (with allocate.objective=sample), or keep as many rows "
                f"of each cluster: allocate.selector=cluster_balanced, asked by allocate.ratio"
            )
        groups = [np.arange(r, num_clusters, step.num_workers) for r in range(step.num_workers)]
        reason = "asked" if kind == "pinned" else "the objective rank needs it"
        plan, window = _pinned_plan(clusters, num_tokens, groups, step, rng)
        if rearrange is not None:
            plan = rearrange(plan.reshape(plan.shape[0], -1)).reshape(plan.shape)
        return Schedule("pinned", reason, window, plan)
    reason = "asked" if kind == "dealt" else "it evens out tokens; pinned is for the objective rank"
    num_steps = clusters.size // step.rows
    window = needed_window(quotas, num_steps, step.rows)
    steps = fill_steps(clusters, num_tokens, cluster_places(quotas, num_steps, window), rng)
    if rearrange is not None:
        steps = rearrange(steps)
    return Schedule("dealt", reason, window, deal(steps, num_tokens, step, rng))


def pinned_obstacle(quotas: IntArray, num_workers: int) -> str | None:
    """Say why workers cannot hold their own clusters; None where they can."""
    if quotas.size % num_workers:
        return (
            f"cluster.num_clusters={quotas.size} must be a multiple of "
            f"allocate.num_workers={num_workers}"
        )
    per_worker = quotas.reshape(-1, num_workers).sum(axis=0)
    if np.any(per_worker != per_worker[0]):
        return f"the workers' clusters keep unequal numbers of rows {first_few(per_worker)}"
    return None


def needed_window(quotas: IntArray, num_steps: int, rows_per_step: int) -> int:
    """Count the steps that hold the clusters in proportion: 1, or ceil(K / rows_per_step)."""
    return max(1, min(-(-int(np.count_nonzero(quotas)) // rows_per_step), num_steps))


def cluster_places(quotas: IntArray, num_steps: int, window: int) -> ClusterArray:
    """Name the clusters of the rows of each step, in proportion over every window of steps.

    Windows are scheduled first, then the steps inside them. Memory is in proportion to the rows,
    however many clusters there are: a table of steps by clusters would be mostly zeros.

    Parameters
    ----------
    quotas : ndarray of shape (num_clusters,), int64
        Rows of each cluster; their sum is a multiple of `num_steps`.
    num_steps : int
        S.
    window : int
        Steps of a window; at least `needed_window`.

    Returns
    -------
    ndarray of shape (num_steps, rows_per_step), int32
    """
    kept = np.flatnonzero(quotas).astype(np.int32)
    quotas = quotas[kept]
    if window == 1:
        counts = step_counts(quotas, num_steps)
        return np.repeat(np.tile(kept, num_steps), counts.ravel()).reshape(num_steps, -1)
    num_windows, rest = divmod(num_steps, window)
    per_window = periodic_counts(quotas * window, num_steps, num_windows)
    if rest:
        per_window = np.vstack([per_window, quotas - per_window.sum(axis=0)])
    places = np.empty((num_steps, int(quotas.sum()) // num_steps), np.int32)
    done = np.cumsum(per_window, axis=0) - per_window
    at_once = max(1, ENTRIES_AT_ONCE // quotas.size)
    for first in range(0, num_windows, at_once):
        last = min(first + at_once, num_windows)
        block = places[first * window : last * window].reshape(-1, window, places.shape[1])
        starts = np.arange(first, last) * window
        _fill_windows(block, starts, per_window[first:last], done[first:last], quotas, num_steps)
    if rest:
        tail = places[None, num_windows * window :]
        starts = np.array([num_windows * window])
        _fill_windows(tail, starts, per_window[-1:], done[-1:], quotas, num_steps)
    return kept[places]


def _fill_windows(
    places: ClusterArray,
    starts: IntArray,
    amounts: IntArray,
    done: IntArray,
    quotas: IntArray,
    num_steps: int,
) -> None:
    """Order the rows of windows: the cluster furthest behind its line goes first.

    What comes before a window is known, so all windows are filled at once, row by row.

    Parameters
    ----------
    places : ndarray of shape (num_windows, steps_per_window, rows_per_step), int32
        Filled in place with the numbers of clusters.
    starts : ndarray of shape (num_windows,), int64
        The first step of each window.
    amounts, done : ndarray of shape (num_windows, num_clusters), int64
        Rows of each cluster in the window, and before it.
    quotas : ndarray of shape (num_clusters,), int64
        Rows of each cluster in all.
    num_steps : int
        S.
    """
    every = np.arange(starts.size)
    left, done = amounts.copy(), done * num_steps
    for step in range(places.shape[1]):
        # In units of 1 / num_steps rows: where the line is after this step, less the count.
        behind = quotas * (starts[:, None] + step + 1) - done
        for place in range(places.shape[2]):
            cluster = np.argmax(np.where(left > 0, behind, np.iinfo(np.int64).min), axis=1)
            places[every, step, place] = cluster
            done[every, cluster] += num_steps
            behind[every, cluster] -= num_steps
            left[every, cluster] -= 1


def fill_steps(
    clusters: npt.NDArray[np.int32],
    num_tokens: IntArray,
    places: ClusterArray,
    rng: np.random.Generator,
) -> IntArray:
    """Put rows into steps so that rows of one step are of like length in every cluster.

    Rows are sorted by length inside each cluster only. The steps take their turns in a random
    order, so the lengths of successive steps are not sorted, while the counts of each step stay
    where the fair sequence put them.

    Parameters
    ----------
    clusters, num_tokens : ndarray of shape (num_kept,)
        Cluster and length of each row.
    places : ndarray of shape (num_steps, rows_per_step)
        The cluster of each row of each step; its order inside a step says nothing.
    rng : numpy.random.Generator
        Draws the order of turns, and the order of rows of equal length.

    Returns
    -------
    ndarray of shape (num_steps, rows_per_step), int64
        Positions of rows.
    """
    num_steps, rows_per_step = places.shape
    turns = rng.permutation(num_steps)
    tie_breaks = rng.permutation(clusters.size)
    rows = np.lexsort((tie_breaks, num_tokens, clusters))
    # The k-th row of a cluster goes to its k-th place, counted in the order of turns.
    in_turn = np.argsort(places[turns].ravel(), kind="stable")
    steps_of_row = np.empty(clusters.size, np.int64)
    steps_of_row[rows] = turns[in_turn // rows_per_step]
    by_step = np.argsort(steps_of_row, kind="stable")
    return by_step.reshape(num_steps, -1).astype(np.int64)


def deal(
    steps: IntArray, num_tokens: IntArray, step: StepShape, rng: np.random.Generator
) -> IntArray:
    """Deal each step's rows to the workers, the longest first, always to the least loaded.

    Every worker gets A*B rows of each step; which worker plays which part is drawn anew for
    every step, so that no worker always gets the longest row. All steps are dealt at once.

    Returns
    -------
    ndarray of shape (num_steps, num_workers, rows_per_worker), int64
        A worker's rows of a step, longest first, so that micro-batches are of like length.
    """
    num_steps = steps.shape[0]
    lengths = num_tokens[steps]
    order = np.argsort(-lengths, axis=1, kind="stable")
    sorted_rows = np.take_along_axis(steps, order, axis=1)
    sorted_lengths = np.take_along_axis(lengths, order, axis=1)
    plan = np.empty((num_steps, step.num_workers, step.rows_per_worker), np.int64)
    load = np.zeros((num_steps, step.num_workers), np.int64)
    held = np.zeros((num_steps, step.num_workers), np.int64)
    every = np.arange(num_steps)
    for place in range(step.rows):
        open_load = np.where(held < step.rows_per_worker, load, np.iinfo(np.int64).max)
        worker = np.argmin(open_load, axis=1)
        plan[every, worker, held[every, worker]] = sorted_rows[:, place]
        load[every, worker] += sorted_lengths[:, place]
        held[every, worker] += 1
    parts = rng.permuted(np.tile(np.arange(step.num_workers), (num_steps, 1)), axis=1)
    return np.take_along_axis(plan, parts[:, :, None], axis=1)


def _pinned_plan(
    clusters: npt.NDArray[np.int32],
    num_tokens: IntArray,
    groups: list[IntArray],
    step: StepShape,
    rng: np.random.Generator,
) -> tuple[IntArray, int]:
    """Let worker r hold the clusters c with c mod W = r; all workers take turns alike."""
    num_clusters = sum(group.size for group in groups)
    num_steps = clusters.size // step.rows
    quotas = np.bincount(clusters, minlength=num_clusters).astype(np.int64)
    turns_seed = int(rng.integers(2**63))
    plans = []
    window = max(needed_window(quotas[group], num_steps, step.rows_per_worker) for group in groups)
    for group in groups:
        rows = np.flatnonzero(np.isin(clusters, group))
        local = np.searchsorted(group, clusters[rows]).astype(np.int32)
        places = cluster_places(quotas[group], num_steps, window)
        # The same seed for each worker: the k-th longest rows of all of them meet in one step.
        turns = np.random.default_rng(turns_seed)
        plans.append(rows[fill_steps(local, num_tokens[rows], places, turns)])
    plan = np.stack(plans, axis=1)
    lengths = num_tokens[plan]
    order = np.argsort(-lengths, axis=2, kind="stable")
    return np.take_along_axis(plan, order, axis=2), window
