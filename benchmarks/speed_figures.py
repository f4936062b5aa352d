"""Figures of earlier runs, for benchmarks whose sections can be measured one at a time."""

import json
from collections.abc import Mapping, Sequence

from benchmarks import results
from benchmarks.results import Figure


def kept(
    name: str, beginnings: Mapping[str, tuple[str, ...]], sections: Sequence[str]
) -> dict[str, list[Figure]]:
    """Read the figures of a benchmark that belong to none of some sections.

    Parameters
    ----------
    name : str
        Of the benchmark.
    beginnings : mapping of str to tuple of str
        How the figures of each section begin.
    sections : sequence of str
        Those that are measured now.

    Returns
    -------
    dict of str to list of Figure
        By section.
    """
    found: dict[str, list[Figure]] = {}
    for figure in read(name):
        for section, words in beginnings.items():
            if section not in sections and figure.figure.startswith(words):
                found.setdefault(section, []).append(figure)
    return found


def read(name: str) -> list[Figure]:
    """Read the figures of a benchmark; none where it was never run."""
    file = results.RESULTS / f"{name}.json"
    if not file.exists():
        return []
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return [Figure(row["figure"], row["value"], row["target"], row["better"]) for row in rows]
