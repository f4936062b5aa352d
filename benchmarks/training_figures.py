"""From the lines of training runs to figures, paired by seed.

Runs were made beside other work, so their own seconds say as much of the machine as of the method:
all figures in seconds are at one speed, the median of all runs.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student_t

Line = dict[str, Any]

LOSSES = ("plain", "macro")
TARGETS = ("gain95", "loss101")
# The rows of uniform, in steps that hold clusters in proportion as those of most selections do.
CONTROL = "uniform:clusters=64,feature=head_sketch"


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with its standard error (nan for one seed)."""

    value: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """Average values."""
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), spread / math.sqrt(len(values)), len(values))

    @property
    def t95(self) -> float:
        """How many standard errors hold 95% of the means of so few (Student's t); nan for one."""
        return float(student_t.ppf(0.975, self.count - 1)) if self.count > 1 else math.nan

    def beyond(self, errors: float) -> int:
        """Say whether the mean is that many standard errors below 0 (-1), above (1), or not."""
        return int(self.value > errors * self.error) - int(self.value < -errors * self.error)


@dataclass(frozen=True)
class Summary:
    """What a method did at a budget, over its seeds.

    Attributes
    ----------
    method, budget : str
        As they were named.
    loss, macro : Mean
        Held-out losses at the end.
    share : Mean
        Of the gain of all rows, (start - loss) / (start - loss of all rows), by seed.
    excess : Mean
        loss / (loss of all rows) - 1, by seed.
    beside_uniform, beside_control : Mean or None
        Loss less that of `uniform`, or of `CONTROL`, at this budget and seed; None where there is
        no pair.
    gradient_error : float
        On the judge's sketch.
    rows, tokens : float
        Kept, per epoch.
    steps : float
        Of the whole run.
    selection_tokens, selection_seconds : float
        What the selection cost.
    trained_tokens, trained_seconds : float
        Of the whole run.
    saved : (share of tokens, share of seconds)
        Of the whole run of all rows that this whole run did without, its selection counted.
    to_target : dict of str to (tokens, seconds, share of tokens saved, share of seconds saved)
        Until the target was reached, with the selection, beside all rows until the same target;
        None where a seed did not reach it.
    """

    method: str
    budget: str
    loss: Mean
    macro: Mean
    share: Mean
    excess: Mean
    beside_uniform: Mean | None
    beside_control: Mean | None
    gradient_error: float
    rows: float
    tokens: float
    steps: float
    selection_tokens: float
    selection_seconds: float
    trained_tokens: float
    trained_seconds: float
    saved: tuple[float, float]
    to_target: dict[str, tuple[float, float, float, float] | None]

    def ends_like_all(self, share: float) -> bool:
        """Whether a selection's runs end at most so far above the loss of all rows."""
        return self.method != "all" and self.excess.value <= share


def summarise(lines: Sequence[Line]) -> list[Summary]:
    """Gather the lines by method and budget, in order of the lines; all need those of `all`."""
    lines = at_one_speed(lines)
    whole = {line["seed"]: line for line in lines if line["method"] == "all"}
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line["seed"] in whole:
            groups.setdefault((line["method"], line["budget"]), []).append(line)
    return [
        _summary(
            group,
            [whole[line["seed"]] for line in group],
            *(groups.get((name, budget), []) for name in ("uniform", CONTROL)),
        )
        for (_, budget), group in groups.items()
    ]


def speed_of(lines: Sequence[Line]) -> float:
    """Give the tokens a second that the median run trains on."""
    return float(np.median([line["tokens"] / line["seconds"] for line in lines]))


def at_one_speed(lines: Sequence[Line]) -> list[Line]:
    """Put the seconds that the median run would have taken in the place of each run's own.

    A selection's are the median over the seeds of its method and budget.
    """
    speed = speed_of(lines) if lines else 1.0
    selecting: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        of_method = selecting.setdefault((line["method"], line["budget"]), [])
        of_method.append(line["selection"]["seconds"])
    return [
        {
            **line,
            "seconds": line["tokens"] / speed,
            "points": [{**p, "seconds": p["tokens"] / speed} for p in line["points"]],
            "selection": {
                **line["selection"],
                "seconds": float(np.median(selecting[line["method"], line["budget"]])),
            },
        }
        for line in lines
    ]


def _beside(group: Sequence[Line], others: Sequence[Line]) -> Mean | None:
    """Pair the losses of two methods by seed; None for one beside itself, and without a pair."""
    ends = {line["seed"]: final(line) for line in others}
    if not others or others[0]["method"] == group[0]["method"]:
        return None
    pairs = [final(line) - ends[line["seed"]] for line in group if line["seed"] in ends]
    return Mean.of(pairs) if pairs else None


def _summary(
    group: Sequence[Line],
    whole: Sequence[Line],
    uniform: Sequence[Line],
    control: Sequence[Line],
) -> Summary:
    chosen = [line["selection"] for line in group]
    return Summary(
        group[0]["method"],
        group[0]["budget"],
        Mean.of([final(line) for line in group]),
        Mean.of([final(line, "macro") for line in group]),
        Mean.of([share_of_gain(line, one) for line, one in zip(group, whole, strict=True)]),
        Mean.of([final(line) / final(one) - 1 for line, one in zip(group, whole, strict=True)]),
        _beside(group, uniform),
        _beside(group, control),
        float(np.mean([one["gradient_error_judge"] for one in chosen])),
        float(np.mean([one["rows"] for one in chosen])),
        float(np.mean([one["tokens"] for one in chosen])),
        float(np.mean([line["steps"] for line in group])),
        float(np.mean([selection_tokens(line) for line in group])),
        float(np.mean([one["seconds"] for one in chosen])),
        float(np.mean([line["tokens"] for line in group])),
        float(np.mean([line["seconds"] for line in group])),
        _saved(group, whole),
        {target: _to_target(group, whole, target) for target in TARGETS},
    )


def _saved(group: Sequence[Line], whole: Sequence[Line]) -> tuple[float, float]:
    """Give the mean shares of the tokens and seconds of all rows' runs that a group did without."""
    found = [
        1 - np.divide(curve(line)[-1], curve(one)[-1])
        for line, one in zip(group, whole, strict=True)
    ]
    tokens, seconds, _ = np.mean(found, axis=0)
    return float(tokens), float(seconds)


def final(line: Line, loss: str = "plain") -> float:
    """Give the held-out loss at the end of a run."""
    return float(line["points"][-1][loss])


def share_of_gain(line: Line, whole: Line) -> float:
    """Give (start - loss) / (start - loss of all rows)."""
    start = line["start"]["plain"]
    return float((start - final(line)) / (start - final(whole)))


def selection_tokens(line: Line) -> float:
    """Give the tokens of training that a selection costs; forward passes count a third."""
    chosen = line["selection"]
    return float(chosen["trained_tokens"] + chosen["forward_tokens"] / 3)


def last_quarter(line: Line) -> float:
    """Give which share of a run's gain came in its last quarter of steps."""
    by_share = {round(p["steps"] / line["steps"], 2): p["plain"] for p in line["points"]}
    start = line["start"]["plain"]
    return float((by_share[0.75] - by_share[1.0]) / (start - by_share[1.0]))


def curve(line: Line) -> list[tuple[float, float, float]]:
    """Give (tokens, seconds, loss) from the start, with the selection before the first step."""
    tokens, seconds = selection_tokens(line), line["selection"]["seconds"]
    points = [(tokens, seconds, line["start"]["plain"])]
    points += [(tokens + p["tokens"], seconds + p["seconds"], p["plain"]) for p in line["points"]]
    return points


def reached(line: Line, loss: float) -> tuple[float, float] | None:
    """Give the tokens and seconds at which a run's loss first falls to a value, on straight lines.

    None where it never does.
    """
    points = curve(line)
    for (t0, s0, before), (t1, s1, after) in itertools.pairwise(points):
        if after <= loss:
            part = (before - loss) / (before - after) if before > loss else 0.0
            return t0 + part * (t1 - t0), s0 + part * (s1 - s0)
    return None


def target_loss(whole: Line, target: str) -> float:
    """Give the loss to be reached: 95% of the gain of all rows, or their loss + 1%."""
    if target == "loss101":
        return 1.01 * final(whole)
    start = float(whole["start"]["plain"])
    return start - 0.95 * (start - final(whole))


def _to_target(
    group: Sequence[Line], whole: Sequence[Line], target: str
) -> tuple[float, float, float, float] | None:
    found = []
    for line, one in zip(group, whole, strict=True):
        loss = target_loss(one, target)
        ours, theirs = reached(line, loss), reached(one, loss)
        if ours is None or theirs is None:
            return None
        found.append((*ours, 1 - ours[0] / theirs[0], 1 - ours[1] / theirs[1]))
    means = np.mean(found, axis=0)
    return float(means[0]), float(means[1]), float(means[2]), float(means[3])
