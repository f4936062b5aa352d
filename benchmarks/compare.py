"""Every selector at every budget, from one pass over real rows: error of the mean gradient.

    python -m benchmarks.compare rows.path=../shared/data/mix/train.jsonl rows.limit=1500

The comparison is that of `make compare`; here its numbers become figures with targets. Beside
the paper's setting stand the values of a first measurement, made before this code was written on
1,482 rows of the same file, so that a difference shows.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Figure, report
from pipeline.compare import RESULT, run_compare
from pipeline.comparison import compare_overrides
from pipeline.config import compose

# Of random's gradient error, at every budget; and the least effective sample size.
MATCHED_TARGET, LEAST_EFFECTIVE = 0.55, 0.5
# The first measurement: budget -> error of random, of the paper, of its clusters with random rows.
FIRST = {"0.67": (0.121, 0.181, 0.096), "0.5": (0.169, 0.316, 0.146), "0.33": (0.240, 0.403, 0.224)}


def figures_of(rows: Sequence[dict[str, Any]], budget: str) -> list[Figure]:
    """Turn the rows of one budget into figures, the best method first."""
    here = [row for row in rows if row["budget"] == budget and "ratio" in row]
    by_rows = {row["method"]: row for row in here if row["by"] == "rows"}
    by_tokens = {row["method"]: row for row in here if row["by"] == "tokens"}
    share = f"{float(budget):.0%}"
    random = by_rows["random"]["gradient_error"]
    figures = [Figure(f"{share}: error of random rows", random, None, "lower")]
    for name, row in sorted(by_rows.items(), key=lambda item: float(item[1]["ratio"])):
        if name == "random":
            continue
        target = MATCHED_TARGET if name == "matched" else 1.0
        figures.append(Figure(f"{share}: {name} over random", row["ratio"], target, "lower"))
        if name == "matched":
            tokens = by_tokens[name]["ratio"]
            effective = row["effective_sample_size"]
            figures += [
                Figure(f"{share}: {name} over random, same tokens", tokens, target, "lower"),
                Figure(f"{share}: {name}, effective size", effective, LEAST_EFFECTIVE, "higher"),
            ]
    if budget in FIRST:
        for name, before in zip(
            ("random", "paper", "paper_random_inside"), FIRST[budget], strict=True
        ):
            ratio = by_rows[name]["gradient_error"] / before
            figures.append(
                Figure(f"{share}: {name} over its first measurement", ratio, None, "lower")
            )
    return figures


def main(overrides: Sequence[str]) -> None:
    """Run the comparison, or read the one that `out=` holds with `--read`."""
    given = [override for override in overrides if override != "--read"]
    config = compose(compare_overrides(given))
    if "--read" not in overrides:
        run_compare(config)
    result = json.loads((Path(config.out) / RESULT).read_text(encoding="utf-8"))
    figures = [
        figure
        for budget in dict.fromkeys(row["budget"] for row in result["table"])
        for figure in figures_of(result["table"], budget)
    ]
    shown = [override for override in given if not override.startswith(("store=", "out="))]
    report("compare", f"python -m benchmarks.compare {shlex.join(shown)}", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
