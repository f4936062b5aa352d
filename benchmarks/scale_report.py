"""The page of a large run: how much memory its making takes, and how large it is."""

import time
from pathlib import Path

from benchmarks.results import Figure
from benchmarks.scale_store import generate, run_stage
from benchmarks.speed_timing import resident, watch_high_water
from pipeline.config import compose, settings_of
from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.report.write import write_report
from stages.screen.stage import SCREEN, ScreenConfig, ScreenSettings
from stages.shards.publish import publish
from stages.shards.stage import SHARDS, ShardsSettings

NUM_WORKERS = 8
DIM = 64
MOST_PAGE_MB = 5.0


def measure(num_rows: int, store: Path, out: Path) -> list[Figure]:
    """Publish a generated run, and write its report.

    Parameters
    ----------
    num_rows : int
        Rows that come in; half of them are kept.
    store, out : Path
        Where the artifacts and the published folder go.
    """
    made = generate(store, num_rows, dim=DIM, mean_tokens=100, text_bytes=300, seed=0)
    screening = ScreenSettings(ScreenConfig(duplicates="keep"), store / "hashes")
    selection = AllocateConfig(budget="50%", num_workers=NUM_WORKERS)
    for stage, settings in (
        (SCREEN, screening),
        (CLUSTER_STAGE, ClusterConfig(num_clusters=NUM_WORKERS)),
        (ALLOCATE_STAGE, selection),
        (SHARDS, ShardsSettings(NUM_WORKERS)),
    ):
        made[stage.name], _ = run_stage(stage, settings, made, store)
    config = compose([f"store={store}", f"out={out}", f"allocate.num_workers={NUM_WORKERS}"])
    manifest = publish(
        out,
        made,
        name="generated",
        seed=0,
        settings=settings_of(config),
        overrides=[],
        versions={},
    )
    before = resident("VmRSS")
    started = time.process_time()
    with watch_high_water() as peak:
        page = write_report(out, made, manifest)
    seconds = time.process_time() - started
    label = f"report, {num_rows} rows"
    return [
        Figure(f"{label}: CPU microseconds a row", 1e6 * seconds / num_rows, None, "lower"),
        Figure(f"{label}: memory beyond the start, MB", (peak() - before) / 1e6, None, "lower"),
        Figure(f"{label}: size of the page, MB", page.stat().st_size / 1e6, MOST_PAGE_MB, "lower"),
    ]
