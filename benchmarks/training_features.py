"""What selectors know of a pool from the start model as it is: features, signals, and costs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.training_data import Rows, hash_of, known
from benchmarks.training_loop import PAD_ID, row_losses
from benchmarks.training_model import Start
from benchmarks.training_regime import Regime
from evenshard.collate import PadCollator
from evenshard.shards import IGNORED_LABEL
from stages.embed.batching import token_batches
from stages.embed.features import position_mean, row_features
from stages.embed.sketch import Sketch, make_sketch

FloatArray = npt.NDArray[np.float32]

FEATURES = ("target_row", "head_sketch", "judge_sketch", "hidden_mean")
PASS_TOKENS = 4096
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
        Features by name, signals by name, `reference.` signals, `answer_alone_loss`,
        `trajectory`, `gradients`, each with one entry a row; and `targets.` features of others.
    costs : dict of str to Cost
        pass, alone, targets, and of each of `training_passes.FURTHER`.
    """

    arrays: dict[str, FloatArray]
    costs: dict[str, Cost]


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


def timed(compute: Callable[[], Any]) -> tuple[Any, float]:
    """Call something and give its result with the CPU seconds that it took."""
    began = time.process_time()
    result = compute()
    return result, time.process_time() - began
