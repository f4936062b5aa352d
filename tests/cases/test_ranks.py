"""Cases of the shards and of what a trainer makes of them: uneven, empty, cut a second time."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from evenshard import ShardError, find_shard, load_shard, verify
from evenshard.__main__ import main
from evenshard.export import export
from evenshard.loader import make_loader
from evenshard.plan import Plan
from evenshard.shards import read_manifest, shard_name
from evenshard.shardset import ShardSet
from evenshard.startup import check_start
from tests.artifacts import blobs, run_stage, store_inputs
from tests.cases.rooms import case
from tests.evenshard import folders


def test_07_verify_names_the_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    folder = case("07-uneven-and-empty-shards")
    assert main(["verify", str(folder), "--world-size", "4", "--micro-batch", "2"]) == 1
    out = capsys.readouterr().out
    assert "rank 2 (0 rows)" in out and "rank 3 (4 rows)" in out


@pytest.mark.parametrize(("micro_batch", "accumulation"), [(2, 1), (2, 3)])
def test_07_the_allocator_never_writes_this(
    tmp_path: Path, micro_batch: int, accumulation: int
) -> None:
    from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
    from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig

    lengths = np.random.default_rng(0).integers(4, 60, 57).tolist()
    inputs: Any = store_inputs(
        tmp_path, num_rows=57, embeddings=blobs([29, 17, 8, 3]), lengths=lengths
    )
    grouping = ClusterConfig(n_init=2, min_rows=0)
    inputs["cluster"] = run_stage(CLUSTER_STAGE, grouping, inputs, tmp_path)
    settings = AllocateConfig(
        budget="57", num_workers=4, micro_batch=micro_batch, accumulation=accumulation
    )
    plan = run_stage(ALLOCATE_STAGE, settings, inputs, tmp_path)
    counts = np.bincount(plan.array("worker"), minlength=4)
    per_step = micro_batch * accumulation
    assert counts.tolist() == [57 // (4 * per_step) * per_step] * 4


def test_07_a_wrong_world_size_is_refused_with_the_way_out(tmp_path: Path) -> None:
    folders.write_set(tmp_path, world_size=2)
    manifest = read_manifest(tmp_path)
    assert len({worker["rows"] for worker in manifest["workers"]}) == 1
    assert all(worker["tokens"] > 0 for worker in manifest["workers"])
    assert verify(tmp_path, world_size=2, micro_batch=2) == []
    with pytest.raises(ShardError, match=r"world_size=4 must equal 2.*make reshard"):
        find_shard(tmp_path, 0, 4)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    case("08-rank-shards-cut-a-second-time")
    folder = tmp_path_factory.mktemp("case-08")
    folders.write_set(folder, kept=(16, 10, 6), world_size=4, micro_batch=2, accumulation=1)
    return ShardSet(folder)


def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: torch.stack([item[name] for item in items]) for name in ("row_id", "weight")}


def loader(rows: Any, **keys: Any) -> Any:
    return DataLoader(rows, collate_fn=collate, **keys)


@pytest.mark.parametrize("rank", range(4))
def test_08_a_second_cut_and_a_shuffle_stop_the_start(shards: ShardSet, rank: int) -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    plan, rows = Plan(shards), load_shard(shards.folder, rank)
    check_start(make_loader(shards, rank, 4, collate=collate), plan, rank)
    check_start(loader(rows, batch_size=2), plan, rank)
    batches = BatchSampler(SequentialSampler(rows), 2, drop_last=False)
    halved = accelerate.BatchSamplerShard(batches, 4, rank)
    with pytest.raises(ShardError, match=r"training would not follow the plan"):
        check_start(loader(rows, batch_sampler=halved), plan, rank)
    generator = torch.Generator().manual_seed(1)
    with pytest.raises(ShardError, match=r"training would not follow the plan.*shuffle=False"):
        check_start(loader(rows, batch_size=2, shuffle=True, generator=generator), plan, rank)


def test_08_one_file_per_rank_and_names_that_sort_by_rank(shards: ShardSet) -> None:
    datasets = pytest.importorskip("datasets")
    distributed = pytest.importorskip("datasets.distributed")
    assert [shard_name(r, 16) for r in range(16)] == sorted(shard_name(r, 16) for r in range(16))
    files = sorted(str(file) for file in shards.folder.glob("worker-*.parquet"))
    assert len(files) == 4
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    for rank in range(4):
        mine = distributed.split_dataset_by_node(stream, rank, 4)
        ids = [row["row_id"] for row in mine]
        assert ids == pq.read_table(files[rank])["row_id"].to_pylist()
        assert ids == shards.row_id[rank].tolist()


def test_08_the_interleaved_file_reaches_each_rank_as_its_shard(
    shards: ShardSet, tmp_path: Path
) -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    done = export(shards.folder, "block", out=tmp_path / "block")
    table = pq.read_table(next(Path(done.folder).glob("*.parquet")))
    order = table["row_id"].to_pylist()
    batches = BatchSampler(SequentialSampler(order), 2, drop_last=False)
    for rank in range(4):
        mine = accelerate.BatchSamplerShard(batches, 4, rank)
        assert [order[i] for batch in mine for i in batch] == shards.row_id[rank].tolist()
