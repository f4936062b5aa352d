"""Policies for rows that a template refuses: by hand, and only where it refuses."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.tokens.mend import MENDS, join_turns, mend, merge_system
from stages.tokens.messages import Message, RowRejected, is_answer
from stages.tokens.render import Template, render_row
from tests.tiny import CHATML
from tests.tokens.samples import encoder, turns

# Users and answers take turns, the user first; a system turn may come first.
ALTERNATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System only first') }}{% endif %}{% endfor %}"
    "{% set talk = messages | rejectattr('role', 'equalto', 'system') | list %}"
    "{% for m in talk %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{% endfor %}" + CHATML
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('No system') }}{% endif %}" + ALTERNATE
)


def said(*pairs: tuple[str, str]) -> list[Message]:
    return [{"role": role, "content": content} for role, content in pairs]


def render(source: str, messages: list[Message], *policies: str) -> Any:
    return render_row(
        messages,
        "{}",
        template=Template("test", source, source),
        tokenizer=encoder().tokenizer,
        special=encoder().special,
        policies=policies,
    )


def plain(source: str, *pairs: tuple[str, str]) -> str:
    text: str = render(source, said(*pairs)).text
    return text


def anything(messages: Sequence[Message]) -> bool:
    return True


def test_merge_system_by_hand() -> None:
    talk = said(("system", "S"), ("user", "U"), ("assistant", "A"))
    assert merge_system(talk, anything) == said(("user", "S\n\nU"), ("assistant", "A"))
    two = said(("system", "S"), ("system", "T"), ("user", ""), ("assistant", "A"))
    assert merge_system(two, anything)[0] == {"role": "user", "content": "S\n\nT"}
    late = said(("user", "U"), ("system", "S"), ("assistant", "A"), ("system", "T"), ("user", "V"))
    assert merge_system(late, anything) == said(
        ("user", "U\n\nS"), ("assistant", "A"), ("user", "T\n\nV")
    )
    alone = said(("system", "S"), ("assistant", "A"))
    assert merge_system(alone, anything) == alone


def test_join_turns_by_hand() -> None:
    talk = said(("user", "a"), ("user", "b"), ("user", " "), ("assistant", "c"), ("assistant", "d"))
    assert join_turns(talk, anything) == said(("user", "a\n\nb"), ("assistant", "c\n\nd"))
    tools = said(("user", "a"), ("assistant", ""), ("tool", "1"), ("tool", "2"), ("assistant", "b"))
    assert join_turns(tools, anything) == tools
    call: list[Message] = [
        *said(("user", "a"), ("assistant", "b")),
        {"role": "assistant", "content": "", "tool_calls": [1]},
    ]
    assert join_turns(call, anything) == call


def test_no_policy_acts_where_the_template_takes_the_row() -> None:
    talk = said(("system", "S"), ("user", "a"), ("user", "b"), ("assistant", "A"))
    rendering = render(CHATML, talk, *MENDS)
    assert rendering.mended == ()
    assert rendering == render(CHATML, talk)


def test_only_what_is_needed_acts() -> None:
    two = said(("system", "S"), ("user", "a"), ("user", "b"), ("assistant", "A"))
    kept = render(ALTERNATE, two, *MENDS)
    assert kept.mended == ("join_turns",)
    assert kept.text == plain(ALTERNATE, ("system", "S"), ("user", "a\n\nb"), ("assistant", "A"))
    both = render(NO_SYSTEM, two, *MENDS)
    assert both.mended == ("merge_system", "join_turns")
    assert both.text == plain(NO_SYSTEM, ("user", "S\n\na\n\nb"), ("assistant", "A"))
    (span,) = both.spans
    assert both.text[slice(*span)] == "A<|im_end|>"


def test_skip_turn_leaves_out_what_does_not_fit() -> None:
    first = said(("assistant", "Welcome."), ("user", "a"), ("assistant", "A"))
    assert render(ALTERNATE, first, "skip_turn").text == plain(
        ALTERNATE, ("user", "a"), ("assistant", "A")
    )
    two = said(("user", "a"), ("user", "b"), ("assistant", "A"))
    assert render(ALTERNATE, two, "skip_turn").text == plain(
        ALTERNATE, ("user", "b"), ("assistant", "A")
    )
    many = said(
        ("assistant", "0"), ("user", "a"), ("assistant", "A"), ("system", "S"), ("user", "b"),
        ("assistant", "B"), ("assistant", "C"),
    )  # fmt: skip
    assert render(ALTERNATE, many, "skip_turn").text == plain(
        ALTERNATE, ("user", "a"), ("assistant", "A"), ("user", "b"), ("assistant", "B")
    )


def test_what_no_policy_mends_is_rejected_with_the_templates_own_words() -> None:
    first = said(("assistant", "Welcome."), ("user", "a"), ("assistant", "A"))
    with pytest.raises(RowRejected, match=r"template_error: .*Roles must alternate"):
        render(ALTERNATE, first, "merge_system", "join_turns")


def test_roles_that_nobody_knows() -> None:
    talk = said(("critic", "x"), ("user", "a"), ("assistant", "A"))
    with pytest.raises(RowRejected, match="unknown_role: critic") as caught:
        render(CHATML, talk, "merge_system", "join_turns")
    assert caught.value.reason == "unknown_role"
    assert render(CHATML, talk, "skip_turn").text == plain(
        CHATML, ("user", "a"), ("assistant", "A")
    )
    naming = "{% if messages[0].role == 'critic' %}{% endif %}" + CHATML
    assert render(naming, talk).text.startswith("<|im_start|>critic\nx")


ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
TALK = st.lists(st.tuples(ROLES, st.sampled_from("abc")), min_size=1, max_size=7)


@given(TALK, st.permutations(list(MENDS)))
def test_what_is_mended_is_accepted_and_ends_in_an_answer(
    talk: list[tuple[str, str]], policies: list[str]
) -> None:
    def accepts(messages: Sequence[Message]) -> bool:
        roles = [message["role"] for message in messages]
        return roles == ["user", "assistant"] * (len(roles) // 2)

    talk = [*talk, ("assistant", "a")]  # what stands behind the last answer was cut before
    mended = mend(said(*talk), policies, accepts)
    if mended is None:
        return
    turned, names = mended
    assert accepts(turned) and is_answer(turned[-1])
    assert list(names) == [name for name in policies if name in names]
    if "skip_turn" not in names:  # no text is lost
        whole = "".join(content for _, content in talk)
        kept = "".join(turn["content"] for turn in turned).replace("\n\n", "")
        assert sorted(kept) == sorted(whole)


def test_a_pair_always_survives_all_policies() -> None:
    talk = [*said(("tool", "t")), *turns("a", "A"), *said(("tool", "t"), ("system", "s"))]
    assert render(ALTERNATE.replace("'system'", "'no'"), talk[:3], "skip_turn").mended
