"""What became of every row: one word each, for the table of all rows and for the funnel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

FATES = ("kept", "not selected", "duplicate", "near duplicate", "rejected")
KEPT, NOT_SELECTED, DUPLICATE, NEAR_DUPLICATE, REJECTED = range(len(FATES))


@dataclass(frozen=True)
class Passed:
    """Row ids that each stage let through, increasing, and those that an earlier row stands for.

    Attributes
    ----------
    num_rows : int
        Rows that were read, ids 0 to num_rows - 1.
    screen, embed, selected : ndarray of int64
        Row ids that passed.
    duplicates : ndarray of int64
        Row ids that were collapsed.
    near : ndarray of int64
        Those of them that are near, and not equal, to another row.
    """

    num_rows: int
    screen: IntArray
    embed: IntArray
    selected: IntArray
    duplicates: IntArray
    near: IntArray


def fates_of(passed: Passed) -> npt.NDArray[np.int8]:
    """Give the fate of every row that was read, as a place in `FATES`.

    A row that passed the screen and is not among the embedded ones was refused on the way.

    Returns
    -------
    ndarray of shape (num_rows,), int8
    """
    fates = np.full(passed.num_rows, REJECTED, np.int8)
    # Under screen.duplicates=keep, equal rows are listed as duplicates and go on all the same.
    collapsed = np.setdiff1d(passed.duplicates, passed.screen, assume_unique=True)
    fates[collapsed] = DUPLICATE
    fates[np.intersect1d(collapsed, passed.near)] = NEAR_DUPLICATE
    fates[passed.embed] = NOT_SELECTED
    fates[passed.selected] = KEPT
    return fates


def funnel(facts: Mapping[str, Mapping[str, Any]], num_selected: int) -> list[dict[str, Any]]:
    """Count the rows from the files to the shards, and what is lost at each step.

    Parameters
    ----------
    facts : mapping of str to mapping
        Facts of the stages rows, screen, tokens and embed.
    num_selected : int
        Rows that were kept in the end.

    Returns
    -------
    list of dict
        step, rows (left after it), lost, why. The losses and the last count add up to the first.
    """
    rows, screen = facts["rows"], facts["screen"]
    tokens, embed = facts["tokens"], facts["embed"]
    steps = [("rows read", int(rows["read"]), "")]
    left = int(rows["read"]) - int(rows["rejected"])
    steps.append(("readable", left, _reasons(rows)))
    if int(rows["kept"]) < left:
        steps.append(("sampled", int(rows["kept"]), f"rows.limit={rows['limit']}"))
    left = int(rows["kept"]) - int(screen["rejected"])
    steps.append(("not leaked", left, _reasons(screen)))
    exact, near = screen["duplicates"], screen["near_duplicates"]
    why = f"{exact['rows']} equal to an earlier row"
    if near["mode"] == "collapse":
        why += f", {near['rows']} near to one"
    steps.append(("distinct", int(screen["kept"]), why))
    steps.append(("trainable", int(tokens["kept"]), _reasons(tokens)))
    steps.append(("embedded", int(embed["kept"]), "refused by the forward pass"))
    steps.append(("kept", num_selected, "not selected"))
    found = []
    before = steps[0][1]
    for name, count, why in steps:
        lost = before - count
        found.append({"step": name, "rows": count, "lost": lost, "why": why if lost else ""})
        before = count
    return found


def _reasons(facts: Mapping[str, Any]) -> str:
    reasons: Mapping[str, int] = facts.get("rejects_by_reason", {})
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())
