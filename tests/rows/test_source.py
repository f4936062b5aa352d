import csv
import json
import logging
from pathlib import Path

import pyarrow as pa
import pytest

from stages.contract.errors import ConfigurationError, DataError
from stages.rows.dialects import Columns
from stages.rows.reading import Reject, Row, read_rows
from stages.rows.source import choose, find

ROW = {"instruction": "I", "output": "O"}


def names(path: Path | str) -> list[str]:
    return [found.name for found in find(str(path))]


def fill(folder: Path, *files: str) -> None:
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(ROW) + "\n")


def test_find_file_folder_and_glob(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fill(
        tmp_path,
        *("b.jsonl", "a/c.jsonl.gz", "a/d.csv", "README.md", "metadata.json", ".cache/x.jsonl"),
        *("LICENSE", "notes.txt", "_tmp/x.jsonl", "p.parquet.gz"),
    )
    assert names(tmp_path / "b.jsonl") == ["b.jsonl"]
    assert names(tmp_path) == ["a/c.jsonl.gz", "a/d.csv", "b.jsonl"]
    assert "README.md" in caplog.text and "and 2 more" in caplog.text
    assert names(tmp_path / "*.jsonl") == ["b.jsonl"]
    assert names(tmp_path / "**" / "*.*") == ["a/c.jsonl.gz", "a/d.csv", "b.jsonl"]
    assert names(tmp_path / "a" / "[cd].*") == ["c.jsonl.gz", "d.csv"]


def test_find_hub_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = find("org/some-set_v1.0")
    assert found.on_hub and found.name == "org/some-set_v1.0"
    fill(tmp_path, "org/here/a.jsonl")
    assert names("org/here") == ["a.jsonl"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "rows.path is empty; set"),
        ("no/such.jsonl", "rows.path=no/such.jsonl does not exist; give"),
        ("./org/name", r"rows.path=./org/name does not exist"),
        ("nothing", "rows.path=nothing does not exist"),
        ("README.md", "rows.path=README.md has no known format.*jsonl"),
        ("*.csv", r"rows.path=\*.csv holds no file of a known format"),
        ("docs", "rows.path=docs holds no file of a known format"),
    ],
)
def test_find_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, "README.md", "docs/a.txt")
    with pytest.raises(ConfigurationError, match=message):
        find(path)


def save(folder: Path, *, rows: int) -> None:
    """Lay out a folder as `datasets.save_to_disk` does."""
    folder.mkdir(parents=True)
    table = pa.table({"prompt": ["P"] * rows, "completion": ["C"] * rows})
    for index in range(2):
        with pa.ipc.new_stream(str(folder / f"data-{index}.arrow"), table.schema) as writer:
            writer.write_table(table)
    files = [{"filename": f"data-{index}.arrow"} for index in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    (folder / "dataset_info.json").write_text("{}")


def test_saved_to_disk(tmp_path: Path) -> None:
    save(tmp_path / "one", rows=3)
    assert names(tmp_path / "one") == ["data-0.arrow", "data-1.arrow"]
    assert len(list(read_rows(str(tmp_path / "one")))) == 6
    save(tmp_path / "dict" / "train", rows=1)
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    assert names(tmp_path / "dict") == ["train/data-0.arrow", "train/data-1.arrow"]
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["test"]}')
    with pytest.raises(ConfigurationError, match=r"none is named train; set rows.path=.*test"):
        find(str(tmp_path / "dict"))


def test_saved_by_the_datasets_package(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    rows = [{"prompt": f"P{n}", "completion": "C", "id": n} for n in range(20)]
    datasets.Dataset.from_list(rows).select(range(5, 20)).save_to_disk(tmp_path / "d", num_shards=2)
    out = list(read_rows(str(tmp_path / "d")))
    assert [row.uid for row in out if isinstance(row, Row)] == [str(n) for n in range(5, 20)]


TURNS = [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A"}]


@pytest.mark.parametrize(
    ("row", "dialect", "columns"),
    [
        ({"messages": [{"role": "assistant"}], "prompt": "P"}, "messages", ("messages",)),
        ({"conversations": TURNS, "id": "1"}, "sharegpt", ("conversations",)),
        ({**ROW, "input": ""}, "alpaca", ("instruction", "input", "output")),
        (ROW, "alpaca", ("instruction", "output")),
        ({"instruction": "I", "context": "", "response": "R"}, "alpaca", None),
        ({"instruction": "I", "response": "R"}, "magicoder", ("instruction", "response")),
        ({"problem": "P", "solution": "S"}, "magicoder", ("problem", "solution")),
        ({"prompt": "P", "completion": "C"}, "prompt_completion", ("prompt", "completion")),
        ({"question": "Q", "answer": "A"}, "question_answer", ("question", "answer")),
        ({"instruction": "I", "instances": [ROW]}, "instances", ("instruction", "instances")),
        ({"Definition": "D", "input": "x", "output": ["y"]}, "natural_instructions", None),
        ({"text": "<|user|> U <|ai|> A"}, "marked_text", ("text",)),
    ],
)
def test_choose(row: Columns, dialect: str, columns: tuple[str, ...] | None) -> None:
    name, told = choose("a.jsonl", [row], "auto")
    assert name == dialect
    assert columns is None or told == columns


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"text": "raw"}, "raw text"),
        ({"prompt": "P", "chosen": "C", "rejected": "R"}, "preference pairs"),
        ({"prompt": "P", "ground_truth": "3"}, "prompts without answers"),
        ({"messages": [{"role": "user", "content": "U"}]}, "prompts without answers"),
        ({"1": {"a": 1}, "2": {"a": 2}}, "2 objects .a dict of dicts"),
        ({"image": {"bytes": "x"}, "conversations": TURNS}, "images"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "images",
        ),
        ({"a": 1}, "columns that tell no dialect"),
    ],
)
def test_something_else_is_refused(row: Columns, what: str) -> None:
    with pytest.raises(DataError, match=rf"^a.jsonl holds .*{what}.* expected .*rows.dialect="):
        choose("a.jsonl", [row], "auto")


def test_choose_takes_the_union_of_columns_and_the_wish() -> None:
    assert choose("a", [{"instruction": "I"}, ROW], "auto")[0] == "alpaca"
    both = {**ROW, "prompt": "P", "completion": "C"}
    assert choose("a", [both], "auto")[0] == "alpaca"
    assert choose("a", [both], "prompt_completion")[0] == "prompt_completion"
    with pytest.raises(DataError, match=r"rows.dialect=sharegpt reads conversations, but a has"):
        choose("a", [both], "sharegpt")


STRAIGHT = [
    *("alpaca/response_key_gpteacher.json", "alpaca/dolly_litgpt.json"),
    *("alpaca/instances_self_instruct.jsonl", "sharegpt/fastchat_dummy.json"),
    *("sharegpt/glaive_toolcall_en.json", "openai_messages/glaive_as_openai_tools.jsonl"),
    *("prompt_completion/oasst_multilingual.jsonl", "prompt_completion/oasst_code_dups.jsonl"),
    *("prompt_completion/question_answer_gsm8k.jsonl", "magicoder/problem_solution_mbpp.jsonl"),
    *("magicoder/oss_instruct_columns_gpteacher.jsonl", "magicoder/evol_instruct_columns.jsonl"),
    "natural_instructions/task1317_country_calling_code.json",
    "natural_instructions/task1485_organ_extraction_anem_dataset.json",
    *("csv/code_prompt_completion.tsv", "csv/opengpt_text_column.csv"),
    *("csv/mmlu_medical_genetics.csv", "parquet/messages_tools_nulls.parquet"),
    *("parquet/sharegpt_nested.parquet", "parquet/sharded"),
    "compressed/gpteacher_roleplay.jsonl.gz",
]


@pytest.mark.parametrize("file", STRAIGHT)
def test_real_files_load_whole(formats: Path, file: str) -> None:
    with (formats / "MANIFEST.tsv").open(encoding="utf-8") as stream:
        counts = {
            line["file"]: int(line["rows"]) for line in csv.DictReader(stream, delimiter="\t")
        }
    out = list(read_rows(str(formats / file)))
    assert not [str(item) for item in out if isinstance(item, Reject)]
    assert len(out) == counts[file]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("unsupported/c4_raw_text.jsonl", "c4_raw_text.jsonl holds raw text"),
        ("unsupported/prompt_only_rl.jsonl", "holds prompts without answers"),
        ("unsupported/pubmedqa_dict_of_dicts.json", "60 objects .a dict of dicts"),
        ("unsupported/trec_fine_grained_ABBR.jsonl", "trec_fine_grained_ABBR.jsonl is empty"),
        ("mutated/empty.jsonl", "empty.jsonl is empty"),
    ],
)
def test_real_files_of_something_else_are_refused(formats: Path, file: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(read_rows(str(formats / file)))
