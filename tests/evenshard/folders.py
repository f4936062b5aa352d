"""Small published folders, written without a run, and ways to rewrite them."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evenshard.shards import (
    FORMAT,
    FORMAT_VERSION,
    SHARD_SCHEMA,
    Manifest,
    WeightFacts,
    WorkerFacts,
    shard_name,
)
from stages.allocate.fair import step_counts
from stages.allocate.plan_figures import max_deviation


def write_set(
    folder: Path,
    *,
    kept: Sequence[int] = (14, 6, 4),
    world_size: int = 2,
    micro_batch: int = 2,
    accumulation: int = 2,
    window: int = 1,
    pinned: bool = False,
    seed: int = 0,
) -> Manifest:
    """Write a valid set in which cluster k keeps `kept[k]` rows, and give its manifest."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    per_step = world_size * micro_batch * accumulation
    total = sum(kept)
    assert total % (per_step * window) == 0
    if pinned:
        clusters = np.repeat(np.arange(world_size), total // world_size)
    else:
        windows = spread_evenly(kept, total // (per_step * window), rng)
        # (window, step, worker, row of a step) to (worker, position)
        shape = (-1, world_size, micro_batch * accumulation)
        clusters = windows.reshape(shape).transpose(1, 0, 2).ravel()
    candidates = np.array(kept) + rng.integers(0, 50, len(kept))
    mass = candidates + rng.integers(0, 9, len(kept))
    row_weights = (mass / mass.sum() * total / np.array(kept))[clusters]
    row_ids = rng.permutation(3 * total)[:total]
    tables = np.array_split(np.arange(total), world_size)
    lengths = rng.integers(2, 12, total)
    for rank, rows in enumerate(tables):
        table = shard_table(row_ids[rows], clusters[rows], row_weights[rows], lengths[rows], rng)
        pq.write_table(table, folder / shard_name(rank, world_size), row_group_size=5)
    pq.write_table(
        pa.table({"file": ["a"] * 3, "reason": ["empty", "empty", "not_json"]}),
        folder / "rejects.parquet",
    )
    by_worker = (world_size, -1, micro_batch * accumulation)
    by_step = lengths.reshape(by_worker).sum(axis=2)
    plan = np.arange(total).reshape(by_worker).transpose(1, 0, 2)
    manifest: Manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "name": "small",
        "seed": seed,
        "world_size": world_size,
        "micro_batch": micro_batch,
        "accumulation": accumulation,
        "rows": total,
        "rows_per_worker": total // world_size,
        "steps_per_epoch": total // per_step,
        "tokens": int(lengths.sum()),
        "asked": f"{total} rows",
        "got": f"{total} rows",
        "weights": weight_facts(row_weights.astype(np.float32).astype(np.float64)),
        "schedule": {
            "kind": "pinned" if pinned else "dealt",
            "reason": "asked for",
            "window_steps": window,
            "imbalance": float(by_step.max(axis=0).sum() / by_step.mean(axis=0).sum()),
            "max_deviation": max_deviation(plan, clusters.astype(np.int32), len(kept)),
        },
        "clusters": [
            {"cluster": k, "candidates": int(candidates[k]), "mass": int(mass[k]), "kept": kept[k]}
            for k in range(len(kept))
        ],
        "workers": [
            worker_facts(rank, world_size, lengths[rows]) for rank, rows in enumerate(tables)
        ],
        "rejects": {
            "file": "rejects.parquet",
            "rows": 3,
            "by_reason": {"empty": 2, "not_json": 1},
            "sha256": "",
        },
        "settings": {"name": "small"},
        "overrides": [],
        "keys": {"allocate": "0123456789abcdef"},
        "versions": {"pyarrow": pa.__version__},
    }
    restate_hashes(folder, manifest)
    return manifest


def weight_facts(weights: Any) -> WeightFacts:
    return {
        "objective": "sample",
        "convention": "mean 1 over the set",
        "min": float(weights.min()),
        "max": float(weights.max()),
        "effective_sample_size": float(weights.sum() ** 2 / (weights.size * (weights**2).sum())),
    }


def worker_facts(rank: int, world_size: int, lengths: Any) -> WorkerFacts:
    return {
        "worker": rank,
        "file": shard_name(rank, world_size),
        "rows": len(lengths),
        "tokens": int(lengths.sum()),
        "sha256": "",
        "num_bytes": 0,
    }


def spread_evenly(kept: Sequence[int], windows: int, rng: np.random.Generator) -> Any:
    """Give clusters of shape (windows, rows of one): each its share, and running counts in line."""
    counts = step_counts(np.array(kept), windows)
    names = np.tile(np.arange(len(kept)), windows)
    return rng.permuted(np.repeat(names, counts.ravel()).reshape(windows, -1), axis=1)


def shard_table(row_ids: Any, clusters: Any, weights: Any, lengths: Any, rng: Any) -> pa.Table:
    """Make a shard's table with random tokens, of which the first is a prompt's."""
    input_ids = [rng.integers(0, 1000, n).tolist() for n in lengths]
    columns = {
        "row_id": row_ids,
        "uid": [f"uid-{i}" for i in row_ids],
        "source": ["a"] * len(row_ids),
        "messages": [[{"role": "user", "content": "q"}]] * len(row_ids),
        "input_ids": input_ids,
        "labels": [[-100, *ids[1:]] for ids in input_ids],
        "num_tokens": lengths,
        "cluster": clusters,
        "multiplicity": np.ones(len(row_ids), np.int32),
        "weight": np.asarray(weights, np.float32),
        "meta": ["{}"] * len(row_ids),
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SHARD_SCHEMA]
    return pa.table(arrays, schema=SHARD_SCHEMA)


def load_manifest(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())


def store_manifest(folder: Path, manifest: Any) -> None:
    (folder / "manifest.json").write_text(json.dumps(manifest))


def restate_hashes(folder: Path, manifest: Any) -> None:
    """Write the manifest with the sizes and hashes that its files have now."""
    for facts in [*manifest["workers"], manifest["rejects"]]:
        content = (folder / facts["file"]).read_bytes()
        facts["sha256"] = hashlib.sha256(content).hexdigest()
        if "num_bytes" in facts:
            facts["num_bytes"] = len(content)
    store_manifest(folder, manifest)


def load_table(folder: Path, rank: int) -> pa.Table:
    return pq.read_table(folder / load_manifest(folder)["workers"][rank]["file"])


def store_table(folder: Path, rank: int, table: pa.Table) -> None:
    """Rewrite a worker's file, and its hash in the manifest, but none of the other figures."""
    manifest = load_manifest(folder)
    pq.write_table(table, folder / manifest["workers"][rank]["file"])
    restate_hashes(folder, manifest)


def set_column(folder: Path, rank: int, name: str, values: Any) -> None:
    """Replace one column of a worker's file, with hashes that fit."""
    table = load_table(folder, rank)
    index = table.column_names.index(name)
    field = SHARD_SCHEMA.field(name)
    store_table(folder, rank, table.set_column(index, field, pa.array(values, field.type)))
