"""Lineage: `python -m pipeline.inspect PATH`, where PATH is an artifact or a published folder."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evenshard.shards import FORMAT, FORMAT_VERSION
from stages.contract.artifact import MANIFEST
from stages.contract.errors import ConfigurationError, require
from stages.contract.folder import StorePath, store_path
from stages.contract.shown import first_of, flat, one_line

USAGE = """python -m pipeline.inspect PATH [STORE]

  PATH   an artifact, <store>/<stage>/<key>, or a published folder, data/curated/<name>
  STORE  where the artifacts are, if not where PATH says; a store may be a URL
"""


def main(arguments: Sequence[str]) -> int:
    """Write the lineage of a folder and return the exit status."""
    if not 1 <= len(arguments) <= 2 or arguments[0].startswith("-"):
        sys.stdout.write(USAGE)
        return 0 if "--help" in arguments else 2
    try:
        store = store_path(arguments[1]) if len(arguments) > 1 else None
        sys.stdout.write(lineage(place_of(arguments[0]), store) + "\n")
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def place_of(path: str) -> StorePath:
    """Turn PATH into a place: an artifact may lie in a store on a URL, a set lies on a disk."""
    if "://" not in path:
        return Path(path)
    base, question, options = path.partition("?")
    store, stage, key = base.rstrip("/").rsplit("/", 2)
    return store_path(store + question + options) / stage / key


def lineage(path: StorePath, store: StorePath | None = None) -> str:
    """Tell what a folder was made from, stage by stage, back to the files of the user.

    Parameters
    ----------
    path : Path or RemotePath
        An artifact or a published folder.
    store : Path or RemotePath, optional
        Where the artifacts are; by default beside the artifact, or where the set says.

    Raises
    ------
    ConfigurationError
        If the folder is neither, or a set of another version.
    """
    manifest = _read(path)
    if manifest.get("format") == FORMAT:
        version = manifest.get("format_version", FORMAT_VERSION)
        require(
            version == FORMAT_VERSION,
            f"{path / MANIFEST} has format_version={version}, this evenshard reads "
            f"{FORMAT_VERSION}; install the evenshard that wrote the folder",
        )
        store = store or store_path(manifest["settings"]["store"])
        keys = manifest["keys"]
        lines = [
            f"{one_line(str(path))}: the set {manifest['name']}, {manifest['rows']} rows for "
            f"{manifest['world_size']} workers",
            _line("asked", manifest["asked"]),
            _line("got", manifest["got"]),
            _line("overrides", " ".join(map(str, manifest["overrides"])) or "none"),
        ]
        todo = list(reversed(keys.items()))
    elif "stage" in manifest and "key" in manifest:
        here = path.resolve() if isinstance(path, Path) else path
        store = store or here.parent.parent
        lines, todo = [], [(manifest["stage"], manifest["key"])]
    else:
        raise ConfigurationError(
            f"{path / MANIFEST} is neither an artifact's nor a published set's; give "
            f"<store>/<stage>/<key> or data/curated/<name>"
        )
    seen: set[tuple[str, str]] = set()
    while todo:
        stage, key = todo.pop(0)
        if (stage, key) in seen:
            continue
        seen.add((stage, key))
        folder = store / stage / key
        if not (folder / MANIFEST).exists():
            lines += ["", f"{stage} {key}: no longer in {one_line(str(store))}"]
            continue
        found = _read(folder)
        lines += ["", *_told(found)]
        # Breadth first, the newest stage first: every input stands below what reads it.
        todo += list(found["inputs"].items())
    return "\n".join(lines)


def _read(folder: StorePath) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(
            f"{folder} holds no {MANIFEST}: it is not finished, or not ours; give "
            f"<store>/<stage>/<key> or data/curated/<name>"
        ) from None
    except ValueError as error:
        raise ConfigurationError(f"{folder / MANIFEST} is not JSON ({error})") from error
    if not isinstance(manifest, dict):
        raise ConfigurationError(f"{folder / MANIFEST} holds no object; it is not ours")
    return manifest


def _told(manifest: Mapping[str, Any]) -> Iterator[str]:
    rows = sum(part["num_rows"] for part in manifest["parts"])
    size = sum(entry["num_bytes"] for entry in [*manifest["parts"], *manifest["sides"]])
    yield f"{manifest['stage']} {manifest['key']} (version {manifest['version']})"
    yield _line("holds", f"{rows} rows in {len(manifest['parts'])} parts, {size / 1e6:.1f} MB")
    if manifest["sides"]:
        sides = [f"{entry['name']} ({entry['num_rows']})" for entry in manifest["sides"]]
        yield _line("beside", first_of(sides, 6))
    inputs = ", ".join(f"{stage} {key}" for stage, key in manifest["inputs"].items())
    yield _line("from", inputs or "the files below")
    for name, value in flat(manifest["params"]).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield _line("setting", f"{name}={one_line(text)}")


def _line(label: str, text: str) -> str:
    return f"  {label:<10}{text}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
