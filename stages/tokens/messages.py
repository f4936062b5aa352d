"""What of a row may be rendered: nulls, tool calls, and turns that no answer follows.

Tables pad missing keys with null, and templates raise on null or print the word None. So null
keys are dropped before a template sees them; the text "None" is text and stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.rows.tools import with_tools

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
        Descriptions of the tools that can be called.
    trailing_dropped : int
        Turns behind the last answer that were left out.
    tools_unread : bool
        Whether the row has a column `tools` that cannot be used.
    """

    turns: list[Message]
    tools: list[Any] | None
    trailing_dropped: int
    tools_unread: bool = False


def prepare(
    messages: Sequence[Mapping[str, Any]], meta: str | None, *, supports_tools: bool
) -> Conversation:
    """Turn the messages of a row into what a template can render.

    Parameters
    ----------
    messages : sequence of mapping
        Role and content, as the rows artifact holds them; the content may be null.
    meta : str or None
        JSON of the row's other columns. `tools` of it are rendered, and so are the tool calls of
        `messages` where roles and contents are those of the row.
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
    told = with_tools(messages, meta)
    turns, num_dropped = _until_last_answer(told.turns)
    for index, turn in enumerate(turns):
        _check_turn(index, turn, supports_tools)
    # A padded system column says nothing; a null system turn is left out.
    turns = [turn for turn in turns if turn["role"] != "system" or "content" in turn]
    return Conversation(turns, told.tools, num_dropped, told.unread)


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
