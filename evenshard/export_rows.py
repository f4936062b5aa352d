"""Rows of a set in any order, a row group of each shard in memory, and the files they go to."""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from evenshard.shards import SHARD_SCHEMA, ShardError
from evenshard.shardset import ShardSet

GROUP_ROWS = 1024
GROUP_BYTES = 64 << 20
INT64 = range(-(1 << 63), 1 << 63)
PLAIN_COLUMNS = ["messages", "weight", "row_id", "uid", "source", "cluster", "meta"]

IntArray = npt.NDArray[np.int64]
Record = dict[str, Any]


class RowReader:
    """Takes rows by number, `worker * rows_per_worker + position`.

    Parameters
    ----------
    shards : ShardSet
        Where they are read from.
    columns : list of str
        Which columns are read.

    Raises
    ------
    ShardError
        If a file has other columns or another number of rows than the set says.

    Notes
    -----
    The row groups of the last call are kept, so an order that goes forward in every shard reads
    each group once.
    """

    def __init__(self, shards: ShardSet, columns: list[str]) -> None:
        self._columns = columns
        self._rows_per_worker = shards.rows_per_worker
        self._files = [pq.ParquetFile(path, memory_map=True) for path in shards.paths]
        self._starts = []  # of each shard: (row group,), the position at which it begins
        for path, file in zip(shards.paths, self._files, strict=True):
            metadata = file.metadata
            if not file.schema_arrow.equals(SHARD_SCHEMA):
                raise ShardError(
                    f"{path} has columns {', '.join(file.schema_arrow.names)} unlike a shard's; "
                    f"`evenshard verify` on its folder says which differ"
                )
            if metadata.num_rows != shards.rows_per_worker:
                raise ShardError(
                    f"{path} has {metadata.num_rows} rows, its manifest says "
                    f"{shards.rows_per_worker}; copy the folder again"
                )
            sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            self._starts.append(np.cumsum([0, *sizes])[:-1])
        self._groups: dict[tuple[int, int], pa.Table] = {}

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def take(self, rows: IntArray) -> pa.Table:
        """Read rows, in the order asked for."""
        workers, positions = np.divmod(rows, self._rows_per_worker)
        pieces, places = [], []
        used = set()
        for worker in np.unique(workers).tolist():
            mine = np.flatnonzero(workers == worker)
            starts = self._starts[worker]
            groups = np.searchsorted(starts, positions[mine], side="right") - 1
            for group in np.unique(groups).tolist():
                inside = mine[groups == group]
                used.add((worker, group))
                table = self._group(worker, group)
                pieces.append(table.take(pa.array(positions[inside] - starts[group])))
                places.append(inside)
        self._groups = {key: self._groups[key] for key in used}
        joined = pa.concat_tables(pieces).combine_chunks()
        return joined.take(pa.array(np.argsort(np.concatenate(places))))

    def _group(self, worker: int, group: int) -> pa.Table:
        key = (worker, group)
        if key not in self._groups:
            table = self._files[worker].read_row_group(group, columns=self._columns)
            self._groups[key] = table.select(self._columns).combine_chunks()
        return self._groups[key]

    def tables(self, pieces: Iterable[IntArray]) -> Iterator[pa.Table]:
        """Read an order that comes in pieces of any size, a thousand rows at a time."""
        held, size = [np.zeros(0, np.int64)], 0
        for piece in pieces:
            held.append(piece)
            size += piece.size
            if size >= GROUP_ROWS:
                rows = np.concatenate(held)
                full = size - size % GROUP_ROWS
                for start in range(0, full, GROUP_ROWS):
                    yield self.take(rows[start : start + GROUP_ROWS])
                held, size = [rows[full:]], size - full
        if size:
            yield self.take(np.concatenate(held))


def write_parquet(path: Path, tables: Iterable[pa.Table]) -> None:
    """Write shard columns in row groups of about a thousand rows and at most 64 MiB."""
    with pq.ParquetWriter(path, SHARD_SCHEMA, compression="zstd") as writer:
        for table in tables:
            fitting = table.num_rows * GROUP_BYTES // max(1, table.nbytes)
            writer.write_table(table, row_group_size=min(table.num_rows, max(1, fitting)))


def unweighted(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Set every weight to 1."""
    index = SHARD_SCHEMA.get_field_index("weight")
    for table in tables:
        ones = pa.array(np.ones(table.num_rows, np.float32))
        yield table.set_column(index, SHARD_SCHEMA.field("weight"), ones)


def write_lines(path: Path, records: Iterable[Record]) -> None:
    """Write one JSON object a line, as UTF-8 that is not escaped."""
    with path.open("wb") as stream:
        for record in records:
            try:
                line = json.dumps(record, ensure_ascii=False).encode()
            except UnicodeEncodeError:  # half a surrogate pair, which only an escape can hold
                line = json.dumps(record).encode()
            stream.write(line + b"\n")


def weighted_turns(tables: Iterable[pa.Table], key: str, *, last_only: bool) -> Iterator[Record]:
    """Give messages up to the last answer, with the row's weight in answers.

    Parameters
    ----------
    tables : iterable of pyarrow.Table
        With messages and weight.
    key : str
        What a message calls its weight.
    last_only : bool
        Whether the last answer alone carries it.
    """
    for table in tables:
        weights = _short_floats(table["weight"])
        for turns, weight in zip(table["messages"].to_pylist(), weights, strict=True):
            answers = [i for i, turn in enumerate(turns) if turn["role"] == "assistant"]
            for i in answers[-1:] if last_only else answers:
                turns[i][key] = weight
            yield {"messages": turns[: answers[-1] + 1] if answers else turns}


def plain_records(tables: Iterable[pa.Table], kinds: dict[str, set[str]]) -> Iterator[Record]:
    """Give messages, weight, and where a row is from, then the columns of `meta`.

    Parameters
    ----------
    tables : iterable of pyarrow.Table
        With the columns of `PLAIN_COLUMNS`.
    kinds : dict
        What `meta_kinds` found. Every record has all its keys, null where a row has none; a key
        of several kinds holds JSON text, and one that is ours is called `meta_<key>`.
    """
    names = {key: key for key in kinds}
    for key in kinds:
        while names[key] in PLAIN_COLUMNS or (names[key] != key and names[key] in kinds):
            names[key] = f"meta_{names[key]}"
    for table in tables:
        weights = _short_floats(table["weight"])
        for row, weight in zip(table.to_pylist(), weights, strict=True):
            meta = _parse_meta(row.pop("meta"))
            row["weight"] = weight
            for key, name in names.items():
                row[name] = _plain(meta.get(key), kinds[key])
            yield row


def meta_kinds(shards: ShardSet) -> dict[str, set[str]]:
    """Say which keys the `meta` of any row has, and of which kinds their values are."""
    kinds: dict[str, set[str]] = {}
    for path in shards.paths:
        with pq.ParquetFile(path, memory_map=True) as file:
            for batch in file.iter_batches(GROUP_ROWS, columns=["meta"]):
                for text in batch["meta"].to_pylist():
                    for key, value in _parse_meta(text).items():
                        kinds.setdefault(key, set()).update(_kind(value))
    return kinds


def _parse_meta(text: str | None) -> Record:
    try:
        meta = json.loads(text or "{}", parse_constant=str, parse_float=_real)
    except ValueError:
        meta = text
    return meta if isinstance(meta, dict) else {"meta": meta}


def _real(digits: str) -> float | str:
    """Read a number; one beyond a double, which JSON cannot hold, stays text."""
    number = float(digits)
    return number if math.isfinite(number) else digits


def _kind(value: Any) -> set[str]:
    """Name the kind of a value, and for an integer what cannot hold it."""
    if value is None:
        return set()
    if isinstance(value, int) and not isinstance(value, bool):
        if value not in INT64:
            return {"int", "huge"}
        return {"int"} if int(float(value)) == value else {"int", "wide"}  # than a double
    return {type(value).__name__}


def _plain(value: Any, kinds: set[str]) -> Any:
    if value is None or len(kinds) <= 1 or kinds == {"int", "wide"}:
        return value
    if kinds == {"int", "float"}:
        return float(value)
    return json.dumps(value, ensure_ascii=False)


def _short_floats(column: pa.ChunkedArray) -> list[float]:
    """Give float32 numbers as the shortest text that reads back to them: 0.9, not 0.89999998."""
    return [float(str(number)) for number in column.to_numpy()]
