"""The traps of a trainer that reads rows, built as a user would build them, and what stops them.

One test per trap, with the code of accelerate, datasets and torch that springs it. Where two ranks
must run at once, see `test_traps_ranks`; the traps of the loss are in `test_loss_check`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("datasets")
data_loader = pytest.importorskip("accelerate.data_loader")

from datasets.distributed import split_dataset_by_node  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, Subset  # noqa: E402

from evenshard import (  # noqa: E402
    PadCollator,
    Plan,
    ShardError,
    ShardSet,
    WeightCollator,
    check_start,
    load_shard,
    make_loader,
)
from evenshard.startup import Report, diagnose, find_faults, look  # noqa: E402
from tests.evenshard import folders  # noqa: E402
from tests.evenshard.test_startup import Rows, Stream  # noqa: E402

COLLATE = WeightCollator(PadCollator(0), keep_row_ids=True)
COLUMNS = ["row_id", "input_ids", "labels", "weight"]
CUT_AGAIN = r"its loader was cut again .*use prepare_data_loader\(loader, num_processes=1, proc"

Made = Callable[..., ShardSet]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Give a function that writes a set of so many shards, each once."""
    known: dict[tuple[int, ...], ShardSet] = {}

    def make(world_size: int, accumulation: int = 1, steps: int = 4) -> ShardSet:
        key = world_size, accumulation, steps
        if key not in known:
            folder = tmp_path_factory.mktemp("set")
            total = world_size * 2 * accumulation * steps
            kept = total // 2, total // 4, total - total // 2 - total // 4
            folders.write_set(
                folder, kept=kept, world_size=world_size, micro_batch=2, accumulation=accumulation
            )
            known[key] = ShardSet(folder)
        return known[key]

    return make


def stream(paths: list[Path]) -> Any:
    """Stream files with the package datasets."""
    files = [str(path) for path in paths]
    rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return rows.select_columns(COLUMNS)


def load(rows: Any, batch_size: int = 2, **keys: Any) -> Any:
    return DataLoader(rows, batch_size=batch_size, collate_fn=COLLATE, **keys)


def prepare(loader: Any, rank: int, world_size: int = 2) -> Any:
    """Do what a Trainer with `dispatch_batches=False` does, on one of several ranks."""
    return data_loader.prepare_data_loader(
        loader, num_processes=world_size, process_index=rank, dispatch_batches=False
    )


def stops(loader: Any, plan: Plan, rank: int, message: str) -> None:
    with pytest.raises(ShardError, match=r"training would not follow the plan\. .*" + message):
        check_start(loader, plan, rank)


def in_order(shards: ShardSet, size: int) -> Rows:
    """Lay a whole set in one file: `size` rows of each shard in turn."""
    numbers = np.arange(shards.num_rows).reshape(shards.world_size, -1, size)
    return Rows(shards, numbers.transpose(1, 0, 2).ravel())


# What is right must pass, or the traps below would prove nothing.


@pytest.mark.parametrize("rank", [0, 1])
def test_right_ways_to_stream_pass(made: Made, rank: int) -> None:
    shards = made(2, 2)
    plan, files = Plan(shards), stream(shards.paths)
    mine, own = stream([shards.paths[rank]]), load_shard(shards.folder, rank)
    for loader in (
        load(mine),
        load(Stream(own)),
        load(split_dataset_by_node(files, rank, 2)),
        prepare(load(files), rank),
        prepare(load(mine), 0, world_size=1),
        prepare(load(Stream(own)), 0, world_size=1),
    ):
        check_start(loader, plan, rank)


# Cut a second time.


@pytest.mark.parametrize(
    ("world_size", "accumulation", "steps"),
    [(2, 1, 4), (2, 2, 3), (3, 1, 4), (3, 2, 3), (4, 1, 4), (4, 1, 3), (4, 2, 4), (4, 1, 9)],
)
def test_a_second_cut_is_named_on_every_rank(
    made: Made, world_size: int, accumulation: int, steps: int
) -> None:
    """Also on rank 0, whose part may begin as its shard does, and where batches do not divide."""
    shards = made(world_size, accumulation, steps)
    plan = Plan(shards)
    for rank in range(world_size):
        own = load_shard(shards.folder, rank)
        bounds = [len(own) * r // world_size for r in (rank, rank + 1)]
        for loader in (
            prepare(load(own), rank, world_size),
            prepare(load(own, shuffle=True), rank, world_size),
            prepare(make_loader(shards, rank, world_size, collate=COLLATE), rank, world_size),
            load(own, sampler=DistributedSampler(own, world_size, rank, shuffle=False)),
            load(own, sampler=DistributedSampler(own, world_size, rank, shuffle=True)),
            load(Subset(own, range(*bounds))),
            prepare(load(Stream(own)), rank, world_size),
            load(split_dataset_by_node(stream([shards.paths[rank]]), rank, world_size)),
        ):
            stops(loader, plan, rank, CUT_AGAIN)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_what_is_no_second_cut_is_not_called_one(made: Made, world_size: int) -> None:
    shards = made(world_size, 1, 12)
    plan = Plan(shards)
    for rank in range(world_size):
        own = load_shard(shards.folder, rank)
        stops(load(Subset(own, range(22))), plan, rank, "rows were left out or added")
        stops(load(own, batch_size=1), plan, rank, "have 1 rows, must have the plan's micro_b")
        stops(load(own, batch_size=4), plan, rank, "have 4 rows, must have the plan's micro_b")
        stops(load(Stream(own), batch_size=1), plan, rank, "have 1 rows, must have")
        stops(load(own, shuffle=True), plan, rank, "in another order.*set shuffle=False")
        half = Subset(own, range(24 // world_size))
        limit = "rows were left out or added" if rank else "a limit of samples"
        stops(load(half), plan, rank, limit)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_stream_of_the_ranks_own_file(made: Made, rank: int, accumulation: int) -> None:
    """With dispatch_batches=False too: one file is less than two ranks, so batches are skipped."""
    shards = made(2, accumulation)
    stops(prepare(load(stream([shards.paths[rank]])), rank), Plan(shards), rank, CUT_AGAIN)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_torch_stream_of_the_ranks_own_rows(made: Made, rank: int) -> None:
    shards = made(2, 2)
    own = Stream(load_shard(shards.folder, rank))
    stops(prepare(load(own), rank), Plan(shards), rank, CUT_AGAIN)


@pytest.mark.parametrize("rank", [0, 1])
def test_split_dataset_by_node_and_then_accelerate(made: Made, rank: int) -> None:
    shards = made(2, 2)
    split = split_dataset_by_node(stream(shards.paths), rank, 2)
    stops(prepare(load(split), rank), Plan(shards), rank, CUT_AGAIN + ".*no split_dataset_by_node")


@pytest.mark.parametrize("rank", [0, 1])
def test_split_dataset_by_node_twice(made: Made, rank: int) -> None:
    shards = made(2, 2)
    split = split_dataset_by_node(stream(shards.paths), rank, 2)
    message = "every 4th row of all files in a row.*call split_dataset_by_node once"
    stops(load(split_dataset_by_node(split, rank, 2)), Plan(shards), rank, message)


def test_a_stream_that_ends_early_on_one_rank(made: Made) -> None:
    """A cut that leaves a rank of few rows its first batch alone: it looks right till it ends."""
    shards = made(4, 1, 4)
    own = Stream(load_shard(shards.folder, 0))
    seen = look(prepare(load(own), 0, 4), Plan(shards))
    assert seen.num_batches == 1
    assert "the rank sees 1 of its 4 batches" in str(diagnose(seen, Plan(shards), 0))


# Read in another order.


@pytest.mark.parametrize("rank", [0, 1])
def test_workers_of_a_torch_stream_that_each_give_all_rows(made: Made, rank: int) -> None:
    shards = made(2, 2)
    own = Stream(load_shard(shards.folder, rank))
    message = "rows come more than once: .*set num_workers=0, or use make_loader"
    stops(load(own, num_workers=2), Plan(shards), rank, message)


def shuffled(shards: ShardSet, buffer_size: int) -> Any:
    # More than one input shard makes datasets 5.2 wait 5 s at the end of every pass.
    files = stream(shards.paths)
    return files.shuffle(seed=0, buffer_size=buffer_size, max_buffer_input_shards=1)


def test_a_shuffled_stream(made: Made) -> None:
    shards = made(2, 2)
    mine = stream(shards.paths[:1]).shuffle(seed=0, buffer_size=100, max_buffer_input_shards=1)
    message = r"in another order.*a stream: no shuffle\(\)"
    stops(load(mine), Plan(shards), 0, message)
    stops(prepare(load(mine), 0, world_size=1), Plan(shards), 0, message)


@pytest.mark.parametrize("buffer_size", [1, 1000])
def test_a_shuffle_of_a_stream_also_swaps_files(made: Made, buffer_size: int) -> None:
    """Also with a buffer of one row, which leaves the rows of each file in order."""
    shards = made(4, 2)
    plan, files = Plan(shards), shuffled(shards, buffer_size)
    message = r"of shard \d, rank \d reads .*, and shuffle no stream: shuffle\(\) deals out"
    for rank, file in enumerate((2, 0, 1, 3)):
        for loader in (prepare(load(files), rank, 4), load(split_dataset_by_node(files, rank, 4))):
            if file != rank:
                stops(loader, plan, rank, message)
            elif buffer_size > 1:
                stops(loader, plan, rank, r"in another order.*a stream: no shuffle\(\)")


def other_files(shards: ShardSet, rank: int, world_size: int, batch: int) -> list[Any]:
    files = stream(shards.paths)
    return [
        prepare(load(files, batch), rank, world_size),
        load(split_dataset_by_node(files, rank, world_size), batch),
    ]


@pytest.mark.parametrize(
    ("files", "world_size", "batch"), [(4, 2, 2), (4, 3, 2), (2, 4, 1), (3, 2, 2), (4, 1, 2)]
)
def test_another_number_of_files_than_ranks(
    made: Made, files: int, world_size: int, batch: int
) -> None:
    shards = made(files, 2)
    plan = Plan(shards, world_size, batch)
    message = (
        rf"follow each other in file \d, but the folder has {files} files and the job {world_size} "
        rf"ranks: .*use make_loader or the WeightedShards mixin.*make reshard WORLD_SIZE="
    )
    for rank in range(world_size):
        right = make_loader(shards, rank, world_size, collate=COLLATE, micro_batch=batch)
        check_start(right, plan, rank)
        for loader in other_files(shards, rank, world_size, batch):
            stops(loader, plan, rank, message)
        if world_size > 1:  # a cut of the right loader is still called one
            stops(prepare(right, rank, world_size), plan, rank, CUT_AGAIN)


@pytest.mark.parametrize("world_size", [2, 4])
def test_block_order_under_a_distributed_sampler(made: Made, world_size: int) -> None:
    shards = made(world_size, 2)
    blocks, plan = in_order(shards, 2), Plan(shards)
    message = r"gets rows of shards .*DistributedSampler takes strides \(`evenshard export --to st"
    for rank in range(world_size):
        check_start(prepare(load(blocks), rank, world_size), plan, rank)
        sampler = DistributedSampler(blocks, world_size, rank, shuffle=False)
        stops(load(blocks, sampler=sampler), plan, rank, message)


@pytest.mark.parametrize("world_size", [2, 4])
def test_strided_order_under_accelerate(made: Made, world_size: int) -> None:
    shards = made(world_size, 2)
    strided, plan = in_order(shards, 1), Plan(shards)
    message = r"gets rows of shards .*Accelerate, Trainer .*`evenshard export --to block`"
    for rank in range(world_size):
        sampler = DistributedSampler(strided, world_size, rank, shuffle=False)
        check_start(load(strided, sampler=sampler), plan, rank)
        stops(prepare(load(strided), rank, world_size), plan, rank, message)


# Unequal numbers of rows.


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_an_interleaved_file_of_a_wrong_length(made: Made, world_size: int, missing: int) -> None:
    """even_batches fills the last step with the rows of rank 0: other ranks see foreign rows."""
    shards = made(world_size, 2)
    blocks, plan = in_order(shards, 2), Plan(shards)
    short = Rows(shards, blocks.numbers[:-missing])
    reports = []
    for rank in range(world_size):
        seen = look(prepare(load(short), rank, world_size), plan)
        reports.append(Report(seen.num_batches, diagnose(seen, plan, rank)))
    assert reports[-1].fault is not None  # the last rank lacks its rows
    message = (
        f"even_batches does; give the loader a multiple of {plan.rows_per_step} rows with "
        f"per_device_train_batch_size=2, or set dataloader_drop_last=True"
    )
    assert message in str(find_faults(reports))
    assert "cut again" not in str(find_faults(reports))


def test_shards_of_unequal_length_cut_again(made: Made) -> None:
    """The stock way: even_batches repeats the first rows, and half of them are lost."""
    shards = made(2, 1, 8)
    for rank, rows in ((0, 16), (1, 10)):
        own = Subset(load_shard(shards.folder, rank), range(rows))
        stops(prepare(load(own), rank), Plan(shards), rank, CUT_AGAIN)


def test_shards_of_unequal_length_in_plain_loaders(made: Made) -> None:
    """The rank with fewer batches would leave the other waiting in its backward."""
    shards = made(2, 1, 8)
    reports = []
    for rank, rows in ((0, 16), (1, 10)):
        own = Subset(load_shard(shards.folder, rank), range(rows))
        seen = look(load(own), Plan(shards))
        reports.append(Report(seen.num_batches, diagnose(seen, Plan(shards), rank)))
    text = str(find_faults(reports))
    assert "ranks have different numbers of batches, [8, 5]" in text
    assert "rank 1: the loader has 5 batches, must have the plan's 8" in text


def test_a_stream_over_files_of_unequal_length(tmp_path: Path) -> None:
    """Its length is not known, and its first steps are right: the folder is refused."""
    folders.write_set(tmp_path, kept=(16, 10, 6), world_size=2, micro_batch=2, accumulation=2)
    folders.store_table(tmp_path, 1, folders.load_table(tmp_path, 1).slice(0, 12))
    shards = ShardSet(tmp_path)
    loader = load(split_dataset_by_node(stream(shards.paths), 1, 2))
    message = r"rank 0: ShardError: .*worker-00001-of-00002.parquet has 12 rows.*says 16"
    stops(loader, Plan(shards), 1, message)  # alone in its process it is called rank 0
