"""Selectors that sort by one number: by hand."""

import logging

import numpy as np
import pytest

from stages.allocate.selectors.ccs import Ccs, equal_width_bins
from stages.allocate.selectors.el2n import El2n
from stages.allocate.selectors.head_grand import HeadGrand
from stages.allocate.selectors.ifd import Ifd, difficulty
from stages.allocate.selectors.length import Length
from stages.allocate.selectors.reducible_loss import ReducibleLoss
from stages.allocate.selectors.svp import Svp
from stages.allocate.selectors.uncertainty import Uncertainty
from stages.contract.errors import DataError
from tests.allocate.samples import by_hand
from tests.allocate.selectors.helpers import kept_rows, select


def test_length_takes_the_longest_and_of_equals_the_earlier() -> None:
    rows = by_hand(num_tokens=[5, 9, 7, 2, 7], multiplicity=[1, 2, 1, 1, 1])
    assert kept_rows(Length(), rows, 2) == [1, 2]
    kept, weights = select(Length(), rows, 3)
    assert kept == [1, 2, 4]
    assert np.allclose(weights, [1.5, 0.75, 0.75])


def test_length_of_the_answer_reads_its_own_signal() -> None:
    rows = by_hand(num_tokens=[5, 9, 7], signals={"num_targets": [3, 1, 2]})
    assert kept_rows(Length(of="answer"), rows, 2) == [0, 2]


def test_el2n_takes_the_largest_below_those_that_it_passes_over() -> None:
    rows = by_hand(signals={"el2n": [0.1, 0.9, 0.5, 0.9, 0.3]})
    assert kept_rows(El2n(), rows, 2) == [1, 3]
    assert kept_rows(El2n(drop_hardest=0.2), rows, 2) == [2, 3]
    # Only two can be passed over if three must be kept, however large the share.
    assert kept_rows(El2n(drop_hardest=0.9), rows, 3) == [0, 2, 4]
    assert kept_rows(El2n(drop_hardest=0.9), rows, 5) == [0, 1, 2, 3, 4]


def test_el2n_within_clusters_takes_of_each_and_weighs_by_its_share() -> None:
    rows = by_hand(
        cluster=[0, 0, 0, 0, 1, 1],
        signals={"el2n": [9, 8, 7, 6, 2, 1]},
        multiplicity=[1, 1, 1, 1, 1, 3],
    )
    kept, weights = select(El2n(within="clusters"), rows, 3)
    assert kept == [0, 1, 4]  # two of four, one of two
    # Both clusters stand for 4 of the 8 rows: 3 * 4 / 8 = 1.5 each.
    assert np.allclose(weights, [0.75, 0.75, 1.5])


def test_head_grand_by_the_bound_and_by_the_sketch() -> None:
    features = [[3, 4], [0, 6], [1, 0], [5, 5]]  # norms 5, 6, 1, 7.07
    rows = by_hand(features, signals={"head_grad_norm": [1, 2, 9, 8]})
    assert kept_rows(HeadGrand(by="sketch"), rows, 2) == [1, 3]
    assert kept_rows(HeadGrand(by="bound"), rows, 2) == [2, 3]
    assert kept_rows(HeadGrand(by="sketch", drop_hardest=0.25), rows, 2) == [0, 1]


def test_uncertainty_by_any_signal() -> None:
    signals = {"entropy": [1, 3, 2], "max_p": [0.9, 0.7, 0.2], "loss": [5, 4, 6]}
    rows = by_hand(signals=signals)
    assert kept_rows(Uncertainty(), rows, 1) == [1]
    assert kept_rows(Uncertainty(signal="least_confidence"), rows, 1) == [2]
    assert kept_rows(Uncertainty(signal="loss", keep="smallest"), rows, 1) == [1]


def test_svp_reads_the_reference_model() -> None:
    signals = {
        "entropy": [9, 0, 0],
        "reference.entropy": [1, 3, 2],
        "reference.max_p": [0.9, 0.7, 0.2],
    }
    rows = by_hand(signals=signals)
    assert kept_rows(Svp(), rows, 1) == [1]
    assert kept_rows(Svp(measure="least_confidence"), rows, 1) == [2]


def test_reducible_loss_is_the_lead_of_the_reference() -> None:
    rows = by_hand(signals={"loss": [3, 2, 1], "reference.loss": [2.5, 0.5, 0.75]})
    assert kept_rows(ReducibleLoss(), rows, 1) == [1]
    assert kept_rows(ReducibleLoss(), rows, 2) == [0, 1]


def test_ifd_takes_the_largest_below_one_and_its_two_ratios_differ() -> None:
    signals = {"loss": [1, 2, 3, 0.5], "answer_alone_loss": [2, 2, 4, 0.6]}
    rows = by_hand(signals=signals)
    assert kept_rows(Ifd(), rows, 2) == [2, 3]  # 0.5, 1, 0.75, 0.83
    assert kept_rows(Ifd(ratio="ppl"), rows, 2) == [0, 3]  # exp of -1, 0, -1, -0.1


def test_ifd_is_filled_up_by_the_smallest_from_one_on(caplog: pytest.LogCaptureFixture) -> None:
    rows = by_hand(signals={"loss": [5, 3, 1, 2], "answer_alone_loss": [2, 2, 2, 2]})
    assert kept_rows(Ifd(), rows, 1) == [2]
    assert not caplog.records
    assert kept_rows(Ifd(), rows, 3) == [1, 2, 3]  # 2.5 is left out
    assert "only 1 rows have an IFD below 1; 2 of the smallest above" in caplog.text


def test_ifd_of_losses_of_zero() -> None:
    zero = np.array([0.0, 1.0, 0.0])
    alone = np.array([0.0, 0.0, 1.0])
    assert difficulty(zero, alone, "loss").tolist() == [1.0, np.inf, 0.0]


def test_ccs_drops_the_hardest_and_serves_the_smallest_bin_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rows = by_hand(signals={"el2n": [0, 0, 0, 0, 5, 10, 100]})
    for seed in range(20):
        kept = kept_rows(Ccs(drop_hardest=0.15, num_bins=2), rows, 4, seed=seed)
        # Row 6 is dropped; the bin of 5 and 10 gives both rows, that of the zeros two of four.
        assert len(kept) == 4
        assert kept[2:] == [4, 5]
    assert "dropped the 1 rows of the largest el2n, from 100 up; hardest row_ids [6]" in caplog.text
    # Where all must be kept, nothing can be dropped.
    assert kept_rows(Ccs(drop_hardest=0.15), rows, 7) == list(range(7))


def test_ccs_draws_every_row_of_a_bin_as_often() -> None:
    rows = by_hand(signals={"el2n": [0, 0, 0, 0, 10, 10]})
    hits = np.zeros(6)
    for seed in range(400):
        hits[kept_rows(Ccs(drop_hardest=0.0, num_bins=2), rows, 2, seed=seed)] += 1
    assert np.all(abs(hits[:4] - 100) < 40)  # standard deviation 8.7
    assert np.all(abs(hits[4:] - 200) < 40)


def test_bins_have_equal_width_and_hold_both_ends() -> None:
    assert equal_width_bins(np.array([0.0, 4.9, 5.0, 10.0]), 2).tolist() == [0, 0, 1, 1]
    assert equal_width_bins(np.array([3.0, 3.0]), 50).tolist() == [0, 0]


def test_a_score_that_is_not_finite_stops_and_names_the_signal() -> None:
    rows = by_hand(signals={"loss": [1, float("nan"), 2]})
    with pytest.raises(DataError, match=r"signal loss is not finite in 1 of 3 rows.*row_id 1"):
        kept_rows(Uncertainty(signal="loss"), rows, 1)
