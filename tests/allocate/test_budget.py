"""Budgets: what a text means, by hand; how many whole steps it buys; which budget would do."""

import re
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stages.allocate.budget import Asked, StepShape, asked_rows, parse_budget, whole_steps
from stages.contract.errors import ConfigurationError, DataError
from tests.artifacts import SEEDED

STEPS = st.builds(StepShape, st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("2000", "rows", 2000),
        ("2000rows", "rows", 2000),
        (" 2000 rows ", "rows", 2000),
        ("0.5", "share", 0.5),
        ("50%", "share", 0.5),
        ("12.5%", "share", 0.125),
        ("1e-2", "share", Fraction(1, 100)),
        ("1", "rows", 1),
        ("1.0", "share", 1.0),
        ("100%", "share", 1.0),
        ("1%", "share", Fraction(1, 100)),
        ("300000tokens", "tokens", 300_000),
        ("3e5tokens", "tokens", 300_000),
    ],
)
def test_a_budget_by_hand(text: str, kind: str, amount: float) -> None:
    assert parse_budget(text) == Asked(kind, amount, f"allocate.budget={text}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a number of rows (2000 or 2000rows), a share (0.5 or 50%), or a number of"),
        ("half", "must be a number of rows"),
        ("-5", "must be a number of rows"),
        ("50 percent", "must be a number of rows"),
        ("nan", "must be a number of rows"),
        ("2,000", "must be a number of rows"),
        ("0", "must be a whole number of rows >= 1"),
        ("0rows", "must be a whole number of rows >= 1"),
        ("1.5rows", "must be a whole number of rows >= 1"),
        ("0.5tokens", "must be a whole number of tokens >= 1"),
        ("1.5", "is a share and must lie in (0, 1] or (0%, 100%]"),
        ("0.0", "is a share and must lie in (0, 1]"),
        ("0%", "is a share and must lie in (0, 1]"),
        ("101%", "is a share and must lie in (0, 1]"),
        ("1e999rows", "must be a number of rows"),
        ("1e999tokens", "must be a number of rows"),
    ],
)
def test_a_budget_that_means_nothing_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_budget(text)
    assert str(caught.value).startswith(f"allocate.budget={text} ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "num_candidates", "expected"),
    [
        ("0.07", 100, 7),  # 7.000000000000001
        ("0.29", 100, 29),  # 28.999999999999996
        ("29%", 100, 29),
        ("0.57", 100, 57),
        ("58%", 100, 58),
        ("0.5", 7, 3),
        ("1.0", 7, 7),
        ("100%", 7, 7),
        ("0.1", 9, 0),
        ("1", 7, 1),
        ("9rows", 7, 9),
        ("0.29", 100_000_000, 29_000_000),
        ("0.57", 24_000_000, 13_680_000),
    ],
)
def test_rows_of_a_budget_by_hand(text: str, num_candidates: int, expected: int) -> None:
    assert asked_rows(parse_budget(text), num_candidates) == expected


@SEEDED
@given(st.integers(1, 10_000), st.integers(0, 10_000_000))
def test_a_share_of_four_decimals_is_exact(parts: int, num_candidates: int) -> None:
    text = f"{parts // 10_000}.{parts % 10_000:04d}"
    expected = int(Fraction(parts, 10_000) * num_candidates)
    assert asked_rows(parse_budget(text), num_candidates) == expected


def test_a_step_by_hand() -> None:
    step = StepShape(num_workers=4, accumulation=3, micro_batch=2)
    assert (step.rows_per_worker, step.rows) == (6, 24)


@pytest.mark.parametrize(
    ("asked", "candidates", "kept"), [(24, 24, 24), (47, 60, 24), (48, 60, 48), (71, 71, 48)]
)
def test_rows_are_cut_to_whole_steps_by_hand(asked: int, candidates: int, kept: int) -> None:
    assert whole_steps(asked, parse_budget(f"{asked}"), StepShape(4, 3, 2), candidates) == kept


def test_too_small_a_budget_is_answered_with_the_smallest() -> None:
    with pytest.raises(DataError) as caught:
        whole_steps(3, parse_budget("0.03"), StepShape(4, 1, 2), 100)
    assert str(caught.value) == (
        "allocate.budget=0.03 gives 3 rows, which must be >= the 8 rows of one step "
        "(allocate.num_workers=4 x allocate.micro_batch=2 x allocate.accumulation=1); "
        "the smallest budget that works is 8rows"
    )


def test_too_large_a_budget_is_answered_with_the_largest() -> None:
    with pytest.raises(DataError) as caught:
        whole_steps(101, parse_budget("101"), StepShape(4, 1, 2), 100)
    assert str(caught.value) == (
        "allocate.budget=101 must be <= the 100 rows that can be kept; "
        "the largest budget that works is 96rows"
    )


def test_too_few_rows_for_one_step_are_answered_with_a_smaller_step() -> None:
    with pytest.raises(DataError, match=r"there are only 5 rows.*; lower allocate\.num_workers"):
        whole_steps(5, parse_budget("100%"), StepShape(4, 1, 2), 5)


def test_too_large_a_budget_for_too_few_rows_names_no_budget_that_cannot_work() -> None:
    with pytest.raises(DataError) as caught:
        whole_steps(10, parse_budget("10"), StepShape(4, 1, 2), 5)
    assert " 0rows" not in str(caught.value)
    assert "lower allocate.num_workers" in str(caught.value)


@SEEDED
@given(st.integers(1, 400), st.integers(1, 300), STEPS)
def test_the_budget_that_an_error_names_does_work(
    asked: int, num_candidates: int, step: StepShape
) -> None:
    assume(num_candidates >= step.rows)
    budget = parse_budget(f"{asked}rows")
    try:
        kept = whole_steps(asked, budget, step, num_candidates)
    except DataError as error:
        (named,) = re.findall(r"budget that works is (\w+)", str(error))
        better = parse_budget(named)
        kept = whole_steps(asked_rows(better, num_candidates), better, step, num_candidates)
        assert kept == better.amount
        if asked > num_candidates:
            assert kept + step.rows > num_candidates
        else:
            assert kept == step.rows
    assert kept % step.rows == 0
    assert step.rows <= kept <= num_candidates
