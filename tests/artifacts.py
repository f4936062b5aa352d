"""Small artifacts of every stage, and a stage run on them in this process."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.fingerprint import artifact_key
from stages.contract.parts import Facts, Outcome, PartSpec, Receipt, cut
from stages.contract.schemas import ROWS, SCREEN, SIGNALS, TOKENS, embed_schema
from stages.contract.stage import Stage
from stages.contract.tables import Layout

SEEDED = settings(max_examples=60, deadline=None, derandomize=True)
FEW = settings(max_examples=15, deadline=None, derandomize=True)
EMBED_LAYOUT = Layout(compression="none", float_lists=("embedding",))

_keys = itertools.count()


def here(make: Any, parts: Sequence[PartSpec], *, uses_gpu: bool) -> Iterator[Receipt]:
    """Spread over no one: this process does it all, and makes no worker for nothing."""
    if parts:
        yield from map(make(), parts)


def new_key() -> str:
    return f"{next(_keys):016x}"


def save(
    store: Path,
    stage: str,
    table: pa.Table,
    *,
    stop: int = 0,
    rows_per_part: int = 1_000_000,
    parent: Artifact | None = None,
    sides: Mapping[str, pa.Table] | None = None,
    params: Facts | None = None,
    facts: Facts | None = None,
    layout: Layout | None = None,
) -> Artifact:
    """Cut a table at fixed ranges of its row ids, as every stage does, and commit it."""
    row_ids = table["row_id"].to_numpy()
    draft = Draft.create(store, stage, new_key())
    parts = cut(stop or int(row_ids[-1]) + 1, rows_per_part)
    for spec in parts:
        first, last = np.searchsorted(row_ids, [spec.start, spec.stop])
        piece = table.slice(first, last - first)
        draft.write_part(spec, piece, layout=layout or Layout())
    for name, side in (sides or {}).items():
        draft.write_side(name, side)
    outcome = Outcome(parts, facts or {}, tuple(sides or {}))
    inputs = {parent.stage: parent.key} if parent else {}
    return draft.commit(
        outcome, params=params or {}, inputs=inputs, version=1, parent=parent, keeps_order=True
    )


def rows_table(num_rows: int, *, texts: Sequence[str] = ()) -> pa.Table:
    """Build rows of one turn each; `texts` are cycled through as answers."""
    answers = [texts[i % len(texts)] if texts else f"answer {i}" for i in range(num_rows)]
    rows = [
        {
            "row_id": i,
            "source_file": "rows.jsonl",
            "source_line": i + 1,
            "source": "odd" if i % 2 else "even",
            "uid": f"u{i}",
            "messages": [
                {"role": "user", "content": f"question {i}"},
                {"role": "assistant", "content": answer},
            ],
            "meta": "" if i % 3 == 0 else json.dumps({"note": answer}, ensure_ascii=False),
            "multiplicity": 1,
        }
        for i, answer in enumerate(answers)
    ]
    return pa.Table.from_pylist(rows, schema=ROWS)


def screened(
    store: Path,
    rows: Artifact,
    multiplicity: Sequence[int] | None = None,
    *,
    rows_per_part: int = 64,
) -> Artifact:
    """Write a screen that keeps all rows, each for as many as it is told to stand for."""
    counts = np.ones(rows.num_rows) if multiplicity is None else np.asarray(multiplicity)
    table = pa.table([rows.array("row_id"), counts.astype(np.int32)], schema=SCREEN)
    return save(store, "screen", table, rows_per_part=rows_per_part, parent=rows)


def tokens_table(row_ids: Sequence[int], lengths: Sequence[int]) -> pa.Table:
    """Build token rows; the last half of each is trained."""
    rows = []
    for row_id, length in zip(row_ids, lengths, strict=True):
        ids = [(int(row_id) + j) % 997 for j in range(length)]
        prompt = length // 2
        labels = [-100] * prompt + ids[prompt:]
        rows.append(
            {
                "row_id": int(row_id),
                "input_ids": ids,
                "labels": labels,
                "num_tokens": int(length),
                "num_targets": sum(label != -100 for label in labels[1:]),
            }
        )
    return pa.Table.from_pylist(rows, schema=TOKENS)


def embed_table(row_ids: Sequence[int], embeddings: np.ndarray, *, seed: int = 0) -> pa.Table:
    """Build embed rows: the norm is the embedding's, the other signals are random."""
    rng = np.random.default_rng(seed)
    values = np.ascontiguousarray(embeddings, np.float32)
    num_rows, dim = values.shape
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), dim)
    norms = np.linalg.norm(values, axis=1).astype(np.float32)
    signals = [norms, *(rng.random(num_rows, np.float32) for _ in SIGNALS[1:])]
    columns = [pa.array(np.asarray(row_ids, np.int64)), lists, *map(pa.array, signals)]
    return pa.table(columns, schema=embed_schema({"embedding": dim}))


def store_inputs(
    store: Path,
    *,
    num_rows: int,
    embeddings: np.ndarray,
    lengths: Sequence[int],
    missing: Sequence[int] = (),
    multiplicity: Sequence[int] | None = None,
    texts: Sequence[str] = (),
    rows_per_part: int = 64,
) -> dict[str, Artifact]:
    """Write rows, screen, tokens and embed; the ids in `missing` are in rows and screen only."""
    kept = np.setdiff1d(np.arange(num_rows), missing)
    rows = save(
        store,
        "rows",
        rows_table(num_rows, texts=texts),
        rows_per_part=rows_per_part,
    )
    screen = screened(store, rows, multiplicity, rows_per_part=rows_per_part)
    tokens = save(
        store,
        "tokens",
        tokens_table(kept, np.asarray(lengths)[kept].tolist()),
        stop=num_rows,
        rows_per_part=rows_per_part,
        parent=screen,
    )
    embed = save(
        store,
        "embed",
        embed_table(kept, embeddings[kept]),
        stop=num_rows,
        rows_per_part=rows_per_part,
        parent=tokens,
        params={"embed": {"feature": "target_row"}},
        layout=EMBED_LAYOUT,
    )
    return {"rows": rows, "screen": screen, "tokens": tokens, "embed": embed}


def run_stage(
    stage: Stage, settings: Any, inputs: Mapping[str, Artifact], store: Path, spread: Any = here
) -> Artifact:
    """Run one stage in this process and commit what it made."""
    wanted = stage.inputs_of(inputs)
    keys = {name: artifact.key for name, artifact in wanted.items()}
    params = stage.identity(settings)
    draft = Draft.create(store, stage.name, artifact_key(stage.name, stage.version, params, keys))
    steps = stage.run(settings, wanted, draft, spread)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            outcome = stop.value
            break
    return draft.commit(
        outcome,
        params=params,
        inputs=keys,
        version=stage.version,
        parent=wanted[stage.reads[0]] if stage.reads else None,
        keeps_order=stage.keeps_order,
    )


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Read every file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def blobs(sizes: Sequence[int], *, dim: int = 8, seed: int = 0, spread: float = 0.05) -> np.ndarray:
    """Draw well separated groups of rows around distinct axes, shuffled."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    values = np.eye(len(sizes), dim)[labels] + rng.normal(0.0, spread, (labels.size, dim))
    return values[rng.permutation(labels.size)].astype(np.float32)
