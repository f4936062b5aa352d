"""What the report reads from the artifacts: numbers of all rows, and text of a few.

Numbers are read column by column. Text is read a row group at a time, and only of the groups
that hold a wanted row, so that memory holds one group and the excerpts.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stages.contract.artifact import Artifact
from stages.contract.shown import one_line
from stages.embed.reading import space_of
from stages.report.fates import Passed
from stages.report.numbers import FloatArray, IntArray, Pool, project

TEXT_COLUMNS = ("row_id", "source_file", "source_line", "source", "uid", "messages")
# Of every turn of a text, for the words of its cluster.
WORDS_OF = 2000


@dataclass(frozen=True)
class Excerpt:
    """A row as the report shows it.

    Attributes
    ----------
    row_id : int
    place : str
        File and line.
    source, uid : str
    prompt, answer : str
        The first turn that is not the assistant's and the assistant's first, cut, on one line.
    words : str
        A longer piece of both, for the words of its cluster.
    """

    row_id: int
    place: str
    source: str
    uid: str
    prompt: str
    answer: str
    words: str


def read_pool(artifacts: Mapping[str, Artifact], *, num_workers: int, rows_per_step: int) -> Pool:
    """Gather the numbers of all embedded rows, and the places of those that are kept."""
    embed, cluster, allocate = (artifacts[name] for name in ("embed", "cluster", "allocate"))
    row_ids = embed.array("row_id")
    at_tokens = np.searchsorted(artifacts["tokens"].array("row_id"), row_ids)
    at_screen = np.searchsorted(artifacts["screen"].array("row_id"), row_ids)
    return Pool(
        row_ids=row_ids,
        cluster=cluster.array("cluster"),
        distance=cluster.array("distance"),
        multiplicity=artifacts["screen"].array("multiplicity")[at_screen].astype(np.int64),
        num_tokens=artifacts["tokens"].array("num_tokens")[at_tokens].astype(np.int64),
        loss=embed.array("loss"),
        kept=np.searchsorted(row_ids, allocate.array("row_id")).astype(np.int64),
        weight=allocate.array("weight").astype(np.float64),
        worker=allocate.array("worker").astype(np.int64),
        position=allocate.array("position"),
        num_clusters=int(cluster.facts["num_clusters"]),
        num_workers=num_workers,
        rows_per_step=rows_per_step,
    )


def read_passed(artifacts: Mapping[str, Artifact]) -> Passed:
    """Gather which rows each stage let through."""
    screen = artifacts["screen"]
    return Passed(
        num_rows=artifacts["rows"].num_rows,
        screen=screen.array("row_id"),
        embed=artifacts["embed"].array("row_id"),
        selected=artifacts["allocate"].array("row_id"),
        duplicates=screen.side("duplicates.parquet")["row_id"].to_numpy(),
        near=np.unique(screen.side("near_duplicates.parquet")["row_id"].to_numpy()),
    )


def read_plane(
    artifacts: Mapping[str, Artifact], row_ids: IntArray
) -> tuple[FloatArray, FloatArray, float]:
    """Lay some rows and all centres into the plane of the rows' largest variance.

    Returns
    -------
    rows : ndarray of shape (num_rows, 2)
    centers : ndarray of shape (num_clusters, 2)
    share : float
        Share of the rows' variance that the plane holds.
    """
    from threadpoolctl import threadpool_limits

    cluster = artifacts["cluster"]
    params = cluster.manifest["params"]
    centers = np.stack(cluster.side("centers.parquet")["center"].to_numpy()).astype(np.float32)
    with threadpool_limits(1):  # sums depend on the number of threads, and so would the bytes
        space = space_of(
            artifacts["embed"], params["feature"], params["normalize"], params["center"]
        )
        rows, middles, share = project(space.read_rows(row_ids), centers)
    return rows, middles, share


def iter_groups(rows: Artifact, row_ids: IntArray, columns: Iterable[str]) -> Iterator[pa.Table]:
    """Read some rows by their ids, a row group at a time, in increasing order.

    Parameters
    ----------
    rows : Artifact
        The dense table of all rows.
    row_ids : ndarray of int64
        Increasing.
    columns : iterable of str
        What is read.
    """
    names = list(columns)
    for part in rows.parts:
        first, last = np.searchsorted(row_ids, [part.start, part.stop])
        if first == last:
            continue
        with pq.ParquetFile(rows.file(part.name)) as file:
            start = part.start
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                first, last = np.searchsorted(row_ids, [start, stop])
                if first < last:
                    table = file.read_row_group(group, columns=names)
                    yield table.take(pa.array(row_ids[first:last] - start))
                start = stop


def read_excerpts(rows: Artifact, row_ids: IntArray, *, most: int) -> dict[int, Excerpt]:
    """Read the beginnings of some rows' texts.

    Parameters
    ----------
    rows : Artifact
        The rows.
    row_ids : ndarray of int64
        In any order.
    most : int
        Characters of each of the two turns that are shown.
    """
    found = {}
    for table in iter_groups(rows, np.unique(row_ids), TEXT_COLUMNS):
        for row in table.to_pylist():
            prompt, answer = turns(row["messages"])
            found[row["row_id"]] = Excerpt(
                row_id=row["row_id"],
                place=one_line(f"{row['source_file']}:{row['source_line']}"),
                source=one_line(row["source"] or "", 60),
                uid=one_line(row["uid"] or "", 60),
                prompt=shown(prompt, most),
                answer=shown(answer, most),
                words=f"{prompt[:WORDS_OF]}\n{answer[:WORDS_OF]}",
            )
    return found


def turns(messages: list[dict[str, str]]) -> tuple[str, str]:
    """Give the first turn of the user (or else the first of all), and the assistant's first."""
    by_role: dict[str, str] = {}
    for message in messages:
        by_role.setdefault(message["role"], message["content"])
    others = [content for role, content in by_role.items() if role != "assistant"]
    return by_role.get("user", others[0] if others else ""), by_role.get("assistant", "")


def shown(text: str, most: int) -> str:
    """Cut a text and write it on one line, with nothing in it that moves a cursor."""
    # Far more than is shown is never looked at: a row can be a whole book.
    return one_line(" ".join(text[: 4 * most + 200].split()), most)


def read_reject_examples(
    artifacts: Mapping[str, Artifact], *, per_reason: int, most: int
) -> dict[str, list[dict[str, str]]]:
    """Read the first rejects of every reason, a side table at a time.

    Returns
    -------
    dict of str to list of dict
        By reason: place, stage, detail, raw (its beginning).
    """
    found: dict[str, list[dict[str, str]]] = {}
    for artifact in artifacts.values():
        for table in artifact.sides("rejects"):
            for reason in pc.unique(table["reason"]).to_pylist():
                examples = found.setdefault(reason, [])
                wanted = per_reason - len(examples)
                if wanted <= 0:
                    continue
                at = np.flatnonzero(pc.equal(table["reason"], reason).to_numpy())[:wanted]
                for reject in table.take(pa.array(at)).to_pylist():
                    raw = bytes(reject["raw"] or b"")[: 4 * most]
                    examples.append(
                        {
                            "place": one_line(f"{reject['file']}:{reject['line']}"),
                            "stage": str(reject["stage"]),
                            "detail": one_line(reject["detail"] or ""),
                            "raw": shown(raw.decode("utf-8", "replace"), most),
                        }
                    )
    return dict(sorted(found.items()))


def read_leak_examples(screen: Artifact, *, count: int) -> list[dict[str, str]]:
    """Read the first leaks of each benchmark: row, item, the words they share."""
    table = screen.side("leaks.parquet")
    examples = []
    for name in sorted(pc.unique(table["benchmark"]).to_pylist()):
        at = np.flatnonzero(pc.equal(table["benchmark"], name).to_numpy())[:count]
        examples += [
            {
                "row": str(hit["row_id"]),
                "item": one_line(f"{hit['benchmark']}:{hit['benchmark_line']}"),
                "share": f"{hit['share']:.0%}",
                "words": shown(hit["ngram"], 200),
            }
            for hit in table.take(pa.array(at)).to_pylist()
        ]
    return examples
