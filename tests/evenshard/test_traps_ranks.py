"""The traps that two ranks spring together: accelerate's dispatcher, and the stock Trainer.

All in one pair of processes, since starting them takes longest; none may hang.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("datasets")

from evenshard import PadCollator, Plan, ShardError, ShardSet, WeightCollator, check_start
from tests.evenshard import folders
from tests.evenshard.ranks import run_ranks

CUT_AGAIN = "its loader was cut again"


def on_two_ranks(rank: int, world_size: int, folder: Path, model_folder: Path) -> dict[str, str]:
    """Build each trap with the real trainer; give what the check says on this rank."""
    import datasets
    from accelerate import Accelerator
    from datasets.distributed import split_dataset_by_node
    from torch.utils.data import DataLoader, Subset
    from transformers import Trainer

    from evenshard import load_shard
    from tests.evenshard.test_startup import Stream
    from tests.evenshard.test_trainer import training_arguments
    from tests.evenshard.tiny_training import load_model

    shards = ShardSet(folder)
    plan, own = Plan(shards), load_shard(folder, rank)
    collate = WeightCollator(PadCollator(0), keep_row_ids=True)
    model = load_model(model_folder)

    def stream(paths: list[Path]) -> Any:
        files = [str(path) for path in paths]
        rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        return rows.select_columns(["row_id", "input_ids", "labels", "weight"])

    def prepared(rows: Any, **keys: Any) -> Any:
        loader = DataLoader(rows, batch_size=2, collate_fn=collate, **keys)
        return Accelerator(cpu=True).prepare(loader)

    def trainer(rows: Any, **changed: Any) -> Any:
        stated = {"remove_unused_columns": False, "max_steps": 4, **changed}
        args = training_arguments(folder / "out", **stated)
        made = Trainer(model=model, args=args, train_dataset=rows, data_collator=collate)
        return made.get_train_dataloader()

    sequential = {"train_sampling_strategy": "sequential"}
    undispatched = {"accelerator_config": {"dispatch_batches": False}}
    files, mine = stream(shards.paths), stream([shards.paths[rank]])
    table = datasets.Dataset(pq.read_table(shards.paths[rank]))
    rows = table.select_columns(["row_id", "input_ids", "labels", "weight"])
    cases: dict[str, Callable[[], Any]] = {
        "right: W files, dispatch_batches=False": lambda: trainer(files, **undispatched),
        "W files, dispatched": lambda: trainer(files),
        "own file, dispatched": lambda: trainer(mine),
        "own file, dispatch_batches=False": lambda: trainer(mine, **undispatched),
        "split by node, dispatched": lambda: prepared(split_dataset_by_node(files, rank, 2)),
        "torch stream, dispatched": lambda: prepared(Stream(own)),
        "torch stream, dispatch_batches=False": lambda: trainer(Stream(own), **undispatched),
        "own rows, defaults": lambda: trainer(rows),
        "own rows, sequential": lambda: trainer(rows, **sequential),
        "own rows of unequal number": lambda: trainer(Subset(own, range(16 - 6 * rank))),
        "weights dropped": lambda: trainer(rows, remove_unused_columns=True),
    }
    messages = {}
    for name, make in cases.items():
        try:
            check_start(make(), plan, rank)
            messages[name] = ""
        except ShardError as error:
            messages[name] = str(error)
    return messages


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("set")
    folders.write_set(folder, kept=(16, 10, 6), world_size=2, micro_batch=2, accumulation=2)
    first, second = run_ranks(on_two_ranks, 2, folder, model_folder)
    assert first == second  # all ranks are told alike
    return dict(first)


def test_what_is_right_passes(messages: dict[str, str]) -> None:
    right = [name for name in messages if name.startswith("right")]
    assert right and not any(messages[name] for name in right)


@pytest.mark.parametrize(
    "name",
    [
        "W files, dispatched",
        "own file, dispatched",
        "split by node, dispatched",
        "torch stream, dispatched",
    ],
)
def test_a_dispatched_stream(messages: dict[str, str], name: str) -> None:
    """Rank 0 reads for all. To take one batch would already hang: one with a scalar is not cut."""
    text = messages[name]
    assert "ranks 0, 1: ShardError: loader=DataLoaderDispatcher lets rank 0 read" in text
    assert "set dispatch_batches=False for a stream of one file a rank" in text
    assert "prepare_data_loader(loader, num_processes=1, process_index=0)" in text


@pytest.mark.parametrize(
    "name",
    [
        "own file, dispatch_batches=False",
        "torch stream, dispatch_batches=False",
        "own rows, defaults",
        "own rows, sequential",
        "own rows of unequal number",
    ],
)
def test_what_the_trainer_cuts_again(messages: dict[str, str], name: str) -> None:
    text = messages[name]
    assert text.count(CUT_AGAIN) == 2  # on both ranks
    assert "evenshard's WeightedShards mixin" in text


def test_weights_that_the_trainer_drops(messages: dict[str, str]) -> None:
    assert "set remove_unused_columns=False" in messages["weights dropped"]
