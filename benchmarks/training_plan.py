"""From kept rows to evenshard's plan of their steps, without writing shards."""

import numpy as np
import numpy.typing as npt

from benchmarks.training_data import Rows
from benchmarks.training_loop import MemorySet
from evenshard.plan import Plan
from stages.allocate.budget import StepShape
from stages.allocate.schedule import build_schedule

SCHEDULE_STREAM = 1


def plan_rows(
    rows: Rows,
    clusters: npt.NDArray[np.int32],
    num_clusters: int,
    step: StepShape,
    *,
    objective: str,
    seed: int,
    weights: npt.NDArray[np.float64] | None = None,
) -> Plan:
    """Schedule rows as the allocate room does, and plan the epochs of 4 ranks.

    Parameters
    ----------
    rows : Rows
        Those that are kept, a whole number of steps.
    clusters : ndarray of shape (num_rows,), int32
        Cluster of each.
    num_clusters : int
        K.
    step : StepShape
        W, A and B.
    objective : str
        sample or rank; rank pins clusters to workers.
    seed : int
        Of the order.
    weights : ndarray of shape (num_rows,), optional
        Of the rows, by default all 1; the objective rank needs those of a cluster to be alike.
    """
    schedule = build_schedule(
        clusters,
        rows.num_tokens,
        num_clusters,
        step,
        kind="auto",
        objective=objective,
        rng=np.random.default_rng([seed, SCHEDULE_STREAM]),
    )
    weights = np.ones(len(rows)) if weights is None else weights
    shards = MemorySet(schedule, step, rows, clusters, weights, objective=objective, seed=seed)
    return Plan(shards, objective=objective)
