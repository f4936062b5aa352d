"""Runs of the whole pipeline on the sample with a tiny model, as a user would start them."""

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

SMALL = (
    "report=false",
    "rows.limit=96",
    "rows.rows_per_part=40",
    "embed.rows_per_part=8",
    "embed.tokens_per_batch=512",
    "tokens.max_length=128",
    "tokens.on_too_long=keep_answer",
)


@dataclass(frozen=True)
class Run:
    """What a finished run said and left."""

    status: int
    log: str
    printed: str
    out: Path

    def shards(self) -> dict[str, str]:
        """SHA-256 of each worker file by name."""
        files = sorted(self.out.glob("worker-*.parquet"))
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    def stages(self, how: str) -> list[str]:
        """Names of the stages that were `reused` or `running`, in order."""
        return re.findall(rf"^\S+ (\w+)\s+{how}\b", self.log, re.MULTILINE)


def command(folder: Path, model: Path, *overrides: str, verb: str = "curate") -> list[str]:
    return [
        sys.executable,
        "-m",
        "pipeline",
        verb,
        *(() if verb == "reshard" else (*SMALL, f"model.path={model}")),
        f"store={folder / 'store'}",
        f"out={folder / 'out'}",
        *overrides,
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def run(folder: Path, model: Path, *overrides: str, verb: str = "curate") -> Run:
    done = subprocess.run(
        command(folder, model, *overrides, verb=verb),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Run(done.returncode, done.stderr, done.stdout, folder / "out")
