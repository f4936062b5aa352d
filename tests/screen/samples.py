"""Rows of given texts, the stage run on them, and slow scripts that give the same answers."""

import json
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from stages.contract.artifact import Artifact
from stages.contract.parts import Receipt
from stages.contract.schemas import ROWS
from stages.screen.stage import SCREEN, ScreenConfig, ScreenSettings
from tests.artifacts import here, run_stage, save

Turns = Sequence[tuple[str, str | None]]


def rows_of(
    store: Path, conversations: Sequence[Turns | str], *, metas: Sequence[str] = (), size: int = 3
) -> Artifact:
    """Write rows; a plain text is the answer to one question that all rows share."""
    rows = [
        {
            "row_id": i,
            "source_file": "rows.jsonl",
            "source_line": i + 1,
            "source": "rows.jsonl",
            "uid": f"u{i}",
            "messages": [{"role": role, "content": content} for role, content in turns(talk)],
            "meta": metas[i] if metas else "{}",
            "multiplicity": 1,
        }
        for i, talk in enumerate(conversations)
    ]
    return save(store, "rows", pa.Table.from_pylist(rows, schema=ROWS), rows_per_part=size)


def turns(talk: Turns | str) -> Turns:
    return [("user", "?"), ("assistant", talk)] if isinstance(talk, str) else talk


def screen(store: Path, rows: Artifact, *, spread: Any = here, **keys: Any) -> Artifact:
    settings = ScreenSettings(ScreenConfig(**keys), store / "hashes")
    return run_stage(SCREEN, settings, {"rows": rows}, store, spread)


def backwards(make: Any, parts: Any, *, uses_gpu: bool) -> Iterator[Receipt]:
    """Work as several workers might: each part by a worker of its own, the last part first."""
    for spec in reversed(parts):
        yield make()(spec)


def kept(artifact: Artifact) -> list[tuple[int, int]]:
    table = artifact.read(["row_id", "multiplicity"])
    return list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))


def side(artifact: Artifact, name: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in artifact.side(f"{name}.parquet").to_pylist()]


def benchmark(path: Path, *items: dict[str, Any] | bytes) -> str:
    lines = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in items]
    path.write_bytes(b"\n".join(lines))
    return str(path)


def plain_shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))} if words else set()


@cache
def plain_words(text: str) -> list[str]:
    """Split as the field does it, for scripts that are written with spaces."""
    assert all(
        ord(character) < 0xE00 or ord(character) in range(0x2000, 0x2E80) for character in text
    )
    kept = unicodedata.normalize("NFKC", text).lower()
    return "".join(c for c in kept if unicodedata.category(c)[0] not in "PS").split()


def plain_ngrams(text: str, size: int) -> set[tuple[str, ...]]:
    words = plain_words(text)
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}
