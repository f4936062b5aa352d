"""Reads a published folder and says everything that is wrong with it.

It reads only, and holds the columns of numbers; tokens pass a batch at a time. What must hold of
the numbers is in `evenshard.checks`. Longer than other files, since it also reads folders that
are damaged or were written by others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evenshard.checks import (
    LISTS,
    ROW_RULES,
    Array,
    Problem,
    ShardColumns,
    check_arithmetic,
    check_clusters,
    check_coverage,
    check_imbalance,
    check_row_ids,
    check_weights,
    row_faults,
)
from evenshard.plan import Plan
from evenshard.shards import (
    MANIFEST,
    REJECTS,
    SHARD_SCHEMA,
    Manifest,
    ShardError,
    StrPath,
    WorkerFacts,
    file_digest,
    parse_shard_name,
    read_manifest,
    shard_name,
)
from evenshard.shardset import ShardSet

BATCH_ROWS = 4096
CHANGES = "changes.parquet"
READ_COLUMNS = ("row_id", *LISTS, "num_tokens", "cluster", "multiplicity", "weight")


@dataclass(frozen=True)
class WorkerFigures:
    """What was found in one worker's file; what could not be read is None."""

    rank: int
    file: str
    rows: int | None
    tokens: int | None = None
    clusters: int | None = None
    weights: tuple[float, float, float] | None = None  # least, mean, largest


@dataclass(frozen=True)
class Report:
    """All that an examination found; `manifest` is None for a folder that is not evenshard's.

    `notes` are no faults: what another reader than evenshard's must know.
    """

    workers: list[WorkerFigures]
    problems: list[Problem]
    manifest: Manifest | None
    notes: tuple[str, ...] = ()


def verify(
    dir: StrPath, *, world_size: int | None = None, micro_batch: int | None = None
) -> list[Problem]:
    """Check a folder of shards: files, rows, weights, coverage of every step, and balance.

    Parameters
    ----------
    dir : path
        A published folder. One without a manifest is checked for what Parquet files it holds,
        a rank each in order of their names.
    world_size, micro_batch : int, optional
        A job that the folder is to feed. A set with a manifest is asked as a loader asks it, by a
        `Plan`; of other folders the files that do not fit are named.

    Returns
    -------
    list of Problem
        Empty if all is well.

    Raises
    ------
    ShardError
        If there is no such folder.
    ValueError
        If `world_size` or `micro_batch` is below 1.
    """
    return examine(dir, world_size=world_size, micro_batch=micro_batch).problems


def examine(
    dir: StrPath, *, world_size: int | None = None, micro_batch: int | None = None
) -> Report:
    """Check a folder as `verify` does, and give the figures of each worker beside the problems."""
    for name, value in (("world_size", world_size), ("micro_batch", micro_batch)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be >= 1; leave it out to check any")
    folder = Path(dir)
    if not folder.is_dir():
        raise ShardError(f"{folder} is not a folder; give the one that holds {MANIFEST}")
    try:
        manifest = read_manifest(folder)
    except ShardError as error:
        workers, problems = _examine_loose(folder, str(error))
        return Report(workers, [*problems, *_misfits(workers, world_size, micro_batch)], None)
    workers, problems = _examine_set(folder, manifest)
    if not problems and (world_size, micro_batch) != (None, None):  # else no loader opens it
        try:
            Plan(ShardSet(folder), world_size, micro_batch)
        except ShardError as error:
            problems.append(Problem("plan", "set", str(error)))
    if world_size is None or world_size == len(workers):
        return Report(workers, problems, manifest)
    return Report(workers, problems, manifest, (_note(manifest, world_size),))


def _examine_loose(folder: Path, reason: str) -> tuple[list[WorkerFigures], list[Problem]]:
    """Look at the Parquet files of a folder that has no manifest of ours."""
    message = f"not an evenshard set, only its files' rows are checked: {reason}"
    problems = [Problem("manifest", MANIFEST, message)]
    workers = []
    names = sorted(path.name for path in folder.glob("*.parquet") if path.name[0] != ".")
    for rank, name in enumerate(name for name in names if name not in (REJECTS, CHANGES)):
        try:
            workers.append(WorkerFigures(rank, name, pq.read_metadata(folder / name).num_rows))
        except (pa.ArrowException, OSError) as error:
            workers.append(WorkerFigures(rank, name, None))
            problems.append(Problem("unreadable", name, f"rank {rank} cannot be read: {error}"))
    if not workers:
        problems.append(Problem("missing", str(folder), "the folder holds no Parquet files"))
    most = max((worker.rows or 0 for worker in workers), default=0)
    for worker in workers:
        label = f"rank {worker.rank} ({worker.rows} rows)"
        if worker.rows == 0:
            problems.append(Problem("empty", worker.file, f"{label} has nothing to train on"))
        elif worker.rows is not None and worker.rows < most:
            text = f"{label} has fewer rows than the {most} of others, which will wait for it"
            problems.append(Problem("rows", worker.file, text))
    return workers, problems


def _misfits(
    workers: Sequence[WorkerFigures],
    world_size: int | None,
    micro_batch: int | None,
) -> Iterator[Problem]:
    """Name the ranks of a job that the files of a folder without a manifest cannot feed."""
    if world_size is not None and world_size != len(workers):
        who = _without_files(len(workers), world_size)
        text = f"world_size={world_size} must equal the {len(workers)} worker files: {who}"
        yield Problem("world_size", "set", text)
    for worker in workers:
        if micro_batch is not None and worker.rows and worker.rows % micro_batch:
            text = f"rank {worker.rank} ({worker.rows} rows) is no multiple of {micro_batch=}"
            yield Problem("micro_batch", worker.file, text)


def _without_files(num_files: int, world_size: int) -> str:
    """Say which ranks have no file, or which files no rank, where each reads its own."""
    missing = [str(rank) for rank in range(num_files, world_size)][:8]
    lost = [str(rank) for rank in range(world_size, num_files)][:8]
    who = "ranks" if len(missing or lost) > 1 else "rank"
    if missing:
        return f"{who} {', '.join(missing)} {'have' if len(missing) > 1 else 'has'} no file"
    return f"the rows of {who} {', '.join(lost)} would not be trained"


def _note(manifest: Manifest, world_size: int) -> str:
    who = _without_files(manifest["world_size"], world_size)
    return (
        f"evenshard's loader lays the {manifest['world_size']} worker files onto "
        f"world_size={world_size}; for a reader of one file per rank {who}: cut it anew with "
        f"`make reshard NAME={manifest['name']} WORLD_SIZE={world_size}`"
    )


def _examine_set(folder: Path, manifest: Manifest) -> tuple[list[WorkerFigures], list[Problem]]:
    problems = [*check_arithmetic(manifest), *_check_names(folder, manifest)]
    problems += _check_rejects(folder, manifest)
    problems += _check_changes(folder, manifest)
    per_step = manifest["accumulation"] * manifest["micro_batch"]
    workers, shards = [], []
    for facts in manifest["workers"]:
        rows, shard, found = _examine_shard(folder, facts)
        problems += found
        if rows is not None and per_step > 0 and rows % per_step:
            text = f"has {rows} rows, must be a multiple of {per_step}, accumulation * micro_batch"
            problems.append(Problem("rows", facts["file"], text))
        figures = WorkerFigures(facts["worker"], facts["file"], rows)
        if shard is not None:
            shards.append(shard)
            figures = _figures(facts, shard)
        workers.append(figures)
    problems += check_row_ids(shards)
    if len(shards) != manifest["world_size"] or not all(len(shard.row_id) for shard in shards):
        return workers, problems  # what holds over the whole set cannot be told
    problems += check_weights(shards, manifest)
    problems += check_clusters(shards, manifest)
    counts = {len(shard.row_id) for shard in shards}
    if len(counts) == 1 and per_step > 0 and counts.pop() % per_step == 0:
        problems += check_coverage(shards, manifest)
        problems += check_imbalance(shards, manifest)
    return workers, problems


def _figures(facts: WorkerFacts, shard: ShardColumns) -> WorkerFigures:
    weights = None
    if len(shard.weight):
        mean = shard.weight.mean(dtype=np.float64)
        weights = (float(shard.weight.min()), float(mean), float(shard.weight.max()))
    tokens = int(shard.num_tokens.sum(dtype=np.int64))
    clusters = len(np.unique(shard.cluster))
    return WorkerFigures(
        facts["worker"], facts["file"], len(shard.row_id), tokens, clusters, weights
    )


def _check_names(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    size = manifest["world_size"]
    for rank, worker in enumerate(manifest["workers"]):
        if (worker["worker"], worker["file"]) != (rank, shard_name(rank, size)):
            found = f"worker={worker['worker']} file={worker['file']}"
            yield Problem("names", MANIFEST, f"{found} must be {rank}, {shard_name(rank, size)}")
    known = {worker["file"] for worker in manifest["workers"]}
    for path in sorted(folder.iterdir()):
        if parse_shard_name(path.name) and path.name not in known:
            text = f"is not of this set of {size} workers; delete it or make the folder anew"
            yield Problem("stranger", path.name, text)


def _check_bytes(path: Path, sha256: str, num_bytes: int | None = None) -> Iterator[Problem]:
    size = path.stat().st_size
    if num_bytes is not None and size != num_bytes:
        yield Problem("size", path.name, f"has {size} bytes, the manifest says {num_bytes}")
        return
    found = file_digest(path)
    if found != sha256:
        text = f"its sha256 is {found[:12]}..., the manifest says {sha256[:12]}..."
        yield Problem("sha256", path.name, text)


def _check_rejects(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    facts = manifest["rejects"]
    path = folder / Path(facts["file"]).name
    by_reason = {reason: rows for reason, rows in facts["by_reason"].items() if rows}
    if sum(by_reason.values()) != facts["rows"]:
        text = f"rejects.rows={facts['rows']} must equal the sum of by_reason={by_reason}"
        yield Problem("rejects", MANIFEST, text)
    if not path.is_file():
        yield Problem("missing", path.name, "is missing, the manifest names it")
        return
    yield from _check_bytes(path, facts["sha256"])
    try:
        with pq.ParquetFile(path) as file:
            rows, reasons = file.metadata.num_rows, file.read(columns=["reason"])
    except (pa.ArrowException, OSError) as error:
        yield Problem("unreadable", path.name, f"cannot be read: {error}")
        return
    if rows != facts["rows"]:
        yield Problem("rejects", path.name, f"has {rows} rows, the manifest says {facts['rows']}")
    if "reason" in reasons.column_names:
        counts = {v["values"]: v["counts"] for v in pc.value_counts(reasons["reason"]).to_pylist()}
        if counts != by_reason:
            text = f"counts by reason are {counts}, the manifest says {by_reason}"
            yield Problem("rejects", path.name, text)


def _check_changes(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """Check the list of changed rows, which a set has only where rows were changed."""
    facts = cast(dict[str, Any], manifest).get("changes")
    if facts is None:
        return
    path = folder / Path(facts["file"]).name
    if not path.is_file():
        yield Problem("missing", path.name, "is missing, the manifest names it")
        return
    yield from _check_bytes(path, facts["sha256"])


def _examine_shard(
    folder: Path, facts: WorkerFacts
) -> tuple[int | None, ShardColumns | None, list[Problem]]:
    """Give the rows of one file, its columns if they can be read, and its problems."""
    path = folder / Path(facts["file"]).name
    if not path.is_file():
        text = f"is missing, worker {facts['worker']} has no rows; copy the folder again"
        return None, None, [Problem("missing", path.name, text)]
    problems = list(_check_bytes(path, facts["sha256"], facts["num_bytes"]))
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            rows = file.metadata.num_rows
            if rows != facts["rows"]:
                text = f"has {rows} rows, the manifest says {facts['rows']}"
                problems.append(Problem("rows", path.name, text))
            differences = _schema_differences(file.schema_arrow)
            if differences:
                problems.append(Problem("schema", path.name, "; ".join(differences)))
                return rows, None, problems
            shard, found = _stream(file, path.name)
    except (pa.ArrowException, OSError) as error:
        return None, None, [*problems, Problem("unreadable", path.name, f"cannot be read: {error}")]
    problems += found
    tokens = 0 if shard is None else int(shard.num_tokens.sum(dtype=np.int64))
    if shard is not None and tokens != facts["tokens"]:
        text = f"has {tokens} tokens, the manifest says {facts['tokens']}"
        problems.append(Problem("tokens", path.name, text))
    return rows, shard, problems


def _schema_differences(schema: pa.Schema) -> list[str]:
    if schema.equals(SHARD_SCHEMA):
        return []
    differences = []
    for field in SHARD_SCHEMA:
        if field.name not in schema.names:
            differences.append(f"column {field.name} is missing")
        elif schema.field(field.name).type != field.type:
            found = schema.field(field.name).type
            differences.append(f"column {field.name} is {found}, must be {field.type}")
    differences += [
        f"column {n} is not a shard's" for n in schema.names if n not in SHARD_SCHEMA.names
    ]
    return differences or [f"columns {schema.names} must be in the order {SHARD_SCHEMA.names}"]


def _stream(file: pq.ParquetFile, name: str) -> tuple[ShardColumns | None, list[Problem]]:
    """Check every row of a shard, a batch at a time, and keep its columns of numbers."""
    pieces: list[list[Array]] = []
    tally: dict[str, tuple[int, int]] = {}  # rule: number of rows, first row id
    for batch in file.iter_batches(BATCH_ROWS, columns=list(READ_COLUMNS)):
        for column in READ_COLUMNS:
            array = batch[column]
            if array.null_count or (column in LISTS and array.flatten().null_count):
                return None, [Problem("null", name, f"column {column} must hold no null")]
        row_ids = batch["row_id"].to_numpy()
        for rule, mask in row_faults(batch):
            if mask.any():
                count, first = tally.get(rule, (0, int(row_ids[mask.argmax()])))
                tally[rule] = (count + int(mask.sum()), first)
        kept = ("num_tokens", "cluster", "weight")
        pieces.append([row_ids, *(batch[column].to_numpy() for column in kept)])
    problems = [
        Problem(rule, name, f"{count} rows {ROW_RULES[rule]}; the first is row_id={first}")
        for rule, (count, first) in tally.items()
    ]
    if not pieces:
        empty = np.zeros(0, np.int64)
        return ShardColumns(name, empty, empty, empty, np.zeros(0, np.float32)), problems
    columns = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return ShardColumns(name, *columns), problems
