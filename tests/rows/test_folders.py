"""What a folder and a glob mean: linked folders, several names of one file, and our own results."""

import glob
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.contract.errors import ConfigurationError
from stages.rows.folders import matching
from stages.rows.reading import Row, read_rows
from stages.rows.source import find
from stages.rows.stage import RowsConfig
from tests.evenshard.folders import write_set
from tests.rows.test_source import fill, names

LOG = logging.INFO
TALK = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]


def link(name: Path, target: str | Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.symlink_to(target)


def test_linked_files_and_folders_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "set"
    fill(tmp_path, "set/a/own.jsonl", "far/x.jsonl", "far/deep/y.jsonl", "farther/z.jsonl")
    link(root / "file.jsonl", tmp_path / "far" / "x.jsonl")
    link(root / "b", tmp_path / "far")
    link(tmp_path / "far" / "c", tmp_path / "farther")
    expected = ["a/own.jsonl", "b/c/z.jsonl", "b/deep/y.jsonl", "b/x.jsonl", "file.jsonl"]
    assert names(root) == expected
    assert len(list(read_rows(str(root)))) == 5
    assert names(root / "**" / "*.jsonl") == expected
    (tmp_path / "door").symlink_to(root)
    assert names(tmp_path / "door") == expected
    assert not caplog.records


def test_a_loop_of_links_is_passed_over_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(LOG)
    root = tmp_path / "set"
    fill(tmp_path, "beside.jsonl", "set/a/x.jsonl", "far/y.jsonl", "other/z.jsonl")
    link(root / "a" / "round", "..")
    link(root / "a" / "out", tmp_path)
    link(root / "far", tmp_path / "far")
    link(tmp_path / "far" / "other", tmp_path / "other")
    link(tmp_path / "other" / "back", tmp_path / "far")
    for path in (root, root / "**" / "*.jsonl"):
        caplog.clear()
        assert names(path) == ["a/x.jsonl", "far/other/z.jsonl", "far/y.jsonl"]
        said = caplog.text
        assert "passed over" in said and "a/round" in said and "a/out" in said and "back" in said


def test_a_folder_with_two_names_is_read_once_by_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(LOG)
    fill(tmp_path, "set/real/x.jsonl", "set/real/deep/y.jsonl")
    link(tmp_path / "set" / "a_link", "real")
    link(tmp_path / "set" / "deep", "real/deep")
    for path in (tmp_path / "set", tmp_path / "set" / "**" / "*.jsonl"):
        caplog.clear()
        assert names(path) == ["real/deep/y.jsonl", "real/x.jsonl"]
        assert "a_link" in caplog.text


def test_links_that_lead_nowhere_and_hidden_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(LOG)
    fill(tmp_path, "set/x.jsonl", "far/y.jsonl")
    root = tmp_path / "set"
    link(root / ".venv", tmp_path / "far")
    link(root / "gone", tmp_path / "none")
    assert names(root) == ["x.jsonl"]
    assert "not read, no rows by their names: .venv, gone" in caplog.text
    link(tmp_path / "far" / "z.jsonl", tmp_path / "none.jsonl")
    link(root / "far", tmp_path / "far")
    for path in (root, root / "**" / "*.jsonl"):
        with pytest.raises(ConfigurationError, match=r"far/z\.jsonl is a link that leads nowhere"):
            find(str(path))


PATTERNS = ["**/**/*.jsonl", "**/*.jsonl", "**/**/**/*", "**", "a/**/*.jsonl", "**/b/**/c/*"]
PATTERNS += ["*/**", "*", "[ab]/*/**/*.jsonl", "**/a/**/b/**/c/z.jsonl", "none/**", "x.jsonl/**/*"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_glob_names_what_the_standard_library_does_and_nothing_twice(
    tmp_path: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, "g/x.jsonl", "g/a/y.jsonl", "g/a/b/c/z.jsonl", "g/a/b/c/w.jsonl", "g/.h/v.jsonl")
    fill(tmp_path, "g/b/a/y.jsonl", "g/b/a/b/c/.u.jsonl", "g/b/a/b/c/z.jsonl")
    asked = str(tmp_path / "g" / pattern)
    expected = {Path(name) for name in glob.glob(asked, recursive=True) if Path(name).is_file()}
    files, _ = matching(asked)
    assert len(files) == len(set(files)) and set(files) == expected
    assert not caplog.records
    if expected:
        found = [file.path for file in find(asked)]
        assert len(found) == len(expected) and set(found) == expected


def test_folders_that_a_glob_means_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(LOG)
    fill(tmp_path, "g/x.jsonl", "g/sub/y.jsonl")
    assert names(tmp_path / "g" / "*") == ["x.jsonl"]
    assert "not read, no rows by their names: sub" in caplog.text
    caplog.clear()
    assert names(tmp_path / "g" / "**" / "*") == ["sub/y.jsonl", "x.jsonl"]
    assert not caplog.text


def publish(folder: Path) -> None:
    """Write a whole set, with the further files that a run leaves beside it."""
    folder.mkdir(parents=True)
    write_set(folder)
    for path in folder.glob("worker-*.parquet"):
        table = pq.read_table(path)
        place, told = table.schema.get_field_index("messages"), table.schema.field("messages")
        talks = pa.chunked_array([pa.array([TALK] * table.num_rows, told.type)])
        pq.write_table(table.set_column(place, told, talks), path)
    changes = pa.table({"row_id": [0], "file": ["a"], "line": [1], "change": ["x"], "count": [1]})
    pq.write_table(changes, folder / "changes.parquet")
    (folder / "compare.json").write_text("{}")


def test_what_evenshard_wrote_below_the_rows_is_no_input(
    tmp_path: Path, curate: Any, write_lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(LOG)
    line = {"instruction": "I", "output": "O"}
    write_lines("set/a.jsonl", [line])
    artifact, _ = curate(RowsConfig(path=str(tmp_path / "set" / "a.jsonl")), store="set/store")
    draft = tmp_path / "set" / "store" / "tokens" / f"{'0' * 16}.partial"
    draft.mkdir(parents=True)
    shutil.copy(artifact.path / "part-00000.parquet", draft)
    publish(tmp_path / "set" / "curated" / "my")
    write_lines("set/theirs/b.jsonl", [line])
    (tmp_path / "set" / "theirs" / "manifest.json").write_text('{"format": "another"}')
    link(tmp_path / "set" / "linked", tmp_path / "set" / "curated" / "my")
    for path in (tmp_path / "set", tmp_path / "set" / "**" / "*"):
        caplog.clear()
        assert names(path) == ["a.jsonl", "theirs/b.jsonl"]
        assert "since evenshard wrote them: curated/my" in caplog.text
        for name in ("store/rows/k", f"store/tokens/{draft.name}"):
            assert name in caplog.text


def test_a_run_that_publishes_below_its_rows_reads_the_same_again(
    tmp_path: Path, curate: Any, write_lines: Any
) -> None:
    write_lines("set/a.jsonl", [{"instruction": "I", "output": "O"}])
    before = names(tmp_path / "set")
    curate(RowsConfig(path=str(tmp_path / "set")), store="set/store")
    publish(tmp_path / "set" / "out")
    assert names(tmp_path / "set") == before


def test_a_curated_set_is_read_where_it_is_what_was_named(tmp_path: Path) -> None:
    folder = tmp_path / "curated" / "my"
    publish(folder)
    shards = sorted(path.name for path in folder.glob("worker-*.parquet"))
    assert names(folder) == names(folder / "*.parquet") == names(folder / "**" / "*") == shards
    assert names(tmp_path / "curated" / "*" / "*.parquet") == [f"my/{name}" for name in shards]
    assert all(isinstance(item, Row) for item in read_rows(str(folder)))
    for path in (tmp_path / "curated", tmp_path / "**" / "*.parquet"):
        with pytest.raises(ConfigurationError, match=r"holds no rows but in 1 .*rows\.path=.*my"):
            find(str(path))


@pytest.mark.parametrize("manifest", ["", "[]", "7", "[" * 5000, '{"format": 7}', "\udcff"])
def test_manifests_of_others_are_no_sign(tmp_path: Path, manifest: str) -> None:
    fill(tmp_path, "set/their/x.jsonl")
    path = tmp_path / "set" / "their" / "manifest.json"
    path.write_bytes(manifest.encode("utf-8", "surrogateescape"))
    assert names(tmp_path / "set") == ["their/x.jsonl"]


def test_a_store_is_read_where_one_of_its_results_is_named(
    curate: Any, write_lines: Any, tmp_path: Path
) -> None:
    path = write_lines("a.jsonl", [{"instruction": "I", "output": "O"}])
    artifact, _ = curate(RowsConfig(path=str(path)))
    assert names(artifact.path) == ["part-00000.parquet"]
    with pytest.raises(ConfigurationError, match=f"set rows.path={artifact.path} to read"):
        find(str(tmp_path / "store"))
    assert json.loads((artifact.path / "manifest.json").read_text())["stage"] == "rows"
