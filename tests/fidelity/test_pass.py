"""What must not matter to a feature (batches, chunks, padding, memory), and how large it gets."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stages.contract.parts import cut
from stages.contract.schemas import SIGNALS
from stages.embed.features import row_features
from stages.embed.model import wrap_model
from stages.embed.sketch import make_sketch
from stages.embed.stage import FEATURES
from tests.fidelity.passes import CPU, HIDDEN, ROWS, embed, make_rows, make_worker, supervised
from tests.tiny import VOCAB

PAD = 0  # what the worker pads with; no row holds it


def assert_same_features(left, right, rtol=1e-6):
    """Equal up to float32 sums in another order, relative to the size of a row's feature."""
    assert left.row_ids == right.row_ids
    scale = np.linalg.norm(right.embedding, axis=1, keepdims=True)
    assert np.abs((left.embedding - right.embedding) / scale).max() <= rtol
    for name in SIGNALS:
        np.testing.assert_allclose(left.signals[name], right.signals[name], rtol=rtol, atol=rtol)


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
@pytest.mark.parametrize("feature", ["target_row", "hidden_mean", "head_sketch"])
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
            names=[feature],
            chunk=chunk,
            sketches={"head_sketch": sketch} if feature == "head_sketch" else {},
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
