"""Models by path: what is refused without loading anything."""

import json
from pathlib import Path

import pytest

from stages.contract.errors import ConfigurationError
from stages.embed.checkpoint import (
    check_max_length,
    check_model_path,
    embedded_model,
    resolve_model,
    vocabulary_size,
)
from stages.embed.stage import check_vocabulary
from tests.artifacts import save, tokens_table
from tests.tiny import tiny_tokenizer


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "model.path is empty"),
        ("/no/such", "does not exist"),
        ("./relative", "does not exist"),
        ("a/b/c", "does not exist"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_model_path(path)


@pytest.mark.parametrize("path", ["smollm2", "org/name"])
def test_the_embedded_model_and_hub_names_pass(path: str) -> None:
    check_model_path(path)


def test_a_folder_must_hold_a_config_and_safetensors(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"without config\.json"):
        check_model_path(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ConfigurationError, match="pickled weights are never loaded"):
        check_model_path(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    check_model_path(str(tmp_path))
    assert resolve_model(str(tmp_path), tmp_path / "models") == tmp_path


def test_a_hub_name_without_a_network_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigurationError, match="download it and give its folder"):
        resolve_model("nobody/nothing-here", tmp_path)


@pytest.mark.parametrize(
    ("config", "size"),
    [({"vocab_size": 7}, 7), ({"text_config": {"vocab_size": 9}}, 9), ({}, None)],
)
def test_the_vocabulary_is_read_from_the_config(
    tmp_path: Path, config: dict[str, object], size: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vocabulary_size(tmp_path) == size


@pytest.mark.parametrize("name", ["max_position_embeddings", "n_positions"])
def test_rows_longer_than_the_positions_are_refused_before_tokenising(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({name: 1024}))
    check_max_length(tmp_path, 1024)
    with pytest.raises(ConfigurationError, match=r"set tokens\.max_length=1024"):
        check_max_length(tmp_path, 2048)
    (tmp_path / "config.json").write_text("{}")
    check_max_length(tmp_path, 10**6)


def test_a_token_beyond_the_vocabulary_stops_before_the_model(tmp_path: Path) -> None:
    folder = tiny_tokenizer(tmp_path / "model")
    tokens = save(tmp_path / "store", "tokens", tokens_table([0, 1], [4, 6]))
    largest = max(max(ids) for ids in tokens.read(["input_ids"])["input_ids"].to_pylist())
    (folder / "config.json").write_text(json.dumps({"vocab_size": largest + 1}))
    check_vocabulary(tokens, folder)
    (folder / "config.json").write_text(json.dumps({"vocab_size": largest}))
    with pytest.raises(ConfigurationError, match=f"token {largest}, which must be < {largest}"):
        check_vocabulary(tokens, folder)


def test_a_conversion_is_the_same_with_and_without_the_hub(tmp_path: Path) -> None:
    """transformers notes whether the hub was allowed, which got into the keys of all results."""
    folder = embedded_model(tmp_path)  # the tests allow none
    written = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert written.get("local_files_only", False) is False
