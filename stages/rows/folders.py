"""Which files a folder or a glob means: links are followed, and no file has two names.

What evenshard itself wrote below the place that was named is no input: else a run that publishes
below its own rows would read its result as rows the next time.
"""

import functools
import glob
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from evenshard.shards import FORMAT, MANIFEST
from stages.contract.fingerprint import KEY_DIGITS, SEAL
from stages.contract.shown import first_of

log = logging.getLogger(__name__)

_BESIDE = re.compile(
    r"readme|licen[cs]e|manifest|metadata|rejects|rejects-\d+|state|dataset_infos?|dataset_dict",
    re.IGNORECASE,
)
_DRAFT = re.compile(rf"[0-9a-f]{{{KEY_DIGITS}}}\.partial")


def is_beside_data(file: Path) -> bool:
    """Say whether a file is, by its name, about a data set and not of it."""
    return _BESIDE.fullmatch(file.name.split(".")[0]) is not None


def is_hidden(name: str) -> bool:
    """Say whether the name of a file or a folder marks it as none of the data."""
    return name.startswith((".", "_"))


def walk(root: Path) -> tuple[list[Path], list[Path]]:
    """List all that lies below a folder; links to folders are followed, and none is read twice.

    Returns
    -------
    files : list of Path
        All but folders, and the hidden links to folders, which are not followed.
    ours : list of Path
        Folders that evenshard wrote; they are not entered.
    """

    def is_left(folder: Path) -> bool:
        return folder.is_symlink() and is_hidden(folder.name)

    files: list[Path] = []
    ours: list[Path] = []
    again: list[Path] = []
    for folder, shut, names in _tree(root, lambda inner: is_left(inner) or is_ours(inner), again):
        files += (folder / name for name in names)
        for inner in shut:
            (files if is_left(inner) else ours).append(inner)
    _tell_again(again, root)
    return files, ours


def matching(pattern: str) -> tuple[list[Path], list[Path]]:
    """List what matches a glob, each file under one name only.

    Unlike `glob.glob`, which goes round in a loop of links until names grow too long, and with two
    loops for ever.

    Returns
    -------
    files : list of Path
        In order of their names; links that lead nowhere are among them.
    folders : list of Path
        Those that match, and below which no file does.
    """
    root, fixed = root_of(pattern), _fixed_parts(pattern)
    again: list[Path] = []
    found = set(_globbed(root, Path(pattern).parts[fixed:], again))
    is_link, real = functools.cache(Path.is_symlink), functools.cache(os.path.realpath)

    def rank(path: Path) -> tuple[int, int, str]:
        return sum(map(is_link, _below(path, fixed))), len(path.parts), str(path)

    kept: dict[tuple[str, str], Path] = {}
    for path in sorted(found, key=rank):
        kept.setdefault((real(path.parent), path.name), path)
    again += found - set(kept.values())
    _tell_again(again, root)
    files = sorted((path for path in kept.values() if not path.is_dir()), key=str)
    above = {folder for file in files for folder in file.parents}
    folders = [path for path in kept.values() if path.is_dir() and path not in above]
    return files, sorted(folders, key=str)


def root_of(pattern: str) -> Path:
    """Give the folder that a glob starts from."""
    return Path(*Path(pattern).parts[: _fixed_parts(pattern)])


def apart_from_ours(files: Iterable[Path], pattern: str) -> tuple[list[Path], list[Path]]:
    """Take out what lies in a folder that evenshard wrote, unless the glob names its level.

    Returns
    -------
    files, ours : list of Path
        The other files, and the folders with ours.
    """
    parts = Path(pattern).parts
    named = parts.index("**") if "**" in parts else len(parts)
    asked = functools.cache(is_ours)
    first = {
        file: next((folder for folder in _below(file, named) if asked(folder)), None)
        for file in files
    }
    ours = sorted({folder for folder in first.values() if folder is not None})
    return [file for file, folder in first.items() if folder is None], ours


def is_ours(folder: Path) -> bool:
    """Say whether evenshard wrote a folder: a published set, a result of a store, or its draft."""
    in_store = {SEAL, "stage", "key"} <= _manifest(folder).keys()
    return in_store or is_published(folder) or _DRAFT.fullmatch(folder.name) is not None


def is_published(folder: Path) -> bool:
    """Say whether a folder holds a published set."""
    return bool(_manifest(folder).get("format") == FORMAT)


def some_of(paths: Iterable[Path], root: Path) -> str:
    """Name the first five paths below a folder, in order, and the number of the others."""
    return first_of(sorted({path.relative_to(root).as_posix() for path in paths}))


def _manifest(folder: Path) -> dict[str, Any]:
    """Read a manifest, be it ours or not; empty where there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _tree(
    root: Path, is_shut: Callable[[Path], bool], again: list[Path]
) -> Iterator[tuple[Path, list[Path], list[str]]]:
    """Walk all folders at and below one, each once; what is passed over goes to `again`.

    Yields
    ------
    tuple
        A folder, those in it that are shut and so not entered, and the names of its files.
    """
    seen: set[str] = set()
    waiting = [root]
    for top in waiting:  # it grows by links: a folder's own name goes before those that lead there
        for name, names_of_folders, names in os.walk(top, onerror=_tell_unlisted):
            folder, real = Path(name), os.path.realpath(name)
            if real in seen:
                again.append(folder)
                names_of_folders.clear()
                continue
            seen.add(real)
            inside = [folder / inner for inner in sorted(names_of_folders)]
            shut = [inner for inner in inside if is_shut(inner)]
            for link in (inner for inner in inside if inner.is_symlink() and inner not in shut):
                (again if _is_loop(link) else waiting).append(link)
            names_of_folders[:] = [inner.name for inner in inside if inner not in shut]
            yield folder, shut, names


def _globbed(base: Path, parts: Sequence[str], again: list[Path]) -> Iterator[Path]:
    """Give what matches a glob below a folder, perhaps twice; `**` enters each folder once."""
    if "**" not in parts:
        yield from (base / name for name in glob.glob(os.path.join(*parts), root_dir=base))
        return
    cut = parts.index("**")
    rest = tuple(itertools.dropwhile(lambda part: part == "**", parts[cut:]))
    heads = [base] if cut == 0 else _globbed(base, parts[:cut], again)
    for head in (head for head in heads if head.is_dir()):
        for folder, _, names in _tree(head, lambda inner: inner.name.startswith("."), again):
            if rest:
                yield from _globbed(folder, rest, again)
            else:
                yield folder
                yield from (folder / name for name in names if not name.startswith("."))


def _fixed_parts(pattern: str) -> int:
    """Count the parts of a glob before the first with a wildcard, or before the last."""
    parts = Path(pattern).parts
    return next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)


def _below(path: Path, num_parts: int) -> list[Path]:
    """Give the folders of a path that lie below its first parts, the outermost first."""
    return [Path(*path.parts[:end]) for end in range(num_parts + 1, len(path.parts))]


def _is_loop(folder: Path) -> bool:
    """Say whether a folder is a link to one that it lies in."""
    if not folder.is_symlink():
        return False
    return Path(os.path.realpath(folder.parent)).is_relative_to(os.path.realpath(folder))


def _tell_again(again: Sequence[Path], root: Path) -> None:
    if again:
        what = "since they lead back or to what is read under another name"
        log.info("passed over in %s, %s: %s", root, what, some_of(again, root))


def _tell_unlisted(error: OSError) -> None:
    log.warning("a folder cannot be listed, so nothing of it is read: %s", error)
