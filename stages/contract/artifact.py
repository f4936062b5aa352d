"""A finished folder: `<store>/<stage>/<key>/`, its parts, and a manifest that was written last.

Whatever has its final name is whole. An artifact is read, never changed.
"""

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from stages.contract.errors import DataError
from stages.contract.fingerprint import SEAL, cached_sha256, seal
from stages.contract.folder import StorePath, source_of_finished
from stages.contract.parts import Facts, PartSpec

MANIFEST = "manifest.json"
MANY = 1 << 62  # bytes of a file that the manifest does not name


def hashes_for(file: Path) -> Path:
    """Say where the hash of `<store>/<stage>/<key>/<file>` is remembered."""
    return file.parent.parent.parent / "hashes"


@dataclass(frozen=True)
class Artifact:
    """A finished folder: read it, never change it."""

    path: StorePath
    stage: str
    key: str
    manifest: Facts = field(repr=False)

    @classmethod
    def open(cls, path: StorePath) -> "Artifact":
        """Open a finished folder and check that it holds what was written, and nothing was changed.

        The manifest is held against its own seal and each file against its size and hash. A hash
        is computed once per file and remembered under `<store>/hashes` for as long as the
        file's inode, size and times stay the same, so a second look costs a stat per file. On a
        URL only sizes are held against the manifest: a hash would fetch the whole store, and an
        object store guards the bytes of its objects itself.

        Raises
        ------
        DataError
            If the manifest was altered or belongs elsewhere, or a file is missing or altered.
        """
        manifest = _sealed_manifest(path)
        for entry in [*manifest["parts"], *manifest["sides"]]:
            file = path / entry["name"]
            size = file.stat().st_size if file.exists() else -1
            if size != entry["num_bytes"]:
                found = "is missing" if size < 0 else f"has {size} bytes"
                raise DataError(
                    f"{file} {found}, its manifest says {entry['num_bytes']} bytes; {_remedy(path)}"
                )
            if isinstance(file, Path) and _hash(file) != entry["sha256"]:
                raise DataError(
                    f"{file} holds other bytes than those whose hash its manifest has; "
                    f"{_remedy(path)}"
                )
        return cls(path, manifest["stage"], manifest["key"], manifest)

    @property
    def facts(self) -> Facts:
        """What the stage said of its result."""
        facts: Facts = self.manifest["facts"]
        return facts

    @property
    def num_rows(self) -> int:
        """Number of rows over all parts."""
        return sum(part["num_rows"] for part in self.manifest["parts"])

    @functools.cached_property
    def parts(self) -> tuple[PartSpec, ...]:
        """The parts in order of their row ids."""
        return tuple(
            PartSpec(p["index"], p["start"], p["stop"], p["name"]) for p in self.manifest["parts"]
        )

    def file(self, name: str) -> Any:
        """Give what pyarrow reads one of the files from, wherever the store lies."""
        if isinstance(self.path, Path):
            return self.path / name
        entries = (*self.manifest["parts"], *self.manifest["sides"])
        [size] = [entry["num_bytes"] for entry in entries if entry["name"] == name] or [MANY]
        return source_of_finished(self.path / name, size)

    def schema(self) -> pa.Schema:
        """Read the schema of the parts."""
        return pq.read_schema(self.file(self.parts[0].name))

    def read(
        self, columns: Sequence[str], *, start: int | None = None, stop: int | None = None
    ) -> pa.Table:
        """Read some columns of the rows whose id lies in [start, stop), or of all rows."""
        wanted = [
            part
            for part in self.parts
            if (start is None or part.stop > start) and (stop is None or part.start < stop)
        ]
        pieces = [self._read_part(part, columns, start, stop) for part in wanted]
        if not pieces:
            return self.schema().empty_table().select(columns)
        return pa.concat_tables(pieces)

    def _read_part(
        self, part: PartSpec, columns: Sequence[str], start: int | None, stop: int | None
    ) -> pa.Table:
        file = pq.ParquetFile(self.file(part.name))
        inside = (start is None or start <= part.start) and (stop is None or stop >= part.stop)
        if inside:
            return file.read(columns=list(columns))
        filters = []
        if start is not None:
            filters.append(("row_id", ">=", start))
        if stop is not None:
            filters.append(("row_id", "<", stop))
        return pq.read_table(self.file(part.name), columns=list(columns), filters=filters)

    def iter_parts(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read some columns part by part, in order, so that memory holds one part."""
        for part in self.parts:
            yield pq.ParquetFile(self.file(part.name)).read(columns=list(columns))

    def array(self, column: str) -> npt.NDArray[Any]:
        """Read one column of numbers of all rows."""
        pieces = [table[column].to_numpy() for table in self.iter_parts([column])]
        return np.concatenate(pieces)

    def side(self, name: str) -> pa.Table:
        """Read a further table of the folder."""
        return pq.read_table(self.file(name))

    def sides(self, prefix: str) -> Iterator[pa.Table]:
        """Read all further tables whose names begin with `prefix`, in order of their names."""
        for entry in sorted(self.manifest["sides"], key=lambda e: str(e["name"])):
            if entry["name"].startswith(prefix):
                yield self.side(entry["name"])


def _sealed_manifest(path: StorePath) -> Facts:
    """Read a manifest, and refuse one that is torn, altered, or of another folder."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path / MANIFEST} is not JSON ({error}); {_remedy(path)}") from error
    if not isinstance(manifest, dict) or manifest.get(SEAL) != seal(manifest):
        raise DataError(
            f"{path / MANIFEST} was altered after it was written, or an older version wrote it: "
            f"its seal does not fit; {_remedy(path)}"
        )
    if (manifest["stage"], manifest["key"]) != (path.parent.name, path.name):
        raise DataError(
            f"{path / MANIFEST} is that of {manifest['stage']}/{manifest['key']}, so its folder "
            f"was moved or copied here; {_remedy(path)}"
        )
    return manifest


def _hash(file: Path) -> str:
    return cached_sha256(file, hashes_for(file))


def _remedy(path: StorePath) -> str:
    return f"delete the folder {path} and run again, it will be made anew"
