"""The learnable rows by hand, and that the inner selector sees them and no other."""

from dataclasses import replace

import numpy as np
import pytest

from stages.allocate.candidates import Budget, subset
from stages.allocate.selectors.learnable import Learnable
from stages.allocate.selectors.stratified import Stratified
from stages.contract.errors import ConfigurationError
from tests.allocate.samples import by_hand, candidates

LOSS = [3.0, 2.0, 5.0, 1.0, 4.0, 2.0]
REFERENCE = [1.0, 1.5, 4.5, 0.0, 3.5, 2.5]  # what is reducible: 2, 0.5, 0.5, 1, 0.5, -0.5
SIGNALS = {"loss": LOSS, "reference.loss": REFERENCE}


def kept(budget: int, share: float, *, seed: int = 0, inner: str = "uniform") -> list[int]:
    rows = by_hand(signals=SIGNALS)
    selector = Learnable(inner=inner, share=share)
    return selector.select(rows, Budget(budget), np.random.default_rng(seed))[0].tolist()


def test_rows_of_the_largest_reducible_loss_by_hand() -> None:
    assert kept(2, 1 / 3) == [0, 3]
    assert {row for seed in range(60) for row in kept(1, 1 / 3, seed=seed)} == {0, 3}
    # The third place is shared by rows 1, 2 and 4; it goes to the smallest id.
    assert kept(3, 0.5) == [0, 1, 3]


def test_the_budget_asks_for_more_rows_than_the_share_has() -> None:
    assert kept(4, 1 / 6) == [0, 1, 2, 3]
    assert kept(6, 1 / 6) == [0, 1, 2, 3, 4, 5]


def test_everything_learnable_is_the_inner_selector_itself() -> None:
    rows = candidates([17, 5, 30, 11])
    for share, same in ((1.0, True), (0.4, False)):
        got = Learnable(inner="stratified", share=share).select(
            rows, Budget(20), np.random.default_rng(3)
        )
        plain = Stratified().select(rows, Budget(20), np.random.default_rng(3))
        assert (np.array_equal(got[0], plain[0]) and np.array_equal(got[1], plain[1])) == same


def test_the_weighted_mean_is_that_of_the_learnable_rows() -> None:
    rows = candidates([40, 40, 40], seed=2, duplicates=False)
    score = rows.read_signal("loss") - rows.read_signal("reference.loss")
    learnable = np.flatnonzero(np.argsort(np.argsort(-score, kind="stable")) < 60)
    chosen, weights = Learnable(share=0.5).select(rows, Budget(20), np.random.default_rng(0))
    assert set(chosen) <= set(learnable)
    sketch = rows.read_feature("head_sketch", np.arange(120)).astype(np.float64)
    got = weights @ sketch[chosen] / 20
    near, far = sketch[learnable].mean(axis=0), sketch.mean(axis=0)
    assert np.linalg.norm(got - near) < 0.2 * np.linalg.norm(got - far)


def test_a_subset_keeps_every_reader_in_step() -> None:
    rows = candidates([6, 4])
    places = np.array([1, 4, 7])
    part = subset(rows, places)
    assert part.num_rows == 3 and part.num_clusters == 2
    assert np.array_equal(part.row_ids, rows.row_ids[places])
    assert np.array_equal(part.read_signal("loss"), rows.read_signal("loss")[places])
    own = np.array([0, 2])
    assert np.array_equal(part.read_embeddings(own), rows.read_embeddings(places[own]))
    assert np.array_equal(part.read_feature("x", own), rows.read_feature("x", places[own]))
    # Random numbers belong to row ids, so they are those of the whole.
    draws = [each.draw(np.random.default_rng(5)) for each in (part, rows)]
    assert np.array_equal(draws[0], draws[1][places])
    assert np.array_equal(replace(part).multiplicity, rows.multiplicity[places])


@pytest.mark.parametrize(
    ("options", "words"),
    [({"inner": "matchd"}, "inner=matched"), ({"share": 0.0}, "share=0.0 must lie in (0, 1]")],
)
def test_options_are_checked(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Learnable(**options)  # type: ignore[arg-type]
    assert f"allocate.selector.{words}" in str(caught.value)
