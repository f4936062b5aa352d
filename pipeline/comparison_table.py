"""The numbers of a comparison as rows of plain values, and as tables to read."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.comparison import Cell
from stages.allocate.figures import ratio_to_random

# Figures of the table and of the plot; the first is the one that methods are ranked by.
SHOWN = (
    "gradient_error",
    "cluster_error_mean",
    "cluster_error_worst",
    "step_error",
    "radius_mean",
    "effective_sample_size",
    "shift_of_sources",
    "shift_of_lengths",
    "tokens",
)


def table(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Turn cells into rows of plain numbers, each beside random at the same budget.

    Returns
    -------
    list of dict
        method, budget, by, seeds; mean and standard deviation of each figure; `ratio`, the
        gradient error over that of random as `ratio_to_random` takes it; `beats_random`, whether
        it is lower by more than two standard errors of the difference, and not by rounding alone;
        or `reason`, why it was not run.
    """
    random = {(c.budget, c.by): c.figures for c in cells if c.method == "random"}
    rows = []
    for cell in cells:
        row: dict[str, Any] = {"method": cell.method, "budget": cell.budget, "by": cell.by}
        if cell.reason:
            rows.append({**row, "reason": cell.reason})
            continue
        for name in SHOWN:
            values = np.array([getattr(f, name) for f in cell.figures], np.float64)
            row[name] = float(values.mean())
            row[f"{name}_std"] = float(values.std(ddof=1)) if values.size > 1 else 0.0
        beside = np.array([f.gradient_error for f in random[cell.budget, cell.by]])
        own = row["gradient_error"]
        of_random = float(beside.std(ddof=1))
        spread = row["gradient_error_std"] if len(cell.figures) > 1 else of_random
        error = np.hypot(spread / np.sqrt(len(cell.figures)), of_random / np.sqrt(beside.size))
        row["seeds"] = len(cell.figures)
        mean = float(beside.mean())
        row["ratio"] = ratio_to_random(own, mean)
        row["beats_random"] = bool(row["ratio"] < 1 and own < mean - 2 * error)
        rows.append(row)
    return rows


def as_markdown(rows: Sequence[dict[str, Any]], budget: str) -> str:
    """Lay the rows of one budget into a table, best first; those not run at the end."""
    by_rows = [r for r in rows if r["budget"] == budget and r["by"] == "rows"]
    by_tokens = {r["method"]: r for r in rows if r["budget"] == budget and r["by"] == "tokens"}
    refused: dict[str, list[str]] = {}
    ran = sorted((r for r in by_rows if "ratio" in r), key=lambda r: float(r["ratio"]))
    head = (
        "method", "error", "of random", "same tokens", "clusters", "worst cluster", "step",
        "effective", "radius", "sources", "lengths", "beats random",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for row in ran:
        beside = by_tokens.get(row["method"], {})
        tokens = beside.get("ratio")
        if "reason" in beside:
            refused.setdefault(f"with as many tokens: {beside['reason']}", []).append(row["method"])
        spread = f" ± {row['gradient_error_std']:.3f}" if row["gradient_error_std"] else ""
        verdict = "-" if row["method"] == "random" else ("yes" if row["beats_random"] else "no")
        cells = (
            row["method"],
            f"{row['gradient_error']:.3f}{spread}",
            f"{row['ratio']:.2f}",
            "-" if tokens is None else f"{tokens:.2f}",
            f"{row['cluster_error_mean']:.3f}",
            f"{row['cluster_error_worst']:.3f}",
            f"{row['step_error']:.3f}",
            f"{row['effective_sample_size']:.0%}",
            f"{row['radius_mean']:.3f}",
            f"{row['shift_of_sources']:.3f}",
            f"{row['shift_of_lengths']:.3f}",
            verdict,
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"- {r['method']}: not run: {r['reason']}" for r in by_rows if "reason" in r)]
    lines += [f"- {', '.join(names)}: not run {why}" for why, names in refused.items()]
    return "\n".join(lines).rstrip()
