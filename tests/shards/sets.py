"""A whole small run from rows to a published folder, without a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from evenshard.shards import Manifest
from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.artifact import Artifact
from stages.contract.rejects import reject_rows
from stages.contract.schemas import REJECTS
from stages.shards.publish import publish
from stages.shards.stage import SHARDS, ShardsSettings
from tests.artifacts import blobs, here, rows_table, run_stage, save, store_inputs

TEXTS = (
    "plain",
    "zwölf Äpfel, 日本語 🙂",
    "two\nlines\r\n\tand a tab",
    "",
    'quotes " and \\ slash',
)
MISSING = (0, 5, 64, 130)


@dataclass(frozen=True)
class Made:
    """All artifacts of a run and the settings that decide its last steps."""

    artifacts: dict[str, Artifact]
    allocate: AllocateConfig

    def publish(self, out: Path, *, name: str = "small") -> Manifest:
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
    store: Path, *, num_rows: int = 200, rejects: bool = True, spread: Any = here, **allocate: Any
) -> Made:
    """Run cluster, allocate and shards over rows of odd texts, with duplicates and rejects."""
    rng = np.random.default_rng(0)
    sizes = [num_rows // 2, num_rows // 4, num_rows - num_rows // 2 - num_rows // 4]
    inputs = store_inputs(
        store,
        num_rows=num_rows,
        embeddings=blobs(sizes),
        lengths=rng.integers(4, 60, num_rows).tolist(),
        missing=MISSING,
        multiplicity=rng.integers(1, 5, num_rows).tolist(),
        texts=TEXTS,
    )
    if rejects:
        inputs = {**inputs, **rejected(store, inputs, num_rows)}
    config = AllocateConfig(**{"budget": "50%", "num_workers": 2, **allocate})
    cluster = ClusterConfig(num_clusters=3, n_init=2, min_rows=0)
    inputs["cluster"] = run_stage(CLUSTER_STAGE, cluster, inputs, store)
    inputs["allocate"] = run_stage(ALLOCATE_STAGE, config, inputs, store)
    settings = ShardsSettings(config.num_workers)
    inputs["shards"] = run_stage(SHARDS, settings, inputs, store, spread)
    return Made(inputs, config)


def rejected(store: Path, inputs: dict[str, Artifact], num_rows: int) -> dict[str, Artifact]:
    """Give rows and embed artifacts that hold the same rows, and rejects beside them."""
    rows = inputs["rows"].read(inputs["rows"].read([]).column_names or rows_table(1).column_names)
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
    old = inputs["embed"]
    embed = save(
        store,
        "embed",
        pa.concat_tables(old.iter_parts(old.side(old.parts[0].name).column_names)),
        stop=num_rows,
        rows_per_part=64,
        parent=inputs["tokens"],
        sides={"rejects-00000.parquet": refused},
    )
    return {"rows": with_unread, "embed": embed}
