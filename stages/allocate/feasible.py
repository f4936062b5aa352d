"""What a budget needs, checked as soon as the number of rows is known, before any model."""

import math

import numpy as np

from stages.allocate.budget import Asked, StepShape, asked_rows, whole_steps
from stages.contract.errors import DataError


def check_feasible(
    asked: Asked,
    step: StepShape,
    *,
    num_rows: int,
    num_clusters: int,
    ratio_of: str,
    on_empty_quota: str,
    num_tokens: np.ndarray | None = None,
) -> None:
    """Stop if no clustering of so many rows could meet the budget.

    Parameters
    ----------
    asked : Asked
        The budget.
    step : StepShape
        How a step is laid out.
    num_rows, num_clusters : int
        Rows that are left, and K.
    ratio_of : str
        What `allocate.ratio` is a share of, as the selector says.
    on_empty_quota : str
        merge or error.
    num_tokens : ndarray of shape (num_rows,), optional
        Length of each row, once known.

    Raises
    ------
    DataError
        Naming the key, the value, the number of rows and the remedy.
    """
    if num_rows < step.num_workers:
        raise DataError(
            f"allocate.num_workers={step.num_workers} must be <= the {num_rows} rows; lower it"
        )
    if num_clusters > num_rows:
        raise DataError(
            f"cluster.num_clusters={num_clusters} must be <= the {num_rows} rows; lower it"
        )
    if asked.kind == "tokens":
        _check_tokens(asked, step, num_rows, num_tokens)
        return
    if asked.kind == "ratio" and ratio_of == "smallest_cluster":
        best = math.floor(asked.amount * (num_rows // num_clusters))
        if best * num_clusters < step.rows or best == 0:
            raise DataError(
                f"{asked.text} of the smallest of cluster.num_clusters={num_clusters} clusters "
                f"is at most {best} rows of {num_rows}; all clusters must give the {step.rows} "
                f"rows of one step; raise allocate.ratio, or lower cluster.num_clusters, "
                f"allocate.micro_batch or allocate.accumulation"
            )
        return
    kept = whole_steps(asked_rows(asked, num_rows), asked, step, num_rows)
    if on_empty_quota == "error" and kept < num_clusters:
        raise DataError(
            f"{asked.text} keeps {kept} rows, which must be >= cluster.num_clusters="
            f"{num_clusters}; ask for {num_clusters}rows or more, or set "
            f"allocate.on_empty_quota=merge"
        )


def _check_tokens(
    asked: Asked, step: StepShape, num_rows: int, num_tokens: np.ndarray | None
) -> None:
    whole_steps(step.rows, asked, step, num_rows)
    if num_tokens is None:
        return
    least = int(np.sort(num_tokens)[: step.rows].sum())
    if asked.amount < least:
        raise DataError(
            f"{asked.text} must be >= {least} tokens, which the {step.rows} shortest rows of "
            f"one step take; ask for {least}tokens or more"
        )
