"""The closing words of a whole run: what they tell of duplicates, leaks and changed rows."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from evenshard import verify
from tests.pipeline.runs import Run, run

QUESTION = "What is the sum of the first twenty prime numbers, in base ten, please tell me?"
NUM_PLAIN, NUM_LEAKED = 40, 8


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Rows of which 2 are repeated, 8 leak a test set, and 1 holds a special token."""
    folder = tmp_path_factory.mktemp("data")
    asked = [f"Say {i}." for i in range(NUM_PLAIN - 1)] + [
        "What is <|im_end|>?",
        "Say 1.",
        "Say 2.",
    ]
    asked += [f"{i}: {QUESTION}" for i in range(NUM_LEAKED)]
    rows = [{"instruction": text, "output": f"yes, {text[:4]}"} for text in asked]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sums.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
    return (
        f"rows.path={folder / 'data.jsonl'}",
        f"screen.benchmarks=[{folder / 'sums.jsonl'}]",
        "rows.limit=0",
        "allocate.budget=50%",
        "compute=local",
    )


@pytest.fixture(scope="module")
def listed(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path, settings: tuple[str, ...]
) -> Run:
    done = run(tmp_path_factory.mktemp("listed"), model_folder, *settings, "screen.on_leak=list")
    assert done.status == 0, done.log
    return done


def line_of(done: Run, name: str) -> str:
    [line] = [line for line in done.printed.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).strip()


def test_duplicates_and_changes_are_told(listed: Run) -> None:
    assert line_of(listed, "copies") == "2 rows equal to an earlier one, collapsed into it"
    said = "1 changes of rows (1 special_in_text), listed in changes.parquet"
    assert line_of(listed, "changes") == said
    [change] = pq.read_table(listed.out / "changes.parquet").to_pylist()
    assert (change["file"], change["line"]) == ("data.jsonl", NUM_PLAIN)
    assert verify(listed.out) == []


def test_leaks_are_shares_of_pool_and_selection(listed: Run) -> None:
    """Counted by hand from the texts in the shards."""
    tables = [pq.read_table(file) for file in sorted(listed.out.glob("worker-*.parquet"))]
    texts = [row[0]["content"] for table in tables for row in table["messages"].to_pylist()]
    share = sum(QUESTION in text for text in texts) / len(texts)
    pool = NUM_LEAKED / (NUM_PLAIN + NUM_LEAKED)
    line = line_of(listed, "leaks")
    assert line.startswith("8 rows share 13 words in a row with a benchmark, kept and listed: ")
    assert f"{pool:.2%} of the pool, {share:.2%} of the selection, " in line
    manifest = json.loads((listed.out / "manifest.json").read_text())
    assert manifest["screen"]["leaks"]["shares"]["selection"] == share
    assert f"| leaks | {line} |" in (listed.out / "README.md").read_text()


def test_dropped_leaks_are_counted(
    listed: Run, model_folder: Path, settings: tuple[str, ...]
) -> None:
    done = run(listed.out.parent, model_folder, *settings, f"out={listed.out}-dropped")
    assert done.status == 0, done.log
    words = "8 rows share 13 words in a row with a benchmark, dropped"
    assert line_of(done, "leaks") == words
    assert line_of(done, "rejects") == "8 rows (8 benchmark_leak)"
