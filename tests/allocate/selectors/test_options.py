"""A wrong option names its full key before anything is read."""

import dataclasses
import math

import numpy as np
import pytest

from stages.allocate.candidates import Budget
from stages.allocate.selectors import selector_classes
from stages.allocate.selectors.matched import Matched
from stages.contract.errors import ConfigurationError
from tests.allocate.samples import candidates

NUMBERS = [
    (name, field.name)
    for name, selector in sorted(selector_classes().items())
    for field in dataclasses.fields(selector)
    if field.type in (float, "float")
]
# The only bound that can be left out by an infinite value.
UNBOUNDED = ("matched", "max_weight")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("stratified", "quota", "neymann"),
        ("length", "of", "rows"),
        ("kcenter", "within", "cluster"),
        ("kcenter", "outliers", 1.0),
        ("kcenter", "neighbours", 0),
        ("importance", "uniform_share", 1.5),
        ("el2n", "drop_hardest", -0.1),
        ("head_grand", "by", "norm"),
        ("loss_rank", "pressure", 0.5),
        ("loss_rank", "weights", "none"),
        ("uncertainty", "keep", "most"),
        ("svp", "measure", "margin"),
        ("badge", "within", "both"),
        ("density", "alpha", -1.0),
        ("density", "bandwidth", 0.0),
        ("density", "reference_rows", 0),
        ("facility_location", "epsilon", 1.0),
        ("gradmatch", "within", "automatic"),
        ("gradmatch", "ridge", 0.0),
        ("tagcos", "tolerance", -1.0),
        ("d2", "forward", -1.0),
        ("ccs", "num_bins", 0),
        ("semdedup", "order", "hardest"),
        ("deita_repr", "threshold", 0.0),
        ("ifd", "ratio", "perplexity"),
        ("s2l", "num_trajectories", 0),
        ("s2l", "sources", "equal"),
        ("less_lite", "over", "max"),
    ],
)
def test_a_wrong_option_names_its_key(name: str, option: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        selector_classes()[name](**{option: value})
    assert f"allocate.selector.{option}={value}" in str(caught.value)


def test_the_selectors_have_options_that_are_numbers() -> None:
    assert len(NUMBERS) > 15 and UNBOUNDED in NUMBERS


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(("name", "option"), NUMBERS)
def test_an_option_that_is_no_finite_number_is_refused(
    name: str, option: str, value: float
) -> None:
    if (name, option) == UNBOUNDED and value == math.inf:
        return
    with pytest.raises(ConfigurationError) as caught:
        selector_classes()[name](**{option: value})
    assert f"allocate.selector.{option}={value} must" in str(caught.value)


@pytest.mark.parametrize("budget", [1, 5, 40])
def test_an_infinite_or_a_huge_largest_weight_is_no_bound(budget: int) -> None:
    rows = candidates([30, 0, 20], seed=2)
    found = [
        Matched(max_weight=most).select(rows, Budget(budget), np.random.default_rng(0))
        for most in (math.inf, 1e300, 1e9)
    ]
    for kept, weights in found:
        assert np.array_equal(kept, found[0][0])
        assert weights.tolist() == pytest.approx(found[0][1].tolist(), rel=1e-9)
        assert weights.mean() == pytest.approx(1.0)
