"""A folder while it is written, and the step that makes it an artifact.

While it is written a result is `<key>.partial/`, where each finished part has a record beside
it; a part counts only if its record and its bytes agree. There is no lock: two writers of one
key write the same bytes, and the second to finish keeps the first one's folder.
"""

import dataclasses
import json
import logging
import os
import shutil
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.contract.artifact import MANIFEST, Artifact, hashes_for
from stages.contract.errors import DataError, DraftGone
from stages.contract.fingerprint import SEAL, remember_sha256, seal
from stages.contract.folder import RemotePath, StorePath, source
from stages.contract.parts import Facts, Outcome, PartSpec, Receipt
from stages.contract.tables import (
    Layout,
    file_facts,
    hash_of,
    put_table,
    removed_after,
    sync_folder,
    told_if_full,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Draft:
    """A folder while it is written. Small enough to travel to every worker."""

    path: StorePath
    stage: str
    key: str

    @classmethod
    def create(cls, store: StorePath, stage: str, key: str) -> "Draft":
        """Make the folder of an unfinished result, or find the one left by a killed run.

        On a URL nothing can be renamed, so that it has its final name from the start; there a
        folder without a manifest is a draft.
        """
        if isinstance(store, RemotePath):
            return cls(store / stage / key, stage, key)
        path = store / stage / f"{key}.partial"
        with told_if_full(path):
            path.mkdir(parents=True, exist_ok=True)
        return cls(path, stage, key)

    def write_part(
        self,
        spec: PartSpec,
        table: pa.Table,
        *,
        layout: Layout,
        sides: Mapping[str, pa.Table] | None = None,
        tokens: int = 0,
        stats: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Write one part, its further tables, and the record that makes it count.

        Parameters
        ----------
        spec : PartSpec
            Which part.
        table : pyarrow.Table
            Its rows.
        layout : Layout
            How they lie in the file.
        sides : mapping of str to pyarrow.Table, optional
            Further tables of this part by file name.
        tokens : int
            Number of tokens, for the rate.
        stats : mapping, optional
            Counts that the stage wants to see again, also after a resume.
        """
        self.check_there()
        entries = [self.write_side(name, side) for name, side in (sides or {}).items()]
        try:
            facts = put_table(table, self.path / spec.name, layout)
        except FileNotFoundError:
            self.check_there()
            raise
        record = {
            **dataclasses.asdict(spec),
            **facts,
            "tokens": tokens,
            "stats": dict(stats or {}),
            "sides": entries,
            "key": self.key,
        }
        self._write_json(_record_name(spec.name), record)
        return Receipt(spec.index, table.num_rows, tokens, stats=record["stats"])

    def write_side(self, name: str, table: pa.Table) -> Facts:
        """Write a further table of the folder and say what was written."""
        return {"name": name, **put_table(table, self.path / name, Layout())}

    def file(self, name: str) -> Any:
        """Give what pyarrow reads one of the files from, wherever the store lies."""
        return source(self.path / name)

    def finished(self, spec: PartSpec) -> Receipt | None:
        """Say whether a part is whole: its record fits the plan and its bytes fit the record."""
        record = self._record(spec)
        if record is None:
            return None
        for entry in [record, *record["sides"]]:
            file = self.path / entry["name"]
            if not file.exists() or hash_of(file) != entry["sha256"]:
                log.warning("%s is not whole; its part is made again", file)
                return None
        return Receipt(
            spec.index, record["num_rows"], record["tokens"], reused=True, stats=record["stats"]
        )

    def commit(
        self,
        outcome: Outcome,
        *,
        params: Facts,
        inputs: Mapping[str, str],
        version: int,
        parent: Artifact | None,
        keeps_order: bool,
    ) -> Artifact:
        """Check the parts, write the manifest last, and give the folder its final name.

        Raises
        ------
        DataError
            If a part is missing, or its row ids are not what the contract says.
        DraftGone
            If another run of the same key was quicker.
        """
        self.check_there()
        records = [self._committed_record(spec) for spec in outcome.parts]
        _check_row_ids(self.path, outcome.parts, parent, keeps_order)
        sides = [side for record in records for side in record.pop("sides")]
        for name in outcome.sides:
            file = self.path / name
            sides.append(
                {"name": name, **file_facts(file, pq.read_metadata(source(file)).num_rows)}
            )
        manifest = {
            "stage": self.stage,
            "key": self.key,
            "version": version,
            "params": params,
            "inputs": dict(inputs),
            "parts": records,
            "sides": sides,
            "facts": outcome.facts,
        }
        manifest[SEAL] = seal(manifest)
        self._write_json(MANIFEST, manifest)
        known = {str(entry["name"]): str(entry["sha256"]) for entry in [*records, *sides]}
        if isinstance(self.path, RemotePath):
            _remove_strangers(self.path, {MANIFEST, *known})
            return Artifact.open(self.path)
        return Artifact.open(_rename(self.path, self.path.with_name(self.key), known))

    def check_there(self) -> None:
        """Tell a draft that another run has committed from one that this machine cannot see."""
        if isinstance(self.path, Path) and self.path.exists():
            return
        if (self.path.with_name(self.key) / MANIFEST).exists():
            raise DraftGone(f"{self.path} is gone: another run has finished it")
        if isinstance(self.path, RemotePath):
            return
        raise DataError(
            f"{self.path} is not on {socket.gethostname()}: somebody has deleted it, or the store "
            f"is not shared; set store=... to a folder that all nodes see under one name"
        )

    def _record(self, spec: PartSpec) -> Facts | None:
        file = self.path / _record_name(spec.name)
        try:
            record: Facts = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        fits = record.get("key") == self.key and all(
            record.get(name) == value for name, value in dataclasses.asdict(spec).items()
        )
        return record if fits else None

    def _committed_record(self, spec: PartSpec) -> Facts:
        record = self._record(spec)
        if record is None or not (self.path / spec.name).exists():
            self.check_there()
            raise DataError(
                f"{self.path / spec.name} was not written or has no record; run again to make it"
            )
        del record["key"]
        return record

    def _write_json(self, name: str, value: object) -> None:
        write_json(self.path / name, value)


def write_json(path: StorePath, value: object) -> None:
    """Write a value as readable JSON, atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: StorePath, text: str) -> None:
    """Write a text, atomically."""
    if isinstance(path, RemotePath):
        path.write(text.encode())
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with told_if_full(path), removed_after(temporary):
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)


def _rename(draft: Path, final: Path, known: dict[str, str]) -> Path:
    """Give a draft on a disk its final name, unless another run was quicker.

    Parameters
    ----------
    draft, final : Path
        The two names.
    known : dict of str to str
        Files of the result, and their hashes.
    """
    try:
        os.rename(draft, final)
    except OSError:
        if not (final / MANIFEST).exists():
            raise
        shutil.rmtree(draft)
    else:
        # Only now: the records are what a run killed before the rename goes on from.
        _remove_strangers(final, {MANIFEST, *known})
        for name, digest in known.items():
            remember_sha256(final / name, digest, hashes_for(final / name))
    sync_folder(final.parent)
    return final


def _remove_strangers(folder: StorePath, known: set[str]) -> None:
    for child in folder.iterdir():
        if child.name not in known:
            child.unlink(missing_ok=True)  # a writer of the same key may be quicker


def _record_name(part: str) -> str:
    return f"{part}.json"


def _check_row_ids(
    folder: StorePath, parts: Sequence[PartSpec], parent: Artifact | None, keeps_order: bool
) -> None:
    """Hold the contract: one schema; `rows` dense; later ids increase and come from the input."""
    schemas = {part.name: pq.read_schema(source(folder / part.name)) for part in parts}
    for name, schema in schemas.items():
        if not schema.equals(schemas[parts[0].name]):
            raise DataError(f"{folder / name} has another schema than the first part; a fault")
    pieces = [pq.read_table(source(folder / part.name), columns=["row_id"]) for part in parts]
    row_ids = np.concatenate([piece["row_id"].to_numpy() for piece in pieces])
    if not keeps_order:
        row_ids = np.sort(row_ids)
    if np.any(np.diff(row_ids) <= 0):
        raise DataError(f"{folder}: row ids must increase, none may come twice; this is a fault")
    if parent is None:
        if row_ids.size and (row_ids[0] != 0 or row_ids[-1] != row_ids.size - 1):
            raise DataError(f"{folder}: row ids must be 0..{row_ids.size - 1}; this is a fault")
    elif not np.isin(row_ids, parent.array("row_id"), assume_unique=True).all():
        raise DataError(f"{folder}: a row id is not among those of {parent.path}; this is a fault")
