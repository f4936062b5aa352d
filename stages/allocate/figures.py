"""The figures of a selection that need no training, always beside random draws of its size."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from stages.allocate.candidates import Candidates, IntArray
from stages.allocate.quality import (
    ReadJudge,
    Weighted,
    coverage_radii,
    coverage_sample,
    judge_sums,
    mix_shift,
    random_draws,
    relative_errors,
    step_errors,
)
from stages.allocate.weights import effective_sample_size

NUM_DRAWS = 20
# Of the errors per step, whose mean is shown.
STEPS = 64
# A relative error below it is noise of the sums: all rows, by their multiplicity, reach 1e-15.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Figures:
    """What is known of a selection without training.

    Attributes
    ----------
    gradient_error : float
        Of the whole epoch.
    cluster_errors : list of float or None
        Of each cluster against its own mean; None where nothing is kept.
    cluster_error_mean, cluster_error_worst : float
        Over the clusters of which something is kept.
    step_error : float
        Mean over synchronized steps, each against the full gradient.
    radius_mean, radius_max : float
        Distance to the nearest kept row, in the space of the clustering.
    effective_sample_size : float
        A share of the rows, in (0, 1].
    shift_of_sources, shift_of_lengths : float
        Total variation distance between the mixes before and after, in [0, 1].
    tokens : int
        Of the kept rows.
    """

    gradient_error: float
    cluster_errors: list[float | None]
    cluster_error_mean: float
    cluster_error_worst: float
    step_error: float
    radius_mean: float
    radius_max: float
    effective_sample_size: float
    shift_of_sources: float
    shift_of_lengths: float
    tokens: int


def figures_of(
    candidates: Candidates,
    read_judge: ReadJudge,
    selections: Sequence[Weighted],
    plans: Sequence[IntArray],
    rng: np.random.Generator,
) -> list[Figures]:
    """Take every figure of some selections.

    Each judge sketch is read once and an embedding at most twice, however many selections, steps
    and clusters there are; both by blocks. All selections are measured on the same rows.

    Parameters
    ----------
    candidates : Candidates
        All rows.
    read_judge : callable
        increasing positions -> judge sketches.
    selections : sequence of Weighted
        With weights of mean 1.
    plans : sequence of ndarray of shape (num_steps, num_workers, rows_per_worker)
        The schedule of each.
    rng : numpy.random.Generator
        Draws which steps, and which rows of a large set, are looked at.
    """
    # Drawn for each selection, though all are measured on the first: draws after them stay.
    looked_at, samples, steps = [], [], []
    for selection, plan in zip(selections, plans, strict=True):
        shown = np.sort(rng.permutation(plan.shape[0])[:STEPS])
        steps.append(plan[shown].reshape(shown.size, -1))
        looked_at.append(coverage_sample(np.arange(candidates.num_rows), rng))
        samples.append(coverage_sample(selection.rows, rng))
    sums, masses, step_sums = judge_sums(candidates, read_judge, selections, steps)
    radii = coverage_radii(candidates, looked_at[0], samples)
    whole, per_cluster = relative_errors(sums, masses)
    full_mean = sums[0].sum(axis=0) / masses[0].sum()
    found = []
    for which, selection in enumerate(selections):
        by_step = step_errors(step_sums[which], steps[which].shape[1], full_mean)
        shift = mix_shift(candidates, selection)
        errors = per_cluster[which]
        known = errors[np.isfinite(errors)]
        found.append(
            Figures(
                gradient_error=float(whole[which]),
                cluster_errors=[float(e) if np.isfinite(e) else None for e in errors],
                cluster_error_mean=float(known.mean()),
                cluster_error_worst=float(known.max()),
                step_error=float(by_step.mean()),
                radius_mean=float(radii[which, 0]),
                radius_max=float(radii[which, 1]),
                effective_sample_size=effective_sample_size(selection.weights),
                shift_of_sources=shift["sources"],
                shift_of_lengths=shift["lengths"],
                tokens=int(candidates.num_tokens[selection.rows].sum()),
            )
        )
    return found


def random_figures(
    candidates: Candidates,
    read_judge: ReadJudge,
    plan_shape: tuple[int, int, int],
    rng: np.random.Generator,
    *,
    num_draws: int = NUM_DRAWS,
) -> list[Figures]:
    """Take the figures of random selections that fill a plan of the same shape."""
    size = int(np.prod(plan_shape))
    draws = random_draws(candidates, size, rng, count=num_draws)
    plans = [rng.permutation(size).reshape(plan_shape) for _ in draws]
    return figures_of(candidates, read_judge, draws, plans, rng)


def beside_random(kept: Figures, random: Sequence[Figures]) -> dict[str, Any]:
    """Set the figures of a selection beside the mean and the spread of random ones.

    Returns
    -------
    dict
        `selection`, `random` (means), `random_std` (standard deviations over the draws),
        `draws`, and `ratio_to_random`: the gradient error over that of the mean draw, as
        `ratio_to_random` takes it.
    """
    names = [f.name for f in fields(Figures) if f.name != "cluster_errors"]
    values = {name: np.array([getattr(draw, name) for draw in random]) for name in names}
    mean = {name: float(column.mean()) for name, column in values.items()}
    std = {name: float(column.std(ddof=1)) for name, column in values.items()}
    return {
        "selection": asdict(kept),
        "random": mean,
        "random_std": std,
        "draws": len(random),
        "ratio_to_random": ratio_to_random(kept.gradient_error, mean["gradient_error"]),
    }


def ratio_to_random(error: float, of_random: float) -> float:
    """Set a gradient error over that of random rows, both as if `ROUNDING` were the least.

    Where all rows are kept both are noise, and the ratio is 1. Where only random's is, such as
    beside all rows with bad weights, the ratio is finite and far above 1.
    """
    return max(error, ROUNDING) / max(of_random, ROUNDING)


def errors_of(quality: Mapping[str, Any]) -> tuple[float, float, float]:
    """Give the gradient error of the selection, that of random ones, and their ratio.

    The ratio is taken anew: what the store holds may be of before the rule on rounding.
    """
    own, random = quality["selection"]["gradient_error"], quality["random"]["gradient_error"]
    return own, random, ratio_to_random(own, random)


def beside(ratio: float) -> str:
    """Say a ratio to random in words that cannot be read the wrong way round."""
    if ratio < 0.995:
        return f"better ({ratio:.2f} of the error) than"
    if ratio > 1.005:
        return f"worse ({ratio:.2f} times the error) than"
    return "the same as"
