"""How long a grid will take, from tokens a second measured on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.training_data import Rows
from benchmarks.training_features import timed
from benchmarks.training_loop import Course, row_losses, train
from benchmarks.training_model import Start
from benchmarks.training_plan import plan_rows
from benchmarks.training_regime import Regime
from stages.allocate.budget import StepShape

STEPS = 12


@dataclass(frozen=True)
class Speed:
    """Tokens a CPU second of one thread, trained and passed forward."""

    trained: float
    passed: float


def measure_speed(start: Start, regime: Regime, pool: Rows) -> Speed:
    """Train a few steps of a pool and throw them away."""
    torch.set_num_threads(1)
    step = StepShape(regime.NUM_WORKERS, 1, regime.micro_batch)
    count = min(STEPS, len(pool) // step.rows) * step.rows
    places = np.sort(np.random.default_rng(0).choice(len(pool), count, replace=False))
    rows = pool.take(places)
    plan = plan_rows(rows, np.zeros(count, np.int32), 1, step, objective="sample", seed=0)
    model, course = start.learner(), Course(rows, np.ones(count), plan, plan.num_steps)
    trace = train(model, course, regime, rate=0.0, marks=(), evaluate=dict)
    _, seconds = timed(lambda: row_losses(model, rows, bfloat16=regime.bfloat16))
    return Speed(trace.tokens / trace.seconds, rows.num_tokens.sum() / seconds)


def grid_seconds(
    shares: Sequence[float],
    num_seeds: int,
    num_marks: int,
    *,
    speed: Speed,
    pool_tokens: int,
    heldout_tokens: int,
    regime: Regime,
) -> float:
    """Add up the CPU seconds of runs.

    Parameters
    ----------
    shares : sequence of float
        What each run trains on, in times of the pool's tokens.
    num_seeds : int
        Pools that are measured.
    num_marks : int
        Passes over the held-out rows in each run.
    speed : Speed
        Of one thread.
    pool_tokens, heldout_tokens : int
        Tokens of a pool and of the held-out rows.
    regime : Regime
        The slices of the reference.
    """
    trained = sum(shares) * pool_tokens
    trained += num_seeds * 2 * regime.slice_share * pool_tokens
    passed = len(shares) * num_marks * heldout_tokens + num_seeds * 3.5 * pool_tokens
    return trained / speed.trained + passed / speed.passed
