"""A selector called as the stage calls it."""

from typing import Any

import numpy as np

from stages.allocate.candidates import Budget, Candidates


def kept_rows(selector: Any, rows: Candidates, count: int, *, seed: int = 0) -> list[int]:
    return select(selector, rows, count, seed=seed)[0]


def select(
    selector: Any, rows: Candidates, count: int, *, seed: int = 0
) -> tuple[list[int], np.ndarray]:
    kept, weights = selector.select(rows, Budget(count), np.random.default_rng(seed))
    return kept.tolist(), weights
