"""The sets of the trainers' benchmark, made by the pipeline as it is now."""

from pathlib import Path

import numpy as np

from benchmarks.trainers_sets import EFFECTIVE, make_sets, mean_lengths
from evenshard.shardset import ShardSet


def test_the_sets_are_what_the_benchmark_says_of_them(tmp_path: Path) -> None:
    _, sets = make_sets(tmp_path)
    by_label = {one.label: ShardSet(one.folder) for one in sets}
    assert list(by_label) == ["K = W", "K = 3", "lognormal"]
    # As many rows of each kind as the smallest has: of 60 and 36, and of 60, 36 and 24.
    pinned = by_label["K = W"]
    assert np.bincount(pinned.cluster.ravel()).tolist() == [36, 36]
    assert np.bincount(by_label["K = 3"].cluster.ravel()).tolist() == [24, 24, 24]
    for one in sets:
        lengths = mean_lengths(one.folder)
        assert lengths[-1] > 3 * lengths[0], "the lengths of clusters differ strongly"
    weights = by_label["lognormal"].column("weight").ravel().astype(np.float64)
    assert abs(weights.sum() ** 2 / (weights.size * (weights**2).sum()) - EFFECTIVE) < 1e-3
