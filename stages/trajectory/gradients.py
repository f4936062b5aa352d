"""Where each row pulls the adapters at a checkpoint, folded to a few numbers (arXiv 2402.04333).

A row's gradient is taken from what goes into each adapted layer and what comes back out of it,
for a whole batch in one backward pass. One layer's matrix at a time is turned into Adam's
direction and folded, so neither all gradients of a batch nor a matrix of random signs is held.

Legend of shapes: R rows, T positions, I inputs and O outputs of a layer, K rank, P numbers of one
matrix of an adapter, D dimensions that are kept, C checkpoints.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stages.embed.model import TargetModel
from stages.trajectory.adapters import SCALE, LowRank, matrices_of
from stages.trajectory.stage import TrajectoryConfig
from stages.trajectory.train import BETAS, EPSILON, Rows, checkpoint_steps, row_losses


@dataclass(frozen=True)
class Fold:
    """A random map from P numbers to D: each gets a sign, and shares a bucket with few others.

    Inner products of folded vectors are right on average over the seeds. The variance is at most
    2 norm(x)^2 norm(y)^2 / D, as that of a matrix of random signs. What the buckets hold comes
    from a permutation, so that they are filled evenly and sums run in a fixed order.

    Attributes
    ----------
    signs : Tensor of shape (P,), float32
        +1 or -1.
    places : Tensor of shape (P rounded up to a multiple of D,), int64
        Which number stands where; those at equal places modulo D share a bucket. From P on they
        are empty.
    """

    signs: Tensor
    places: Tensor

    def __call__(self, numbers_RP: Tensor, dim: int) -> Tensor:
        """Fold rows of shape (R, P) to (R, D)."""
        empty = self.places.numel() - self.signs.numel()
        padded = nn.functional.pad(numbers_RP * self.signs, (0, empty))
        return padded[:, self.places].reshape(padded.shape[0], -1, dim).sum(dim=1)


def make_fold(size: int, dim: int, seed: int | list[int]) -> Fold:
    """Draw a map from `size` numbers to `dim`."""
    rng = np.random.default_rng(seed)
    signs = rng.choice(np.array([-1.0, 1.0], np.float32), size)
    places = rng.permutation(-(-size // dim) * dim)
    return Fold(torch.from_numpy(signs), torch.from_numpy(places))


def make_folds(adapters: Mapping[str, LowRank], dim: int, seed: int) -> dict[str, Fold]:
    """Draw a map for each matrix of the adapters, the same on every device."""
    found = {}
    for number, (name, matrix) in enumerate(matrices_of(adapters)):
        drawn = make_fold(matrix.numel(), dim, [seed, number])
        found[name] = Fold(drawn.signs.to(matrix.device), drawn.places.to(matrix.device))
    return found


@dataclass(frozen=True)
class Moments:
    """Adam's running means after some steps, by the names of the matrices.

    Attributes
    ----------
    first, second : mapping of str to Tensor
        Of the gradient and of its square, not corrected for their start at 0.
    step : int
        How many steps were taken.
    """

    first: Mapping[str, Tensor]
    second: Mapping[str, Tensor]
    step: int

    def direction(self, name: str, gradients_RP: Tensor) -> Tensor:
        """Say where Adam's next step would go, for each row as if it were the whole batch."""
        device = gradients_RP.device
        first, second = (m[name].reshape(-1).to(device) for m in (self.first, self.second))
        mean = BETAS[0] * first + (1 - BETAS[0]) * gradients_RP
        square = BETAS[1] * second + (1 - BETAS[1]) * gradients_RP.square()
        whole = [1 - beta ** (self.step + 1) for beta in BETAS]
        return (mean / whole[0]) / ((square / whole[1]).sqrt() + EPSILON)


@dataclass(frozen=True)
class Directions:
    """What turns the gradients of rows into what is kept of them.

    Attributes
    ----------
    dim : int
        Numbers of a row at a checkpoint.
    folds : mapping of str to Fold
        By the matrices of the adapters.
    moments : tuple of Moments or None
        Of each checkpoint; None for plain gradients.
    """

    dim: int
    folds: Mapping[str, Fold]
    moments: tuple[Moments | None, ...]


def directions_of(
    config: TrajectoryConfig,
    adapters: Mapping[str, LowRank],
    moments: Sequence[Mapping[str, Tensor]] | None,
) -> Directions | None:
    """Make what gradients need, with `WarmUp.moments` or without; None if none are asked for."""
    if not config.gradient_dim:
        return None
    steps = checkpoint_steps(config.steps, config.checkpoints)
    names = [name for name, _ in matrices_of(adapters)]
    found: list[Moments | None] = [None] * len(steps)
    if moments is not None:
        found = [
            Moments(
                {name: state[f"{name}.first"] for name in names},
                {name: state[f"{name}.second"] for name in names},
                step,
            )
            for step, state in zip(steps, moments, strict=True)
        ]
    folds = make_folds(adapters, config.gradient_dim, config.seed)
    return Directions(config.gradient_dim, folds, tuple(found))


def row_gradients(
    model: TargetModel, adapters: Mapping[str, LowRank], rows: Rows, chunk: int
) -> tuple[Tensor, Iterator[tuple[str, Tensor]]]:
    """Give the loss of each row of a batch, and its gradient in the adapters, matrix by matrix.

    Rows are padded on the right and attention is causal, so no row has a part in another's loss
    and padding has none in any. A layer that the loss does not depend on is passed over.

    Parameters
    ----------
    model, adapters
        The model with its adapters in place.
    rows : Rows
        One batch.
    chunk : int
        See `row_losses`.

    Returns
    -------
    losses : Tensor of shape (R,), float32
    gradients : iterator of (str, Tensor of shape (R, P), float32)
        By the name of the matrix, flattened as it lies in memory.
    """
    met: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str, inputs: tuple[Any, ...], output: Tensor) -> None:
        assert name not in met, f"{name} is used twice in one pass; its gradients would not add up"
        met[name] = (inputs[0].detach(), output)

    hooks = [
        adapter.register_forward_hook(
            lambda _, inputs, output, name=name: note(name, inputs, output)
        )
        for name, adapter in adapters.items()
    ]
    try:
        losses = row_losses(model, rows, chunk)
    finally:
        for hook in hooks:
            hook.remove()
    outputs = [output for _, output in met.values()]
    pulls = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)

    def matrices() -> Iterator[tuple[str, Tensor]]:
        for (name, (x, _)), pull in zip(met.items(), pulls, strict=True):
            if pull is None:
                continue
            adapter, num_rows = adapters[name], len(rows.labels)
            x_RTI = x.reshape(num_rows, -1, x.shape[-1]).float()
            pull_RTO = SCALE * pull.reshape(num_rows, -1, pull.shape[-1]).float()
            low_RTK = x_RTI @ adapter.down.T
            yield f"{name}.down", ((pull_RTO @ adapter.up).mT @ x_RTI).flatten(1)
            yield f"{name}.up", (pull_RTO.mT @ low_RTK).flatten(1)

    return losses.detach(), matrices()


def folded_gradients(
    model: TargetModel,
    adapters: Mapping[str, LowRank],
    rows: Rows,
    chunk: int,
    folds: Mapping[str, Fold],
    dim: int,
    moments: Moments | None,
) -> tuple[Tensor, Tensor]:
    """Give the loss of each row, and its folded gradient or, with moments, Adam's direction.

    A row whose gradient is 0 everywhere gets zeros also with moments: it pulls nowhere by itself.

    Returns
    -------
    losses : Tensor of shape (R,), float32
    folded : Tensor of shape (R, D), float32
    """
    losses, gradients = row_gradients(model, adapters, rows, chunk)
    folded_RD = torch.zeros(len(rows.labels), dim, device=losses.device)
    pulls_R = torch.zeros(len(rows.labels), dtype=torch.bool, device=losses.device)
    with torch.no_grad():
        for name, gradients_RP in gradients:
            pulls_R |= (gradients_RP != 0).any(dim=1).to(losses.device)
            wanted = moments.direction(name, gradients_RP) if moments else gradients_RP
            folded_RD += folds[name](wanted, dim).to(losses.device)
    return losses, torch.where(pulls_R[:, None], folded_RD, 0.0)


def joined(folded_RCD: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """Lay the checkpoints side by side so that a product of two rows is the mean of their cosines.

    Each checkpoint's part has length 1 / sqrt(C): the learning rate of the warm-up is constant, so
    all count alike. A part that is 0 stays 0.

    Returns
    -------
    ndarray of shape (R, C * D), float16
    """
    wide = folded_RCD.astype(np.float64)
    norms = np.sqrt(np.einsum("rcd,rcd->rc", wide, wide))[:, :, None]
    wide /= np.where(norms > 0.0, norms, 1.0) * np.sqrt(wide.shape[1])
    return wide.reshape(wide.shape[0], -1).astype(np.float16)
