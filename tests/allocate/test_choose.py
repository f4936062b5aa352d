"""From what was asked to a selection: by ratio, rows, share and tokens; and what cannot work."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.budget import Asked, StepShape, parse_budget
from stages.allocate.candidates import Candidates
from stages.allocate.choose import PROBES, Selection, checked, choose, fit_tokens
from stages.allocate.feasible import check_feasible
from stages.allocate.selectors import selector_classes
from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.selectors.uniform import Uniform
from stages.contract.errors import DataError
from tests.allocate.samples import by_hand, candidates
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


def test_a_balanced_selection_by_ratio_can_be_pinned_where_workers_hold_several_clusters() -> None:
    rows = candidates([9, 5, 8, 6, 7, 5, 6, 5])
    step = StepShape(4, 3, 1)
    kept = kept_by_cluster(rows, chosen(ClusterBalanced(), ratio(1.0), rows, step=step))
    assert sum(kept) == 36, "as many whole steps as the ratio gives"
    assert np.reshape(kept, (2, 4)).sum(axis=0).tolist() == [9, 9, 9, 9]


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


def tokens_by_steps(tokens: Sequence[int], asked: int) -> tuple[int, list[int]]:
    """Fit a budget where so many steps take so many tokens; give the steps, and all tried."""
    rows = by_hand(num_tokens=[1] * max(tokens))
    tried: list[int] = []

    def select(num_rows: int) -> Selection:
        tried.append(num_rows)
        return Selection(np.arange(tokens[num_rows - 1]), np.ones(num_rows))

    # What a step takes stands for its rows: as many rows of one token each.
    rows = dataclasses.replace(rows, cluster=rows.cluster[: len(tokens)])
    found = fit_tokens(select, parse_budget(f"{asked}tokens"), StepShape(1, 1, 1), rows)
    return found.weights.size, tried


@pytest.mark.parametrize(
    ("tokens", "asked", "steps"),
    [
        ([10, 20, 30, 40, 50], 35, 3),
        ([10, 20, 36, 34, 50], 35, 4),  # three steps do not fit, four do
        ([10, 20, 36, 36, 36, 36, 35, 50], 35, 7),
        ([36, 34, 40, 45, 50], 35, 2),  # nor does the first
        ([10, 20, 30], 35, 3),
    ],
)
def test_the_largest_number_of_steps_that_fits_by_hand(
    tokens: list[int], asked: int, steps: int
) -> None:
    assert tokens_by_steps(tokens, asked)[0] == steps


@SEEDED
@given(seed=st.integers(0, 10_000), num_steps=st.integers(1, 300), share=st.floats(0.05, 1.1))
def test_a_token_budget_takes_few_selections_and_keeps_its_promise(
    seed: int, num_steps: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    line = 20 * np.arange(1, num_steps + 1)
    tokens = np.maximum(line + rng.integers(-40, 41, num_steps), 1)
    asked = max(int(share * line[-1]), int(tokens[0]))
    steps, tried = tokens_by_steps(tokens.tolist(), asked)
    assert tokens[steps - 1] <= asked
    above = [each for each in tried if each > steps]
    assert all(tokens[each - 1] > asked for each in above)
    assert steps == num_steps or min(above) <= steps + 1 + PROBES
    assert len(tried) <= 2 * np.log2(num_steps + 1) + 2 + PROBES
    assert len(set(tried)) == len(tried), "no number of steps is selected twice"


def test_above_a_thousand_steps_no_more_are_tried_than_the_search_needs() -> None:
    tokens = [10 * steps for steps in range(1, 2000)]
    steps, tried = tokens_by_steps(tokens, tokens[1500])
    assert steps == 1501
    assert max(tried) == 1502 and len(tried) <= 4


@pytest.mark.parametrize("selector", sorted(selector_classes()))
@pytest.mark.parametrize("seed", [0, 1])
def test_no_selector_exceeds_a_budget_of_tokens_or_falls_far_short(
    selector: str, seed: int
) -> None:
    """Beside all numbers of steps one by one: never short by more than a step in ten."""
    rows = candidates([20, 15, 10, 5], seed=seed)
    by_steps: dict[int, Selection] = {}

    def select(num_rows: int) -> Selection:
        if num_rows not in by_steps:
            chooser = selector_classes()[selector]()
            by_steps[num_rows] = chosen(chooser, f"{num_rows}rows", rows, step=step)
        return by_steps[num_rows]

    step = StepShape(2, 1, 1)
    tokens = np.array([rows.num_tokens[select(2 * k).rows].sum() for k in range(1, 26)])
    for asked in np.linspace(tokens.min(), tokens.max(), 40).astype(int):
        most = int(np.flatnonzero(tokens <= asked)[-1]) + 1
        found = fit_tokens(select, parse_budget(f"{asked}tokens"), step, rows)
        assert rows.num_tokens[found.rows].sum() <= asked
        assert found.rows.size // 2 >= 0.9 * most


def test_steps_that_are_only_tried_may_leave_clusters_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On the way to a budget of tokens few steps are tried; what is kept is held to the setting."""
    met = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        rows = candidates([12] * 8, seed=seed)
        lengths = np.maximum(2, rng.pareto(0.6, 96) * 20).astype(np.int64)
        rows = dataclasses.replace(rows, num_tokens=lengths)
        budget = f"{rng.integers(lengths.sum() // 20, lengths.sum())}tokens"
        selector = ClusterBalanced(keep="random")
        caplog.clear()
        kept = chosen(selector, budget, rows, step=StepShape(2, 1, 1))
        empty = np.unique(rows.cluster[kept.rows]).size < 8
        assert len(caplog.records) == empty  # told once, of what is kept
        if empty:
            continue
        strict = chosen(selector, budget, rows, step=StepShape(2, 1, 1), on_empty_quota="error")
        assert np.array_equal(strict.rows, kept.rows)
        met += 1
    assert met > 10


@pytest.mark.parametrize("keep", ["farthest", "random", "kcenter"])
def test_rows_of_one_norm_are_no_obstacle_to_rules_that_read_none(keep: str) -> None:
    rows = candidates([20, 20])

    def refuse(name: str) -> np.ndarray:
        raise DataError(f"{name} does not vary")

    rows = dataclasses.replace(rows, read_signal=refuse)
    assert chosen(ClusterBalanced(keep=keep), "20rows", rows).rows.size == 20
    with pytest.raises(DataError, match="embedding_norm"):
        chosen(ClusterBalanced(keep="largest_norm"), "20rows", rows)


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


def test_many_clusters_are_named_by_the_first_of_them(caplog: pytest.LogCaptureFixture) -> None:
    rows = candidates([1] * 40 + [5], duplicates=False)
    chosen(ClusterBalanced(), "5", rows, step=StepShape(1, 1, 5))
    assert re.search(r"clusters \[(\d+, ){7}\d+\] and 28 more keep no row", caplog.text)
    with pytest.raises(DataError) as caught:
        chosen(ClusterBalanced(), "5", rows, step=StepShape(1, 1, 5), on_empty_quota="error")
    ones = "[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0] and 28 more"
    assert f"and 28 more would keep no row of {ones}; raise the budget" in str(caught.value)
    with pytest.raises(DataError, match=r"\(sizes \[(1, ){7}1\] and 33 more\) gives no whole"):
        chosen(ClusterBalanced(), ratio(0.5), rows)


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
