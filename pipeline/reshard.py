"""The settings of an earlier run, with new ones on top: only what they touch runs again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenshard.shards import ShardError, read_manifest
from pipeline.config import compose_raw
from stages.allocate.selectors import selector_classes
from stages.contract.errors import ConfigurationError

LOCATION = ("name", "out", "rows.path")
GROUPS = {
    *("rows", "screen", "tokens", "model", "embed", "cluster", "allocate", "compute"),
    "allocate.selector",
    *("reference", "targets", "trajectory", "tracking"),
}
# What says by itself which selector runs; of new overrides an option that stands for its selector,
# too.
CHOOSE = {"allocate.selector", "experiment"}
IMPLY = {"allocate.selector.keep"}


def earlier_overrides(overrides: Sequence[str]) -> list[str]:
    """Find the overrides of the run that `name=` (or `out=`) names, and put new ones on top.

    The run's selector stays, also where none was named, unless a new override chooses another.

    Raises
    ------
    ConfigurationError
        If no name is given, or there is no such run.
    """
    given = dict(_split(override) for override in overrides)
    location = [f"{key}={value}" for key, value in given.items() if key in LOCATION]
    if not location:
        raise ConfigurationError("reshard needs name=<run>: which run is to be cut anew?")
    out = Path(compose_raw(location).out)
    try:
        manifest = read_manifest(out)
    except ShardError as error:
        raise ConfigurationError(
            f"name={given.get('name', out.name)}: there is no finished run in {out}; "
            f"curate it first ({error})"
        ) from error
    named = [] if "name" in given else [f"name={manifest['name']}"]
    used = selector_used(manifest["settings"], manifest["overrides"], overrides)
    return merge([*used, *manifest["overrides"]], [*named, *overrides])


def selector_used(
    settings: Mapping[str, Any], earlier: Sequence[str], later: Sequence[str]
) -> list[str]:
    """Name the selector that a run really used, where neither its overrides nor new ones do."""
    before, after = ({_split(override)[0] for override in words} for words in (earlier, later))
    if CHOOSE & (before | after) or IMPLY & after:
        return []
    used = settings.get("allocate", {}).get("selector", {}).get("class")
    known = selector_classes().items()
    return [f"allocate.selector={name}" for name, selector in known if selector.__name__ == used]


def merge(earlier: Sequence[str], later: Sequence[str]) -> list[str]:
    """Let later overrides of a key replace earlier ones.

    A choice of a group replaces what was set inside it; budget and ratio replace each other.
    """
    replaced = {_split(override)[0] for override in later}
    if replaced & {"allocate.ratio", "allocate.budget"}:
        replaced |= {"allocate.ratio", "allocate.budget"}
    groups = tuple(f"{key}." for key in replaced & GROUPS)
    kept = [
        override
        for override in earlier
        if _split(override)[0] not in replaced and not _split(override)[0].startswith(groups)
    ]
    return [*kept, *later]


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.replace("/", "."), value
