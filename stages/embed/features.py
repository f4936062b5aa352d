"""Per-row gradient features and signals from the last hidden states: pure torch, no disk.

Suffixes name dimensions: P supervised positions of the batch, C positions of a chunk,
V vocabulary, H hidden size, R rows. Only supervised positions ever meet the LM head, in
chunks, so the largest tensor is (chunk, vocabulary), however long the rows are.

With h the last hidden state after the final norm, p the probabilities of the next token and
y the right one, the gradient of one position's loss in the LM head is r h^T with r = p - e_y. Where
a family scales its logits or caps them softly (z = c tanh(s / c), as Gemma), each entry of r has
the slope of its logit as a further factor. A row's features are means over its T positions:

    target_row   mean r_y h                  the head gradient's own row y (CluSTER,
                                             arXiv 2609.12584, its proxy of the gradient)
    head_sketch  mean A^T r (B^T h)^T        a sketch of the whole head gradient
    hidden_mean  mean h                      the plain embedding, for comparison
    judge_sketch as head_sketch with other maps; quality figures read it, selectors never

and over all n tokens of a row, supervised or not:

    position_mean  sum of t h_t / sum of t   RDS+ (arXiv 2503.01807)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from stages.embed.sketch import Sketch, fold_residuals

Head = Callable[[Tensor], Tensor]
Slope = Callable[[Tensor], Tensor] | None


@dataclass(frozen=True)
class PositionSignals:
    """What the head says at each supervised position; every field of shape (P,), float32.

    Attributes
    ----------
    nll : Tensor
        -log p_y, in nats.
    wrong_p, max_p : Tensor
        1 - p_y, summed over the other tokens so that it keeps its digits where p_y is near 1;
        and the probability of the likeliest token.
    entropy : Tensor
        Of the next token's distribution, in nats.
    error_norm : Tensor
        Norm of p - e_y.
    residual_norm, target_pull : Tensor
        Norm of r, and -r_y; without slopes error_norm and wrong_p.
    """

    nll: Tensor
    wrong_p: Tensor
    max_p: Tensor
    entropy: Tensor
    error_norm: Tensor
    residual_norm: Tensor
    target_pull: Tensor


@dataclass(frozen=True)
class RowFeatures:
    """Features and signals of the rows of one batch, float32.

    Attributes
    ----------
    features : dict of str to Tensor of shape (R, dim)
        The features that were asked for, raw.
    signals : dict of str to Tensor of shape (R,)
        loss, mean_p, max_p, entropy, el2n, grad_norm_bound, head_grad_norm, embedding_norm.
    """

    features: dict[str, Tensor]
    signals: dict[str, Tensor]


def row_features(
    hidden_PH: Tensor,
    targets_P: Tensor,
    num_positions: list[int],
    head: Head,
    *,
    names: Sequence[str],
    chunk: int,
    sketches: Mapping[str, Sketch],
    slope: Slope = None,
) -> RowFeatures:
    """Compute features and all signals of the rows of a batch.

    Parameters
    ----------
    hidden_PH : Tensor of shape (P, H)
        Last hidden states at the supervised positions, row after row.
    targets_P : Tensor of shape (P,), int64
        The right next token of each.
    num_positions : list of int
        Positions of each row, each at least 1, summing to P.
    head : callable
        (C, H) -> logits (C, V).
    names : sequence of str
        target_row, hidden_mean, or names of `sketches`. The norm of the first one is the signal
        embedding_norm.
    chunk : int
        Positions per chunk of logits.
    sketches : mapping of str to Sketch
        The maps of the sketches that are asked for.
    slope : callable, optional
        Logits -> their slopes, where the head does more than multiply.
    """
    signals, folded_PA = position_signals(
        hidden_PH, targets_P, head, chunk=chunk, sketches=list(sketches.values()), slope=slope
    )
    hidden_PH = hidden_PH.float()
    norms_P = hidden_PH.norm(dim=1)
    folded = dict(zip(sketches, folded_PA, strict=True))
    features = {}
    for name in names:
        if name == "target_row":
            features[name] = _row_means(hidden_PH, -signals.target_pull, num_positions)
        elif name == "hidden_mean":
            features[name] = _row_means(hidden_PH, torch.ones_like(norms_P), num_positions)
        else:
            projected_PB = hidden_PH @ sketches[name].hidden_map
            features[name] = _row_sketches(folded[name], projected_PB, num_positions)
    scalars = _row_signals(signals, norms_P, num_positions)
    if names:
        scalars["embedding_norm"] = features[names[0]].norm(dim=1)
    return RowFeatures(features, scalars)


def position_mean(hidden_RTH: Tensor, lengths_R: Tensor) -> Tensor:
    """Average the last hidden states of all tokens of each row, later ones weighing more.

    The weight of token t = 1, 2, ... is t / sum of t (RDS+, arXiv 2503.01807).

    Parameters
    ----------
    hidden_RTH : Tensor of shape (rows, time, hidden)
        Of rows padded on the right.
    lengths_R : Tensor of shape (rows,), int64
        Tokens of each.

    Returns
    -------
    Tensor of shape (rows, hidden), float32
    """
    places_T = torch.arange(1, hidden_RTH.shape[1] + 1, device=hidden_RTH.device)
    weights_RT = torch.where(places_T <= lengths_R[:, None], places_T, 0).float()
    weights_RT = weights_RT / weights_RT.sum(1, keepdim=True)
    pooled = [
        weights[:length] @ hidden[:length].float()
        for weights, hidden, length in zip(weights_RT, hidden_RTH, lengths_R.tolist(), strict=True)
    ]
    return torch.stack(pooled)


def position_signals(
    hidden_PH: Tensor,
    targets_P: Tensor,
    head: Head,
    *,
    chunk: int,
    sketches: Sequence[Sketch],
    slope: Slope = None,
) -> tuple[PositionSignals, list[Tensor]]:
    """Take logits chunk by chunk and keep a few numbers per position.

    Returns
    -------
    PositionSignals
        Of all positions.
    list of Tensor of shape (P, num_buckets)
        r folded over the vocabulary, by each sketch.
    """
    vocab_map = torch.cat([sketch.vocab_map for sketch in sketches], dim=1) if sketches else None
    pieces = []
    folds = []
    for start in range(0, targets_P.shape[0], chunk):
        targets_C1 = targets_P[start : start + chunk, None]
        logits_CV = head(hidden_PH[start : start + chunk]).float()
        shifted_CV = logits_CV - logits_CV.amax(1, keepdim=True)
        target_C = shifted_CV.gather(1, targets_C1)[:, 0]
        exp_target_C = target_C.exp()
        # The target is left out of the sums: 1 - p_y and norm(p - e_y) by difference would be
        # noise for a token that the model is sure of.
        others_CV = shifted_CV.exp().scatter_(1, targets_C1, 0.0)
        others_C = others_CV.sum(1)
        sums_C = others_C + exp_target_C
        log_sums_C = torch.where(target_C == 0.0, others_C.log1p(), sums_C.log())
        wrong_p_C = others_C / sums_C
        error_C = _residual_norm(others_CV, others_C) / sums_C
        mean_shifted_C = (_row_dot(others_CV, shifted_CV) + exp_target_C * target_C) / sums_C
        if mean_shifted_C.isnan().any():  # a model that masks logits by -inf: 0 * -inf is NaN
            finite_CV = torch.where(others_CV > 0.0, shifted_CV, 0.0)
            mean_shifted_C = (_row_dot(others_CV, finite_CV) + exp_target_C * target_C) / sums_C
        pulls_CV, residual_C, pull_C = others_CV, error_C, wrong_p_C
        if slope is not None:
            slopes_CV = slope(logits_CV)
            target_slope_C = slopes_CV.gather(1, targets_C1)[:, 0]
            pulls_CV, pull_C = others_CV * slopes_CV, wrong_p_C * target_slope_C
            residual_C = _residual_norm(pulls_CV, others_C * target_slope_C) / sums_C
        pieces.append(
            torch.stack(
                [
                    log_sums_C - target_C,
                    wrong_p_C,
                    1.0 / sums_C,
                    log_sums_C - mean_shifted_C,
                    error_C,
                    residual_C,
                    pull_C,
                ],
                dim=1,
            )
        )
        if vocab_map is not None:
            folds.append(fold_residuals(pulls_CV, sums_C, pull_C, targets_C1[:, 0], vocab_map))
    values = torch.cat(pieces)
    columns = (values[:, index].contiguous() for index in range(len(fields(PositionSignals))))
    sizes = [sketch.num_buckets for sketch in sketches]
    split = torch.split(torch.cat(folds), sizes, dim=1) if folds else ()
    return PositionSignals(*columns), list(split)


def _residual_norm(others_CV: Tensor, target_C: Tensor) -> Tensor:
    """Norm of each row of others, with one more entry."""
    return (_row_dot(others_CV, others_CV) + target_C.square()).sqrt()


def _row_dot(left_CV: Tensor, right_CV: Tensor) -> Tensor:
    """Inner product of each row with its partner, without a temporary of their size."""
    return torch.bmm(left_CV[:, None, :], right_CV[:, :, None])[:, 0, 0]


def _row_signals(
    signals: PositionSignals, norms_P: Tensor, num_positions: list[int]
) -> dict[str, Tensor]:
    stacked = torch.stack(
        [
            signals.nll,
            signals.wrong_p,
            signals.max_p,
            signals.entropy,
            signals.error_norm,
            signals.residual_norm * norms_P,
            signals.residual_norm.square(),
        ],
        dim=1,
    )
    means_RS = torch.stack([piece.mean(0) for piece in torch.split(stacked, num_positions)])
    counts_R = torch.tensor(num_positions, dtype=torch.float32, device=norms_P.device)
    return {
        "loss": means_RS[:, 0],
        "mean_p": 1.0 - means_RS[:, 1],
        "max_p": means_RS[:, 2],
        "entropy": means_RS[:, 3],
        "el2n": means_RS[:, 4],
        "head_grad_norm": means_RS[:, 5],
        "grad_norm_bound": (means_RS[:, 6] / counts_R).sqrt(),
    }


def _row_means(hidden_PH: Tensor, coefficients_P: Tensor, num_positions: list[int]) -> Tensor:
    """Average coefficient times hidden state over the positions of each row."""
    rows = zip(
        torch.split(hidden_PH, num_positions),
        torch.split(coefficients_P, num_positions),
        strict=True,
    )
    return torch.stack([(c @ h) / h.shape[0] for h, c in rows])


def _row_sketches(folded_PA: Tensor, projected_PB: Tensor, num_positions: list[int]) -> Tensor:
    """Average the outer products of both maps over the positions of each row, flattened."""
    rows = zip(
        torch.split(folded_PA, num_positions), torch.split(projected_PB, num_positions), strict=True
    )
    return torch.stack([((a.T @ b) / a.shape[0]).flatten() for a, b in rows])
