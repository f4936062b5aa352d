"""What a trainer's machine needs: numpy and pyarrow alone for files, torch for training."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.evenshard.folders import write_set

HEAVY = ("torch", "ray", "hydra", "omegaconf", "sklearn", "transformers", "trl", "accelerate")
WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.split(".")[0])

sys.meta_path.insert(0, Blocker())
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True
    )


def without(*blocked: str) -> str:
    return WITHOUT.format(blocked=set(blocked))


def test_files_are_checked_and_exported_without_any_trainer_installed(tmp_path: Path) -> None:
    write_set(tmp_path / "set")
    code = without(*HEAVY) + (
        "import evenshard; from evenshard.__main__ import main\n"
        "evenshard.ShardSet(sys.argv[1]); evenshard.Plan(evenshard.ShardSet(sys.argv[1]))\n"
        "assert main(['verify', sys.argv[1]]) == 0\n"
        "assert main(['export', sys.argv[1], '--to', 'jsonl']) == 0\n"
    )
    done = run(code, str(tmp_path / "set"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["load_shard", "make_loader", "WeightCollator", "weighted_loss", "SetRows"]
)
def test_what_needs_torch_says_how_to_get_it(tmp_path: Path, name: str) -> None:
    write_set(tmp_path / "set")
    use = "(sys.argv[1], 0)" if name == "load_shard" else ""
    code = without("torch") + f"import evenshard\nevenshard.{name}{use}\n"
    done = run(code, str(tmp_path / "set"))
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "pip install torch" in done.stderr


def test_training_from_shards_imports_torch_and_nothing_else(tmp_path: Path) -> None:
    write_set(tmp_path / "set")
    code = (
        "import sys, evenshard\n"
        "collate = evenshard.WeightCollator(evenshard.PadCollator(0))\n"
        "loader = evenshard.make_loader(sys.argv[1], 0, 2, collate=collate)\n"
        "next(iter(loader)); evenshard.weighted_loss; evenshard.step_denominator\n"
        f"print([name for name in {HEAVY!r} if name != 'torch' and name in sys.modules])\n"
    )
    done = run(code, str(tmp_path / "set"))
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.slow
def test_a_plain_install_into_an_empty_environment_works(tmp_path: Path) -> None:
    """Needs a package index for numpy and pyarrow."""
    write_set(tmp_path / "set")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", str(ROOT)], check=True)
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    ).stdout
    installed = {line.split("==")[0].lower() for line in listed.splitlines()}
    assert installed - {"pip", "setuptools"} == {"evenshard", "numpy", "pyarrow"}
    command = tmp_path / "venv" / "bin" / "evenshard"
    for words in (["verify", "set"], ["export", "set", "--to", "block"]):
        done = subprocess.run([command, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
