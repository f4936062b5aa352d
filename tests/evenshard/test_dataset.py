"""load_shard gives the rows of one worker, or says why not; importing is light."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenshard import ShardError, load_shard
from evenshard.shards import parse_shard_name, shard_name
from tests.evenshard import folders

ROOT = Path(__file__).parents[2]


def test_names_are_read_as_written() -> None:
    assert shard_name(3, 8) == "worker-00003-of-00008.parquet"
    assert parse_shard_name("worker-00003-of-00008.parquet") == (3, 8)
    assert parse_shard_name(shard_name(123456, 200000)) == (123456, 200000)
    for name in ("worker-3-of-8.parquet", "worker-00003-of-00008.parquet.tmp", "rejects.parquet"):
        assert parse_shard_name(name) is None


def test_rows_are_those_of_the_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folders.write_set(tmp_path)
    rows = load_shard(tmp_path, 1, 2)
    expected = folders.load_table(tmp_path, 1).to_pylist()
    assert len(rows) == len(expected) == 12
    for item, row in zip((rows[i] for i in range(12)), expected, strict=True):
        assert {name: value.dtype for name, value in item.items()} == {
            "row_id": torch.int64,
            "input_ids": torch.int64,
            "labels": torch.int64,
            "weight": torch.float32,
        }
        assert item["row_id"].shape == item["weight"].shape == ()
        for name in ("row_id", "input_ids", "labels"):
            assert item[name].tolist() == row[name]
        assert item["weight"].item() == row["weight"]
    assert rows[-1]["row_id"] == rows[11]["row_id"]
    with pytest.raises(IndexError, match="row 12 must lie in"):
        rows[12]


def test_rows_of_many_chunks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from evenshard.dataset import _Lists

    folders.write_set(tmp_path)
    table = folders.load_table(tmp_path, 0)
    column = table["input_ids"]
    pieces = [column.slice(start, 3).combine_chunks() for start in (0, 3, 6, 9)]
    lists = _Lists(pa.chunked_array([pieces[0], pieces[0].slice(0, 0), *pieces[1:]]))
    assert [lists.row(row).tolist() for row in range(12)] == column.to_pylist()


def test_rows_travel_to_loader_workers(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    folders.write_set(tmp_path)
    rows = load_shard(tmp_path, 0)
    again = pickle.loads(pickle.dumps(rows))
    assert len(pickle.dumps(rows)) < 1000
    assert again[5]["input_ids"].tolist() == rows[5]["input_ids"].tolist()
    loader = data.DataLoader(rows, batch_size=None, num_workers=2)
    row_ids = [item["row_id"].item() for item in loader]
    assert row_ids == folders.load_table(tmp_path, 0)["row_id"].to_pylist()


def test_world_size_must_be_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.write_set(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "4")  # an environment is no argument
    pytest.importorskip("torch")
    assert len(load_shard(tmp_path, 0)) == 12
    with pytest.raises(ShardError, match=r"world_size=4 must equal 2.*NAME=small WORLD_SIZE=4"):
        load_shard(tmp_path, 0, 4)


@pytest.mark.parametrize("rank", [-1, 2])
def test_rank_must_be_one_of_the_folder(tmp_path: Path, rank: int) -> None:
    folders.write_set(tmp_path)
    with pytest.raises(ShardError, match=rf"rank={rank} must lie in \[0, 2\)"):
        load_shard(tmp_path, rank, world_size=2)


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    folders.write_set(tmp_path)
    first, second = (tmp_path / shard_name(rank, 2) for rank in range(2))
    stranger = tmp_path / shard_name(0, 8)
    stranger.write_bytes(first.read_bytes())
    with pytest.raises(ShardError, match=r"mixes shards made for world sizes \[2, 8\]"):
        load_shard(tmp_path, 0)
    stranger.unlink()
    second.unlink()
    with pytest.raises(ShardError, match=r"worker-00001-of-00002\.parquet is missing"):
        load_shard(tmp_path, 1)
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(ShardError, match="its manifest says"):
        load_shard(tmp_path, 0)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ShardError, match="not written by evenshard, or is incomplete"):
        load_shard(tmp_path, 0)
    with pytest.raises(ShardError, match="is not a folder"):
        load_shard(tmp_path / "none", 0)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folders.write_set(tmp_path)
    folders.store_table(tmp_path, 0, folders.load_table(tmp_path, 0).drop_columns(["weight"]))
    with pytest.raises(ShardError, match="unlike a shard's"):
        load_shard(tmp_path, 0)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_importing_loads_numpy_and_pyarrow_alone() -> None:
    code = """
import sys
before = set(sys.modules)
import evenshard
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
ours = {"evenshard", "numpy", "pyarrow", "cloudpickle", "cython_runtime"}  # pyarrow asks for two
strangers = {name for name in loaded - set(sys.stdlib_module_names) - ours if name[0] != "_"}
assert not strangers, strangers
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_the_command_loads_no_torch(tmp_path: Path) -> None:
    folders.write_set(tmp_path)
    code = """
import sys
from evenshard.__main__ import main
assert main(["verify", sys.argv[1]]) == 0
assert main(["info", sys.argv[1]]) == 0
assert "torch" not in sys.modules
"""
    done = run_python(code, str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_without_torch_the_remedy_is_told(tmp_path: Path) -> None:
    folders.write_set(tmp_path)
    code = """
import sys
sys.modules["torch"] = None
import evenshard
try:
    evenshard.load_shard(sys.argv[1], 0)
except ImportError as error:
    print(error)
"""
    assert "pip install torch" in run_python(code, str(tmp_path)).stdout


def test_large_sets_are_read_by_row_group(tmp_path: Path) -> None:
    folders.write_set(tmp_path)
    file = pq.ParquetFile(tmp_path / shard_name(0, 2))
    assert file.num_row_groups == 3
    assert np.all([file.metadata.row_group(i).num_rows <= 5 for i in range(3)])
