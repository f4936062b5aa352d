"""Where rows come from: the files that a path means, and the dialect that a file is written in."""

import functools
import glob
import itertools
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenshard.shards import parse_shard_name
from stages.contract.errors import ConfigurationError, DataError, require
from stages.contract.shown import first_of, one_line
from stages.rows.dialects import DIALECTS, Columns, Problem
from stages.rows.folders import (
    apart_from_ours,
    is_beside_data,
    is_hidden,
    is_published,
    matching,
    root_of,
    some_of,
    walk,
)
from stages.rows.formats import Record, hub, known_suffixes, read_file, suffix_of
from stages.rows.formats.record import is_utf8

log = logging.getLogger(__name__)

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_ANSWERABLE = ("prompt", "instruction", "question", "problem")


@dataclass(frozen=True)
class Found:
    """One file that rows are read from, or a data set of the hub.

    Attributes
    ----------
    name : str
        Its path relative to the data set's folder, with slashes; the name of the hub.
    path : Path
        Where it lies.
    on_hub : bool
        True for a data set of the hub.
    """

    name: str
    path: Path
    on_hub: bool = False

    def records(self) -> Iterator[Record]:
        """Read its records."""
        return hub.read(self.name) if self.on_hub else read_file(self.path)


def find(path: str) -> tuple[Found, ...]:
    """Find the files that `rows.path` means, in order of their names; reads none of them.

    Raises
    ------
    ConfigurationError
        If there is no such file, or none of a known format.
    """
    if not path:
        raise ConfigurationError("rows.path is empty; set rows.path=<file, folder, glob or name>")
    place = Path(path).expanduser()
    if place.is_file():
        if not suffix_of(place):
            raise ConfigurationError(
                f"rows.path={path} has no known format; its name must end in {known_suffixes()}"
            )
        require(is_utf8(path), f"rows.path={path!r} is not UTF-8; give the file another name")
        return (Found(place.name, place),)
    if place.is_dir():
        return _in_folder(place)
    if glob.has_magic(path):
        return _matching(str(place))
    # A first part that is a folder here is a mistyped path, not somebody's name on a hub.
    if _HUB_NAME.fullmatch(path) and not suffix_of(place) and not Path(place.parts[0]).is_dir():
        return (Found(path, Path(path), on_hub=True),)
    raise ConfigurationError(
        f"rows.path={path} does not exist; give a file, a folder, a glob or a hub name (org/name)"
    )


def _in_folder(folder: Path) -> tuple[Found, ...]:
    saved = _saved_to_disk(folder)
    if saved:
        return saved
    files, ours = walk(folder)
    return _known(files, [], ours, folder, f"rows.path={folder}")


def _matching(pattern: str) -> tuple[Found, ...]:
    matches, folders = matching(pattern)
    files, ours = apart_from_ours(matches, pattern)
    return _known(files, folders, ours, root_of(pattern), f"rows.path={pattern}")


def _is_lost(path: Path) -> bool:
    """Say whether a path is a link that leads nowhere; one of a known format is told at once."""
    lost = path.is_symlink() and not path.exists()
    require(
        not (lost and suffix_of(path)),
        f"rows.path: {path} is a link that leads nowhere; fetch the file or remove it",
    )
    return lost


def _known(
    files: Sequence[Path], folders: Sequence[Path], ours: Sequence[Path], root: Path, asked: str
) -> tuple[Found, ...]:
    """Keep the files of known formats, and name in the log all others, and folders left out."""
    kept: list[Found] = []
    left = list(folders)
    published = functools.cache(is_published)
    for file in files:
        relative = file.relative_to(root)
        hidden = any(map(is_hidden, relative.parts))
        beside = published(file.parent) and parse_shard_name(file.name) is None
        if _is_lost(file) or file.is_dir():
            left.append(file)
        elif hidden or beside or is_beside_data(file) or not suffix_of(file):
            left.append(file)
        elif file.is_file():
            kept.append(Found(relative.as_posix(), file))
    for found in kept:
        require(
            is_utf8(found.name),
            f"{asked}: the name {found.name!r} is not UTF-8; give the file another",
        )
    if left:
        log.info("rows: not read, no rows by their names: %s", some_of(left, root))
    if ours:
        log.info("rows: not read, since evenshard wrote them: %s", some_of(ours, root))
    if not kept:
        raise ConfigurationError(_none_in(asked, ours))
    return tuple(sorted(kept, key=lambda found: found.name))


def _none_in(asked: str, ours: Sequence[Path]) -> str:
    if ours:
        return (
            f"{asked} holds no rows but in {len(ours)} folders that evenshard wrote, which are "
            f"read only by their own names; set rows.path={one_line(str(ours[0]))} to read one"
        )
    return f"{asked} holds no file of a known format; names must end in {known_suffixes()}"


def _saved_to_disk(folder: Path) -> tuple[Found, ...]:
    """Find the files of `datasets.save_to_disk`; of several splits, those of `train`.

    Raises
    ------
    ConfigurationError
        If what it wrote beside the data is damaged, or names a file outside the folder.
    """
    splits, state = folder / "dataset_dict.json", folder / "state.json"
    if splits.exists():
        names = _listed_in(splits, "splits")
        if "train" not in names:
            raise ConfigurationError(
                f"rows.path={folder} has the splits {one_line(', '.join(names))} and none is named "
                f"train; set rows.path={one_line(str(folder.joinpath(*names[:1])))} to read one"
            )
        log.info("rows: of the splits %s of %s train is read", one_line(", ".join(names)), folder)
        inside = _saved_to_disk(folder / "train")
        return tuple(Found(f"train/{found.name}", found.path) for found in inside)
    if not state.exists() or not (folder / "dataset_info.json").exists():
        return ()
    files = [(name, folder / name) for name in _listed_in(state, "_data_files", "filename")]
    for name, file in files:
        parts = Path(name).parts
        require(
            not Path(name).is_absolute() and ".." not in parts and file.is_file(),
            f"{state} names {one_line(name)!r}, which must be a file in its folder; save the data "
            "set again",
        )
    return tuple(Found(name, file) for name, file in files)


def _listed_in(file: Path, key: str, inner: str = "") -> list[str]:
    """Read a list of texts, or of objects that hold one, from a small JSON file."""
    try:
        names = json.loads(file.read_text(encoding="utf-8"))[key]
        names = [name[inner] for name in names] if inner else names
    except (ValueError, KeyError, TypeError, RecursionError):
        names = None
    sound = isinstance(names, list) and all(isinstance(n, str) and is_utf8(n) for n in names)
    require(sound, f"{file} must list {key} as datasets.save_to_disk does; save the data set again")
    return list(names or [])


def choose(file: str, values: Sequence[Columns], wanted: str) -> tuple[str, tuple[str, ...]]:
    """Tell the dialect of a file by the columns of its first rows.

    Parameters
    ----------
    file : str
        Name of the file, for messages.
    values : sequence of dict
        Its first readable rows, at least one.
    wanted : str
        `auto`, or the dialect that was asked for.

    Returns
    -------
    tuple
        Name of the dialect, and the columns that told it.

    Raises
    ------
    DataError
        If the file holds something else than conversations.
    """
    columns = list(dict.fromkeys(name for value in values for name in value))
    if wanted != "auto":
        told = DIALECTS[wanted].told_by(columns)
        if not told:
            raise DataError(
                f"rows.dialect={wanted} reads {DIALECTS[wanted].says}, but {file} has "
                f"{_listed(columns)}; leave rows.dialect=auto or name another"
            )
        return wanted, told
    chosen = next(((n, t) for n, d in DIALECTS.items() if (t := d.told_by(columns))), ("", ()))
    what = _something_else(values, columns, chosen[0])
    if what:
        known = "; ".join(dialect.says for dialect in DIALECTS.values())
        raise DataError(
            f"{file} holds {what} ({_listed(columns)}); expected conversations with the columns of "
            f"one of: {known}; or name how to read it with rows.dialect=<name>"
        )
    return chosen


def _something_else(values: Sequence[Columns], columns: Sequence[str], dialect: str) -> str:
    """Say what a file holds if it is no conversations, else ""."""
    if any(value.get(name) for value in values for name in ("image", "images")):
        return "images"
    if {"chosen", "rejected"} <= set(columns) and dialect != "messages":
        return "preference pairs"
    if not dialect:
        if len(values) == 1 and values[0] and all(isinstance(v, dict) for v in values[0].values()):
            return f"one JSON object of {len(values[0])} objects (a dict of dicts)"
        if any(name in columns for name in _ANSWERABLE):
            return "prompts without answers"
        return "columns that tell no dialect"
    texts = [text for value in values if isinstance(text := value.get("text"), str)]
    if dialect == "marked_text" and not any("<|user|>" in text for text in texts):
        return "raw text without roles"
    reasons = set()
    for item in itertools.chain.from_iterable(map(DIALECTS[dialect].convert, values)):
        if not isinstance(item, Problem):
            return ""
        reasons.add("images" if "part of type image" in item.detail else item.reason)
    if reasons == {"no_assistant_turn"}:
        return "prompts without answers"
    return "images" if reasons == {"images"} else ""


def _listed(columns: Sequence[str]) -> str:
    return f"columns: {first_of(columns, 8, 40)}"
