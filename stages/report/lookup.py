"""Finding one row in the artifacts, by its id, its uid, or its file and line."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evenshard.shards import shard_name
from stages.contract.artifact import Artifact
from stages.contract.errors import DataError
from stages.contract.schemas import SIGNALS
from stages.contract.shown import one_line
from stages.report.life import (
    Grouped,
    Life,
    Placed,
    Reject,
    Screened,
    goes_by_distance,
    rank_in_cluster,
    rule_text,
    tell,
)
from stages.report.named import file_meant
from stages.report.reading import read_excerpts, shown
from stages.rows.formats.record import is_utf8
from stages.screen.evidence import leak_text

# Numbers that fit 64 bits; no row has a larger one.
_NUMBER = re.compile(r"\d{1,18}")
_PLACE = re.compile(rf"(.+):({_NUMBER.pattern})", re.DOTALL)  # a name may hold a line's end
MOST_NAMED = 5
SHOWN_CHARS = 200
NO_ROWS = 0


def explain(artifacts: Mapping[str, Artifact], manifest: Mapping[str, Any], row: str) -> str:
    """Tell the life of one row, and of the row that stands for it where there is one.

    Parameters
    ----------
    artifacts : mapping of str to Artifact
        All artifacts of the run by stage.
    manifest : mapping
        Of the published folder.
    row : str
        A row id, `uid:<uid>` or a uid, or `<file>:<line>`.

    Raises
    ------
    DataError
        If no row goes by that name.
    """
    life = find(artifacts, manifest, row)
    story = tell(life)
    screen = life.screen
    if screen is not None and screen.multiplicity == 0 and screen.kept_as >= 0:
        other = life_of(artifacts, manifest, screen.kept_as)
        story += f"\n\nThe row that stands for it:\n\n{tell(other)}"
    return story


def find(artifacts: Mapping[str, Artifact], manifest: Mapping[str, Any], row: str) -> Life:
    """Find a row by any of its names and gather its life.

    Raises
    ------
    DataError
        If there is none, or the name of the file is that of several.
    """
    rows = artifacts["rows"]
    if _NUMBER.fullmatch(row) and int(row) < rows.num_rows:
        return life_of(artifacts, manifest, int(row))
    row_id = _by_uid(rows, row.removeprefix("uid:"))
    if row_id is not None:
        return life_of(artifacts, manifest, row_id)
    place = _PLACE.fullmatch(row)
    # The file first, then its line: no line of another file may answer for it.
    file = None if place is None else file_meant(rows.facts["files"], place[1])
    if place is not None and file is not None:
        row_id = _by_place(rows, file, int(place[2]))
        if row_id is not None:
            return life_of(artifacts, manifest, row_id)
        unread = _unread(rows, file, int(place[2]))
        if unread is not None:
            return unread
    raise DataError(
        f"row={one_line(row)} is no row of this run: its row ids are 0 to {rows.num_rows - 1}; "
        f"give one of them, a uid, or file:line such as {_first_place(rows)}"
    )


def life_of(artifacts: Mapping[str, Artifact], manifest: Mapping[str, Any], row_id: int) -> Life:
    """Gather what every stage knows of a row."""
    excerpt = read_excerpts(artifacts["rows"], np.array([row_id]), most=SHOWN_CHARS)[row_id]
    group = _group(artifacts, row_id)
    selector = artifacts["allocate"].manifest["params"]["selector"]
    return Life(
        row_id=row_id,
        place=excerpt.place,
        source=excerpt.source,
        uid=excerpt.uid,
        prompt=excerpt.prompt,
        answer=excerpt.answer,
        screen=_screened(artifacts["screen"], row_id),
        tokens=_tokens(artifacts["tokens"], row_id),
        signals=_signals(artifacts["embed"], row_id),
        group=group,
        placed=_placed(artifacts["allocate"], manifest, row_id),
        reject=_reject(artifacts, row_id),
        rule=rule_text(selector),
        by_distance=goes_by_distance(selector),
    )


def _by_uid(rows: Artifact, uid: str) -> int | None:
    if not is_utf8(uid):
        return None
    for table in rows.iter_parts(["row_id", "uid"]):
        at = pc.index(table["uid"], pa.scalar(uid, table["uid"].type)).as_py()
        if at >= 0:
            return int(table["row_id"][at].as_py())
    return None


def _by_place(rows: Artifact, file: str, line: int) -> int | None:
    for table in rows.iter_parts(["row_id", "source_file", "source_line"]):
        found = table.filter(pc.equal(table["source_line"], line))
        for row in found.to_pylist():
            if row["source_file"] == file:
                return int(row["row_id"])
    return None


def _unread(rows: Artifact, file: str, line: int) -> Life | None:
    """Find a line that could not be read."""
    filters = [("file", "==", file), ("line", "==", line)]
    for reject in _rejects(rows, filters, ["raw"]):
        raw = bytes(reject["raw"] or b"")[: 4 * SHOWN_CHARS].decode("utf-8", "replace")
        return Life(
            row_id=None,
            place=one_line(f"{file}:{line}"),
            prompt=shown(raw, SHOWN_CHARS),
            reject=Reject("rows", reject["reason"], one_line(reject["detail"] or "")),
        )
    return None


def _rejects(artifact: Artifact, filters: Any, more: list[str]) -> list[dict[str, Any]]:
    names = [e["name"] for e in artifact.manifest["sides"] if e["name"].startswith("rejects")]
    columns = ["reason", "detail", *more]
    found: list[dict[str, Any]] = []
    for name in sorted(names):
        table = pq.read_table(artifact.file(name), columns=columns, filters=filters)
        found += table.to_pylist()
    return found


def _reject(artifacts: Mapping[str, Artifact], row_id: int) -> Reject | None:
    for stage in ("screen", "tokens", "embed", "allocate"):
        for reject in _rejects(artifacts[stage], [("row_id", "==", row_id)], []):
            return Reject(stage, reject["reason"], one_line(reject["detail"] or ""))
    return None


def _one(artifact: Artifact, columns: list[str], row_id: int) -> dict[str, Any] | None:
    rows = artifact.read(columns, start=row_id, stop=row_id + 1).to_pylist()
    return rows[0] if rows else None


def _screened(screen: Artifact, row_id: int) -> Screened:
    kept = _one(screen, ["row_id", "multiplicity"], row_id)
    duplicates = screen.side("duplicates.parquet")
    own = duplicates.filter(pc.equal(duplicates["row_id"], row_id)).to_pylist()
    others = duplicates.filter(pc.equal(duplicates["kept_as"], row_id))["row_id"]
    near = screen.side("near_duplicates.parquet")
    near_rows = near.filter(pc.equal(near["row_id"], row_id)).to_pylist()
    leaks = screen.side("leaks.parquet")
    hits = leaks.filter(pc.equal(leaks["row_id"], row_id)).slice(0, MOST_NAMED).to_pylist()
    facts = screen.facts
    return Screened(
        multiplicity=kept["multiplicity"] if kept else NO_ROWS,
        stands_for=others.slice(0, MOST_NAMED).to_pylist(),
        kept_as=own[0]["kept_as"] if own else -1,
        near=(near_rows[0]["near"], near_rows[0]["similarity"]) if near_rows else None,
        near_collapsed=facts["near_duplicates"]["mode"] == "collapse",
        leaks=[one_line(leak_text(hit, facts["leaks"]["ngram"])) for hit in hits],
    )


def _tokens(tokens: Artifact, row_id: int) -> tuple[int, int, list[str]] | None:
    row = _one(tokens, ["row_id", "num_tokens", "num_targets"], row_id)
    if row is None:
        return None
    changes = [
        f"{change['change']} x {change['count']}"
        for table in tokens.sides("changes")
        for change in table.filter(pc.equal(table["row_id"], row_id)).to_pylist()
    ]
    return row["num_tokens"], row["num_targets"], changes


def _signals(embed: Artifact, row_id: int) -> dict[str, float] | None:
    row = _one(embed, ["row_id", *SIGNALS], row_id)
    return None if row is None else {name: row[name] for name in SIGNALS}


def _group(artifacts: Mapping[str, Artifact], row_id: int) -> Grouped | None:
    cluster = artifacts["cluster"]
    if _one(cluster, ["row_id"], row_id) is None:
        return None
    return rank_in_cluster(
        cluster.array("row_id"),
        cluster.array("cluster"),
        cluster.array("distance"),
        artifacts["allocate"].array("row_id"),
        row_id,
    )


def _placed(allocate: Artifact, manifest: Mapping[str, Any], row_id: int) -> Placed | None:
    row = _one(allocate, ["row_id", "worker", "position", "weight"], row_id)
    if row is None:
        return None
    per_step = manifest["micro_batch"] * manifest["accumulation"]
    return Placed(
        worker=row["worker"],
        position=row["position"],
        step=row["position"] // per_step,
        weight=row["weight"],
        file=shard_name(row["worker"], manifest["world_size"]),
    )


def _first_place(rows: Artifact) -> str:
    row = _one(rows, ["row_id", "source_file", "source_line"], 0)
    return one_line(f"{row['source_file']}:{row['source_line']}") if row else "rows.jsonl:1"
