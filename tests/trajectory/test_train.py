"""The loss of rows against transformers, the first step of AdamW by hand, and fair batches."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.embed.model import wrap_model
from stages.trajectory.adapters import add_adapters, state_of
from stages.trajectory.train import Rows, batches_of, checkpoint_steps, row_losses, warm_up
from tests.artifacts import FEW

IDS = [[5, 6, 7, 8, 9], [9, 6, 7], [3, 4] * 10]
LABELS = [[-100, -100, 7, 8, 9], [-100, 6, 7], [-100] * 10 + [3, 4] * 5]
ROWS = Rows([np.array(ids, np.int32) for ids in IDS], [np.array(x, np.int32) for x in LABELS])


@pytest.fixture
def whole(model_folder: Path) -> Any:
    import transformers

    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(model_folder).eval()


@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_a_rows_loss_is_that_of_transformers(whole: Any, chunk: int) -> None:
    with torch.inference_mode():
        found = row_losses(wrap_model(whole), ROWS, chunk)
        for loss, ids, labels in zip(found.tolist(), IDS, LABELS, strict=True):
            expected = whole(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
            assert loss == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("chunk", [2, 1000])
def test_gradients_are_those_of_autograd_over_the_whole_model(whole: Any, chunk: int) -> None:
    adapters = add_adapters(whole, 2, seed=0)
    learnt = [adapter.up for adapter in adapters.values()]
    row_losses(wrap_model(whole), ROWS, chunk).sum().backward()
    found = [p.grad.clone() for p in learnt if p.grad is not None]
    assert len(found) == len(learnt)
    whole.zero_grad()
    for ids, labels in zip(IDS, LABELS, strict=True):
        whole(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss.backward()
    for gradient, parameter in zip(found, learnt, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(gradient, parameter.grad, rtol=1e-4, atol=1e-7)


def warmed(whole: Any, *, tokens_per_batch: int = 1000, steps: int = 6) -> Any:
    adapters = add_adapters(whole, 2, seed=0)
    told: list[int] = []
    result = warm_up(
        wrap_model(whole),
        adapters,
        ROWS,
        list(batches_of(3, 2, steps, np.random.default_rng(0))),
        checkpoints=3,
        learning_rate=0.02,
        tokens_per_batch=tokens_per_batch,
        chunk=4,
        tell=lambda step, loss: told.append(step),
    )
    assert told == checkpoint_steps(steps, 3)
    return result, adapters


def test_the_first_step_moves_every_number_by_the_learning_rate(whole: Any) -> None:
    # Adam's first step is lr * g / |g|: all entries of `up` with a gradient go by 0.02.
    result, _ = warmed(whole, steps=3)
    first = result.states[0]
    moved = torch.cat([first[name].flatten() for name in first if name.endswith(".up")]).abs()
    assert torch.allclose(moved[moved > 0], torch.tensor(0.02), rtol=1e-2)
    assert (moved > 0).float().mean() > 0.9


def test_the_loss_of_what_is_trained_on_falls(whole: Any) -> None:
    result, _ = warmed(whole, steps=60)
    assert result.losses[2] < result.losses[1] < result.losses[0]
    assert len(result.states) == 3 and result.tokens[0] < result.tokens[1] < result.tokens[2]


def test_small_forward_passes_add_up_to_the_same_step(whole: Any, model_folder: Path) -> None:
    import transformers

    together, _ = warmed(whole)
    again = transformers.AutoModelForCausalLM.from_pretrained(model_folder).eval()
    apart, _ = warmed(again, tokens_per_batch=1)
    assert together.tokens == apart.tokens
    assert together.losses == pytest.approx(apart.losses, rel=1e-4)
    for one, other in zip(together.states, apart.states, strict=True):
        assert all(torch.allclose(one[name], other[name], atol=2e-3) for name in one)


def test_the_same_seed_gives_the_same_bytes(whole: Any, model_folder: Path) -> None:
    import transformers

    again = transformers.AutoModelForCausalLM.from_pretrained(model_folder).eval()
    (one, adapters), (other, _) = warmed(whole), warmed(again)
    assert one.losses == other.losses and one.tokens == other.tokens
    for a, b in zip(one.states, other.states, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert all(torch.equal(one.states[-1][name], now) for name, now in state_of(adapters).items())


@FEW
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 30), st.integers(0, 99))
def test_every_row_is_trained_on_as_often_as_any_other(
    num_rows: int, batch_rows: int, steps: int, seed: int
) -> None:
    dealt = list(batches_of(num_rows, batch_rows, steps, np.random.default_rng(seed)))
    assert [batch.size for batch in dealt] == [batch_rows] * steps
    counts = Counter(np.concatenate(dealt).tolist())
    often = [counts[row] for row in range(num_rows)]
    assert max(often) - min(often) <= 1


@pytest.mark.parametrize(
    ("steps", "checkpoints", "expected"),
    [(60, 3, [20, 40, 60]), (7, 3, [2, 4, 7]), (3, 3, [1, 2, 3]), (5, 1, [5])],
)
def test_checkpoints_are_spread_over_the_steps(
    steps: int, checkpoints: int, expected: list[int]
) -> None:
    assert checkpoint_steps(steps, checkpoints) == expected
