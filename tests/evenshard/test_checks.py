"""The vectorised checks say what plain loops say."""

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from evenshard import checks
from evenshard.checks import ShardColumns, check_coverage, check_imbalance, row_faults
from stages.allocate.budget import StepShape
from stages.allocate.plan_figures import max_deviation
from stages.allocate.schedule import build_schedule
from tests.evenshard import folders


def random_shards(rng: np.random.Generator, size: int, rows: int, num: int) -> list[ShardColumns]:
    return [
        ShardColumns(
            f"file {rank}",
            np.arange(rows),
            rng.integers(1, 9, rows).astype(np.int32),
            rng.integers(0, num, rows).astype(np.int32),
            np.ones(rows, np.float32),
        )
        for rank in range(size)
    ]


def uneven_windows(shards: list[ShardColumns], width: int) -> int:
    """Count the full windows of `width` positions in which a cluster has too few or too many."""
    kept = Counter(int(k) for shard in shards for k in shard.cluster)
    total, rows = sum(kept.values()), len(shards[0].cluster)
    uneven = 0
    for start in range(0, rows - width + 1, width):
        found = Counter(int(k) for s in shards for k in s.cluster[start : start + width])
        shares = {k: kept[k] * width * len(shards) / total for k in kept}
        uneven += any(not np.floor(s) <= found[k] <= np.ceil(s) for k, s in shares.items())
    return uneven


def distances(shards: list[ShardColumns], rows_per_step: int) -> list[Fraction]:
    """Count after each step, row by row, how far the worst cluster is from its line."""
    kept = Counter(int(k) for shard in shards for k in shard.cluster)
    num_steps = len(shards[0].cluster) // rows_per_step
    found: Counter[int] = Counter()
    worst = []
    for step in range(num_steps):
        here = slice(step * rows_per_step, (step + 1) * rows_per_step)
        found.update(int(k) for shard in shards for k in shard.cluster[here])
        lines = {k: Fraction(kept[k] * (step + 1), num_steps) for k in kept}
        worst.append(max(abs(found[k] - line) for k, line in lines.items()))
    return worst


def stated(batch: int, window: int, deviation: float) -> Any:
    schedule = {"kind": "dealt", "window_steps": window, "max_deviation": deviation}
    return {"micro_batch": batch, "accumulation": 1, "schedule": schedule}


def texts_of(shards: list[ShardColumns], manifest: Any, check: str, words: str = "") -> list[str]:
    problems = [p for p in check_coverage(shards, manifest) if p.check == check]
    return [problem.message for problem in problems if words in problem.message]


def scheduled(seed: int, *, pinned: bool = False) -> tuple[list[ShardColumns], Any]:
    """Lay drawn rows out as the pipeline does, and state what it states."""
    rng = np.random.default_rng(seed)
    workers, batch, groups = (int(n) for n in rng.integers(1, [4, 4, 7]))
    num_clusters = groups * workers
    num_steps = int(rng.integers(1, 30))
    each = rng.multinomial(num_steps * batch, rng.dirichlet(np.ones(groups)), workers)
    quotas = each.T.ravel() if pinned else rng.permutation(each.ravel())
    clusters = rng.permutation(np.repeat(np.arange(num_clusters, dtype=np.int32), quotas))
    schedule = build_schedule(
        clusters,
        rng.integers(1, 90, clusters.size),
        num_clusters,
        StepShape(workers, 1, batch),
        kind="pinned" if pinned else "dealt",
        objective="sample",
        rng=rng,
    )
    deviation = max_deviation(schedule.plan, clusters, num_clusters)
    return shards_of(clusters[schedule.plan]), stated(batch, schedule.window_steps, deviation)


def shards_of(steps: np.ndarray) -> list[ShardColumns]:
    """Turn clusters of shape (step, worker, row) into shards."""
    columns = steps.transpose(1, 0, 2).reshape(steps.shape[1], -1)
    ones = np.ones(columns.shape[1], np.int32)
    return [
        ShardColumns(f"file {rank}", ones, ones, column, ones.astype(np.float32))
        for rank, column in enumerate(columns)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_coverage_and_imbalance_equal_plain_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(checks, "COUNTS_PER_BLOCK", 5)
    rng = np.random.default_rng(seed)
    size, batch, window, num = (int(n) for n in rng.integers(1, 4, 4))
    shards = random_shards(rng, size, rows=12 * batch, num=num)
    manifest = folders.write_set(tmp_path)
    manifest["micro_batch"], manifest["accumulation"] = batch, 1
    manifest["schedule"]["window_steps"] = window
    uneven = uneven_windows(shards, width=window * batch)
    texts = texts_of(shards, manifest, "coverage", "not covered evenly")
    assert len(texts) == bool(uneven)
    if uneven:
        assert f"; {uneven} of {12 // window} windows" in texts[0]
    worst = distances(shards, batch)
    off = sum(distance >= 1 for distance in worst[window - 1 :: window])
    texts = texts_of(shards, manifest, "coverage", "a row or more off")
    assert len(texts) == bool(off)
    if off:
        assert f"; {off} of {12 // window} windows" in texts[0]
    for deviation in (0.0, 0.002, float("nan")):
        manifest["schedule"]["max_deviation"] = float(max(worst)) + deviation
        assert len(texts_of(shards, manifest, "deviation")) == (deviation != 0.0)

    steps = range(0, 12 * batch, batch)
    tokens = [[int(s.num_tokens[at : at + batch].sum()) for s in shards] for at in steps]
    imbalance = sum(map(max, tokens)) / sum(sum(step) / size for step in tokens)
    for stated, expected in ((imbalance, 0), (imbalance + 0.002, 1), (float("nan"), 1)):
        manifest["schedule"]["imbalance"] = stated
        assert len(list(check_imbalance(shards, manifest))) == expected


@pytest.mark.parametrize("pinned", [False, True], ids=["dealt", "pinned"])
def test_whatever_the_pipeline_lays_out_keeps_the_promise(pinned: bool) -> None:
    windows = set()
    for seed in range(200):
        shards, manifest = scheduled(seed, pinned=pinned)
        assert list(check_coverage(shards, manifest)) == [], seed
        windows.add(manifest["schedule"]["window_steps"])
    assert {1, 2, 3} <= windows


def test_windows_in_another_order_are_told_just_where_a_running_count_breaks_the_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each window holds its share as before; only what was counted before it is another."""
    monkeypatch.setattr(checks, "COUNTS_PER_BLOCK", 7)
    seen = Counter[bool]()
    for seed in range(200):
        shards, manifest = scheduled(seed)
        batch, window = manifest["micro_batch"], manifest["schedule"]["window_steps"]
        steps = np.stack([shard.cluster.reshape(-1, batch) for shard in shards], axis=1)
        full = len(steps) // window * window
        order = np.random.default_rng(seed).permutation(np.arange(full).reshape(-1, window))
        steps[:full] = steps[order.ravel()]
        shards = shards_of(steps)
        worst = distances(shards, batch)
        manifest["schedule"]["max_deviation"] = float(max(worst))
        off = sum(distance >= 1 for distance in worst[window - 1 :: window])
        found = [str(problem) for problem in check_coverage(shards, manifest)]
        assert len(found) == bool(off), seed
        assert not off or f"; {off} of {full // window} windows end a row or more off" in found[0]
        seen[bool(off)] += 1
    assert min(seen[True], seen[False]) > 20


def test_a_running_count_that_drifts_inside_the_rule_of_steps_is_told() -> None:
    """Two clusters of 600: the first half of the steps holds 2 + 1, the second 1 + 2."""
    steps = np.array([[[0], [0], [1]]] * 200 + [[[0], [1], [1]]] * 200)
    found = list(check_coverage(shards_of(steps), stated(1, 1, 0.5)))
    assert [str(problem) for problem in found] == [
        "set: steps 0..1 hold 4 rows of cluster 0, must be less than a row from 3.00; 397 of 400 "
        "windows end a row or more off",
        "set: schedule.max_deviation is 100.0000 rows, the manifest says 0.5000",
    ]


def test_the_steps_after_the_last_full_window_are_looked_at() -> None:
    """Six steps of one row in windows of four: the rest may bend, but as much as is stated."""
    steps = np.array([0, 1, 0, 1, 0, 1]).reshape(-1, 1, 1)
    assert list(check_coverage(shards_of(steps), stated(1, 4, 0.5))) == []
    steps = np.array([0, 1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1]).reshape(-1, 1, 1)
    deviation = float(max(distances(shards_of(steps), 1)))
    assert list(check_coverage(shards_of(steps), stated(1, 8, deviation))) == []
    bent = np.concatenate([steps[:8], steps[:7:-1]])  # the last four steps the other way round
    assert deviation != float(max(distances(shards_of(bent), 1)))
    assert texts_of(shards_of(bent), stated(1, 8, deviation), "deviation")


@pytest.mark.parametrize("window", [-1, 0, 4])
def test_a_window_that_no_epoch_holds_is_told(window: int) -> None:
    """Over a window longer than the epoch nothing would be promised."""
    steps = np.zeros((3, 1, 1), np.int64)
    (text,) = texts_of(shards_of(steps), stated(1, window, 0.0), "coverage")
    assert text == f"schedule.window_steps={window} must be in 1..3, the steps of an epoch"


def test_row_faults_by_hand() -> None:
    rows = [
        # input_ids, labels, num_tokens, weight, multiplicity, the rule it breaks
        ([1, 2], [-100, 2], 2, 1.0, 1, None),
        ([], [], 0, 1.0, 1, "target"),
        ([7], [7], 1, 1.0, 1, "target"),
        ([1, 2, 3], [-100, 2, -100], 3, 1.0, 1, None),
        ([1, 2], [-100, 1], 2, 1.0, 1, "label"),
        ([1, -2], [-100, -2], 2, 1.0, 1, "token"),
        ([1, 2], [-100, 2], 3, 1.0, 1, "length"),
        ([1, 2], [-100, 2], 2, float("inf"), 1, "weight"),
        ([1, 2], [-100, 2], 2, -1.0, 1, "weight"),
        ([1, 2], [-100, 2], 2, 1.0, 0, "multiplicity"),
    ]
    names = ("input_ids", "labels", "num_tokens", "weight", "multiplicity")
    types = (pa.list_(pa.int32()), pa.list_(pa.int32()), pa.int32(), pa.float32(), pa.int32())
    columns = [
        pa.array(list(values), kind)
        for values, kind in zip(list(zip(*rows, strict=True))[:5], types, strict=True)
    ]
    for start in (0, 3):  # a slice's lists do not begin at offset 0
        batch = pa.record_batch(columns, names=names).slice(start)
        for rule, mask in row_faults(batch):
            assert mask.tolist() == [row[5] == rule for row in rows[start:]], rule
