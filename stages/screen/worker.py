"""One pass over the text, part by part: digests, shingles, bands of signatures, leaks.

What it finds is left in scratch files of the draft; only counts come back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.parts import PartSpec, Receipt, Worker
from stages.contract.schemas import LEAKS
from stages.contract.tables import Layout
from stages.screen.grams import Codes
from stages.screen.leaks import LeakIndex
from stages.screen.near import band_hashes, banding, shingle_set
from stages.screen.reading import load_index
from stages.screen.text import bare_words, digest, word_code, words

Row = dict[str, Any]

BENCHMARK_WORDS = "benchmark-words.parquet"
ROWS_PER_SLICE = 1000


@dataclass(frozen=True)
class Scan:
    """What a pass looks for.

    Attributes
    ----------
    threshold : float
        Similarity of near duplicates; 0 does not look for them.
    seed : int
        Of their signatures.
    benchmarks : tuple of str
        Names of the benchmarks, whose words lie in the draft; empty does not look for leaks.
    ngram : int
        Words that a leak shares.
    """

    threshold: float
    seed: int
    benchmarks: tuple[str, ...]
    ngram: int


@dataclass(frozen=True)
class MakeScanner:
    """Makes the worker of one process, which builds its own index of the benchmarks."""

    scan: Scan
    rows: Artifact
    draft: Draft

    def __call__(self) -> Worker:
        """Build the index and give the function that works on a part."""
        index = None
        if self.scan.benchmarks:
            index = load_index(self.draft.file(BENCHMARK_WORDS), self.scan.ngram)

        def work(spec: PartSpec) -> Receipt:
            return scan_part(self.scan, index, self.rows, self.draft, spec)

        return work


def scan_part(
    scan: Scan, index: LeakIndex | None, rows: Artifact, draft: Draft, spec: PartSpec
) -> Receipt:
    """Hash the rows of one part, and look for leaks in them."""
    table = rows.read(["messages", "meta"], start=spec.start, stop=spec.stop)
    digests = b"".join(digest(row["messages"], row["meta"]) for row in _rows(table))
    halves = np.frombuffer(digests, "<u8").reshape(-1, 2)
    columns = {"high": pa.array(halves[:, 0]), "low": pa.array(halves[:, 1])}
    if scan.threshold:
        columns |= _near_columns(scan, table)
    sides = {}
    if index is not None:
        sides[leaks_name(spec.index)] = _leaks(index, scan.benchmarks, table, spec.start)
    return draft.write_part(spec, pa.table(columns), layout=Layout(), sides=sides)


def leaks_name(index: int) -> str:
    """Name the scratch file of the leaks of a part."""
    return f"leaks-{index:05d}.parquet"


def _rows(table: pa.Table) -> Iterator[Row]:
    for start in range(0, table.num_rows, ROWS_PER_SLICE):
        yield from table.slice(start, ROWS_PER_SLICE).to_pylist()


def _near_columns(scan: Scan, table: pa.Table) -> dict[str, pa.Array]:
    """Give the shingles of each row and the hashes of its bands; none where it has no words."""
    num_bands, _ = banding(scan.threshold)
    known: dict[str, int] = {}
    sets: list[Codes] = []
    bands = np.zeros((table.num_rows, num_bands), np.uint64)
    for place, row in enumerate(_rows(table)):
        found = shingle_set(_codes(row["messages"], known))
        sets.append(found)
        if found.size:
            bands[place] = band_hashes(found, threshold=scan.threshold, seed=scan.seed)
    return {
        "shingles": pa.array(sets, pa.list_(pa.uint64())),
        "bands": pa.FixedSizeListArray.from_arrays(pa.array(bands.reshape(-1)), num_bands),
    }


def _codes(messages: Sequence[Row], known: dict[str, int]) -> Codes:
    codes = []
    for message in messages:
        for word in words(message["content"]):
            code = known.get(word)
            if code is None:
                code = known[word] = word_code(word)
            codes.append(code)
    return np.array(codes, np.uint64)


def _leaks(index: LeakIndex, names: Sequence[str], table: pa.Table, start: int) -> pa.Table:
    hits = []
    for first in range(0, table.num_rows, ROWS_PER_SLICE):
        texts = [
            (first + place, index.number(bare_words(message["content"])))
            for place, row in enumerate(table.slice(first, ROWS_PER_SLICE).to_pylist())
            for message in row["messages"]
        ]
        if texts:
            hits += index.find(
                np.concatenate([numbers for _, numbers in texts]),
                np.array([numbers.size for _, numbers in texts], np.int64),
                np.array([place for place, _ in texts], np.int64),
            )
    columns = {
        "row_id": [start + hit.row for hit in hits],
        "benchmark": [names[hit.benchmark] for hit in hits],
        "benchmark_line": [hit.line for hit in hits],
        "ngram": [hit.ngram for hit in hits],
        "share": [hit.share for hit in hits],
    }
    return pa.table(columns, schema=LEAKS)
