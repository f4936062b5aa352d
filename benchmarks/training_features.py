"""What selectors know of a pool: features and signals of the start model, and of a reference.

The reference of reducible loss (RHO-LOSS, arXiv 2206.07137) costs no further rows: two slices of
the pool are cut off, a copy of the start model is tuned for one pass on each, the first one scores
all rows but its own, the second one scores those. Its cost is counted to whoever reads it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.training_data import Rows, hash_of, known
from benchmarks.training_loop import PAD_ID, Course, Trace, row_losses, train
from benchmarks.training_model import Start
from benchmarks.training_plan import plan_rows
from benchmarks.training_regime import Regime, digest
from evenshard.collate import PadCollator
from evenshard.shards import IGNORED_LABEL
from stages.allocate.budget import StepShape
from stages.embed.batching import token_batches
from stages.embed.features import position_mean, row_features
from stages.embed.sketch import Sketch, make_sketch

FloatArray = npt.NDArray[np.float32]

FEATURES = ("target_row", "head_sketch", "judge_sketch", "hidden_mean")
PASS_TOKENS = 4096
CHECKPOINTS = (1 / 3, 2 / 3, 1.0)  # shares of the steps of a tuning
COST = "cost:"  # begins the names of costs in a file of facts
TARGETS = 64  # rows outside the pool that methods with targets are shown


@dataclass(frozen=True)
class Cost:
    """What a part of a selection costs.

    Attributes
    ----------
    forward_tokens, trained_tokens : int
        Tokens passed forward only, and trained on; a forward pass counts as a third.
    seconds : float
        CPU seconds of one thread.
    """

    forward_tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> float:
        """Tokens of training that cost as much."""
        return self.trained_tokens + self.forward_tokens / 3

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.forward_tokens + other.forward_tokens,
            self.trained_tokens + other.trained_tokens,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True)
class PoolFacts:
    """All that was measured of a pool.

    Attributes
    ----------
    arrays : dict of str to ndarray
        Features by name, signals by name, `reference.` signals, `answer_alone_loss`, and
        `targets.` features; each with one entry a row.
    costs : dict of str to Cost
        pass, alone, reference, targets.
    """

    arrays: dict[str, FloatArray]
    costs: dict[str, Cost]


def pool_facts(start: Start, regime: Regime, seed: int, *, reference: bool = True) -> PoolFacts:
    """Measure a seed's pool, or read what was measured.

    Parameters
    ----------
    start : Start
        The model and the rows.
    regime : Regime
        Size of the pool and of the sketches; for the reference, how it is tuned.
    seed : int
        Of the pool.
    reference : bool, default=True
        Whether the signals of the reference are there too.
    """
    names = (regime.pool_rows, regime.sketch_vocab, regime.sketch_hidden, seed)
    facts = _kept(
        regime.folder / f"pool-{digest(names)}.npz", lambda: measure_pool(start, regime, seed)
    )
    if not reference:
        return facts
    pool = start.pool(regime, seed)
    for name, measure in (("reference", reference_signals), ("trajectory", trajectory)):
        path = regime.folder / f"{name}-{regime.key}-{seed}.npz"
        more = _kept(path, partial(measure, start, pool, regime, seed))
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


def measure_pool(start: Start, regime: Regime, seed: int) -> PoolFacts:
    """Pass a pool, its answers without their prompts, and target rows through the start model."""
    pool, model = start.pool(regime, seed), start.model()
    targets_of = [np.count_nonzero(labels[1:] != IGNORED_LABEL) for labels in pool.labels]
    arrays = {
        "num_tokens": pool.num_tokens.astype(np.float32),
        "num_targets": np.array(targets_of, np.float32),
    }
    costs = {}
    (features, signals), seconds = timed(lambda: measure_rows(model, pool, regime, FEATURES))
    arrays |= features | signals
    costs["pass"] = Cost(int(pool.num_tokens.sum()), 0, seconds)
    losses, seconds = timed(lambda: row_losses(model, answers_alone(pool)))
    arrays["answer_alone_loss"] = losses.astype(np.float32)
    costs["alone"] = Cost(int(answers_alone(pool).num_tokens.sum()), 0, seconds)
    targets = target_rows(start.train, pool, regime, seed)
    (features, _), seconds = timed(lambda: measure_rows(model, targets, regime, FEATURES))
    arrays |= {f"targets.{name}": values for name, values in features.items()}
    costs["targets"] = Cost(int(targets.num_tokens.sum()), 0, seconds)
    return PoolFacts(arrays, costs)


def measure_rows(
    model: Any, rows: Rows, regime: Regime, names: Sequence[str]
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Give features and signals of rows; the only call of the embed room's own functions.

    Returns
    -------
    features : dict of str to ndarray of shape (num_rows, dim), float32
    signals : dict of str to ndarray of shape (num_rows,), float32
    """
    model.eval()
    sketches = make_sketches(model, regime) if names else {}
    found: dict[str, list[Any]] = {}
    order = []
    for places in token_batches(rows.num_tokens, PASS_TOKENS):
        with torch.inference_mode():
            batch = PadCollator(PAD_ID)(
                [{"input_ids": rows.input_ids[i], "labels": rows.labels[i]} for i in places]
            )
            hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state
            trained = batch["labels"][:, 1:] != IGNORED_LABEL
            measured = row_features(
                hidden[:, :-1][trained],
                batch["labels"][:, 1:][trained],
                trained.sum(1).tolist(),
                model.lm_head,
                names=list(names),
                chunk=1024,
                sketches=sketches,
            )
            pooled = position_mean(hidden, torch.from_numpy(rows.num_tokens[places]))
        order.append(places)
        features = {**measured.features, **({"position_mean": pooled} if names else {})}
        for name, values in (*features.items(), *measured.signals.items()):
            found.setdefault(name, []).append(values.numpy())
    back = np.argsort(np.concatenate(order))
    arrays = {name: np.concatenate(pieces)[back] for name, pieces in found.items()}
    signals = {name: values for name, values in arrays.items() if values.ndim == 1}
    return {name: values for name, values in arrays.items() if values.ndim == 2}, signals


def make_sketches(model: Any, regime: Regime) -> dict[str, Sketch]:
    """Draw the maps of the sketch that selects and of the one that judges."""
    vocabulary, hidden = model.lm_head.weight.shape
    return {
        name: make_sketch(
            vocabulary,
            hidden,
            sketch_vocab=regime.sketch_vocab,
            sketch_hidden=regime.sketch_hidden,
            seed=[regime.seed, stream],
            device=torch.device("cpu"),
        )
        for stream, name in enumerate(("head_sketch", "judge_sketch"))
    }


def answers_alone(rows: Rows) -> Rows:
    """Cut the prompts off: the first token of each row, then its trained tokens."""
    ids, labels = [], []
    for row_ids, row_labels in zip(rows.input_ids, rows.labels, strict=True):
        answer = row_ids[1:][row_labels[1:] != IGNORED_LABEL]
        ids.append(np.concatenate([row_ids[:1], answer]))
        labels.append(np.concatenate([[IGNORED_LABEL], answer]).astype(np.int32))
    return Rows(rows.row_ids, rows.uids, rows.source, rows.source_names, ids, labels)


def target_rows(train: Rows, pool: Rows, regime: Regime, seed: int) -> Rows:
    """Draw rows that neither pre-training nor the pool has: what a user would give as targets."""
    inside = set(pool.row_ids.tolist())
    row_ids = train.row_ids.tolist()
    left = np.flatnonzero(~known(train, regime)).tolist()
    outside = [i for i in left if row_ids[i] not in inside]
    outside.sort(key=lambda i: hash_of(train.uids[i], regime.seed, seed, 2))
    return train.take(sorted(outside[:TARGETS]))


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


def timed(compute: Callable[[], Any]) -> tuple[Any, float]:
    """Call something and give its result with the CPU seconds that it took."""
    began = time.process_time()
    result = compute()
    return result, time.process_time() - began
