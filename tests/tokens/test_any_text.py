"""Any conversation, under any template and policy: every answer that fits is trained whole."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stages.tokens.encode import Encoded, Encoder, Rejected
from stages.tokens.messages import MOST_TURNS
from stages.tokens.spans import STAND_IN
from stages.tokens.special import MOST_PRIVATE
from tests.tiny import BOS, EOS, PAD
from tests.tokens.samples import encoder, supervised, turns

ODD = [
    "\0",
    "\r\n",
    "\r",
    "\u2028",
    "\x85",
    "\ufeff",
    "\x1b[2J",
    "🙂",
    "👩\u200d👧",
    "e\u0301",
    "\ufffd",
    "﷽",
    "\U000f0000",
    "\U0010ffff",
    BOS,
    EOS,
    PAD,
    "assistant",
    "user",
    "\n",
    " ",
    "### Response:",
    "<think>",
    "</think>",
    STAND_IN,
    "{{ x }}",
    "{% if %}",
    "None",
    "1",
    "a",
]
TEXT = st.lists(
    st.sampled_from(ODD) | st.text(st.characters(codec="utf-8"), max_size=8), max_size=4
).map("".join)
SAID = TEXT.filter(lambda text: bool(text.strip()))
TALKS = st.lists(st.tuples(SAID, SAID), min_size=1, max_size=4)
NAMES = ("chat", "alpaca", "magicoder", "chatml", "plain")


def encode(how: Encoder, talk: list[tuple[str, str]], system: str | None = None) -> Encoded:
    said = [text for pair in talk for text in pair]
    (outcome,) = how.encode([(turns(*said, system=system), "{}")])
    assert isinstance(outcome, Encoded), outcome
    return outcome


def check_answers(how: Encoder, row: Encoded, answers: list[str]) -> None:
    """Check that the trained text is the answers, and besides them spaces at their borders."""
    runs = supervised(how.tokenizer, row)
    assert len(runs) == len(answers)
    for run, answer in zip(runs, answers, strict=True):
        assert run.endswith(answer + EOS)
        assert not run.removesuffix(answer + EOS).strip()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(talk=TALKS, system=st.none() | SAID)
def test_every_answer_is_trained_whole(
    name: str, talk: list[tuple[str, str]], system: str | None
) -> None:
    how = encoder(name)
    check_answers(how, encode(how, talk, system), [answer for _, answer in talk])


@pytest.mark.parametrize("name", ["chat", "alpaca"])
@settings(max_examples=30, deadline=None)
@given(before=st.text(max_size=200), question=SAID, answer=SAID, length=st.sampled_from([48, 64]))
def test_keep_answer_keeps_an_answer_that_fits(
    name: str, before: str, question: str, answer: str, length: int
) -> None:
    how = encoder(name, length, "keep_answer")
    long = before + question
    whole = encode(encoder(name), [(long, answer)])
    assume(whole.num_targets < length - 2)
    row = encode(how, [(long, answer)])
    assert row.input_ids.size == min(length, whole.input_ids.size)
    check_answers(how, row, [answer])


@settings(max_examples=30, deadline=None)
@given(talk=TALKS, length=st.integers(24, 200))
def test_truncate_and_reject_agree_where_a_row_fits(
    talk: list[tuple[str, str]], length: int
) -> None:
    whole = encode(encoder("chat"), talk)
    texts = [text for pair in talk for text in pair]
    for policy in ("truncate", "keep_answer", "reject"):
        how = encoder("chat", length, policy)
        (row,) = how.encode([(turns(*texts), "{}")])
        if whole.input_ids.size <= length:
            assert isinstance(row, Encoded)
            assert row.input_ids.tolist() == whole.input_ids.tolist()
            assert row.labels.tolist() == whole.labels.tolist()
        elif policy == "reject":
            assert isinstance(row, Rejected) and row.reason == "too_long"
        elif policy == "truncate" and isinstance(row, Encoded):
            assert row.input_ids.tolist() == whole.input_ids[:length].tolist()
            assert row.labels.tolist() == whole.labels[:length].tolist()
        elif policy == "keep_answer":
            assert isinstance(row, Encoded) and row.input_ids.size == length


def test_a_talk_of_endless_turns_is_rejected_before_it_is_rendered() -> None:
    (row,) = encoder().encode([(turns(*["x"] * 100_000), "{}")])
    assert isinstance(row, Rejected) and row.reason == "too_many_turns"
    assert row.detail == f"100000 turns, at most {MOST_TURNS}"


def test_text_that_holds_all_private_characters_ends_no_run() -> None:
    private = "".join(map(chr, range(0xF0000, 0xFFFFE)))
    (row,) = encoder().encode([(turns(f"{EOS}{private}", "b"), "{}")])
    assert isinstance(row, Rejected) and row.reason == "too_many_private_characters"
    half = len(private) // 2
    pieces = [private[:half], private[half:], "x"]
    assert half <= MOST_PRIVATE
    how = encoder("chat", 1 << 20)
    rows = [(turns(f"{EOS}{piece}", "b"), "{}") for piece in pieces]
    together = how.encode(rows)
    for one, row in zip(together, rows, strict=True):
        (alone,) = how.encode([row])
        assert isinstance(one, Encoded) and isinstance(alone, Encoded)
        assert one.input_ids.tolist() == alone.input_ids.tolist()
        assert one.labels.tolist() == alone.labels.tolist()
