"""A wrong option names its full key before anything is read."""

import pytest

from stages.allocate.selectors import selector_classes
from stages.contract.errors import ConfigurationError


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
