"""The schedule and the store at tens of millions of rows: row ids and token counts only."""

import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.results import Figure
from benchmarks.scale_store import lengths_of
from benchmarks.speed_timing import watch_high_water
from stages.allocate.budget import StepShape
from stages.allocate.plan_figures import imbalance, max_deviation, places
from stages.allocate.schedule import build_schedule
from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.parts import Outcome, cut
from stages.contract.schemas import ALLOCATE
from stages.contract.tables import Layout

STEP = StepShape(64, 1, 8)
NUM_CLUSTERS = 64
MEAN_TOKENS = 500.0
ROWS_PER_PART = 1_000_000


def simulate(num_rows: int, store: Path) -> list[Figure]:
    """Schedule rows for 64 workers, write the table of places, and read it again."""
    num_rows -= num_rows % STEP.rows
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(NUM_CLUSTERS, 2.0))
    clusters = rng.choice(NUM_CLUSTERS, num_rows, p=shares).astype(np.int32)
    num_tokens = lengths_of(num_rows, MEAN_TOKENS, rng)
    with watch_high_water() as peak:
        started = time.process_time()
        schedule = build_schedule(
            clusters, num_tokens, NUM_CLUSTERS, STEP, kind="dealt", objective="sample", rng=rng
        )
        worker, position = places(schedule.plan)
        scheduling = time.process_time() - started
        uneven = imbalance(schedule.plan, num_tokens)
        off = max_deviation(schedule.plan, clusters, NUM_CLUSTERS)
        del schedule
        started = time.process_time()
        columns = (np.arange(num_rows), worker, position, np.ones(num_rows, np.float32), clusters)
        artifact = write(store, columns)
        writing = time.process_time() - started
        started = time.process_time()
        read = artifact.array("position")
        reading = time.process_time() - started
    assert np.array_equal(read, position)
    num_bytes = sum(part["num_bytes"] for part in artifact.manifest["parts"])
    shutil.rmtree(artifact.path)
    label = f"simulated, {num_rows} rows, 64 workers x 8 rows, 64 clusters"
    each = 1e6 / num_rows
    return [
        Figure(f"{label}: schedule, CPU microseconds a row", scheduling * each, None, "lower"),
        Figure(f"{label}: max / mean tokens of a step", uneven, 1.03, "lower"),
        Figure(f"{label}: largest distance of a running count, rows", off, 1.0, "lower"),
        Figure(
            f"{label}: places to the store, CPU microseconds a row", writing * each, None, "lower"
        ),
        Figure(f"{label}: bytes a row in the store", num_bytes / num_rows, None, "lower"),
        Figure(f"{label}: positions read, CPU microseconds a row", reading * each, None, "lower"),
        Figure(f"{label}: peak of memory, MB", peak() / 1e6, None, "lower"),
    ]


def write(store: Path, columns: tuple[np.ndarray, ...]) -> Artifact:
    """Write the table of places as the allocate stage does, in parts of a million rows."""
    draft = Draft.create(store, "allocate", "0" * 16)
    parts = cut(columns[0].size, ROWS_PER_PART)
    for spec in parts:
        own = [column[spec.start : spec.stop] for column in columns]
        draft.write_part(spec, pa.table(own, schema=ALLOCATE), layout=Layout())
    return draft.commit(
        Outcome(parts, {}), params={}, inputs={}, version=1, parent=None, keeps_order=True
    )
