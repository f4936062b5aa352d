"""What the user asks to keep, and the whole number of steps that this buys.

A step is one synchronized optimizer step: M = workers * accumulation * micro_batch rows. The
kept rows are always a whole number of steps, and never more than asked.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from stages.contract.errors import ConfigurationError, DataError

BUDGET = re.compile(
    r"^\s*(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?)\s*(?P<unit>%|rows|tokens)?\s*$"
)


@dataclass(frozen=True)
class Asked:
    """A budget as it was asked.

    Attributes
    ----------
    kind : str
        rows, share (of the candidates), tokens, or ratio (of what the selector says).
    amount : Fraction
        Rows, tokens, or a share in (0, 1]; exactly the number that was written.
    text : str
        The key and the value as the user wrote them.
    """

    kind: str
    amount: Fraction
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

    def __str__(self) -> str:
        return (
            f"allocate.num_workers={self.num_workers} x allocate.micro_batch={self.micro_batch} "
            f"x allocate.accumulation={self.accumulation}"
        )

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
    amount = Fraction(number)
    whole = "." not in number and amount.denominator == 1
    if unit == "%":
        kind, amount = "share", amount / 100
    elif unit in ("rows", "tokens"):
        kind = unit
    else:
        kind = "rows" if whole else "share"
    if kind == "share" and not 0 < amount <= 1:
        raise ConfigurationError(
            f"{label} is a share and must lie in (0, 1] or (0%, 100%]; a number of rows has no "
            f"decimal point"
        )
    if kind != "share" and (amount < 1 or amount.denominator != 1):
        raise ConfigurationError(f"{label} must be a whole number of {kind} >= 1")
    return Asked(kind, amount, label)


def exact(share: float) -> Fraction:
    """Take a share as the decimal that was written: 0.29 is 29/100, not the nearest double."""
    return Fraction(str(share))


def asked_rows(asked: Asked, num_candidates: int) -> int:
    """Turn a number or a share of rows into rows, before it is cut to whole steps."""
    if asked.kind == "rows":
        return int(asked.amount)
    return math.floor(asked.amount * num_candidates)


def whole_steps(rows: int, asked: Asked, step: StepShape, num_candidates: int) -> int:
    """Cut rows to whole steps, T = floor(rows / M) * M.

    Raises
    ------
    DataError
        If not one step is left, naming the smallest budget that works; or if more rows are
        asked than there are, naming the largest.
    """
    if num_candidates < step.rows:
        raise DataError(
            f"{asked.text}: there are only {num_candidates} rows, which must be >= the "
            f"{step.rows} rows of one step ({step}); lower allocate.num_workers, "
            f"allocate.micro_batch or allocate.accumulation"
        )
    if rows > num_candidates:
        most = num_candidates // step.rows * step.rows
        raise DataError(
            f"{asked.text} must be <= the {num_candidates} rows that can be kept; the largest "
            f"budget that works is {most}rows"
        )
    kept = rows // step.rows * step.rows
    if kept == 0:
        raise DataError(
            f"{asked.text} gives {rows} rows, which must be >= the {step.rows} rows of one step "
            f"({step}); the smallest budget that works is {step.rows}rows"
        )
    return kept
