"""`matched` over many rows: its time per row and its peak of memory, on generated features."""

import time

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from benchmarks.results import Figure
from benchmarks.speed_timing import resident, watch_high_water
from stages.allocate.candidates import Budget, Candidates
from stages.allocate.selectors.matched import Matched

DIM = 1024
NUM_CLUSTERS = 8
KEPT = 0.25
# Primes: a row is the sum of one of each, so that 16 million rows differ.
POOLS = (4093, 4099)
SCALES = 8191


class Features:
    """Rows that are made when they are read, and the CPU seconds that this took.

    A row is a direction of its cluster plus noise with a falling spectrum, at a lognormal length,
    as gradients are.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        spectrum = 3.0 / np.sqrt(np.arange(1, DIM + 1, dtype=np.float32))
        self.pools = [rng.standard_normal((size, DIM), np.float32) * spectrum for size in POOLS]
        self.directions = rng.standard_normal((NUM_CLUSTERS, DIM), np.float32)
        self.scales = np.exp(rng.normal(0.0, 0.5, SCALES)).astype(np.float32)
        self.seconds = 0.0

    def read(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Make the rows at some places."""
        started = time.process_time()
        found = self.pools[0][places % POOLS[0]]
        found += self.pools[1][places % POOLS[1]]
        found += self.directions[places % NUM_CLUSTERS]
        found *= self.scales[places % SCALES, None]
        self.seconds += time.process_time() - started
        return found


def generated(num_rows: int, features: Features) -> Candidates:
    """Make candidates of equal clusters, whose rows are mixed."""

    def nothing(name: str) -> npt.NDArray[np.float32]:
        raise AssertionError(name)

    return Candidates(
        row_ids=np.arange(num_rows),
        cluster=(np.arange(num_rows) % NUM_CLUSTERS).astype(np.int32),
        distance=np.zeros(num_rows, np.float32),
        multiplicity=np.ones(num_rows, np.int64),
        num_tokens=np.full(num_rows, 100),
        source=np.zeros(num_rows, np.int32),
        centers=np.zeros((NUM_CLUSTERS, DIM), np.float32),
        read_signal=nothing,
        read_embeddings=features.read,
        read_feature=lambda name, places: features.read(places),
        read_targets=nothing,
    )


def measure(num_rows: int) -> list[Figure]:
    """Select a quarter of the rows, with one thread."""
    features = Features(0)
    candidates = generated(num_rows, features)
    budget = Budget(int(KEPT * num_rows))
    with threadpool_limits(1), watch_high_water() as peak:
        before = resident("VmRSS")
        started = time.process_time()
        Matched().select(candidates, budget, np.random.default_rng(0))
        seconds = time.process_time() - started - features.seconds
    label = f"matched, {num_rows} x {DIM}"
    each = 1e3 * seconds / budget.num_rows
    return [
        Figure(f"{label}: CPU milliseconds a kept row", each, None, "lower"),
        Figure(f"{label}: memory beyond the start, MB", (peak() - before) / 1e6, None, "lower"),
    ]
