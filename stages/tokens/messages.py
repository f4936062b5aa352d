"""What of a row may be rendered: nulls, tool calls, and turns that no answer follows.

Tables pad missing keys with null, and templates raise on null or print the word None. So null
keys are dropped before a template sees them; the text "None" is text and stays.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.rows.dialects import ROLES as SAME_ROLES
from stages.rows.dialects import Problem, content_text

Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")  # any other is for the template to know


# An answer is found by rendering what stands before it, so time grows with the square of the turns.
MOST_TURNS = 1000


class RowRejected(Exception):
    """One row cannot be trained on; the others can.

    Attributes
    ----------
    reason : str
        The word under which it is counted.
    detail : str
        What is wrong with this row, with numbers where there are some.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Conversation:
    """The turns of a row, up to its last answer, without null keys.

    Attributes
    ----------
    turns : list of dict
        Messages as templates take them.
    tools : list of dict or None
        Descriptions of the tools that the turns call.
    trailing_dropped : int
        Turns behind the last answer that were left out.
    """

    turns: list[Message]
    tools: list[Any] | None
    trailing_dropped: int


def prepare(
    messages: Sequence[Mapping[str, Any]], meta: str | None, *, supports_tools: bool
) -> Conversation:
    """Turn the messages of a row into what a template can render.

    Parameters
    ----------
    messages : sequence of mapping
        Role and content, as the rows artifact holds them; the content may be null.
    meta : str or None
        JSON of the row's other columns. Where it holds `messages` with tool calls whose roles and
        contents are those of the row, and `tools`, these are rendered.
    supports_tools : bool
        Whether the template writes tool calls.

    Raises
    ------
    RowRejected
        `no_supervised_tokens`, `empty_user_turn`, `template_cannot_render_tools` or
        `too_many_turns`.
    """
    if len(messages) > MOST_TURNS:
        raise RowRejected("too_many_turns", f"{len(messages)} turns, at most {MOST_TURNS}")
    turns, tools = _with_tool_calls(messages, meta)
    turns, num_dropped = _until_last_answer(turns)
    for index, turn in enumerate(turns):
        _check_turn(index, turn, supports_tools)
    # A padded system column says nothing; a null system turn is left out.
    turns = [turn for turn in turns if turn["role"] != "system" or "content" in turn]
    return Conversation(turns, tools, num_dropped)


def is_answer(turn: Message) -> bool:
    """Say whether a turn holds something to learn: an assistant's text or its tool calls."""
    return turn["role"] == "assistant" and bool(
        turn.get("content", "").strip() or turn.get("tool_calls")
    )


def _check_turn(index: int, turn: Message, supports_tools: bool) -> None:
    role = turn["role"]
    if role == "assistant" and turn.get("tool_calls"):
        if not supports_tools:
            raise RowRejected(
                "template_cannot_render_tools",
                f"turn {index} calls tools, and the template has no tool_calls",
            )
    elif "content" not in turn:
        if role == "user":
            raise RowRejected("empty_user_turn", f"turn {index}: the user's content is null")
        if role == "assistant":
            raise RowRejected("no_supervised_tokens", f"turn {index}: the answer is null")


def _until_last_answer(turns: list[Message]) -> tuple[list[Message], int]:
    answers = [index for index, turn in enumerate(turns) if turn["role"] == "assistant"]
    if not answers:
        raise RowRejected("no_supervised_tokens", f"none of the {len(turns)} turns is an answer")
    length = answers[-1] + 1
    return turns[:length], len(turns) - length


def _with_tool_calls(
    messages: Sequence[Mapping[str, Any]], meta: str | None
) -> tuple[list[Message], list[Any] | None]:
    """Add the tool calls that `meta` kept to the messages they belong to."""
    turns = [_without_nulls(message) for message in messages]
    # The other columns of most rows are large and of no use here: parse few of them.
    if meta is None or "tool_calls" not in meta:
        return turns, None
    columns = json.loads(meta)
    originals = _as_list(columns.get("messages")) if isinstance(columns, dict) else None
    if not originals or not all(isinstance(original, dict) for original in originals):
        return turns, None
    originals = [_without_nulls(original) for original in originals]
    # A column of that name may also be another conversation than the one that was read.
    if len(originals) != len(turns) or not all(map(_agree, originals, turns)):
        return turns, None
    if not any(original.get("tool_calls") for original in originals):
        return turns, None
    merged = [{**original, **turn} for original, turn in zip(originals, turns, strict=True)]
    return merged, _as_list(columns.get("tools"))


def _agree(original: Message, turn: Message) -> bool:
    """Say whether a message as it was written is the turn that was read from it."""
    role = original.get("role")
    if not isinstance(role, str) or turn["role"] not in (
        role,
        SAME_ROLES.get(role.strip().lower()),
    ):
        return False
    try:
        return bool(content_text(original.get("content")) == turn.get("content", ""))
    except Problem:
        return False


def _without_nulls(message: Mapping[str, Any]) -> Message:
    return {key: value for key, value in message.items() if value is not None}


def _as_list(value: object) -> list[Any] | None:
    """Take a list, or the JSON text of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, list) and value else None
