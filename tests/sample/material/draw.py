"""Seeded draws, written out so that they give the same values on every Python version."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    def __init__(self, seed: int) -> None:
        # random() is the one method whose sequence Python promises to keep.
        self._random = random.Random(seed).random

    def between(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return low + int(self._random() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        return items[self.between(0, len(items) - 1)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        keys = [self._random() for _ in items]
        return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]
