"""Data-parallel training in one process: the ranks of a plan one after the other, then one step.

The order is evenshard's `Plan`, the weights and the loss are its collator's and `weighted_loss`.
Gradients add up over the ranks and are divided by their number, as DDP averages them.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.training_data import Rows
from benchmarks.training_regime import Regime
from evenshard.collate import PadCollator, WeightCollator
from evenshard.loss import step_denominator, token_losses, weighted_loss
from evenshard.plan import Plan
from evenshard.shards import IGNORED_LABEL
from evenshard.shardset import ShardSet
from stages.allocate.budget import StepShape
from stages.allocate.schedule import Schedule
from stages.embed.batching import token_batches

PAD_ID = 0
EVAL_TOKENS = 4096  # padded tokens of a batch of held-out rows
BETAS = (0.9, 0.95)


class MemorySet(ShardSet):
    """Shards that were never written: what a plan asks of a set, from arrays."""

    def __init__(
        self,
        schedule: Schedule,
        step: StepShape,
        rows: Rows,
        clusters: npt.NDArray[np.int32],
        weights: npt.NDArray[np.float64],
        *,
        objective: str,
        seed: int,
    ) -> None:
        # places: (worker, position) of the kept rows, in order of the steps
        places = schedule.plan.transpose(1, 0, 2).reshape(step.num_workers, -1)
        self.places = places
        self.folder = Path("memory")
        self.manifest: Any = {
            "world_size": step.num_workers,
            "micro_batch": step.micro_batch,
            "accumulation": step.accumulation,
            "rows": places.size,
            "rows_per_worker": places.shape[1],
            "steps_per_epoch": schedule.plan.shape[0],
            "seed": seed,
            "weights": {"objective": objective},
            "schedule": {"kind": schedule.kind, "window_steps": schedule.window_steps},
        }
        lengths = rows.num_tokens.astype(np.int32)
        self._columns = {
            (worker, name): values[places[worker]]
            for worker in range(step.num_workers)
            for name, values in (
                ("cluster", clusters),
                ("num_tokens", lengths),
                ("row_id", rows.row_ids),
                ("weight", weights.astype(np.float32)),
            )
        }


@dataclass(frozen=True)
class Course:
    """What one run trains on.

    Attributes
    ----------
    rows : Rows
        Those that are kept.
    weights : ndarray of shape (num_rows,)
        Of mean 1.
    plan : Plan
        Of a MemorySet over the rows.
    num_steps : int
        Optimizer steps; the plan's epochs follow each other until there are so many.
    shuffled : bool
        Whether the plan's order is replaced by a random one, anew in every epoch, as a plain
        trainer's.
    """

    rows: Rows
    weights: npt.NDArray[np.float64]
    plan: Plan
    num_steps: int
    shuffled: bool = False

    def steps(self) -> Iterator[list[list[dict[str, Any]]]]:
        """Give the micro-batches of each step: (rank, micro-batch)."""
        collate = WeightCollator(PadCollator(PAD_ID), self.plan.objective)
        done = epoch = 0
        while done < self.num_steps:
            ranks = self._epoch(epoch)
            for _ in range(min(self.plan.num_steps, self.num_steps - done)):
                yield [
                    [
                        collate([self._feature(place) for place in next(rank)])
                        for _ in range(self.plan.accumulation)
                    ]
                    for rank in ranks
                ]
                done += 1
            epoch += 1

    def _epoch(self, epoch: int) -> list[Iterator[list[int]]]:
        """Give the micro-batches of every rank, as places of rows."""
        plan = self.plan
        if self.shuffled:
            order = np.random.default_rng([plan.seed, epoch]).permutation(len(self.rows))
            batches = order.reshape(-1, plan.world_size, plan.accumulation, plan.micro_batch)
            return [
                iter(batches[:, rank].reshape(-1, plan.micro_batch).tolist())
                for rank in range(plan.world_size)
            ]
        places = plan.shards.places.reshape(-1)  # type: ignore[attr-defined]
        return [
            (places[numbers].tolist() for numbers in plan.batches(epoch, rank))
            for rank in range(plan.world_size)
        ]

    def _feature(self, place: int) -> dict[str, Any]:
        return {
            "input_ids": self.rows.input_ids[place].astype(np.int64),
            "labels": self.rows.labels[place].astype(np.int64),
            "weight": float(self.weights[place]),
        }


@dataclass
class Trace:
    """What a run has been through.

    Attributes
    ----------
    points : list of dict
        steps, tokens, seconds (of this process, held-out passes left out) and held-out losses.
    tokens, steps : int
        Trained so far, without padding.
    seconds : float
        CPU seconds of the training steps.
    """

    points: list[dict[str, float]] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0


def rank_loss(
    model: Any, batch: dict[str, Any], *, denominator: Tensor | float, world_size: int
) -> Tensor:
    """Give evenshard's loss of a micro-batch, with the LM head at trained positions only.

    The hidden states before trained labels are laid into one row, as a padding-free batch is.
    Rows are padded on the right under a causal mask, so no attention mask is needed.
    """
    hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state[:, :-1]
    labels, weights = batch["labels"][:, 1:], batch["loss_weight"][:, 1:]
    trained = labels != IGNORED_LABEL
    logits = model.lm_head(torch.nn.functional.pad(hidden[trained], (0, 0, 0, 1)))[None]
    flat_labels = torch.nn.functional.pad(labels[trained], (1, 0), value=IGNORED_LABEL)[None]
    flat_weights = torch.nn.functional.pad(weights[trained], (1, 0))[None]
    return weighted_loss(
        logits, flat_labels, flat_weights, denominator=denominator, world_size=world_size
    )


def add_gradients(model: Any, step: Sequence[Sequence[dict[str, Any]]]) -> int:
    """Add the gradient of a step to the parameters, rank by rank, averaged over the ranks.

    Returns
    -------
    int
        Tokens of the step, without padding.
    """
    world_size = len(step)
    denominator = step_denominator([batch for rank in step for batch in rank])
    for rank in step:
        for batch in rank:
            loss = rank_loss(model, batch, denominator=denominator, world_size=world_size)
            (loss / world_size).backward()
    return sum(int(batch["attention_mask"].sum()) for rank in step for batch in rank)


def rate_at(step: int, num_steps: int, regime: Regime) -> float:
    """Give the share of the largest learning rate: a linear rise, then half a cosine."""
    rise = max(1, round(regime.warmup * num_steps))
    if step < rise:
        return (step + 1) / rise
    done = (step - rise) / max(1, num_steps - rise)
    return regime.floor + (1 - regime.floor) * 0.5 * (1 + math.cos(math.pi * done))


def make_optimizer(model: Any, rate: float, regime: Regime) -> torch.optim.AdamW:
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(learnt, lr=rate, betas=BETAS, weight_decay=regime.weight_decay)


def train(
    model: Any,
    course: Course,
    regime: Regime,
    *,
    rate: float,
    marks: Sequence[float],
    evaluate: Callable[[], dict[str, float]],
) -> Trace:
    """Train a model in place, and take the held-out losses at the start and at marks.

    Parameters
    ----------
    model : PreTrainedModel
        Trained in place.
    course : Course
        Rows, weights, order, steps.
    regime : Regime
        Schedule and clipping.
    rate : float
        Largest learning rate.
    marks : sequence of float
        Shares of the steps after which held-out rows are passed.
    evaluate : callable
        Gives named losses of the model as it is.
    """
    trace = Trace()
    optimizer = make_optimizer(model, rate, regime)
    stops = {max(1, round(mark * course.num_steps)) for mark in marks}
    model.train()
    for step in course.steps():
        began = time.process_time()
        for group in optimizer.param_groups:
            group["lr"] = rate * rate_at(trace.steps, course.num_steps, regime)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=regime.bfloat16):
            trace.tokens += add_gradients(model, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), regime.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        trace.steps += 1
        trace.seconds += time.process_time() - began
        if trace.steps in stops:
            losses = evaluate()
            model.train()
            place = {"steps": trace.steps, "tokens": trace.tokens, "seconds": trace.seconds}
            trace.points.append({**place, **losses})
    return trace


@torch.no_grad()
def row_losses(model: Any, rows: Rows, *, bfloat16: bool = False) -> npt.NDArray[np.float64]:
    """Give the mean loss of the trained tokens of each row, in nats.

    With `bfloat16`, matrix products are; scores are rounded to it, losses are float32.
    """
    model.eval()
    losses = np.zeros(len(rows))
    for places in token_batches(rows.num_tokens, EVAL_TOKENS):
        features = [{"input_ids": rows.input_ids[i], "labels": rows.labels[i]} for i in places]
        batch = PadCollator(PAD_ID)(features)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state
        labels = batch["labels"].clone()
        labels[:, 0] = IGNORED_LABEL
        trained = labels != IGNORED_LABEL
        flat = torch.nn.functional.pad(labels[trained], (1, 0), value=IGNORED_LABEL)[None]
        before = hidden[:, :-1][trained[:, 1:]]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            logits = model.lm_head(torch.nn.functional.pad(before, (0, 0, 0, 1)))[None]
        nats = token_losses(logits, flat)[0, 1:].double()
        counts = trained.sum(1).tolist()
        losses[places] = [piece.mean().item() for piece in torch.split(nats, counts)]
    return losses


def heldout_losses(model: Any, heldout: Rows, *, bfloat16: bool = False) -> dict[str, float]:
    """Average the rows' losses: over all rows (plain), and over sources' means (macro)."""
    losses = row_losses(model, heldout, bfloat16=bfloat16)
    by_source = [losses[heldout.source == s].mean() for s in np.unique(heldout.source)]
    return {"plain": float(losses.mean()), "macro": float(np.mean(by_source))}
