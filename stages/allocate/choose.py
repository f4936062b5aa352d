"""From what was asked to exactly so many rows: the selector is called, and held to its promises."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stages.allocate.budget import Asked, StepShape, asked_rows, whole_steps
from stages.allocate.candidates import TRIED, Budget, Candidates, IntArray, Selector
from stages.allocate.quota import equal_rows
from stages.allocate.weights import first_few
from stages.contract.errors import DataError

log = logging.getLogger(__name__)

SELECT_STREAM = 0
# Numbers of steps that are tried above the first that did not fit a budget of tokens; none where
# a step is less than a thousandth of what is kept, since a selection of so many rows is dear.
PROBES, MOST_PROBED = 8, 1000


@dataclass(frozen=True)
class Selection:
    """Kept rows with their weights.

    Attributes
    ----------
    rows : ndarray of shape (num_kept,), int64
        Increasing positions among the candidates.
    weights : ndarray of shape (num_kept,), float64
        Above 0, with mean 1.
    """

    rows: IntArray
    weights: npt.NDArray[np.float64]


def choose(
    selector: Selector,
    asked: Asked,
    step: StepShape,
    candidates: Candidates,
    *,
    on_empty_quota: str,
    seed: int,
) -> Selection:
    """Turn what was asked into a whole number of steps, and let the selector fill it.

    Parameters
    ----------
    selector : Selector
        Chooses and weighs.
    asked : Asked
        The budget.
    step : StepShape
        How a step is laid out.
    candidates : Candidates
        What there is.
    on_empty_quota : str
        merge or error.
    seed : int
        The selector gets a fresh generator of this seed at every call.

    Raises
    ------
    DataError
        If the budget buys not one step.
    """

    def select(num_rows: int, on_empty: str = on_empty_quota) -> Selection:
        budget = Budget(num_rows, on_empty, step.num_workers)
        rng = np.random.default_rng([seed, SELECT_STREAM])
        rows, weights = selector.select(candidates, budget, rng)
        return checked(Selection(rows, weights), num_rows)

    if asked.kind == "tokens":
        whole_steps(step.rows, asked, step, candidates.num_rows)
        # What is only tried on the way may leave clusters empty; what is kept is held to it.
        found = fit_tokens(lambda rows: select(rows, TRIED), asked, step, candidates)
        kept = np.bincount(candidates.cluster[found.rows], minlength=candidates.num_clusters)
        return found if kept.all() else select(found.rows.size)
    if asked.kind == "ratio" and selector.ratio_of == "smallest_cluster":
        sizes = candidates.sizes()
        rows = equal_rows(sizes, asked.amount, step.num_workers, step.rows_per_worker)
        if rows == 0:
            raise DataError(
                f"{asked.text} of the smallest cluster (sizes {first_few(sizes)}) gives no whole "
                f"step of {step.rows} rows; name a budget instead, such as "
                f"allocate.budget=50%, or raise cluster.min_rows"
            )
        return select(rows)
    rows = asked_rows(asked, candidates.num_rows)
    if rows > candidates.num_rows:
        # The budget fitted the rows before the pass; the pass has rejected some since.
        log.warning("allocate: %s, only %d rows are left", asked.text, candidates.num_rows)
        rows = candidates.num_rows
    return select(whole_steps(rows, asked, step, candidates.num_rows))


def fit_tokens(
    select: Callable[[int], Selection], asked: Asked, step: StepShape, candidates: Candidates
) -> Selection:
    """Find the largest number of steps whose rows fit a budget of tokens.

    Tokens grow almost in proportion to the rows, so the next guess is where the line between the
    last ones that fitted and that did not reaches the budget: a few selections instead of the
    logarithm of the steps. Where more rows always take more tokens, this finds the largest. A
    selector that chooses anew for every number of rows (`matched`) can take fewer tokens for
    more rows; so up to `MOST_PROBED` steps the `PROBES` numbers above the first that did not fit
    are tried too, and the promise is: what is kept fits, and of those larger numbers none does.
    """

    def taken_by(selection: Selection) -> float:
        return float(candidates.num_tokens[selection.rows].sum())

    asked_tokens = float(asked.amount)
    best: Selection | None = None
    most = candidates.num_rows // step.rows
    low, high = 0, most + 1
    low_tokens = 0.0
    high_tokens = high / max(most, 1) * float(candidates.num_tokens.sum())
    over: set[int] = set()
    narrowed = 0
    while high - low > 1:
        share = (asked_tokens - low_tokens) / max(high_tokens - low_tokens, 1.0)
        guess = low + share * (high - low)
        # One side only moves while the line is bent; every other guess then halves the interval.
        middle = (low + high) // 2 if narrowed >= 2 else int(guess)
        middle = min(max(middle, low + 1), high - 1)
        selection = select(middle * step.rows)
        tokens = taken_by(selection)
        before = high - low
        if tokens <= asked_tokens:
            best, low, low_tokens = selection, middle, tokens
        else:
            high, high_tokens = middle, tokens
            over.add(middle)
        narrowed = narrowed + 1 if 2 * (high - low) > before else 0
    last = min(high + PROBES, most) if high <= MOST_PROBED else high
    probes = set(range(high + 1, last + 1)) - over
    for steps in sorted(probes, reverse=True):
        selection = select(steps * step.rows)
        if taken_by(selection) <= asked_tokens:
            best = selection
            break
    if best is None:
        least = int(taken_by(select(step.rows)))
        raise DataError(
            f"{asked.text} must be >= {least} tokens, which the {step.rows} rows of one step "
            f"take with this selector; ask for {least}tokens or more"
        )
    return best


def checked(selection: Selection, num_rows: int) -> Selection:
    """Hold a selector to its promises; a breach is a fault of the selector, not of the user."""
    rows, weights = selection.rows, selection.weights
    assert rows.size == weights.size == num_rows, (rows.size, weights.size, num_rows)
    assert np.all(np.diff(rows) > 0), "rows must increase, none twice"
    assert np.all(np.isfinite(weights)) and np.all(weights > 0), "weights must be above 0"
    assert abs(weights.mean() - 1.0) < 1e-6, f"the mean weight is {weights.mean()}, not 1"
    return selection
