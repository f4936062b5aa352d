"""Plans: equal rows, clusters in proportion, tokens evened out, every row exactly once."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.budget import StepShape
from stages.allocate.plan_figures import imbalance, max_deviation, places
from stages.allocate.schedule import (
    Schedule,
    build_schedule,
    cluster_places,
    deal,
    fill_steps,
    needed_window,
    pinned_obstacle,
)
from stages.contract.errors import DataError
from tests.artifacts import SEEDED

SMALL = st.integers(1, 4)
STEPS = st.builds(StepShape, SMALL, st.integers(1, 3), st.integers(1, 3))


def rows_of(quotas: Sequence[int], *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw kept rows of so many per cluster, shuffled, with lengths that differ by cluster."""
    rng = np.random.default_rng(seed)
    clusters = rng.permutation(np.repeat(np.arange(len(quotas), dtype=np.int32), quotas))
    lengths = rng.integers(5, 40, clusters.size) * (1 + clusters)
    return clusters, lengths.astype(np.int64)


def build(
    quotas: Sequence[int],
    step: StepShape,
    *,
    kind: str = "dealt",
    objective: str = "sample",
    seed: int = 0,
) -> tuple[Schedule, np.ndarray, np.ndarray]:
    clusters, lengths = rows_of(quotas, seed=seed)
    schedule = build_schedule(
        clusters,
        lengths,
        len(quotas),
        step,
        kind=kind,
        objective=objective,
        rng=np.random.default_rng(seed),
    )
    return schedule, clusters, lengths


def draw_quotas(num_clusters: int, num_steps: int, step: StepShape, seed: int) -> list[int]:
    """Draw quotas, of which some may be zero, that sum to so many steps."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(num_clusters, 0.7))
    return rng.multinomial(num_steps * step.rows, shares).tolist()


def check_windows(counts: np.ndarray, quotas: np.ndarray, window: int) -> None:
    """Hold that each full window has its floor or ceiling, and no window ends a row off."""
    num_steps = counts.shape[0]
    full = num_steps // window
    by_window = counts[: full * window].reshape(full, window, -1).sum(axis=1)
    assert np.all(by_window >= quotas * window // num_steps)
    assert np.all(by_window <= -(-quotas * window // num_steps))
    ends = np.arange(1, full + 1)[:, None] * window
    assert np.abs(np.cumsum(by_window, axis=0) * num_steps - ends * quotas).max() < num_steps


def counts_of(plan: np.ndarray, clusters: np.ndarray, num_clusters: int) -> np.ndarray:
    by_step = clusters[plan].reshape(plan.shape[0], -1)
    return np.stack([np.bincount(row, minlength=num_clusters) for row in by_step])


def in_windows(
    quotas: np.ndarray, num_steps: int, rows_per_step: int, *, longer: int = 0
) -> tuple[np.ndarray, int]:
    """Schedule in the shortest window that works, or in one that is longer."""
    window = min(num_steps, needed_window(quotas, num_steps, rows_per_step) + longer)
    places = cluster_places(quotas, num_steps, window)
    assert places.shape == (num_steps, int(quotas.sum()) // num_steps)
    return np.stack([np.bincount(row, minlength=quotas.size) for row in places]), window


def test_with_room_for_all_clusters_a_window_is_one_step_by_hand() -> None:
    counts, window = in_windows(np.array([6, 3, 3]), 3, 4)
    assert window == 1
    assert counts.tolist() == [[2, 1, 1]] * 3


def test_with_more_clusters_than_rows_a_step_the_window_is_longer_by_hand() -> None:
    counts, window = in_windows(np.array([2, 2, 2, 2, 2]), 5, 2)
    assert window == 3  # ceil(5 / 2)
    check_windows(counts, np.full(5, 2), 3)
    counts, window = in_windows(np.array([2, 2, 2, 2]), 4, 2)
    assert window == 2
    assert counts[:2].sum(axis=0).tolist() == counts[2:].sum(axis=0).tolist() == [1, 1, 1, 1]


def test_clusters_without_rows_do_not_make_the_window_longer() -> None:
    assert in_windows(np.array([4, 0, 0, 0, 4]), 4, 2)[1] == 1


@SEEDED
@given(st.integers(1, 14), st.integers(1, 20), STEPS, st.integers(0, 10_000), st.integers(0, 3))
def test_every_full_window_is_in_proportion(
    num_clusters: int, num_steps: int, step: StepShape, seed: int, longer: int
) -> None:
    quotas = np.array(draw_quotas(num_clusters, num_steps, step, seed))
    counts, window = in_windows(quotas, num_steps, step.rows, longer=longer)
    assert window == min(num_steps, -(-np.count_nonzero(quotas) // step.rows) + longer)
    assert np.array_equal(counts.sum(axis=0), quotas)
    assert np.all(counts.sum(axis=1) == step.rows)
    check_windows(counts, quotas, window)


@SEEDED
@given(st.integers(1, 8), st.integers(1, 12), STEPS, st.integers(0, 10_000))
def test_rows_fill_steps_as_counted_and_by_length(
    num_clusters: int, num_steps: int, step: StepShape, seed: int
) -> None:
    quotas = np.array(draw_quotas(num_clusters, num_steps, step, seed))
    clusters, lengths = rows_of(quotas.tolist(), seed=seed)
    counts, _ = in_windows(quotas, num_steps, step.rows)
    every = np.tile(np.arange(num_clusters), (num_steps, 1))
    places = np.repeat(every.ravel(), counts.ravel()).reshape(num_steps, -1)
    steps = fill_steps(clusters, lengths, places, np.random.default_rng(seed))
    assert sorted(steps.ravel().tolist()) == list(range(clusters.size))
    assert np.array_equal(counts_of(steps[:, None, :], clusters, num_clusters), counts)
    for k in range(num_clusters):
        held = [lengths[row[clusters[row] == k]] for row in steps]
        held = sorted((h for h in held if h.size), key=lambda h: (h.min(), h.max()))
        for shorter, longer in itertools.pairwise(held):
            assert shorter.max() <= longer.min(), "rows of a cluster are cut by length"


@SEEDED
@given(st.integers(1, 10), st.integers(1, 12), STEPS, st.integers(0, 10_000))
def test_a_dealt_plan_holds_each_row_once_and_keeps_its_promise(
    num_clusters: int, num_steps: int, step: StepShape, seed: int
) -> None:
    quotas = draw_quotas(num_clusters, num_steps, step, seed)
    schedule, clusters, _ = build(quotas, step, seed=seed)
    assert schedule.kind == "dealt"
    assert schedule.plan.shape == (num_steps, step.num_workers, step.rows_per_worker)
    assert sorted(schedule.plan.ravel().tolist()) == list(range(clusters.size))
    counts = counts_of(schedule.plan, clusters, num_clusters)
    check_windows(counts, np.array(quotas), schedule.window_steps)
    if schedule.window_steps == 1:
        assert max_deviation(schedule.plan, clusters, num_clusters) < 1


@SEEDED
@given(st.integers(1, 3), st.integers(1, 10), STEPS, st.booleans(), st.integers(0, 10_000))
def test_a_pinned_plan_gives_every_worker_its_own_clusters(
    groups: int, num_steps: int, step: StepShape, equal: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    each = num_steps * step.rows_per_worker
    shares = rng.dirichlet(np.ones(groups))
    columns = [rng.multinomial(each, shares) for _ in range(step.num_workers)]
    quotas = np.stack(columns[:1] * step.num_workers if equal else columns, axis=1).ravel()
    schedule, clusters, _ = build(quotas.tolist(), step, kind="pinned", seed=seed)
    assert (schedule.kind, schedule.reason) == ("pinned", "asked")
    assert schedule.plan.shape == (num_steps, step.num_workers, step.rows_per_worker)
    assert sorted(schedule.plan.ravel().tolist()) == list(range(clusters.size))
    for worker in range(step.num_workers):
        assert np.all(clusters[schedule.plan[:, worker]] % step.num_workers == worker)


def test_a_pinned_plan_with_one_cluster_each_is_in_proportion() -> None:
    step = StepShape(4, 2, 3)
    schedule, clusters, _ = build([24, 24, 24, 24], step, kind="pinned")
    assert counts_of(schedule.plan, clusters, 4).tolist() == [[6, 6, 6, 6]] * 4
    assert schedule.window_steps == 1
    assert max_deviation(schedule.plan, clusters, 4) == 0


@SEEDED
@given(st.integers(1, 4), st.integers(1, 12), STEPS, st.integers(0, 10_000))
def test_a_pinned_plan_keeps_its_promise_where_all_workers_hold_as_many_clusters(
    groups: int, num_steps: int, step: StepShape, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    each = num_steps * step.rows_per_worker
    if each < groups:
        return
    column = np.ones(groups, np.int64) + rng.multinomial(
        each - groups, rng.dirichlet(np.ones(groups))
    )
    quotas = np.repeat(column, step.num_workers)
    schedule, clusters, _ = build(quotas.tolist(), step, kind="pinned", seed=seed)
    counts = counts_of(schedule.plan, clusters, quotas.size)
    check_windows(counts, quotas, schedule.window_steps)


def test_a_pinned_plan_keeps_its_promise_where_workers_hold_unlike_numbers_of_clusters() -> None:
    # Worker 0 holds four clusters with rows and worker 1 five: two steps do for the one, and
    # three for the other.
    quotas = [0, 3, 4, 5, 8, 3, 9, 7, 1, 4]
    schedule, clusters, _ = build(quotas, StepShape(2, 1, 2), kind="pinned", seed=807)
    counts = counts_of(schedule.plan, clusters, 10)
    check_windows(counts, np.array(quotas), schedule.window_steps)


@pytest.mark.parametrize(
    ("quotas", "num_workers", "obstacle"),
    [
        ([4, 4], 2, None),
        ([1, 2, 3, 2], 2, None),  # 1 + 3 and 2 + 2
        ([4, 6], 2, "unequal numbers of rows [4, 6]"),
        ([1] * 9 + [2], 10, "unequal numbers of rows [1, 1, 1, 1, 1, 1, 1, 1] and 2 more"),
        ([4, 4, 4], 2, "cluster.num_clusters=3 must be a multiple of allocate.num_workers=2"),
    ],
)
def test_what_stands_against_pinning_by_hand(
    quotas: list[int], num_workers: int, obstacle: str | None
) -> None:
    found = pinned_obstacle(np.array(quotas), num_workers)
    assert found is None if obstacle is None else obstacle in str(found)


@pytest.mark.parametrize("quotas", [[4, 8], [4, 4, 4]])
@pytest.mark.parametrize(("kind", "objective"), [("pinned", "sample"), ("auto", "rank")])
def test_pinned_where_it_is_not_possible_is_refused_with_the_remedy(
    quotas: list[int], kind: str, objective: str
) -> None:
    with pytest.raises(DataError) as caught:
        build(quotas, StepShape(2, 1, 1), kind=kind, objective=objective)
    message = str(caught.value)
    assert message.startswith("allocate.schedule=pinned is not possible: ")
    assert "use allocate.schedule=dealt" in message


@pytest.mark.parametrize(
    ("quotas", "kind", "objective", "expected", "reason"),
    [
        ([6, 6], "auto", "rank", "pinned", "the objective rank needs it"),
        ([6, 6], "auto", "sample", "dealt", "it evens out tokens"),
        ([6, 6], "auto", "token", "dealt", "it evens out tokens"),
        ([6, 6], "pinned", "sample", "pinned", "asked"),
        ([6, 6], "dealt", "rank", "dealt", "asked"),
    ],
)
def test_which_schedule_is_taken_and_why(
    quotas: list[int], kind: str, objective: str, expected: str, reason: str
) -> None:
    schedule, _, _ = build(quotas, StepShape(2, 1, 1), kind=kind, objective=objective)
    assert schedule.kind == expected
    assert reason in schedule.reason


def test_rows_are_dealt_longest_first_to_the_least_loaded_by_hand() -> None:
    lengths = np.array([10, 1, 9, 2])
    plan = deal(np.array([[0, 1, 2, 3]]), lengths, StepShape(2, 1, 2), np.random.default_rng(0))
    assert sorted(plan[0].tolist()) == [[0, 1], [2, 3]]  # 10 + 1 and 9 + 2


@SEEDED
@given(st.integers(1, 8), STEPS, st.integers(0, 10_000))
def test_dealing_gives_every_worker_its_rows_of_every_step(
    num_steps: int, step: StepShape, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 100, num_steps * step.rows)
    steps = rng.permutation(lengths.size).reshape(num_steps, -1)
    plan = deal(steps, lengths, step, rng)
    assert plan.shape == (num_steps, step.num_workers, step.rows_per_worker)
    for dealt, given_rows in zip(plan, steps, strict=True):
        assert sorted(dealt.ravel().tolist()) == sorted(given_rows.tolist())
        assert np.all(np.diff(lengths[dealt], axis=1) <= 0), "a worker's longest row comes first"


def test_dealing_evens_tokens_better_than_chance_on_average() -> None:
    step = StepShape(4, 1, 4)
    dealt, random = [], []
    for seed in range(20):
        schedule, clusters, lengths = build([90, 60, 30, 12], step, seed=seed)
        chance = np.random.default_rng(seed).permutation(clusters.size)
        dealt.append(imbalance(schedule.plan, lengths))
        random.append(imbalance(chance.reshape(schedule.plan.shape), lengths))
    assert np.mean(dealt) - 1 < 0.5 * (np.mean(random) - 1)


def test_no_worker_always_gets_the_longest_row() -> None:
    lengths = np.random.default_rng(0).permutation(400)
    steps = np.arange(400).reshape(100, 4)
    plan = deal(steps, lengths, StepShape(4, 1, 1), np.random.default_rng(0))
    longest = np.bincount(np.argmax(lengths[plan[:, :, 0]], axis=1), minlength=4)
    assert longest.min() > 10  # of 100 steps


def test_successive_steps_are_not_sorted_by_length() -> None:
    schedule, _, lengths = build([200], StepShape(2, 1, 2))
    tokens = lengths[schedule.plan].sum(axis=(1, 2))
    assert abs(np.corrcoef(np.arange(tokens.size), tokens)[0, 1]) < 0.4


@pytest.mark.parametrize("kind", ["pinned", "dealt"])
def test_the_same_seed_gives_the_same_plan(kind: str) -> None:
    plans = [build([24, 24], StepShape(2, 2, 2), kind=kind, seed=3)[0].plan for _ in range(2)]
    assert np.array_equal(*plans)


def test_places_by_hand() -> None:
    plan = np.array([[[3, 0], [1, 2]], [[4, 7], [6, 5]]])  # 2 steps, 2 workers, 2 rows each
    worker, position = places(plan)
    assert worker.tolist() == [0, 1, 1, 0, 0, 1, 1, 0]
    assert position.tolist() == [1, 0, 1, 0, 2, 3, 2, 3]


@SEEDED
@given(st.integers(1, 8), STEPS, st.integers(0, 10_000))
def test_places_are_the_inverse_of_the_plan(num_steps: int, step: StepShape, seed: int) -> None:
    total = num_steps * step.rows
    shape = (num_steps, step.num_workers, step.rows_per_worker)
    plan = np.random.default_rng(seed).permutation(total).reshape(shape)
    worker, position = places(plan)
    by_worker = plan.transpose(1, 0, 2).reshape(step.num_workers, -1)
    assert np.array_equal(by_worker[worker, position], np.arange(total))


def test_figures_by_hand() -> None:
    plan = np.array([[[0], [1]], [[2], [3]]])  # 2 steps of 2 workers
    # Step 0: 30 and 10 tokens, step 1: 20 and 20: (30 + 20) / (20 + 20).
    assert imbalance(plan, np.array([30, 10, 20, 20])) == pytest.approx(1.25)
    # Two rows of cluster 0 in step 0 and none in step 1: one row from the line after step 0.
    assert max_deviation(plan, np.array([0, 0, 1, 1]), 2) == pytest.approx(1.0)
    assert max_deviation(plan, np.array([0, 1, 1, 0]), 2) == 0
    # 3 of 4 rows: 2 after step 0, the line is at 1.5.
    assert max_deviation(plan, np.array([0, 0, 0, 1]), 2) == pytest.approx(0.5)


@SEEDED
@given(st.integers(0, 10_000))
def test_the_largest_deviation_is_that_of_all_running_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, [9, 4, 4]).tolist())
    plan = rng.permutation(int(np.prod(shape))).reshape(shape)
    num_clusters = int(rng.integers(1, 7))
    clusters = rng.integers(0, num_clusters, plan.size).astype(np.int32)
    flat = clusters[plan.reshape(shape[0], -1)]
    counts = np.stack([np.bincount(step, minlength=num_clusters) for step in flat])
    running = np.cumsum(counts, axis=0)
    lines = np.arange(1, shape[0] + 1)[:, None] * (running[-1] / shape[0])
    assert max_deviation(plan, clusters, num_clusters) == np.abs(running - lines).max()
