"""Gradients of rows against a loop of autograd, Adam's direction against a step of torch, folds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stages.embed.model import TargetModel, wrap_model
from stages.trajectory.adapters import LowRank, add_adapters, set_state
from stages.trajectory.gradients import (
    Fold,
    Moments,
    folded_gradients,
    joined,
    make_fold,
    make_folds,
    matrices_of,
    row_gradients,
)
from stages.trajectory.train import Rows, WarmUp, batches_of, row_losses, warm_up
from tests.trajectory.test_train import ROWS

DIM, STEPS = 64, 5


@pytest.fixture(scope="module")
def warmed(model_folder: Path) -> tuple[TargetModel, dict[str, LowRank], WarmUp]:
    """A model after a few steps; its adapters hold the numbers of the last checkpoint."""
    import transformers

    torch.set_num_threads(1)
    whole = transformers.AutoModelForCausalLM.from_pretrained(model_folder).eval()
    model = wrap_model(whole)
    adapters = add_adapters(whole, 2, seed=0)
    result = warm_up(
        *(model, adapters, ROWS, list(batches_of(3, 2, STEPS, np.random.default_rng(0)))),
        checkpoints=1,
        learning_rate=0.02,
        tokens_per_batch=1000,
        chunk=4,
        keep_moments=True,
        tell=lambda step, loss: None,
    )
    set_state(adapters, result.states[-1])
    return model, adapters, result


def moments_of(result: WarmUp, adapters: dict[str, LowRank]) -> Moments:
    names = [name for name, _ in matrices_of(adapters)]
    last = result.moments[-1]
    first, second = ({n: last[f"{n}.{order}"] for n in names} for order in ("first", "second"))
    return Moments(first, second, STEPS)


def plain_gradients(model: TargetModel, adapters: dict[str, LowRank], row: Rows) -> dict[str, Any]:
    """One row, one backward pass of autograd, into the parameters."""
    matrices = dict(matrices_of(adapters))
    loss = row_losses(model, row, 256)[0]
    return dict(zip(matrices, torch.autograd.grad(loss, list(matrices.values())), strict=True))


def test_gradients_of_a_batch_are_those_of_each_row_alone(warmed: Any) -> None:
    model, adapters, _ = warmed
    losses, pieces = row_gradients(model, adapters, ROWS, 4)
    found = dict(pieces)
    assert list(found) == [name for name, _ in matrices_of(adapters)]
    assert not losses.requires_grad
    for i in range(3):
        expected = plain_gradients(model, adapters, ROWS.take(np.array([i])))
        for name, gradient in expected.items():
            assert gradient.abs().max() > 0
            scale = float(gradient.abs().max())
            assert torch.allclose(found[name][i], gradient.flatten(), rtol=1e-4, atol=1e-5 * scale)


def step_of_torch(
    model: TargetModel, adapters: dict[str, LowRank], result: WarmUp, row: Rows
) -> dict[str, Tensor]:
    """Let torch's AdamW take the next step on one row, and say how far it went, at rate 1."""
    copies = {n: m.detach().double().clone().requires_grad_() for n, m in matrices_of(adapters)}
    optimizer = torch.optim.AdamW(copies.values(), lr=1.0, weight_decay=0.0)
    for name, gradient in plain_gradients(model, adapters, row).items():
        copies[name].grad = gradient.double()
        optimizer.state[copies[name]] = {
            "step": torch.tensor(float(STEPS)),
            "exp_avg": result.moments[-1][f"{name}.first"].double(),
            "exp_avg_sq": result.moments[-1][f"{name}.second"].double(),
        }
    before = {name: copy.detach().clone() for name, copy in copies.items()}
    optimizer.step()
    return {name: (before[name] - copy.detach()).flatten() for name, copy in copies.items()}


def test_the_folded_direction_is_adams_next_step_on_that_row(warmed: Any) -> None:
    model, adapters, result = warmed
    folds = make_folds(adapters, DIM, seed=3)
    moments = moments_of(result, adapters)
    _, found = folded_gradients(model, adapters, ROWS, 4, folds, DIM, moments)
    for i in range(3):
        moved = step_of_torch(model, adapters, result, ROWS.take(np.array([i])))
        expected = np.zeros(DIM)
        for name, fold in folds.items():
            expected += as_matrix(fold) @ moved[name].numpy()
        assert np.abs(expected).max() > 1  # steps of Adam are about 1 long in each number
        assert np.allclose(found[i].numpy(), expected, rtol=1e-3, atol=1e-2)
        plain = plain_gradients(model, adapters, ROWS.take(np.array([i])))
        flat = sum(as_matrix(folds[n]) @ g.flatten().numpy() for n, g in plain.items())
        assert np.corrcoef(flat, expected)[0, 1] < 0.9  # it is not the gradient


def as_matrix(fold: Fold) -> np.ndarray:
    """The map written out, (DIM, P), number by number."""
    matrix = np.zeros((DIM, fold.signs.numel()))
    for place, number in enumerate(fold.places.tolist()):
        if number < fold.signs.numel():
            matrix[place % DIM, number] += float(fold.signs[number])
    return matrix


def test_plain_gradients_are_folded_as_they_are(warmed: Any) -> None:
    model, adapters, _ = warmed
    folds = make_folds(adapters, DIM, seed=3)
    _, found = folded_gradients(model, adapters, ROWS, 4, folds, DIM, None)
    for i in range(3):
        plain = plain_gradients(model, adapters, ROWS.take(np.array([i])))
        expected = sum(as_matrix(folds[n]) @ g.flatten().numpy() for n, g in plain.items())
        assert np.allclose(found[i].numpy(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("others", [[], [0, 2]])
def test_a_row_that_trains_nothing_pulls_nowhere(warmed: Any, others: list[int]) -> None:
    model, adapters, result = warmed
    rest = ROWS.take(np.array(others, np.int64))
    silent = np.full(6, -100, np.int32)
    rows = Rows([np.arange(3, 9, dtype=np.int32), *rest.input_ids], [silent, *rest.labels])
    folds = make_folds(adapters, DIM, seed=3)
    _, found = folded_gradients(model, adapters, rows, 4, folds, DIM, moments_of(result, adapters))
    assert found[0].tolist() == [0.0] * DIM
    assert torch.isfinite(found).all() and bool((found[1:] != 0).any(dim=1).all())
    assert not joined(found.numpy()[:, None])[0].any()


def test_a_fold_by_hand() -> None:
    fold = Fold(torch.tensor([1.0, -1.0, 1.0]), torch.tensor([2, 0, 3, 1]))
    # They stand as x2, x0, nothing, -x1; the first and third share a bucket, so do the others.
    assert fold(torch.tensor([[5.0, 7.0, 11.0], [1.0, 0.0, 0.0]]), 2).tolist() == [[11, -2], [0, 1]]


@pytest.mark.parametrize("size", [40, 1000])
def test_folds_keep_inner_products(size: int) -> None:
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=size)) for _ in range(2))
    x[3] = y[3] = 2.0 * size**0.5  # a number that weighs more than all others
    pair = torch.stack([x, y])
    folded = [make_fold(size, 128, seed)(pair, 128) for seed in range(300)]
    found = np.array([float(f[0] @ f[1]) for f in folded])
    bound = float(2 * (x @ x) * (y @ y) / 128)  # of the variance
    assert abs(found.mean() - float(x @ y)) < 4 * (bound / 300) ** 0.5
    assert ((found - float(x @ y)) ** 2).mean() < bound
    assert found.std() > 0 or size < 128


def test_other_seeds_and_matrices_have_other_folds() -> None:
    pairs = [make_fold(100, 8, seed) for seed in ([0, 0], [0, 1], [1, 0])]
    assert len({tuple(fold.places.tolist()) for fold in pairs}) == 3
    assert torch.equal(make_fold(100, 8, [0, 1]).signs, pairs[1].signs)


def test_the_product_of_joined_rows_is_the_mean_cosine() -> None:
    # Two checkpoints: cosines 1 and 0.6; the third row has no gradient at the second checkpoint.
    folded = np.array([[[2, 0], [0, 3]], [[9, 0], [4, 3]], [[-1, 0], [0, 0]]], np.float32)
    rows = joined(folded)
    assert rows.shape == (3, 4) and rows.dtype == np.float16
    products = rows.astype(np.float64) @ rows.astype(np.float64).T
    assert products == pytest.approx(
        np.array([[1, 0.8, -0.5], [0.8, 1, -0.5], [-0.5, -0.5, 0.5]]), abs=2e-3
    )
    assert not joined(np.zeros((1, 2, 2), np.float32)).any()
