"""Tool calls come from the column `messages` only if it is the conversation that was read."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.rows.dialects import ROLES
from stages.rows.reading import Row, read_rows
from stages.tokens.messages import RowRejected, is_answer, prepare
from tests.tokens.samples import turns

CALLS = [{"id": 1, "function": {"name": "f", "arguments": "{}"}}]


def talk(*said: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in said]


def calling(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let the last assistant call a tool."""
    last = max(n for n, message in enumerate(messages) if message.get("role") == "assistant")
    return [{**m, "tool_calls": CALLS} if n == last else m for n, m in enumerate(messages)]


ASKED = turns("ask", "answer")
FOREIGN = {
    "more turns": talk(("user", "ask"), ("assistant", "answer"), ("tool", "x"), ("assistant", "z")),
    "fewer turns": talk(("assistant", "answer")),
    "another question": talk(("user", "other"), ("assistant", "answer")),
    "another answer": talk(("user", "ask"), ("assistant", "other")),
    "another role": talk(("system", "ask"), ("assistant", "answer")),
    "no answer text": talk(("user", "ask"), ("assistant", None)),
    "parts of text": talk(("user", [{"type": "text", "text": "hi"}]), ("assistant", "answer")),
    "an image": talk(("user", [{"type": "image"}]), ("assistant", "answer")),
    "contents that are no text": talk(("user", {"a": 1}), ("assistant", 7)),
    "a role that is no text": [{"role": 7, "content": "ask"}, *talk(("assistant", "answer"))],
    "no roles": [{"content": "ask"}, *talk(("assistant", "answer"))],
}


@pytest.mark.parametrize("messages", FOREIGN.values(), ids=FOREIGN)
def test_another_conversation_in_the_column_changes_nothing(messages: list[Any]) -> None:
    for originals in (calling(messages), json.dumps(calling(messages))):
        meta = json.dumps({"messages": originals, "tools": [{}]})
        row = prepare(ASKED, meta, supports_tools=True)
        assert (row.turns, row.tools, row.trailing_dropped) == (ASKED, None, 0)


def test_the_foreign_column_of_a_row_of_alpaca(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        {"instruction": "ask", "output": "answer", "messages": calling(messages)}
        for messages in FOREIGN.values()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [row for row in read_rows(str(path), "alpaca") if isinstance(row, Row)]
    assert len(rows) == len(FOREIGN)
    for row in rows:
        assert prepare(row.messages, row.meta, supports_tools=True).turns == ASKED


PARTS = [{"type": "text", "text": "as"}, {"type": "text", "text": "k"}]


@pytest.mark.parametrize("key", ["messages", "conversations"])
@pytest.mark.parametrize("content", ["ask", PARTS], ids=["text", "parts"])
@pytest.mark.parametrize(
    "roles", [("user", "assistant"), ("User ", "ASSISTANT"), ("human", "gpt"), ("User", "Bot")]
)
def test_tool_calls_of_the_row_itself_are_kept(
    tmp_path: Path, key: str, content: Any, roles: tuple[str, str]
) -> None:
    """Whatever the roles are called, whether the answer is null, and the contents are parts."""
    user, assistant = roles
    said = [
        {"role": "system", "content": None},
        {"role": user, "content": content},
        {"role": assistant, "content": None, "tool_calls": CALLS},
        {"role": "function", "content": "4"},
        {"role": assistant, "content": [{"type": "text", "text": "four"}]},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({key: said, "system": "S", "tools": [{"type": "t"}]}) + "\n")
    (row,) = read_rows(str(path))
    assert isinstance(row, Row)
    ready = prepare(row.messages, row.meta, supports_tools=True)
    shown = [(turn["role"], turn["content"], "tool_calls" in turn) for turn in ready.turns][-4:]
    assert shown == [
        ("user", "ask", False),
        ("assistant", "", True),
        ("tool", "4", False),
        ("assistant", "four", False),
    ]
    assert ready.tools == [{"type": "t"}]
    assert [is_answer(turn) for turn in ready.turns][-4:] == [False, True, False, True]
    with pytest.raises(RowRejected, match="calls tools"):
        prepare(row.messages, row.meta, supports_tools=False)


CONTENT = st.none() | st.text(max_size=3) | st.integers() | st.just(PARTS)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from([*ROLES, "critic", None, 7]), "content": CONTENT},
    optional={"tool_calls": st.sampled_from([None, [], CALLS, {"a": 1}])},
)


@given(st.lists(MESSAGE, max_size=4), st.lists(st.text(max_size=3), min_size=2, max_size=4))
def test_roles_and_contents_are_always_those_of_the_row(
    originals: list[Any], said: list[str]
) -> None:
    row = turns(*said)
    meta = json.dumps({"messages": originals, "tool_calls": 1})
    ready = prepare(row, meta, supports_tools=True)
    shown = [{"role": turn["role"], "content": turn["content"]} for turn in ready.turns]
    assert shown == row[: len(shown)]
