"""The table of all rows: what became of each and why, filtered, searched and paged.

Numbers of all rows are held, some thirty bytes each; text is read a row group at a time, only of
rows that fit the filter, and only until a page is full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stages.contract.artifact import Artifact
from stages.contract.schemas import DUPLICATES
from stages.report.fates import DUPLICATE, FATES, KEPT, NEAR_DUPLICATE, NOT_SELECTED, fates_of
from stages.report.life import rule_text
from stages.report.reading import TEXT_COLUMNS, Excerpt, iter_groups, read_excerpts, read_passed

ROWS_PER_PAGE = 50
# Of one search, before it shows what it has and offers to go on.
MOST_SEARCHED = 200_000
EXCERPT_CHARS = 160

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Index:
    """What is known of every row, as arrays of shape (num_rows,) by row id, and names.

    Attributes
    ----------
    fate : ndarray of int8
        Places in `FATES`.
    cluster : ndarray of int32
        -1 for a row that was not embedded.
    distance : ndarray of float32
    rank : ndarray of int32
        In its cluster from 1, nearest first.
    worker : ndarray of int32
        -1 for a row that is not kept.
    weight : ndarray of float32
    source : ndarray of int32
        Places in `sources`.
    sources : sequence of str
    sizes, kept : ndarray of int64
        Rows and kept rows of each cluster.
    duplicates : pyarrow.Table
        row_id, kept_as.
    rejects : mapping of int to str
        Stage and reason by row id.
    rule : str
    """

    fate: npt.NDArray[np.int8]
    cluster: npt.NDArray[np.int32]
    distance: npt.NDArray[np.float32]
    rank: npt.NDArray[np.int32]
    worker: npt.NDArray[np.int32]
    weight: npt.NDArray[np.float32]
    source: npt.NDArray[np.int32]
    sources: Sequence[str]
    sizes: IntArray
    kept: IntArray
    duplicates: pa.Table
    rejects: Mapping[int, str]
    rule: str


@dataclass(frozen=True)
class Query:
    """What is asked of the table; None and empty ask for all.

    Attributes
    ----------
    fate, source : str
    cluster : int or None
    text : str
        Looked for in every turn, in any case of letters.
    after : int
        Only rows of larger ids.
    """

    fate: str = ""
    source: str = ""
    cluster: int | None = None
    text: str = ""
    after: int = -1


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    row_id: int
    fate: str
    why: str
    cluster: int | None
    distance: float | None
    rank: int | None
    excerpt: Excerpt


@dataclass(frozen=True)
class TablePage:
    """A page of the table.

    Attributes
    ----------
    lines : list of Line
    num_fitting : int
        Rows that fit the filter, whatever their text.
    after : int or None
        Where the next page begins; None if there is none.
    searched : int
        Rows whose text was looked at.
    """

    lines: list[Line]
    num_fitting: int
    after: int | None
    searched: int


def read_index(artifacts: Mapping[str, Artifact]) -> Index:
    """Gather what is known of every row."""
    rows, cluster, allocate = (artifacts[name] for name in ("rows", "cluster", "allocate"))
    num_rows = rows.num_rows
    ids, labels = cluster.array("row_id"), cluster.array("cluster")
    selected = allocate.array("row_id")
    count = int(cluster.facts["num_clusters"])
    distances = cluster.array("distance")
    sources, names = read_source_codes(rows)
    selector = allocate.manifest["params"]["selector"]
    return Index(
        fate=fates_of(read_passed(artifacts)),
        cluster=spread_out(num_rows, ids, labels, -1),
        distance=spread_out(num_rows, ids, distances, np.nan),
        rank=spread_out(num_rows, ids, ranks(labels, distances), 0),
        worker=spread_out(num_rows, selected, allocate.array("worker"), -1),
        weight=spread_out(num_rows, selected, allocate.array("weight"), 0.0),
        source=sources,
        sources=names,
        sizes=np.bincount(labels, minlength=count),
        kept=np.bincount(allocate.array("cluster"), minlength=count),
        duplicates=artifacts["screen"].side("duplicates.parquet").select(DUPLICATES.names),
        rejects=read_reject_reasons(artifacts),
        rule=rule_text(selector),
    )


def spread_out(
    size: int, places: IntArray, values: npt.NDArray[Any], fill: float
) -> npt.NDArray[Any]:
    """Lay values out over all row ids, with `fill` where there is none."""
    whole = np.full(size, fill, values.dtype)
    whole[places] = values
    return whole


def ranks(
    clusters: npt.NDArray[np.int32], distances: npt.NDArray[np.float32]
) -> npt.NDArray[np.int32]:
    """Rank every row in its cluster from 1, nearest first; ties go to the earlier row."""
    order = np.lexsort((np.arange(clusters.size), distances, clusters))
    starts = np.searchsorted(clusters[order], clusters[order], side="left")
    found = np.empty(clusters.size, np.int32)
    found[order] = np.arange(clusters.size) - starts + 1
    return found


def read_source_codes(rows: Artifact) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Give each row the number of its source, and the sources in the order of their numbers."""
    numbers: dict[str, int] = {}
    codes = []
    for table in rows.iter_parts(["source"]):
        coded = table["source"].combine_chunks().fill_null("").dictionary_encode()
        places = [numbers.setdefault(name, len(numbers)) for name in coded.dictionary.to_pylist()]
        codes.append(np.array(places, np.int32)[coded.indices.to_numpy()])
    return np.concatenate(codes), list(numbers)


def read_reject_reasons(artifacts: Mapping[str, Artifact]) -> dict[int, str]:
    """Read stage and reason of every rejected row that has an id."""
    found: dict[int, str] = {}
    for stage in ("screen", "tokens", "embed", "allocate"):
        artifact = artifacts[stage]
        for entry in artifact.manifest["sides"]:
            if entry["name"].startswith("rejects"):
                table = pq.read_table(artifact.file(entry["name"]), columns=["row_id", "reason"])
                reasons = table["reason"].to_pylist()
                for row_id, reason in zip(table["row_id"].to_pylist(), reasons, strict=True):
                    found[row_id] = f"{stage}: {reason}"
    return found


def fitting(index: Index, query: Query) -> IntArray:
    """Give the increasing ids of the rows that fit all but the text of a query."""
    fits = np.ones(index.fate.size, np.bool_)
    if query.fate:
        fits &= index.fate == (FATES.index(query.fate) if query.fate in FATES else -1)
    if query.cluster is not None:
        fits &= index.cluster == query.cluster
    if query.source:
        known = query.source in index.sources
        fits &= index.source == (index.sources.index(query.source) if known else -1)
    return np.flatnonzero(fits)


def page_of(
    index: Index,
    rows: Artifact,
    query: Query,
    *,
    size: int = ROWS_PER_PAGE,
    most_searched: int = MOST_SEARCHED,
) -> TablePage:
    """Find the next page of rows that a query asks for.

    Parameters
    ----------
    index : Index
        Of all rows.
    rows : Artifact
        Where their text is.
    query : Query
        What is asked.
    size : int
        Rows of a page.
    most_searched : int
        A search stops after so many texts; the next page goes on from there.
    """
    every = fitting(index, query)
    ids = every[np.searchsorted(every, query.after, side="right") :]
    searched, last = 0, query.after
    if not query.text:
        found, last = ids[:size], int(ids[size - 1]) if ids.size > size else -1
        more = ids.size > size
    else:
        pieces: list[IntArray] = []
        for table in iter_groups(rows, ids, TEXT_COLUMNS):
            searched += table.num_rows
            here = table["row_id"].to_numpy()
            last = int(here[-1])
            pieces.append(here[matching(table, query.text)])
            if sum(piece.size for piece in pieces) >= size or searched >= most_searched:
                break
        found = np.concatenate([ids[:0], *pieces])
        more = bool(ids.size) and last < int(ids[-1])
        if found.size > size:
            found, last, more = found[:size], int(found[size - 1]), True
    excerpts = read_excerpts(rows, found, most=EXCERPT_CHARS)
    lines = [line_of(index, row_id, excerpts[row_id]) for row_id in found.tolist()]
    return TablePage(lines, int(every.size), last if more else None, searched)


def matching(table: pa.Table, text: str) -> IntArray:
    """Find the rows of which a turn, the uid or the file holds a text, in any case of letters."""
    messages = table["messages"].combine_chunks()
    contents = pc.struct_field(pc.list_flatten(messages), "content")
    hits = pc.match_substring(contents, text, ignore_case=True).to_numpy(zero_copy_only=False)
    in_turns = pc.list_parent_indices(messages).to_numpy()[hits.astype(np.bool_)]
    names = [
        np.flatnonzero(
            pc.match_substring(table[name], text, ignore_case=True).fill_null(False).to_numpy()
        )
        for name in ("uid", "source_file")
    ]
    return np.unique(np.concatenate([in_turns, *names])).astype(np.int64)


def line_of(index: Index, row_id: int, excerpt: Excerpt) -> Line:
    """Say what became of one row."""
    cluster = int(index.cluster[row_id])
    grouped = cluster >= 0
    return Line(
        row_id=row_id,
        fate=FATES[index.fate[row_id]],
        why=why(index, row_id),
        cluster=cluster if grouped else None,
        distance=float(index.distance[row_id]) if grouped else None,
        rank=int(index.rank[row_id]) if grouped else None,
        excerpt=excerpt,
    )


def why(index: Index, row_id: int) -> str:
    """Say why a row is where it is."""
    fate, cluster = int(index.fate[row_id]), int(index.cluster[row_id])
    if fate in (KEPT, NOT_SELECTED):
        chosen = f"{index.rule} kept {index.kept[cluster]} of {index.sizes[cluster]}"
        if fate == NOT_SELECTED:
            return chosen
        return f"worker {index.worker[row_id]}, weight {index.weight[row_id]:.3f}; {chosen}"
    if fate in (DUPLICATE, NEAR_DUPLICATE):
        table = index.duplicates
        at = int(np.searchsorted(table["row_id"].to_numpy(), row_id))
        return f"row {table['kept_as'][at].as_py()} stands for it"
    return index.rejects.get(row_id, "refused on the way")
