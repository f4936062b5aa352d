"""Errors of Hydra and OmegaConf as sentences: which override is wrong, and what to do."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import hydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stages.allocate.selectors import selector_classes


def refusal(error: Exception, overrides: Sequence[str], conf: Path) -> str:
    """Say which override Hydra refuses, and what to do; nothing where `conf` itself is broken.

    Parameters
    ----------
    error : Exception
        What Hydra raised.
    overrides : sequence of str
        All that it was given.
    conf : Path
        Its folder, which is initialized.
    """

    def chooses(override: str) -> bool:
        """Whether it chooses from a group, which Hydra does before it sets any key."""
        key = override.partition("=")[0]
        return "/" in key or (conf / key).is_dir()

    guilty, known = _guilty_override(sorted(overrides, key=lambda each: not chooses(each)))
    return "" if known is None else told(error, guilty, known)


def _guilty_override(overrides: Sequence[str]) -> tuple[str, DictConfig | None]:
    """Find the first override that does not compose with those before it, and what those give."""
    known = None
    for count in range(len(overrides) + 1):
        try:
            known = hydra.compose("config", overrides=list(overrides[:count]))
        except (HydraException, OmegaConfBaseException):
            return overrides[count - 1] if count else "", known
    return "", known


def told(error: Exception, override: str, known: DictConfig) -> str:
    """Say what is wrong with an override, and what to do."""
    key, _, value = override.partition("=")
    text = str(error.__cause__ or error).splitlines()[0]
    if "Could not find" in str(error) and override:
        options = re.findall(r"^\t(\S+)$", str(error), re.MULTILINE)
        return f"{key}={value} must be one of {', '.join(options)}"
    if "not in" in text or "not in struct" in text or "Could not override" in str(error):
        if key.startswith("allocate.selector."):
            return _no_option(override, known)
        near = difflib.get_close_matches(key, _keys(known), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "see `python -m pipeline --help`"
        return f"{key} is not a key of the configuration ({override}); {hint}"
    if "not a ListConfig" in text:
        return f"{key}={value} must be a list: '{key}=[{value}]'"
    if "could not be converted" in text:
        wanted = text.rsplit(" ", 1)[-1].lower()
        kind = {"integer": "a whole number", "float": "a number", "boolean": "true or false"}
        return f"{key}={value} must be {kind.get(wanted, wanted)}"
    if isinstance(error, OverrideParseException) or "Ambiguous value" in str(error):
        quoted = value.strip("'\"")
        return f"{override} cannot be read; quote the value: '{key}=\"{quoted}\"'"
    where = f"{override}: " if override else ""
    return f"{where}{text}; see `python -m pipeline --help`"


def _no_option(override: str, known: DictConfig) -> str:
    """Say which options the selector of a run has, and which selectors have the one asked for."""
    key = override.partition("=")[0]
    option = key.rpartition(".")[2]
    kind = OmegaConf.get_type(known.allocate, "selector")
    chosen = next(name for name, selector in selector_classes().items() if selector is kind)
    options = {name: [f.name for f in fields(cls)] for name, cls in selector_classes().items()}
    own = options[chosen]
    near = difflib.get_close_matches(option, own, n=1, cutoff=0.5)
    owners = [name for name in options if option in options[name]]
    hint = f"did you mean allocate.selector.{near[0]}?" if near else "set one that it has"
    if owners:
        hint = f"{option} is an option of allocate.selector={', '.join(owners)}"
    return (
        f"{key} is not a key of the configuration ({override}), since allocate.selector="
        f"{chosen} has {'the options ' + ', '.join(own) if own else 'no options'}; {hint}"
    )


def _keys(config: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for name in map(str, config):
        full = f"{prefix}{name}"
        keys.append(full)
        node = config._get_node(name)
        if isinstance(node, DictConfig):
            keys += _keys(node, f"{full}.")
    return keys
