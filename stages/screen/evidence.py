"""What was found, told: counts for the manifest, tables beside the rows, words for a leak."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.contract.parts import Facts
from stages.contract.rejects import reject_rows
from stages.contract.schemas import DUPLICATES, NEAR_DUPLICATES
from stages.screen.decide import Decision

LEAK = "benchmark_leak"


def describe(
    decision: Decision,
    leaks: pa.Table,
    benchmarks: Mapping[str, Mapping[str, int]],
    *,
    modes: Mapping[str, str],
    ngram: int,
) -> Facts:
    """Count what was found, in plain values.

    With `collapse`, read = kept + rejected + rows of duplicates and of near duplicates.

    Parameters
    ----------
    decision : Decision
        What becomes of each row.
    leaks : pyarrow.Table
        Of schema `LEAKS`.
    benchmarks : mapping
        What was read of each benchmark, by name.
    modes : mapping of str to str
        The choices for duplicates, near_duplicates and leaks.
    ngram : int
        Words that a leak shares.
    """
    dropped = int(decision.dropped.sum())
    pairs = leaks.select(["row_id", "benchmark"]).group_by(["row_id", "benchmark"]).aggregate([])
    by_benchmark = dict.fromkeys(benchmarks, 0)
    for count in pc.value_counts(pairs["benchmark"]).to_pylist():
        by_benchmark[count["values"]] = count["counts"]
    return {
        "read": decision.dropped.size,
        "kept": int(np.count_nonzero(decision.multiplicity)),
        "rejected": dropped,
        "rejects_by_reason": {LEAK: dropped} if dropped else {},
        "duplicates": {"mode": modes["duplicates"], **decision.duplicates},
        "near_duplicates": {"mode": modes["near_duplicates"], **decision.near_duplicates},
        "leaks": {
            "mode": modes["leaks"],
            "ngram": ngram,
            "rows": pc.count_distinct(leaks["row_id"]).as_py(),
            "benchmarks": {
                name: {**counts, "leaked_rows": by_benchmark[name]}
                for name, counts in benchmarks.items()
            },
        },
    }


def leak_text(hit: Mapping[str, object], ngram: int) -> str:
    """Say what a row shares with which item."""
    return (
        f"{hit['share']:.0%} of its {ngram}-grams in {hit['benchmark']}:{hit['benchmark_line']}, "
        f"such as: {hit['ngram']}"
    )


def leak_rejects(rows: pa.Table, leaks: pa.Table, ngram: int) -> pa.Table:
    """Turn dropped rows into rejects, each with its first hit.

    Parameters
    ----------
    rows : pyarrow.Table
        The dropped rows, with the columns that `reject_rows` takes.
    leaks : pyarrow.Table
        All hits, in order of their rows.
    ngram : int
        Words that a leak shares.
    """
    first = np.searchsorted(leaks["row_id"].to_numpy(), rows["row_id"].to_numpy())
    hits = leaks.take(first).to_pylist()
    return reject_rows(
        rows,
        stage="screen",
        reasons=[LEAK] * len(hits),
        details=[leak_text(hit, ngram) for hit in hits],
    )


def side_tables(decision: Decision, leaks: pa.Table) -> dict[str, pa.Table]:
    """Give the tables beside the rows, by file name."""
    others = np.flatnonzero(decision.kept_as >= 0)
    near = {
        "row_id": [pair.row for pair in decision.pairs],
        "near": [pair.near for pair in decision.pairs],
        "similarity": [pair.similarity for pair in decision.pairs],
    }
    return {
        "duplicates.parquet": pa.table([others, decision.kept_as[others]], schema=DUPLICATES),
        "near_duplicates.parquet": pa.table(near, schema=NEAR_DUPLICATES),
        "leaks.parquet": leaks,
    }
