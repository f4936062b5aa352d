"""Exact renderings, templates that misbehave, and rows with nulls and tool calls."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from stages.contract.errors import ConfigurationError
from stages.tokens.messages import RowRejected, prepare
from stages.tokens.render import Rendering, Template, choose_template, render_row
from tests.tiny import CHATML, EOS
from tests.tokens.samples import CASES, case_rows, encoder, row_parts, turns

ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\nHi\n\n### Response:\nHello.<|im_end|>"
)
MAGICODER = (
    "You are an exceptionally intelligent coding assistant that consistently delivers accurate "
    "and reliable responses to user instructions.\n\n@@ Instruction\nHi\n\n"
    "@@ Response\nHello.<|im_end|>"
)
PLAIN = "Hi\nHello.<|im_end|>"
TWO = turns("Hi", "Hello.", "Bye", "See you.", system="Be short.")

# Earlier reasoning is stripped, and the prompt opens the reasoning, as some reasoners do.
REASONER = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "<A>{{ m.content.split('</think>')[-1] if not loop.last else m.content }}{{ eos_token }}"
    "{% else %}<U>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<A><think>\n{% endif %}"
)
# No generation prompt, content trimmed, turns closed by the eos token.
TRIMMER = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}"
    "{{ eos_token if m.role == 'assistant' }}\n{% endfor %}"
)
TOOLS = (
    "{% if tools %}TOOLS {{ tools | length }}\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if m.content is defined }}"
    "{% if m.tool_calls %}CALL {{ m.tool_calls[0].function.name }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def render(
    source: str, messages: list[dict[str, Any]], meta: str = "{}", policies: Sequence[str] = ()
) -> Rendering:
    return render_row(
        messages,
        meta,
        template=Template("test", source, source),
        tokenizer=encoder().tokenizer,
        special=encoder().special,
        policies=policies,
    )


def answers(rendering: Rendering) -> list[str]:
    return [rendering.text[start:stop] for start, stop in rendering.spans]


def reason_of(messages: list[dict[str, Any]], meta: str = "{}", source: str = CHATML) -> str:
    with pytest.raises(RowRejected) as caught:
        render(source, messages, meta)
    return caught.value.reason


@pytest.mark.parametrize(
    ("name", "text"), [("alpaca", ALPACA), ("magicoder", MAGICODER), ("plain", PLAIN)]
)
def test_our_templates_to_the_letter(name: str, text: str) -> None:
    source = encoder(name).template.text
    assert render(source, turns("Hi", "Hello.")).text == text
    sign = {
        "alpaca": ("### Instruction:", "### Response:"),
        "magicoder": ("@@ Instruction", "@@ Response"),
    }
    if name in sign:
        more = "\n\n{}\nBye\n\n{}\nSee you.<|im_end|>".format(*sign[name])
        assert render(source, TWO).text == "Be short.\n\n" + text + more
    else:
        assert render(source, TWO).text == "Be short.\n" + text + "\nBye\nSee you.<|im_end|>"


def test_chatml_is_the_template_of_the_tiny_tokenizer() -> None:
    assert render(encoder("chatml").template.text, TWO) == render(CHATML, TWO)


def test_the_line_behind_the_end_of_a_turn_is_not_trained() -> None:
    assert answers(render(CHATML, turns("Hi", "Hello. \n "))) == ["Hello. \n <|im_end|>"]


def test_spaces_of_an_answer_stay_where_no_token_ends_it() -> None:
    source = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    assert answers(render(source, turns("Hi", "Hello. \n ", "Bye", "x "))) == ["Hello. \n ", "x "]


def test_templates_that_strip_earlier_reasoning() -> None:
    talk = turns("Hi", "<think>\nh</think>Hello.", "Bye", "<think>\nb</think>See you.")
    first, last = answers(render(REASONER, talk))
    assert first == "Hello." + EOS
    assert last.endswith("b</think>See you." + EOS)


def test_templates_without_a_generation_prompt() -> None:
    row = render(TRIMMER, turns("assistant", " t ", "7", "7 "))
    assert answers(row) == ["t" + EOS, "7" + EOS]
    source = (
        "{% for m in messages %}"
        "{{ '[I] ' + m.content + ' [/I]' if m.role == 'user' else ' ' + m.content + eos_token }}"
        "{% endfor %}"
    )
    assert answers(render(source, turns("Hi", "Hello."))) == [" Hello." + EOS]


def test_reasoning_that_the_template_opens_is_part_of_the_answer() -> None:
    opening = "('<think></think>' if message.role == 'assistant' else '') + "
    source = CHATML.replace("message['content']", opening + "message['content']")
    assert answers(render(source, turns("Hi", "Hello."))) == ["<think></think>Hello." + EOS]


def test_a_talk_that_begins_with_an_answer() -> None:
    talk = [{"role": "assistant", "content": "s"}, *turns("Thanks", "Sure.")]
    assert answers(render(CHATML, talk)) == ["s" + EOS, "Sure." + EOS]


def test_an_answer_that_the_template_changes_is_not_guessed_at() -> None:
    source = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    assert reason_of(turns("Hi", "Hello."), source=source) == "answer_not_found_in_rendering"


def test_turns_behind_the_last_answer_are_dropped() -> None:
    talk = turns("Hi", "Hello.", "Bye")
    row = render(CHATML, talk)
    assert row.text == render(CHATML, talk[:2]).text
    assert row.trailing_dropped == 1
    assert reason_of(turns("Hi")) == "no_supervised_tokens"


def test_empty_answers_teach_nothing() -> None:
    assert reason_of(turns("Hi", "")) == "no_supervised_tokens"
    assert reason_of(turns("Hi", " \n")) == "no_supervised_tokens"
    assert answers(render(CHATML, turns("Hi", "", "And?", "Yes."))) == ["Yes." + EOS]


def test_what_a_template_raises_is_said() -> None:
    source = "{{ raise_exception('no such role') }}"
    with pytest.raises(RowRejected, match="no such role") as caught:
        render(source, turns("Hi", "Hello."))
    assert caught.value.reason == "template_error"
    critic = [{"role": "critic", "content": "x"}, {"role": "assistant", "content": "y"}]
    assert reason_of(critic, source=encoder("alpaca").template.text) == "template_error"


def test_a_null_system_turn_is_left_out() -> None:
    null = [{"role": "system", "content": None}, *turns("Hi", "Hello.")]
    assert render(CHATML, null) == render(CHATML, turns("Hi", "Hello."))


def test_tool_calls_come_back_from_the_other_columns() -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    originals = [
        {"role": "user", "content": "Weather?", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4C", "tool_calls": None},
        {"role": "assistant", "content": "4 degrees.", "tool_calls": None},
    ]
    plain = [{"role": m["role"], "content": m["content"]} for m in originals]
    tools = [{"type": "function", "function": {"name": "weather"}}]
    for shown in (tools, json.dumps(tools)):
        meta = json.dumps({"messages": originals, "tools": shown})
        row = render(TOOLS, plain, meta)
        assert row.text.startswith("TOOLS 1\n")
        assert answers(row) == ["CALL weather" + EOS, "4 degrees." + EOS]
    assert reason_of(plain, meta) == "template_cannot_render_tools"
    with pytest.raises(RowRejected, match="turn 1"):
        prepare(plain, meta, supports_tools=False)
    # the rows stage writes "" for null
    blank = [{**message, "content": message["content"] or ""} for message in plain]
    assert answers(render(TOOLS, blank, meta)) == answers(row)
    assert reason_of(blank, meta) == "template_cannot_render_tools"
    # without the originals it is an answer that says nothing
    assert reason_of(plain) == "no_supervised_tokens"


def test_a_template_that_is_not_jinja_stops_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"tokens\.template=x\.jinja .* line 1"):
        choose_template("x.jinja", "{% for %}", encoder().tokenizer)


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
def test_case_03_null_content() -> None:
    outcome = {}
    for row in case_rows("03-null-content-and-padded-keys"):
        messages, meta = row_parts(row)
        try:
            outcome[row["id"]] = answers(render(CHATML, messages, meta))[0]
        except RowRejected as error:
            outcome[row["id"]] = error.reason
    assert outcome == {
        "tool": "template_cannot_render_tools",
        "padded": "Hello." + EOS,
        "null-user": "empty_user_turn",
        "null-answer": "no_supervised_tokens",
        "literal-none": "None" + EOS,
    }


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
def test_case_05_refused_roles() -> None:
    case = "05-template-refuses-roles"
    source = (CASES / case / "template-no-system.jinja").read_text(encoding="utf-8")
    outcome = {}
    for row in case_rows(case):
        if "messages" not in row:
            continue  # another dialect, which the rows stage turns into messages
        messages, meta = row_parts(row)
        try:
            rendering = render(source, messages, meta)
            outcome[row["id"]] = (*answers(rendering), rendering.trailing_dropped)
        except RowRejected as error:
            outcome[row["id"]] = (error.reason, error.detail.partition(": ")[2])
    alternate = "Conversation roles must alternate user/assistant/user/assistant/..."
    assert outcome == {
        "plain": ("Hello.</turn>", 0),
        "system": ("template_error", "System role not supported"),
        "two-users": ("template_error", alternate),
        "starts-assistant": ("template_error", alternate),
        "ends-user": ("Hello.</turn>", 1),
        "unknown-role": ("template_error", alternate),
    }
