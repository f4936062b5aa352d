"""Four shards on 1, 2, 3, 4, 6 and 8 ranks: the same coverage of clusters, the same gradients.

Ranks are played one after the other in this process: what each would call backward on is summed
and averaged as DDP does; that this equals real ranks is held by `test_trainer.py`.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from evenshard.loss import weighted_loss
from evenshard.plan import Plan
from evenshard.shards import ShardError
from evenshard.shardset import ShardSet
from tests.evenshard.folders import load_table, set_column, write_set
from tests.evenshard.tiny_training import (
    collated,
    explicit_gradient,
    flat_gradient,
    load_model,
    relative_error,
    steps_of,
)
from tests.tiny import VOCAB

WORLDS = [1, 2, 3, 4, 6, 8]
OBJECTIVES = ["sample", "token"]
KEPT = (20, 16, 12)  # 48 rows: 4 workers, 2 rows of each a step, 6 steps


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    folder = tmp_path_factory.mktemp("elastic") / "set"
    write_set(folder, kept=KEPT, world_size=4, micro_batch=1, accumulation=2)
    for rank in range(4):
        for name in ("input_ids", "labels"):  # of the tiny model's vocabulary
            lists = load_table(folder, rank)[name].to_pylist()
            set_column(
                folder, rank, name, [[t % VOCAB if t >= 0 else t for t in ids] for ids in lists]
            )
    return ShardSet(folder)


def gradient_over_ranks(model: torch.nn.Module, step: list, objective: str) -> torch.Tensor:
    """Average the gradients of all ranks, as data-parallel training does."""
    batches = collated(step, objective)
    denominator = sum(float(b["loss_denominator"]) for rank in batches for b in rank)
    model.zero_grad()
    for rank in batches:
        for batch in rank:
            logits = model(input_ids=batch["input_ids"]).logits
            loss = weighted_loss(
                logits,
                batch["labels"],
                batch["loss_weight"],
                denominator=denominator,
                world_size=len(batches),
            )
            (loss / len(batches)).backward()
    return flat_gradient(model)


def row_ids(step: list) -> list[int]:
    ids = [int(row["row_id"]) for rank in step for batch in rank for row in batch]
    return sorted(row_id for row_id in ids if row_id >= 0)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_step_has_the_gradient_of_its_rows(
    shards: ShardSet, model_folder: Path, world_size: int, objective: str
) -> None:
    plan = Plan(shards, world_size, 1, objective=objective)
    model, exact = load_model(model_folder), load_model(model_folder, torch.float64)
    for step in steps_of(plan)[:3]:
        expected, _ = explicit_gradient(exact, step, objective)
        assert relative_error(gradient_over_ranks(model, step, objective), expected) < 1e-5


@pytest.mark.parametrize("world_size", WORLDS)
def test_every_step_holds_the_rows_of_the_steps_it_stands_for(
    shards: ShardSet, world_size: int
) -> None:
    own = [row_ids(step) for step in steps_of(Plan(shards))]
    for epoch in (0, 1):
        reference = own if epoch == 0 else [row_ids(s) for s in steps_of(Plan(shards), epoch)]
        plan = Plan(shards, world_size, 1)
        merged = plan.steps_merged
        for index, step in enumerate(steps_of(plan, epoch)):
            together = reference[index * merged : (index + 1) * merged]
            assert row_ids(step) == sorted(row_id for ids in together for row_id in ids)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("epoch", [0, 3])
def test_every_step_covers_the_clusters(shards: ShardSet, world_size: int, epoch: int) -> None:
    cluster_of = dict(
        zip(shards.row_ids(np.arange(48)).tolist(), shards.cluster.ravel().tolist(), strict=True)
    )
    for step in steps_of(Plan(shards, world_size, 1), epoch):
        ids = row_ids(step)
        counts = np.bincount([cluster_of[row_id] for row_id in ids], minlength=len(KEPT))
        exact = len(ids) * np.array(KEPT) / sum(KEPT)
        merged = len(ids) // 8
        assert np.all(np.abs(counts - exact) <= merged), (counts, exact)
        assert np.all(counts >= merged * np.floor(exact / merged))


def test_a_world_that_pads_is_refused_under_the_objective_rank(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_set(
        folder, kept=(12, 12, 12, 12), world_size=4, micro_batch=1, accumulation=2, pinned=True
    )
    with pytest.raises(ShardError, match="rank"):
        Plan(ShardSet(folder), 3, 1, objective="rank")
    assert Plan(ShardSet(folder), 8, 1, objective="rank").num_steps == 3
