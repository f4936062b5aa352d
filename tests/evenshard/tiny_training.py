"""Small weighted sets whose clusters differ in length, and the gradient that training must give."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenshard.collate import PadCollator, WeightCollator
from evenshard.dataset import SetRows
from evenshard.plan import Plan
from evenshard.shards import IGNORED_LABEL
from evenshard.shardset import ShardSet
from tests.evenshard import folders
from tests.tiny import VOCAB

PAD = 0
SHORTEST = (4, 13, 26)  # tokens of the rows of each cluster; the longest has a third more
HALF_EFFECTIVE = 0.83  # sigma of lognormal weights whose effective sample size is one half

Item = dict[str, Any]
Step = Sequence[Sequence[Sequence[Item]]]  # (rank, micro-batch, row)


def write_uneven_set(
    folder: Path,
    *,
    kept: Sequence[int] = (14, 6, 4),
    pinned: bool = False,
    lognormal: bool = False,
    objective: str = "sample",
    seed: int = 0,
) -> Path:
    """Write a set for 2 workers, 2 micro-batches of 2 rows, in which short rows weigh little."""
    folders.write_set(folder, kept=kept, pinned=pinned, seed=seed)
    rng = np.random.default_rng(seed)
    shares = np.array((1.0, 4.0, 9.0))[: len(kept)]  # of the mass, before it is normalised
    by_cluster = shares / np.dot(shares, kept) * sum(kept)
    drawn = np.exp(HALF_EFFECTIVE * rng.standard_normal((2, sum(kept) // 2)))
    drawn /= drawn.mean()
    for rank in range(2):
        clusters = folders.load_table(folder, rank)["cluster"].to_numpy()
        shortest = np.array(SHORTEST)[clusters]
        lengths = rng.integers(shortest, shortest * 4 // 3 + 1)
        ids = [rng.integers(1, VOCAB, length) for length in lengths]
        prompts = [int(rng.integers(0, length // 2)) for length in lengths]
        labels = [
            np.where(np.arange(row.size) < prompt, IGNORED_LABEL, row).tolist()
            for row, prompt in zip(ids, prompts, strict=True)
        ]
        weights = drawn[rank] if lognormal else by_cluster[clusters]
        folders.set_column(folder, rank, "input_ids", [row.tolist() for row in ids])
        folders.set_column(folder, rank, "labels", labels)
        folders.set_column(folder, rank, "num_tokens", lengths)
        folders.set_column(folder, rank, "weight", weights.astype(np.float32))
    manifest = folders.load_manifest(folder)
    manifest["weights"]["objective"] = objective
    folders.store_manifest(folder, manifest)
    return folder


def steps_of(plan: Plan, epoch: int = 0) -> list[Step]:
    """Give the rows of every step of an epoch."""
    rows = SetRows(plan.shards)
    by_rank = [
        [[rows[int(number)] for number in batch] for batch in plan.batches(epoch, rank)]
        for rank in range(plan.world_size)
    ]
    size = plan.accumulation
    return [[ranks[i * size : (i + 1) * size] for ranks in by_rank] for i in range(plan.num_steps)]


def ids_of(plan: Plan, rank: int, epochs: int = 2) -> list[int]:
    """Give the row ids that a rank must consume, padding as -1."""
    rows = SetRows(plan.shards)
    batches = (batch for epoch in range(epochs) for batch in plan.batches(epoch, rank))
    return [int(rows[int(number)]["row_id"]) for batch in batches for number in batch]


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).to(dtype)


def row_loss(model: Any, item: Item) -> tuple[torch.Tensor, int]:
    """Give the summed loss of one row alone by torch's own cross entropy, and its targets."""
    logits = model(input_ids=item["input_ids"][None]).logits[0, :-1]
    targets = item["labels"][1:]
    loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    return loss, int((targets != IGNORED_LABEL).sum())


def coefficients(step: Step, objective: str) -> list[tuple[Item, float]]:
    """Write the objective of a step as a sum over rows of a number times their summed loss."""
    batches = [batch for rank in step for batch in rank]
    rows = [row for batch in batches for row in batch if row["weight"] > 0]

    def targets(row: Item) -> int:
        return int((row["labels"][1:] != IGNORED_LABEL).sum())

    if objective == "sample":
        return [(r, float(r["weight"]) / targets(r) / len(rows)) for r in rows]
    if objective == "token":
        tokens = sum(float(r["weight"]) * targets(r) for r in rows)
        return [(r, float(r["weight"]) / tokens) for r in rows]
    means = [(batch, sum(map(targets, batch))) for batch in batches]
    return [(r, float(r["weight"]) / n / len(batches)) for batch, n in means for r in batch]


def explicit_gradient(model: Any, step: Step, objective: str) -> tuple[torch.Tensor, float]:
    """Give gradient and loss of a step row by row, in the precision of the model."""
    model.zero_grad()
    total = 0.0
    for row, coefficient in coefficients(step, objective):
        loss = coefficient * row_loss(model, row)[0]
        loss.backward()
        total += loss.item()
    return flat_gradient(model), total


def flat_gradient(model: Any) -> torch.Tensor:
    """Copy all gradients into one float64 vector."""
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.requires_grad])


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def worst_error(
    model_folder: Path, found: list[torch.Tensor], plan: Plan, objective: str, merged: int = 1
) -> float:
    """Give the largest relative error of the gradients of the steps of epoch 0, 1, ...

    `merged` steps of the plan made one of the trainer, the rest of an epoch one more.
    """
    model = load_model(model_folder, torch.float64)
    errors: list[float] = []
    for epoch in range(len(found)):
        steps = steps_of(plan, epoch)
        for start in range(0, len(steps), merged):
            together = zip(*steps[start : start + merged], strict=True)
            step = [[batch for part in rank for batch in part] for rank in together]
            if len(errors) < len(found):
                expected = explicit_gradient(model, step, objective)[0]
                errors.append(relative_error(found[len(errors)], expected))
    return max(errors)


def plan_of(folder: Path, world_size: int = 2, micro_batch: int = 2) -> Plan:
    return Plan(ShardSet(folder), world_size, micro_batch)


def collated(step: Step, objective: str) -> list[list[Item]]:
    """Collate a step's micro-batches, of shape (rank, micro-batch)."""
    collator = WeightCollator(PadCollator(PAD), objective)
    return [[collator(batch) for batch in rank] for rank in step]
