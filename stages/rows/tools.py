"""What a row's other columns add to its conversation: calls of tools, and what the tools are.

The screen hashes it, and the tokens stage renders it, so both ask here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.rows.dialects import ROLES, Problem, content_text

Message = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """A conversation with what the other columns say of it.

    Attributes
    ----------
    turns : list of dict
        Its messages without null keys, and with the calls that `meta` kept.
    tools : list of dict or None
        Descriptions of the tools that can be called.
    unread : bool
        Whether the column `tools` holds something that is no list of descriptions, or belongs to
        another conversation than the one that was read.
    """

    turns: list[Message]
    tools: list[Message] | None = None
    unread: bool = False

    @property
    def added(self) -> list[Any]:
        """What is said beyond roles and contents; empty where there is nothing more."""
        more = [
            {key: value for key, value in turn.items() if key not in ("role", "content")}
            for turn in self.turns
        ]
        return [more, self.tools] if any(more) or self.tools else []


def with_tools(messages: Sequence[Mapping[str, Any]], meta: str | None) -> Told:
    """Add what `meta` kept of tools to the messages it belongs to.

    Parameters
    ----------
    messages : sequence of mapping
        Role and content, as the rows artifact holds them; the content may be null.
    meta : str or None
        JSON of the row's other columns. `messages` there are those of the row where they have
        calls, in full, or else another conversation than the one that was read.
    """
    turns = [_without_nulls(message) for message in messages]
    # The other columns of most rows are large and of no use here: parse few of them.
    if meta is None or not ('"tools"' in meta or "tool_calls" in meta):
        return Told(turns)
    columns = json.loads(meta)
    if not isinstance(columns, dict):
        return Told(turns)
    tools, unread = _described(columns.get("tools"))
    originals = _list_in(columns.get("messages"))
    if not originals:
        return Told(turns, tools, unread)
    if not _is_same(originals, turns):
        return Told(turns, None, unread or tools is not None)
    if any(original.get("tool_calls") for original in originals):
        given = [_without_nulls(original) for original in originals]
        turns = [{**original, **turn} for original, turn in zip(given, turns, strict=True)]
    return Told(turns, tools, unread)


def _described(value: object) -> tuple[list[Message] | None, bool]:
    """Read descriptions, or say that there is something else; some tables hold them as JSON."""
    found = _parsed(value)
    if not found:  # null, or no tools
        return None, False
    items = [_parsed(item) for item in found] if isinstance(found, list) else []
    if not items or not all(isinstance(item, dict) for item in items):
        return None, True
    return items, False


def _list_in(value: object) -> list[Any]:
    found = _parsed(value)
    return found if isinstance(found, list) else []


def _parsed(value: object) -> Any:
    """Read a value that may be the JSON text of one; any other text stays what it is."""
    if isinstance(value, str):
        try:
            return json.loads(value) if value.strip() else None
        except ValueError:
            return value
    return value


def _is_same(originals: Sequence[Any], turns: Sequence[Message]) -> bool:
    return len(originals) == len(turns) and all(map(_agree, originals, turns))


def _agree(original: Any, turn: Message) -> bool:
    """Say whether a message as it was written is the turn that was read from it."""
    role = original.get("role") if isinstance(original, dict) else None
    if not isinstance(role, str) or turn["role"] not in (role, ROLES.get(role.strip().lower())):
        return False
    try:
        return bool(content_text(original.get("content")) == turn.get("content", ""))
    except Problem:
        return False


def _without_nulls(message: Mapping[str, Any]) -> Message:
    return {key: value for key, value in message.items() if value is not None}
