"""Real files: what a plain quadratic script says of a part of them is what the stage says."""

import itertools
import json
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.contract.artifact import Artifact
from stages.rows.reading import Row, read_rows
from stages.screen.leaks import FEWEST_WORDS, needed
from tests.conftest import SHARED
from tests.screen.samples import (
    benchmark,
    kept,
    plain_ngrams,
    plain_shingles,
    plain_words,
    rows_of,
    screen,
    side,
)

MIX = SHARED / "data" / "mix"
DUPLICATES = SHARED / "data" / "formats" / "prompt_completion" / "oasst_code_dups.jsonl"
BENCHMARKS = SHARED / "data" / "benchmarks"
NUM_NEAR, NUM_LEAK, NUM_OTHERS, NUM_PLANTED = 900, 1500, 500, 25


def read(path: Path) -> list[list[tuple[str, str]]]:
    if not path.exists():
        pytest.skip(f"the real files are not here: {path}")
    return [
        [(message["role"], message["content"]) for message in row.messages]
        for row in read_rows(str(path))
        if isinstance(row, Row)
    ]


def artifact(store: Path, talks: list[Any]) -> Artifact:
    return rows_of(store, talks, size=400)


def test_exact_duplicates_of_a_real_file(tmp_path: Path) -> None:
    talks = read(DUPLICATES)
    found = screen(tmp_path, artifact(tmp_path, talks))
    assert (len(talks), found.num_rows) == (151, 41)
    assert found.facts["duplicates"]["rows"] == 110
    assert sum(found.array("multiplicity").tolist()) == 151
    distinct = {tuple((r, " ".join(c.split())) for r, c in talk) for talk in talks}
    assert len(distinct) == 41


def test_near_duplicates_are_those_of_all_pairs(tmp_path: Path) -> None:
    """Templated rows are the hard ones: the rows whose beginnings come most often."""
    talks = read(MIX / "train.jsonl")
    talks = [talk for talk in talks if all(content.isascii() for _, content in talk)]
    beginnings = Counter(talk[0][1][:40] for talk in talks)
    talks = sorted(talks, key=lambda talk: -beginnings[talk[0][1][:40]])[:NUM_NEAR]
    sets = [plain_shingles(" ".join(content for _, content in talk)) for talk in talks]
    near: dict[tuple[int, int], float] = {}
    for a, b in itertools.combinations(range(len(talks)), 2):
        shared = len(sets[a] & sets[b])
        similarity = shared / (len(sets[a]) + len(sets[b]) - shared)
        if similarity >= 0.8:
            near[a, b] = similarity
    found = screen(tmp_path, artifact(tmp_path, talks), near_duplicates="report")
    same = {row for row, _ in side(found, "duplicates")}
    pairs = side(found, "near_duplicates")
    for row, earlier, similarity in pairs:
        assert near[earlier, row] == pytest.approx(similarity, rel=1e-6)
    groups = join([(a, b) for a, b in near if a not in same and b not in same], len(talks))
    assert len(pairs) > 20
    assert join([(b, a) for a, b, _ in pairs], len(talks)) == groups


def join(pairs: list[tuple[int, int]], count: int) -> list[int]:
    groups = list(range(count))
    for a, b in pairs:
        low, high = sorted((groups[a], groups[b]))
        groups = [low if group == high else group for group in groups]
    return groups


@pytest.mark.parametrize("ngram", [13, 8])
def test_leaked_rows_are_those_of_all_pairs(tmp_path: Path, ngram: int) -> None:
    """Held-out rows of the same sources stand for a benchmark: templates give many hits."""
    talks = [
        talk
        for talk in read(MIX / "train.jsonl")[:NUM_LEAK]
        if all(content.isascii() for _, content in talk)
    ]
    items = [
        {"question": talk[0][1], "answer": talk[-1][1]}
        for talk in read(MIX / "heldout.jsonl")[::3]
        if all(content.isascii() for _, content in talk)
    ]
    texts = [text for item in items for text in item.values()]
    sizes = [needed(len(plain_words(text)), ngram) for text in texts]
    wanted = [(s, plain_ngrams(t, s)) for s, t in zip(sizes, texts, strict=True) if s]
    expected = set()
    for row, talk in enumerate(talks):
        grams = {
            size: set().union(*(plain_ngrams(content, size) for _, content in talk))
            for size in set(sizes) - {0}
        }
        if any(grams[size] & gram for size, gram in wanted):
            expected.add(row)
    file = benchmark(tmp_path / "heldout.jsonl", *items)
    found = screen(
        tmp_path, artifact(tmp_path, talks), benchmarks=[file], ngram=ngram, on_leak="keep"
    )
    hits = found.side("leaks.parquet").to_pylist()
    assert {hit["row_id"] for hit in hits} == expected
    assert 50 < len(expected) < len(talks)
    for hit in hits:
        size = len(hit["ngram"].split())
        words = tuple(hit["ngram"].split())
        item = items[hit["benchmark_line"] - 1]
        assert any(words in plain_ngrams(text, size) for text in item.values())
        assert any(words in plain_ngrams(text, size) for _, text in talks[hit["row_id"]])


Item = tuple[str, int, tuple[str, ...]]  # file, line, texts


def readable_items() -> list[Item]:
    """Read what can be read of the test sets, by a script of its own; a line may be damaged."""
    items = []
    for path in sorted(BENCHMARKS.glob("*.jsonl")):
        for line, raw in enumerate(path.read_bytes().split(b"\n"), 1):
            try:
                values = json.loads(raw).values()
            except ValueError:
                continue
            items.append((path.name, line, tuple(v for v in values if isinstance(v, str))))
    if not items:
        pytest.skip(f"test sets of which an item can be read are not here: {BENCHMARKS}")
    return items


def shared_items(
    talk: list[tuple[str, str]], items: list[Item], ngram: int
) -> set[tuple[str, int]]:
    """Compare a row with every item, text by text."""
    sizes = range(FEWEST_WORDS, ngram + 1)
    grams = {size: set().union(*(plain_ngrams(text, size) for _, text in talk)) for size in sizes}
    return {
        (file, line)
        for file, line, texts in items
        for text in texts
        if (size := needed(len(plain_words(text)), ngram))
        and grams[size] & plain_ngrams(text, size)
    }


def spaced(talk: list[tuple[str, str]]) -> bool:
    return all(content.isascii() for _, content in talk)


def planted(talks: list[Any], items: list[Item]) -> tuple[list[Any], list[int]]:
    """Put items into rows, in other case and marks; and, as traps, 12 words of them.

    Returns
    -------
    talks : list
        All rows, the planted ones behind.
    places : list of int
        Where an item was planted that is long enough.
    """
    rng = np.random.default_rng(0)
    hosts = [talk for talk in talks if spaced(talk)]
    long = [text for *_, texts in items for text in texts if len(plain_words(text)) >= 13]
    assert long, "the readable items have no text of 13 words"
    all_talks, places = list(talks), []
    for text in rng.permutation(long)[:NUM_PLANTED].tolist():
        (role, content), *rest = hosts[int(rng.integers(len(hosts)))]
        words = re.sub(r"\s+", " -- ", text.upper())
        twelve = " ".join(plain_words(text)[:12])
        places.append(len(all_talks))
        all_talks.append([(role, f"{content}\n{words}\n{content}"), *rest])
        all_talks.append([(role, f"{content}\n{twelve}\nzzz"), *rest])
    return all_talks, places


@pytest.mark.parametrize("ngram", [13, 8])
def test_duplicates_and_leaks_of_all_rows_are_those_of_all_pairs_of_some(
    tmp_path: Path, ngram: int
) -> None:
    """The whole mix is screened against the test sets; a slow script judges every hit and others.

    Few real rows leak what is readable of the test sets (8 words, never 13), so items are planted.
    """
    items = readable_items()
    talks, places = planted(read(MIX / "train.jsonl"), items)
    files = [str(BENCHMARKS / "*.jsonl")]
    found = screen(
        tmp_path, rows_of(tmp_path, talks, size=4000), benchmarks=files, ngram=ngram, on_leak="keep"
    )
    hits = {(h["row_id"], h["benchmark"], h["benchmark_line"]) for h in rows_in(found, "leaks")}
    again = dict(side(found, "duplicates"))
    leaked = {row for row, *_ in hits}
    assert leaked >= set(places)
    assert ngram == 13 or min(leaked) < places[0]
    others = np.random.default_rng(1).choice(len(talks), NUM_OTHERS, replace=False).tolist()
    some = sorted({*leaked, *again, *again.values(), *range(places[0], len(talks)), *others})
    texts = {row: normal(talks[row]) for row in some}
    equal = {}
    for early, late in itertools.combinations(some, 2):
        if late not in equal and texts[early] == texts[late]:
            equal[late] = early
    assert len(equal) >= 16
    assert equal == {row: first for row, first in again.items() if row in some}
    counts = dict(kept(found))
    assert all(counts[row] == 1 + list(equal.values()).count(row) for row in set(equal.values()))
    said = {row: {(file, line) for at, file, line in hits if at == row} for row in some}
    for row in some:
        if spaced(talks[row]):
            expected = shared_items(talks[row], items, ngram)
            # A run that several items of one file share counts for the first of them.
            assert bool(said[row]) == bool(expected) and said[row] <= expected, row
    assert sum(bool(said[row]) for row in range(places[0], len(talks))) >= len(places)


def normal(talk: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(role, " ".join(unicodedata.normalize("NFKC", text).split())) for role, text in talk]


def rows_in(artifact: Artifact, name: str) -> list[dict[str, Any]]:
    return artifact.side(f"{name}.parquet").to_pylist()


def test_case_11_identical_rows_become_one_with_its_count(tmp_path: Path) -> None:
    talks = read(SHARED / "cases" / "11-duplicate-ids-and-identical-rows" / "data.jsonl")
    found = screen(tmp_path, artifact(tmp_path, talks))
    counts = found.array("multiplicity").tolist()
    assert (len(talks), len(counts), sum(counts)) == (28, 6, 28)
    assert counts == [1, 1, 1, 23, 1, 1]
