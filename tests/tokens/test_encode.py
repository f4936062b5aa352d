"""Which tokens are trained: by hand, for every template, and for any text whatever."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenshard.shards import IGNORED_LABEL
from stages.tokens.encode import Encoded, Rejected
from stages.tokens.mask import answer_runs, trained
from tests.tiny import EOS
from tests.tokens.samples import encoder, supervised, turns

NAMES = ("chat", "alpaca", "magicoder", "chatml", "plain")
PIECES = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(
        ["🙂", "👩‍👩‍👧", "你好", "é", "🏽", " ", "  ", "\n", "\t", "\u2003", "Ã", "a", "1"]
    ),
)
ANY_TEXT = st.lists(PIECES, min_size=1, max_size=5).map("".join)
ANSWER = ANY_TEXT.filter(lambda text: bool(text.strip()))


def encode_one(template: str, messages: list[dict[str, str]]) -> Encoded:
    (outcome,) = encoder(template).encode([(messages, "{}")])
    assert isinstance(outcome, Encoded), outcome
    return outcome


def test_mask_by_hand() -> None:
    tokenizer = encoder().tokenizer
    row = encode_one("chat", turns("a", "b"))
    texts = [tokenizer.decode([token]) for token in row.input_ids]
    assert texts[-3:] == ["b", EOS, "\n"]
    assert row.labels.tolist() == [
        *[IGNORED_LABEL] * (row.input_ids.size - 3),
        *row.input_ids[-3:-1].tolist(),
        IGNORED_LABEL,
    ]
    assert row.num_targets == 2
    assert not row.is_truncated


@pytest.mark.parametrize("name", NAMES)
def test_supervised_text_of_every_template(name: str) -> None:
    tokenizer = encoder(name).tokenizer
    single = encode_one(name, turns("Name a prime.", "7"))
    assert supervised(tokenizer, single) == ["7" + EOS]
    many = encode_one(name, turns("Hi", "Hello.", "Bye", "See you.", system="Be short."))
    assert supervised(tokenizer, many) == ["Hello." + EOS, "See you." + EOS]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(question=ANY_TEXT, answer=ANSWER)
def test_the_whole_answer_is_trained(name: str, question: str, answer: str) -> None:
    row = encode_one(name, turns(question, answer))
    (text,) = supervised(encoder(name).tokenizer, row)
    assert text.endswith(answer + EOS)
    # at most one token lies across the border, and it holds whitespace of both sides
    assert not text.removesuffix(answer + EOS).strip()


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(ANSWER, min_size=2, max_size=6).filter(lambda texts: len(texts) % 2 == 0))
def test_every_answer_of_a_long_talk_is_trained(texts: list[str]) -> None:
    row = encode_one("chat", turns(*texts))
    found = supervised(encoder().tokenizer, row)
    for text, answer in zip(found, texts[1::2], strict=True):
        assert text.endswith(answer + EOS)


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(st.tuples(ANY_TEXT, ANY_TEXT), min_size=1, max_size=8))
def test_a_batch_equals_one_row_at_a_time(rows: list[tuple[str, str]]) -> None:
    messages = [(turns(question, answer), "{}") for question, answer in rows]
    together = encoder().encode(messages)
    for row, one in zip(messages, together, strict=True):
        (alone,) = encoder().encode([row])
        assert type(alone) is type(one)
        if isinstance(one, Encoded) and isinstance(alone, Encoded):
            assert one.input_ids.tolist() == alone.input_ids.tolist()
            assert one.labels.tolist() == alone.labels.tolist()
        else:
            assert one == alone


def mask(offsets: np.ndarray, *spans: tuple[int, int]) -> list[bool]:
    marked: list[bool] = trained(len(offsets), answer_runs(offsets, spans)).tolist()
    return marked


def test_tokens_between_the_first_and_last_of_an_answer_are_trained() -> None:
    # characters: 0 prompt, 1..3 answer; the third token has no width of its own
    offsets = np.array([[0, 1], [1, 2], [2, 2], [2, 3], [3, 3], [4, 5]])
    assert mask(offsets, (1, 3)) == [False, True, True, True, False, False]
    # spaces trimmed off: the fifth token stands for character 3
    offsets = np.array([[0, 1], [1, 2], [2, 3], [4, 4], [4, 5]])
    assert mask(offsets, (1, 4)) == [False, True, True, True, False]
    assert mask(np.zeros((0, 2), np.int64), (0, 1)) == []


def test_a_bos_is_put_before_texts_that_lack_it() -> None:
    row = ([*turns("Hi", "Hello.")], "{}")
    plain = encoder("alpaca")
    (without,) = plain.encode([row])
    (with_bos,) = replace(plain, adds_bos=True).encode([row])
    assert isinstance(without, Encoded) and isinstance(with_bos, Encoded)
    bos = plain.tokenizer.bos_token_id
    assert with_bos.input_ids.tolist() == [bos, *without.input_ids.tolist()]
    assert with_bos.labels.tolist() == [IGNORED_LABEL, *without.labels.tolist()]
    (begun,) = replace(encoder("chat"), adds_bos=True).encode([row])
    assert isinstance(begun, Encoded)
    assert begun.input_ids.tolist().count(bos) == 2  # those of the two turns


def test_policies_on_a_row_that_is_too_long() -> None:
    row = (turns("question " * 40, "Paris."), "{}")
    (cut,) = encoder("chat", 32, "truncate").encode([row])
    assert isinstance(cut, Rejected) and cut.reason == "no_supervised_tokens"
    assert cut.num_targets_before > 1 and cut.num_tokens_before > 32
    assert f"{cut.num_targets_before} supervised tokens before and 0 after" in cut.detail
    (refused,) = encoder("chat", 32, "reject").encode([row])
    assert isinstance(refused, Rejected) and refused.reason == "too_long"
    assert refused.detail == f"{cut.num_tokens_before} tokens, tokens.max_length=32"
    keeper = encoder("chat", 32, "keep_answer")
    (kept,) = keeper.encode([row])
    assert isinstance(kept, Encoded) and kept.is_truncated
    assert kept.input_ids.size == 32
    assert kept.input_ids[0] == keeper.tokenizer.bos_token_id
    assert supervised(keeper.tokenizer, kept) == ["Paris." + EOS]
    assert kept.num_targets == kept.num_targets_before


def test_a_token_across_the_border_is_trained_with_its_spaces() -> None:
    row = encode_one("chat", turns("a", "   0"))
    assert supervised(encoder().tokenizer, row) == ["\n   0" + EOS]
