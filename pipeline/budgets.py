"""What is known of a budget as soon as the rows are counted, before any model is loaded."""

import logging
import math
from fractions import Fraction

from pipeline.comparison import budgets_of
from pipeline.config import Config
from stages.allocate.budget import Asked, asked_rows
from stages.allocate.feasible import check_feasible
from stages.contract.artifact import Artifact
from stages.contract.errors import DataError

log = logging.getLogger(__name__)


def check_budget(config: Config, artifact: Artifact) -> None:
    """Stop if the budget cannot be met by so many rows, however they are clustered.

    Where no number of clusters is given there is at least one, and never more than rows.
    """
    check_feasible(
        config.allocate.asked,
        config.allocate.step,
        num_rows=artifact.num_rows,
        num_clusters=config.cluster.num_clusters or 1,
        ratio_of=config.allocate.selector.ratio_of,
        on_empty_quota=config.allocate.on_empty_quota,
        num_tokens=artifact.array("num_tokens") if artifact.stage == "tokens" else None,
    )


def check_selection(config: Config, artifact: Artifact) -> None:
    """Check the budget, and warn once where it asks for every row: then nothing is selected."""
    check_budget(config, artifact)
    if artifact.stage != "tokens":
        return
    asked, num_rows = config.allocate.asked, artifact.num_rows
    if asked.kind == "ratio" and config.allocate.selector.ratio_of == "smallest_cluster":
        return
    if asked.kind == "tokens":
        everything = asked.amount >= int(artifact.array("num_tokens").sum())
    else:
        everything = asked_rows(asked, num_rows) >= num_rows
    if everything:
        log.warning(
            "%s keeps all %d rows: nothing is selected; set allocate.budget=50%% (BUDGET=50%% with "
            "make) or a smaller allocate.ratio",
            *(asked.text, num_rows),
        )


def check_compared(config: Config, artifact: Artifact) -> None:
    """Stop if a budget of a comparison cannot be met by so many rows, whichever method chooses.

    A share of the rows that holds a step is enough for the same share of the tokens: the rows of
    a step that are shortest have at most their share.

    Raises
    ------
    DataError
        Naming the budget, the rows and the smallest share that works.
    """
    step, num_rows = config.allocate.step, artifact.num_rows
    check_feasible(
        Asked("rows", Fraction(num_rows), "compare.budgets"),
        step,
        num_rows=num_rows,
        num_clusters=config.cluster.num_clusters or 1,
        ratio_of="candidates",
        on_empty_quota="merge",
    )
    for text in config.compare.budgets:
        kept = asked_rows(budgets_of(text, 0)["rows"], num_rows)
        if kept < step.rows:
            least = math.ceil(10_000 * step.rows / num_rows) / 10_000
            raise DataError(
                f"compare.budgets: {text} of {num_rows} rows is {kept} rows, which must be >= the "
                f"{step.rows} rows of one step ({step}); leave it out, or ask for {least:g} or more"
            )
