"""The stage of rows: reads every file once, writes parts, and keeps what could not be read.

The file is long because what stops a run is judged, and told in a sentence, where it is counted.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import DataError, require_at_least, require_one_of, require_share
from stages.contract.fingerprint import cached_sha256, section_params
from stages.contract.parts import Facts, Outcome, PartSpec, Run, Spread, part_name
from stages.contract.schemas import REJECTS
from stages.contract.schemas import ROWS as SCHEMA
from stages.contract.stage import Stage
from stages.contract.tables import Layout
from stages.rows.dialects import DIALECTS
from stages.rows.formats import hub
from stages.rows.reading import Reject, Row, read_found
from stages.rows.source import Found, find

log = logging.getLogger(__name__)

_LOST_END = {"truncated_file": "ends too early", "broken_file": "cannot be unpacked to its end"}
REJECTS_PER_SIDE, BYTES_PER_SIDE = 10_000, 64 << 20


@dataclass(kw_only=True)
class RowsConfig:
    """What comes in.

    Attributes
    ----------
    path : str
        A file, folder, glob, or the name of a data set of the hub.
    dialect : str
        How rows are written; `auto` tells it by the columns of each file.
    limit : int
        Number of rows in a seeded sample; 0 takes all.
    max_reject_fraction : float
        Share of unreadable rows above which the run stops.
    strict : bool
        Stop at the first unreadable row.
    allow_truncated : bool
        Take what can be read of a file that is cut or cannot be unpacked to its end; its rest is
        one reject.
    rows_per_part, bytes_per_part : int
        Bounds of a part, in rows and in bytes of text.
    seed : int
        Seed of the sample.
    """

    path: str = ""
    dialect: str = "auto"
    limit: int = 0
    max_reject_fraction: float = 0.01
    strict: bool = False
    allow_truncated: bool = False
    rows_per_part: int = 10_000
    bytes_per_part: int = 64 << 20
    seed: int = 0

    def __post_init__(self) -> None:
        require_one_of("rows.dialect", self.dialect, ["auto", *DIALECTS])
        require_at_least("rows.limit", self.limit, 0)
        require_share("rows.max_reject_fraction", self.max_reject_fraction, zero_allowed=True)
        require_at_least("rows.rows_per_part", self.rows_per_part, 1)
        require_at_least("rows.bytes_per_part", self.bytes_per_part, 1)
        require_at_least("rows.seed", self.seed, 0)


@dataclass(frozen=True)
class RowsSettings:
    """What comes in, and a folder that remembers the hashes of large files."""

    rows: RowsConfig
    hash_cache: Path


def identity(settings: RowsSettings) -> Facts:
    """Give what decides the bytes: the settings, and the names and hashes of the input files."""
    files = []
    for found in find(settings.rows.path):
        if found.on_hub:
            files.append({"name": found.name, "fingerprint": hub.fingerprint(found.name)})
        else:
            digest = cached_sha256(found.path, settings.hash_cache)
            files.append({"name": found.name, "sha256": digest})
    return {**section_params(settings.rows, without=("path",)), "files": files}


def run(
    settings: RowsSettings, inputs: Mapping[str, Artifact], draft: Draft, spread: Spread
) -> Run:
    """Read, sift and write all rows.

    Raises
    ------
    DataError
        If too many rows cannot be read, or none can, or a file has lost its end.
    """
    config = settings.rows
    files = find(config.path)
    tally = _Tally(draft, config)
    rows = tally.sift(read_found(files, config.dialect))
    if config.limit:
        num_good = sum(1 for _ in rows)
        rows = _sample(files, config, num_good)
    specs = []
    for spec, part in _parts(rows, config):
        specs.append(spec)
        yield draft.write_part(spec, _table(part, spec.start), layout=Layout())
    return Outcome(tuple(specs), tally.facts(files, specs[-1].stop), tuple(tally.sides))


@dataclass
class _Tally:
    """Counts what is read, and writes the rejects, a side table at a time."""

    draft: Draft
    config: RowsConfig
    num_good: int = 0
    num_of_file: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    dialects: dict[str, str] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    sides: list[str] = field(default_factory=list)
    _waiting: list[Reject] = field(default_factory=list)
    _waiting_bytes: int = 0

    def sift(self, outcomes: Iterator[Row | Reject]) -> Iterator[Row]:
        """Let the rows through, keep the rejects, and judge their number at the end.

        Raises
        ------
        DataError
            If there are too many, one under `rows.strict`, or the rest of a file is one.
        """
        for item in outcomes:
            if isinstance(item, Row):
                self.num_good += 1
                self.num_of_file[item.source_file] += 1
                self.dialects.setdefault(item.source_file, item.dialect)
                yield item
            elif item.reason in _LOST_END and not self.config.allow_truncated:
                raise DataError(
                    f"{item.file} {_LOST_END[item.reason]}, after {self.num_of_file[item.file]} "
                    f"rows that were read ({item.detail}, line {item.line}); how many are lost "
                    "cannot be said. Repair it or fetch it again, or go on with what it has by "
                    "rows.allow_truncated=true"
                )
            elif self.config.strict:
                raise DataError(f"{item}; rows.strict=true stops at the first unreadable row")
            else:
                self._keep(item)
        self._flush()
        self._judge()

    def facts(self, files: Sequence[Found], num_kept: int) -> Facts:
        """Give the counts for the manifest."""
        return {
            "files": [found.name for found in files],
            "dialects": self.dialects,
            "read": self.num_good + self.reasons.total(),
            "kept": num_kept,
            "rejected": self.reasons.total(),
            "rejects_by_reason": dict(sorted(self.reasons.items())),
            "limit": self.config.limit,
        }

    def _keep(self, reject: Reject) -> None:
        self.reasons[reject.reason] += 1
        if len(self.shown) < 5:
            self.shown.append(str(reject))
        self._waiting.append(reject)
        self._waiting_bytes += len(reject.raw)
        if len(self._waiting) >= REJECTS_PER_SIDE or self._waiting_bytes >= BYTES_PER_SIDE:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting and self.sides:
            return
        name = f"rejects-{len(self.sides):05d}.parquet"
        waiting = self._waiting
        columns = {
            name: [getattr(reject, name) for reject in waiting]
            for name in ("file", "line", "byte_offset", "reason", "detail", "raw")
        }
        columns |= {"row_id": [None] * len(waiting), "stage": ["rows"] * len(waiting)}
        self.draft.write_side(name, pa.Table.from_pydict(columns, schema=REJECTS))
        self.sides.append(name)
        self._waiting, self._waiting_bytes = [], 0

    def _judge(self) -> None:
        num_rejected = self.reasons.total()
        if not num_rejected:
            return
        num_read = self.num_good + num_rejected
        share = num_rejected / num_read
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.reasons.most_common())
        counts = f"{num_rejected} of {num_read} rows cannot be used ({reasons})"
        where, first = f"all are in {self.draft.path / self.sides[0]}", "; ".join(self.shown)
        if not self.num_good:
            raise DataError(f"{counts}, so none is left. First: {first}; {where}")
        if share > self.config.max_reject_fraction:
            enough = np.ceil(share * 1000) / 1000
            raise DataError(
                f"{counts}, which is more than "
                f"rows.max_reject_fraction={self.config.max_reject_fraction} allows. "
                f"First: {first}; {where}. Repair them, or go on without them by "
                f"rows.max_reject_fraction={enough:g}"
            )
        log.warning("rows: %s. First: %s", counts, first)


def _sample(files: Sequence[Found], config: RowsConfig, num_good: int) -> Iterator[Row]:
    """Read the files again and give a seeded sample of their good rows, in file order."""
    if config.limit >= num_good:
        log.info("rows: rows.limit=%d takes all of %d rows", config.limit, num_good)
    count = min(config.limit, num_good)
    chosen = np.random.default_rng(config.seed).choice(num_good, count, replace=False)
    wanted = iter(np.sort(chosen).tolist())
    target = next(wanted)
    rows = (x for x in read_found(files, config.dialect, quiet=True) if isinstance(x, Row))
    for index, row in enumerate(rows):
        if index == target:
            yield row
            target = next(wanted, -1)
            if target < 0:
                return


def _parts(rows: Iterator[Row], config: RowsConfig) -> Iterator[tuple[PartSpec, list[Row]]]:
    """Cut rows into parts by their number and their bytes of text, and by nothing else."""
    start = index = num_bytes = 0
    part: list[Row] = []
    for row in rows:
        size = len(row.meta.encode()) + sum(len(m["content"].encode()) for m in row.messages)
        full = len(part) >= config.rows_per_part or num_bytes + size > config.bytes_per_part
        if part and full:
            yield PartSpec(index, start, start + len(part), part_name(index)), part
            index, start, num_bytes, part = index + 1, start + len(part), 0, []
        part.append(row)
        num_bytes += size
    if part:
        yield PartSpec(index, start, start + len(part), part_name(index)), part


def _table(part: Sequence[Row], start: int) -> pa.Table:
    columns = {
        name: [getattr(row, name) for row in part]
        for name in ("source_file", "source_line", "source", "uid", "messages", "meta")
    }
    columns["row_id"] = list(range(start, start + len(part)))
    columns["multiplicity"] = [1] * len(part)
    return pa.Table.from_pydict(columns, schema=SCHEMA)


ROWS = Stage(name="rows", version=4, reads=(), identity=identity, run=run)
