"""What one process computes row by row in float64: the gradient that a step must have."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch

from benchmarks.trainers_record import Rows
from evenshard.plan import Plan
from evenshard.shardset import ShardSet
from tests.evenshard.tiny_training import (
    Step,
    explicit_gradient,
    flat_gradient,
    load_model,
    relative_error,
    row_loss,
    steps_of,
)

WORLD_SIZE = 2


class Reference:
    """A set's rows in the plan's order, and the gradients of its steps at constant parameters."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.plan = Plan(ShardSet(folder), WORLD_SIZE, objective="sample")
        self._model = load_model(model, torch.float64)
        self._gradients: dict[tuple[int, str], list[torch.Tensor]] = {}
        self._steps: dict[int, list[Step]] = {}

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        return self.plan.num_steps

    def rows(self, epochs: Sequence[int]) -> list[list[Rows]]:
        """Give the tokens of the rows that each rank must train, by rank and step."""
        return [
            [
                [tuple(row["input_ids"].tolist()) for batch in step[rank] for row in batch]
                for epoch in epochs
                for step in self._steps_of(epoch)
            ]
            for rank in range(WORLD_SIZE)
        ]

    def gradients(self, epoch: int, objective: str) -> list[torch.Tensor]:
        """Give the gradient of each step of an epoch."""
        if (epoch, objective) not in self._gradients:
            self._gradients[epoch, objective] = [
                explicit_gradient(self._model, step, objective)[0] for step in self._steps_of(epoch)
            ]
        return self._gradients[epoch, objective]

    def worst_error(
        self, found: Sequence[torch.Tensor], objective: str, epochs: Sequence[int]
    ) -> float:
        """Give the largest relative error of the steps that were taken; infinity if of none."""
        expected = [one for epoch in epochs for one in self.gradients(epoch, objective)]
        return max(map(relative_error, found, expected), default=float("inf"))

    def epoch_error(self, found: Sequence[torch.Tensor]) -> float:
        """Compare the sum of M times each step's gradient with that of weight times row gradient.

        The first epoch's steps at constant parameters, under the objective "sample".
        """
        total = self.plan.rows_per_step * torch.stack(list(found[: self.num_steps])).sum(0)
        return relative_error(total, self._epoch_gradient)

    @cached_property
    def _epoch_gradient(self) -> torch.Tensor:
        self._model.zero_grad()
        rows = (r for step in self._steps_of(0) for rank in step for batch in rank for r in batch)
        for row in rows:
            loss, num_targets = row_loss(self._model, row)
            (float(row["weight"]) * loss / num_targets).backward()
        return flat_gradient(self._model)

    def _steps_of(self, epoch: int) -> list[Step]:
        if epoch not in self._steps:
            self._steps[epoch] = steps_of(self.plan, epoch)
        return self._steps[epoch]
