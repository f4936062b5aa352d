"""From what a pass found to which rows go on and what each stands for. Functions of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stages.screen.duplicates import first_of_equals, group_facts, sum_multiplicity
from stages.screen.grams import Codes, Ints
from stages.screen.near import Pair, near_pairs

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Found:
    """What is known of all rows, in order of their ids.

    Attributes
    ----------
    high, low : ndarray of shape (num_rows,), uint64
        Halves of the digest of each row's text.
    multiplicity : ndarray of shape (num_rows,), int64
        How many rows each stood for before.
    leaked : ndarray of shape (num_rows,), bool
        Which share text with a benchmark.
    bands : ndarray of shape (num_rows, num_bands), uint64, or None
        Of the signatures; None where near duplicates are not looked for.
    shingles : sequence of ndarray
        Each row's set of shingles, or nothing.
    """

    high: Codes
    low: Codes
    multiplicity: Ints
    leaked: Flags
    bands: Codes | None
    shingles: Sequence[Codes]


@dataclass(frozen=True)
class Decision:
    """What becomes of each row.

    Attributes
    ----------
    multiplicity : ndarray of shape (num_rows,), int64
        How many rows a kept row stands for; 0 where the row does not go on.
    dropped : ndarray of shape (num_rows,), bool
        Rows that are rejected.
    kept_as : ndarray of shape (num_rows,), int64
        The earlier row that is the same (or stands for it), -1 where there is none.
    pairs : list of Pair
        Near rows, by row ids.
    duplicates, near_duplicates : dict
        Counts of rows, groups and the largest group.
    """

    multiplicity: Ints
    dropped: Flags
    kept_as: Ints
    pairs: list[Pair]
    duplicates: dict[str, int]
    near_duplicates: dict[str, int]


def decide(
    found: Found,
    *,
    duplicates: str,
    near_duplicates: str,
    near_threshold: float,
    drop_leaks: bool,
) -> Decision:
    """Drop leaks, then collapse equal rows, then near ones, as far as each is asked.

    Equal rows leak alike, so a group is dropped or kept whole. Near duplicates are looked for
    among the first rows of the groups that stay.
    """
    itself = np.arange(found.high.size)
    dropped = found.leaked if drop_leaks else np.zeros(itself.size, np.bool_)
    first = first_of_equals(found.high, found.low)
    stands_for, pairs, near_facts = first, [], group_facts(itself[:0], dropped[:0])
    if found.bands is not None:
        chosen = np.flatnonzero(
            ~dropped & (first == itself) & np.array([s.size > 0 for s in found.shingles])
        )
        local, roots = near_pairs(
            found.bands[chosen], [found.shingles[i] for i in chosen.tolist()], near_threshold
        )
        pairs = [replace(p, row=int(chosen[p.row]), near=int(chosen[p.near])) for p in local]
        near_facts = group_facts(chosen[roots], np.ones(roots.size, np.bool_))
        if near_duplicates == "collapse":
            leader = itself.copy()
            leader[chosen] = chosen[roots]
            stands_for = leader[first]
    counted = np.where(dropped, 0, found.multiplicity)
    sums = sum_multiplicity(stands_for, counted) if duplicates == "collapse" else counted
    return Decision(
        multiplicity=sums,
        dropped=dropped,
        kept_as=np.where((stands_for == itself) | dropped, -1, stands_for),
        pairs=pairs,
        duplicates=group_facts(first, ~dropped),
        near_duplicates=near_facts,
    )
