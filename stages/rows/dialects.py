"""Dialects: how a row's columns say who spoke. Pure functions from columns to messages.

A dialect is a name, the columns that tell it, and a conversion that gives the messages of a row
(several rows for `instances`). Text is never stripped or altered, except the spaces around the
markers of `marked_text`. An empty answer is kept: whether a row can be trained on is seen when
it is tokenized. The file is long because it is one table: each dialect and its conversion.
"""

import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Columns = dict[str, Any]
Message = dict[str, str]


class Problem(ValueError):
    """Why one row is no conversation: a word for counting, and the rest."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Conversation:
    """Messages of a row, and what else its columns say.

    Attributes
    ----------
    messages : list of {"role", "content"}
        Who said what.
    rest : dict
        The columns that are not in the messages.
    """

    messages: list[Message]
    rest: Columns = field(default_factory=dict)


Convert = Callable[[Columns], Iterator[Conversation | Problem]]


@dataclass(frozen=True)
class Dialect:
    """One way to write conversations.

    Attributes
    ----------
    patterns : tuple of str
        Column names that tell it; `a|b` is one column under either name, `?` one that may lack.
    convert : callable
        Columns of a row -> its conversations.
    says : str
        The columns, in words, for messages.
    """

    patterns: tuple[str, ...]
    convert: Convert
    says: str

    def told_by(self, columns: Container[str]) -> tuple[str, ...]:
        """Give the columns that tell this dialect, or none if they are not all there."""
        for pattern in self.patterns:
            found = [
                (next((n for n in word.rstrip("?").split("|") if n in columns), ""), word)
                for word in pattern.split()
            ]
            if all(name or word.endswith("?") for name, word in found):
                return tuple(name for name, _ in found if name)
        return ()


# In any capitals. Another role is carried as it is: the template says whether it can be written.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
}

_KNOWN_ROLES = frozenset(ROLES.values())

SYSTEM = ("system", "system_prompt")
_MARKER = re.compile(r"<\|(system|user|ai|assistant|eos|eod)\|>")
_MARKER_ROLES = {"system": "system", "user": "user", "ai": "assistant", "assistant": "assistant"}


def content_text(value: object) -> str:
    """Give the text of a content: text itself, null as "", or text parts joined.

    Raises
    ------
    Problem
        If it is, or holds, something else.
    """
    if value is None:
        return ""
    if type(value) is str:
        return value
    if not isinstance(value, list):
        raise Problem("not_text", f"a content of type {type(value).__name__}")
    pieces = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text" or type(text) is not str:
            raise Problem("not_text", f"a content part of type {kind}")
        pieces.append(text)
    return "".join(pieces)


def is_blank(value: object) -> bool:
    """Say whether a value holds nothing: none, white space, or an empty list."""
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def _keys_of(item: Columns) -> tuple[str, str]:
    """Tell under which keys a message has its role and its text; what is filled goes first."""
    plain, other = ("role", "content"), ("from", "value")
    if "role" not in item:
        return other
    unsaid = is_blank(item.get("content")) and not any(is_blank(item.get(key)) for key in other)
    return other if unsaid else plain


def from_messages(items: object) -> tuple[list[Message], list[Columns]]:
    """Read a list of messages in any of the usual keys and roles.

    Returns
    -------
    tuple
        The messages, and the list to keep because it says more than they do (else empty).
    """
    if not isinstance(items, list) or not items:
        raise Problem("no_messages")
    messages, kept, says_more = [], [], False
    for item in items:
        if not isinstance(item, dict):
            raise Problem("not_a_message", f"a {type(item).__name__} among the messages")
        role_key, text_key = _keys_of(item)
        said = item.get(role_key)
        if type(said) is not str or not said.strip():
            raise Problem("unknown_role", "none" if said is None else str(said))
        role = ROLES.get(said.strip().lower(), said)
        told = {role_key, text_key, *(("role", "content") if "role" in item else ())}
        more = {key: value for key, value in item.items() if key not in told}
        says_more = says_more or bool(more)
        content = item.get(text_key)
        if role == "system" and content is None:
            continue
        messages.append({"role": role, "content": content_text(content)})
        given = {"role": item[role_key] if role_key == "role" else role}
        kept.append({**given, **({} if content is None else {"content": content}), **more})
    return messages, kept if says_more else []


def checked(messages: list[Message], rest: Columns) -> Conversation:
    """Check that users say something and that an assistant answers."""
    if any(m["role"] == "user" and not m["content"].strip() for m in messages):
        raise Problem("empty_user_turn")
    if all(m["role"] != "assistant" for m in messages):
        unknown = [m["role"] for m in messages if m["role"] not in _KNOWN_ROLES]
        raise Problem("unknown_role", unknown[0]) if unknown else Problem("no_assistant_turn")
    return Conversation(messages, rest)


def _guarded(convert: Callable[[Columns], Conversation]) -> Convert:
    """Make a conversion of one row give its problem instead of raising it."""

    def converted(row: Columns) -> Iterator[Conversation | Problem]:
        try:
            yield convert(row)
        except Problem as problem:
            yield problem

    return converted


def _name_of(rest: Columns, names: Sequence[str]) -> str:
    """Tell which of the names of one column to read: the first that is filled, else that is there.

    Merged tables have them all, and leave those blank that a row has no use for. Where none is
    there it is the first: a column may be named "", as that of the index of a table often is.
    """
    there = [name for name in names if name in rest] or names[:1]
    return next((name for name in there if not is_blank(rest.get(name))), there[0])


def _taken(rest: Columns, names: Sequence[str]) -> Any:
    """Take one column, of several names, out of the rest; None if it is not there."""
    return rest.pop(_name_of(rest, names), None)


def _text(rest: Columns, names: Sequence[str]) -> str:
    name = _name_of(rest, names)
    value = rest.pop(name, None)
    if value is not None and type(value) is not str:
        raise Problem("not_text", f"{name} is of type {type(value).__name__}")
    return value or ""


def _system(rest: Columns) -> list[Message]:
    """Take the column of the system prompt; a blank one stays where it is."""
    name = _name_of(rest, SYSTEM)
    if name not in rest or (isinstance(rest[name], str) and not rest[name].strip()):
        return []
    return [{"role": "system", "content": _text(rest, [name])}]


def _with_system(rest: Columns, messages: list[Message]) -> list[Message]:
    """Put the column of the system prompt first, unless the messages have one of their own."""
    return (
        messages if messages[:1] and messages[0]["role"] == "system" else _system(rest) + messages
    )


def _messages(*names: str, system_column: bool = False) -> Convert:
    def convert(row: Columns) -> Conversation:
        rest = dict(row)
        turns, kept = from_messages(_taken(rest, names))
        messages = _with_system(rest, turns) if system_column else turns
        if kept:
            rest["messages"] = [*messages[: len(messages) - len(turns)], *kept]
        return checked(messages, rest)

    return _guarded(convert)


def _asked_and_answered(asked: Sequence[str], answered: Sequence[str]) -> Convert:
    """Convert a pair of columns, each of which is text or (as TRL allows) a list of messages."""

    def side(rest: Columns, names: Sequence[str], role: str) -> tuple[list[Message], list[Columns]]:
        if isinstance(rest.get(_name_of(rest, names)), list):
            return from_messages(_taken(rest, names))
        messages: list[Message] = [{"role": role, "content": _text(rest, names)}]
        return messages, []

    def convert(row: Columns) -> Conversation:
        rest = dict(row)
        turns, kept = side(rest, asked, "user")
        prompt = _with_system(rest, turns)
        answer, kept_answer = side(rest, answered, "assistant")
        if kept or kept_answer:
            system = prompt[: len(prompt) - len(turns)]
            rest["messages"] = [*system, *(kept or turns), *(kept_answer or answer)]
        return checked(prompt + answer, rest)

    return _guarded(convert)


def _with_input(instruction: str, given: str) -> str:
    if not given.strip():
        return instruction
    return f"{instruction}\n\n{given}" if instruction else given


def _instruction(row: Columns) -> Conversation:
    """Convert instruction, input (or context) and output (or response)."""
    rest = dict(row)
    asked = _with_input(_text(rest, ["instruction"]), _text(rest, ["input", "context"]))
    answer = _text(rest, ["output", "response"])
    return checked(_with_system(rest, _turns(asked, answer)), rest)


def _turns(asked: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]


def _magicoder(row: Columns) -> Iterator[Conversation | Problem]:
    if _name_of(row, ["problem", "instruction"]) == "problem":
        return _asked_and_answered(["problem"], ["solution"])(row)
    return _guarded(_instruction)(row)


def _instances(row: Columns) -> Iterator[Conversation | Problem]:
    """Convert self-instruct's rows: one instruction, one row for each of its instances."""
    rest = dict(row)
    instances = rest.pop("instances", None)
    if not isinstance(instances, list) or not instances:
        yield Problem("no_messages", "instances is empty")
        return
    for instance in instances:
        if isinstance(instance, dict):
            yield from _guarded(_instruction)({**rest, **instance})
        else:
            yield Problem("not_a_message", "an instance is no object")


def _natural_instructions(row: Columns) -> Conversation:
    """Convert an instance of Natural-Instructions; its first output is the answer."""
    rest = dict(row)
    definition = _taken(rest, ["Definition"])
    lines = definition if isinstance(definition, list) else [definition]
    if any(type(line) is not str for line in lines):
        raise Problem("not_text", "Definition")
    outputs = rest.get("output")
    if not isinstance(outputs, list) or len(outputs) < 2:
        rest.pop("output", None)
    answer = (outputs or [""])[0] if isinstance(outputs, list) else outputs
    asked = _with_input("\n".join(lines), _text(rest, ["input"]))
    return checked(_turns(asked, _text({"output": answer}, ["output"])), rest)


def _marked_text(row: Columns) -> Conversation:
    """Convert one text in which markers say who speaks; spaces around markers belong to them."""
    rest = dict(row)
    before, *pieces = _MARKER.split(_text(rest, ["text"]))
    messages: list[Message] = []
    outside = before
    for marker, text in zip(pieces[::2], pieces[1::2], strict=True):
        if marker in _MARKER_ROLES:
            messages.append({"role": _MARKER_ROLES[marker], "content": text.strip(" ")})
        else:
            outside += text
    if outside.strip():
        raise Problem("text_outside_markers", outside.strip()[:80])
    if not messages:
        raise Problem("no_messages", "no markers")
    return checked(messages, rest)


# In order: where the columns of a file tell several, the first is taken.
DIALECTS: dict[str, Dialect] = {
    "messages": Dialect(("messages",), _messages("messages"), "messages"),
    "sharegpt": Dialect(
        ("conversations|conversation",),
        _messages("conversations", "conversation", system_column=True),
        "conversations",
    ),
    "natural_instructions": Dialect(
        ("Definition input output",), _guarded(_natural_instructions), "Definition + Instances"
    ),
    "instances": Dialect(("instruction instances",), _instances, "instruction + instances"),
    "alpaca": Dialect(
        ("instruction input|context? output", "instruction input|context response"),
        _guarded(_instruction),
        "instruction (+ input or context) + output or response",
    ),
    "magicoder": Dialect(
        ("problem solution", "instruction response"), _magicoder, "problem + solution"
    ),
    "prompt_completion": Dialect(
        ("prompt completion|response",),
        _asked_and_answered(["prompt"], ["completion", "response"]),
        "prompt + completion",
    ),
    "question_answer": Dialect(
        ("question answer|response",),
        _asked_and_answered(["question"], ["answer", "response"]),
        "question + answer",
    ),
    "marked_text": Dialect(("text",), _guarded(_marked_text), "text with <|user|> and <|ai|>"),
}
