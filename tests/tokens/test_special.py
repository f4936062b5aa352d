"""Special tokens inside the text of a row, and tokens that end a turn."""

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.tokens.encode import Encoded, Encoder
from stages.tokens.special import SpecialTokens
from stages.tokens.stage import TokensConfig, TokensSettings, load_encoder
from tests.tiny import BOS, CHATML, EOS, PAD, SENTENCES
from tests.tokens.samples import encoder, supervised, tokenizer_folder, turns

PIECES = st.one_of(
    st.sampled_from([BOS, EOS, PAD, "<|im_", "end|>", " ", "\n", "<", "é", "🙂", "\U000f0000"]),
    st.text(st.characters(codec="utf-8"), max_size=6),
)
TEXT = st.lists(PIECES, min_size=1, max_size=6).map("".join)
ANSWER = TEXT.filter(lambda text: bool(text.strip()))


def load(folder: Path, **keys: Any) -> Encoder:
    return load_encoder(TokensSettings(TokensConfig(**keys), folder))


@cache
def spaced() -> Path:
    """Save a tokenizer whose first piece is treated otherwise than the others, as Llama's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=["<unk>", PAD, BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token=PAD, unk_token="<unk>"
    )
    tokenizer.chat_template = CHATML
    folder = Path(mkdtemp())
    tokenizer.save_pretrained(folder)
    return folder


@cache
def variants() -> tuple[Encoder, ...]:
    return encoder(), load(spaced())


def encode_one(how: Encoder, *contents: str) -> Encoded:
    (outcome,) = how.encode([(turns(*contents), "{}")])
    assert isinstance(outcome, Encoded), outcome
    return outcome


def test_a_token_in_the_text_is_letters_and_the_templates_stay_tokens() -> None:
    text, special = encoder(), load(tokenizer_folder(), special_in_text="special")
    eos = text.tokenizer.eos_token_id
    question = f"What is {EOS}?"
    row = encode_one(text, question, f"It is {EOS}, so.")
    assert row.input_ids.tolist().count(eos) == 2  # those of the two turns
    assert row.num_literals == 2
    as_token = encode_one(special, question, f"It is {EOS}, so.")
    assert as_token.input_ids.tolist().count(eos) == 4
    assert as_token.num_literals == 2
    rendered = f"{BOS}user\n{question}{EOS}\n{BOS}assistant\nIt is {EOS}, so.{EOS}\n"
    for one in (row, as_token):
        assert text.tokenizer.decode(one.input_ids) == rendered
        assert supervised(text.tokenizer, one) == [f"It is {EOS}, so.{EOS}"]


@settings(max_examples=150, deadline=None)
@given(question=TEXT, answer=ANSWER)
def test_ids_decode_to_the_rendered_text_either_way(question: str, answer: str) -> None:
    tokenizer = encoder().tokenizer
    rendered = tokenizer.apply_chat_template(turns(question, answer), tokenize=False)
    as_text = encode_one(encoder(), question, answer)
    as_special = encode_one(load_cached("special"), question, answer)
    for row in (as_text, as_special):
        decoded = tokenizer.decode(row.input_ids, clean_up_tokenization_spaces=False)
        assert decoded == rendered
    written = sum(part.count(token) for part in (question, answer) for token in (BOS, EOS, PAD))
    assert as_text.num_literals == as_special.num_literals == written
    # the template's own tokens, and no other
    ids = as_text.input_ids.tolist()
    assert ids.count(tokenizer.bos_token_id) == ids.count(tokenizer.eos_token_id) == 2
    if not written:
        assert as_text.input_ids.tolist() == as_special.input_ids.tolist()
        assert as_text.labels.tolist() == as_special.labels.tolist()


@cache
def load_cached(special_in_text: str) -> Encoder:
    return load(tokenizer_folder(), special_in_text=special_in_text)


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=4))
def test_the_copy_of_a_tokenizer_gives_the_same_ids_and_offsets(texts: list[str]) -> None:
    for how in variants():
        batch = how.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        found = how.special.encode(texts, [()] * len(texts))
        for index, (ids, offsets) in enumerate(found):
            assert ids == batch["input_ids"][index]
            assert [tuple(pair) for pair in offsets] == batch["offset_mapping"][index]


def test_calls_of_tools_may_hold_tokens_too() -> None:
    special = SpecialTokens(encoder().tokenizer)
    call = {"function": {"name": "f", "arguments": {"x": EOS}}}
    parts = [[{"role": "assistant", "content": "", "tool_calls": [call]}], None]
    text = json.dumps(parts[0]) + EOS
    assert special.find(text, parts, lambda marked: json.dumps(marked[0]) + EOS) == ()
    raw = json.dumps(parts[0], ensure_ascii=False) + EOS
    ((start, stop),) = special.find(
        raw, parts, lambda marked: json.dumps(marked[0], ensure_ascii=False) + EOS
    )
    assert raw[start:stop] == EOS and stop < len(raw) - len(EOS)


def test_a_template_that_reads_a_token_in_the_text_keeps_its_meaning() -> None:
    special = SpecialTokens(encoder().tokenizer)

    def cut(parts: Any) -> str:
        return str(parts[0]["content"].split(EOS)[-1])

    parts = [{"role": "assistant", "content": f"a{EOS}b{BOS}"}, None]
    assert special.find(cut(parts), parts, cut) == ()


def with_config(folder: Path, **changes: Any) -> Path:
    """Copy the tiny tokenizer with other entries in its configuration; None takes one out."""
    copy = shutil.copytree(tokenizer_folder(), folder)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = copy / name
        if not file.exists():
            continue
        config = json.loads(file.read_text(encoding="utf-8")) | changes
        config = {key: value for key, value in config.items() if value is not None}
        file.write_text(json.dumps(config), encoding="utf-8")
    return copy


@pytest.mark.parametrize("pad", [None, EOS], ids=["no pad", "pad is eos"])
def test_a_missing_pad_or_one_that_is_eos_loses_no_end(tmp_path: Path, pad: str | None) -> None:
    how = load(with_config(tmp_path / "t", pad_token=pad))
    assert how.tokenizer.pad_token == pad
    rows = [(turns("Hi", "Hello.", "Bye", "See you."), "{}"), (turns("a", f"b{EOS}c"), "{}")]
    for one, usual in zip(how.encode(rows), encoder().encode(rows), strict=True):
        assert isinstance(one, Encoded) and isinstance(usual, Encoded)
        assert one.input_ids.tolist() == usual.input_ids.tolist()
        assert one.labels.tolist() == usual.labels.tolist()
    talk, _ = how.encode(rows)
    assert isinstance(talk, Encoded)
    assert talk.labels.tolist().count(how.tokenizer.eos_token_id) == 2
    assert not talk.lacks_end


# The end of a turn is a special token, yet not the tokenizer's eos; earlier turns are rewritten.
REWRITER = (
    "{% for m in messages %}<U>{{ m.content | upper if not loop.last and m.role == 'user' else"
    " m.content }} " + EOS + "\n{% endfor %}"
)


def test_the_end_of_a_turn_is_trained_though_it_is_no_eos(tmp_path: Path) -> None:
    folder = with_config(tmp_path / "t", eos_token=PAD, pad_token=None)
    (folder / "chat_template.jinja").write_text(REWRITER, encoding="utf-8")
    row = encode_one(load(folder), "Hi", "Hello.", "Bye", "See you.")
    assert supervised(encoder().tokenizer, row) == [f"Hello. {EOS}", f"See you. {EOS}"]
    assert not row.lacks_end


def test_templates_that_write_no_end_are_found_out(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}</turn>\n{% endfor %}", "utf-8")
    assert encode_one(load(tokenizer_folder(), template=str(template)), "Hi", "Hello.").lacks_end
    template.write_text(
        "{% for m in messages %}{{ m.content }}{{ eos_token if loop.last }}\n{% endfor %}", "utf-8"
    )
    how = load(tokenizer_folder(), template=str(template))
    assert not encode_one(how, "Hi", "Hello.").lacks_end
    assert encode_one(how, "Hi", "Hello.", "Bye", "See you.").lacks_end
