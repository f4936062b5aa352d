"""A store as `rows`, `screen`, `tokens` and `embed` would leave it, generated part by part."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.fingerprint import artifact_key
from stages.contract.parts import Outcome, PartSpec, Receipt, cut
from stages.contract.schemas import MESSAGE, ROWS, SCREEN, SIGNALS, TOKENS
from stages.contract.stage import Stage
from stages.contract.tables import Layout
from stages.embed.worker import embed_layout, embed_table

ROWS_PER_PART = 10_000
ROWS_PER_EMBED_PART = 8192  # as on a GPU
NUM_GROUPS = 15
Table = Callable[[PartSpec, np.random.Generator], pa.Table]


class Words:
    """Text of words, of which rows are pieces."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        letters = np.array([*"etaoinshrdlucmfwypvbgk"])
        vocabulary = ["".join(rng.choice(letters, size)) for size in rng.integers(1, 11, 5000)]
        ranks = np.minimum(rng.zipf(1.3, 200_000), 5000) - 1
        self.text = " ".join(vocabulary[rank] for rank in ranks.tolist())

    def pieces(self, lengths: npt.NDArray[np.int64], rng: np.random.Generator) -> list[str]:
        """Cut pieces of some lengths at random places."""
        starts = rng.integers(0, len(self.text) - int(lengths.max(initial=0)), lengths.size)
        ends = starts + lengths
        return [self.text[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def lengths_of(num_rows: int, mean: float, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw lognormal lengths of a mean, at least 2; none above 16 times the mean."""
    drawn = mean * np.exp(rng.normal(-0.32, 0.8, num_rows))
    return np.clip(drawn, 2, 16 * mean).astype(np.int64)


def rows_table(words: Words, text_bytes: int) -> Table:
    """Give rows of one question and one answer; without text where `text_bytes` is 0."""

    def make(spec: PartSpec, rng: np.random.Generator) -> pa.Table:
        num_rows = spec.stop - spec.start
        ids = np.arange(spec.start, spec.stop)
        sizes = lengths_of(2 * num_rows, text_bytes / 2, rng) if text_bytes else None
        texts = [""] * (2 * num_rows) if sizes is None else words.pieces(sizes, rng)
        turns = pa.StructArray.from_arrays(
            [
                pa.array(["user", "assistant"] * num_rows, pa.large_string()),
                pa.array(texts, pa.large_string()),
            ],
            fields=list(MESSAGE),
        )
        offsets = pa.array(np.arange(0, 2 * num_rows + 1, 2, dtype=np.int32))
        columns = {
            "row_id": pa.array(ids),
            "source_file": pa.array(["rows.jsonl"] * num_rows, pa.large_string()),
            "source_line": pa.array(ids + 1),
            "source": pa.array([f"s{i % NUM_GROUPS}" for i in ids.tolist()], pa.large_string()),
            "uid": pa.array([f"u{i}" for i in ids.tolist()], pa.large_string()),
            "messages": pa.ListArray.from_arrays(offsets, turns),
            "meta": pa.array(["{}"] * num_rows, pa.large_string()),
            "multiplicity": pa.array(np.ones(num_rows, np.int32)),
        }
        return pa.table(columns, schema=ROWS)

    return make


def screen_table(spec: PartSpec, rng: np.random.Generator) -> pa.Table:
    """Keep every row."""
    ids = np.arange(spec.start, spec.stop)
    return pa.table([ids, np.ones(ids.size, np.int32)], schema=SCREEN)


def tokens_table(mean_tokens: float, *, ids_only: bool) -> Table:
    """Give token ids, the last half trained; only two of each row where `ids_only`."""

    def make(spec: PartSpec, rng: np.random.Generator) -> pa.Table:
        num_tokens = lengths_of(spec.stop - spec.start, mean_tokens, rng)
        held = np.full_like(num_tokens, 2) if ids_only else num_tokens
        offsets = np.concatenate([[0], np.cumsum(held)]).astype(np.int32)
        values = (rng.zipf(1.3, offsets[-1]) % 49_000).astype(np.int32)
        place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], held)
        labels = np.where(place >= np.repeat(held // 2, held), values, np.int32(-100))
        columns = [
            np.arange(spec.start, spec.stop),
            pa.ListArray.from_arrays(offsets, values),
            pa.ListArray.from_arrays(offsets, labels),
            num_tokens.astype(np.int32),
            (num_tokens - num_tokens // 2).astype(np.int32),
        ]
        return pa.table(columns, schema=TOKENS)

    return make


def features_table(dim: int, seed: int) -> Table:
    """Give embeddings in groups of unequal size, and random signals."""
    centers = np.random.default_rng(seed).normal(size=(NUM_GROUPS, dim)).astype(np.float32)
    shares = np.arange(1, NUM_GROUPS + 1) / np.arange(1, NUM_GROUPS + 1).sum()

    def make(spec: PartSpec, rng: np.random.Generator) -> pa.Table:
        num_rows = spec.stop - spec.start
        noise = rng.standard_normal((num_rows, dim), np.float32)
        values = centers[rng.choice(NUM_GROUPS, num_rows, p=shares)] + 1.5 * noise
        signals = rng.random((num_rows, len(SIGNALS)), np.float32)
        ids = np.arange(spec.start, spec.stop)
        return embed_table(ids, values, signals, dims={"embedding": dim})

    return make


def generate(
    store: Path, num_rows: int, *, dim: int, mean_tokens: float, text_bytes: int, seed: int
) -> dict[str, Artifact]:
    """Write the artifacts that cluster, allocate and shards read.

    Parameters
    ----------
    store : Path
        Where they go.
    num_rows, dim : int
        Rows, and the size of an embedding.
    mean_tokens : float
        Of a row.
    text_bytes : int
        Of a row; 0 for ids only, with two token ids a row.
    seed : int
        Of everything.
    """
    words = Words(seed)
    tables: dict[str, tuple[Table, int, Layout]] = {
        "rows": (rows_table(words, text_bytes), ROWS_PER_PART, Layout()),
        "screen": (screen_table, ROWS_PER_PART, Layout()),
        "tokens": (tokens_table(mean_tokens, ids_only=not text_bytes), ROWS_PER_PART, Layout()),
        "embed": (features_table(dim, seed), ROWS_PER_EMBED_PART, embed_layout(["embedding"])),
    }
    made: dict[str, Artifact] = {}
    parent: Artifact | None = None
    for number, (stage, (table, rows_per_part, layout)) in enumerate(tables.items()):
        draft = Draft.create(store, stage, f"{number:016x}")
        parts = cut(num_rows, rows_per_part)
        for spec in parts:
            rng = np.random.default_rng([seed, number, spec.index])
            draft.write_part(spec, table(spec, rng), layout=layout)
        params = {"embed": {"feature": "target_row"}} if stage == "embed" else {}
        inputs = {parent.stage: parent.key} if parent else {}
        parent = draft.commit(
            Outcome(parts, {"read": num_rows, "kept": num_rows, "rejected": 0}),
            params=params,
            inputs=inputs,
            version=1,
            parent=parent,
            keeps_order=True,
        )
        made[stage] = parent
    return made


def here(make: Any, parts: Sequence[PartSpec], *, uses_gpu: bool) -> Iterator[Receipt]:
    """Do all parts in this process."""
    if parts:
        yield from map(make(), parts)


def run_stage(
    stage: Stage, settings: Any, inputs: Mapping[str, Artifact], store: Path
) -> tuple[Artifact, float]:
    """Run one stage in this process and commit what it made; how many CPU seconds that took."""
    started = time.process_time()
    wanted = {name: inputs[name] for name in stage.reads}
    keys = {name: artifact.key for name, artifact in wanted.items()}
    params = stage.identity(settings)
    draft = Draft.create(store, stage.name, artifact_key(stage.name, stage.version, params, keys))
    steps = stage.run(settings, wanted, draft, here)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            outcome = stop.value
            break
    artifact = draft.commit(
        outcome,
        params=params,
        inputs=keys,
        version=stage.version,
        parent=wanted[stage.reads[0]],
        keeps_order=stage.keeps_order,
    )
    return artifact, time.process_time() - started
