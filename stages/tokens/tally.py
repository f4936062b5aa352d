"""Outcomes of rows become tables, counts, and the error when too many were rejected."""

import collections
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.contract.parts import Facts, Receipt, total
from stages.contract.schemas import TOKENS
from stages.tokens.encode import Encoded, Rejected

Kept = Sequence[tuple[int, Encoded]]

SUMS = (
    "kept",
    "rejected",
    "truncated",
    "tokens",
    "targets",
    "trailing_user_dropped",
    "mended_rows",
    "special_in_text",
    "special_in_text_rows",
    "without_end_token",
    "tools_left_out",
)

CHANGES = pa.schema(
    [
        ("row_id", pa.int64()),
        ("file", pa.large_string()),
        ("line", pa.int64()),
        ("change", pa.large_string()),
        ("count", pa.int32()),
    ]
)


def tokens_table(kept: Kept) -> pa.Table:
    """Make the table of encoded rows.

    Parameters
    ----------
    kept : sequence of (row_id, Encoded)
        In order of their ids.
    """
    rows = [encoded for _, encoded in kept]
    columns = [
        pa.array([row_id for row_id, _ in kept], pa.int64()),
        _lists([row.input_ids for row in rows]),
        _lists([row.labels for row in rows]),
        pa.array([row.input_ids.size for row in rows], pa.int32()),
        pa.array([row.num_targets for row in rows], pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=TOKENS)


def changes_table(rows: pa.Table, kept: Sequence[Encoded]) -> pa.Table:
    """Say what was done to which row on its way to the model, one line per row and change.

    Parameters
    ----------
    rows : pyarrow.Table
        row_id, source_file and source_line of the rows that were kept.
    kept : sequence of Encoded
        What became of them, in the same order.

    Returns
    -------
    pyarrow.Table
        `change` is a policy of tokens.on_template_error, `trailing_user_dropped` (`count` turns
        behind the last answer), `special_in_text` (`count` special tokens in messages) or
        `tools_left_out` (the template does not write what tools there are).
    """
    found = [
        (index, change, count)
        for index, row in enumerate(kept)
        for change, count in (
            *((name, 1) for name in row.mended),
            ("trailing_user_dropped", row.trailing_dropped),
            ("special_in_text", row.num_literals),
            ("tools_left_out", int(row.tools_left_out)),
        )
        if count
    ]
    lines = rows.take(pa.array([index for index, _, _ in found], pa.int64()))
    columns = [
        *lines.columns,
        pa.array([change for _, change, _ in found], pa.large_string()),
        pa.array([count for _, _, count in found], pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=CHANGES)


def count_part(kept: Kept, rejects: Sequence[Rejected]) -> Facts:
    """Count what became of the rows of one part."""
    rows = [encoded for _, encoded in kept]
    cut = [row for row in rows if row.is_truncated]
    reasons = collections.Counter(rejected.reason for rejected in rejects)
    mended = collections.Counter(name for row in rows for name in row.mended)
    lengths = [row.num_tokens_before for row in rows]
    lengths += [rejected.num_tokens_before for rejected in rejects]
    return {
        "rows": len(rows) + len(rejects),
        "kept": len(rows),
        "rejected": len(rejects),
        "rejects_by_reason": dict(sorted(reasons.items())),
        "emptied_by_truncation": sum(_is_emptied(rejected) for rejected in rejects),
        "tokens": sum(row.input_ids.size for row in rows),
        "targets": sum(row.num_targets for row in rows),
        "truncated": len(cut),
        "truncated_targets_before": sum(row.num_targets_before for row in cut),
        "truncated_targets_after": sum(row.num_targets for row in cut),
        "trailing_user_dropped": sum(row.trailing_dropped > 0 for row in rows),
        "mended": dict(sorted(mended.items())),
        "mended_rows": sum(bool(row.mended) for row in rows),
        "special_in_text": sum(row.num_literals for row in rows),
        "special_in_text_rows": sum(row.num_literals > 0 for row in rows),
        "without_end_token": sum(row.lacks_end for row in rows),
        "tools_left_out": sum(row.tools_left_out for row in rows),
        "max_length_seen": max(lengths, default=0),
    }


def count_all(receipts: Sequence[Receipt]) -> Facts:
    """Sum the counts of all parts.

    Returns
    -------
    dict
        Counts of rows: kept, rejected, truncated (of those kept), trailing_user_dropped (kept
        up to their last answer), mended_rows and mended (by policy, since the template refuses
        them as they are), special_in_text_rows, without_end_token (an answer of theirs ends
        without one), tools_left_out (they describe tools that their text does not).
        Counts of tokens: tokens, targets, special_in_text (written by somebody into a message),
        max_length_seen (of a row before truncation). truncated_kept_share is the share of the
        truncated rows' targets that was kept.
    """
    reasons: collections.Counter[str] = collections.Counter()
    mended: collections.Counter[str] = collections.Counter()
    for receipt in receipts:
        reasons.update(receipt.stats["rejects_by_reason"])
        mended.update(receipt.stats["mended"])
    before = total(receipts, "truncated_targets_before")
    after = total(receipts, "truncated_targets_after")
    return {
        **{name: total(receipts, name) for name in SUMS},
        "mended": dict(sorted(mended.items())),
        "rejects_by_reason": dict(sorted(reasons.items())),
        "truncated_kept_share": after / before if before else 1.0,
        "max_length_seen": max((r.stats["max_length_seen"] for r in receipts), default=0),
    }


def notices(facts: Facts, special_in_text: str) -> list[str]:
    """Say what was done to rows that the reader should know of, a sentence each.

    Parameters
    ----------
    facts : dict
        As `count_all` gives them.
    special_in_text : str
        `text` or `special`.
    """
    said = []
    if facts["mended_rows"]:
        said.append(
            f"the template refuses {facts['mended_rows']} of the {facts['kept']} rows as they "
            f"are; tokens.on_template_error mended them: {_listed(facts['mended'])}"
        )
    if facts["special_in_text_rows"]:
        said.append(
            f"the text of {facts['special_in_text_rows']} rows holds "
            f"{facts['special_in_text']} special tokens; they are tokenised as "
            f"tokens.special_in_text={special_in_text}"
        )
    if facts["tools_left_out"]:
        said.append(
            f"{facts['tools_left_out']} of the {facts['kept']} rows describe tools that their text "
            "does not: the template writes no tools, or the column `tools` is no list of "
            "descriptions of theirs; changes.parquet names the rows; look at tokens.template"
        )
    if facts["without_end_token"]:
        said.append(
            f"{facts['without_end_token']} of the {facts['kept']} rows have an answer that no "
            "end-of-turn token follows, since the template writes none; a model does not learn "
            "from them where to stop; look at tokens.template and the tokenizer's eos token"
        )
    return said


def complaint(
    receipts: Sequence[Receipt], *, max_reject_fraction: float, max_length: int
) -> tuple[str, str] | None:
    """Say what is wrong with the share of rejected rows, and what may be done.

    Parameters
    ----------
    receipts : sequence of Receipt
        Of all parts.
    max_reject_fraction : float
        Share of all rows that may be rejected.
    max_length : int
        Most tokens of a row.

    Returns
    -------
    (str, str) or None
        The fault and the remedy; None when there are rows and not too many were rejected.
    """
    facts = count_all(receipts)
    rejected, num_rows = facts["rejected"], total(receipts, "rows")
    if facts["kept"] and rejected <= max_reject_fraction * num_rows:
        return None
    reasons = _ordered(facts["rejects_by_reason"])
    counts = _listed(facts["rejects_by_reason"]) or "there were no rows"
    if facts["kept"]:
        share = rejected / num_rows
        relation = f"{share:.1%}, and tokens.max_reject_fraction={max_reject_fraction}"
        enough = np.ceil(share * 1000) / 1000
        remedies = ["look at these rows", f"set tokens.max_reject_fraction={enough:g} or more"]
    else:
        relation = "none is left"
        remedies = ["look at these rows and at tokens.template"]
    emptied = total(receipts, "emptied_by_truncation")
    main = reasons[0] if reasons else ("", 0)
    if main[0] == "no_supervised_tokens" and 2 * emptied >= main[1]:
        remedies.append(
            f"set tokens.on_too_long=keep_answer, since {emptied} rows lost their whole answer "
            f"to tokens.max_length={max_length}"
        )
    elif main[0] == "template_error":
        remedies.append("name more policies in tokens.on_template_error, as skip_turn")
    elif main[0] == "too_long":
        remedies.append(f"raise tokens.max_length={max_length} or set tokens.on_too_long=truncate")
    fault = f"tokens: {rejected} of {num_rows} rows were rejected ({relation}): {counts}"
    return fault, "Remedy: " + "; or ".join(remedies) + "."


def _ordered(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Put the most frequent first."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in _ordered(counts))


def _is_emptied(rejected: Rejected) -> bool:
    return rejected.reason == "no_supervised_tokens" and rejected.num_targets_before > 0


def _lists(arrays: Sequence[npt.NDArray[np.int32]]) -> pa.ListArray:
    """Make a column of lists without a Python object per number."""
    ends = np.cumsum([0, *(array.size for array in arrays)], dtype=np.int32)
    values = np.concatenate([np.empty(0, np.int32), *arrays])
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values))
