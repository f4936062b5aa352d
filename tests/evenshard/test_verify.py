"""A valid folder passes, and every kind of damage is found by name."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenshard import Plan, ShardError, ShardSet, verify
from evenshard.__main__ import main
from evenshard.shards import SHARD_SCHEMA, shard_name
from evenshard.verify import examine
from tests.evenshard import folders

CASE_07 = Path(__file__).parents[3] / "shared" / "cases" / "07-uneven-and-empty-shards"
FIRST, SECOND = shard_name(0, 2), shard_name(1, 2)


@pytest.mark.parametrize("seed", range(12))
def test_every_valid_set_passes(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    world_size, micro_batch, accumulation = (int(n) for n in rng.integers(1, 5, 3))
    per_step = world_size * micro_batch * accumulation
    num_clusters = int(rng.integers(1, 9))
    window = math.ceil(num_clusters / per_step)
    total = per_step * window * int(rng.integers(2, 7))
    cuts = np.sort(rng.choice(np.arange(1, total), num_clusters - 1, replace=False))
    kept = np.diff([0, *cuts.tolist(), total]).tolist()
    folders.write_set(
        tmp_path,
        kept=kept,
        world_size=world_size,
        micro_batch=micro_batch,
        accumulation=accumulation,
        window=window,
        seed=seed,
    )
    assert verify(tmp_path, world_size=world_size, micro_batch=micro_batch) == []


def test_pinned_set_passes(tmp_path: Path) -> None:
    folders.write_set(tmp_path, kept=(8, 8), pinned=True)
    assert verify(tmp_path) == []


def test_pinned_workers_hold_their_own_clusters(tmp_path: Path) -> None:
    manifest: Any = folders.write_set(tmp_path, kept=(8, 8), pinned=True)
    swap_files(tmp_path)
    for worker, other in zip(manifest["workers"], load_tokens(tmp_path), strict=True):
        worker["tokens"] = other
    folders.restate_hashes(tmp_path, manifest)
    problems = verify(tmp_path)
    assert {problem.check for problem in problems} == {"pinned"}
    assert "pinned worker 1 must not hold rows of clusters [0]" in str(problems[1])


def load_tokens(folder: Path) -> list[int]:
    tables = [folders.load_table(folder, rank) for rank in range(2)]
    return [sum(table["num_tokens"].to_pylist()) for table in tables]


def truncate(folder: Path) -> None:
    content = (folder / FIRST).read_bytes()
    (folder / FIRST).write_bytes(content[:-10])


def change_a_byte(folder: Path) -> None:
    content = bytearray((folder / FIRST).read_bytes())
    content[len(content) // 2] ^= 255
    (folder / FIRST).write_bytes(content)


def drop_a_row(folder: Path) -> None:
    folders.store_table(folder, 0, folders.load_table(folder, 0).slice(1))


def duplicate_a_row_id(folder: Path) -> None:
    row_ids = folders.load_table(folder, 1)["row_id"].to_pylist()
    row_ids[3] = folders.load_table(folder, 0)["row_id"][0].as_py()
    folders.set_column(folder, 1, "row_id", row_ids)


def set_a_weight(value: float | None) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights = folders.load_table(folder, 0)["weight"].to_pylist()
        weights[2] = value
        folders.set_column(folder, 0, "weight", weights)

    return damage


def double_the_weights(folder: Path) -> None:
    for rank in range(2):
        weights = folders.load_table(folder, rank)["weight"].to_numpy()
        folders.set_column(folder, rank, "weight", 2 * weights)


def swap_files(folder: Path) -> None:
    first, second = (folder / FIRST).read_bytes(), (folder / SECOND).read_bytes()
    (folder / FIRST).write_bytes(second)
    (folder / SECOND).write_bytes(first)


def reorder(folder: Path) -> None:
    table = folders.load_table(folder, 0)
    order = np.argsort(table["cluster"].to_numpy(), kind="stable")
    folders.store_table(folder, 0, table.take(order))


def move_a_row_to_another_cluster(folder: Path) -> None:
    clusters = folders.load_table(folder, 0)["cluster"].to_numpy().copy()
    clusters[np.argmax(clusters == 0)] = 1
    folders.set_column(folder, 0, "cluster", clusters)


def change_labels(change: Callable[[list[int]], list[int]]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        labels = folders.load_table(folder, 0)["labels"].to_pylist()
        labels[1] = change(labels[1])
        folders.set_column(folder, 0, "labels", labels)

    return damage


def negate_a_token(folder: Path) -> None:
    tokens = folders.load_table(folder, 0)["input_ids"].to_pylist()
    tokens[1][0] = -1
    folders.set_column(folder, 0, "input_ids", tokens)


def cast_weights(folder: Path) -> None:
    table = folders.load_table(folder, 0)
    weights = table["weight"].cast(pa.float64())
    folders.store_table(folder, 0, table.set_column(9, "weight", weights))


def empty_a_file(folder: Path) -> None:
    folders.store_table(folder, 1, SHARD_SCHEMA.empty_table())


def restate(*keys: str | int, value: Any) -> Callable[[Path], None]:
    """Change one figure of the manifest."""

    def damage(folder: Path) -> None:
        manifest = folders.load_manifest(folder)
        place = manifest
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        folders.store_manifest(folder, manifest)

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def add_a_file_of_8(folder: Path) -> None:
    (folder / shard_name(5, 8)).write_bytes((folder / FIRST).read_bytes())


def write_bad_json(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


DAMAGES: list[tuple[str, Callable[[Path], None], str, str]] = [
    ("truncated", truncate, "size", f"{FIRST}: has "),
    ("truncated", truncate, "unreadable", f"{FIRST}: cannot be read"),
    ("byte", change_a_byte, "sha256", f"{FIRST}: its sha256 is"),
    ("dropped row", drop_a_row, "rows", f"{FIRST}: has 11 rows, the manifest says 12"),
    ("row id", duplicate_a_row_id, "row_id", f"comes in {FIRST} and again in {SECOND}"),
    ("zero weight", set_a_weight(0.0), "weight", "1 rows have a weight that is not finite and > 0"),
    ("NaN weight", set_a_weight(math.nan), "weight", f"{FIRST}: 1 rows have a weight"),
    ("no weight", set_a_weight(None), "null", "column weight must hold no null"),
    ("doubled", double_the_weights, "weights", "the mean weight is 2, must be 1"),
    ("swapped", swap_files, "size", f"{FIRST}: has "),
    ("swapped", swap_files, "size", f"{SECOND}: has "),
    ("missing", remove(SECOND), "missing", f"{SECOND}: is missing, worker 1 has no rows"),
    ("mixed", add_a_file_of_8, "stranger", f"{shard_name(5, 8)}: is not of this set of 2 workers"),
    ("order", reorder, "coverage", "must be in"),
    ("cluster", move_a_row_to_another_cluster, "clusters", "cluster 0 has 13 rows, the manifest"),
    ("untrained", change_labels(lambda x: [-100] * len(x)), "target", "1 rows have no trained"),
    (
        "first label only",
        change_labels(lambda x: [5] + [-100] * (len(x) - 1)),
        "target",
        "beyond position 0",
    ),
    (
        "label",
        change_labels(lambda x: [*x[:-1], x[-1] + 1]),
        "label",
        "1 rows have a trained label",
    ),
    ("short labels", change_labels(lambda x: x[:-1]), "length", "unlike the length of input_ids"),
    ("negative token", negate_a_token, "token", "1 rows hold a negative token id"),
    ("type", cast_weights, "schema", "column weight is double, must be float"),
    ("empty", empty_a_file, "rows", f"{SECOND}: has 0 rows, the manifest says 12"),
    ("rows", restate("rows", value=25), "manifest", "rows=25 must equal"),
    ("tokens", restate("tokens", value=1), "manifest", "tokens=1 must equal"),
    ("steps", restate("steps_per_epoch", value=9), "manifest", "steps_per_epoch * the rows"),
    ("worker tokens", restate("workers", 1, "tokens", value=1), "tokens", "the manifest says 1"),
    ("worker rows", restate("workers", 1, "rows", value=8), "rows", "rows_per_worker=12"),
    ("name", restate("workers", 1, "file", value=FIRST), "names", f"must be 1, {SECOND}"),
    ("kept", restate("clusters", 0, "kept", value=3), "clusters", "the manifest says kept=3"),
    ("mass", restate("clusters", 0, "mass", value=3), "manifest", "kept <= candidates <= mass"),
    ("largest", restate("weights", "max", value=9.0), "weights", "the manifest says 9"),
    (
        "effective",
        restate("weights", "effective_sample_size", value=0.1),
        "weights",
        "weights.effective_sample_size is",
    ),
    ("balance", restate("schedule", "imbalance", value=1.0), "imbalance", "manifest says 1.0000"),
    ("window", restate("schedule", "window_steps", value=0), "coverage", "window_steps=0 must be"),
    ("long window", restate("schedule", "window_steps", value=4), "coverage", "be in 1..3, the"),
    ("deviation", restate("schedule", "max_deviation", value=0.9), "deviation", "says 0.9000"),
    ("batch", restate("micro_batch", value=5), "rows", "must be a multiple of"),
    ("no batch", restate("micro_batch", value=0), "manifest", "micro_batch=0 must be >= 1"),
    ("kind", restate("schedule", "kind", value="x"), "manifest", "must be one of dealt, pinned"),
    ("format", restate("format", value="other"), "manifest", "format='other', must be"),
    ("version", restate("format_version", value=2), "manifest", "format_version=2"),
    ("no number", restate("rows", value="24"), "manifest", "rows='24' must be of type int"),
    ("json", write_bad_json, "manifest", "is not JSON"),
    ("no manifest", remove("manifest.json"), "manifest", "not an evenshard set"),
    ("no rejects", remove("rejects.parquet"), "missing", "rejects.parquet: is missing"),
    ("rejects", restate("rejects", "rows", value=4), "rejects", "has 3 rows, the manifest says 4"),
    (
        "reasons",
        restate("rejects", "by_reason", value={"empty": 3}),
        "rejects",
        "counts by reason are",
    ),
    ("rejects' hash", restate("rejects", "sha256", value="0"), "sha256", "rejects.parquet: its"),
]


@pytest.mark.parametrize(
    ("damage", "check", "text"), [d[1:] for d in DAMAGES], ids=[f"{d[0]}-{d[2]}" for d in DAMAGES]
)
def test_damage_is_named(
    tmp_path: Path, damage: Callable[[Path], None], check: str, text: str
) -> None:
    folders.write_set(tmp_path)
    damage(tmp_path)
    problems = verify(tmp_path)
    assert any(p.check == check and text in str(p) for p in problems), problems


def test_coverage_alone_is_told_when_only_the_order_is_wrong(tmp_path: Path) -> None:
    manifest: Any = folders.write_set(tmp_path, kept=(12, 12), world_size=1, micro_batch=4)
    table = pq.read_table(tmp_path / shard_name(0, 1))
    order = np.argsort(table["cluster"].to_numpy(), kind="stable")
    pq.write_table(table.take(order), tmp_path / shard_name(0, 1))
    folders.restate_hashes(tmp_path, manifest)
    assert [str(problem) for problem in verify(tmp_path)] == [
        "set: steps 0..0 hold 8 rows of cluster 0, must be in 4..4; "
        "2 of 3 windows are not covered evenly",
        "set: steps 0..0 hold 8 rows of cluster 0, must be less than a row from 4.00; "
        "2 of 3 windows end a row or more off",
        "set: schedule.max_deviation is 4.0000 rows, the manifest says 0.0000",
    ]


def test_a_job_that_does_not_fit_is_told(tmp_path: Path) -> None:
    """The answer is the loader's: 4 rows of a rank in a step, 12 of it in an epoch."""
    folders.write_set(tmp_path)
    (problem,) = verify(tmp_path, world_size=2, micro_batch=3)  # divides 12, but not 4
    assert (problem.check, problem.where) == ("plan", "set")
    assert "micro_batch=3 must divide the 4 rows of a rank in a step" in str(problem)
    for world_size in range(1, 7):
        for micro_batch in range(1, 7):
            try:
                Plan(ShardSet(tmp_path), world_size, micro_batch)
                expected = []
            except ShardError as error:
                expected = [f"set: {error}"]
            found = verify(tmp_path, world_size=world_size, micro_batch=micro_batch)
            assert list(map(str, found)) == expected


def test_a_reader_of_one_file_a_rank_is_noted(tmp_path: Path) -> None:
    folders.write_set(tmp_path)
    for world_size, text in {
        1: "for a reader of one file per rank the rows of rank 1 would not be trained",
        3: "for a reader of one file per rank rank 2 has no file: cut it anew with `make reshard "
        "NAME=small WORLD_SIZE=3`",
        4: "ranks 2, 3 have no file",
    }.items():
        report = examine(tmp_path, world_size=world_size)
        assert report.problems == []
        (note,) = report.notes
        assert text in note
    assert examine(tmp_path, world_size=2, micro_batch=4).notes == ()


def test_a_job_of_a_damaged_set_is_not_judged(tmp_path: Path) -> None:
    folders.write_set(tmp_path)
    remove(SECOND)(tmp_path)
    assert [p.check for p in verify(tmp_path, world_size=2, micro_batch=3)] == ["missing"]


def test_a_job_of_a_folder_without_a_manifest(tmp_path: Path) -> None:
    folders.write_set(tmp_path)
    remove("manifest.json")(tmp_path)
    assert "ranks 2, 3 have no file" in str(verify(tmp_path, world_size=4)[-1])
    assert "the rows of rank 1 would not be trained" in str(verify(tmp_path, world_size=1)[-1])
    assert [p.where for p in verify(tmp_path, micro_batch=5)[1:]] == [FIRST, SECOND]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="is not a folder"):
        verify(tmp_path / "none")
    with pytest.raises(ValueError, match="micro_batch=0 must be >= 1"):
        verify(tmp_path, micro_batch=0)


def test_a_folder_without_parquet_is_told(tmp_path: Path) -> None:
    assert [problem.check for problem in verify(tmp_path)] == ["manifest", "missing"]


@pytest.mark.skipif(not CASE_07.exists(), reason="the shared cases are not here")
def test_case_07_names_the_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["verify", str(CASE_07), "--world-size", "4", "--micro-batch", "2"])
    out = capsys.readouterr().out
    assert status == 1
    assert "not an evenshard set" in out
    assert "rank 2 (0 rows)" in out
    assert "rank 3 (4 rows)" in out


def test_command_prints_workers_and_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders.write_set(tmp_path)
    assert main(["verify", str(tmp_path), "--world-size", "2"]) == 0
    out = capsys.readouterr().out
    assert FIRST in out
    assert "all is well: 2 worker files and 3 rejects, 24 rows, 12 a worker" in out
    remove(SECOND)(tmp_path)
    assert main(["verify", str(tmp_path)]) == 1
    assert "is missing" in capsys.readouterr().out


def test_info_prints_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders.write_set(tmp_path)
    assert main(["info", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "3 steps of 2 workers x 2 micro-batches x 2 rows" in out
    remove("manifest.json")(tmp_path)
    assert main(["info", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    "arguments", [[], ["verify"], ["verify", "/nowhere"], ["verify", ".", "--micro-batch", "0"]]
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
