"""A whole small run from rows to a published folder, without a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.artifact import Artifact
from stages.contract.parts import Facts
from stages.contract.rejects import reject_rows
from stages.contract.schemas import LEAKS, REJECTS, ROWS, SCREEN, TOKENS, embed_schema
from stages.shards.card import Published
from stages.shards.publish import publish
from stages.shards.stage import SHARDS, ShardsSettings
from stages.tokens.tally import CHANGES
from tests.artifacts import EMBED_LAYOUT, blobs, here, run_stage, save, store_inputs

TEXTS = (
    "plain",
    "zwölf Äpfel, 日本語 🙂",
    "two\nlines\r\n\tand a tab",
    "",
    'quotes " and \\ slash',
)
MISSING = (0, 5, 64, 130)
DIM = 8
FOUND: Facts = {
    "duplicates": {"mode": "collapse", "rows": 7, "groups": 3, "largest_group": 4},
    "near_duplicates": {"mode": "off", "rows": 0, "groups": 0, "largest_group": 0},
    "leaks": {"mode": "drop", "ngram": 13, "rows": 0, "benchmarks": {}},
}


@dataclass(frozen=True)
class Made:
    """All artifacts of a run and the settings that decide its last steps."""

    artifacts: dict[str, Artifact]
    allocate: AllocateConfig

    def publish(self, out: Path, *, name: str = "small") -> Published:
        section = {
            key: getattr(self.allocate, key)
            for key in ("num_workers", "micro_batch", "accumulation", "objective")
        }
        return publish(
            out,
            self.artifacts,
            name=name,
            seed=0,
            settings={"allocate": section},
            overrides=["allocate.budget=50%"],
            versions={"numpy": np.__version__},
        )


def make(
    store: Path,
    *,
    num_rows: int = 200,
    rejects: bool = True,
    found: Facts = FOUND,
    leaked: Sequence[int] = (),
    changed: Sequence[tuple[int, str]] = (),
    spread: Any = here,
    **allocate: Any,
) -> Made:
    """Run everything over rows of odd texts, with duplicates, gaps and rejects.

    `found`, `leaked` and `changed` are what the screen and the tokens tell of the rows.
    """
    inputs = clustered(store, num_rows=num_rows, rejects=rejects)
    if found != FOUND or leaked or changed:
        inputs |= told(store, inputs, found, leaked, changed)
    return finish(store, inputs, spread=spread, **{"budget": "50%", **allocate})


def clustered(store: Path, *, num_rows: int, rejects: bool) -> dict[str, Artifact]:
    """Give rows, tokens, embed and cluster."""
    rng = np.random.default_rng(0)
    sizes = [num_rows // 2, num_rows // 4, num_rows - num_rows // 2 - num_rows // 4]
    inputs = store_inputs(
        store,
        num_rows=num_rows,
        embeddings=blobs(sizes, dim=DIM),
        lengths=rng.integers(4, 60, num_rows).tolist(),
        missing=MISSING,
        multiplicity=rng.integers(1, 5, num_rows).tolist(),
        texts=TEXTS,
    )
    inputs |= told(store, inputs, FOUND, (), ())
    if rejects:
        inputs = {**inputs, **rejected(store, inputs, num_rows)}
    settings = ClusterConfig(num_clusters=3, n_init=2, min_rows=0)
    return {**inputs, "cluster": run_stage(CLUSTER_STAGE, settings, inputs, store)}


def finish(
    store: Path, inputs: dict[str, Artifact], *, spread: Any = here, **allocate: Any
) -> Made:
    """Run allocate and shards."""
    config = AllocateConfig(**{"num_workers": 2, **allocate})
    made = {**inputs, "allocate": run_stage(ALLOCATE_STAGE, config, inputs, store)}
    shards = run_stage(SHARDS, ShardsSettings(config.num_workers), made, store, spread)
    return Made({**made, "shards": shards}, config)


def told(
    store: Path,
    inputs: dict[str, Artifact],
    found: Facts,
    leaked: Sequence[int],
    changed: Sequence[tuple[int, str]],
) -> dict[str, Artifact]:
    """Give screen and tokens artifacts that hold the same rows, and tell of them."""
    hits = [
        {"row_id": i, "benchmark": "b", "benchmark_line": 1, "ngram": "a b", "share": 0.5}
        for i in leaked
    ]
    screen = save(
        store,
        "screen",
        inputs["screen"].read(SCREEN.names),
        rows_per_part=64,
        parent=inputs["rows"],
        facts=found,
        sides={"leaks.parquet": pa.Table.from_pylist(hits, schema=LEAKS)},
    )
    lines = [
        {"row_id": i, "file": "rows.jsonl", "line": i + 1, "change": change, "count": 2}
        for i, change in changed
    ]
    halves = (lines[: len(lines) // 2], lines[len(lines) // 2 :])
    tokens = save(
        store,
        "tokens",
        inputs["tokens"].read(TOKENS.names),
        stop=inputs["rows"].num_rows,
        rows_per_part=64,
        parent=screen,
        sides={
            f"changes-{part:05d}.parquet": pa.Table.from_pylist(half, schema=CHANGES)
            for part, half in enumerate(halves)
            if half
        },
    )
    return {"screen": screen, "tokens": tokens}


def rejected(store: Path, inputs: dict[str, Artifact], num_rows: int) -> dict[str, Artifact]:
    """Give rows and embed artifacts that hold the same rows, and rejects beside them."""
    rows = inputs["rows"].read(ROWS.names)
    unread = pa.Table.from_pylist(
        [
            {
                "file": "rows.jsonl",
                "line": 9,
                "byte_offset": 700,
                "row_id": -1,
                "stage": "rows",
                "reason": "not_json",
                "detail": "",
                "raw": b"{\xff\n",
            }
        ],
        schema=REJECTS,
    )
    with_unread = save(store, "rows", rows, rows_per_part=64, sides={"rejects.parquet": unread})
    taken = rows.take(list(MISSING[:2]))
    refused = reject_rows(
        taken, stage="embed", reasons=["too_large_for_device", "not_finite"], details=["", "loss"]
    )
    embed = save(
        store,
        "embed",
        inputs["embed"].read(embed_schema({"embedding": DIM}).names),
        stop=num_rows,
        rows_per_part=64,
        parent=inputs["tokens"],
        sides={"rejects-00000.parquet": refused},
        layout=EMBED_LAYOUT,
    )
    return {"rows": with_unread, "embed": embed}
