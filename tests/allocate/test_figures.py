"""The ratio to random: rounding is no figure, and what is told of it is told alike everywhere."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.figures import (
    ROUNDING,
    Figures,
    beside,
    beside_random,
    figures_of,
    random_figures,
    ratio_to_random,
)
from stages.allocate.quality import Weighted
from stages.allocate.weights import to_mean_one
from stages.report.page import figures as figures_on_page
from stages.report.page import sentence
from stages.shards.card import quality_text
from tests.allocate.samples import candidates
from tests.artifacts import SEEDED
from tests.report.stories import story_of


def judged(seed: int, num_clusters: int, weights: np.ndarray | None = None) -> dict[str, Any]:
    """Judge all rows of a drawn set, by their multiplicity unless other weights are given."""
    rows = candidates([12] * num_clusters, seed=seed, dim=16)
    judge = np.random.default_rng(seed).normal(size=(rows.num_rows, 48)).astype(np.float32)
    shape = (rows.num_rows // 4, 2, 2)
    every = np.arange(rows.num_rows)
    own = to_mean_one(rows.multiplicity.astype(np.float64)) if weights is None else weights
    # The same weights up to rounding: summed per cluster first, as selectors do.
    of_cluster = np.bincount(rows.cluster, own)[rows.cluster]
    kept = Weighted(every, of_cluster * (own / of_cluster))
    rng = np.random.default_rng(seed)
    plan = every.reshape(shape)
    (found,) = figures_of(rows, lambda p: judge[p], [kept], [plan], rng)
    return beside_random(found, random_figures(rows, lambda p: judge[p], shape, rng))


@pytest.mark.parametrize("num_clusters", [1, 4, 9])
@pytest.mark.parametrize("seed", range(8))
def test_all_rows_are_told_to_be_the_same_as_random_everywhere(
    seed: int, num_clusters: int
) -> None:
    quality = judged(seed, num_clusters)
    assert quality["random"]["gradient_error"] < ROUNDING
    assert quality["ratio_to_random"] == 1.0  # what a tracker is sent
    story = story_of(quality)
    assert "by 0.0%, the same as random choices" in sentence(story)
    (told,) = [value for name, value, _ in figures_on_page(story) if name == "Gradient error"]
    assert told == "1.00 x random"
    assert "(the same)" in quality_text(quality)  # the card's words, and the summary's


def test_the_page_of_an_older_run_tells_no_rounding_either() -> None:
    quality = {**judged(0, 4), "ratio_to_random": 1.07}
    assert "the same as random choices" in sentence(story_of(quality))
    assert "1.00 x random" in [value for _, value, _ in figures_on_page(story_of(quality))]


@pytest.mark.parametrize("seed", range(4))
def test_bad_weights_of_all_rows_are_not_hidden(seed: int) -> None:
    weights = to_mean_one(np.random.default_rng(seed).random(48) + 0.1)
    quality = judged(seed, 4, weights)
    assert quality["random"]["gradient_error"] < ROUNDING < quality["selection"]["gradient_error"]
    assert 1e3 < quality["ratio_to_random"] < np.inf
    assert "worse (" in sentence(story_of(quality))


@SEEDED
@given(own=st.floats(0, 2), of_random=st.floats(0, 2))
def test_a_ratio_is_plain_above_rounding_and_says_who_is_nearer(
    own: float, of_random: float
) -> None:
    ratio = ratio_to_random(own, of_random)
    if min(own, of_random) >= ROUNDING:
        assert ratio == own / of_random
    elif max(own, of_random) < ROUNDING:
        assert ratio == 1.0
    else:
        assert (ratio < 1) == (own < of_random) or ratio == 1.0
    assert 0 < ratio < np.inf


def test_a_ratio_to_random_is_said_the_right_way_round() -> None:
    assert beside(0.5) == "better (0.50 of the error) than"
    assert beside(2.0) == "worse (2.00 times the error) than"
    assert beside(1.0) == "the same as"


def test_beside_exact_random_rows_an_error_is_not_zero_times_theirs() -> None:
    def figures(error: float) -> Figures:
        return Figures(error, [error], error, error, 1.0, 0.5, 0.7, 1.0, 0.1, 0.2, 30)

    exact = [figures(0.0), figures(0.0)]
    assert beside_random(figures(0.1), exact)["ratio_to_random"] == pytest.approx(1e8)
    assert beside_random(figures(0.0), exact)["ratio_to_random"] == 1.0
