"""The weighted loss of a micro-batch, for bare loops and for the mixin.

A bare loop on W ranks, with A micro-batches from a WeightCollator in `window`:

    denominator = step_denominator(window)
    for batch in window:
        logits = model(input_ids=batch["input_ids"], ...).logits
        weighted_loss(
            logits, batch["labels"], batch["loss_weight"], denominator=denominator, world_size=W
        ).backward()

Since DDP and FSDP average gradients, W * sum / D on each rank is sum / D over all of them. Loops
that divide a loss by A again (Accelerate, DeepSpeed's engine) multiply it by A.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from evenshard.shards import IGNORED_LABEL, ShardError

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "the weighted loss needs torch, which is not installed; get it with `pip install torch`"
    ) from error

_CHUNK_NUMBERS = 2**25  # logits that are float32 at one time


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Give the negative log-likelihood of every label under the logits before it.

    Only trained positions are computed, in chunks in float32 (float64 for float64 logits), so
    that beside the logits and their gradient nothing of their size is held. `torch.compile` breaks
    its graph here, since the labels' values say how many positions there are: fullgraph=True fails.

    Parameters
    ----------
    logits : Tensor of shape (rows, width, vocabulary)
    labels : Tensor of shape (rows, width), int64
        -100 where nothing is trained.

    Returns
    -------
    Tensor of shape (rows, width)
        In nats, aligned to the labels: 0 where they are ignored and in the first column.
    """
    if logits.shape[:-1] != labels.shape or labels.dim() != 2:
        raise ShardError(
            f"logits of shape {tuple(logits.shape)} must have one row of scores for each of the "
            f"labels of shape {tuple(labels.shape)}; give the model no logits_to_keep and no "
            f"virtual tokens"
        )
    losses: Tensor = _TokenLosses.apply(logits, labels)  # type: ignore[no-untyped-call]
    return losses


def weighted_loss(
    logits: Tensor,
    labels: Tensor,
    loss_weight: Tensor,
    *,
    denominator: Tensor | float,
    world_size: int,
) -> Tensor:
    """Give what a rank calls backward on: W * sum(loss_weight * nll) / D.

    Parameters
    ----------
    logits : Tensor of shape (rows, width, vocabulary)
    labels, loss_weight : Tensor of shape (rows, width)
        As a WeightCollator gives them.
    denominator : Tensor or float
        D, from `step_denominator`; the same on all ranks and for all micro-batches of a step.
    world_size : int
        W, ranks whose gradients are averaged.
    """
    total = (loss_weight.to(logits.device) * token_losses(logits, labels)).sum()
    return total * world_size / denominator


def step_denominator(
    micro_batches: Sequence[Mapping[str, Any]], group: dist.ProcessGroup | None = None
) -> Tensor:
    """Sum `loss_denominator` over the micro-batches of a step and over all ranks.

    Parameters
    ----------
    micro_batches : sequence of dict
        All that this rank contributes to one optimizer step.
    group : ProcessGroup, optional
        The data-parallel ranks; all by default, and this process alone without torch.distributed.

    Returns
    -------
    Tensor
        D, a float32 scalar on the device of the batches.
    """
    total = torch.stack([batch["loss_denominator"] for batch in micro_batches]).sum()
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(total, group=group)
    return total


def balance_loss(model: Any, outputs: Any) -> Tensor | None:
    """Give the load-balancing loss of a mixture of experts, which no row's weight touches.

    None for a model that has none.
    """
    balance: Tensor | None = getattr(outputs, "aux_loss", None)
    if balance is None:
        return None
    share: float = getattr(model.config.get_text_config(), "router_aux_loss_coef", 0.0)
    return share * balance


class _TokenLosses(torch.autograd.Function):
    """Cross entropy at trained positions that keeps the logits as they are for backward."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        labels = labels.to(logits.device)
        rows, columns = (labels[:, 1:] != IGNORED_LABEL).nonzero(as_tuple=True)
        # position: (trained token,), of the logits; its label is one further
        position = rows * labels.shape[1] + columns
        target = labels.flatten()[position + 1]
        flat = logits.reshape(-1, logits.shape[-1])
        precise = torch.promote_types(logits.dtype, torch.float32)
        log_sums = torch.empty(position.shape, dtype=precise, device=logits.device)
        losses = torch.zeros(labels.numel(), dtype=precise, device=logits.device)
        for chunk in _chunks(position.numel(), logits.shape[-1]):
            scores = flat[position[chunk]].to(precise)
            log_sums[chunk] = scores.logsumexp(-1)
            right = scores.gather(-1, target[chunk, None])[:, 0]
            losses[position[chunk] + 1] = log_sums[chunk] - right
        ctx.save_for_backward(logits, position, target, log_sums)
        return losses.reshape(labels.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, position, target, log_sums = ctx.saved_tensors
        flat = logits.reshape(-1, logits.shape[-1])
        result = torch.zeros_like(flat)
        by_loss = gradient.flatten()[position + 1]
        for chunk in _chunks(position.numel(), logits.shape[-1]):
            scores = flat[position[chunk]].to(log_sums.dtype)
            slope = (scores - log_sums[chunk, None]).exp()
            slope.scatter_add_(-1, target[chunk, None], torch.full_like(slope[:, :1], -1.0))
            result[position[chunk]] = (slope * by_loss[chunk, None]).to(result.dtype)
        return result.reshape(logits.shape), None


def _chunks(num_positions: int, vocabulary: int) -> list[slice]:
    size = max(1, _CHUNK_NUMBERS // vocabulary)
    return [slice(start, start + size) for start in range(0, num_positions, size)]
