"""What selectors know of a pool from models that were tuned on a part of it; and what is kept.

The reference of reducible loss (RHO-LOSS, arXiv 2206.07137) costs no further rows: two slices of
the pool are cut off, a copy of the start model is tuned for one pass on each, the first one scores
all rows but its own, the second one scores those. The trajectory of S2L (arXiv 2403.07384) and the
gradients of LESS (arXiv 2402.04333) come from a warm-up on the first slice. Each cost is counted to
whoever reads it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.training_data import Rows, hash_of
from benchmarks.training_features import (
    PASS_TOKENS,
    Cost,
    FloatArray,
    PoolFacts,
    measure_pool,
    measure_rows,
    target_rows,
    timed,
)
from benchmarks.training_loop import Course, Trace, row_losses, train
from benchmarks.training_model import Start
from benchmarks.training_plan import plan_rows
from benchmarks.training_regime import Regime, digest
from stages.allocate.budget import StepShape
from stages.embed.batching import token_batches
from stages.embed.model import TargetModel, wrap_model
from stages.trajectory import train as warming
from stages.trajectory.adapters import LowRank, add_adapters, set_state
from stages.trajectory.gradients import Directions, directions_of, folded_gradients, joined
from stages.trajectory.stage import TrajectoryConfig
from stages.trajectory.train import batches_of, warm_up

CHECKPOINTS = (1 / 3, 2 / 3, 1.0)  # shares of the steps of a tuning
COST = "cost:"  # begins the names of costs in a file of facts
WARM_UP_EPOCHS = 4  # of LESS, a checkpoint after each
GRADIENT_DIM = 1024
CHUNK = 1024  # positions that meet the head at once


def pool_facts(
    start: Start, regime: Regime, seed: int, further: Sequence[str] = ("reference", "trajectory")
) -> PoolFacts:
    """Measure a seed's pool, or read what was measured.

    Parameters
    ----------
    start : Start
        The model and the rows.
    regime : Regime
        Size of the pool and of the sketches; for the reference, how it is tuned.
    seed : int
        Of the pool.
    further : sequence of str, default=("reference", "trajectory")
        Which of `FURTHER` are there too.
    """
    names = (regime.pool_rows, regime.sketch_vocab, regime.sketch_hidden, seed)
    facts = _kept(
        regime.folder / f"pool-{digest(names)}.npz", lambda: measure_pool(start, regime, seed)
    )
    pool = start.pool(regime, seed)
    for name in further:
        path = regime.folder / f"{name}-{regime.key}-{seed}.npz"
        more = _kept(path, partial(FURTHER[name], start, pool, regime, seed))
        facts = PoolFacts(facts.arrays | more.arrays, facts.costs | more.costs)
    return facts


def _kept(path: Path, measure: Callable[[], PoolFacts]) -> PoolFacts:
    """Read facts from a file, which is made first where there is none."""
    if not path.exists():
        facts = measure()
        costs = {
            f"{COST}{name}": np.array([c.forward_tokens, c.trained_tokens, c.seconds])
            for name, c in facts.costs.items()
        }
        unfinished = path.with_suffix(f".{time.monotonic_ns()}.npz")
        np.savez(unfinished, **facts.arrays, **costs)  # type: ignore[arg-type]
        unfinished.rename(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    costs = {name: arrays.pop(name) for name in list(arrays) if name.startswith(COST)}
    return PoolFacts(
        arrays,
        {
            name.removeprefix(COST): Cost(int(passed), int(trained), float(seconds))
            for name, (passed, trained, seconds) in costs.items()
        },
    )


def reference_signals(start: Start, pool: Rows, regime: Regime, seed: int) -> PoolFacts:
    """Score every row by a copy of the start model that was tuned on other rows of the pool."""
    slices = slices_of(pool, regime, seed)
    cost = Cost()
    signals: dict[str, FloatArray] = {}
    for number, places in enumerate(slices):
        model, trace = tune(start, pool.take(places), regime, seed)
        scored = np.setdiff1d(np.arange(len(pool)), places) if number == 0 else slices[0]
        others = pool.take(scored)
        (_, found), seconds = timed(partial(measure_rows, model, others, regime, ()))
        for name, values in found.items():
            column = signals.setdefault(f"reference.{name}", np.zeros(len(pool), np.float32))
            column[scored] = values
        passed = int(others.num_tokens.sum())
        cost += Cost(passed, trace.tokens, trace.seconds + seconds)
    return PoolFacts(signals, {"reference": cost})


def trajectory(start: Start, pool: Rows, regime: Regime, seed: int) -> PoolFacts:
    """Take the loss of every row at the start and while a copy is tuned on the first slice."""
    losses: list[npt.NDArray[np.float64]] = []
    passing = []

    def passes(model: Any) -> dict[str, float]:
        found, seconds = timed(partial(row_losses, model, pool))
        losses.append(found)
        passing.append(seconds)
        return {}

    passes(start.model())
    slices = slices_of(pool, regime, seed)
    _, trace = tune(start, pool.take(slices[0]), regime, seed, CHECKPOINTS, passes)
    passed = len(losses) * int(pool.num_tokens.sum())
    cost = Cost(passed, trace.tokens, trace.seconds + sum(passing))
    return PoolFacts(
        {"trajectory": np.stack(losses, axis=1).astype(np.float32)}, {"trajectory": cost}
    )


def gradients(start: Start, pool: Rows, regime: Regime, seed: int) -> PoolFacts:
    """Take Adam's direction of every row, and the gradient of target rows, over a warm-up.

    The trajectory room's own functions: adapters are warmed up on the first slice, and every row
    goes forth and back at each checkpoint.
    """
    rows = as_plain(pool.take(slices_of(pool, regime, seed)[0]))
    config = TrajectoryConfig(
        steps=WARM_UP_EPOCHS * len(rows.labels) // (regime.NUM_WORKERS * regime.micro_batch),
        rows=len(rows.labels),
        checkpoints=WARM_UP_EPOCHS,
        batch_rows=regime.NUM_WORKERS * regime.micro_batch,
        learning_rate=regime.learning_rate,
        gradient_dim=GRADIENT_DIM,
        seed=seed,
    )
    model = start.model().eval()
    adapters = add_adapters(model, config.rank, config.seed)
    target = wrap_model(model)
    rng = np.random.default_rng(config.seed)
    warmed, seconds = timed(
        lambda: warm_up(
            target,
            adapters,
            rows,
            list(batches_of(len(rows.labels), config.batch_rows, config.steps, rng)),
            checkpoints=config.checkpoints,
            learning_rate=config.learning_rate,
            tokens_per_batch=PASS_TOKENS,
            chunk=CHUNK,
            keep_moments=True,
            tell=lambda step, loss: None,
        )
    )
    others = target_rows(start.train, pool, regime, seed)
    arrays, passed = {}, 0
    for name, asked, moments in (
        ("gradients", pool, warmed.moments),
        ("targets.gradients", others, None),
    ):
        directions = directions_of(config, adapters, moments)
        assert directions is not None
        passes = partial(pass_back, target, adapters, warmed.states, as_plain(asked), directions)
        arrays[name], more = timed(passes)
        seconds += more
        passed += config.checkpoints * int(asked.num_tokens.sum())
    # What goes back as well costs what training does.
    return PoolFacts(arrays, {"gradients": Cost(0, warmed.tokens[-1] + passed, seconds)})


def pass_back(
    model: TargetModel,
    adapters: Mapping[str, LowRank],
    states: Sequence[Mapping[str, torch.Tensor]],
    rows: warming.Rows,
    directions: Directions,
) -> FloatArray:
    """Give the folded gradients of rows at all checkpoints, side by side as `joined` lays them."""
    found = np.zeros((len(rows.labels), len(states), directions.dim), np.float32)
    for place, (state, moments) in enumerate(zip(states, directions.moments, strict=True)):
        set_state(adapters, state)
        for batch in token_batches(rows.lengths, PASS_TOKENS):
            _, folded = folded_gradients(
                *(model, adapters, rows.take(batch), CHUNK, directions.folds, directions.dim),
                moments,
            )
            found[batch, place] = folded.numpy()
    return joined(found).astype(np.float32)


def as_plain(rows: Rows) -> warming.Rows:
    """Give rows as the trajectory room takes them."""
    return warming.Rows(rows.input_ids, rows.labels)


def slices_of(pool: Rows, regime: Regime, seed: int) -> list[npt.NDArray[np.int64]]:
    """Draw two slices of a pool, whole steps each, as increasing places."""
    order = sorted(range(len(pool)), key=lambda i: hash_of(pool.uids[i], regime.seed, seed, 3))
    rows_per_step = regime.NUM_WORKERS * regime.micro_batch
    size = round(regime.slice_share * len(pool)) // rows_per_step * rows_per_step
    return [np.array(sorted(order[:size])), np.array(sorted(order[size : 2 * size]))]


def tune(
    start: Start,
    rows: Rows,
    regime: Regime,
    seed: int,
    marks: Sequence[float] = (),
    passes: Callable[[Any], dict[str, float]] = lambda model: {},
) -> tuple[Any, Trace]:
    """Train a copy of the start model for one pass over rows, and call `passes` at marks."""
    step = StepShape(regime.NUM_WORKERS, 1, regime.micro_batch)
    none = np.zeros(len(rows), np.int32)
    plan = plan_rows(rows, none, 1, step, objective="sample", seed=seed)
    model, course = start.learner(), Course(rows, np.ones(len(rows)), plan, plan.num_steps)
    rate = regime.learning_rate
    trace = train(model, course, regime, rate=rate, marks=marks, evaluate=lambda: passes(model))
    return model, trace


FURTHER: dict[str, Callable[[Start, Rows, Regime, int], PoolFacts]] = {
    "reference": reference_signals,
    "trajectory": trajectory,
    "gradients": gradients,
}
