"""One call in the first step: what a loop or trainer calls backward on weighs rows as planned.

    check_loss(loss, logits, batch, denominator=denominator, world_size=world_size)

A loss that drops the weights, normalises them away, or multiplies them in twice trains without a
word. The gradient of the loss with respect to the logits of one position is a number times
(softmax - one-hot); that number is what the loss gives the position's token, so that every token's
share can be read off and laid beside W * loss_weight / D.
"""

import math
from collections.abc import Mapping
from typing import Any

from evenshard.shards import IGNORED_LABEL, ShardError
from evenshard.startup import Report, find_faults, gather

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "checking a loss needs torch, which is not installed; get it with `pip install torch`"
    ) from error

TOLERANCE = 1e-3  # relative; half precision is looser
_HALF_TOLERANCE = 3e-2
_MOST_POSITIONS = 256  # that are looked at; each costs the vocabulary in float32
_CERTAIN = 1e-6  # |softmax - one-hot|^2 below which a position tells nothing
_LARGEST = 6  # the power of two to which the largest share is brought where logits are fp16


def check_loss(
    loss: Tensor,
    logits: Tensor,
    batch: Mapping[str, Any],
    *,
    denominator: Tensor | float,
    world_size: int,
    group: Any = None,
) -> None:
    """Check on every rank that the loss of a micro-batch is W * sum(loss_weight * nll) / D.

    Call it on all ranks, before `backward`, for the first micro-batch.

    Parameters
    ----------
    loss : Tensor
        A scalar made from `logits`: what is called backward on, after all that the loop or the
        trainer does to it. Where it is divided by the accumulation later (Accelerate, DeepSpeed's
        engine), give it divided.
    logits : Tensor of shape (rows, width, vocabulary)
        The model's, still in the graph of the loss.
    batch : mapping
        As a WeightCollator gives it, with `labels` and `loss_weight`.
    denominator : Tensor or float
        D, from `step_denominator`.
    world_size : int
        W, ranks whose gradients are averaged.
    group : ProcessGroup, optional
        The data-parallel ranks; by default all.

    Raises
    ------
    ShardError
        On all ranks alike, if a token of any of them has another share of the loss.
    """
    failure: Exception | None = None
    try:
        report = Report(None, _diagnose(loss, logits, batch, float(denominator), world_size))
    except Exception as error:  # the other ranks wait for this one's report
        failure = error
        report = Report(None, f"{type(error).__name__}: {error}")
    fault = find_faults(gather(report, group))
    if fault is not None:
        raise ShardError(f"the loss would not weigh rows as planned. {fault}") from failure


def _diagnose(
    loss: Tensor, logits: Tensor, batch: Mapping[str, Any], denominator: float, world_size: int
) -> str | None:
    missing = [name for name in ("labels", "loss_weight") if name not in batch]
    if missing:
        return f"the batch has no {' and no '.join(missing)}; make it by a WeightCollator"
    labels, weight = (batch[name].to(logits.device) for name in ("labels", "loss_weight"))
    is_target = labels != IGNORED_LABEL
    is_target[:, :1] = False
    rows, columns = is_target.nonzero(as_tuple=True)
    if not rows.numel():
        return None  # padding
    chosen = torch.linspace(0, rows.numel() - 1, min(rows.numel(), _MOST_POSITIONS)).long()
    rows, columns = rows[chosen.to(rows.device)], columns[chosen.to(rows.device)]
    # Of fp16 logits W * loss_weight / D is soon under 6e-5, where fp16 loses its digits.
    power = 0
    if logits.dtype == torch.float16:
        power = _LARGEST - math.frexp(float(weight.max()) * world_size / denominator)[1]
    found, tells = _shares(_slope(loss, logits, power), logits, labels, rows, columns)
    rows, columns, found = rows[tells], columns[tells], found[tells]
    if not found.numel():
        return None
    tolerance = TOLERANCE if logits.dtype in (torch.float32, torch.float64) else _HALF_TOLERANCE
    expected = weight[rows, columns].double() * world_size / denominator
    if _are_like(found, expected, tolerance):
        return None
    return _explain(found, expected, weight.double(), is_target, (rows, columns), tolerance)


def _slope(loss: Tensor, logits: Tensor, power: int) -> tuple[Tensor, float]:
    """Give the gradient of the loss times a power of two, and that factor, 1 if it overflows."""
    power = min(power, 15) if loss.dtype == torch.float16 else power
    for factor in (2.0**power, 1.0):
        seed = torch.full_like(loss, factor)
        [gradient] = torch.autograd.grad(loss, logits, seed, retain_graph=True, allow_unused=True)
        gradient = torch.zeros_like(logits) if gradient is None else gradient
        if power == 0 or gradient.isfinite().all():
            break
    return gradient, factor


def _shares(
    scaled: tuple[Tensor, float], logits: Tensor, labels: Tensor, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Give what the loss gives each token, and whether its position tells; (positions,) both."""
    gradient, factor = scaled
    slope = gradient[rows, columns - 1].float() / factor  # (positions, vocabulary)
    error = logits.detach()[rows, columns - 1].float().softmax(-1)
    error.scatter_add_(-1, labels[rows, columns, None], torch.full_like(error[:, :1], -1.0))
    size = (error * error).sum(-1)
    return ((slope * error).sum(-1) / size).double(), size > _CERTAIN


def _are_like(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool(((found - expected).abs() <= tolerance * expected.abs()).all())


def _explain(
    found: Tensor,
    expected: Tensor,
    weight: Tensor,
    is_target: Tensor,
    place: tuple[Tensor, Tensor],
    tolerance: float,
) -> str:
    """Name the trap by what the tokens' shares are in proportion to."""

    def is_like(shares: Tensor) -> bool:
        return _are_like(found, shares[place] * (found.sum() / shares[place].sum()), tolerance)

    by_row = weight.sum(1, keepdim=True), weight.amax(1, keepdim=True)  # of "sample", of "token"
    tokens = is_target.sum(1, keepdim=True).clamp(min=1)
    remedy = "use weighted_loss with step_denominator, or the WeightedShards mixin"
    ratio = float(found.sum() / expected.sum())
    if not found.any():
        return f"no token has a share: the loss is not made from its logits; {remedy}"
    if is_like(weight):
        return (
            f"every token counts {ratio:.6g} times what it must: the loss is divided by another "
            f"number than D, as by the micro-batch's own sum of weights (a weight that is constant "
            f"there cancels), or once more by the accumulation (Accelerate and DeepSpeed do: "
            f"multiply by it), or not multiplied by world_size; {remedy}"
        )
    if is_like(is_target.double()) or is_like(is_target / tokens):
        return f"the weights have no effect, all tokens or rows count the same; {remedy}"
    if any(is_like(is_target * size) for size in by_row):
        return (
            f"each row's mean over the batch's tokens is multiplied by its weight, as `loss * "
            f"weight` does, so that long rows count more than planned; leave the stock loss "
            f"alone and {remedy}"
        )
    if any(is_like(weight * size) for size in by_row):
        return (
            "the weight counts twice: loss_weight holds it already; multiply by nothing else, "
            f"and {remedy}"
        )
    worst = int(((found - expected).abs() / expected.abs()).argmax())
    return (
        f"the token at row {int(place[0][worst])}, position {int(place[1][worst])} counts "
        f"{float(found[worst]):.6g}, must count {float(expected[worst]):.6g}; {remedy}"
    )
