"""Nothing that comes with data or a model is run: no pickle is read, no code of a model loaded."""

import ast
import json
import pickle
import shutil
from pathlib import Path

import pytest

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import ConfigurationError, DataError
from stages.embed.checkpoint import check_model_path
from stages.embed.model import load_model
from stages.tokens.tokenizer import load_tokenizer
from tests.conftest import ROOT
from tests.faults.test_store import KEY, PART, PARTS, finished

FILES = sorted(
    p for name in ("evenshard", "stages", "pipeline") for p in (ROOT / name).rglob("*.py")
)
UNPICKLERS = {"pickle", "cloudpickle", "joblib", "dill", "shelve", "marshal", "lmdb"}


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_of_ours_can_unpickle(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not UNPICKLERS & {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in UNPICKLERS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            told = {word.arg: word.value for word in node.keywords}
            loads = ast.unparse(node.func) in ("torch.load", "np.load", "numpy.load")
            assert not loads, f"{ast.unparse(node)}: it may unpickle; use Parquet or safetensors"
            trusts = told.get("trust_remote_code")
            given_as_false = isinstance(trusts, ast.Constant) and trusts.value is False
            assert trusts is None or given_as_false, ast.unparse(node)


def test_a_pickle_in_the_place_of_a_part_is_refused_and_not_opened(tmp_path: Path) -> None:
    mark = tmp_path / "went-off"
    assert pickle.loads(pickle.dumps(Bomb(mark))) is None and mark.exists()
    mark.unlink()
    draft = Draft.create(tmp_path / "draft", "stage", KEY)
    (draft.path / f"{PART}.json").write_bytes(pickle.dumps(Bomb(mark)))
    (draft.path / PART).write_bytes(pickle.dumps(Bomb(mark)))
    assert draft.finished(PARTS[1]) is None
    artifact = finished(tmp_path)
    (artifact.path / PART).write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(DataError):
        Artifact.open(artifact.path)
    assert not mark.exists()


@pytest.fixture
def trojan(tmp_path: Path, model_folder: Path) -> tuple[Path, Path]:
    """A model whose files name code of its own, which leaves a mark when it is imported."""
    folder, mark = tmp_path / "trojan", tmp_path / "imported"
    shutil.copytree(model_folder, folder)
    (folder / "evil.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n")
    names = {"config.json": "AutoModelForCausalLM", "tokenizer_config.json": "AutoTokenizer"}
    for file, auto in names.items():
        told = json.loads((folder / file).read_text())
        code = ["evil.Evil", "evil.Evil"] if auto == "AutoTokenizer" else "evil.Evil"
        told["auto_map"] = {auto: code, "AutoConfig": "evil.Evil"}
        (folder / file).write_text(json.dumps(told))
    return folder, mark


def test_the_code_of_a_tokenizer_stays_off(trojan: tuple[Path, Path]) -> None:
    folder, mark = trojan
    assert load_tokenizer(folder)("a")["input_ids"]
    assert not mark.exists()


def test_the_code_of_a_model_stays_off(trojan: tuple[Path, Path]) -> None:
    folder, mark = trojan
    load_model(folder, dtype="float32", device="cpu", attn_implementation="eager")
    assert not mark.exists()


def test_pickled_weights_are_refused(tmp_path: Path, model_folder: Path) -> None:
    folder = tmp_path / "pickled"
    shutil.copytree(model_folder, folder)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "went-off")))
    with pytest.raises(ConfigurationError, match="pickled weights are never loaded"):
        check_model_path(str(folder))
    assert not (tmp_path / "went-off").exists()
