"""Each way in which a trainer reads other rows than the plan's is stopped, and named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
)

from evenshard import (
    PadCollator,
    Plan,
    SetRows,
    ShardError,
    ShardSet,
    WeightCollator,
    check_start,
    load_shard,
    make_loader,
)
from evenshard.startup import Report, Seen, diagnose, find_faults, look
from tests.evenshard import folders
from tests.evenshard.ranks import RankError, run_ranks

KEPT = (16, 10, 6)  # 32 rows: 2 shards of 16, in 8 micro-batches of 2, in 4 steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("set")
    folders.write_set(path, kept=KEPT, world_size=2, micro_batch=2, accumulation=2)
    return path


@pytest.fixture(scope="module")
def shards(folder: Path) -> ShardSet:
    return ShardSet(folder)


def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Keep what tells rows apart; collators of models drop row_id too."""
    return {"weight": torch.stack([item["weight"] for item in items])}


class Rows(Dataset[Any]):
    """Rows of a set by number in a given order, as a file that was written in it."""

    def __init__(self, shards: ShardSet, numbers: Any) -> None:
        self.rows, self.numbers = SetRows(shards), [int(number) for number in numbers]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return self.rows[self.numbers[index]]

    def row_ids(self, positions: Any) -> Any:
        return self.rows.row_ids(np.array(self.numbers)[positions])


class Stream(IterableDataset[Any]):
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[i] for i in range(len(self.rows)))


def keep_ids(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {**collate(items), "row_id": torch.stack([item["row_id"] for item in items])}


def fault(loader: Any, plan: Plan, rank: int) -> str | None:
    return diagnose(look(loader, plan), plan, rank)


def cut(loader: Any, rank: int, num_processes: int = 2) -> Any:
    """Do what `accelerate.prepare` does on several ranks."""
    data_loader = pytest.importorskip("accelerate.data_loader")
    return data_loader.prepare_data_loader(
        loader, num_processes=num_processes, process_index=rank, dispatch_batches=False
    )


def plain(dataset: Any, **kwargs: Any) -> Any:
    return DataLoader(dataset, batch_size=2, collate_fn=collate, **kwargs)


@pytest.mark.parametrize("rank", [0, 1])
def test_right_loaders_pass(shards: ShardSet, rank: int) -> None:
    plan = Plan(shards)
    block = np.concatenate([plan.lay_out(plan.order(0), s) for s in range(4)], axis=1)
    block = block.reshape(2, 8, 2).transpose(1, 0, 2).ravel()  # micro-batch b of each rank
    strided = block.reshape(8, 2, 2).transpose(0, 2, 1).ravel()
    shard = load_shard(shards.folder, rank)
    sampler = DistributedSampler(range(32), 2, rank, shuffle=False)
    for loader in (
        plain(shard),
        plain(shard, num_workers=2),
        cut(plain(shard), 0, num_processes=1),
        cut(plain(Rows(shards, block)), rank),
        plain(Rows(shards, strided), sampler=sampler),
        DataLoader(Stream(shard), batch_size=2, collate_fn=keep_ids),
        make_loader(shards, rank, 2, collate=collate),
        [keep_ids([shard[0], shard[1]])],
        keep_ids([shard[0], shard[1]]),
    ):
        check_start(loader, plan, rank)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_every_world_size_epoch_and_start_passes(shards: ShardSet, world_size: int) -> None:
    for rank in range(world_size):
        loader = make_loader(shards, rank, world_size, collate=collate, epoch=2, start=1)
        state = loader.sampler_of_shards.state_dict()
        check_start(loader, loader.plan, rank)
        assert loader.sampler_of_shards.state_dict() == state  # nothing was consumed
        assert loader.sampler_of_shards.begin == loader.plan.accumulation


def test_looking_moves_nothing(shards: ShardSet) -> None:
    loader = plain(load_shard(shards.folder, 0), shuffle=True)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    look(loader, Plan(shards))
    assert torch.equal(torch.rand(3), expected)
    with pytest.raises(ShardError, match=r"an iterator would lose the batches"):
        check_start(iter(loader), Plan(shards), 0)


SECOND_CUT = (
    r"the rank sees 4 of its 8 batches, and not in a row: its loader was cut again .*"
    r"use prepare_data_loader\(loader, num_processes=1, process_index=0\), evenshard's"
)
CUT_OTHERWISE = (
    r"the rank gets rows of shards \[0, 1\], must get those of \[{rank}\]: .*blocks of a "
    r"micro-batch \(`evenshard export --to block`, .*strides \(`evenshard export --to strided`\)"
)


def check(loader: Any, shards: ShardSet, rank: int, message: str) -> None:
    with pytest.raises(ShardError, match=r"training would not follow the plan\. .*" + message):
        check_start(loader, Plan(shards), rank)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_cut(shards: ShardSet, rank: int) -> None:
    shard = load_shard(shards.folder, rank)
    check(cut(plain(shard), rank), shards, rank, SECOND_CUT)
    check(cut(plain(shard, shuffle=True), rank), shards, rank, SECOND_CUT)
    check(cut(make_loader(shards, rank, 2, collate=collate), rank), shards, rank, SECOND_CUT)
    for shuffle in (False, True):
        sampler = DistributedSampler(shard, 2, rank, shuffle=shuffle)
        check(plain(shard, sampler=sampler), shards, rank, SECOND_CUT)
    # Of a stream the length is not known; its order tells.
    stream = DataLoader(Stream(shard), batch_size=2, collate_fn=keep_ids)
    check(cut(stream, rank), shards, rank, "its loader was cut again")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_shuffle(shards: ShardSet, rank: int) -> None:
    shuffled = (
        "the rank's rows in another order.*shuffle=False.*train_sampling_strategy='sequential'"
    )
    check(plain(load_shard(shards.folder, rank), shuffle=True), shards, rank, shuffled)
    loader = make_loader(shards, rank, 2, collate=collate)
    seen = look(loader, Plan(shards))
    other_epoch = Seen(**{**vars(seen), "epoch": 1})
    assert "by set_epoch the epoch" in str(diagnose(other_epoch, Plan(shards), rank))


@pytest.mark.parametrize("rank", [0, 1])
def test_orders_of_all_shards_cut_otherwise(shards: ShardSet, rank: int) -> None:
    plan = Plan(shards)
    message = CUT_OTHERWISE.format(rank=rank)
    order = np.stack([plan.lay_out(plan.order(0), s) for s in range(4)])  # (S, W, rows)
    block = order.reshape(4, 2, 2, 2).transpose(0, 2, 1, 3).ravel()
    strided = block.reshape(8, 2, 2).transpose(0, 2, 1).ravel()
    sampler = DistributedSampler(range(32), 2, rank, shuffle=False)
    check(plain(Rows(shards, block), sampler=sampler), shards, rank, message)
    check(cut(plain(Rows(shards, strided)), rank), shards, rank, message)
    # The files one after the other.
    both = ConcatDataset([load_shard(shards.folder, 0), load_shard(shards.folder, 1)])
    remedies = ("with gaps .*all shards' files lie in a row: use make_loader", "rank 1 reads")
    check(cut(plain(both), rank), shards, rank, remedies[rank])
    check(cut(plain(Rows(shards, block), shuffle=True), rank), shards, rank, "shuffle=False")


def test_the_shard_of_another_rank(shards: ShardSet) -> None:
    other = plain(load_shard(shards.folder, 0))
    check(
        other, shards, 1, r"of shard 0, rank 1 reads \[1\]; pass the global rank, .*dispatch_batc"
    )


def test_rows_of_another_set(shards: ShardSet, tmp_path: Path) -> None:
    folders.write_set(tmp_path, kept=KEPT, world_size=2, seed=5)
    other = plain(load_shard(tmp_path, 0))
    check(other, shards, 0, r"row_id=\d+ is not in .*; give the loader of this folder")


def test_even_batches(shards: ShardSet) -> None:
    plan = Plan(shards)
    order = np.stack([plan.lay_out(plan.order(0), s) for s in range(4)])
    block = order.reshape(4, 2, 2, 2).transpose(0, 2, 1, 3).ravel()
    short = Rows(shards, block[:30])  # rank 1 gets rank 0's first rows at the end
    check(
        cut(plain(short), 1),
        shards,
        1,
        r"batch 7 .*even_batches does; give the loader a multiple of 8 rows with "
        r"per_device_train_batch_size=2, or set dataloader_drop_last=True",
    )


def test_rows_twice(shards: ShardSet) -> None:
    stream = Stream(load_shard(shards.folder, 0))
    loader = DataLoader(stream, batch_size=2, collate_fn=keep_ids, num_workers=2)
    check(loader, shards, 0, "rows come more than once: .*set num_workers=0, or use make_loader")


def test_counts_and_sizes(shards: ShardSet) -> None:
    shard = load_shard(shards.folder, 0)
    check(plain(Subset(shard, range(14))), shards, 0, "has 7 batches, must have the plan's 8: row")
    four = DataLoader(shard, batch_size=4, collate_fn=collate)
    check(four, shards, 0, r"have 4 rows, .*micro_batch=2; set per_device_train_batch_size=2")
    check(plain(Subset(shard, [])), shards, 0, "the loader gives no batch")
    check([], shards, 0, "the loader gives no batch")


def test_a_dropped_column(shards: ShardSet) -> None:
    shard = load_shard(shards.folder, 0)

    def drop(items: list[dict[str, Any]]) -> dict[str, Any]:
        return {"labels": [item["labels"] for item in items]}

    loader = DataLoader(shard, batch_size=2, collate_fn=drop)
    check(loader, shards, 0, "hold labels and neither weight .*set remove_unused_columns=False")
    check([{"loss_weight": 1}], shards, 0, r"hold row_id, so the order .*keep_row_ids=True")


@pytest.mark.parametrize(
    "marks",
    [
        {"seq_lengths": [[3, 2], [4]]},
        {"cu_seq_lens_q": torch.tensor([0, 3, 5, 9])},
        {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3, 0, 0]])},
    ],
)
@pytest.mark.parametrize("weight", [{}, {"weight": [1.0, 1.0]}])
def test_packing(shards: ShardSet, marks: dict[str, Any], weight: dict[str, Any]) -> None:
    message = "holds 3 sequences, must be the plan's micro_batch=2: .*; set packing=False"
    check([{**marks, **weight}], shards, 0, message)


def test_padding_free_batches_are_not_packed(shards: ShardSet) -> None:
    shard = load_shard(shards.folder, 0)
    batch = keep_ids([shard[0], shard[1]])
    lengths = [len(shard[0]["labels"]), len(shard[1]["labels"])]
    batch["position_ids"] = torch.cat([torch.arange(n) for n in lengths] + [torch.zeros(5)])[None]
    check_start([batch], Plan(shards), 0)


class Until(IterableDataset[Any]):
    """A stream of a rank's own rows up to one of them, in a round without end where asked."""

    def __init__(self, rows: Any, stop: int) -> None:
        self.rows, self.stop = rows, stop

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[i % len(self.rows)] for i in range(self.stop))


def streamed(rows: Any, stop: int) -> Any:
    return DataLoader(Until(rows, stop), batch_size=2, collate_fn=keep_ids)


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (10, r"the loader has 5 batches, must have the plan's 8"),
        (14, r"the loader has 7 batches, must have the plan's 8"),
        (15, r"batch 7 has rows \[\d+\], must have \[\d+, \d+\]"),
        (18, r"batch 8 has rows \[\d+, \d+\], must have \[\]: rows come more than once"),
        (10**9, r"batch 8 has rows \[\d+, \d+\], must have \[\]: rows come more than once"),
    ],
)
def test_a_stream_that_ends_early_or_late_is_found_where_it_is_read_whole(
    shards: ShardSet, stop: int, message: str
) -> None:
    loader, plan = streamed(load_shard(shards.folder, 0), stop), Plan(shards)
    check_start(loader, plan, 0)  # the first steps are right
    with pytest.raises(ShardError, match=message):
        check_start(loader, plan, 0, whole_epoch=True)


@pytest.mark.parametrize("start", [0, 1, 3])
def test_reading_a_stream_whole_moves_nothing(shards: ShardSet, start: int) -> None:
    shard, plan = load_shard(shards.folder, 1), Plan(shards)
    rest = Subset(shard, range(4 * start, 16))
    for loader in (streamed(rest, len(rest)), cut(streamed(rest, len(rest)), 0, num_processes=1)):
        before = [batch["row_id"].tolist() for batch in loader]
        kept = dict(vars(loader))
        check_start(loader, plan, 1, start=start, whole_epoch=True)
        assert getattr(loader, "iteration", None) == kept.get("iteration")
        assert [batch["row_id"].tolist() for batch in loader] == before


def test_world_sizes_and_reports(shards: ShardSet) -> None:
    seen = look(make_loader(shards, 0, 2, collate=collate), Plan(shards), world_size=4)
    text = str(diagnose(seen, Plan(shards), 0))
    assert "has world_size=4, must equal the plan's 2; make the plan with world_size=4" in text
    assert find_faults([Report(8, None), Report(8, None)]) is None
    uneven = str(find_faults([Report(8, None), Report(5, None)]))
    assert "ranks have different numbers of batches, [8, 5]" in uneven
    assert find_faults([Report(8, "a"), Report(8, None), Report(8, "a")]) == "ranks 0, 2: a"


def test_ranks_that_follow_different_plans() -> None:
    job: dict[str, int | str] = {"fingerprint": "aa", "seed": 0, "epoch": 0}
    same = [Report(8, None, job), Report(8, None, dict(job))]
    assert find_faults(same) is None
    stale = str(find_faults([*same, Report(8, None, {**job, "fingerprint": "bb"})]))
    assert "different plans, fingerprint=aa on ranks 0, 1, bb on rank 2" in stale
    assert "give all the same folder, copied whole" in stale
    late = str(find_faults([Report(8, None, {**job, "epoch": 1}), *same]))
    assert "epoch=1 on rank 0, 0 on ranks 1, 2: give all the same epoch" in late
    # A rank that failed has no plan to compare.
    assert find_faults([Report(None, "boo"), *same]) == "rank 0: boo"


def test_a_collator_for_another_objective(shards: ShardSet) -> None:
    token = WeightCollator(PadCollator(0), "token", keep_row_ids=True)
    with pytest.raises(ShardError, match=r'objective="token", the plan is for "sample"'):
        make_loader(shards, 0, 2, collate=token)
    loader = make_loader(shards, 0, 2, collate=token, objective="token")
    assert fault(loader, loader.plan, 0) is None
    text = str(fault(loader, Plan(shards), 0))
    assert 'use WeightCollator(..., "sample")' in text
    prepared = cut(make_loader(shards, 0, 2, collate=token, objective="token"), 0, 1)
    assert 'objective="token"' in str(fault(prepared, Plan(shards), 0))


def test_much_padding_is_told(shards: ShardSet, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        loader = make_loader(shards, 0, 1, collate=collate)
        check_start(loader, loader.plan, 0)
        assert not caplog.records
        loader = make_loader(shards, 0, 3, collate=collate, micro_batch=8)
        check_start(loader, loader.plan, 0)
    assert "67% of what the ranks pass is padding: 3 ranks with micro-batches of 8" in caplog.text


def stale_folder(rank: int, world_size: int, paths: list[Path]) -> str:
    loader = make_loader(paths[rank], rank, world_size, collate=collate)
    try:
        check_start(loader, loader.plan, rank)
    except ShardError as error:
        return str(error)
    return ""


def test_a_rank_with_another_set(folder: Path, tmp_path: Path) -> None:
    folders.write_set(tmp_path / "other", kept=(20, 8, 4), seed=7)
    messages = run_ranks(stale_folder, 2, [folder, tmp_path / "other"])
    assert messages[0] == messages[1] and "ranks have different plans, fingerprint=" in messages[0]


def on_two_ranks(rank: int, world_size: int, folder: Path) -> list[str]:
    """Try right and wrong loaders one after the other; none may hang."""
    from accelerate import Accelerator

    shards = ShardSet(folder)
    plan, shard = Plan(shards), load_shard(folder, rank, world_size)
    accelerator = Accelerator(cpu=True)
    right = make_loader(shards, rank, world_size, collate=collate)
    uneven = Subset(shard, range(16 - 6 * rank))
    bad: list[dict[str, Any]] = [{"weight": 1, "row_id": "x" if rank else 0}]
    cases = [
        (right, plan),
        (accelerator.prepare(plain(shard)), plan),
        (plain(shard, shuffle=bool(rank)), plan),  # one rank alone
        (plain(uneven), plan),
        (right, Plan(shards, 4)),
        (bad, plan),
        (accelerator.prepare(DataLoader(Stream(shard), batch_size=2, collate_fn=keep_ids)), plan),
    ]
    short = streamed(shard, 16 - 6 * rank)
    keys: list[dict[str, Any]] = [{}] * len(cases) + [{}, {"whole_epoch": True}]
    messages = []
    for (loader, its_plan), its_keys in zip([*cases, *[(short, plan)] * 2], keys, strict=True):
        try:
            check_start(loader, its_plan, rank, **its_keys)
            messages.append("")
        except ShardError as error:
            messages.append(str(error))
    return messages


def test_all_ranks_are_told(folder: Path) -> None:
    first, second = run_ranks(on_two_ranks, 2, folder)
    assert first == second
    right, prepared, shuffled, uneven, world, bad, dispatched, looked_at, short = first
    assert right == ""
    assert prepared.count("its loader was cut again") == 2
    assert "rank 1: batch" in shuffled and "shuffle=False" in shuffled
    assert "rank 0" not in shuffled.split("rank 1:")[0]
    assert "ranks have different numbers of batches, [8, 5]" in uneven
    assert "ranks 0, 1: the process group has world_size=2, must equal the plan's 4" in world
    assert "rank 1: ValueError: invalid literal" in bad
    assert "ranks 0, 1: ShardError: loader=DataLoaderDispatcher lets rank 0 read" in dispatched
    assert "set dispatch_batches=False" in dispatched
    assert looked_at == ""  # as documented: the first steps are right
    assert "rank 1: batch 5 has rows []" in short and "rank 0:" not in short
    assert "the loader has 5 batches, must have the plan's 8" in short
    assert "ranks have different numbers of batches, [8, 5]" in short


def fail_on_one(rank: int, world_size: int) -> None:
    import torch.distributed as dist

    if rank == 1:
        raise ValueError("boo")
    dist.barrier()


def test_ranks_never_wait_for_ever() -> None:
    with pytest.raises(RankError, match=r"rank 1: (.|\n)*ValueError: boo"):
        run_ranks(fail_on_one, 2)
