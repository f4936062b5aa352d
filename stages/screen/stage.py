"""The stage between rows and tokens: which rows go on, and how many each of them stands for."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import (
    DataError,
    require,
    require_at_least,
    require_one_of,
    require_share,
)
from stages.contract.fingerprint import cached_sha256, section_params
from stages.contract.parts import Facts, Outcome, PartSpec, Run, Spread, part_name
from stages.contract.rejects import ROW_COLUMNS
from stages.contract.schemas import LEAKS
from stages.contract.schemas import SCREEN as SCHEMA
from stages.contract.stage import Stage, work_through
from stages.contract.tables import Layout
from stages.screen.decide import Found, decide
from stages.screen.evidence import describe, leak_rejects, leak_text, side_tables
from stages.screen.reading import find_benchmarks, read_benchmarks
from stages.screen.worker import BENCHMARK_WORDS, MakeScanner, Scan, leaks_name

log = logging.getLogger(__name__)

NEAR_MODES = ("off", "report", "collapse")
MOST_SHOWN = 5


@dataclass(kw_only=True)
class ScreenConfig:
    """What of the rows goes on.

    Attributes
    ----------
    duplicates : str
        Rows of one text: `collapse` into the first, which then counts for all, or `keep`.
    near_duplicates : str
        `off`, `report` (list them), or `collapse` each group into its first row.
    near_threshold : float
        Jaccard similarity of their 5-word shingles from which two rows are near.
    benchmarks : list of str
        Files or globs of test sets whose text must not be trained on.
    ngram : int
        Words in a row that a row must share with a benchmark's item to leak it.
    on_leak : str
        `drop` the row into the rejects, `keep` it (the evidence is written all the same), or
        `list`: keep it, and name the first ones in the log.
    seed : int
        Of the signatures that propose near duplicates.
    """

    duplicates: str = "collapse"
    near_duplicates: str = "off"
    near_threshold: float = 0.8
    benchmarks: list[str] = field(default_factory=list)
    ngram: int = 13
    on_leak: str = "drop"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check each field by itself, and near against exact duplicates."""
        require_one_of("screen.duplicates", self.duplicates, ("collapse", "keep"))
        require_one_of("screen.near_duplicates", self.near_duplicates, NEAR_MODES)
        require_share("screen.near_threshold", self.near_threshold)
        require_at_least("screen.ngram", self.ngram, 1)
        require_one_of("screen.on_leak", self.on_leak, ("drop", "keep", "list"))
        require_at_least("screen.seed", self.seed, 0)
        require(
            self.near_duplicates != "collapse" or self.duplicates == "collapse",
            "screen.near_duplicates=collapse collapses equal rows too, so it excludes "
            "screen.duplicates=keep; use screen.near_duplicates=report or "
            "screen.duplicates=collapse",
        )


@dataclass(frozen=True)
class ScreenSettings:
    """The section, and a folder that remembers the hashes of large files."""

    screen: ScreenConfig
    hash_cache: Path


def identity(settings: ScreenSettings) -> Facts:
    """Name what decides the bytes: settings that act, names and hashes of the benchmarks."""
    screen = settings.screen
    idle = ["benchmarks"]
    if screen.near_duplicates == "off":
        idle += ["near_threshold", "seed"]
    if not screen.benchmarks:
        idle += ["ngram", "on_leak"]
    files = [
        {"name": file.name, "sha256": cached_sha256(file.path, settings.hash_cache)}
        for file in find_benchmarks(screen.benchmarks)
    ]
    return {**section_params(screen, without=idle), "benchmarks": files}


def run(
    settings: ScreenSettings, inputs: Mapping[str, Artifact], draft: Draft, spread: Spread
) -> Run:
    """Compare all rows with each other and with the benchmarks; write which go on.

    Raises
    ------
    DataError
        If no row is left, or a benchmark file cannot be read at all.
    """
    screen, rows = settings.screen, inputs["rows"]
    files = find_benchmarks(screen.benchmarks)
    benchmarks: dict[str, dict[str, int]] = {}
    if files:
        table, benchmarks = read_benchmarks(files, screen.ngram)
        draft.write_side(BENCHMARK_WORDS, table)
    scan = Scan(
        threshold=0.0 if screen.near_duplicates == "off" else screen.near_threshold,
        seed=screen.seed,
        benchmarks=tuple(file.name for file in files),
        ngram=screen.ngram,
    )
    scans = [
        PartSpec(part.index, part.start, part.stop, f"scan-{part.index:05d}.parquet")
        for part in rows.parts
    ]
    yield from work_through(draft, scans, MakeScanner(scan, rows, draft), spread)
    leaks = _read_leaks(draft, scans) if files else LEAKS.empty_table()
    decision = decide(
        _read_scans(draft, scans, rows, leaks, near=scan.threshold > 0),
        duplicates=screen.duplicates,
        near_duplicates=screen.near_duplicates,
        near_threshold=screen.near_threshold,
        drop_leaks=screen.on_leak == "drop",
    )
    modes = {
        "duplicates": screen.duplicates,
        "near_duplicates": screen.near_duplicates,
        "leaks": screen.on_leak,
    }
    facts = describe(decision, leaks, benchmarks, modes=modes, ngram=screen.ngram)
    _tell(facts, leaks)
    if not facts["kept"]:
        raise DataError(
            f"screen: all of {facts['read']} rows share text with the benchmarks, none is left; "
            f"set screen.on_leak=list to see them and go on, or leave a file out of "
            f"screen.benchmarks"
        )
    parts = []
    for part in rows.parts:
        spec = PartSpec(part.index, part.start, part.stop, part_name(part.index))
        parts.append(spec)
        kept = spec.start + np.flatnonzero(decision.multiplicity[spec.start : spec.stop])
        counts = decision.multiplicity[kept].astype(np.int32)
        dropped = np.flatnonzero(decision.dropped[spec.start : spec.stop])
        sides = {}
        if dropped.size:
            text = rows.read(ROW_COLUMNS, start=spec.start, stop=spec.stop)
            refused = leak_rejects(text.take(dropped), leaks, screen.ngram)
            sides[f"rejects-{spec.index:05d}.parquet"] = refused
        yield draft.write_part(
            spec, pa.table([kept, counts], schema=SCHEMA), layout=Layout(), sides=sides
        )
    tables = side_tables(decision, leaks)
    for name, table in tables.items():
        draft.write_side(name, table)
    return Outcome(tuple(parts), facts, tuple(tables))


def _read_scans(
    draft: Draft, scans: list[PartSpec], rows: Artifact, leaks: pa.Table, *, near: bool
) -> Found:
    columns = ["high", "low", *(("shingles", "bands") if near else ())]
    table = pa.concat_tables(pq.read_table(draft.file(s.name), columns=columns) for s in scans)
    bands, sets = None, []
    if near:
        width = table["bands"].type.list_size
        bands = table["bands"].combine_chunks().flatten().to_numpy().reshape(-1, width)
        sets = [row for chunk in table["shingles"].chunks for row in chunk.to_numpy(False)]
    leaked = np.zeros(table.num_rows, np.bool_)
    leaked[leaks["row_id"].to_numpy()] = True
    return Found(
        high=table["high"].to_numpy(),
        low=table["low"].to_numpy(),
        multiplicity=rows.array("multiplicity").astype(np.int64),
        leaked=leaked,
        bands=bands,
        shingles=sets,
    )


def _read_leaks(draft: Draft, scans: list[PartSpec]) -> pa.Table:
    return pa.concat_tables(pq.read_table(draft.file(leaks_name(s.index))) for s in scans)


def _tell(facts: Facts, leaks: pa.Table) -> None:
    exact, near, leaked = facts["duplicates"], facts["near_duplicates"], facts["leaks"]
    log.info(
        "screen: %d of %d rows kept; %d exact duplicates (%s)%s%s",
        facts["kept"],
        facts["read"],
        exact["rows"],
        exact["mode"],
        "" if near["mode"] == "off" else f", {near['rows']} near ones ({near['mode']})",
        f", {leaked['rows']} rows leak a benchmark ({leaked['mode']})"
        if leaked["benchmarks"]
        else "",
    )
    if leaked["mode"] == "list":
        for hit in leaks.slice(0, MOST_SHOWN).to_pylist():
            log.warning("screen: row %d has %s", hit["row_id"], leak_text(hit, leaked["ngram"]))


SCREEN = Stage(name="screen", version=2, reads=("rows",), identity=identity, run=run)
