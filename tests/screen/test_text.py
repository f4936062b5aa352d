"""What is one text, and what is a word."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.screen.text import bare_words, digest, plain, words
from tests.artifacts import SEEDED


def talk(*turns: tuple[str, str | None]) -> list[dict[str, str | None]]:
    return [{"role": role, "content": content} for role, content in turns]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  two\r\n words\t", "two words"),
        ("line\u2028line\u00a0end\u3000", "line line end"),
        ("ﬁve \uff12 cafe\u0301", "five 2 café"),
        ("Case Stays", "Case Stays"),
        ("zero\u200bwidth", "zero\u200bwidth"),
        ("", ""),
        (None, ""),
    ],
)
def test_texts_are_normalised(text: str | None, expected: str) -> None:
    assert plain(text) == expected


@given(st.text())
@SEEDED
def test_normalising_twice_is_normalising_once(text: str) -> None:
    once = plain(text)
    assert plain(once) == once
    assert plain(unicodedata.normalize("NFD", text)) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't, stop! x=3 (a+b)", ["dont", "stop", "x3", "ab"]),
        ("„Größe“ — €5", ["größe", "5"]),
        ("snake_case `code`\n```py", ["snakecase", "code", "py"]),
        ("你好\uff0c世界 ok", ["你", "好", "世", "界", "ok"]),
        ("안녕 세상", ["안녕", "세상"]),
        ("हिन्दी", ["हिन्दी"]),
        ("!?", []),
    ],
)
def test_bare_words(text: str, expected: list[str]) -> None:
    assert bare_words(text) == expected


def test_words_keep_case_and_punctuation() -> None:
    assert words(" Don't  stop.\n你好") == ["Don't", "stop.", "你", "好"]


def test_a_digest_is_that_of_the_normalised_turns() -> None:
    base = digest(talk(("user", "a b"), ("assistant", "c")), "{}")
    assert digest(talk(("user", " a\n b "), ("assistant", "c\r\n")), '{"id": 7}') == base
    for other in (
        talk(("user", "a"), ("assistant", "b c")),
        talk(("system", "a b"), ("assistant", "c")),
        talk(("user", "a b"), ("assistant", "C")),
        talk(("user", "a b"), ("assistant", "c"), ("user", "")),
        talk(("user", "ab"), ("assistant", "c")),
    ):
        assert digest(other, "{}") != base
    assert digest(talk(("user", "a b"), ("assistant", None)), None) == digest(
        talk(("user", "a b"), ("assistant", " ")), None
    )


def test_tool_calls_are_part_of_what_is_said() -> None:
    turns = talk(("user", "q"), ("assistant", None))
    calls = [
        json.dumps(
            {"messages": [turns[0], {"role": "assistant", "tool_calls": [{"n": n}]}], "id": i}
        )
        for n, i in ((1, 1), (1, 2), (2, 3))
    ]
    first, same, other = (digest(turns, meta) for meta in calls)
    assert first == same != other
