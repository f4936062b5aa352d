"""What keeps large sets in time and memory gives what the plain loops give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate import schedule
from stages.allocate.candidates import Budget
from stages.allocate.fair import periodic_counts
from stages.allocate.schedule import needed_window, windowed_counts
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
        found = windowed_counts(quotas, num_steps, window)
    assert found.tolist() == plain_windows(quotas, num_steps, window).tolist()


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
