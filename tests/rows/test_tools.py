"""Which tools a row has, whatever form its columns have."""

import json
from typing import Any

import pytest

from stages.rows.tools import with_tools
from stages.screen.text import digest

CALLS = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
SAID = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}]
CALLED = [SAID[0], {**SAID[1], "tool_calls": CALLS}]
FOREIGN = [{"role": "user", "content": "other"}, {"role": "assistant", "content": "answer"}]


def meta_of(**columns: Any) -> str:
    return json.dumps(columns)


@pytest.mark.parametrize("messages", [None, CALLED, json.dumps(CALLED)], ids=str)
@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS), [json.dumps(TOOLS[0])]], ids=str)
def test_descriptions_are_the_row_s_with_and_without_calls(tools: Any, messages: Any) -> None:
    told = with_tools(SAID, meta_of(tools=tools, messages=messages))
    assert (told.tools, told.unread) == (TOOLS, False)
    assert ("tool_calls" in told.turns[1]) == (messages is not None)


@pytest.mark.parametrize("tools", [None, [], "", "[]", " "], ids=repr)
def test_no_tools_are_none(tools: Any) -> None:
    told = with_tools(SAID, meta_of(tools=tools))
    assert (told.turns, told.tools, told.unread, told.added) == (SAID, None, False, [])


@pytest.mark.parametrize("tools", ["search, add", ["add"], {"add": 1}, [TOOLS[0], 7], 3], ids=repr)
def test_what_is_no_list_of_descriptions_is_told(tools: Any) -> None:
    told = with_tools(SAID, meta_of(tools=tools))
    assert (told.tools, told.unread) == (None, True)


def test_tools_of_another_conversation_are_told_and_not_taken() -> None:
    told = with_tools(SAID, meta_of(tools=TOOLS, messages=FOREIGN))
    assert (told.turns, told.tools, told.unread) == (SAID, None, True)


def test_rows_are_equal_exactly_where_what_would_be_rendered_is() -> None:
    plain = digest(SAID, None)
    same = [
        meta_of(note="tool_calls"),
        meta_of(num_tool_calls=3),
        meta_of(note="see tools"),
        meta_of(tools=[]),
        meta_of(tools="[]", id=4),
        meta_of(messages=FOREIGN, tools=TOOLS),
        meta_of(messages=[*FOREIGN, {"role": "tool", "tool_calls": CALLS}]),
    ]
    assert {digest(SAID, meta) for meta in same} == {plain}
    others = [
        meta_of(tools=TOOLS),
        meta_of(tools=[*TOOLS, *TOOLS]),
        meta_of(messages=CALLED),
        meta_of(messages=CALLED, tools=TOOLS),
    ]
    assert len({plain, *(digest(SAID, meta) for meta in others)}) == 5
    one, two = meta_of(tools=TOOLS, id=1), meta_of(tools=json.dumps(TOOLS), id=2)
    assert digest(SAID, one) == digest(SAID, two)
