"""A sampler follows its plan, and goes on from where it stopped, on other ranks too."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from evenshard import Plan, SetRows, ShardError, ShardSampler, ShardSet, make_loader
from tests.evenshard import folders


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    """Four shards of 10 rows, 5 steps of two micro-batches of one row."""
    folder = tmp_path_factory.mktemp("set")
    folders.write_set(folder, kept=(20, 12, 8), world_size=4, micro_batch=1, accumulation=2)
    return ShardSet(folder)


def row_ids(items: list[dict[str, Any]]) -> list[int]:
    """Collate to the row ids alone."""
    return [int(item["row_id"]) for item in items]


def planned(plan: Plan, epoch: int, rank: int, start: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in plan.batches(epoch, rank, start)]


def planned_ids(plan: Plan, epoch: int, rank: int) -> list[list[int]]:
    return plan.shards.row_ids(planned(plan, epoch, rank)).tolist()


def test_rows_by_number_and_padding(shards: ShardSet) -> None:
    rows = SetRows(shards)
    assert len(rows) == 40
    assert not rows._open
    for number in (0, 13, 39):
        expected = folders.load_table(shards.folder, number // 10).to_pylist()[number % 10]
        item = rows[number]
        for name in ("row_id", "input_ids", "labels", "weight"):
            assert item[name].tolist() == expected[name]
    assert set(rows._open) == {0, 1, 3}
    padding = rows[-1]
    assert {name: value.tolist() for name, value in padding.items()} == {
        "row_id": -1,
        "input_ids": [0],
        "labels": [-100],
        "weight": 0.0,
    }
    assert {n: v.dtype for n, v in padding.items()} == {n: v.dtype for n, v in rows[0].items()}
    assert rows.row_ids([13, -1]).tolist() == [int(rows[13]["row_id"]), -1]
    for number in (-2, 40):
        with pytest.raises(IndexError, match=rf"row {number} must lie in \[0, 40\), or be -1"):
            rows[number]


def test_epochs(shards: ShardSet) -> None:
    plan = Plan(shards)
    sampler = ShardSampler(plan, 2)
    assert len(sampler) == 10
    assert list(sampler) == list(sampler) == planned(plan, 0, 2)
    sampler.set_epoch(3)
    assert list(sampler) == planned(plan, 3, 2) != planned(plan, 0, 2)
    assert all(type(row) is int for batch in sampler for row in batch)
    with pytest.raises(ShardError, match=r"rank=4 must lie in \[0, 4\)"):
        ShardSampler(plan, 4)
    with pytest.raises(ShardError, match=r"step=6 must lie in \[0, 5\]"):
        sampler.set_step(6)


@settings(deadline=None, max_examples=60)
@given(world_size=st.integers(1, 9), epoch=st.integers(0, 2), data=st.data())
def test_resume_equals_uninterrupted(
    shards: ShardSet, world_size: int, epoch: int, data: Any
) -> None:
    plan = Plan(shards, world_size)
    rank = data.draw(st.integers(0, world_size - 1))
    stop = data.draw(st.integers(0, len(ShardSampler(plan, rank))))
    sampler = ShardSampler(plan, rank)
    sampler.set_epoch(epoch)
    iterator = iter(sampler)
    before = [next(iterator) for _ in range(stop)]
    state = json.loads(json.dumps(sampler.state_dict()))
    resumed = ShardSampler(plan, rank)
    resumed.load_state_dict(state)
    resumed.set_epoch(epoch)  # as loops do
    assert resumed.state_dict() == state
    assert before + list(resumed) == planned(plan, epoch, rank)
    assert list(resumed) == planned(plan, epoch, rank)  # the position held for one iteration
    resumed.set_epoch(epoch + 1)
    assert list(resumed) == planned(plan, epoch + 1, rank)


@settings(deadline=None, max_examples=60)
@given(before=st.integers(1, 9), after=st.integers(1, 9), step=st.integers(0, 5))
def test_resume_on_other_ranks(shards: ShardSet, before: int, after: int, step: int) -> None:
    old, new = Plan(shards, before), Plan(shards, after)
    step = min(step, old.num_steps)
    done = [b for rank in range(before) for b in planned(old, 1, rank)[: step * old.accumulation]]
    sampler = ShardSampler(old, 0)
    sampler.set_epoch(1)
    state = sampler.state_dict(step)
    rest = []
    for rank in range(after):
        resumed = ShardSampler(new, rank)
        if state["step"] % new.steps_merged and state["step"] < shards.num_steps:
            with pytest.raises(
                ShardError, match=r"must be a multiple of 2, the steps that 8 ranks"
            ):
                resumed.load_state_dict(state)
            return
        resumed.load_state_dict(state)
        rest += list(resumed)
    rows = [row for row in chain(*done, *rest) if row >= 0]
    assert sorted(rows) == list(range(40))


def test_states_that_cannot_go_on(shards: ShardSet, tmp_path: Path) -> None:
    sampler = ShardSampler(Plan(shards), 0)
    iterator = iter(sampler)
    for _ in range(3):
        next(iterator)
    state = sampler.state_dict()
    assert (state["step"], state["micro_batches"]) == (1, 1)
    with pytest.raises(ShardError, match=r"inside an accumulation window.*save after an optimizer"):
        ShardSampler(Plan(shards, 2), 0).load_state_dict(state)
    eight = ShardSampler(Plan(shards, 8), 0)
    with pytest.raises(ShardError, match=r"resume on 4 ranks, or set its step to 2 and train 1 ag"):
        eight.load_state_dict(sampler.state_dict(3))
    with pytest.raises(ShardError, match=r"the plan .* and 7: the orders of rows differ"):
        ShardSampler(Plan(shards, seed=7), 0).load_state_dict(state)
    with pytest.raises(ShardError, match="the state lacks fingerprint, seed"):
        sampler.load_state_dict({"epoch": 1})
    with pytest.raises(ShardError, match="the state has step=-1, must be a whole number"):
        sampler.load_state_dict({**state, "step": -1})
    for number in (2, 3):  # of 2 micro-batches a step
        with pytest.raises(ShardError, match=rf"has micro_batches={number}, must be < 2, the mic"):
            sampler.load_state_dict({**state, "micro_batches": number})
    with pytest.raises(ShardError, match="an epoch has 5 steps"):
        sampler.load_state_dict({**state, "step": 9})
    folders.write_set(tmp_path, kept=(20, 12, 8), world_size=4, micro_batch=1, seed=1)
    with pytest.raises(ShardError, match="resume with the folder and seed"):
        ShardSampler(Plan(ShardSet(tmp_path), seed=0), 0).load_state_dict(state)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stateful_loader(shards: ShardSet, num_workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    plan = Plan(shards, 3)

    def make() -> Any:
        return stateful.StatefulDataLoader(
            SetRows(shards),
            batch_sampler=ShardSampler(plan, 1),
            collate_fn=row_ids,
            num_workers=num_workers,
        )

    loader = make()
    loader.batch_sampler.set_epoch(1)
    iterator = iter(loader)
    before = [next(iterator) for _ in range(5)]
    state = loader.state_dict()
    del iterator
    again = make()
    again.load_state_dict(state)
    assert before + list(again) == planned_ids(plan, 1, 1)
    again.batch_sampler.set_epoch(2)
    assert list(again) == planned_ids(plan, 2, 1)
    # A state of the end of an epoch, loaded where the next one was asked for.
    end = make()
    end.load_state_dict(again.state_dict())
    end.batch_sampler.set_epoch(3)
    assert list(end) == planned_ids(plan, 3, 1)


def test_prefetching_workers_and_the_step(shards: ShardSet) -> None:
    plan = Plan(shards)
    loader = make_loader(shards, 1, 4, collate=row_ids, num_workers=2)
    iterator = iter(loader)
    before = [next(iterator) for _ in range(4)]
    sampler = loader.sampler_of_shards
    assert sampler.state_dict()["step"] > 2  # runs ahead
    state = sampler.state_dict(step=2)
    del iterator
    again = make_loader(shards, 1, 4, collate=row_ids)
    again.sampler_of_shards.load_state_dict(state)
    assert before + list(again) == planned_ids(plan, 0, 1)


def test_accelerate(shards: ShardSet) -> None:
    data_loader = pytest.importorskip("accelerate.data_loader")
    plan = Plan(shards)
    loader = make_loader(shards, 3, 4, collate=lambda items: torch.tensor(row_ids(items)))
    prepared = data_loader.prepare_data_loader(loader, num_processes=1, process_index=0)
    for epoch in (0, 1):
        assert [b.tolist() for b in prepared] == planned_ids(plan, epoch, 3)
    skipped = data_loader.skip_first_batches(prepared, 4)
    assert len(skipped) == 6
    skipped.set_epoch(1)
    assert [b.tolist() for b in skipped] == planned_ids(plan, 1, 3)[4:]
    assert [b.tolist() for b in data_loader.skip_first_batches(loader, 3)] == (
        planned_ids(plan, loader.sampler_of_shards.epoch, 3)[3:]
    )


def test_make_loader(shards: ShardSet) -> None:
    loader = make_loader(shards.folder, 1, 3, collate=row_ids, micro_batch=2, epoch=2, start=3)
    plan = loader.plan
    assert isinstance(loader, DataLoader)
    assert loader.batch_sampler is loader.sampler_of_shards
    assert (plan.world_size, plan.micro_batch, plan.accumulation) == (3, 2, 2)
    assert len(loader) == 10
    assert list(loader) == planned_ids(plan, 2, 1)[6:]
    loader.set_epoch(3)
    assert list(loader) == planned_ids(plan, 3, 1)
    assert set(loader.dataset._open) == {1, 2}  # rank 1 of 3 reads the middle of each step
    with pytest.raises(ShardError, match=r"micro_batch=3 must divide"):
        make_loader(shards, 0, 4, collate=row_ids, micro_batch=3)
    with pytest.raises(ShardError, match=r"rank=3 must lie in \[0, 3\)"):
        make_loader(shards, 3, 3, collate=row_ids)


@pytest.mark.trainers
def test_lightning_finds_set_epoch(shards: ShardSet) -> None:
    data = pytest.importorskip("lightning_fabric.utilities.data")
    loader = make_loader(shards, 0, 4, collate=row_ids)
    data._set_sampler_epoch(loader, 5)
    assert loader.sampler_of_shards.epoch == 5
