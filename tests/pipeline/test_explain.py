"""`explain` on a run in which every fate is known, and the report made again from its folder."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.explain import explain_row
from pipeline.report import open_folder, read_compare, report_run
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.fingerprint import artifact_key
from tests.report.hostile import FILE, Evil, finished_run


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Evil:
    return finished_run(tmp_path_factory.mktemp("evil"), model_folder)


def told(evil: Evil, row: object) -> str:
    return explain_row([f"out={evil.out}", "name=evil", f"row={row}"])


def test_a_kept_row_is_where_its_story_says(evil: Evil) -> None:
    shard = pq.read_table(evil.out / "worker-00001-of-00002.parquet")
    row = shard.slice(3, 1).to_pylist()[0]
    story = told(evil, row["row_id"])
    assert f"row {row['row_id']}: kept, on worker 1 with weight {row['weight']:.3f}" in story
    assert f"from      {FILE}:{row['row_id'] + 1}" in story
    assert "worker-00001-of-00002.parquet, row 3 (from 0)" in story
    assert f"{row['num_tokens']} tokens" in story and f"cluster {row['cluster']}," in story


def test_a_row_that_was_not_selected_lies_outside_what_was_kept(evil: Evil) -> None:
    kept = set(evil.artifacts["allocate"].array("row_id").tolist())
    dropped = next(r for r in evil.artifacts["embed"].array("row_id").tolist() if r not in kept)
    story = told(evil, dropped)
    assert story.startswith(f"row {dropped}: not selected\n")
    assert "ClusterBalanced (keep=farthest) kept 15 of " in story
    assert "nearest first" in story and "; this one is at " in story


def test_a_duplicate_leads_to_the_row_that_stands_for_it(evil: Evil) -> None:
    story = told(evil, evil.duplicate)
    assert f"row {evil.duplicate}: not in the set, row {evil.first} stands for it" in story
    assert f"The row that stands for it:\n\nrow {evil.first}: " in story
    assert f"stands for 2 rows: itself and {evil.duplicate}" in story


def test_rejects_tell_their_reason(evil: Evil) -> None:
    assert "rejected in tokens: no_supervised_tokens" in told(evil, evil.untrained)
    leak = told(evil, evil.leaked)
    assert "rejected in screen: benchmark_leak" in leak
    assert "one two three four five six" in leak


def test_a_line_that_could_not_be_read_is_found_by_file_and_line(evil: Evil) -> None:
    for name in (FILE, f"some/folder/{FILE}"):
        story = told(evil, f"{name}:{evil.unreadable_line}")
        assert story.startswith("a row that could not be read: rejected in rows: not_json")


def test_a_row_goes_by_its_uid_and_by_file_and_line_too(evil: Evil) -> None:
    rows = evil.artifacts["rows"].read(["row_id", "uid"]).slice(5, 1).to_pylist()[0]
    by_id = told(evil, rows["row_id"])
    assert told(evil, f"uid:{rows['uid']}") == told(evil, rows["uid"]) == by_id
    assert told(evil, f"{FILE}:6") == by_id


def test_text_of_the_set_moves_no_cursor(evil: Evil) -> None:
    for row in range(12):
        assert not set("\x1b\u202e\u2028") & set(told(evil, row))


@pytest.mark.parametrize("row", ["99999", "no such uid", f"{FILE}:999"])
def test_a_row_that_is_not_there_is_an_error_that_says_what_works(evil: Evil, row: str) -> None:
    with pytest.raises(DataError, match="row ids are 0 to 62"):
        told(evil, row)


def test_no_row_and_no_run_are_errors(evil: Evil, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="explain needs row="):
        explain_row([f"out={evil.out}"])
    with pytest.raises(ConfigurationError, match="holds no finished run"):
        explain_row([f"out={tmp_path}", "row=1"])


def test_a_store_that_lost_an_artifact_is_an_error_with_a_remedy(
    evil: Evil, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="curate again"):
        open_folder(evil.out, tmp_path)


def keys_of(evil: Evil, changed: str = "") -> dict[str, str]:
    """Name the artifacts that `compare` reads, had one setting of the stage `changed` been other.

    The pass of a comparison reads more, so its keys of embed and cluster are others in any case.
    """
    keys: dict[str, str] = {}
    for name in ("rows", "screen", "tokens", "embed", "cluster"):
        own = evil.artifacts[name].manifest
        params = {**own["params"], "other": name in (changed, "embed")}
        if not params["other"]:
            del params["other"]
        inputs = {stage: keys[stage] for stage in own["inputs"]}
        keys[name] = artifact_key(name, own["version"], params, inputs)
    return keys


def report_beside(evil: Evil, comparison: dict[str, object]) -> str:
    """Make the report while a comparison lies in the folder."""
    row = {
        "method": "random",
        "budget": "0.5",
        "by": "rows",
        "gradient_error": 0.1,
        "ratio": 1.0,
        "beats_random": False,
    }
    compare = evil.out / "compare.json"
    compare.write_text(json.dumps({**comparison, "table": [row]}))
    try:
        return report_run([f"out={evil.out}", "name=evil"]).read_text(encoding="utf-8")
    finally:
        compare.unlink()


def test_the_report_is_made_again_with_the_comparison_of_the_folder(
    evil: Evil, caplog: pytest.LogCaptureFixture
) -> None:
    before = report_run([f"out={evil.out}", "name=evil"]).read_text(encoding="utf-8")
    assert "chart-compare" not in before and "were not compared" in before
    keys = keys_of(evil)
    assert keys["tokens"] == evil.manifest["keys"]["tokens"]
    assert keys["embed"] != evil.manifest["keys"]["embed"]
    after = report_beside(evil, {"keys": keys})
    assert "chart-compare" in after and "not shown" not in after
    assert "left out" not in caplog.text


@pytest.mark.parametrize("changed", ["rows", "screen", "tokens"])
def test_a_comparison_of_another_set_is_left_out_and_the_page_says_why(
    evil: Evil, changed: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = keys_of(evil, changed)
    page = report_beside(evil, {"keys": keys})
    assert "chart-compare" not in page and "Methods by budget" not in page
    why = f"the comparison in this folder is of other rows or other tokens ({keys['tokens']})"
    assert f"Other methods are not shown: {why}" in page and "were not compared" not in page
    assert why in caplog.text and "compare.json is left out" in caplog.text


@pytest.mark.parametrize("comparison", [{}, {"keys": None}, {"keys": {}}, {"keys": ["tokens"]}])
def test_a_comparison_that_does_not_name_its_rows_is_left_out(
    evil: Evil, comparison: dict[str, object]
) -> None:
    page = report_beside(evil, comparison)
    assert "chart-compare" not in page and "from before it named its rows" in page


@pytest.mark.parametrize("text", ["{", "[]", '{"table": 3}'])
def test_a_broken_comparison_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(DataError, match="run `compare` again"):
        read_compare(tmp_path)
