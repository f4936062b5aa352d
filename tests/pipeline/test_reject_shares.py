"""A result that was let through with many rejects is not reused by a run that allows few."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.pipeline.runs import run

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def broken_model(tmp_path: Path, model_folder: Path) -> Path:
    """The tiny model, with no numbers for a token that some rows of the sample have."""
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    weights = safetensors.load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][vocabulary["?"]] = torch.nan
    safetensors.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_few_rejects_are_asked_of_a_reused_pass(tmp_path: Path, broken_model: Path) -> None:
    loose = run(tmp_path, broken_model, "embed.max_reject_fraction=1", "compute=local")
    assert loose.status == 0, loose.log
    [told] = re.findall(r"embed: (\d+) rows kept, (\d+) rejected", loose.log)
    assert 0 < int(told[1]) < 96 == int(told[0]) + int(told[1])
    strict = run(tmp_path, broken_model, "compute=local")
    assert strict.status == 2, strict.log
    assert "embed    reused" in strict.log
    assert f"embed: {told[1]} of 96 rows" in strict.log
    assert "more than embed.max_reject_fraction=0.01 allows" in strict.log
    again = run(tmp_path, broken_model, "embed.max_reject_fraction=0.99", "compute=local")
    assert again.status == 0, again.log
    assert again.stages("running") == []
