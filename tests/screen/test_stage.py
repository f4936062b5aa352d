"""The stage as a whole: what goes on, what is listed, what is rejected, and that all adds up."""

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.draft import Draft
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.schemas import DUPLICATES, LEAKS, NEAR_DUPLICATES
from stages.contract.schemas import SCREEN as SCHEMA
from stages.screen.reading import find_benchmarks, read_benchmarks
from stages.screen.stage import SCREEN, ScreenConfig, ScreenSettings, identity
from stages.screen.worker import MakeScanner, Scan
from tests.artifacts import FEW, blobs, bytes_of, embed_table, run_stage, save, tokens_table
from tests.screen.samples import backwards, benchmark, kept, rows_of, screen, side

LONG = " ".join(f"word{i}" for i in range(30))
NEAR = f"{LONG} end"  # shares 26 of 27 shingles
TEXTS = ["one", LONG, "one ", NEAR, "two", "\uff4fne", LONG]


def test_equal_rows_become_one_that_counts_for_all(tmp_path: Path) -> None:
    found = screen(tmp_path, rows_of(tmp_path, TEXTS))
    assert found.read(SCHEMA.names).schema == SCHEMA
    assert kept(found) == [(0, 3), (1, 2), (3, 1), (4, 1)]
    assert found.side("duplicates.parquet").schema == DUPLICATES
    assert side(found, "duplicates") == [(2, 0), (5, 0), (6, 1)]
    assert found.side("near_duplicates.parquet").schema == NEAR_DUPLICATES
    assert found.side("leaks.parquet").schema == LEAKS
    assert [(part.start, part.stop) for part in found.parts] == [(0, 3), (3, 6), (6, 7)]
    facts = found.facts
    assert (facts["read"], facts["kept"], facts["rejected"]) == (7, 4, 0)
    assert facts["duplicates"] == {
        "mode": "collapse",
        "rows": 3,
        "groups": 2,
        "largest_group": 3,
    }
    names = {path.name for path in found.path.iterdir()}
    assert not any(name.startswith(("scan-", "benchmark")) for name in names)


def test_kept_duplicates_are_listed_and_count_for_themselves(tmp_path: Path) -> None:
    found = screen(tmp_path, rows_of(tmp_path, TEXTS), duplicates="keep")
    assert kept(found) == [(i, 1) for i in range(7)]
    assert side(found, "duplicates") == [(2, 0), (5, 0), (6, 1)]
    assert found.facts["duplicates"]["rows"] == 3


def test_rows_collapse_whatever_their_other_columns_say(tmp_path: Path) -> None:
    metas = [json.dumps({"id": i}) for i in range(3)]
    found = screen(tmp_path, rows_of(tmp_path, ["a", "a", "b"], metas=metas))
    assert kept(found) == [(0, 2), (2, 1)]


def test_near_duplicates_are_listed_and_collapsed_on_request(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [NEAR, *TEXTS])
    listed = screen(tmp_path, rows, near_duplicates="report")
    assert kept(listed) == [(0, 2), (1, 3), (2, 2), (5, 1)]
    [(row, near, similarity)] = side(listed, "near_duplicates")
    assert (row, near) == (2, 0)
    # The question of one word comes before each answer: 27 shingles, 28 with the last word.
    assert similarity == pytest.approx(27 / 28)
    assert listed.facts["near_duplicates"] == {
        "mode": "report",
        "rows": 1,
        "groups": 1,
        "largest_group": 2,
    }
    joined = screen(tmp_path, rows, near_duplicates="collapse")
    assert kept(joined) == [(0, 4), (1, 3), (5, 1)]
    assert side(joined, "duplicates") == [(2, 0), (3, 1), (4, 0), (6, 1), (7, 0)]
    facts = joined.facts
    assert facts["read"] == facts["kept"] + facts["duplicates"]["rows"] + 1
    strict = screen(tmp_path, rows, near_duplicates="report", near_threshold=1.0)
    assert side(strict, "near_duplicates") == []


def test_texts_without_spaces_are_compared_by_their_characters(tmp_path: Path) -> None:
    text = "我能吞下玻璃而不伤身体" * 2 + "今天的天气很好我们去公园散步吧"
    found = screen(
        tmp_path, rows_of(tmp_path, [text, f"{text}好", "别的"]), near_duplicates="collapse"
    )
    assert kept(found) == [(0, 2), (2, 1)]


QUESTION = "What is the sum of the first twenty prime numbers, in base ten, please tell me?"
LEAKY = ["clean", f"So: {QUESTION.upper()} Yes.", "one", "one", f"So: {QUESTION.upper()}  Yes."]


def test_leaked_rows_are_rejected_whole_with_their_evidence(tmp_path: Path) -> None:
    file = benchmark(tmp_path / "sums.jsonl", {"id": 1}, {"q": QUESTION, "a": "639"})
    found = screen(tmp_path, rows_of(tmp_path, LEAKY, size=2), benchmarks=[file])
    assert kept(found) == [(0, 1), (2, 2)]
    hits = found.side("leaks.parquet").to_pylist()
    ngram = "what is the sum of the first twenty prime numbers in base ten"
    assert [(h["row_id"], h["benchmark"], h["benchmark_line"]) for h in hits] == [
        (1, "sums.jsonl", 2),
        (4, "sums.jsonl", 2),
    ]
    assert {hit["ngram"] for hit in hits} == {ngram}
    assert hits[0]["share"] == pytest.approx(4 / 6)
    rejects = [row for table in found.sides("rejects-") for row in table.to_pylist()]
    assert [(r["row_id"], r["line"], r["stage"], r["reason"]) for r in rejects] == [
        (1, 2, "screen", "benchmark_leak"),
        (4, 5, "screen", "benchmark_leak"),
    ]
    assert json.loads(rejects[0]["raw"])["messages"][1]["content"] == LEAKY[1]
    assert "67% of its 13-grams in sums.jsonl:2" in rejects[0]["detail"]
    facts = found.facts
    assert facts["rejects_by_reason"] == {"benchmark_leak": 2}
    assert facts["read"] == facts["kept"] + facts["rejected"] + facts["duplicates"]["rows"]
    assert facts["leaks"]["rows"] == 2
    assert facts["leaks"]["benchmarks"]["sums.jsonl"] == {
        "items": 2,
        "too_short": 1,
        "unreadable": 0,
        "unreadable_bytes": 0,
        "leaked_rows": 2,
    }


@pytest.mark.parametrize("on_leak", ["keep", "list"])
def test_leaked_rows_can_stay_with_the_evidence(
    tmp_path: Path, on_leak: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = benchmark(tmp_path / "sums.jsonl", {"q": QUESTION})
    rows = rows_of(tmp_path, LEAKY)
    with caplog.at_level(logging.INFO):
        found = screen(tmp_path, rows, benchmarks=[file], on_leak=on_leak)
    assert kept(found) == [(0, 1), (1, 2), (2, 2)]
    assert [row[0] for row in side(found, "leaks")] == [1, 4]
    assert found.facts["rejected"] == 0
    assert list(found.sides("rejects")) == []
    assert ("screen: row 1 has 67% of its 13-grams" in caplog.text) == (on_leak == "list")


def test_fields_of_lists_are_joined_and_the_window_is_a_choice(tmp_path: Path) -> None:
    words = QUESTION.split()
    file = benchmark(tmp_path / "a.jsonl", {"choices": [" ".join(words[:6]), " ".join(words[6:])]})
    rows = rows_of(tmp_path, [" ".join(words[2:11]), QUESTION])
    assert kept(screen(tmp_path, rows, benchmarks=[file])) == [(0, 1)]
    assert kept(screen(tmp_path, rows, benchmarks=[file], ngram=9, on_leak="keep")) == [
        (0, 1),
        (1, 1),
    ]
    with pytest.raises(DataError, match=r"all of 2 rows .* screen\.on_leak=list"):
        screen(tmp_path, rows, benchmarks=[file], ngram=8)


def test_unreadable_lines_of_a_benchmark_are_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = benchmark(tmp_path / "torn.jsonl", b"\0" * 90, {"q": QUESTION})
    found = screen(tmp_path, rows_of(tmp_path, LEAKY), benchmarks=[file])
    assert found.facts["leaks"]["benchmarks"]["torn.jsonl"]["unreadable"] == 1
    assert "1 lines of the benchmark" in caplog.text
    empty = benchmark(tmp_path / "empty.jsonl", b"\0")
    with pytest.raises(DataError, match=r"empty\.jsonl holds no item that can be read"):
        read_benchmarks(find_benchmarks([empty]), 13)


def test_benchmarks_are_found_by_globs_and_named_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        benchmark(tmp_path / folder / "test.jsonl", {"q": QUESTION})
    (tmp_path / "a" / "README.md").write_text("no data")
    found = find_benchmarks([f"{tmp_path}/**/*", f"{tmp_path}/a/test.jsonl"])
    assert [file.path for file in found] == [tmp_path / f / "test.jsonl" for f in ("a", "b")]
    assert len({file.name for file in found}) == 2
    assert find_benchmarks([f"{tmp_path}/b/*"])[0].name == "test.jsonl"
    with pytest.raises(ConfigurationError, match=r"screen\.benchmarks=.*README\.md has no known"):
        find_benchmarks([f"{tmp_path}/a/README.md"])


def test_the_key_follows_what_acts(tmp_path: Path) -> None:
    def key(**keys: Any) -> Any:
        return identity(ScreenSettings(ScreenConfig(**keys), tmp_path / "hashes"))

    assert key(seed=1, near_threshold=0.5, ngram=8, on_leak="keep") == key()
    assert key(near_duplicates="report", seed=1) != key(near_duplicates="report")
    assert key(duplicates="keep") != key()
    first, other = tmp_path / "first", tmp_path / "other"
    for folder in (first, other):
        folder.mkdir()
        benchmark(folder / "b.jsonl", {"q": QUESTION})
    one, two = (key(benchmarks=[str(folder / "b.jsonl")]) for folder in (first, other))
    assert one == two != key()
    assert key(benchmarks=[str(first / "b.jsonl")], ngram=8) != one
    benchmark(other / "b.jsonl", {"q": "another question"})
    assert key(benchmarks=[str(other / "b.jsonl")]) != one


def test_the_maker_of_workers_can_travel(tmp_path: Path) -> None:
    draft = Draft.create(tmp_path, "screen", "0" * 16)
    maker = MakeScanner(Scan(0.8, 0, ("a",), 13), rows_of(tmp_path, ["a"]), draft)
    assert pickle.loads(pickle.dumps(maker)) == maker


WORDS = st.lists(st.sampled_from(["a", "b", "c", "é"]), max_size=9).map(" ".join)


@given(st.lists(WORDS, min_size=1, max_size=14), st.sampled_from(["off", "report", "collapse"]))
@FEW
def test_parts_and_workers_change_nothing_and_all_rows_count(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], near: str
) -> None:
    folder = tmp_path_factory.mktemp("order")
    file = benchmark(folder / "b.jsonl", {"q": "a b c a b c a b"})
    keys = {"near_duplicates": near, "benchmarks": [file], "near_threshold": 0.5}
    results = []
    for name, size, spread in (("one", 2, None), ("two", 2, backwards), ("wide", 99, None)):
        rows = rows_of(folder / name, ["always here", *texts], size=size)
        options = keys if spread is None else {**keys, "spread": spread}
        found = screen(folder / name, rows, **options)
        names = ("duplicates", "near_duplicates", "leaks")
        results.append((kept(found), *(side(found, name) for name in names), found.facts))
        counted = sum(count for _, count in kept(found)) + found.facts["rejected"]
        assert counted == rows.num_rows
    assert results[0] == results[1] == results[2]
    one, two = (bytes_of(next((folder / name / "screen").glob("*"))) for name in ("one", "two"))
    for volatile in ("manifest.json",):  # it names the keys of its inputs
        del one[volatile], two[volatile]
    assert one == two


def test_what_was_scanned_before_a_kill_is_not_scanned_again(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, TEXTS)
    worked: list[int] = []

    def counting(make: Any, parts: Any, *, uses_gpu: bool) -> Any:
        work = make()
        for spec in parts:
            worked.append(spec.index)
            yield work(spec)
            if len(worked) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        screen(tmp_path, rows, spread=counting)
    found = screen(tmp_path, rows, spread=counting)
    assert worked == [0, 1, 2]
    assert kept(found) == [(0, 3), (1, 2), (3, 1), (4, 1)]


def test_multiplicities_enter_the_weights_by_the_formula(tmp_path: Path) -> None:
    """w_i = (n_k / N) T m_i / (sum of m_j over the kept of k), from the rows to the weights."""
    rng = np.random.default_rng(0)
    copies = rng.integers(1, 6, 60)
    texts = [f"text {i}" for i in rng.permutation(np.repeat(np.arange(60), copies))]
    rows = rows_of(tmp_path, texts, size=50)
    screened = screen(tmp_path, rows)
    ids = screened.array("row_id")
    counts = dict(zip(ids.tolist(), screened.array("multiplicity").tolist(), strict=True))
    assert {texts[i]: n for i, n in counts.items()} == {
        f"text {i}": n for i, n in enumerate(copies.tolist())
    }
    lengths = rng.integers(4, 40, ids.size).tolist()
    tokens = save(tmp_path, "tokens", tokens_table(ids.tolist(), lengths), parent=screened)
    embed = save(tmp_path, "embed", embed_table(ids, blobs([30, 20, 10])), parent=tokens)
    inputs = {"rows": rows, "screen": screened, "tokens": tokens, "embed": embed}
    settings = ClusterConfig(num_clusters=3, n_init=2, min_rows=0)
    inputs["cluster"] = run_stage(CLUSTER_STAGE, settings, inputs, tmp_path)
    config = AllocateConfig(budget="24rows", num_workers=2)
    plan = run_stage(ALLOCATE_STAGE, config, inputs, tmp_path)
    cluster_of = dict(zip(ids.tolist(), inputs["cluster"].array("cluster").tolist(), strict=True))
    mass = np.zeros(3)
    for row_id, count in counts.items():
        mass[cluster_of[row_id]] += count
    assert mass.sum() == len(texts)
    chosen = plan.array("row_id").tolist()
    kept_mass = np.zeros(3)
    for row_id in chosen:
        kept_mass[cluster_of[row_id]] += counts[row_id]
    expected = [
        mass[cluster_of[i]] / mass.sum() * len(chosen) * counts[i] / kept_mass[cluster_of[i]]
        for i in chosen
    ]
    assert np.allclose(plan.array("weight"), expected, rtol=1e-6)


def test_screen_is_the_second_stage() -> None:
    assert (SCREEN.name, SCREEN.reads) == ("screen", ("rows",))
