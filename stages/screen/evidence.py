"""What was found, told: counts for the manifest, tables beside the rows, words for a leak."""

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.contract.parts import Facts
from stages.contract.rejects import reject_rows
from stages.contract.schemas import DUPLICATES, NEAR_DUPLICATES
from stages.screen.decide import Decision
from stages.screen.grams import Ints
from stages.screen.leaks import leaked_shares

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


def share_leaks(
    leaks: Facts, leaked_ids: Ints, pool_ids: Ints, selected_ids: Ints, seed: int
) -> Facts:
    """Add to the counts of leaks what share of the pool, the selection and chance they are.

    Rows that were dropped are in no pool, so nothing is added where leaks are dropped.

    Parameters
    ----------
    leaks : dict
        The entry `leaks` of the screen's facts.
    leaked_ids, pool_ids, selected_ids : ndarray of int64
        Row ids, each once: those that leak, those to choose from, and those chosen among them.
    seed : int
        Of the random selections.
    """
    if leaks["mode"] == "drop":
        return leaks
    rng = np.random.default_rng(seed)
    return {**leaks, "shares": asdict(leaked_shares(leaked_ids, pool_ids, selected_ids, rng))}


def duplicates_text(facts: Facts) -> str:
    """Say how many rows repeat an earlier one, and what became of them.

    Parameters
    ----------
    facts : dict
        With the entries `duplicates` and `near_duplicates` of the screen's facts.
    """
    exact, near = facts["duplicates"], facts["near_duplicates"]
    fates = {"collapse": "collapsed into it", "keep": "kept", "report": "listed"}
    text = f"{exact['rows']} rows equal to an earlier one, {fates[exact['mode']]}"
    if near["mode"] != "off":
        text += f"; {near['rows']} near to one, {fates[near['mode']]}"
    return text


def leaks_text(leaks: Facts) -> str:
    """Say how many rows leak a benchmark, what became of them, and what share they are.

    Parameters
    ----------
    leaks : dict
        The entry `leaks` of the screen's facts, or what `share_leaks` made of it; shares that are
        not known yet may be missing.
    """
    fate = {"drop": "dropped", "keep": "kept", "list": "kept and listed"}[leaks["mode"]]
    text = f"{leaks['rows']} rows share {leaks['ngram']} words in a row with a benchmark, {fate}"
    shares = leaks.get("shares", {})
    told = [f"{shares[name]:.2%} of the {name}" for name in ("pool", "selection") if name in shares]
    if "random_mean" in shares:
        told.append(
            f"{shares['random_mean']:.2%} of a random one of its size "
            f"({shares['random_low']:.2%} to {shares['random_high']:.2%})"
        )
    text += f": {', '.join(told)}" if told else ""
    unread = {
        name: facts["unreadable"]
        for name, facts in leaks["benchmarks"].items()
        if facts["unreadable"]
    }
    if unread:
        text += f"; {sum(unread.values())} unreadable lines in {', '.join(unread)} not looked for"
    return text


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
