"""The vectorised checks say what plain loops say."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from evenshard import checks
from evenshard.checks import ShardColumns, check_coverage, check_imbalance, row_faults
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
    texts = [problem.message for problem in check_coverage(shards, manifest)]
    assert len(texts) == bool(uneven)
    if uneven:
        assert f"; {uneven} of {12 // window} windows" in texts[0]

    steps = range(0, 12 * batch, batch)
    tokens = [[int(s.num_tokens[at : at + batch].sum()) for s in shards] for at in steps]
    imbalance = sum(map(max, tokens)) / sum(sum(step) / size for step in tokens)
    for stated, expected in ((imbalance, 0), (imbalance + 0.002, 1), (float("nan"), 1)):
        manifest["schedule"]["imbalance"] = stated
        assert len(list(check_imbalance(shards, manifest))) == expected


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
