"""From the store to the folder that a user takes away: shards, manifest, card, rejects."""

import json
import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evenshard.shards import (
    FORMAT,
    MANIFEST,
    REJECTS,
    RejectFacts,
    WorkerFacts,
    draft_of,
    swap,
)
from stages.contract.artifact import Artifact
from stages.contract.draft import write_json, write_text
from stages.contract.errors import ConfigurationError
from stages.contract.fingerprint import file_sha256
from stages.contract.folder import copy_to_disk
from stages.contract.parts import Facts
from stages.contract.schemas import REJECTS as REJECTS_SCHEMA
from stages.contract.tables import Layout, sync_folder, told_if_full, write_table
from stages.screen.evidence import share_leaks
from stages.shards.card import ChangeFacts, Published, build_card, build_manifest

log = logging.getLogger(__name__)

# What `compare` leaves in a run's folder, before or after the set is there.
COMPARISON = ("compare.json", "compare.md", "compare.svg")
CARD, REPORT, CHANGES = "README.md", "report.html", "changes.parquet"


def check_out(out: Path, *, written_here: bool = True) -> None:
    """Refuse a folder that cannot be written, or is not ours to replace, before any work.

    Parameters
    ----------
    out : Path
        The final folder.
    written_here : bool
        False where another machine will write it, which may see what this one does not.

    Raises
    ------
    ConfigurationError
        If `out` exists and is neither empty nor a published set, or no folder can be made there.
    """
    if written_here:
        _try_beside(out.resolve())
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigurationError(f"out={out} is a file; give a folder")
    others = [child for child in out.iterdir() if child.name not in COMPARISON]
    if others and not is_published(out):
        raise ConfigurationError(
            f"out={out} holds files that evenshard did not write; give another `name` or `out`, "
            f"or empty the folder"
        )


def _try_beside(out: Path) -> None:
    """Make a folder where the draft of a set will lie, or as near as there is one, and remove it.

    To ask for the rights would not do: a disk may be read-only, and root has every right.
    """
    place = out.parent
    try:
        while not place.exists():
            place = place.parent
        trial = place / f".{out.name}.{uuid.uuid4().hex}"
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        raise ConfigurationError(
            f"out={out} cannot be written: no folder can be made in {place} "
            f"({os.strerror(error.errno or 0)}); give another `out`, in a folder that is writable"
        ) from error


def is_published(out: Path) -> bool:
    """Say whether a folder is a published set."""
    return read_published(out) is not None


def read_published(out: Path) -> dict[str, Any] | None:
    """Read the manifest of a published set; None where a folder is none."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    ours = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    return manifest if ours else None


def publish(
    out: Path,
    artifacts: Mapping[str, Artifact],
    *,
    name: str,
    seed: int,
    settings: Facts,
    overrides: list[str],
    versions: Mapping[str, str],
) -> Published:
    """Write the folder beside its final place and swap it in whole.

    Parameters
    ----------
    out : Path
        The final folder; an earlier set there is replaced.
    artifacts : mapping of str to Artifact
        All artifacts of the run by stage.
    name, seed, settings, overrides, versions
        See `build_manifest`.
    """
    out = out.resolve()  # a link to another disk stays a link
    with told_if_full(out), draft_of(out, _own_files) as draft:
        workers = _copy_shards(artifacts["shards"], draft)
        rejects = _write_rejects(artifacts.values(), draft)
        manifest = build_manifest(
            name=name,
            seed=seed,
            allocate=artifacts["allocate"].facts,
            screen=_screen_facts(artifacts, seed),
            settings=settings,
            overrides=overrides,
            workers=workers,
            rejects=rejects,
            changes=_write_changes(artifacts["tokens"], draft),
            keys={stage: artifact.key for stage, artifact in artifacts.items()},
            versions=versions,
        )
        if is_unchanged(out, manifest):
            log.info("publish  unchanged %s", out)
            return manifest
        if (before := read_published(out)) is not None:
            log.info(
                "publish  replaces the %d rows for %d workers that lay in %s; their parts stay in "
                "the store",
                *(before["rows"], before["world_size"], out),
            )
        write_text(draft / CARD, build_card(manifest))
        write_json(draft / MANIFEST, manifest)
        sync_folder(draft)
        swap(draft, out, _own_files)
        sync_folder(out.parent)
    return manifest


def is_unchanged(out: Path, manifest: Published) -> bool:
    """Say whether a folder already holds just this set, byte for byte."""
    changes = [manifest["changes"]] if "changes" in manifest else []
    hashes = {
        facts["file"]: facts["sha256"]
        for facts in (*manifest["workers"], manifest["rejects"], *changes)
    }
    return (
        read_published(out) == manifest
        and all((out / name).is_file() for name in (CARD, *hashes))
        and all(file_sha256(out / name) == digest for name, digest in hashes.items())
    )


def _own_files(out: Path) -> set[str]:
    """Name the files of a published set, those of another world size too."""
    manifest = read_published(out)
    if manifest is None:
        return set()
    workers = {worker["file"] for worker in manifest["workers"]}
    changes = {CHANGES} if "changes" in manifest else set()
    return {MANIFEST, CARD, REJECTS, REPORT, *changes, *workers}


def _copy_shards(shards: Artifact, draft: Path) -> list[WorkerFacts]:
    """Copy and not link: a user who edits a file must not edit the store."""
    workers = []
    for entry, facts in zip(shards.manifest["parts"], shards.facts["workers"], strict=True):
        copy_to_disk(shards.path / entry["name"], draft / entry["name"])
        workers.append(
            WorkerFacts(
                worker=facts["worker"],
                file=entry["name"],
                rows=facts["rows"],
                tokens=facts["tokens"],
                sha256=entry["sha256"],
                num_bytes=entry["num_bytes"],
            )
        )
    return workers


def _write_rejects(artifacts: Iterable[Artifact], draft: Path) -> RejectFacts:
    """Gather the rejects of all stages into one file."""
    pieces = [table for artifact in artifacts for table in artifact.sides("rejects")]
    table = pa.concat_tables([REJECTS_SCHEMA.empty_table(), *pieces])
    write_table(table, draft / REJECTS, Layout())
    reasons = Counter(pc.cast(table["reason"], pa.string()).to_pylist())
    return RejectFacts(
        file=REJECTS,
        rows=table.num_rows,
        by_reason=dict(sorted(reasons.items())),
        sha256=file_sha256(draft / REJECTS),
    )


def _write_changes(tokens: Artifact, draft: Path) -> ChangeFacts | None:
    """Gather what was changed in rows into one file; none where nothing was."""
    pieces = list(tokens.sides("changes"))
    if not pieces:
        return None
    table = pa.concat_tables(pieces)
    write_table(table, draft / CHANGES, Layout())
    kinds = Counter(pc.cast(table["change"], pa.string()).to_pylist())
    return ChangeFacts(
        file=CHANGES,
        lines=table.num_rows,
        by_change=dict(sorted(kinds.items())),
        sha256=file_sha256(draft / CHANGES),
    )


def _screen_facts(artifacts: Mapping[str, Artifact], seed: int) -> Facts:
    """Give what the screen found, and where leaks were looked for, how much leaks into the set."""
    screen = artifacts["screen"]
    found = {name: screen.facts[name] for name in ("duplicates", "near_duplicates")}
    leaks = screen.facts["leaks"]
    if not leaks["benchmarks"]:
        return found
    leaked = np.unique(screen.side("leaks.parquet")["row_id"].to_numpy())
    pool, selected = (artifacts[name].array("row_id") for name in ("embed", "allocate"))
    return {**found, "leaks": share_leaks(leaks, leaked, pool, selected, seed)}
