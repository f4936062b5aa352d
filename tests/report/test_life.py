import dataclasses

import numpy as np
import pytest

from stages.report.life import (
    Grouped,
    Life,
    Placed,
    Reject,
    Screened,
    goes_by_distance,
    rank_in_cluster,
    rule_text,
    tell,
)

GOES_ON = Screened(1, [], -1, None, False, [])
GROUP = Grouped(2, 3, 9, 0.5, 4, 0.25, 0.75)
ROW = Life(row_id=7, place="a.jsonl:8", screen=GOES_ON, group=GROUP, rule="Uniform")


def test_the_rank_counts_from_the_nearest_and_ties_go_to_the_earlier_row() -> None:
    row_ids = np.array([3, 5, 8, 9])
    clusters = np.array([1, 1, 0, 1], np.int32)
    distances = np.array([0.5, 0.5, 0.1, 0.25], np.float32)
    group = rank_in_cluster(row_ids, clusters, distances, np.array([3, 8, 9]), 5)
    assert group == Grouped(1, 3, 3, 0.5, 2, 0.25, 0.5)


def test_a_row_that_was_not_selected_tells_its_rank_and_the_rule() -> None:
    story = tell(ROW)
    assert story.startswith("row 7: not selected\n")
    assert "number 3 of 9 rows, nearest first" in story
    assert "Uniform kept 4 of 9 rows of cluster 2, at distances from 0.2500 to 0.7500" in story
    assert story.endswith(", which decides nothing under this rule")
    assert "decides nothing" not in tell(dataclasses.replace(ROW, by_distance=True))


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"class": "ClusterBalanced", "keep": "farthest"}, True),
        ({"class": "ClusterBalanced", "keep": "random"}, False),
        ({"class": "Matched"}, False),
    ],
)
def test_a_rule_that_ranks_by_distance_is_told_from_others(
    selector: dict[str, str], expected: bool
) -> None:
    assert goes_by_distance(selector) is expected


def test_a_cluster_that_keeps_nothing_names_no_distances() -> None:
    empty = dataclasses.replace(GROUP, num_kept=0)
    story = tell(dataclasses.replace(ROW, group=empty))
    assert "kept 0 of 9 rows of cluster 2; this one" in story


def test_a_kept_row_tells_its_worker_position_step_and_weight() -> None:
    placed = Placed(1, 5, 2, 1.25, "worker-00001-of-00002.parquet")
    story = tell(dataclasses.replace(ROW, placed=placed))
    assert story.startswith("row 7: kept, on worker 1 with weight 1.250\n")
    assert "worker 1, position 5, step 2" in story
    assert "worker-00001-of-00002.parquet, row 5" in story


def test_duplicates_name_the_row_that_stands_for_them() -> None:
    exact = Life(row_id=9, place="a:1", screen=Screened(0, [], 4, None, False, []))
    assert "row 9: not in the set, row 4 stands for it" in tell(exact)
    assert "equal to row 4, which stands for it" in tell(exact)
    near = dataclasses.replace(exact, screen=Screened(0, [], 4, (5, 0.9), True, []))
    assert "near to row 5 (similarity 0.90), so joined with row 4" in tell(near)
    either = dataclasses.replace(exact, screen=Screened(0, [], 4, None, True, []))
    assert "equal to, or near to one that is near to, row 4" in tell(either)
    kept = dataclasses.replace(ROW, screen=Screened(1, [], 4, None, False, []))
    assert "equal to row 4, and kept all the same" in tell(kept)
    many = dataclasses.replace(ROW, screen=Screened(9, [8, 9], -1, None, False, []))
    assert "stands for 9 rows: itself and 8, 9 and 6 more" in tell(many)


def test_rejects_name_stage_reason_and_detail() -> None:
    refused = Life(
        row_id=2, place="a:3", screen=GOES_ON, reject=Reject("tokens", "too_long", "99 tokens")
    )
    assert tell(refused).startswith("row 2: rejected in tokens: too_long\n")
    assert "tokens    rejected: too_long (99 tokens)" in tell(refused)
    unread = Life(row_id=None, place="a:3", prompt="{", reject=Reject("rows", "not_json", ""))
    assert tell(unread).startswith("a row that could not be read: rejected in rows: not_json\n")


def test_the_rule_names_the_selector_and_its_options() -> None:
    assert rule_text({"class": "Uniform"}) == "Uniform"
    assert rule_text({"class": "C", "keep": "mixed", "a": 1}) == "C (keep=mixed, a=1)"
