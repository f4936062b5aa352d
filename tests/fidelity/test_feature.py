"""Features and signals of the embed stage against autograd, dense sums, and numbers by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from stages.contract.schemas import SIGNALS
from stages.embed.features import row_features
from stages.embed.sketch import Sketch
from tests.fidelity.passes import HIDDEN, ROWS, embed, sketch_of, supervised
from tests.tiny import VOCAB

SKETCH_SEEDS = 400


def position_losses(whole, ids, labels):
    logits = whole(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return [-torch.log_softmax(logits[t], 0)[y] for t, y in supervised(labels)]


def target_row_by_autograd(whole, ids, labels):
    """The mean over positions of row y of that position's own gradient in the head."""
    losses = position_losses(whole, ids, labels)
    total = torch.zeros(HIDDEN)
    for loss, (_, y) in zip(losses, supervised(labels), strict=True):
        (gradient,) = torch.autograd.grad(loss, whole.lm_head.weight, retain_graph=True)
        total += gradient[y]
    return (total / len(losses)).numpy()


def head_gradient_by_autograd(whole, ids, labels):
    loss = torch.stack(position_losses(whole, ids, labels)).mean()
    (gradient,) = torch.autograd.grad(loss, whole.lm_head.weight)
    return gradient


def hidden_states(whole, ids, labels):
    """Last hidden states after the final norm at the supervised positions, and their targets."""
    with torch.inference_mode():
        hidden = whole.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    places, targets = zip(*supervised(labels), strict=True)
    return hidden[list(places)], torch.tensor(targets)


# Against autograd.


@pytest.mark.parametrize("tokens_per_batch", [1, 10**6])
def test_target_row_is_autograds_row_y_of_the_head_gradient(
    tmp_path, target, whole, tokens_per_batch
):
    got = embed(tmp_path, target, ROWS, tokens_per_batch=tokens_per_batch)
    assert got.row_ids == list(range(len(ROWS)))
    for embedding, (ids, labels) in zip(got.embedding, ROWS, strict=True):
        expected = target_row_by_autograd(whole, ids, labels)
        error = np.linalg.norm(embedding - expected) / np.linalg.norm(expected)
        assert error < 1e-5


def test_the_first_label_is_never_a_target(tmp_path, target):
    ids, labels = [5, 6, 7, 8], [-100, -100, 7, 8]
    rows = [(ids, labels), (ids, [5, *labels[1:]])]
    got = embed(tmp_path, target, rows)
    assert got.embedding[0].tolist() == got.embedding[1].tolist()


def test_head_sketch_is_the_sketch_of_autograds_head_gradient(tmp_path, target, whole):
    """Both maps applied to the exact gradient, as dense matrices."""
    got = embed(tmp_path, target, ROWS, feature="head_sketch")
    sketch = sketch_of(target)
    for embedding, (ids, labels) in zip(got.embedding, ROWS, strict=True):
        gradient = head_gradient_by_autograd(whole, ids, labels)
        expected = (sketch.vocab_map.T @ gradient @ sketch.hidden_map).flatten().numpy()
        assert np.linalg.norm(embedding - expected) < 1e-5 * np.linalg.norm(expected)


def sketches_over_seeds(target, whole, rows, seeds, sketch_vocab, sketch_hidden):
    """Real head_sketch features, of shape (seeds, rows, dim)."""
    states = [hidden_states(whole, *row) for row in rows]
    hidden = torch.cat([h for h, _ in states])
    targets = torch.cat([y for _, y in states])
    counts = [len(y) for _, y in states]
    features = []
    for seed in range(seeds):
        sketch = sketch_of(target, seed, sketch_vocab, sketch_hidden)
        with torch.inference_mode():
            rows_features = row_features(
                hidden,
                targets,
                counts,
                target.head,
                names=["head_sketch"],
                chunk=256,
                sketches={"head_sketch": sketch},
            )
        features.append(rows_features.features["head_sketch"].double())
    return torch.stack(features).numpy()


@pytest.mark.parametrize(("sketch_vocab", "sketch_hidden"), [(64, 16), (30, 8), (600, 4)])
def test_inner_products_and_norms_of_sketches_are_unbiased(
    target, whole, sketch_vocab, sketch_hidden
):
    rows = ROWS[1:5]
    sketches = sketches_over_seeds(target, whole, rows, SKETCH_SEEDS, sketch_vocab, sketch_hidden)
    gradients = [head_gradient_by_autograd(whole, *row).double().flatten() for row in rows]
    exact = torch.stack(gradients) @ torch.stack(gradients).T
    products = np.einsum("sid,sjd->sij", sketches, sketches)
    mean = products.mean(0)
    error = products.std(0, ddof=1) / math.sqrt(SKETCH_SEEDS)
    for i in range(len(rows)):
        for j in range(i, len(rows)):
            scale = math.sqrt(exact[i, i] * exact[j, j])
            # The interval is narrow enough to mean something, and holds the exact value.
            assert error[i, j] < 0.05 * scale
            assert abs(mean[i, j] - exact[i, j]) < 4 * error[i, j] + 1e-6 * scale


# By hand: vocabulary 3, hidden size 2, p = (1/2, 1/4, 1/4) at h = (1, 2) and y = 1.

HAND_HEAD = torch.tensor([[math.log(0.5), 0.0], [math.log(0.25), 0.0], [math.log(0.25), 0.0]])
HAND_HIDDEN = torch.tensor([[1.0, 2.0]])
HAND_SKETCH = Sketch(
    vocab_map=torch.tensor([[1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]]),
    hidden_map=torch.tensor([[1.0], [-1.0]]),
)


def by_hand(feature, hidden=HAND_HIDDEN, targets=(1,), counts=(1,), sketch=None):
    return row_features(
        hidden,
        torch.tensor(targets),
        list(counts),
        lambda h: h @ HAND_HEAD.T,
        names=[feature],
        chunk=256,
        sketches={"head_sketch": sketch} if sketch else {},
    )


def test_target_row_by_hand():
    np.testing.assert_allclose(
        by_hand("target_row").features["target_row"], [[-0.75, -1.5]], rtol=1e-6
    )


def test_head_sketch_by_hand():
    """p - e_y = (.5, -.75, .25) folds to (.5 - .25, .75); h projects to 1 - 2."""
    got = by_hand("head_sketch", sketch=HAND_SKETCH)
    np.testing.assert_allclose(got.features["head_sketch"], [[-0.25, -0.75]], rtol=1e-6)


def test_hidden_mean_by_hand():
    hidden = torch.tensor([[1.0, 2.0], [3.0, -4.0], [1.0, 0.0]])
    got = by_hand("hidden_mean", hidden, targets=(0, 1, 2), counts=(2, 1))
    np.testing.assert_allclose(got.features["hidden_mean"], [[2.0, -1.0], [1.0, 0.0]], rtol=1e-6)


def test_a_model_that_masks_logits_has_finite_signals():
    """Some models set the logits of unused tokens to -inf; 0 * -inf must not spoil the row."""
    hidden = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))

    def masked(states):
        logits = states @ weight.T
        logits[:, 5] = -torch.inf
        return logits

    options = {"names": ["target_row"], "chunk": 3, "sketches": {}}
    targets = torch.tensor([0, 1, 2, 3])
    got = row_features(hidden, targets, [2, 2], masked, **options)
    plain = row_features(hidden, targets, [2, 2], lambda states: states @ weight[:5].T, **options)
    for name, values in got.signals.items():
        assert torch.allclose(values, plain.signals[name], atol=1e-6), name
    assert torch.allclose(got.features["target_row"], plain.features["target_row"], atol=1e-6)


def test_signals_by_hand():
    got = by_hand("target_row").signals
    residual = math.sqrt(0.5**2 + 0.75**2 + 0.25**2)
    expected = {
        "loss": math.log(4),
        "mean_p": 0.25,
        "max_p": 0.5,
        "entropy": 1.5 * math.log(2),
        "el2n": residual,
        "grad_norm_bound": residual,
        "head_grad_norm": residual * math.sqrt(5),
        "embedding_norm": 0.75 * math.sqrt(5),
    }
    assert set(got) == set(expected) == set(SIGNALS)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name].numpy(), [value], rtol=1e-6, err_msg=name)


# Against dense sums.


def dense_signals(whole, ids, labels):
    """Every signal from the whole matrix of probabilities, in float64."""
    hidden, targets = hidden_states(whole, ids, labels)
    hidden = hidden.double()
    logits = hidden @ whole.lm_head.weight.detach().double().T
    p = torch.softmax(logits, 1)
    residual = p.clone()
    residual[torch.arange(len(targets)), targets] -= 1
    norms = residual.norm(dim=1)
    right = p[torch.arange(len(targets)), targets]
    return {
        "loss": -right.log().mean(),
        "mean_p": right.mean(),
        "max_p": p.max(1).values.mean(),
        "entropy": -(p * p.log()).sum(1).mean(),
        "el2n": norms.mean(),
        "grad_norm_bound": norms.square().sum().sqrt() / len(targets),
        "head_grad_norm": (norms * hidden.norm(dim=1)).mean(),
        "embedding_norm": ((right - 1)[:, None] * hidden).mean(0).norm(),
    }


@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_signals_are_the_dense_ones(tmp_path, target, whole, sharpness):
    """Also where the head is so sharp that probabilities are near 0 and 1."""
    sharp = dataclasses.replace(target, head=lambda hidden: sharpness * target.head(hidden))
    got = embed(tmp_path, sharp, ROWS)
    weight = whole.lm_head.weight.detach().clone()
    try:
        whole.lm_head.weight.data.mul_(sharpness)
        for index, row in enumerate(ROWS):
            for name, expected in dense_signals(whole, *row).items():
                np.testing.assert_allclose(
                    got.signals[name][index], float(expected), rtol=1e-4, atol=1e-6, err_msg=name
                )
    finally:
        whole.lm_head.weight.data.copy_(weight)


@pytest.mark.parametrize("sharpness", [1.5, 2.0, 3.0])
def test_features_and_signals_of_confident_rows_are_the_dense_ones(sharpness):
    """Rows that the model knows by heart: 1 - p_y is from 1e-3 down to 1e-7 and still counts."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator)
    targets = torch.randint(0, VOCAB, (50,), generator=generator)
    hidden = 0.4 * sharpness * weight[targets]
    hidden += 0.05 * torch.randn(50, HIDDEN, generator=generator)
    got = row_features(
        hidden, targets, [50], lambda h: h @ weight.T, names=["target_row"], chunk=256, sketches={}
    )
    p = torch.softmax(hidden.double() @ weight.double().T, 1)
    wrong = p.clone()
    wrong[torch.arange(50), targets] = 0
    missing = wrong.sum(1)  # 1 - p_y without cancellation
    norms = (wrong.square().sum(1) + missing.square()).sqrt()
    expected = -(missing[:, None] * hidden.double()).mean(0)
    error = (got.features["target_row"][0].double() - expected).norm() / expected.norm()
    signals = {
        "el2n": norms.mean(),
        "grad_norm_bound": norms.square().sum().sqrt() / 50,
        "head_grad_norm": (norms * hidden.double().norm(dim=1)).mean(),
    }
    ratios = {name: float(got.signals[name][0] / value) for name, value in signals.items()}
    assert ratios == pytest.approx(dict.fromkeys(signals, 1.0), rel=1e-3)
    assert error < 1e-3


def test_hidden_mean_is_the_dense_one(tmp_path, target, whole):
    got = embed(tmp_path, target, ROWS, feature="hidden_mean")
    for embedding, row in zip(got.embedding, ROWS, strict=True):
        expected = hidden_states(whole, *row)[0].mean(0).numpy()
        np.testing.assert_allclose(embedding, expected, rtol=1e-5, atol=1e-6)
