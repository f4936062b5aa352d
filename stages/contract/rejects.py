"""Rows that did not make it, with the place they came from, the reason, and their whole content."""

import json
from collections.abc import Sequence

import pyarrow as pa

from stages.contract.schemas import REJECTS

ROW_COLUMNS = ("row_id", "source_file", "source_line", "messages", "meta")


def reject_rows(
    rows: pa.Table, *, stage: str, reasons: Sequence[str], details: Sequence[str]
) -> pa.Table:
    """Turn rows of the `rows` artifact into lines of a rejects table.

    Parameters
    ----------
    rows : pyarrow.Table
        The rows, with the columns `ROW_COLUMNS`.
    stage : str
        The stage that refuses them.
    reasons, details : sequence of str
        One each per row: the word for the reason, and what was seen.

    Returns
    -------
    pyarrow.Table
        Of schema `REJECTS`; `raw` is UTF-8 JSON with the messages and all other columns.
    """
    raw = [
        json.dumps(
            {"messages": row["messages"], "meta": json.loads(row["meta"] or "{}")},
            ensure_ascii=False,
        ).encode()
        for row in rows.select(["messages", "meta"]).to_pylist()
    ]
    columns = {
        "file": rows["source_file"],
        "line": rows["source_line"],
        "byte_offset": pa.array([-1] * rows.num_rows, pa.int64()),
        "row_id": rows["row_id"],
        "stage": pa.array([stage] * rows.num_rows, pa.large_string()),
        "reason": pa.array(list(reasons), pa.large_string()),
        "detail": pa.array(list(details), pa.large_string()),
        "raw": pa.array(raw, pa.large_binary()),
    }
    return pa.table([columns[name] for name in REJECTS.names], schema=REJECTS)
