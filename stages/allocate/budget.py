"""What the user asks to keep, and the whole number of steps that this buys.

A step is one synchronized optimizer step: M = workers * accumulation * micro_batch rows. The
kept rows are always a whole number of steps, and never more than asked.
"""

import re
from dataclasses import dataclass

from stages.contract.errors import ConfigurationError, DataError

BUDGET = re.compile(
    r"^\s*(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(?P<unit>%|rows|tokens)?\s*$"
)


@dataclass(frozen=True)
class Asked:
    """A budget as it was asked.

    Attributes
    ----------
    kind : str
        rows, share (of the candidates), tokens, or ratio (of what the selector says).
    amount : float
        Rows, tokens, or a share in (0, 1].
    text : str
        The key and the value as the user wrote them.
    """

    kind: str
    amount: float
    text: str


@dataclass(frozen=True)
class StepShape:
    """How a synchronized step is laid out.

    Attributes
    ----------
    num_workers, accumulation, micro_batch : int
        W, A and B.
    """

    num_workers: int
    accumulation: int
    micro_batch: int

    @property
    def rows_per_worker(self) -> int:
        """Rows of one worker in one step, A * B."""
        return self.accumulation * self.micro_batch

    @property
    def rows(self) -> int:
        """Rows of one step over all workers, M = W * A * B."""
        return self.num_workers * self.rows_per_worker


def parse_budget(text: str) -> Asked:
    """Read `allocate.budget`: 2000, 2000rows, 0.5, 50%, 300000tokens; 1 is a row, 1.0 all rows.

    Raises
    ------
    ConfigurationError
        If the text is none of these, or the amount is zero or above all.
    """
    label = f"allocate.budget={text}"
    match = BUDGET.match(text)
    if match is None:
        raise ConfigurationError(
            f"{label} must be a number of rows (2000 or 2000rows), a share (0.5 or 50%), or a "
            f"number of tokens (300000tokens)"
        )
    number, unit = match["number"], match["unit"]
    amount = float(number)
    whole = number.isdigit()
    if unit == "%":
        kind, amount = "share", amount / 100.0
    elif unit in ("rows", "tokens"):
        kind = unit
    else:
        kind = "rows" if whole else "share"
    if kind == "share" and not 0.0 < amount <= 1.0:
        raise ConfigurationError(
            f"{label} is a share and must lie in (0, 1] or (0%, 100%]; a number of rows has no "
            f"decimal point"
        )
    if kind != "share" and (amount < 1 or amount != int(amount)):
        raise ConfigurationError(f"{label} must be a whole number of {kind} >= 1")
    return Asked(kind, amount, label)


def asked_rows(asked: Asked, num_candidates: int) -> int:
    """Turn a number or a share of rows into rows, before it is cut to whole steps."""
    if asked.kind == "rows":
        return int(asked.amount)
    # The small number keeps 0.07 * 100 from becoming 6 rows.
    return int(asked.amount * num_candidates + 1e-9)


def whole_steps(rows: int, asked: Asked, step: StepShape, num_candidates: int) -> int:
    """Cut rows to whole steps, T = floor(rows / M) * M.

    Raises
    ------
    DataError
        If not one step is left, naming the smallest budget that works; or if more rows are
        asked than there are, naming the largest.
    """
    if rows > num_candidates:
        most = num_candidates // step.rows * step.rows
        raise DataError(
            f"{asked.text} must be <= the {num_candidates} rows that can be kept; the largest "
            f"budget that works is {most}rows"
        )
    kept = rows // step.rows * step.rows
    if kept == 0:
        least = f"the smallest budget that works is {step.rows}rows"
        if num_candidates < step.rows:
            least = (
                f"there are only {num_candidates} rows; lower allocate.num_workers, "
                f"allocate.micro_batch or allocate.accumulation"
            )
        raise DataError(
            f"{asked.text} gives {rows} rows, which must be >= the {step.rows} rows of one step "
            f"(allocate.num_workers={step.num_workers} x allocate.micro_batch="
            f"{step.micro_batch} x allocate.accumulation={step.accumulation}); {least}"
        )
    return kept
