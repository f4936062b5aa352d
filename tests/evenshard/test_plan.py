"""A plan gives every row once an epoch, to any number of ranks, with the steps' promises kept."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard import Plan, ShardError, ShardSet
from tests.evenshard import folders

SETTINGS: tuple[dict[str, Any], ...] = (
    {"kept": (8, 4, 4), "world_size": 4, "micro_batch": 1, "accumulation": 1},
    {"kept": (40, 24, 16), "world_size": 4, "micro_batch": 2, "accumulation": 2},
    {"kept": (9, 6, 4, 3, 2), "world_size": 2, "accumulation": 1, "window": 2},
    {"kept": (10, 10, 10), "world_size": 3, "micro_batch": 1, "pinned": True},
    {"kept": (9, 6), "world_size": 1, "micro_batch": 3, "accumulation": 1},
    {"kept": (24, 12), "world_size": 4, "micro_batch": 3, "accumulation": 1},
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[ShardSet]:
    made = []
    for index, setting in enumerate(SETTINGS):
        folder = tmp_path_factory.mktemp("sets") / str(index)
        folders.write_set(folder, seed=index, **setting)
        made.append(ShardSet(folder))
    return made


@pytest.fixture(scope="module")
def four(sets: list[ShardSet]) -> ShardSet:
    """Four shards of four rows, one row each a step: row number 4 * worker + step."""
    return sets[0]


def batches(plan: Plan, epoch: int = 0, start: int = 0) -> list[list[list[int]]]:
    """Give [rank][micro-batch][row]."""
    return [
        [batch.tolist() for batch in plan.batches(epoch, rank, start)]
        for rank in range(plan.world_size)
    ]


def steps_of(plan: Plan, epoch: int) -> list[list[int]]:
    """Give the real rows of each step, over all ranks, sorted."""
    by_rank = batches(plan, epoch)
    a = plan.accumulation
    return [
        sorted(row for rank in by_rank for row in chain(*rank[s * a : (s + 1) * a]) if row >= 0)
        for s in range(plan.num_steps)
    ]


@pytest.mark.parametrize(
    ("world_size", "micro_batch", "expected"),
    [
        (1, 1, [[[i + 4 * w] for i in range(4) for w in range(4)]]),
        (1, 4, [[[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]]),
        (
            2,
            1,
            [
                [[0], [8], [1], [9], [2], [10], [3], [11]],
                [[4], [12], [5], [13], [6], [14], [7], [15]],
            ],
        ),
        (2, 2, [[[0, 8], [1, 9], [2, 10], [3, 11]], [[4, 12], [5, 13], [6, 14], [7, 15]]]),
        (
            3,
            1,
            [
                [[0], [4], [1], [5], [2], [6], [3], [7]],
                [[8], [-1], [9], [-1], [10], [-1], [11], [-1]],
                [[12], [-1], [13], [-1], [14], [-1], [15], [-1]],
            ],
        ),
        (
            3,
            2,
            [
                [[0, 4], [1, 5], [2, 6], [3, 7]],
                [[8, -1], [9, -1], [10, -1], [11, -1]],
                [[12, -1], [13, -1], [14, -1], [15, -1]],
            ],
        ),
        (4, 1, [[[4 * r + i] for i in range(4)] for r in range(4)]),
        (6, 1, [[[4 * r + i] for i in range(4)] for r in range(4)] + [[[-1]] * 4] * 2),
        (8, 1, [[[4 * r + i + b] for i in (0, 2)] for b in (0, 1) for r in range(4)]),
        (16, 1, [[[4 * r + b]] for b in range(4) for r in range(4)]),
    ],
)
def test_by_hand(
    four: ShardSet, world_size: int, micro_batch: int, expected: list[list[list[int]]]
) -> None:
    plan = Plan(four, world_size, micro_batch)
    assert batches(plan) == expected
    assert plan.accumulation * plan.num_steps == len(expected[0])
    assert plan.pads == any(-1 in batch for rank in expected for batch in rank)


def test_a_last_merged_step_is_short(four: ShardSet) -> None:
    plan = Plan(four, 12)  # 4 steps of the set in threes
    assert (plan.num_steps, plan.steps_merged, plan.rows_per_step) == (2, 3, 12)
    assert [plan.rows_in_step(step) for step in (0, 1)] == [12, 4]
    assert batches(plan)[0] == [[0], [3]]
    assert batches(plan)[7] == [[13], [-1]]
    assert plan.pads


def test_ranks_that_share_out_shards_exactly_get_no_padding(sets: list[ShardSet]) -> None:
    plan = Plan(sets[5], 6, 2)  # 12 rows a step of 4 shards
    assert (plan.pads, plan.accumulation) == (False, 1)
    assert batches(plan)[1][0] == [2, 9]
    assert plan.workers_of(1) == [0, 1]
    assert Plan(sets[5], 6, 1, objective="sample").rows_per_rank == 2


jobs = st.tuples(
    st.integers(0, len(SETTINGS) - 1), st.integers(1, 17), st.integers(1, 6), st.integers(0, 3)
)


def make_plan(shards: ShardSet, world_size: int, micro_batch: int) -> Plan:
    """Make a plan, or one with a micro-batch that is said to work."""
    try:
        return Plan(shards, world_size, micro_batch)
    except ShardError as error:
        works = str(error).rsplit("work: ", 1)[1].partition(";")[0].split(", ")
        assert str(micro_batch) not in works
        return Plan(shards, world_size, int(works[-1]))


@settings(deadline=None, max_examples=150)
@given(job=jobs)
def test_every_row_once_in_steps_of_the_files(sets: list[ShardSet], job: Any) -> None:
    index, world_size, micro_batch, epoch = job
    shards = sets[index]
    plan = make_plan(shards, world_size, micro_batch)
    found = steps_of(plan, epoch)
    assert sorted(chain(*found)) == list(range(shards.num_rows))
    assert [len(rows) for rows in found] == [plan.rows_in_step(s) for s in range(plan.num_steps)]
    # Steps are those of W ranks, merged.
    of_set, k = steps_of(Plan(shards), epoch), plan.steps_merged
    assert found == [sorted(chain(*of_set[i : i + k])) for i in range(0, len(of_set), k)]
    # All ranks have as many batches, of one size, and lay_out agrees with batches.
    by_rank = np.array(batches(plan, epoch))
    shape = (world_size, plan.num_steps, plan.rows_per_rank)
    assert by_rank.shape == (world_size, plan.num_steps * plan.accumulation, plan.micro_batch)
    order = plan.order(epoch)
    for step in range(plan.num_steps):
        assert (plan.lay_out(order, step) == by_rank.reshape(shape)[:, step]).all()


@settings(deadline=None, max_examples=100)
@given(job=jobs)
def test_padding_only_where_promised(sets: list[ShardSet], job: Any) -> None:
    index, world_size, micro_batch, epoch = job
    plan = make_plan(sets[index], world_size, micro_batch)
    by_rank = np.array(batches(plan, epoch)).reshape(world_size, plan.num_steps, -1)
    padding = (by_rank == -1).sum(axis=(0, 2))  # of each step
    size = sets[index].world_size
    if max(size, world_size) % min(size, world_size) == 0:
        assert not padding[:-1].any()  # a last merged step alone
    assert bool(padding.any()) == plan.pads
    real = (by_rank != -1).sum(axis=2)
    if not max(size, world_size) % min(size, world_size) == 0:
        assert (real.max(axis=0) - real.min(axis=0)).max() <= 1  # ranks are filled evenly


@settings(deadline=None, max_examples=60)
@given(job=jobs, data=st.data())
def test_start_gives_the_tail(sets: list[ShardSet], job: Any, data: Any) -> None:
    index, world_size, micro_batch, epoch = job
    plan = make_plan(sets[index], world_size, micro_batch)
    start = data.draw(st.integers(0, plan.num_steps))
    whole = batches(plan, epoch)
    assert batches(plan, epoch, start) == [rank[start * plan.accumulation :] for rank in whole]


@settings(deadline=None, max_examples=40)
@given(index=st.integers(0, len(SETTINGS) - 1), epoch=st.integers(1, 5), seed=st.integers(0, 9))
def test_later_epochs_keep_coverage_and_lengths(
    sets: list[ShardSet], index: int, epoch: int, seed: int
) -> None:
    shards = sets[index]
    plan = Plan(shards, seed=seed)
    window = shards.manifest["schedule"]["window_steps"]
    order = plan.order(epoch)  # (S, W, A*B)
    clusters = shards.cluster.ravel()
    lengths = shards.num_tokens.ravel()
    buckets = np.floor(np.log2(lengths) * 4 + 1e-9).astype(int)
    # Every step is a step of epoch 0, place by place, in cluster, shard and length bucket.
    first = plan.order(0)
    kinds = [(clusters[o], o // shards.rows_per_worker, buckets[o]) for o in (order, first)]
    signatures = [
        [tuple(x[i : i + window].tobytes() for x in kind) for i in range(0, len(order), window)]
        for kind in kinds
    ]
    assert Counter(signatures[0]) == Counter(signatures[1])


def test_later_epochs_differ_and_are_the_same_for_every_world_size(sets: list[ShardSet]) -> None:
    shards = sets[1]
    assert steps_of(Plan(shards), 1) != steps_of(Plan(shards), 0)
    assert batches(Plan(shards), 1) != batches(Plan(shards), 2)
    assert batches(Plan(shards, seed=1), 1) != batches(Plan(shards, seed=2), 1)
    for world_size in (1, 2, 3, 5, 6):
        assert steps_of(Plan(shards, world_size, 1), 1) == steps_of(Plan(shards), 1)
    rows = Plan(shards).order(3)
    inside = [(r, c) for r, c in zip(rows.ravel(), np.sort(rows.ravel()), strict=True)]
    assert any(r != c for r, c in inside)


def test_a_window_over_merged_steps(sets: list[ShardSet]) -> None:
    shards = sets[2]  # W = 2, windows of 2 steps
    assert [Plan(shards, w).window_steps for w in (1, 2, 3, 4, 6)] == [2, 2, 2, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world_size": 0}, r"world_size=0 must be >= 1; leave it out .* set's, 4"),
        ({"micro_batch": 0}, "micro_batch=0 must be >= 1"),
        ({"seed": -1}, "seed=-1 must be >= 0"),
        ({"objective": "mean"}, "objective='mean' must be one of sample, token, rank"),
        (
            {"world_size": 2, "micro_batch": 3},
            "micro_batch=3 must divide the 8 rows of a rank in a step; "
            "with world_size=2 these work: 1, 2, 4, 8",
        ),
        ({"world_size": 8, "micro_batch": 8}, "must divide the 4 rows .* these work: 1, 2, 4"),
        (
            {"world_size": 3, "objective": "rank"},
            'gives ranks padding, which the objective "rank" cannot weigh; these world sizes '
            'work: 1, 2, 4, or use the objective "sample"',
        ),
        ({"objective": "rank"}, 'objective="rank" needs schedule.kind=pinned, not dealt; use the'),
    ],
)
def test_impossible_combinations(
    sets: list[ShardSet], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShardError, match=message):
        Plan(sets[1], **arguments)


def test_the_objective_rank(sets: list[ShardSet], tmp_path: Path) -> None:
    pinned = sets[3]
    plan = Plan(pinned, 1, 1, objective="rank")
    clusters = pinned.cluster.ravel()
    for batch in plan.batches(2, 0):
        assert len(set(clusters[batch])) == 1
    with pytest.raises(ShardError, match="micro_batch=6 must divide 2, the rows of a shard"):
        Plan(pinned, 1, 6, objective="rank")
    # A set that says pinned, but whose micro-batches mix clusters.
    folders.write_set(tmp_path, kept=(8, 8))
    manifest = folders.load_manifest(tmp_path)
    manifest["schedule"]["kind"] = "pinned"
    folders.store_manifest(tmp_path, manifest)
    with pytest.raises(ShardError, match=r"micro-batches of one cluster, \d of 8 hold several"):
        Plan(ShardSet(tmp_path), objective="rank")


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of one cluster each, 12 rows in 6 micro-batches of 2; all weigh alike inside."""
    folder = tmp_path_factory.mktemp("pinned")
    folders.write_set(folder, kept=(12, 12), pinned=True)
    return folder


def test_the_objective_rank_refuses_unlike_weights(pinned: Path) -> None:
    """One row of the fifth micro-batch stands for two: found before training, not in step 3."""
    shards = ShardSet(pinned)
    Plan(shards, objective="rank")
    weights = shards.shard_column(1, "weight").copy()
    first, ninth = shards.row_id[1, 0], shards.row_id[1, 9]
    weights[9] = 2 * weights[0]
    shards._columns[1, "weight"] = weights
    message = (
        rf'objective="rank" needs rows of one weight .*{pinned}, worker 1, row_id={ninth} has '
        rf"weight={weights[9]:g} and row_id={first} of the same cluster {weights[0]:g} \(1 rows "
        r'differ\); use the objective "sample", or curate with allocate.objective=rank and all'
    )
    for world_size in (1, 2, 6):
        with pytest.raises(ShardError, match=message):
            Plan(shards, world_size, objective="rank")
    Plan(shards, objective="sample")
    Plan(shards, micro_batch=1, objective="rank")  # a row alone has one weight


@settings(deadline=None, max_examples=60)
@given(
    weights=st.lists(st.sampled_from((1.0, 1.0, 1.0, 1.0000001, 2.0)), min_size=12, max_size=12),
    clusters=st.lists(st.integers(0, 1), min_size=6, max_size=6),
    by_cluster=st.booleans(),
)
def test_accepted_weights_meet_no_others_in_any_epoch(
    pinned: Path, weights: list[float], clusters: list[int], by_cluster: bool
) -> None:
    """What a collator would refuse on one rank in mid-epoch, the plan refuses on all."""
    shards = ShardSet(pinned)
    cluster = np.repeat(clusters, 2)  # by micro-batch, as the objective needs it
    made = np.where(cluster == 1, 3.0, 1.0) if by_cluster else np.array(weights)
    shards._columns[0, "cluster"] = cluster.astype(np.int32)
    shards._columns[0, "weight"] = made.astype(np.float32)
    uniform = all(np.ptp(made[cluster == k]) < 1e-3 for k in set(clusters))
    if not uniform:
        with pytest.raises(ShardError, match="rows of one weight in a micro-batch"):
            Plan(shards, objective="rank")
        return
    plan = Plan(shards, objective="rank")
    column = shards.column("weight").ravel().astype(float)
    for epoch in range(4):
        for batch in plan.batches(epoch, 0):
            assert column[batch] == pytest.approx(column[batch[0]], rel=1e-6)


def test_ranks_steps_and_epochs_out_of_range(four: ShardSet) -> None:
    plan = Plan(four)
    with pytest.raises(ShardError, match=r"rank=4 must lie in \[0, 4\)"):
        plan.batches(0, 4)
    with pytest.raises(ShardError, match=r"step=5 must lie in \[0, 4\]"):
        plan.batches(0, 0, 5)
    with pytest.raises(ShardError, match="epoch=-1 must be >= 0"):
        plan.batches(-1, 0)
    with pytest.raises(ShardError, match=r"step=4 must lie in \[0, 3\]"):
        plan.rows_in_step(4)


def test_a_rank_reads_its_own_shards_alone(sets: list[ShardSet]) -> None:
    shards = ShardSet(sets[1].folder)
    list(Plan(shards, 2).batches(1, 1))
    assert {worker for worker, _ in shards._columns} == {1, 3}


def test_a_plan_says_what_ranks_agreed_on(four: ShardSet) -> None:
    # Four shards of four rows; two ranks take two rows of each step.
    assert Plan(four, 2).agreed == "2 ranks agree with the plan: 4 steps of 4 rows an epoch"
    # Three ranks take 2, 1 and 1 of the 4 rows of a step, in places for 6.
    padded = Plan(four, 3, 2)
    assert padded.padding_share == pytest.approx(1 / 3)
    assert padded.agreed == (
        "3 ranks agree with the plan: 4 steps of 4 rows an epoch, 33% of the places padding"
    )
    # 32 ranks would merge 8 steps; there are 4, so the 16 rows meet in one step.
    assert Plan(four, 32).agreed == (
        "32 ranks agree with the plan: 1 steps of 16 rows an epoch, 50% of the places padding"
    )
