"""Names made from content. A result is named by what went in, never by date, host or rank."""

import contextlib
import dataclasses
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

KEY_DIGITS = 16
SEAL = "seal"


def canonical_json(value: object) -> str:
    """Write a value as JSON that is the same on every machine: sorted keys, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def artifact_key(stage: str, version: int, params: object, inputs: Mapping[str, str]) -> str:
    """Name the result of one stage by everything that decides its bytes.

    Parameters
    ----------
    stage : str
        Name of the stage.
    version : int
        Raised whenever the stage's code changes its numbers.
    params : object
        Every setting of the stage as plain JSON values.
    inputs : mapping of str to str
        Keys of the artifacts that the stage reads, by stage name.

    Returns
    -------
    str
        The first 16 hexadecimal digits of a SHA-256.
    """
    identity = {"stage": stage, "version": version, "params": params, "inputs": dict(inputs)}
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:KEY_DIGITS]


def section_params(section: Any, *, without: Sequence[str] = ()) -> dict[str, Any]:
    """Turn a configuration dataclass into plain values, with the class name of each choice.

    Parameters
    ----------
    section : dataclass instance
        A section of the configuration, or an object chosen in it.
    without : sequence of str
        Fields that do not decide the bytes, such as paths.
    """
    params: dict[str, Any] = {"class": type(section).__name__}
    for field in dataclasses.fields(section):
        if field.name in without:
            continue
        value = getattr(section, field.name)
        is_choice = dataclasses.is_dataclass(value) and not isinstance(value, type)
        params[field.name] = section_params(value) if is_choice else value
    return params


def file_sha256(path: Path) -> str:
    """Hash one file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cached_sha256(path: Path, cache: Path) -> str:
    """Hash a large file once, as long as its place, size and times (in ns) stay the same.

    The time of the last change of the inode counts too: copying tools set the time of the
    contents back, never that one.

    Parameters
    ----------
    path : Path
        The file.
    cache : Path
        A folder that remembers hashes; it is made if missing and may be deleted at any time.
    """
    entry = _entry(path, cache)
    with contextlib.suppress(OSError):
        remembered = entry.read_text()
        if len(remembered) == 64:
            return remembered
    digest = file_sha256(path)
    if _entry(path, cache) == entry:  # else it changed while it was read
        _note(entry, digest)
    return digest


def remember_sha256(path: Path, digest: str, cache: Path) -> None:
    """Note the hash of a file that was just computed, so that `cached_sha256` finds it.

    A cache that cannot be written, since the disk is full or read-only, costs time and no more.
    """
    _note(_entry(path, cache), digest)


def _note(entry: Path, digest: str) -> None:
    temporary = entry.with_name(f".{entry.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(digest)
            temporary.replace(entry)
        finally:
            temporary.unlink(missing_ok=True)


def seal(manifest: Mapping[str, Any]) -> str:
    """Hash all of a manifest but its own seal, so that a change of any value shows."""
    told = {name: value for name, value in manifest.items() if name != SEAL}
    plain = json.loads(json.dumps(told, allow_nan=False))
    return hashlib.sha256(canonical_json(plain).encode()).hexdigest()


def _entry(path: Path, cache: Path) -> Path:
    stat = path.stat()
    facts = (path.resolve(), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    label = "\0".join(map(str, facts))
    return cache / hashlib.sha256(label.encode()).hexdigest()[:32]
