"""The warm-up: AdamW on the adapters over a fixed sequence of batches; and the loss of rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from evenshard.shards import IGNORED_LABEL
from stages.embed.batching import pad_rows, token_batches
from stages.embed.model import TargetModel
from stages.trajectory.adapters import LowRank, matrices_of, state_of

# Of AdamW; those of torch by default.
BETAS, EPSILON = (0.9, 0.999), 1e-8
IntRow = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Token rows in memory: input ids and labels of each, of equal length."""

    input_ids: list[IntRow]
    labels: list[IntRow]

    def take(self, places: IntArray) -> "Rows":
        """Pick rows by their places."""
        return Rows([self.input_ids[i] for i in places], [self.labels[i] for i in places])

    @property
    def lengths(self) -> IntArray:
        """Tokens of each row."""
        return np.array([ids.size for ids in self.input_ids], np.int64)


def row_losses(model: TargetModel, rows: Rows, chunk: int) -> Tensor:
    """Give the mean loss of each row over its trained tokens, in nats, with its gradient.

    Logits are taken `chunk` positions at a time, and taken again for the gradient, so that no
    more of them are in memory.

    Parameters
    ----------
    model : TargetModel
        Trunk and head.
    rows : Rows
        One batch; every row trains at least one token beyond its first.
    chunk : int
        Positions that meet the head at once.

    Returns
    -------
    Tensor of shape (num_rows,), float32
    """
    targets = [labels[1:] for labels in rows.labels]
    places = [np.flatnonzero(target != IGNORED_LABEL) for target in targets]
    counts = [place.size for place in places]
    input_ids = torch.from_numpy(pad_rows(rows.input_ids, 0)).to(model.device)
    hidden_RTH = model.trunk(input_ids)
    row_index = torch.from_numpy(np.repeat(np.arange(len(places)), counts)).to(hidden_RTH.device)
    position = torch.from_numpy(np.concatenate(places)).to(hidden_RTH.device)
    hidden_PH = hidden_RTH[row_index, position].to(model.head_device)
    picked = [target[place] for target, place in zip(targets, places, strict=True)]
    targets_P = torch.from_numpy(np.concatenate(picked).astype(np.int64)).to(model.head_device)

    def chunk_nll(hidden_CH: Tensor, targets_C: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(
            model.head(hidden_CH).float(), targets_C, reduction="none"
        )

    pieces = zip(torch.split(hidden_PH, chunk), torch.split(targets_P, chunk), strict=True)
    if torch.is_grad_enabled():
        found = [checkpoint(chunk_nll, h, t, use_reentrant=False) for h, t in pieces]
    else:
        found = [chunk_nll(h, t) for h, t in pieces]
    return torch.stack([nll.mean() for nll in torch.split(torch.cat(found), counts)])


def batches_of(
    num_rows: int, batch_rows: int, steps: int, rng: np.random.Generator
) -> Iterator[IntArray]:
    """Deal rows into batches, epoch after epoch in a new order, for so many steps."""
    waiting = np.empty(0, np.int64)
    for _ in range(steps):
        while waiting.size < batch_rows:
            waiting = np.concatenate([waiting, rng.permutation(num_rows)])
        yield waiting[:batch_rows]
        waiting = waiting[batch_rows:]


def checkpoint_steps(steps: int, checkpoints: int) -> list[int]:
    """Say after which steps a checkpoint is taken: evenly, the last after the last step."""
    return [steps * (index + 1) // checkpoints for index in range(checkpoints)]


@dataclass(frozen=True)
class WarmUp:
    """What the warm-up left.

    Attributes
    ----------
    states : list of dict of str to Tensor
        Numbers of the adapters at each checkpoint.
    moments : list of dict of str to Tensor
        Adam's running means at each, by `<layer>.down.first`, `.second` and so on; empty where
        they were not asked for.
    losses : list of float
        Mean loss of a step's rows, before the step, averaged from one checkpoint to the next.
    tokens : list of int
        Tokens that went forth and back, up to each checkpoint.
    """

    states: list[dict[str, Tensor]] = field(default_factory=list)
    moments: list[dict[str, Tensor]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def warm_up(
    model: TargetModel,
    adapters: Mapping[str, LowRank],
    rows: Rows,
    batches: Sequence[IntArray],
    *,
    checkpoints: int,
    learning_rate: float,
    tokens_per_batch: int,
    chunk: int,
    keep_moments: bool = False,
    tell: Callable[[int, float], None],
) -> WarmUp:
    """Train the adapters and keep their numbers at each checkpoint.

    Parameters
    ----------
    model, adapters
        The model with its adapters in place.
    rows : Rows
        What is trained on.
    batches : sequence of ndarray of int64
        Rows of each step. Each row counts by its mean loss, all alike.
    checkpoints : int
        How many.
    learning_rate : float
        Of AdamW without weight decay, constant.
    tokens_per_batch : int
        Bound of rows times longest row of one forward pass; gradients add up over a step.
    chunk : int
        See `row_losses`.
    keep_moments : bool
        Whether Adam's running means are kept at each checkpoint, too.
    tell : callable
        Told the step and its mean loss at every checkpoint.
    """
    learnt = [matrix for _, matrix in matrices_of(adapters)]
    # Not the fused or foreach kinds: one plain loop gives the same bytes on every build.
    optimizer = torch.optim.AdamW(
        learnt, lr=learning_rate, betas=BETAS, eps=EPSILON, weight_decay=0.0, foreach=False
    )
    stops = checkpoint_steps(len(batches), checkpoints)
    found, since, tokens = WarmUp(), [], 0
    for step, places in enumerate(batches, 1):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        batch = rows.take(places)
        for part in token_batches(batch.lengths, tokens_per_batch):
            piece = batch.take(part)
            loss = row_losses(model, piece, chunk).sum() / places.size
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            tokens += int(piece.lengths.sum())
        optimizer.step()
        since.append(total)
        if step in stops:
            found.states.append(state_of(adapters))
            if keep_moments:
                found.moments.append(moments_of(adapters, optimizer))
            found.losses.append(float(np.mean(since)))
            found.tokens.append(tokens)
            tell(step, found.losses[-1])
            since = []
    return found


def moments_of(
    adapters: Mapping[str, LowRank], optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Copy Adam's running means to the CPU; 0 for what has had no gradient."""
    found = {}
    for name, matrix in matrices_of(adapters):
        kept = optimizer.state.get(matrix, {})
        for order, word in (("first", "exp_avg"), ("second", "exp_avg_sq")):
            mean = kept.get(word, torch.zeros_like(matrix))
            found[f"{name}.{order}"] = mean.detach().cpu().clone()
    return found
