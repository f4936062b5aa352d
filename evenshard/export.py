"""Shards become one file for a trainer that cannot read them, and what that loses is said.

A folder holds the data, `README.md` (a card) and `export.json`, and comes to its place by
`evenshard.swap`. Rows come in the order of epoch 0 of `evenshard.plan.Plan`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from evenshard.export_card import Losses, Target, build_card, losses
from evenshard.export_order import IntArray, Order, order_repeats, order_steps
from evenshard.export_rows import (
    PLAIN_COLUMNS,
    RowReader,
    meta_kinds,
    plain_records,
    unweighted,
    weighted_turns,
    write_lines,
    write_parquet,
)
from evenshard.shards import MANIFEST, SHARD_SCHEMA, ShardError, StrPath, file_digest
from evenshard.shardset import ShardSet
from evenshard.swap import draft_of, swap

FORMAT = "evenshard-export"
FORMAT_VERSION = 1
EXPORT = "export.json"
TARGETS: tuple[Target, ...] = get_args(Target)
STRIDED = ("strided", "ms-swift")  # in these rank r takes every W-th row


@dataclass(frozen=True)
class Exported:
    """A finished export: where it is, its figures by name, and what it lost."""

    folder: Path
    figures: dict[str, str]
    lost: Losses


def export(
    dir: StrPath,
    to: Target,
    *,
    out: StrPath = "",
    world_size: int | None = None,
    micro_batch: int | None = None,
    repeat_rows: int | None = None,
    allow_drop: bool = False,
) -> Exported:
    """Write a published set for a trainer that reads one file.

    Parameters
    ----------
    dir : path
        A folder that `make curate` or `make reshard` wrote.
    to : str
        "block", "strided", "repeat", "ms-swift", "llamafactory" or "jsonl".
    out : path, optional
        The new folder, by default `<dir>-<to>`; the files of an export that is there are
        replaced, others stay. A link to a folder stays a link.
    world_size, micro_batch : int, optional
        Ranks of the job and rows of a rank in one forward pass; by default those of the set.
    repeat_rows : int, optional
        Rows of a "repeat". By default as many times those of the set, up to 16, as keep every
        row and bring the shares within 5 %; with `allow_drop` those of the set.
    allow_drop : bool, optional
        Whether a "repeat" may leave out rows.

    Raises
    ------
    ShardError
        If the job does not fit the set, or `out` holds something else.
    """
    if to not in TARGETS:
        raise ShardError(f"to={to!r} must be one of {', '.join(TARGETS)}")
    if to != "repeat" and (repeat_rows is not None or allow_drop):
        raise ShardError(
            f"to={to} must come without repeat_rows and allow_drop, which belong to to=repeat"
        )
    shards = ShardSet(dir)
    resolved = shards.folder.resolve()
    folder = Path(out) if out else resolved.with_name(f"{resolved.name}-{to}")
    _check_out(folder)
    if to == "repeat":
        order = order_repeats(
            shards, world_size, micro_batch, num_rows=repeat_rows, allow_drop=allow_drop
        )
    else:
        order = order_steps(shards, world_size, micro_batch, strided=to in STRIDED)
    figures = {"from": str(shards.folder), "made for": str(order.job), **order.figures}
    place = folder.resolve()
    with draft_of(place, _own_files) as draft:
        data = _write_data(draft, to, shards, order.pieces)
        lost = losses(to, order.job)
        facts = {**_facts(shards, to, order, data), "lost": lost}
        card = build_card(to, order.job, facts, figures, lost)
        (draft / "README.md").write_text(card, encoding="utf-8")
        _write_json(draft / EXPORT, facts)
        swap(draft, place, _own_files)
    return Exported(folder, figures, lost)


def _write_data(draft: Path, to: Target, shards: ShardSet, pieces: Iterable[IntArray]) -> Path:
    """Write the data, and give its file."""
    parquet = to in ("block", "strided", "repeat")
    columns = ["messages", "weight"] if not parquet else SHARD_SCHEMA.names
    reader = RowReader(shards, PLAIN_COLUMNS if to == "jsonl" else columns)
    tables = reader.tables(pieces)
    path = draft / ("train.parquet" if parquet else "train.jsonl")
    try:
        if parquet:
            write_parquet(path, unweighted(tables) if to == "repeat" else tables)
        elif to == "jsonl":
            write_lines(path, plain_records(tables, meta_kinds(shards)))
        elif to == "ms-swift":
            write_lines(path, weighted_turns(tables, "loss_scale", last_only=False))
        else:
            write_lines(path, weighted_turns(tables, "loss_weight", last_only=True))
            _write_json(draft / "dataset_info.json", _dataset_info(shards, path.name))
    finally:
        reader.close()
    return path


def _dataset_info(shards: ShardSet, file: str) -> dict[str, Any]:
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user"}
    tags |= {"assistant_tag": "assistant", "system_tag": "system", "observation_tag": "tool"}
    entry = {"file_name": file, "formatting": "sharegpt", "columns": {"messages": "messages"}}
    return {shards.manifest["name"]: {**entry, "tags": tags}}


def _facts(shards: ShardSet, to: Target, order: Order, data: Path) -> dict[str, Any]:
    manifest, job = shards.manifest, order.job
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "to": to,
        "file": data.name,
        "rows": order.num_rows,
        "sha256": file_digest(data),
        "num_bytes": data.stat().st_size,
        "weighted": to != "repeat",
        "world_size": job.world_size,
        "micro_batch": job.micro_batch,
        "accumulation": job.accumulation,
        "repeat": order.repeats,
        "set": {
            "name": manifest["name"],
            "keys": manifest["keys"],
            "world_size": shards.world_size,
            "manifest_sha256": file_digest(shards.folder / MANIFEST),
        },
    }


def _check_out(folder: Path) -> None:
    """Refuse to replace what is not an export."""
    if folder.is_dir() and (not any(folder.iterdir()) or _is_export(folder)):
        return
    if folder.exists():
        raise ShardError(
            f"out={folder} is no export of evenshard and would be overwritten; give another --out"
        )


def _is_export(folder: Path) -> bool:
    try:
        facts = json.loads((folder / EXPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and facts.get("format") == FORMAT


def _own_files(folder: Path) -> set[str]:
    """Name the files of an export, of every target."""
    if not _is_export(folder):
        return set()
    return {EXPORT, "README.md", "train.parquet", "train.jsonl", "dataset_info.json"}


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
