"""Several features of one pass: each is what it is alone, in its own column."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import LlamaForCausalLM

from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.draft import Draft
from stages.contract.errors import ConfigurationError
from stages.contract.parts import cut
from stages.contract.schemas import ALONE_LOSS, SIGNALS, feature_column
from stages.embed.features import position_mean
from stages.embed.model import wrap_model
from stages.embed.reading import column_of
from stages.embed.sketch import make_sketch
from stages.embed.stage import EmbedConfig, EmbedSettings, ModelConfig, identity
from stages.embed.worker import EmbedWorker, PassOptions
from tests.artifacts import blobs, embed_table, run_stage, save
from tests.fidelity.artifacts import write_rows, write_tokens
from tests.fidelity.passes import HIDDEN, ROWS
from tests.tiny import tiny_model

ALL = ("target_row", "head_sketch", "hidden_mean", "judge_sketch", "position_mean")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tiny_model(tmp_path_factory.mktemp("model"), tie=False, hidden=HIDDEN)
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def passed(store: Path, whole: Any, features: tuple[str, ...], *, alone: bool = False) -> Any:
    """Run the worker over all rows at once, and read its table."""
    target = wrap_model(whole)
    written = write_rows(store, len(ROWS), 1000)
    tokens = write_tokens(store, written, [r[0] for r in ROWS], [r[1] for r in ROWS], 1000)
    sketches = {
        name: make_sketch(
            target.vocab_size,
            target.hidden_size,
            sketch_vocab=16,
            sketch_hidden=8,
            seed=seed,
            device=CPU,
        )
        for seed, name in enumerate(("head_sketch", "judge_sketch"))
        if name in features
    }
    options = PassOptions(features, 10**6, 64, alone)
    worker = EmbedWorker(
        target, sketches, options, tokens, written.path, Draft.create(store, "embed", "k")
    )
    (spec,) = cut(len(ROWS), 1000)
    worker(spec)
    return pq.read_table(worker.draft.path / spec.name)


def values(table: Any, column: str) -> np.ndarray:
    return np.array(table[column].to_pylist(), np.float64)


@pytest.mark.parametrize("first", ["target_row", "position_mean", "head_sketch"])
def test_each_feature_is_what_it_is_alone(tmp_path: Path, whole: Any, first: str) -> None:
    together = passed(tmp_path / "all", whole, (first, *(n for n in ALL if n != first)))
    for name in ALL:
        alone = passed(tmp_path / name, whole, (name,))
        found = values(together, feature_column(name, first))
        assert np.allclose(found, values(alone, feature_column(name, name)), rtol=1e-5, atol=1e-6)
    norms = np.linalg.norm(values(together, "embedding"), axis=1)
    assert np.allclose(values(together, "embedding_norm"), norms, rtol=1e-5)


def test_the_judge_shares_no_numbers_with_the_sketch_it_judges(tmp_path: Path, whole: Any) -> None:
    table = passed(tmp_path, whole, ("head_sketch", "judge_sketch"))
    one, other = values(table, "embedding"), values(table, "judge_sketch")
    one, other = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (one, other))
    assert np.abs(np.einsum("ij,ij->i", one, other)).max() < 0.6


def test_position_mean_by_hand() -> None:
    hidden = torch.tensor([[[1.0], [4.0], [7.0]], [[2.0], [5.0], [9.0]]])
    found = position_mean(hidden, torch.tensor([3, 2]))
    assert found.tolist() == [[(1 + 8 + 21) / 6], [pytest.approx((2 + 10) / 3)]]


def test_position_mean_does_not_see_padding_even_where_it_is_not_a_number() -> None:
    hidden = torch.tensor([[[1.0], [float("nan")]]])
    assert position_mean(hidden, torch.tensor([1])).tolist() == [[1.0]]


def test_the_loss_of_the_answer_alone_is_that_of_a_row_without_prompt(
    tmp_path: Path, whole: Any
) -> None:
    table = passed(tmp_path, whole, ("target_row",), alone=True)
    assert table.column_names[-1] == ALONE_LOSS
    assert set(SIGNALS) < set(table.column_names)
    for found, (ids, labels) in zip(table[ALONE_LOSS].to_pylist(), ROWS, strict=True):
        answer = [token for token, label in zip(ids[1:], labels[1:], strict=True) if label != -100]
        alone = torch.tensor([[ids[0], *answer]])
        with torch.inference_mode():
            expected = whole(input_ids=alone, labels=alone).loss
        assert found == pytest.approx(float(expected), rel=1e-4)


def test_a_feature_that_was_not_made_names_the_key(tmp_path: Path) -> None:
    params = {"embed": {"feature": "target_row"}}
    table = embed_table(list(range(30)), blobs([30]))
    made = save(tmp_path, "embed", table, params=params)
    assert column_of(made, "target_row") == "embedding"
    for settings in (ClusterConfig(feature="head_sketch"),):
        with pytest.raises(ConfigurationError, match=r"embed\.also=\[head_sketch\]"):
            run_stage(CLUSTER_STAGE, settings, {"embed": made}, tmp_path)


def key_of(tmp_path: Path, **keys: Any) -> Any:
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_bytes(b"{}")
    settings = EmbedSettings(EmbedConfig(**keys), ModelConfig(), tmp_path, "cpu", 0, tmp_path / "h")
    return identity(settings)


def test_the_key_knows_further_features_as_a_set(tmp_path: Path) -> None:
    one = key_of(tmp_path, also=["hidden_mean", "head_sketch"])
    assert one == key_of(tmp_path, also=["head_sketch", "hidden_mean", "target_row"])
    assert one != key_of(tmp_path, also=["hidden_mean"])
    assert key_of(tmp_path) != key_of(tmp_path, judge=False)


def test_a_seed_that_no_sketch_reads_is_not_in_the_key(tmp_path: Path) -> None:
    assert key_of(tmp_path, judge=False) == key_of(tmp_path, judge=False, seed=3)
    assert key_of(tmp_path) != key_of(tmp_path, seed=3)
