"""A tokenizer from a local folder, fit for our use: fast, and with offsets that count spaces."""

import json
from pathlib import Path
from typing import Any

from stages.contract.errors import ConfigurationError, require

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
)


def tokenizer_files(folder: Path) -> list[Path]:
    """Give the files that decide what a tokenizer does, in order of their names.

    Raises
    ------
    ConfigurationError
        If the folder holds none.
    """
    files = sorted({file for pattern in TOKENIZER_FILES for file in folder.glob(pattern)})
    require(
        bool(files),
        f"model.path={folder} must be a local folder with a tokenizer, and holds no "
        "tokenizer.json; set model.path to a folder that does",
    )
    return files


def load_tokenizer(folder: Path) -> Any:
    """Load a fast tokenizer whose offsets count every character.

    Raises
    ------
    ConfigurationError
        If the folder holds none.
    """
    from transformers import AutoTokenizer

    tokenizer_files(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"model.path={folder} holds no tokenizer that can be read: {error}; "
            "put its tokenizer.json and tokenizer_config.json there"
        ) from error
    require(
        bool(tokenizer.is_fast),
        f"model.path={folder} must hold a fast tokenizer, {type(tokenizer).__name__} gives no "
        "offsets; convert it once to tokenizer.json (save_pretrained of its Fast class)",
    )
    _count_spaces(tokenizer)
    return tokenizer


def begins_with_bos(tokenizer: Any) -> bool:
    """Say whether a tokenizer puts its BOS token before a text by itself."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("a", add_special_tokens=True)["input_ids"][:1] == [bos]


def _count_spaces(tokenizer: Any) -> None:
    """Make offsets include spaces, which many tokenizers trim off.

    A trimmed token at the border of an answer may hold its spaces without showing it.
    """
    from tokenizers import Tokenizer

    backend = tokenizer.backend_tokenizer
    state = json.loads(backend.to_str())
    if _untrim(state.get("post_processor")):
        backend.post_processor = Tokenizer.from_str(json.dumps(state)).post_processor


def _untrim(processor: Any) -> bool:
    """Set `trim_offsets` to false wherever it is true; say whether it was anywhere."""
    if isinstance(processor, dict):
        found = bool(processor.get("trim_offsets"))
        if found:
            processor["trim_offsets"] = False
        children = list(processor.values())
    else:
        found, children = False, processor if isinstance(processor, list) else []
    for child in children:
        found = _untrim(child) or found
    return found
