"""Whole runs: the same bytes for any number of workers, after a kill, and nothing done twice."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from evenshard import verify
from tests.conftest import ROOT
from tests.pipeline.runs import Run, command, environment, run
from tests.tiny import tiny_model

STAGES = ("rows", "screen", "tokens", "embed", "cluster", "allocate", "shards")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Run:
    done = run(tmp_path_factory.mktemp("first"), model_folder, "compute=local")
    assert done.status == 0, done.log
    return done


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slow enough that a kill hits the middle of the pass."""
    return tiny_model(tmp_path_factory.mktemp("slow") / "model", num_layers=12, hidden=256)


def test_a_run_says_where_the_shards_are_and_what_was_asked_and_got(first: Run) -> None:
    assert first.stages("running") == list(STAGES)
    assert f"The shards are in {first.out}" in first.printed
    assert "asked     allocate.ratio=0.5" in first.printed
    assert "got       " in first.printed
    assert "make reshard" in first.printed and "make verify" in first.printed


def test_the_published_folder_keeps_every_promise(first: Run) -> None:
    assert verify(first.out) == []
    manifest = json.loads((first.out / "manifest.json").read_text())
    assert manifest["world_size"] == 4
    assert set(manifest["keys"]) == set(STAGES)
    assert manifest["settings"]["allocate"]["selector"]["class"] == "Matched"


def test_every_row_is_in_the_shards_or_accounted_for(first: Run) -> None:
    store = first.out.parent / "store"
    [rows] = (store / "rows").glob("*/manifest.json")
    read = json.loads(rows.read_text())["facts"]["read"]
    tables = [pq.read_table(file) for file in first.out.glob("worker-*.parquet")]
    kept = {row_id for table in tables for row_id in table["row_id"].to_pylist()}
    manifest = json.loads((first.out / "manifest.json").read_text())
    candidates = sum(cluster["candidates"] for cluster in manifest["clusters"])
    assert read == 320
    assert 96 == candidates + manifest["rejects"]["rows"]
    assert len(kept) == manifest["rows"] == sum(c["kept"] for c in manifest["clusters"])


@pytest.mark.parametrize(
    "workers",
    [
        ("compute.workers=1",),
        ("compute.workers=2",),
        ("compute.workers=4", "compute.cpus_per_worker=0.25"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_ray_workers_give_the_same_bytes_as_this_process(
    first: Run, tmp_path: Path, model_folder: Path, workers: tuple[str, ...]
) -> None:
    done = run(tmp_path, model_folder, *workers)
    assert done.status == 0, done.log
    assert done.shards() == first.shards()


def test_a_second_run_does_nothing_and_says_so(first: Run, model_folder: Path) -> None:
    again = run(first.out.parent, model_folder, "compute=local")
    assert again.stages("running") == []
    assert again.stages("reused") == list(STAGES)
    assert again.shards() == first.shards()
    assert "loading the model" not in again.log


def test_another_selector_reuses_everything_up_to_the_clusters(
    first: Run, model_folder: Path, tmp_path: Path
) -> None:
    other = run(
        first.out.parent,
        model_folder,
        "compute=local",
        "allocate.selector=stratified",
        f"out={tmp_path / 'stratified'}",
    )
    assert other.stages("reused") == list(STAGES[:5])
    assert other.stages("running") == ["allocate", "shards"]
    assert "loading the model" not in other.log
    assert "changed since" in other.log and "selector.class" in other.log


def test_reshard_reruns_only_what_depends_on_the_workers(
    tmp_path: Path, model_folder: Path
) -> None:
    assert run(tmp_path, model_folder, "compute=local").status == 0
    again = run(tmp_path, model_folder, "allocate.num_workers=8", verb="reshard")
    assert again.status == 0, again.log
    assert again.stages("reused") == list(STAGES[:5])
    assert again.stages("running") == ["allocate", "shards"]
    assert "loading the model" not in again.log
    assert len(again.shards()) == 8
    assert verify(again.out) == []
    free = run(
        tmp_path, model_folder, "allocate.num_workers=2", "cluster.num_clusters=4", verb="reshard"
    )
    assert free.status == 0, free.log
    assert free.stages("running") == ["cluster", "allocate", "shards"]
    assert len(free.shards()) == 2
    # The paper's rule has a cluster a worker, so these are made anew.
    paper = run(
        tmp_path,
        model_folder,
        "allocate.num_workers=2",
        "cluster.num_clusters=null",
        "allocate.selector=cluster_balanced",
        verb="reshard",
    )
    assert paper.status == 0, paper.log
    assert paper.stages("reused") == list(STAGES[:4])
    assert len(paper.shards()) == 2


def test_reshard_of_an_unknown_run_says_what_to_do(tmp_path: Path, model_folder: Path) -> None:
    done = run(tmp_path, model_folder, "name=nobody", verb="reshard")
    assert done.status == 2
    assert "there is no finished run" in done.log and "Traceback" not in done.log


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_killed_in_mid_embed_loses_at_most_one_part_per_worker(
    tmp_path: Path, slow_model: Path, workers: int
) -> None:
    overrides = (f"compute.workers={workers}", "compute.gpus_per_worker=0")
    whole = run(tmp_path / "whole", slow_model, *overrides)
    assert whole.status == 0, whole.log

    folder = tmp_path / "killed"
    process = subprocess.Popen(
        command(folder, slow_model, *overrides),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_parts(folder / "store" / "embed", 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = len(list((folder / "store" / "embed").glob("*.partial/part-*.parquet.json")))
    assert 3 <= finished < 12, "the kill did not hit the middle of the pass"

    again = run(folder, slow_model, *overrides)
    assert again.status == 0, again.log
    assert again.stages("reused") == list(STAGES[:3])
    reused = int(again.log.split("resumed: ")[1].split(" of ")[0])
    assert reused >= finished, again.log
    assert again.shards() == whole.shards()


def test_a_damaged_part_of_a_killed_run_is_made_again(
    tmp_path: Path, model_folder: Path, first: Run
) -> None:
    """A part cut in half, with a marker beside it such as others write; then other workers."""
    store = tmp_path / "store"
    done = run(tmp_path, model_folder, "compute=local")
    [embed] = (store / "embed").iterdir()
    manifest = json.loads((embed / "manifest.json").read_text())
    partial = embed.with_name(f"{embed.name}.partial")
    embed.rename(partial)
    (partial / "manifest.json").unlink()
    for part in manifest["parts"][:5]:
        (partial / f"{part['name']}.json").write_text(
            json.dumps({**part, "sides": [], "key": embed.name})
        )
    torn = partial / manifest["parts"][4]["name"]
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    (partial / "_SUCCESS").touch()
    for stage in ("cluster", "allocate", "shards"):
        for folder in (store / stage).iterdir():
            folder.rename(tmp_path / f"away-{stage}")
    again = run(tmp_path, model_folder, "compute.workers=2")
    assert again.status == 0, again.log
    assert "resumed: 4 of 12 parts" in again.log
    assert f"{torn.name} is not whole; its part is made again" in again.log
    assert again.shards() == done.shards() == first.shards()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["allocate.num_workers=97"], ["allocate.num_workers=97", "96 rows"]),
        (["cluster.num_clusters=200"], ["cluster.num_clusters=200", "96 rows"]),
        (["allocate.budget=500"], ["allocate.budget=500", "the largest budget that works is 96"]),
        (["allocate.budget=2"], ["allocate.budget=2", "the smallest budget that works is 4rows"]),
        (["allocate.micro_batch=64"], ["allocate.ratio=0.5", "256 rows of one step"]),
    ],
    ids=lambda value: value[0],
)
def test_what_needs_the_rows_stops_right_after_rows(
    tmp_path: Path, model_folder: Path, overrides: list[str], words: list[str]
) -> None:
    done = run(tmp_path, model_folder, "compute=local", *overrides)
    assert done.status == 2
    assert done.stages("running") == ["rows"]
    assert all(word in done.log for word in words), done.log
    assert "Traceback" not in done.log
    assert not done.out.exists()


def wait_for_parts(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if len(list(folder.glob("*.partial/part-*.parquet.json"))) >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"no {count} parts in {folder} within two minutes")
