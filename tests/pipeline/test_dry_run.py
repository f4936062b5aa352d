"""The dry run: everything that can be known without a model, on the screen and in the store."""

import json
from pathlib import Path

import pytest

from pipeline.dry_run import marked
from stages.embed.checkpoint import hidden_size, num_parameters, resolve_model
from stages.embed.estimate import embedding_bytes, features_dim, forward_seconds
from tests.pipeline.runs import run


class Words:
    """A tokenizer whose tokens are words."""

    def decode(self, ids: list[int]) -> str:
        return "".join(f"{i} " for i in ids)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([-100, -100, 3, 4], "1 2 «3 4 »"),
        ([-100, 2, -100, 4], "1 «2 »3 «4 »"),
        ([1, 2, 3, 4], "«1 2 3 4 »"),
        ([-100] * 4, "1 2 3 4 "),
    ],
)
def test_trained_text_is_marked(labels: list[int], expected: str) -> None:
    assert marked(Words(), {"input_ids": [1, 2, 3, 4], "labels": labels}) == expected


def test_parameters_are_counted_from_the_headers(model_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder)
    assert num_parameters(model_folder) == sum(p.numel() for p in model.parameters())


def test_the_estimate_grows_with_tokens_and_shrinks_with_workers() -> None:
    one = forward_seconds(10**8, 10**6, device="cpu", workers=1)
    assert forward_seconds(10**8, 2 * 10**6, device="cpu", workers=1) == 2 * one
    assert forward_seconds(10**8, 10**6, device="cpu", workers=2) == one / 2
    assert forward_seconds(10**8, 10**6, device="cuda", workers=1) < one


def test_the_embed_table_is_estimated_by_its_columns(model_folder: Path) -> None:
    assert hidden_size(model_folder) == 32
    assert embedding_bytes(10, 32) == 10 * (8 + 4 * (32 + 8))
    # Every feature of the pass is kept, the judge too; two of these are sketches.
    names = ("target_row", "head_sketch", "judge_sketch")
    assert features_dim(names, hidden_size=32, sketch_size=2048) == 32 + 2 * 2048


def test_a_dry_run_counts_shows_and_leaves_the_model_alone(
    tmp_path: Path, model_folder: Path
) -> None:
    data = tmp_path / "data.jsonl"
    rows = [{"instruction": f"Say {i}.", "output": f"{i}" if i else ""} for i in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows) + "not json\n")
    settings = (
        f"rows.path={data}",
        "rows.limit=0",
        "rows.max_reject_fraction=0.5",
        "compute=local",
    )
    done = run(tmp_path, model_folder, *settings, verb="dry-run")
    assert done.status == 0, done.log
    assert "rows       13 read, 12 kept, 1 rejected" in done.printed
    assert "11 rows" in done.printed and "1 rows rejected" in done.printed
    assert "rows: not_json, 1 rows, for instance\n    data.jsonl:13" in done.printed
    assert "tokens: no_supervised_tokens, 1 rows, for instance\n    data.jsonl:1 " in done.printed
    assert "«1<|im_end|>»" in done.printed
    assert "estimate   embed takes about" in done.printed
    assert "loading the model" not in done.log and not done.out.exists()
    again = run(tmp_path, model_folder, *settings)
    assert again.status == 0, again.log
    assert "rows" in again.stages("reused") and "tokens" in again.stages("reused")


QUESTION = "What is the sum of the first twenty prime numbers, in base ten, please tell me?"


def leaky(folder: Path) -> tuple[str, ...]:
    """Write 20 rows, two of which repeat an earlier one and two of which leak a test set."""
    asked = [f"Say {i}." for i in range(16)] + ["Say 3.", "Say  3.", QUESTION, f"So: {QUESTION}"]
    rows = [{"instruction": text, "output": "yes"} for text in asked]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sums.jsonl").write_text("torn\n" + json.dumps({"question": QUESTION}) + "\n")
    return (
        f"rows.path={folder / 'data.jsonl'}",
        f"screen.benchmarks=[{folder / 'sums.jsonl'}]",
        "rows.limit=0",
        "compute=local",
    )


@pytest.mark.parametrize("mode", ["drop", "list"])
def test_duplicates_and_leaks_are_told_with_their_places(
    tmp_path: Path, model_folder: Path, mode: str
) -> None:
    done = run(tmp_path, model_folder, *leaky(tmp_path), f"screen.on_leak={mode}", verb="dry-run")
    assert done.status == 0, done.log
    printed = done.printed
    assert "duplicates 2 rows equal to an earlier one, collapsed into it\n" in printed
    assert "\n    data.jsonl:17 repeats data.jsonl:4\n    data.jsonl:18 repeats data" in printed
    fate = {"drop": "dropped", "list": "kept and listed"}[mode]
    assert f"leaks      2 rows share 13 words in a row with a benchmark, {fate}" in printed
    assert "; 1 unreadable lines in sums.jsonl not looked for" in printed
    assert "    sums.jsonl: 2 rows share text with its 1 items" in printed
    hit = "100% of its 13-grams in sums.jsonl:2, such as: what is the sum of the first twenty"
    if mode == "drop":
        assert "of the pool" not in printed
        assert f"screen: benchmark_leak, 2 rows, for instance\n    data.jsonl:19 {hit}" in printed
    else:
        assert "kept and listed: 11.11% of the pool; 1 unread" in printed
        assert f"    data.jsonl:19 has {hit}" in printed
        assert "benchmark_leak" not in printed


def test_the_embedded_model_is_found_where_it_was_converted(tmp_path: Path) -> None:
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").write_text("{}")
    assert resolve_model("smollm2", tmp_path) == tmp_path / "smollm2"


def test_a_dry_run_tells_that_the_folder_holds_another_set(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes nothing there, so it does its work all the same."""
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    rows = [{"instruction": f"Say {i}.", "output": f"{i}"} for i in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out.mkdir()
    (out / "mine.txt").write_text("of the user")
    done = run(tmp_path, model_folder, f"rows.path={data}", "rows.limit=0", verb="dry-run")
    assert done.status == 0, done.log
    assert "rows       8 read" in done.printed
    assert "curate would stop: " in done.log
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
