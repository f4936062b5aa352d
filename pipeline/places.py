"""The settings that name a place, and their full paths: what a job on another machine is told."""

import glob
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from pipeline.config import compose_raw
from pipeline.second import WARMUP
from pipeline.tracking import FOLDER
from stages.embed.checkpoint import EMBEDDED
from stages.tokens.render import TEMPLATES

# Where a run writes, and what it reads, with the words that are no files. Every other text of the
# configuration is no path; a test asks for a decision on each new one.
FOLDERS = ("store", "models", "out", "tracking.where")
INPUTS = {
    "rows.path": (),
    "screen.benchmarks": (),
    "tokens.template": ("chat", *TEMPLATES),
    "model.path": (EMBEDDED,),
    "reference.path": (EMBEDDED, WARMUP),
    "targets.path": (),
}


def paths_of_here(overrides: Sequence[str], root: Path) -> list[str]:
    """Name the folders of a run, and the files that are here, by their full paths.

    A job runs in a working directory of its own, on one node, that goes away with the cluster: a
    path relative to it would be lost. Folders on a file system that all nodes share have one
    name everywhere; that of this checkout is taken where none is given.
    """
    raw = compose_raw(overrides)
    folders = {key: _folder(raw, key) for key in FOLDERS}
    full = [f"{key}={_quoted(str(root / name))}" for key, name in folders.items() if name]
    for key, words in INPUTS.items():
        value = OmegaConf.select(raw, key)
        names = list(value) if OmegaConf.is_list(value) else [value] if value else []
        found = [name if name in words else _full(name, root) for name in names]
        if found != names:
            told = ",".join(map(_quoted, found))
            full.append(f"{key}=[{told}]" if OmegaConf.is_list(value) else f"{key}={told}")
    return full


def _folder(raw: DictConfig, key: str) -> str:
    """Give a folder that is written, or nothing where a setting names a service."""
    name, tracker = str(OmegaConf.select(raw, key)), raw.tracking.tracker
    if key == "tracking.where":
        name = name or (FOLDER if tracker == "tensorboard" else "")
        if tracker == "mlflow" and (":" in name or name.startswith("databricks")):
            return ""
    return "" if "://" in name else name


def _full(name: str, root: Path) -> str:
    """Give the full path of a file, a folder or a glob that is here; any other name as it is."""
    if name.startswith("data/sample/"):  # this travels with the code
        return name
    place = Path(name).expanduser()
    if (root / place).exists():
        return str(root / place)
    pattern = str(place) if place.is_absolute() else f"{glob.escape(str(root))}/{place}"
    return pattern if glob.has_magic(name) and glob.glob(pattern, recursive=True) else name


def _quoted(text: str) -> str:
    """Write a text as Hydra reads it back."""
    return '"' + text.replace('"', '\\"') + '"'
