"""Outcomes of rows become tables, counts, and the error when too many were rejected."""

import collections
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.contract.parts import Facts, Receipt, total
from stages.contract.schemas import TOKENS
from stages.tokens.encode import Encoded, Rejected

Kept = Sequence[tuple[int, Encoded]]


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


def count_part(kept: Kept, rejects: Sequence[Rejected]) -> Facts:
    """Count what became of the rows of one part."""
    rows = [encoded for _, encoded in kept]
    cut = [row for row in rows if row.is_truncated]
    reasons = collections.Counter(rejected.reason for rejected in rejects)
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
        "max_length_seen": max(lengths, default=0),
    }


def count_all(receipts: Sequence[Receipt]) -> Facts:
    """Sum the counts of all parts.

    Returns
    -------
    dict
        Counts of rows: kept, rejected, truncated (of those kept), trailing_user_dropped (kept
        up to their last answer). Counts of tokens: tokens, targets, max_length_seen (of a row
        before truncation). truncated_kept_share is the share of the truncated rows' targets
        that was kept.
    """
    reasons: collections.Counter[str] = collections.Counter()
    for receipt in receipts:
        reasons.update(receipt.stats["rejects_by_reason"])
    before = total(receipts, "truncated_targets_before")
    after = total(receipts, "truncated_targets_after")
    sums = ("kept", "rejected", "truncated", "tokens", "targets", "trailing_user_dropped")
    return {
        **{name: total(receipts, name) for name in sums},
        "rejects_by_reason": dict(sorted(reasons.items())),
        "truncated_kept_share": after / before if before else 1.0,
        "max_length_seen": max((r.stats["max_length_seen"] for r in receipts), default=0),
    }


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
    reasons = sorted(facts["rejects_by_reason"].items(), key=lambda item: (-item[1], item[0]))
    counts = ", ".join(f"{reason} {count}" for reason, count in reasons) or "there were no rows"
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
    elif main[0] == "too_long":
        remedies.append(f"raise tokens.max_length={max_length} or set tokens.on_too_long=truncate")
    fault = f"tokens: {rejected} of {num_rows} rows were rejected ({relation}): {counts}"
    return fault, "Remedy: " + "; or ".join(remedies) + "."


def _is_emptied(rejected: Rejected) -> bool:
    return rejected.reason == "no_supervised_tokens" and rejected.num_targets_before > 0


def _lists(arrays: Sequence[npt.NDArray[np.int32]]) -> pa.ListArray:
    """Make a column of lists without a Python object per number."""
    ends = np.cumsum([0, *(array.size for array in arrays)], dtype=np.int32)
    values = np.concatenate([np.empty(0, np.int32), *arrays])
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values))
