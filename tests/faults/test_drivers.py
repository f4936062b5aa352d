"""Two runs of one key at the same time, and a run whose store is full: whole shards or words."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.faults.test_store import small_disk
from tests.pipeline.runs import Run, command, environment, run

__all__ = ["small_disk"]
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Run:
    done = run(tmp_path_factory.mktemp("alone"), model_folder, "compute=local")
    assert done.status == 0, done.log
    return done


def test_two_runs_of_one_key_at_once_both_end_in_the_same_shards(
    tmp_path: Path, model_folder: Path, alone: Run
) -> None:
    outs = [tmp_path / "one", tmp_path / "two"]
    runs = [
        subprocess.Popen(
            command(tmp_path, model_folder, "compute=local", f"out={out}"),
            cwd=ROOT,
            env=environment(),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for out in outs
    ]
    said = [process.communicate(timeout=900)[1] for process in runs]
    assert [process.returncode for process in runs] == [0, 0], said
    assert [Run(0, "", "", out).shards() for out in outs] == [alone.shards()] * 2
    left = [path.name for path in (tmp_path / "store").glob("*/*") if "partial" in path.name]
    assert left == []


def test_a_run_whose_store_is_full_says_so_and_goes_on_when_there_is_room(
    tmp_path: Path, model_folder: Path, alone: Run, small_disk: Path
) -> None:
    where = (f"store={small_disk / 'store'}", f"out={tmp_path / 'out'}", "compute=local")
    full = run(tmp_path, model_folder, *where)
    assert full.status == 2, full.log
    assert "no room (No space left on device)" in full.log and "free some room" in full.log
    assert "Traceback" not in full.log
    assert not full.out.exists()
    kept = full.stages("running")[:-1]
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    again = run(tmp_path, model_folder, *where)
    assert again.status == 0, again.log
    assert again.stages("reused") == kept
    assert again.shards() == alone.shards()


def test_a_finished_store_with_an_altered_part_stops_the_run_until_it_is_deleted(
    tmp_path: Path, model_folder: Path, alone: Run
) -> None:
    shutil.copytree(alone.out.parent / "store", tmp_path / "store")
    [part] = (tmp_path / "store" / "embed").glob("*/part-00003.parquet")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(bytes(data))
    refused = run(tmp_path, model_folder, "compute=local")
    assert refused.status == 2, refused.log
    assert f"delete the folder {part.parent} and run again" in refused.log
    assert not refused.out.exists()
    shutil.rmtree(part.parent)
    again = run(tmp_path, model_folder, "compute=local")
    assert again.status == 0, again.log
    assert again.stages("running") == ["embed"]
    assert again.shards() == alone.shards()
