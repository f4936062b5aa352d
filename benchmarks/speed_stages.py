"""Tokens against `datasets.map`, shards against one plain writing, schedules, workers."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.results import Figure
from benchmarks.scale_store import generate, run_stage
from benchmarks.speed_timing import interleaved, ratio, resident, watch_high_water
from pipeline.config import compose
from pipeline.plan import run_stages, stage_settings
from stages.allocate.budget import StepShape
from stages.allocate.plan_figures import imbalance
from stages.allocate.schedule import build_schedule
from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.artifact import Artifact
from stages.contract.tables import Layout
from stages.shards.stage import SHARDS, ShardsSettings
from stages.tokens.encode import Encoded, Encoder
from stages.tokens.stage import ROWS_PER_SLICE, TOKENS, TokensSettings, load_encoder

ROWS_PER_STEP = (1, 2, 4, 8)  # A * B


def map_rows(rows: Artifact, settings: TokensSettings, cache: Path) -> int:
    """Tokenise by `datasets.map` over the function that the tokens stage calls."""
    import datasets

    encoder = load_encoder(settings)
    table = datasets.Dataset(rows.read(["messages", "meta"]))
    mapped = table.map(
        lambda batch: encoded(encoder, batch),
        batched=True,
        batch_size=ROWS_PER_SLICE,
        remove_columns=["messages", "meta"],
        cache_file_name=str(cache),
        new_fingerprint=cache.stem,
    )
    return len(mapped)


def encoded(encoder: Encoder, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Render and mask a batch; rows that cannot be are left out."""
    outcomes = encoder.encode(list(zip(batch["messages"], batch["meta"], strict=True)))
    kept = [outcome for outcome in outcomes if isinstance(outcome, Encoded)]
    return {
        "input_ids": [row.input_ids for row in kept],
        "labels": [row.labels for row in kept],
    }


def measure_tokens(overrides: Sequence[str], rounds: int) -> list[Figure]:
    """Compare the tokens stage, its checks and hashes included, with `datasets.map`."""
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Copies stay, since `datasets.map` gets all rows.
        asked = ["screen.duplicates=keep", f"store={folder / 'store'}", "report=false"]
        config = compose([*overrides, *asked])
        inputs = {
            stage: report.artifact for stage, report in run_stages(config, last="screen").items()
        }
        settings = stage_settings("tokens", config)
        assert isinstance(settings, TokensSettings)
        turns = iter(range(10_000))
        counts = {}

        def own() -> None:
            done, _ = run_stage(TOKENS, settings, inputs, folder / f"tokens-{next(turns)}")
            counts["own"] = done.num_rows

        def mapped() -> None:
            cache = folder / f"map-{next(turns)}.arrow"
            counts["map"] = map_rows(inputs["rows"], settings, cache)

        seconds = interleaved({"own": own, "map": mapped}, rounds)
    assert counts["own"] == counts["map"], counts
    label = f"tokens, {counts['own']} rows"
    rate = counts["own"] / float(np.median(seconds["own"]))
    return [
        Figure(f"{label}: rows a CPU second", rate, None, "higher"),
        Figure(f"{label}: time over datasets.map", ratio(seconds, "own", "map"), 1.05, "lower"),
    ]


def measure_shards(num_rows: int, text_bytes: int, folder: Path | None = None) -> list[Figure]:
    """Compare allocate and shards with one writing of the same table, unsorted."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        store = Path(name)
        made = generate(store, num_rows, dim=64, mean_tokens=100, text_bytes=text_bytes, seed=0)
        made["cluster"], _ = run_stage(CLUSTER_STAGE, ClusterConfig(num_clusters=4), made, store)
        with watch_high_water() as peak:
            settings = AllocateConfig(budget="100%")
            made["allocate"], choosing = run_stage(ALLOCATE_STAGE, settings, made, store)
            made["shards"], writing = run_stage(SHARDS, ShardsSettings(4), made, store)
        pieces = [pq.read_table(made["shards"].path / p.name) for p in made["shards"].parts]
        table = pa.concat_tables(pieces)
        table = table.take(np.argsort(table["row_id"].to_numpy()))
        layout = Layout()
        started = time.process_time()
        pq.write_table(
            table,
            store / "plain.parquet",
            compression=layout.compression,
            row_group_size=layout.max_group_rows,
        )
        plain = time.process_time() - started
    label = f"allocate + shards, {table.num_rows} rows"
    return [
        Figure(f"{label}: time over one plain writing", (choosing + writing) / plain, 3.0, "lower"),
        Figure(f"{label}: time of allocate over it", choosing / plain, None, "lower"),
        Figure(f"{label}: peak of memory, MB", peak() / 1e6, None, "lower"),
        Figure(f"{label}: memory before, MB", resident("VmRSS") / 1e6, None, "lower"),
    ]


def random_plan(num_rows: int, step: StepShape, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Lay rows out in a random order."""
    num_steps = num_rows // step.rows
    shape = (num_steps, step.num_workers, step.rows_per_worker)
    return rng.permutation(num_rows)[: num_steps * step.rows].reshape(shape)


def measure_schedule(
    clusters: npt.NDArray[np.int32], num_tokens: npt.NDArray[np.int64], num_workers: int
) -> list[Figure]:
    """Take max / mean tokens of a step over workers, by each way to lay rows out.

    All ways get the same rows: as many of each cluster, so that pinned is possible.
    """
    rng = np.random.default_rng(0)
    figures = []
    for rows_each in ROWS_PER_STEP:
        step = StepShape(num_workers, 1, rows_each)
        least = int(np.bincount(clusters, minlength=num_workers).min()) // rows_each * rows_each
        own = [rng.permutation(np.flatnonzero(clusters == k))[:least] for k in range(num_workers)]
        rows = np.sort(np.concatenate(own))
        plans = {"random order": random_plan(rows.size, step, rng)}
        for kind in ("pinned", "dealt"):
            plans[kind] = build_schedule(
                clusters[rows],
                num_tokens[rows],
                num_workers,
                step,
                kind=kind,
                objective="sample",
                rng=np.random.default_rng(0),
            ).plan
        for kind, plan in plans.items():
            target = 1.03 if kind == "dealt" and rows_each == 8 else None
            label = f"schedule, W = {num_workers}, A*B = {rows_each}, {kind}: max / mean tokens"
            figures.append(Figure(label, imbalance(plan, num_tokens[rows]), target, "lower"))
    return figures


def real_clusters(
    overrides: Sequence[str], num_workers: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Cluster some rows by the pass of a run; their clusters and lengths."""
    with tempfile.TemporaryDirectory() as name:
        asked = [f"allocate.num_workers={num_workers}", f"store={name}", "report=false"]
        config = compose([*overrides, *asked])
        reports = run_stages(config, last="cluster")
        cluster, tokens = reports["cluster"].artifact, reports["tokens"].artifact
        places = np.searchsorted(tokens.array("row_id"), cluster.array("row_id"))
        return cluster.array("cluster"), tokens.array("num_tokens")[places].astype(np.int64)


def measure_workers(overrides: Sequence[str], rounds: int) -> list[Figure]:
    """Compare a whole run with two workers against one, by the clock."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, times in seconds.items():
            with tempfile.TemporaryDirectory() as name:
                asked = [f"store={name}", f"compute.workers={workers}", "report=false"]
                config = compose([*overrides, *asked])
                started = time.perf_counter()
                run_stages(config)
                times.append(time.perf_counter() - started)
    gain = float(np.median(np.array(seconds[1]) / np.array(seconds[2])))
    return [Figure("whole run: clock time of 1 worker over that of 2", gain, 1.7, "higher")]
