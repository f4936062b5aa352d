"""Real files: what a plain quadratic script says of a part of them is what the stage says."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stages.contract.artifact import Artifact
from stages.rows.reading import Row, read_rows
from stages.screen.leaks import needed
from tests.conftest import SHARED
from tests.screen.samples import (
    benchmark,
    plain_ngrams,
    plain_shingles,
    plain_words,
    rows_of,
    screen,
    side,
)

MIX = SHARED / "data" / "mix"
DUPLICATES = SHARED / "data" / "formats" / "prompt_completion" / "oasst_code_dups.jsonl"
NUM_NEAR, NUM_LEAK = 900, 1500


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


def test_case_11_identical_rows_become_one_with_its_count(tmp_path: Path) -> None:
    talks = read(SHARED / "cases" / "11-duplicate-ids-and-identical-rows" / "data.jsonl")
    found = screen(tmp_path, artifact(tmp_path, talks))
    counts = found.array("multiplicity").tolist()
    assert (len(talks), len(counts), sum(counts)) == (28, 6, 28)
    assert counts == [1, 1, 1, 23, 1, 1]
