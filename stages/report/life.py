"""The life of one row, told from what every stage knows of it. No file is read here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.allocate.keep import BY_DISTANCE


@dataclass(frozen=True)
class Reject:
    """Where and why a row was refused."""

    stage: str
    reason: str
    detail: str


@dataclass(frozen=True)
class Screened:
    """What the screen did to a row.

    Attributes
    ----------
    multiplicity : int
        Rows that it stands for; 0 where it does not go on.
    stands_for : sequence of int
        The first other rows among them.
    kept_as : int
        The earlier row that stands for it, -1 where there is none.
    near : tuple of int and float, or None
        A row that it is near to, and how similar.
    near_collapsed : bool
        Whether near rows were collapsed too.
    leaks : sequence of str
        What it shares with benchmarks.
    """

    multiplicity: int
    stands_for: Sequence[int]
    kept_as: int
    near: tuple[int, float] | None
    near_collapsed: bool
    leaks: Sequence[str]


@dataclass(frozen=True)
class Grouped:
    """A row in its cluster.

    Attributes
    ----------
    cluster, rank, size : int
        `rank` counts from 1, the nearest to the centre; ties go to the earlier row.
    distance : float
    num_kept : int
        Rows of the cluster that were kept.
    kept_from, kept_to : float
        Their smallest and largest distance.
    """

    cluster: int
    rank: int
    size: int
    distance: float
    num_kept: int
    kept_from: float
    kept_to: float


@dataclass(frozen=True)
class Placed:
    """Where a kept row went."""

    worker: int
    position: int
    step: int
    weight: float
    file: str


@dataclass(frozen=True)
class Life:
    """All that is known of a row; None where it did not come so far.

    Attributes
    ----------
    row_id : int or None
        None for a row that could not be read.
    place, source, uid, prompt, answer : str
        Where it is from, and how it begins.
    screen, tokens, signals, group, placed
        From stage to stage: tokens are (all, trained, changes), signals the numbers of the pass.
    reject : Reject or None
    rule : str
        How rows were chosen.
    by_distance : bool
        Whether the rule ranks the rows of a cluster by their distance from its centre.
    """

    row_id: int | None
    place: str
    source: str = ""
    uid: str = ""
    prompt: str = ""
    answer: str = ""
    screen: Screened | None = None
    tokens: tuple[int, int, Sequence[str]] | None = None
    signals: Mapping[str, float] | None = None
    group: Grouped | None = None
    placed: Placed | None = None
    reject: Reject | None = None
    rule: str = ""
    by_distance: bool = False


def rank_in_cluster(
    row_ids: npt.NDArray[np.int64],
    clusters: npt.NDArray[np.int32],
    distances: npt.NDArray[np.float32],
    kept_ids: npt.NDArray[np.int64],
    row_id: int,
) -> Grouped:
    """Place a row among those of its cluster.

    Parameters
    ----------
    row_ids, clusters, distances : ndarray of shape (num_rows,)
        Of all embedded rows, by increasing row id.
    kept_ids : ndarray of int64
        Increasing row ids of the kept rows.
    row_id : int
        One of `row_ids`.
    """
    at = int(np.searchsorted(row_ids, row_id))
    members = np.flatnonzero(clusters == clusters[at])
    order = members[np.lexsort((members, distances[members]))]
    kept = distances[members[np.isin(row_ids[members], kept_ids)]]
    return Grouped(
        cluster=int(clusters[at]),
        rank=int(np.flatnonzero(order == at)[0]) + 1,
        size=int(members.size),
        distance=float(distances[at]),
        num_kept=int(kept.size),
        kept_from=float(kept.min()) if kept.size else 0.0,
        kept_to=float(kept.max()) if kept.size else 0.0,
    )


def goes_by_distance(selector: Mapping[str, Any]) -> bool:
    """Say whether a rule ranks the rows of a cluster by their distance from its centre."""
    return selector.get("keep") in BY_DISTANCE


def rule_text(selector: Mapping[str, Any]) -> str:
    """Say how rows were chosen, from the settings of the selector."""
    options = ", ".join(f"{k}={v}" for k, v in selector.items() if k != "class")
    return f"{selector['class']} ({options})" if options else str(selector["class"])


def tell(life: Life) -> str:
    """Tell the story of a row, a line per stage, the end first."""
    name = "a row that could not be read" if life.row_id is None else f"row {life.row_id}"
    lines = [f"{name}: {fate(life)}", "", _line("from", life.place)]
    for label, text in (
        ("source", life.source),
        ("uid", life.uid),
        ("prompt", life.prompt),
        ("answer", life.answer),
    ):
        if text:
            lines.append(_line(label, text))
    lines.append("")
    if life.row_id is None:
        lines.append(_line("rows", _reject_text(life.reject)))
        return "\n".join(lines)
    lines.append(_line("rows", f"read as row {life.row_id}"))
    lines += [_line(stage, text) for stage, text in _stages(life)]
    return "\n".join(lines)


def fate(life: Life) -> str:
    """Say in a few words what became of a row."""
    if life.placed is not None:
        return f"kept, on worker {life.placed.worker} with weight {life.placed.weight:.3f}"
    if life.reject is not None:
        return f"rejected in {life.reject.stage}: {life.reject.reason}"
    if life.screen is not None and life.screen.kept_as >= 0 and life.screen.multiplicity == 0:
        return f"not in the set, row {life.screen.kept_as} stands for it"
    return "not selected"


def _stages(life: Life) -> list[tuple[str, str]]:
    found = []
    if life.screen is not None:
        found += [("screen", text) for text in _screen_texts(life.screen)]
    if life.tokens is not None:
        total, trained, changes = life.tokens
        changed = f"; mended: {', '.join(changes)}" if changes else ""
        found.append(("tokens", f"{total} tokens, {trained} of them trained{changed}"))
    if life.signals is not None:
        found.append(("embed", ", ".join(f"{k} {v:.4g}" for k, v in life.signals.items())))
    if life.group is not None:
        group = life.group
        found.append(
            (
                "cluster",
                f"cluster {group.cluster}, distance {group.distance:.4f} from its centre: number "
                f"{group.rank} of {group.size} rows, nearest first",
            )
        )
        found.append(("allocate", _allocate_text(life, group)))
    if life.placed is not None:
        place = life.placed
        found.append(("shards", f"{place.file}, row {place.position} (from 0)"))
    if life.reject is not None:
        found.append((life.reject.stage, _reject_text(life.reject)))
    return found


def _screen_texts(screen: Screened) -> list[str]:
    texts = [f"shares text with a benchmark: {leak}" for leak in screen.leaks]
    if screen.multiplicity == 0 and screen.kept_as < 0:
        return texts  # it was rejected, which its own line says
    if screen.kept_as >= 0:
        how = "equal to"
        if screen.near is not None:
            how = f"near to row {screen.near[0]} (similarity {screen.near[1]:.2f}), so joined with"
        elif screen.near_collapsed:
            how = "equal to, or near to one that is near to,"
        fate = "which stands for it" if screen.multiplicity == 0 else "and kept all the same"
        texts.append(f"{how} row {screen.kept_as}, {fate}")
    elif screen.multiplicity > 1:
        others = ", ".join(map(str, screen.stands_for))
        more = screen.multiplicity - 1 - len(screen.stands_for)
        texts.append(
            f"goes on, and stands for {screen.multiplicity} rows: itself and {others}"
            + (f" and {more} more" if more > 0 else "")
        )
    else:
        texts.append("goes on")
    return texts


def _allocate_text(life: Life, group: Grouped) -> str:
    chosen = f"{life.rule} kept {group.num_kept} of {group.size} rows of cluster {group.cluster}"
    if group.num_kept:
        chosen += f", at distances from {group.kept_from:.4f} to {group.kept_to:.4f}"
    if life.placed is None:
        beside = "" if life.by_distance else ", which decides nothing under this rule"
        return f"not selected: {chosen}; this one is at {group.distance:.4f}{beside}"
    place = life.placed
    return (
        f"kept: worker {place.worker}, position {place.position}, step {place.step} of an epoch "
        f"(from 0), weight {place.weight:.4f}; {chosen}"
    )


def _reject_text(reject: Reject | None) -> str:
    assert reject is not None, "a row without an id is a reject"
    return f"rejected: {reject.reason}" + (f" ({reject.detail})" if reject.detail else "")


def _line(label: str, text: str) -> str:
    return f"  {label:<10}{text}"
