"""One column under several names: the first that is filled is read, in any dialect and format."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from stages.rows.dialects import DIALECTS, SYSTEM, Conversation
from stages.rows.reading import Row, read_rows

ASKED = {"instruction": "I"}
PROMPT, QUESTION = {"prompt": "P"}, {"question": "Q"}
TALK = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]
PAIR = {"prompt": "P", "completion": "C"}

# Dialect, the other columns of a row, two names of one column, and what stands in it.
NAMES: list[tuple[str, dict[str, Any], str, str, Any]] = [
    ("alpaca", {**ASKED, "output": "O"}, "input", "context", "text"),
    ("alpaca", {**ASKED, "input": "x"}, "output", "response", "text"),
    ("alpaca", {**ASKED, "input": "x", "output": "O"}, *SYSTEM, "text"),
    ("prompt_completion", PROMPT, "completion", "response", "text"),
    ("prompt_completion", PAIR, *SYSTEM, "text"),
    ("prompt_completion", PROMPT, "completion", "response", TALK[1:]),
    ("question_answer", QUESTION, "answer", "response", "text"),
    ("sharegpt", {}, "conversations", "conversation", TALK),
    ("sharegpt", {"conversation": TALK}, *SYSTEM, "text"),
]
TEXTS = [case for case in NAMES if all(type(v) is str for v in (*case[1].values(), case[4]))]


def test_no_pair_of_names_is_missing_here() -> None:
    words = {word for d in DIALECTS.values() for p in d.patterns for word in p.split()}
    pairs = {tuple(word.rstrip("?").split("|")) for word in words if "|" in word}
    assert pairs | {SYSTEM, ("output", "response")} == {case[2:4] for case in NAMES}


def read_one(path: Path, row: dict[str, Any], dialect: str) -> Row:
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(row))
            writer.writeheader()
            writer.writerow(row)
    else:
        path.write_text(json.dumps([row]))
    (item,) = read_rows(str(path), dialect)
    assert isinstance(item, Row), item
    return item


@pytest.mark.parametrize("blank", ["", " \n", None, []], ids=repr)
@pytest.mark.parametrize(("dialect", "row", "first", "second", "value"), NAMES)
def test_a_blank_name_hides_no_filled_one(
    tmp_path: Path,
    dialect: str,
    row: dict[str, Any],
    first: str,
    second: str,
    value: Any,
    blank: Any,
) -> None:
    only = read_one(tmp_path / "only.json", {**row, second: value}, dialect)
    for names in ((first, second), (second, first)):
        both = {**row, **{name: value if name == second else blank for name in names}}
        found = read_one(tmp_path / "both.json", both, dialect)
        assert (found.messages, found.uid) == (only.messages, only.uid)
        rest = {name: rest for name, rest in json.loads(found.meta).items() if name != first}
        assert rest == json.loads(only.meta)
    swapped = read_one(tmp_path / "swapped.json", {**row, first: value, second: blank}, dialect)
    assert (swapped.messages, swapped.uid) == (only.messages, only.uid)


@pytest.mark.parametrize(("dialect", "row", "first", "second", "value"), TEXTS)
def test_a_blank_cell_hides_no_filled_one(
    tmp_path: Path, dialect: str, row: dict[str, Any], first: str, second: str, value: str
) -> None:
    only = read_one(tmp_path / "only.csv", {**row, second: value}, dialect)
    found = read_one(tmp_path / "both.csv", {**row, first: "", second: value}, dialect)
    assert found.messages == only.messages
    assert value in [message["content"].removeprefix("I\n\n") for message in found.messages]


@pytest.mark.parametrize(("dialect", "row", "first", "second", "value"), NAMES)
def test_of_two_filled_names_the_other_is_kept(
    dialect: str, row: dict[str, Any], first: str, second: str, value: Any
) -> None:
    (only,) = DIALECTS[dialect].convert({**row, first: value})
    (both,) = DIALECTS[dialect].convert({**row, second: "else", first: value})
    assert isinstance(only, Conversation) and isinstance(both, Conversation)
    assert both.messages == only.messages
    assert both.rest == {**only.rest, second: "else"}


def test_a_table_merged_of_alpaca_and_dolly_keeps_the_contexts(tmp_path: Path) -> None:
    path = tmp_path / "merged.csv"
    path.write_text("instruction,input,context,output,response\nA,in,,out,\nD,,the context,,re\n")
    rows = [item for item in read_rows(str(path)) if isinstance(item, Row)]
    assert [[message["content"] for message in row.messages] for row in rows] == [
        ["A\n\nin", "out"],
        ["D\n\nthe context", "re"],
    ]


def test_a_table_merged_of_both_pairs_of_magicoder(tmp_path: Path) -> None:
    path = tmp_path / "merged.csv"
    path.write_text("problem,solution,instruction,response\nP,S,,\n,,I,R\n")
    rows = [item for item in read_rows(str(path), "magicoder") if isinstance(item, Row)]
    assert [[m["content"] for m in row.messages] for row in rows] == [["P", "S"], ["I", "R"]]


def test_messages_merged_of_both_pairs_of_keys() -> None:
    blank = {"role": "", "content": "", "weight": 1}
    turns = [{"from": "human", "value": "U", **blank}, {**blank, "from": "gpt", "value": "A"}]
    (item,) = DIALECTS["messages"].convert({"messages": turns})
    assert isinstance(item, Conversation) and item.messages == TALK
    assert item.rest == {"messages": [{**message, "weight": 1} for message in TALK]}
    filled = [{**message, "from": "", "value": ""} for message in TALK]
    (item,) = DIALECTS["messages"].convert({"messages": filled})
    assert isinstance(item, Conversation) and item.messages == TALK


def test_the_error_names_the_column_that_is_no_text() -> None:
    (item,) = DIALECTS["alpaca"].convert({**ASKED, "output": "", "response": 7})
    assert getattr(item, "detail", "") == "response is of type int"


def test_a_column_without_a_name_is_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "index.csv"
    path.write_text(",instruction,output\n0,I,O\n")
    (row,) = read_rows(str(path))
    assert isinstance(row, Row) and [m["content"] for m in row.messages] == ["I", "O"]
    assert json.loads(row.meta) == {"": "0"}
