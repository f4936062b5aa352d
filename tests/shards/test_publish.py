"""The folder that a user takes away: complete, readable by others, and swapped in whole."""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import evenshard
from evenshard.shards import read_manifest
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.fingerprint import file_sha256
from stages.contract.schemas import REJECTS
from stages.shards.publish import check_out, is_published
from stages.tokens.tally import CHANGES
from tests.artifacts import bytes_of
from tests.shards.sets import FOUND, make

FILES = {"README.md", "manifest.json", "rejects.parquet"}


def shard_files(num_workers: int) -> list[str]:
    return [f"worker-{r:05d}-of-{num_workers:05d}.parquet" for r in range(num_workers)]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"num_workers": 3, "micro_batch": 2, "accumulation": 2},
        {"num_workers": 3, "budget": None, "ratio": 1.0, "objective": "rank"},
        {"num_workers": 1, "budget": "100%", "objective": "token"},
        {"num_workers": 2, "budget": "1000tokens"},
        {"num_workers": 2, "budget": "2rows"},
        {"num_workers": 1, "budget": "40rows", "schedule": "dealt"},
    ],
)
def test_a_published_set_holds_every_file_and_passes_its_own_check(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    made = make(tmp_path / "store", **keys)
    manifest = made.publish(tmp_path / "out")
    workers = made.allocate.num_workers
    assert set(bytes_of(tmp_path / "out")) == {*FILES, *shard_files(workers)}
    assert [str(problem) for problem in evenshard.verify(tmp_path / "out")] == []
    assert read_manifest(tmp_path / "out") == json.loads(json.dumps(manifest))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_manifest_tells_what_was_made(tmp_path: Path) -> None:
    made = make(tmp_path / "store", micro_batch=2, accumulation=3)
    manifest = made.publish(tmp_path / "out")
    facts = made.artifacts["allocate"].facts
    assert (manifest["world_size"], manifest["micro_batch"], manifest["accumulation"]) == (2, 2, 3)
    assert manifest["rows"] == facts["rows"] == 96  # half of 196, cut to steps of 12
    assert manifest["rows_per_worker"] == 48
    assert manifest["steps_per_epoch"] == 8
    assert (manifest["asked"], manifest["got"]) == ("allocate.budget=50%", facts["got"])
    assert manifest["keys"] == {name: a.key for name, a in made.artifacts.items()}
    assert manifest["overrides"] == ["allocate.budget=50%"]
    assert manifest["weights"]["objective"] == "sample"
    for worker in manifest["workers"]:
        path = tmp_path / "out" / worker["file"]
        assert worker["sha256"] == file_sha256(path)
        assert worker["num_bytes"] == path.stat().st_size


@pytest.mark.parametrize("objective", ["sample", "token", "rank"])
def test_the_convention_of_the_weights_is_that_of_the_objective(
    tmp_path: Path, objective: str
) -> None:
    # As many workers as clusters and equal quotas, which the objective rank needs.
    made = make(tmp_path / "store", objective=objective, num_workers=3, budget="48rows")
    manifest = made.publish(tmp_path / "out")
    words = {
        "sample": "divided by the number of rows",
        "token": "number of trained tokens",
        "rank": "averaged over workers",
    }
    assert words[objective] in manifest["weights"]["convention"]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"The weights are {manifest['weights']['convention']}" in card


def test_rejects_of_all_stages_are_in_one_file(tmp_path: Path) -> None:
    manifest = make(tmp_path / "store").publish(tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "rejects.parquet")
    assert table.schema == REJECTS
    assert sorted(table["stage"].to_pylist()) == ["embed", "embed", "rows"]
    assert table["raw"].to_pylist()[0] == b"{\xff\n"
    rejects = manifest["rejects"]
    assert rejects["rows"] == 3
    assert rejects["by_reason"] == {"not_finite": 1, "not_json": 1, "too_large_for_device": 1}
    assert rejects["sha256"] == file_sha256(tmp_path / "out" / "rejects.parquet")


def test_a_set_without_rejects_has_an_empty_file_of_them(tmp_path: Path) -> None:
    manifest = make(tmp_path / "store", rejects=False).publish(tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "rejects.parquet")
    assert (table.num_rows, table.schema) == (0, REJECTS)
    assert manifest["rejects"]["rows"] == 0
    assert manifest["rejects"]["by_reason"] == {}


def leaking(mode: str) -> dict[str, Any]:
    counts = {"items": 9, "too_short": 0, "unreadable": 1, "unreadable_bytes": 5, "leaked_rows": 4}
    leaks = {"mode": mode, "ngram": 13, "rows": 4, "benchmarks": {"b": counts}}
    return {**FOUND, "leaks": leaks}


def card_of(out: Path) -> dict[str, str]:
    """Read the table of figures of a card."""
    lines = (out / "README.md").read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ", 1) for line in lines if line.startswith("| ")]
    return {cell[0]: cell[1] for cell in cells if len(cell) == 2}


@pytest.mark.parametrize("mode", ["keep", "list"])
def test_kept_leaks_are_shares_of_pool_selection_and_chance(tmp_path: Path, mode: str) -> None:
    """Counted by hand over the published rows; row 64 leaks but never reached the model."""
    leaked = [1, 2, 3, 64]
    made = make(tmp_path / "store", found=leaking(mode), leaked=leaked)
    manifest = made.publish(tmp_path / "out")
    tables = [pq.read_table(tmp_path / "out" / name) for name in shard_files(2)]
    chosen = {row for table in tables for row in table["row_id"].to_pylist()}
    shares = manifest["screen"]["leaks"]["shares"]
    assert shares["pool"] == 3 / 196
    assert shares["selection"] == len(chosen & {1, 2, 3}) / len(chosen)
    assert shares["random_low"] <= shares["random_mean"] <= shares["random_high"]
    assert abs(shares["random_mean"] - 3 / 196) < 0.002
    line = card_of(tmp_path / "out")["leaks"]
    assert line.startswith("4 rows share 13 words in a row with a benchmark, kept")
    assert f"1.53% of the pool, {shares['selection']:.2%} of the selection" in line
    assert line.endswith("; 1 unreadable lines in b not looked for")
    assert [str(problem) for problem in evenshard.verify(tmp_path / "out")] == []


def test_dropped_leaks_are_a_number(tmp_path: Path) -> None:
    made = make(tmp_path / "store", found=leaking("drop"), leaked=[0, 5, 64, 130])
    manifest = made.publish(tmp_path / "out")
    assert manifest["screen"]["leaks"] == leaking("drop")["leaks"]
    line = card_of(tmp_path / "out")["leaks"]
    assert line.startswith("4 rows share 13 words in a row with a benchmark, dropped; 1 unread")


def test_leaks_are_not_spoken_of_where_none_were_looked_for(tmp_path: Path) -> None:
    manifest = make(tmp_path / "store").publish(tmp_path / "out")
    card = card_of(tmp_path / "out")
    assert set(manifest["screen"]) == {"duplicates", "near_duplicates"}
    assert "leaks" not in card and "changes" not in card and "changes" not in manifest
    assert card["duplicates"] == "7 rows equal to an earlier one, collapsed into it"


CHANGED = [(3, "merge_system"), (7, "special_in_text"), (7, "merge_system")]


def test_changes_of_rows_are_in_one_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = make(tmp_path / "store", changed=CHANGED).publish(out)
    table = pq.read_table(out / "changes.parquet")
    assert table.schema == CHANGES
    told = zip(table["row_id"].to_pylist(), table["change"].to_pylist(), strict=True)
    assert list(told) == CHANGED
    assert manifest["changes"] == {
        "file": "changes.parquet",
        "lines": 3,
        "by_change": {"merge_system": 2, "special_in_text": 1},
        "sha256": file_sha256(out / "changes.parquet"),
    }
    said = "3 changes of rows (2 merge_system, 1 special_in_text), listed in changes.parquet"
    assert card_of(out)["changes"] == said
    assert [str(problem) for problem in evenshard.verify(out)] == []


def test_changes_of_an_earlier_set_do_not_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = make(tmp_path / "store", changed=CHANGED)
    made.publish(out)
    (out / "changes.parquet").unlink()
    made.publish(out)  # a set that lost the file is made whole
    assert (out / "changes.parquet").exists()
    make(tmp_path / "again").publish(out)
    assert set(bytes_of(out)) == {*FILES, *shard_files(2)}
    (out / "changes.parquet").write_bytes(b"mine")  # no set names it: it is the user's
    make(tmp_path / "more", num_workers=3).publish(out)
    assert (out / "changes.parquet").read_bytes() == b"mine"


def test_the_card_names_the_files_of_each_worker(tmp_path: Path) -> None:
    manifest = make(tmp_path / "store").publish(tmp_path / "out", name="my set")
    hashes = [worker["sha256"] for worker in manifest["workers"]]
    every = hashlib.sha256("".join(hashes).encode()).hexdigest()
    lines = (tmp_path / "out" / "README.md").read_text(encoding="utf-8").splitlines()
    zero, one = shard_files(2)
    assert lines[: lines.index("---", 1) + 1] == [
        "---",
        "configs:",
        "- config_name: default",
        f"  description: sha256 {every}",
        "  data_files:",
        "  - split: train",
        "    path:",
        f"    - {zero}",
        f"    - {one}",
        "- config_name: worker-00000",
        f"  description: sha256 {hashes[0]}",
        "  data_files:",
        "  - split: train",
        f"    path: {zero}",
        "- config_name: worker-00001",
        f"  description: sha256 {hashes[1]}",
        "  data_files:",
        "  - split: train",
        f"    path: {one}",
        "---",
    ]
    assert "# my set" in lines
    assert any("3 rows, each with its reason, in `rejects.parquet`" in line for line in lines)


def test_datasets_reads_the_folder_and_each_workers_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    make(tmp_path / "store").publish(tmp_path / "out")
    out, cache = str(tmp_path / "out"), str(tmp_path / "cache")
    tables = [pq.read_table(tmp_path / "out" / name) for name in shard_files(2)]
    whole = datasets.load_dataset(out, cache_dir=cache)["train"]
    both = [row for table in tables for row in table["row_id"].to_pylist()]
    assert whole["row_id"][:] == both
    one = datasets.load_dataset(out, "worker-00001", cache_dir=cache, split="train")
    assert one["row_id"][:] == tables[1]["row_id"].to_pylist()
    assert one["messages"][:] == tables[1]["messages"].to_pylist()
    assert one["weight"][:] == tables[1]["weight"].to_pylist()
    assert datasets.get_dataset_config_names(out) == ["default", "worker-00000", "worker-00001"]


@pytest.mark.parametrize("config", ["default", "worker-00001"])
def test_datasets_reads_a_set_that_was_made_anew_and_not_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    cache = str(tmp_path / "cache")
    found = []
    # The same folder, and another one of the same last name.
    for number, out in enumerate([tmp_path / "out", tmp_path / "out", tmp_path / "elsewhere/out"]):
        made = make(tmp_path / f"store{number}", num_rows=(200, 220, 180)[number])
        made.publish(out)
        files = shard_files(2)[config == "worker-00001" :]
        wanted = [r for f in files for r in pq.read_table(out / f)["row_id"].to_pylist()]
        read = datasets.load_dataset(str(out), config, cache_dir=cache, split="train")
        assert read["row_id"][:] == wanted
        found.append(wanted)
    assert found[0] != found[1] != found[2]


def test_a_new_set_replaces_an_earlier_one_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(tmp_path / "store", num_workers=3).publish(out)
    (out / "report.html").write_text("of the earlier set")
    make(tmp_path / "again", num_workers=2).publish(out)
    assert set(bytes_of(out)) == {*FILES, *shard_files(2)}
    assert evenshard.verify(out) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "out", "store"]


def test_files_of_the_user_outlive_a_new_set(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(tmp_path / "store", num_workers=3).publish(out)
    (out / "notes.txt").write_text("mine")
    (out / "checkpoint").mkdir()
    (out / "checkpoint" / "model").write_text("mine too")
    make(tmp_path / "again", num_workers=2).publish(out)
    assert (out / "notes.txt").read_text() == "mine"
    assert (out / "checkpoint" / "model").read_text() == "mine too"
    assert not list(out.glob("worker-*-of-00003.parquet"))
    assert evenshard.verify(out) == []


def test_the_same_set_again_leaves_the_folder_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = make(tmp_path / "store")
    made.publish(out)
    before = {path.name: path.stat().st_ino for path in [out, *out.iterdir()]}
    made.publish(out)
    assert {path.name: path.stat().st_ino for path in [out, *out.iterdir()]} == before
    next(out.glob("worker-*")).unlink()  # but a set that lost a file is made whole
    made.publish(out)
    assert evenshard.verify(out) == []


def test_a_linked_folder_stays_a_link(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    out = tmp_path / "out"
    out.symlink_to(disk)
    make(tmp_path / "store", num_workers=3).publish(out)
    make(tmp_path / "again", num_workers=2).publish(out)
    assert out.is_symlink() and evenshard.verify(out) == []


def test_a_set_caught_between_the_two_renames_is_put_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = make(tmp_path / "store")
    made.publish(out)
    (out / "notes.txt").write_text("mine")
    out.rename(tmp_path / ".out.0123.old")
    made.publish(out)
    assert (out / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


def test_of_two_folders_that_killed_runs_left_the_newer_is_put_back(tmp_path: Path) -> None:
    """One was killed after both renames, a later one between them; names sort otherwise."""
    out, newer = tmp_path / "out", tmp_path / ".out.ffff.old"
    make(tmp_path / "store", num_workers=3).publish(out)
    (out / "notes.txt").write_text("mine")
    out.rename(tmp_path / ".out.0000.old")
    made = make(tmp_path / "again", num_workers=2)
    made.publish(tmp_path / "elsewhere", name="same")
    (tmp_path / "elsewhere").rename(newer)
    before = (newer / "manifest.json").stat().st_mtime_ns
    made.publish(out, name="same")
    assert (out / "manifest.json").stat().st_mtime_ns == before  # it is that folder, unchanged
    assert set(bytes_of(out)) == {*FILES, *shard_files(2), "notes.txt"}
    assert evenshard.verify(out) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "out", "store"]


def test_the_same_run_publishes_the_same_bytes(tmp_path: Path) -> None:
    made = make(tmp_path / "store")
    for name in ("one", "deeper/two"):
        made.publish(tmp_path / name, name="same")
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "deeper" / "two")


def test_a_failed_publish_leaves_the_earlier_set_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    made = make(tmp_path / "store")
    made.publish(out)
    before = bytes_of(out)

    def fail(manifest: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("stages.shards.publish.build_card", fail)
    with pytest.raises(KeyboardInterrupt):
        made.publish(out, name="other")
    assert bytes_of(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


def test_a_disk_that_is_full_is_told_and_the_earlier_set_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    make(tmp_path / "store", num_workers=3).publish(out)
    before = bytes_of(out)

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made = make(tmp_path / "again")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(DataError, match=r"out cannot be written, since there is no room"):
            made.publish(out)
    with monkeypatch.context() as patched:
        patched.setattr("stages.shards.publish.build_card", lambda manifest: full("", ""))
        with pytest.raises(DataError, match=r"out cannot be written, since there is no room"):
            made.publish(out)
    assert bytes_of(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "out", "store"]


def test_every_file_is_on_the_disk_before_the_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path / "store")
    flushed: list[str] = []
    flush, rename = os.fsync, os.rename

    def noted(descriptor: int) -> None:
        flushed.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        flush(descriptor)

    def named(source: Path, target: Path) -> None:
        rename(source, target)
        flushed.append(f"now {target}")

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "rename", named)
    made.publish(tmp_path / "out")
    before = flushed[: flushed.index(f"now {tmp_path / 'out'}")]
    names = " ".join(Path(place).name for place in before)
    assert all(name in names for name in (*FILES, *shard_files(2)))
    draft = Path(before[0]).parent
    assert before[-1] == str(draft) and draft.parent == tmp_path  # their names, last


def test_a_shard_of_the_right_size_and_other_bytes_is_made_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = make(tmp_path / "store", changed=[(3, "cut")])
    made.publish(out)
    for name in (shard_files(2)[1], "rejects.parquet", "changes.parquet"):
        whole = (out / name).read_bytes()
        (out / name).write_bytes(bytes(len(whole)))
        made.publish(out)
        assert (out / name).read_bytes() == whole
    assert evenshard.verify(out) == []


def test_a_published_file_can_be_edited_without_touching_the_store(tmp_path: Path) -> None:
    made = make(tmp_path / "store")
    made.publish(tmp_path / "out")
    name = shard_files(2)[0]
    inside = (made.artifacts["shards"].path / name).read_bytes()
    (tmp_path / "out" / name).write_bytes(b"edited")
    assert (made.artifacts["shards"].path / name).read_bytes() == inside
    assert [problem.where for problem in evenshard.verify(tmp_path / "out")] != []


def test_a_folder_of_others_is_refused_before_any_work(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigurationError) as caught:
        check_out(out)
    assert str(caught.value).startswith(f"out={out} holds files that evenshard did not write")
    assert "give another `name` or `out`" in str(caught.value)


@pytest.mark.parametrize(
    "manifest",
    ["not json", "[]", "{}", '{"format": "other"}', "null", b"\xff\xfe".decode("latin1")],
)
def test_a_manifest_of_others_does_not_make_a_folder_ours(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest, encoding="latin1")
    assert not is_published(tmp_path)
    with pytest.raises(ConfigurationError):
        check_out(tmp_path)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(ConfigurationError, match="is a file; give a folder"):
        check_out(tmp_path / "out")


def test_a_folder_that_cannot_be_made_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError) as caught:
        check_out(tmp_path / "file" / "deep" / "out")
    assert str(caught.value) == (
        f"out={tmp_path}/file/deep/out cannot be written: no folder can be made in "
        f"{tmp_path}/file (Not a directory); give another `out`, in a folder that is writable"
    )
    check_out(tmp_path / "new" / "deep" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_kernel_file_system_is_refused_to_root_too() -> None:
    with pytest.raises(ConfigurationError, match=r"no folder can be made in /proc "):
        check_out(Path("/proc/nope/out"))


def test_nothing_an_empty_folder_and_an_earlier_set_are_accepted(tmp_path: Path) -> None:
    check_out(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    check_out(tmp_path / "empty")
    make(tmp_path / "store").publish(tmp_path / "empty")
    assert is_published(tmp_path / "empty")
    check_out(tmp_path / "empty")
