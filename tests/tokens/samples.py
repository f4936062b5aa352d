"""Rows, artifacts and encoders for the tests of this room."""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.parts import Outcome, PartSpec, Receipt, cut
from stages.contract.schemas import ROWS
from stages.contract.tables import Layout
from stages.tokens.encode import Encoded, Encoder
from stages.tokens.stage import TokensConfig, TokensSettings, load_encoder
from tests.tiny import tiny_tokenizer

CASES = Path(__file__).parents[3] / "shared" / "cases"


@cache
def tokenizer_folder() -> Path:
    return tiny_tokenizer(Path(mkdtemp()))


@cache
def encoder(template: str = "chat", max_length: int = 2048, policy: str = "truncate") -> Encoder:
    config = TokensConfig(template=template, max_length=max_length, on_too_long=policy)
    return load_encoder(TokensSettings(config, tokenizer_folder()))


def turns(*contents: str | None, system: str | None = None) -> list[dict[str, Any]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return first + [
        {"role": "assistant" if index % 2 else "user", "content": content}
        for index, content in enumerate(contents)
    ]


def supervised(tokenizer: Any, encoded: Encoded) -> list[str]:
    """Decode each run of trained tokens."""
    runs: list[list[int]] = []
    previous = -100
    for label in encoded.labels.tolist():
        if label != -100:
            if previous == -100:
                runs.append([])
            runs[-1].append(label)
        previous = label
    return [tokenizer.decode(run, clean_up_tokenization_spaces=False) for run in runs]


def rows_artifact(store: Path, rows: Sequence[dict[str, Any]], rows_per_part: int = 4) -> Artifact:
    """Write rows of `messages` and further columns as the rows stage does."""
    draft = Draft.create(store, "rows", "0" * 16)
    parts = cut(len(rows), rows_per_part)
    for part in parts:
        draft.write_part(
            part,
            pa.Table.from_pylist(
                [_row(index, rows[index]) for index in range(part.start, part.stop)], schema=ROWS
            ),
            layout=Layout(),
        )
    return draft.commit(
        Outcome(parts, {}), params={}, inputs={}, version=1, parent=None, keeps_order=True
    )


def here(make: Any, parts: Sequence[PartSpec], *, uses_gpu: bool) -> Iterator[Receipt]:
    """Spread over no one: this process does it all."""
    yield from map(make(), parts)


def case_rows(case: str) -> list[dict[str, Any]]:
    lines = (CASES / case / "data.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def row_parts(row: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Split a raw row into messages of role and content, and the JSON of the rest."""
    plain = [{"role": m["role"], "content": m.get("content")} for m in row["messages"]]
    has_more = any(set(message) - {"role", "content"} for message in row["messages"])
    meta = {key: value for key, value in row.items() if key != "messages" or has_more}
    return plain, json.dumps(meta, ensure_ascii=False)


def _row(index: int, row: dict[str, Any]) -> dict[str, Any]:
    messages, meta = row_parts(row)
    return {
        "row_id": index,
        "source_file": "rows.jsonl",
        "source_line": index + 1,
        "source": "rows.jsonl",
        "uid": f"u{index}",
        "messages": messages,
        "meta": meta,
        "multiplicity": 1,
    }
