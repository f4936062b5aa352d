"""The table of all rows, over the hostile run and over a larger one with all that can be asked."""

from pathlib import Path

import numpy as np
import pytest

from stages.contract.artifact import Artifact
from stages.report.fates import FATES
from stages.report.table import Index, Query, page_of, ranks, read_index
from tests.artifacts import rows_table, save
from tests.report.hostile import Evil


@pytest.fixture(scope="module")
def index(evil: Evil) -> Index:
    return read_index(evil.artifacts)


@pytest.fixture(scope="module")
def rows(evil: Evil) -> Artifact:
    return evil.artifacts["rows"]


def test_every_row_has_a_fate_and_says_why(index: Index, rows: Artifact, evil: Evil) -> None:
    lines = page_of(index, rows, Query(), size=100).lines
    assert [line.row_id for line in lines] == list(range(rows.num_rows))
    by_fate = {fate: [line for line in lines if line.fate == fate] for fate in FATES}
    assert len(by_fate["kept"]) == 30 and "worker " in by_fate["kept"][0].why
    assert len(by_fate["not selected"]) == 30
    assert by_fate["not selected"][0].why == "ClusterBalanced (keep=farthest) kept 15 of 45"
    assert [line.row_id for line in by_fate["duplicate"]] == [evil.duplicate]
    assert by_fate["duplicate"][0].why == f"row {evil.first} stands for it"
    assert {line.row_id: line.why for line in by_fate["rejected"]} == {
        evil.untrained: "tokens: no_supervised_tokens",
        evil.leaked: "screen: benchmark_leak",
    }


def test_ranks_are_those_that_a_story_tells(index: Index, evil: Evil) -> None:
    for cluster in range(index.sizes.size):
        members = np.flatnonzero(index.cluster == cluster)
        assert sorted(index.rank[members]) == list(range(1, index.sizes[cluster] + 1))
        order = members[np.argsort(index.rank[members])]
        assert np.all(np.diff(index.distance[order]) >= 0)
    found = ranks(np.array([1, 0, 1, 1], np.int32), np.array([2, 9, 1, 1], np.float32))
    assert found.tolist() == [3, 1, 1, 2]


def test_choices_are_kept_to(index: Index, rows: Artifact) -> None:
    kept = page_of(index, rows, Query(fate="kept", cluster=1), size=100)
    assert kept.num_fitting == len(kept.lines) == index.kept[1]
    assert {line.cluster for line in kept.lines} == {1}
    source = index.sources[3]
    of_source = page_of(index, rows, Query(source=source), size=100)
    assert of_source.num_fitting == 5
    for nothing in (Query(fate="<b>"), Query(source="none such"), Query(cluster=99)):
        assert page_of(index, rows, nothing).lines == []


@pytest.mark.parametrize("text", ["", "question", "QUESTION 1", "<script>"])
@pytest.mark.parametrize("size", [1, 7, 50])
def test_pages_together_are_the_whole(index: Index, rows: Artifact, text: str, size: int) -> None:
    whole = [line.row_id for line in page_of(index, rows, Query(text=text), size=1000).lines]
    ids: list[int] = []
    after: int | None = -1
    for _ in range(200):
        if after is None:
            break
        page = page_of(index, rows, Query(text=text, after=after), size=size)
        ids += [line.row_id for line in page.lines]
        after = page.after
    assert after is None
    assert ids == whole and len(whole) > 5


def test_text_is_found_in_turns_uids_and_files_in_any_case(index: Index, rows: Artifact) -> None:
    assert page_of(index, rows, Query(text="ANSWER 203")).lines[0].row_id == 29
    assert page_of(index, rows, Query(text="29[click]")).lines == []
    uid = rows.read(["uid"])["uid"][17].as_py()
    assert 17 in [line.row_id for line in page_of(index, rows, Query(text=uid)).lines]
    assert page_of(index, rows, Query(text="evil<img")).lines
    assert page_of(index, rows, Query(text=".*")).lines == []


def test_a_search_reads_no_more_than_it_must(tmp_path: Path, index: Index) -> None:
    rows = save(tmp_path, "rows", rows_table(5000), rows_per_part=5000)
    wide = Index(
        **{
            **vars(index),
            "fate": np.full(5000, FATES.index("rejected"), np.int8),
            "cluster": np.full(5000, -1, np.int32),
        }
    )
    first = page_of(wide, rows, Query(text="question"), size=10)
    assert first.searched == 1000 and first.after == 9  # one row group of five
    late = page_of(wide, rows, Query(text="question 4999"), size=10, most_searched=2000)
    assert late.lines == [] and late.after == 1999
    later = page_of(wide, rows, Query(text="question 4999", after=1999), size=10)
    assert [line.row_id for line in later.lines] == [4999] and later.after is None
