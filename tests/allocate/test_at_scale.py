"""What keeps large sets in time and memory gives what the plain loops give."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate import greedy, schedule
from stages.allocate.candidates import Budget
from stages.allocate.fair import periodic_counts
from stages.allocate.greedy import facility_location
from stages.allocate.neighbours import squared_distances
from stages.allocate.schedule import cluster_places, fill_steps, needed_window
from stages.allocate.selectors import matched
from stages.allocate.selectors.matched import Matched
from tests.allocate.samples import candidates
from tests.artifacts import SEEDED


def plain_windows(quotas: np.ndarray, num_steps: int, window: int) -> np.ndarray:
    """Fill window after window, row by row: the cluster furthest behind its line goes first."""
    num_windows, rest = divmod(num_steps, window)
    per_window = periodic_counts(quotas * window, num_steps, num_windows)
    if rest:
        per_window = np.vstack([per_window, quotas - per_window.sum(axis=0)])
    counts = np.zeros((num_steps, quotas.size), np.int64)
    done = np.zeros(quotas.size, np.int64)
    for index, left in enumerate(per_window):
        for step in range(index * window, min((index + 1) * window, num_steps)):
            for _ in range(int(quotas.sum()) // num_steps):
                behind = quotas * (step + 1) - done * num_steps
                cluster = max(np.flatnonzero(left), key=lambda k: (behind[k], -k))
                counts[step, cluster] += 1
                done[cluster] += 1
                left[cluster] -= 1
    return counts


@SEEDED
@given(
    seed=st.integers(0, 100_000),
    num_clusters=st.integers(2, 9),
    num_steps=st.integers(1, 25),
    at_once=st.sampled_from([1, 20, 1 << 20]),
)
def test_windows_filled_at_once_are_those_of_the_loop(
    seed: int, num_clusters: int, num_steps: int, at_once: int
) -> None:
    rng = np.random.default_rng(seed)
    rows_per_step = int(rng.integers(1, num_clusters + 1))
    quotas = rng.multinomial(rows_per_step * num_steps, rng.dirichlet(np.ones(num_clusters)))
    window = max(2, needed_window(quotas, num_steps, rows_per_step))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "ENTRIES_AT_ONCE", at_once)
        places = cluster_places(quotas, num_steps, window)
    found = np.stack([np.bincount(row, minlength=num_clusters) for row in places])
    assert found.tolist() == plain_windows(quotas, num_steps, window).tolist()


def plain_fill(
    clusters: np.ndarray, num_tokens: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Hand each cluster's rows, by length, to the steps in the order of their turns."""
    turns = rng.permutation(len(counts))
    tie_breaks = rng.permutation(clusters.size)
    steps: list[list[int]] = [[] for _ in counts]
    for cluster in range(counts.shape[1]):
        own = np.flatnonzero(clusters == cluster)
        waiting = sorted(own.tolist(), key=lambda row: (num_tokens[row], tie_breaks[row]))
        for step in turns:
            for _ in range(counts[step, cluster]):
                steps[step].append(waiting.pop(0))
    return np.array([sorted(rows) for rows in steps])


@SEEDED
@given(seed=st.integers(0, 100_000), num_clusters=st.integers(1, 9), num_steps=st.integers(1, 12))
def test_steps_filled_at_once_are_those_of_the_loop(
    seed: int, num_clusters: int, num_steps: int
) -> None:
    rng = np.random.default_rng(seed)
    rows_per_step = int(rng.integers(1, 6))
    quotas = rng.multinomial(rows_per_step * num_steps, rng.dirichlet(np.ones(num_clusters)))
    clusters = rng.permutation(np.repeat(np.arange(num_clusters), quotas))
    num_tokens = rng.integers(1, 9, clusters.size)
    places = cluster_places(quotas, num_steps, needed_window(quotas, num_steps, rows_per_step))
    counts = np.stack([np.bincount(row, minlength=num_clusters) for row in places])
    found = fill_steps(clusters, num_tokens, places, np.random.default_rng(seed))
    plain = plain_fill(clusters, num_tokens, counts, np.random.default_rng(seed))
    assert found.tolist() == plain.tolist()


def test_a_schedule_of_many_clusters_takes_memory_by_its_rows() -> None:
    """A table of steps by clusters would be 100 MB here, at 1M rows of 20,000 clusters 40 GB."""
    quotas = np.full(5000, 2)
    clusters = np.repeat(np.arange(5000, dtype=np.int32), 2)
    tracemalloc.start()
    places = cluster_places(quotas, 2500, needed_window(quotas, 2500, 4))
    steps = fill_steps(clusters, np.arange(10_000), places, np.random.default_rng(0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sorted(steps.ravel().tolist()) == list(range(10_000))
    assert peak < 5e6


@SEEDED
@given(
    seed=st.integers(0, 10_000),
    num_rows=st.integers(3, 60),
    quota=st.integers(1, 5),
    pairs=st.sampled_from([1, 50, 300]),
)
def test_greedy_by_blocks_of_distances_chooses_what_one_block_would(
    seed: int, num_rows: int, quota: int, pairs: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(num_rows, 3))
    mass, draws = rng.random(num_rows) + 0.1, rng.random(num_rows)
    held: list[int] = []

    def counted(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        held.append(len(left) * len(right))
        return squared_distances(left, right)

    found = []
    for bound in (1 << 30, pairs):
        held.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(greedy, "squared_distances", counted)
            patch.setattr(greedy, "PAIRS_AT_ONCE", bound)
            chosen = facility_location(
                rows, mass, min(quota, num_rows), draws=draws, epsilon=0.1, exact_rows=0
            )
        found.append(chosen.tolist())
        assert max(held) <= max(bound, num_rows)
    assert found[0] == found[1]


def test_features_are_read_once_and_once_for_each_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held for many groups at once; with groups read one by one the selection is the same."""
    rows = candidates([300, 200, 100], seed=2)
    selector = Matched(group_rows=20)
    kept, weights = selector.select(rows, Budget(120), np.random.default_rng(0))
    counts: list[int] = []
    plain = rows.read_feature

    def counted(name: str, places: np.ndarray) -> np.ndarray:
        counts.append(places.size)
        return plain(name, places)

    object.__setattr__(rows, "read_feature", counted)
    again, same = selector.select(rows, Budget(120), np.random.default_rng(0))
    assert again.tolist() == kept.tolist() and same.tolist() == weights.tolist()
    assert sum(counts) == 2 * 600  # the lengths, then everything for the matching
    monkeypatch.setattr(matched, "ROWS_PER_STRETCH", 100)
    counts.clear()
    inside, _ = selector.select(rows, Budget(120), np.random.default_rng(0))
    assert inside.size == 120 and sum(counts) == 2 * 600
    assert max(counts[1:]) <= 100  # the first is that of the lengths
