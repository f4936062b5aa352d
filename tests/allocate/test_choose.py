"""From what was asked to a selection: by ratio, rows, share and tokens; and what cannot work."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.budget import Asked, StepShape, parse_budget
from stages.allocate.candidates import Candidates
from stages.allocate.choose import Selection, checked, choose
from stages.allocate.feasible import check_feasible
from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.selectors.uniform import Uniform
from stages.contract.errors import DataError
from tests.allocate.samples import candidates
from tests.artifacts import FEW, SEEDED

STEP = StepShape(2, 1, 2)
SELECTORS = {"cluster_balanced": ClusterBalanced(), "uniform": Uniform()}


def ratio(value: float) -> Asked:
    return Asked("ratio", value, f"allocate.ratio={value}")


def chosen(
    selector: Any,
    asked: Asked | str,
    rows: Candidates,
    *,
    step: StepShape = STEP,
    on_empty_quota: str = "merge",
    seed: int = 0,
) -> Selection:
    budget = parse_budget(asked) if isinstance(asked, str) else asked
    return choose(selector, budget, step, rows, on_empty_quota=on_empty_quota, seed=seed)


def kept_by_cluster(rows: Candidates, selection: Selection) -> list[int]:
    return np.bincount(rows.cluster[selection.rows], minlength=rows.num_clusters).tolist()


@pytest.mark.parametrize(
    ("asked", "step", "expected"),
    [
        (ratio(1.0), StepShape(3, 1, 1), [10, 10, 10]),
        (ratio(0.55), StepShape(3, 1, 1), [5, 5, 5]),
        (ratio(1.0), StepShape(3, 2, 2), [8, 8, 8]),
        (ratio(1.0), StepShape(2, 1, 2), [9, 9, 10]),  # 30, cut to 28; the largest gives more
        ("9", StepShape(3, 1, 1), [3, 3, 3]),
        ("50%", StepShape(3, 1, 1), [10, 10, 10]),  # half of 60
        ("100%", StepShape(3, 1, 1), [10, 20, 30]),
        ("1.0", StepShape(7, 1, 1), [10, 20, 26]),  # 60, cut to 56
        ("58rows", StepShape(2, 1, 1), [10, 20, 28]),
    ],
)
def test_quotas_of_a_balanced_selection_by_hand(
    asked: Asked | str, step: StepShape, expected: list[int]
) -> None:
    rows = candidates([10, 20, 30])
    assert kept_by_cluster(rows, chosen(ClusterBalanced(), asked, rows, step=step)) == expected


def test_a_ratio_is_a_share_of_the_candidates_for_other_selectors() -> None:
    rows = candidates([10, 20, 30])
    assert chosen(Uniform(), ratio(0.5), rows).rows.size == 28  # 30, cut to steps of 4
    assert chosen(Uniform(), ratio(1.0), rows).rows.size == 60


@pytest.mark.parametrize("selector", SELECTORS)
@FEW
@given(st.floats(0.1, 1), st.integers(0, 1000))
def test_a_budget_of_tokens_is_met_and_one_more_step_would_not_fit(
    selector: str, share: float, seed: int
) -> None:
    rows = candidates([20, 30, 40], seed=seed)
    amount = int(share * rows.num_tokens.sum())
    selection = chosen(SELECTORS[selector], f"{amount}tokens", rows, seed=seed)
    tokens = rows.num_tokens[selection.rows].sum()
    assert selection.rows.size % STEP.rows == 0
    assert tokens <= amount
    if selection.rows.size + STEP.rows <= rows.num_rows:
        more = chosen(
            SELECTORS[selector], f"{selection.rows.size + STEP.rows}rows", rows, seed=seed
        )
        assert rows.num_tokens[more.rows].sum() > amount


@pytest.mark.parametrize("selector", SELECTORS)
def test_more_tokens_than_there_are_keep_all_whole_steps(selector: str) -> None:
    rows = candidates([20, 30, 41])
    assert chosen(SELECTORS[selector], "1000000tokens", rows).rows.size == 88


@pytest.mark.parametrize("selector", SELECTORS)
def test_too_few_tokens_are_answered_with_a_number_that_does_work(selector: str) -> None:
    rows = candidates([20, 30, 40])
    with pytest.raises(DataError) as caught:
        chosen(SELECTORS[selector], "3tokens", rows)
    assert "allocate.budget=3tokens must be >= " in str(caught.value)
    (named,) = re.findall(r"ask for (\d+tokens) or more", str(caught.value))
    assert chosen(SELECTORS[selector], named, rows).rows.size == STEP.rows


@pytest.mark.parametrize("selector", SELECTORS)
def test_fewer_rows_than_one_step_are_told_for_a_budget_of_tokens_too(selector: str) -> None:
    with pytest.raises(DataError, match="3 rows"):
        chosen(SELECTORS[selector], "1000tokens", candidates([2, 1]))


def test_too_small_a_smallest_cluster_is_told_with_the_sizes() -> None:
    rows = candidates([3, 20])
    with pytest.raises(DataError) as caught:
        chosen(ClusterBalanced(), ratio(0.5), rows)
    message = str(caught.value)
    assert "allocate.ratio=0.5 of the smallest cluster (sizes [3, 20])" in message
    assert "no whole step of 4 rows" in message
    assert chosen(ClusterBalanced(), "50%", rows).rows.size == 8, "the remedy works"


def test_an_empty_quota_is_merged_or_an_error_as_asked(caplog: pytest.LogCaptureFixture) -> None:
    rows = candidates([5, 10, 20], duplicates=False)
    selection = chosen(ClusterBalanced(), "2", rows, step=StepShape(2, 1, 1))
    assert kept_by_cluster(rows, selection) == [0, 1, 1]
    assert "clusters [0] keep no row; their mass of 5 rows goes to the nearest" in caplog.text
    near = np.linalg.norm(rows.centers[1:] - rows.centers[0], axis=1)
    mass = [10, 20]
    mass[int(np.argmin(near))] += 5
    expected = [mass[k - 1] / 35 * 2 for k in rows.cluster[selection.rows]]
    assert np.allclose(selection.weights, expected)
    with pytest.raises(DataError) as caught:
        chosen(ClusterBalanced(), "2", rows, step=StepShape(2, 1, 1), on_empty_quota="error")
    assert "clusters [0] would keep no row of [5.0]" in str(caught.value)
    assert "at least 3 rows" in str(caught.value)
    assert "allocate.on_empty_quota=merge" in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        Selection(np.array([1, 2]), np.array([1.0])),
        Selection(np.array([2, 1]), np.array([1.0, 1.0])),
        Selection(np.array([1, 1]), np.array([1.0, 1.0])),
        Selection(np.array([1, 2]), np.array([2.0, 0.0])),
        Selection(np.array([1, 2]), np.array([1.0, np.nan])),
        Selection(np.array([1, 2]), np.array([1.0, 2.0])),
    ],
)
def test_a_selector_that_breaks_its_promise_is_found_out(bad: Selection) -> None:
    with pytest.raises(AssertionError):
        checked(bad, 2)


def feasible(
    asked: Asked | str,
    *,
    num_rows: int,
    step: StepShape = STEP,
    num_clusters: int = 2,
    ratio_of: str = "smallest_cluster",
    on_empty_quota: str = "merge",
    num_tokens: np.ndarray | None = None,
) -> None:
    check_feasible(
        parse_budget(asked) if isinstance(asked, str) else asked,
        step,
        num_rows=num_rows,
        num_clusters=num_clusters,
        ratio_of=ratio_of,
        on_empty_quota=on_empty_quota,
        num_tokens=num_tokens,
    )


LENGTHS = np.array([5, 9, 2, 7, 4, 8, 3, 6])


@pytest.mark.parametrize(
    ("asked", "keys", "message"),
    [
        (
            "100%",
            {"num_rows": 3, "step": StepShape(4, 1, 1)},
            "allocate.num_workers=4 must be <= the 3 rows; lower it",
        ),
        (
            "100%",
            {"num_rows": 8, "num_clusters": 9},
            "cluster.num_clusters=9 must be <= the 8 rows; lower it",
        ),
        (
            ratio(0.5),
            {"num_rows": 9, "num_clusters": 4, "step": StepShape(2, 1, 4)},
            "allocate.ratio=0.5 of the smallest of cluster.num_clusters=4 clusters is at most 1",
        ),
        (ratio(0.1), {"num_rows": 9}, "is at most 0 rows of 9"),
        (
            ratio(0.1),
            {"num_rows": 9, "ratio_of": "candidates"},
            "allocate.ratio=0.1 gives 0 rows, which must be >= the 4 rows of one step",
        ),
        ("100rows", {"num_rows": 90}, "the largest budget that works is 88rows"),
        ("3rows", {"num_rows": 90}, "the smallest budget that works is 4rows"),
        (
            "4rows",
            {"num_rows": 90, "num_clusters": 5, "on_empty_quota": "error"},
            "allocate.budget=4rows keeps 4 rows, which must be >= cluster.num_clusters=5; "
            "ask for 5rows or more, or set allocate.on_empty_quota=merge",
        ),
        (
            "13tokens",
            {"num_rows": 8, "num_tokens": LENGTHS},
            "allocate.budget=13tokens must be >= 14 tokens, which the 4 shortest rows of one",
        ),
        ("13tokens", {"num_rows": 3, "step": StepShape(1, 1, 4), "num_clusters": 1}, "3 rows"),
    ],
)
def test_what_no_clustering_could_meet_is_told_by_hand(
    asked: Asked | str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        feasible(asked, **keys)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "keys"),
    [
        (ratio(1.0), {"num_rows": 4}),
        (ratio(0.5), {"num_rows": 8}),
        ("100%", {"num_rows": 4}),
        ("4rows", {"num_rows": 90, "num_clusters": 4, "on_empty_quota": "error"}),
        ("13tokens", {"num_rows": 8}),  # before the lengths are known
        ("14tokens", {"num_rows": 8, "num_tokens": LENGTHS}),
    ],
)
def test_what_just_works_is_let_through(asked: Asked | str, keys: dict[str, Any]) -> None:
    feasible(asked, **keys)


@SEEDED
@given(
    st.integers(1, 40),
    st.sampled_from(["rows", "share", "ratio"]),
    st.floats(0.05, 1),
    st.integers(1, 4),
    st.builds(StepShape, st.integers(1, 4), st.integers(1, 2), st.integers(1, 2)),
    st.sampled_from(["cluster_balanced", "uniform"]),
)
def test_what_is_refused_early_would_fail_late_even_with_equal_clusters(
    num_rows: int, kind: str, share: float, num_clusters: int, step: StepShape, name: str
) -> None:
    asked = Asked(kind, max(1, int(share * num_rows)) if kind == "rows" else share, "asked")
    selector = SELECTORS[name]
    try:
        feasible(
            asked,
            num_rows=num_rows,
            step=step,
            num_clusters=num_clusters,
            ratio_of=selector.ratio_of,
        )
    except DataError:
        if num_clusters > num_rows:
            return
        sizes = [len(part) for part in np.array_split(np.arange(num_rows), num_clusters)]
        with pytest.raises(DataError):
            chosen(selector, asked, candidates(sizes), step=step)
