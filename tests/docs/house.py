"""A copy of the checkout in which a newcomer's commands run as they are written.

The commands are not changed. What they meet is small: a tiny model lies where the embedded one
would be converted to, `.venv` is the environment of the tests, the reader's files are there, and
nothing waits for Ray, whose own tests are in tests/pipeline.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

TIMEOUT_S = 900
LEFT_OUT = ("store", "curated", "models", "bench", "tensorboard")
STAMPS = (".curate", ".dev", ".trainers")
SAMPLE_ROWS, OWN_ROWS = 120, 96


def copy_checkout(folder: Path, model: Path) -> Path:
    """Copy what git would hold, and lay out what a reader has."""

    def ignored(place: str, names: list[str]) -> set[str]:
        drop = {n for n in names if n.startswith(".") and n not in (".ci", ".github")}
        drop |= {n for n in names if n in ("__pycache__", "build") or n.endswith(".egg-info")}
        return drop | (set(LEFT_OUT) & set(names) if Path(place) == ROOT / "data" else set())

    house = folder / "evenshard"
    shutil.copytree(ROOT, house, ignore=ignored, symlinks=True)
    _venv(house / ".venv", house / "pyproject.toml")
    for place in ("data/models/smollm2", "path/to/model"):
        shutil.copytree(model, house / place)
    defaults = house / "conf" / "config.yaml"
    text = defaults.read_text(encoding="utf-8")
    assert text.count("- compute: cpu ") == 1
    defaults.write_text(text.replace("- compute: cpu ", "- compute: local "), encoding="utf-8")
    sample = house / "data" / "sample" / "sample.jsonl"
    lines = sample.read_text(encoding="utf-8").splitlines(keepends=True)
    sample.write_text("".join(lines[:SAMPLE_ROWS]), encoding="utf-8")
    rows = [{"instruction": f"Say {i} in words.", "output": f"It is {i}."} for i in range(OWN_ROWS)]
    (house / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = " ".join(f"word{i}" for i in range(20))
    (house / "test.jsonl").write_text(json.dumps({"question": asked}) + "\n")
    return house


def _venv(venv: Path, newer_than: Path) -> None:
    """Make a folder that is the environment of this Python, with the stamps of make."""
    venv.mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name in ("bin", "lib", "lib64", "include", "pyvenv.cfg"):
            (venv / path.name).symlink_to(path)
    later = newer_than.stat().st_mtime + 60
    for stamp in STAMPS:
        (venv / stamp).touch()
        os.utime(venv / stamp, (later, later))


def run(house: Path, command: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of shell in the copy, as a reader would, without a network and a GPU."""
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")},
        "PATH": f"{house / '.venv' / 'bin'}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(house),
    }
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=house,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
