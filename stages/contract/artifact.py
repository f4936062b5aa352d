"""A finished folder: `<store>/<stage>/<key>/`, its parts, and a manifest that was written last.

Whatever has its final name is whole. An artifact is read, never changed.
"""

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
from stages.contract.parts import Facts, PartSpec

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Artifact:
    """A finished folder: read it, never change it."""

    path: Path
    stage: str
    key: str
    manifest: Facts = field(repr=False)

    @classmethod
    def open(cls, path: Path) -> "Artifact":
        """Open a finished folder and check that every file is there with its recorded size.

        Raises
        ------
        DataError
            If a file is missing or has another size than the manifest says.
        """
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        for entry in [*manifest["parts"], *manifest["sides"]]:
            file = path / entry["name"]
            size = file.stat().st_size if file.exists() else -1
            if size != entry["num_bytes"]:
                found = "is missing" if size < 0 else f"has {size} bytes"
                raise DataError(
                    f"{file} {found}, its manifest says {entry['num_bytes']} bytes; "
                    f"delete the folder {path} and run again, it will be made anew"
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

    @property
    def parts(self) -> tuple[PartSpec, ...]:
        """The parts in order of their row ids."""
        return tuple(
            PartSpec(p["index"], p["start"], p["stop"], p["name"]) for p in self.manifest["parts"]
        )

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
            return pq.read_schema(self.path / self.parts[0].name).empty_table().select(columns)
        return pa.concat_tables(pieces)

    def _read_part(
        self, part: PartSpec, columns: Sequence[str], start: int | None, stop: int | None
    ) -> pa.Table:
        file = pq.ParquetFile(self.path / part.name)
        inside = (start is None or start <= part.start) and (stop is None or stop >= part.stop)
        if inside:
            return file.read(columns=list(columns))
        filters = []
        if start is not None:
            filters.append(("row_id", ">=", start))
        if stop is not None:
            filters.append(("row_id", "<", stop))
        return pq.read_table(self.path / part.name, columns=list(columns), filters=filters)

    def iter_parts(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read some columns part by part, in order, so that memory holds one part."""
        for part in self.parts:
            yield pq.ParquetFile(self.path / part.name).read(columns=list(columns))

    def array(self, column: str) -> npt.NDArray[Any]:
        """Read one column of numbers of all rows."""
        pieces = [table[column].to_numpy() for table in self.iter_parts([column])]
        return np.concatenate(pieces)

    def side(self, name: str) -> pa.Table:
        """Read a further table of the folder."""
        return pq.read_table(self.path / name)

    def sides(self, prefix: str) -> Iterator[pa.Table]:
        """Read all further tables whose names begin with `prefix`, in order of their names."""
        for entry in sorted(self.manifest["sides"], key=lambda e: str(e["name"])):
            if entry["name"].startswith(prefix):
                yield self.side(entry["name"])
