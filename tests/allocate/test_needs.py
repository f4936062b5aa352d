"""What selectors say they read is what they read, and what is missing is told with its remedy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stages.allocate.candidates import Budget
from stages.allocate.needs import OF_TOKENS, VECTORS, Offer, check_needs, is_known, needs_of
from stages.allocate.selectors import selector_classes
from stages.allocate.selectors.stratified import Stratified
from stages.contract.errors import ConfigurationError
from stages.contract.schemas import SIGNALS
from stages.embed.stage import FEATURES
from tests.allocate.samples import candidates
from tests.allocate.test_selectors import every_variant

ALL = Offer(
    FEATURES, answer_alone=True, reference=SIGNALS, targets=True, trajectory=True, gradients=True
)


@every_variant
def test_a_selector_reads_nothing_that_it_does_not_name(
    name: str, options: Mapping[str, object]
) -> None:
    rows = candidates([17, 5, 30, 11])
    read: set[str] = set()

    def spied(prefix: str, reader: Any) -> Any:
        def read_and_note(named: str, *more: Any) -> Any:
            read.add(prefix + named)
            return reader(named, *more)

        return read_and_note

    watched = replace(
        rows,
        read_signal=spied("", rows.read_signal),
        read_feature=spied("", rows.read_feature),
        read_targets=spied("targets.", rows.read_targets),
    )
    selector = selector_classes()[name](**options)
    selector.select(watched, Budget(20), np.random.default_rng(0))
    assert read <= {*needs_of(selector), *SIGNALS, *OF_TOKENS}
    assert all(is_known(each) for each in needs_of(selector))
    check_needs(selector, ALL)


PLAIN = Offer(("target_row",))
MISSING: list[tuple[str, dict[str, object], Offer, str]] = [
    ("matched", {}, PLAIN, "set embed.also=[head_sketch]"),
    ("matched", {}, Offer(("target_row", "hidden_mean")), "embed.also=[hidden_mean,head_sketch]"),
    ("matched", {"feature": "head_sketc"}, ALL, "did you mean head_sketch?"),
    ("head_grand", {"by": "sketch"}, PLAIN, "set embed.also=[head_sketch]"),
    ("kcenter", {"feature": "judge_sketch"}, ALL, "not what a selector can read"),
    ("stratified", {"quota": "neyman", "spread": "hidden_mean"}, PLAIN, "embed.also=[hidden_mean]"),
    ("ifd", {}, PLAIN, "set embed.answer_alone=true"),
    ("svp", {}, PLAIN, "reads reference.entropy, which no pass makes; set reference.path=<"),
    ("svp", {}, replace(PLAIN, reference=("loss",)), "the warm-up gives only reference.loss"),
    ("reducible_loss", {}, PLAIN, "set reference.path=<a second model>"),
    ("uncertainty", {"signal": "los"}, PLAIN, "did you mean loss?"),
    ("uncertainty", {"signal": "reference.los"}, ALL, "not what a selector can read"),
    ("less_lite", {}, PLAIN, "reads targets.target_row, which no pass makes; set targets.path=<"),
    ("less_lite", {"feature": "embedding"}, ALL, "reads targets.embedding"),
    (
        "rds_plus",
        {},
        PLAIN,
        "reads position_mean and targets.position_mean, which no pass makes; "
        "set embed.also=[position_mean] and targets.path=<rows to do well on>",
    ),
    ("s2l", {}, PLAIN, "set trajectory.steps=60"),
    (
        "less",
        {},
        PLAIN,
        "reads gradients and targets.gradients, which no pass makes; set trajectory.steps=60 and "
        "trajectory.gradient_dim=1024 and targets.path=<rows to do well on>",
    ),
    (
        "less",
        {},
        replace(PLAIN, trajectory=True, targets=True),
        "which no pass makes; set trajectory.gradient_dim=1024",
    ),
    (
        "less",
        {},
        replace(PLAIN, trajectory=True, gradients=True),
        "reads targets.gradients, which no pass makes; set targets.path=<rows to do well on>",
    ),
    ("kcenter", {"feature": "gradient"}, ALL, "did you mean gradients?"),
    ("learnable", {"inner": "uniform"}, PLAIN, "set reference.path=<a second model>"),
    ("learnable", {}, Offer(("target_row",), reference=SIGNALS), "embed.also=[head_sketch]"),
]


OF_THE_OTHER_KIND: list[tuple[str, dict[str, object], str]] = [
    ("matched", {"feature": "loss"}, "feature=loss is a signal, one number of a row"),
    ("matched", {"feature": "num_tokens"}, "set it to one of embedding, target_row"),
    ("kcenter", {"feature": "entropy"}, "feature=entropy is a signal"),
    ("rds_plus", {"feature": "reference.loss"}, "feature=reference.loss is a signal"),
    ("loss_rank", {"signal": "target_row"}, "signal=target_row is a feature, many numbers"),
    ("d2", {"signal": "hidden_mean"}, "set it to one of embedding_norm, loss"),
    ("d2", {"signal": "gradients"}, "signal=gradients is a feature"),
    ("uncertainty", {"signal": "embedding"}, "signal=embedding is a feature"),
]


@pytest.mark.parametrize(("name", "options", "words"), OF_THE_OTHER_KIND)
def test_a_signal_is_no_feature_and_a_feature_no_signal(
    name: str, options: dict[str, object], words: str
) -> None:
    """Whatever passes there are: no pass can make one of the other."""
    with pytest.raises(ConfigurationError) as caught:
        check_needs(selector_classes()[name](**options), ALL)
    assert "allocate.selector." in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize("spread", [*VECTORS, *SIGNALS, *OF_TOKENS])
def test_a_spread_is_measured_on_all_that_is_accepted(spread: str) -> None:
    """What the check lets through must not fail after the passes: no vector is read as a number."""
    rows = candidates([17, 5, 30])
    selector = Stratified(quota="neyman", spread=spread)
    check_needs(selector, ALL)

    def of_scores(name: str) -> Any:
        assert name in (*SIGNALS, *OF_TOKENS), f"{name} is no signal"
        return rows.read_signal(name)

    kept, _ = selector.select(
        replace(rows, read_signal=of_scores), Budget(20), np.random.default_rng(0)
    )
    assert kept.size == 20


@pytest.mark.parametrize(("name", "options", "offer", "words"), MISSING)
def test_what_is_missing_is_told_with_the_key_that_makes_it(
    name: str, options: dict[str, object], offer: Offer, words: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_needs(selector_classes()[name](**options), offer)
    assert words in str(caught.value)
    assert f"allocate.selector={name} " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("uniform", {}),
        ("cluster_balanced", {"keep": "largest_norm"}),
        ("stratified", {"spread": "hidden_mean"}),  # not read unless quota=neyman
        ("head_grand", {}),
        ("length", {"of": "answer"}),
        ("deita_repr", {"signal": "random"}),
        ("uncertainty", {"signal": "least_confidence"}),
        ("kcenter", {}),
    ],
)
def test_the_default_pass_is_enough_for_most(name: str, options: dict[str, object]) -> None:
    check_needs(selector_classes()[name](**options), PLAIN)


def test_a_selector_without_needs_names_its_options() -> None:
    class Plain:
        feature = "hidden_mean"
        signal = "el2n"

    assert needs_of(Plain()) == ("hidden_mean", "el2n")
    assert needs_of(object()) == ()
