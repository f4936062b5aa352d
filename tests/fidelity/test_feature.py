"""Features and signals of the embed stage against autograd, dense sums, and numbers by hand."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stages.contract.draft import Draft
from stages.contract.parts import cut
from stages.contract.schemas import SIGNALS
from stages.embed.features import FEATURES, row_features
from stages.embed.model import load_model, wrap_model
from stages.embed.sketch import Sketch, make_sketch
from stages.embed.worker import EmbedWorker, PassOptions
from tests.fidelity.artifacts import write_rows, write_tokens
from tests.tiny import VOCAB, tiny_model

HIDDEN = 32
CPU = torch.device("cpu")
PAD = 0  # what the worker pads with; no row below holds it
LENGTHS = (2, 3, 9, 17, 33, 64)
SKETCH_SEEDS = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"), tie=False, hidden=HIDDEN)


@pytest.fixture(scope="module")
def target(folder):
    return load_model(folder, dtype="float32", device="cpu", attn_implementation="sdpa")


@pytest.fixture(scope="module")
def whole(folder):
    """The model as its authors wrote it, with gradients."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def make_rows(lengths=LENGTHS, seed=0):
    """Rows of random tokens: prompts of several lengths, gaps, and label 0 supervised once."""
    rng = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(lengths):
        ids = rng.integers(1, VOCAB, length)
        labels = ids.copy()
        labels[: length // 3] = -100
        if length > 8:
            labels[length // 2 : length // 2 + 2] = -100
        if number == 0:
            labels[0] = ids[0]
        rows.append((ids.tolist(), labels.tolist()))
    return rows


ROWS = make_rows()


def make_worker(store, target, rows, *, feature="target_row", tokens_per_batch=10**6, chunk=256):
    written = write_rows(store, len(rows), 1000)
    tokens = write_tokens(store, written, [r[0] for r in rows], [r[1] for r in rows], 1000)
    sketch = sketch_of(target) if feature == "head_sketch" else None
    options = PassOptions(feature, tokens_per_batch, chunk)
    draft = Draft.create(store, "embed", "hand")
    return EmbedWorker(target, sketch, options, tokens, written.path, draft)


def sketch_of(target, seed=0, sketch_vocab=64, sketch_hidden=16):
    return make_sketch(
        target.vocab_size,
        target.hidden_size,
        sketch_vocab=sketch_vocab,
        sketch_hidden=sketch_hidden,
        seed=seed,
        device=CPU,
    )


def embed(store, target, rows, **options):
    """Run the real worker over one part: its table as arrays, its receipt, its rejects."""
    import pyarrow.parquet as pq

    worker = make_worker(store, target, rows, **options)
    (spec,) = cut(len(rows), 1000)
    receipt = worker(spec)
    table = pq.read_table(worker.draft.path / spec.name)
    rejects = worker.draft.path / "rejects-00000.parquet"
    return SimpleNamespace(
        row_ids=table["row_id"].to_pylist(),
        embedding=np.array(table["embedding"].to_pylist(), np.float64),
        signals={name: table[name].to_numpy().astype(np.float64) for name in SIGNALS},
        stats=receipt.stats,
        rejects=pq.read_table(rejects).to_pylist() if rejects.exists() else [],
    )


def assert_same_features(left, right, rtol=1e-6):
    """Equal up to float32 sums in another order, relative to the size of a row's feature."""
    assert left.row_ids == right.row_ids
    scale = np.linalg.norm(right.embedding, axis=1, keepdims=True)
    assert np.abs((left.embedding - right.embedding) / scale).max() <= rtol
    for name in SIGNALS:
        np.testing.assert_allclose(left.signals[name], right.signals[name], rtol=rtol, atol=rtol)


def supervised(labels):
    """Positions whose next token is trained, with that token."""
    return [(t, labels[t + 1]) for t in range(len(labels) - 1) if labels[t + 1] != -100]


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
    fold = torch.zeros(VOCAB, sketch.num_buckets)
    fold[torch.arange(VOCAB), sketch.bucket_of] = sketch.sign_of
    for embedding, (ids, labels) in zip(got.embedding, ROWS, strict=True):
        gradient = head_gradient_by_autograd(whole, ids, labels)
        expected = (fold.T @ gradient @ sketch.hidden_map).flatten().numpy()
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
                feature="head_sketch",
                chunk=256,
                sketch=sketch,
            )
        features.append(rows_features.embedding.double())
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
    order=torch.tensor([0, 2, 1, 0]),
    signs=torch.tensor([1.0, -1.0, -1.0, 0.0]),
    bucket_of=torch.tensor([0, 1, 0]),
    sign_of=torch.tensor([1.0, -1.0, -1.0]),
    hidden_map=torch.tensor([[1.0], [-1.0]]),
)


def by_hand(feature, hidden=HAND_HIDDEN, targets=(1,), counts=(1,), sketch=None):
    return row_features(
        hidden,
        torch.tensor(targets),
        list(counts),
        lambda h: h @ HAND_HEAD.T,
        feature=feature,
        chunk=256,
        sketch=sketch,
    )


def test_target_row_by_hand():
    np.testing.assert_allclose(by_hand("target_row").embedding, [[-0.75, -1.5]], rtol=1e-6)


def test_head_sketch_by_hand():
    """p - e_y = (.5, -.75, .25) folds to (.5 - .25, .75); h projects to 1 - 2."""
    got = by_hand("head_sketch", sketch=HAND_SKETCH)
    np.testing.assert_allclose(got.embedding, [[-0.25, -0.75]], rtol=1e-6)


def test_hidden_mean_by_hand():
    hidden = torch.tensor([[1.0, 2.0], [3.0, -4.0], [1.0, 0.0]])
    got = by_hand("hidden_mean", hidden, targets=(0, 1, 2), counts=(2, 1))
    np.testing.assert_allclose(got.embedding, [[2.0, -1.0], [1.0, 0.0]], rtol=1e-6)


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
        hidden, targets, [50], lambda h: h @ weight.T, feature="target_row", chunk=256
    )
    p = torch.softmax(hidden.double() @ weight.double().T, 1)
    wrong = p.clone()
    wrong[torch.arange(50), targets] = 0
    missing = wrong.sum(1)  # 1 - p_y without cancellation
    norms = (wrong.square().sum(1) + missing.square()).sqrt()
    expected = -(missing[:, None] * hidden.double()).mean(0)
    error = (got.embedding[0].double() - expected).norm() / expected.norm()
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


# What must not matter.


@pytest.mark.parametrize("chunk", [1, 3, 256])
@pytest.mark.parametrize("feature", FEATURES)
def test_the_chunk_does_not_change_a_feature(tmp_path, target, feature, chunk):
    got = embed(tmp_path / "a", target, ROWS, feature=feature, chunk=chunk)
    reference = embed(tmp_path / "b", target, ROWS, feature=feature, chunk=7)
    assert_same_features(got, reference)


@pytest.mark.parametrize("tokens_per_batch", [1, 40, 100])
@pytest.mark.parametrize("feature", FEATURES)
def test_the_batch_does_not_change_a_feature(tmp_path, target, feature, tokens_per_batch):
    options = {"feature": feature, "tokens_per_batch": tokens_per_batch}
    got = embed(tmp_path / "a", target, ROWS, **options)
    together = embed(tmp_path / "b", target, ROWS, feature=feature)
    assert_same_features(got, together)


def test_the_order_of_rows_does_not_change_a_feature(tmp_path, target):
    forward = embed(tmp_path / "a", target, ROWS)
    backward = embed(tmp_path / "b", target, ROWS[::-1])
    backward.embedding = backward.embedding[::-1]
    backward.signals = {name: values[::-1] for name, values in backward.signals.items()}
    assert_same_features(backward, forward)


@pytest.mark.parametrize("feature", FEATURES)
def test_nan_at_padding_does_not_matter(tmp_path, target, feature):
    padded = []

    def trunk(input_ids):
        hidden = target.trunk(input_ids).clone()
        hidden[input_ids == PAD] = math.nan
        padded.append(int((input_ids == PAD).sum()))
        return hidden

    def head(hidden):
        assert torch.isfinite(hidden).all()
        return target.head(hidden)

    spoilt = dataclasses.replace(target, trunk=trunk, head=head)
    got = embed(tmp_path / "a", spoilt, ROWS, feature=feature)
    assert sum(padded) > 0
    clean = embed(tmp_path / "b", target, ROWS, feature=feature)
    assert_same_features(got, clean)


def test_nan_at_prompt_positions_does_not_matter(tmp_path, target):
    """Positions that predict no trained token never meet the head."""
    marks = []

    def trunk(input_ids):
        hidden = target.trunk(input_ids).clone()
        for row, ids in enumerate(input_ids.tolist()):
            labels = next(labels for i, labels in ROWS if i == ids[: len(i)])
            used = {t for t, _ in supervised(labels)}
            unused = [t for t in range(len(ids)) if t not in used]
            hidden[row, unused] = math.nan
            marks.extend(unused)
        return hidden

    got = embed(tmp_path / "a", dataclasses.replace(target, trunk=trunk), ROWS)
    assert marks
    assert_same_features(got, embed(tmp_path / "b", target, ROWS))


def test_nan_at_a_supervised_position_refuses_that_row_only(tmp_path, target):
    def trunk(input_ids):
        hidden = target.trunk(input_ids).clone()
        hidden[input_ids[:, 0] == ROWS[3][0][0], 10] = math.nan
        return hidden

    got = embed(tmp_path, dataclasses.replace(target, trunk=trunk), ROWS)
    assert got.row_ids == [0, 1, 2, 4, 5]
    assert [(r["row_id"], r["reason"]) for r in got.rejects] == [(3, "not_finite")]


# Memory.


def failing_trunk(target, fits, error):
    seen = []

    def trunk(input_ids):
        if not fits(input_ids):
            raise error
        seen.append(tuple(input_ids.shape))
        return target.trunk(input_ids)

    return dataclasses.replace(target, trunk=trunk), seen


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
@pytest.mark.parametrize("most", [1, 2, 4])
def test_out_of_memory_halves_the_batch_and_changes_no_feature(tmp_path, target, most, error):
    small, seen = failing_trunk(target, lambda ids: ids.shape[0] <= most, error)
    got = embed(tmp_path / "a", small, ROWS)
    assert max(rows for rows, _ in seen) <= most
    assert sum(rows for rows, _ in seen) == len(ROWS)
    assert got.stats["halvings"] == len(seen) - 1
    assert not got.rejects
    assert_same_features(got, embed(tmp_path / "b", target, ROWS))


def test_a_row_that_fails_alone_is_rejected_and_the_others_are_kept(tmp_path, target):
    error = torch.OutOfMemoryError("CUDA out of memory.")
    small, _ = failing_trunk(target, lambda ids: ids.shape[1] < 64, error)
    got = embed(tmp_path / "a", small, ROWS)
    assert got.row_ids == [0, 1, 2, 3, 4]
    (reject,) = got.rejects
    assert (reject["row_id"], reject["stage"]) == (5, "embed")
    assert reject["reason"] == "too_large_for_device"
    assert "64 tokens" in reject["detail"]
    assert_same_features(got, embed(tmp_path / "b", target, ROWS[:5]))


def test_another_error_of_the_model_is_not_taken_for_memory(tmp_path, target):
    broken, _ = failing_trunk(target, lambda ids: False, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        embed(tmp_path, broken, ROWS)


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation gave back, but for the weights."""

    def __init__(self, weights=()):
        super().__init__()
        self.weights = {weight.untyped_storage().data_ptr() for weight in weights}
        self.numel = 0
        self.shape = ()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.numel() > self.numel:
                if leaf.untyped_storage().data_ptr() not in self.weights:
                    self.numel, self.shape = leaf.numel(), tuple(leaf.shape)
        return result


@pytest.mark.parametrize("chunk", [16, 256])
@pytest.mark.parametrize("feature", FEATURES)
def test_the_largest_tensor_is_bounded_by_chunk_times_vocabulary(feature, chunk):
    positions, hidden_size = 2000, 4
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(positions, hidden_size, generator=generator)
    weight = torch.randn(VOCAB, hidden_size, generator=generator)
    targets = torch.randint(0, VOCAB, (positions,), generator=generator)
    sketch = make_sketch(VOCAB, hidden_size, sketch_vocab=8, sketch_hidden=2, seed=0, device=CPU)
    recorder = LargestTensor([weight, hidden])
    with recorder, torch.inference_mode():
        row_features(
            hidden,
            targets,
            [1500, 500],
            lambda h: h @ weight.T,
            feature=feature,
            chunk=chunk,
            sketch=sketch,
        )
    # Sixteen numbers a position (hidden states, signals, folds) are kept; logits are not.
    assert chunk * VOCAB <= recorder.numel <= max(chunk * VOCAB, 16 * positions), recorder.shape
    assert recorder.numel < positions * VOCAB / 7


@pytest.mark.parametrize("feature", FEATURES)
def test_the_whole_pass_makes_no_tensor_of_positions_times_vocabulary(tmp_path, whole, feature):
    rows = make_rows([300, 280], seed=1)
    chunk = 64
    worker = make_worker(tmp_path, wrap_model(whole), rows, feature=feature, chunk=chunk)
    (spec,) = cut(len(rows), 1000)
    recorder = LargestTensor(whole.parameters())
    with recorder:
        worker(spec)
    tokens, intermediate = 2 * 300, 2 * HIDDEN
    assert recorder.numel <= max(chunk * VOCAB, tokens * intermediate), recorder.shape
    positions = sum(len(supervised(labels)) for _, labels in rows)
    assert recorder.numel < positions * VOCAB / 4
