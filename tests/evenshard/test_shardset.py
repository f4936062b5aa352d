"""A ShardSet is whole, of one set and as its manifest says, or it is refused."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evenshard import Plan, ShardError, ShardSet
from tests.conftest import ROOT
from tests.evenshard import folders


def test_numbers_and_columns(tmp_path: Path) -> None:
    folders.write_set(tmp_path, kept=(14, 6, 4), world_size=2, micro_batch=2, accumulation=2)
    shards = ShardSet(tmp_path, check_hashes=True)
    assert (shards.world_size, shards.micro_batch, shards.accumulation) == (2, 2, 2)
    assert (shards.num_rows, shards.rows_per_worker, shards.num_steps, shards.seed) == (
        24,
        12,
        3,
        0,
    )
    for name in ("row_id", "cluster", "num_tokens"):
        by_file = [folders.load_table(tmp_path, r)[name].to_pylist() for r in (0, 1)]
        assert getattr(shards, name).tolist() == by_file
    ids = shards.row_id
    assert shards.row_ids([0, -1, 13]).tolist() == [ids[0, 0], -1, ids[1, 1]]
    assert shards.row_ids(np.zeros((0, 2), np.int64)).shape == (0, 2)
    again = pickle.loads(pickle.dumps(shards))
    assert again.fingerprint == shards.fingerprint and len(pickle.dumps(shards)) < 1000


def remove_file(folder: Path) -> None:
    (folder / "worker-00001-of-00002.parquet").unlink()


def add_stranger(folder: Path) -> None:
    name = "worker-00001-of-00002.parquet"
    shutil.copy(folder / name, folder / "worker-00001-of-00003.parquet")


def grow_file(folder: Path) -> None:
    with (folder / "worker-00001-of-00002.parquet").open("ab") as stream:
        stream.write(b"x")


def remove_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def alter_number(folder: Path) -> None:
    manifest = folders.load_manifest(folder)
    manifest["steps_per_epoch"] = 4
    folders.store_manifest(folder, manifest)


def swap_workers(folder: Path) -> None:
    manifest = folders.load_manifest(folder)
    manifest["workers"].reverse()
    folders.store_manifest(folder, manifest)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_file, "worker-00001-of-00002.parquet is missing; copy the folder again"),
        (add_stranger, r"mixes shards made for world sizes \[2, 3\]"),
        (grow_file, r"has \d+ bytes, its manifest says \d+; copy it again"),
        (remove_manifest, "has no manifest.json"),
        (alter_number, r"was altered: .*rows=24 must equal 32"),
        (swap_workers, "names file='worker-00001-of-00002.parquet' as worker 0"),
    ],
)
def test_a_folder_that_is_not_whole(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folders.write_set(tmp_path)
    damage(tmp_path)
    with pytest.raises(ShardError, match=message):
        ShardSet(tmp_path)


def test_altered_bytes_show_in_the_hash(tmp_path: Path) -> None:
    folders.write_set(tmp_path)
    path = tmp_path / "worker-00001-of-00002.parquet"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    ShardSet(tmp_path)
    with pytest.raises(ShardError, match=r"sha256=.*its manifest says .*copy the folder again"):
        ShardSet(tmp_path, check_hashes=True)


def test_fewer_rows_than_stated(tmp_path: Path) -> None:
    folders.write_set(tmp_path)
    folders.store_table(tmp_path, 1, folders.load_table(tmp_path, 1).slice(0, 11))
    with pytest.raises(ShardError, match="has 11 rows, its manifest says 12"):
        _ = ShardSet(tmp_path).cluster


def test_a_set_that_is_replaced_under_a_job_is_never_mixed_in(tmp_path: Path) -> None:
    folders.write_set(tmp_path, seed=0)
    shards = ShardSet(tmp_path)
    kept, first = pickle.dumps(shards), shards.row_id
    manifest = shards.manifest
    for path in shards.paths:  # copied again: the same bytes at another time
        os.utime(path, ns=(1, 1))
    assert pickle.loads(kept).fingerprint == shards.fingerprint
    assert shards.shard_column(0, "weight").size == 12
    folders.write_set(tmp_path, seed=1)
    assert folders.load_manifest(tmp_path) != manifest
    assert (shards.row_id == first).all()  # what was read stays
    message = f"was replaced while it was in use: .*the job began with {shards.fingerprint}"
    with pytest.raises(ShardError, match=message):
        list(Plan(shards).batches(1, 0))  # reads clusters and lengths now
    with pytest.raises(ShardError, match=message):
        shards.shard_column(1, "cluster")
    with pytest.raises(ShardError, match=message):
        pickle.loads(kept)


def test_sets_and_plans_need_no_torch(tmp_path: Path) -> None:
    folders.write_set(tmp_path)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import evenshard\n"
        f"shards = evenshard.ShardSet({str(tmp_path)!r}, check_hashes=True)\n"
        "assert len(list(evenshard.Plan(shards, 3).batches(1, 2))) == 6\n"
        "assert not evenshard.verify(shards.folder)\n"
        "heavy = {'transformers', 'accelerate', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "for name in ('ShardSampler', 'make_loader', 'SetRows'):\n"
        "    try: getattr(evenshard, name)\n"
        "    except ImportError as error: assert 'pip install torch' in str(error), error\n"
        "    else: raise AssertionError(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
