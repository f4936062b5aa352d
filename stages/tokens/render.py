"""Messages become one text by a chat template, and the answers' places in it become spans.

What a template refuses may be mended by policies; what it writes is never changed.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stages.contract.errors import ConfigurationError, require
from stages.contract.shown import one_line
from stages.tokens.limit import TooSlow, limited
from stages.tokens.mend import mend
from stages.tokens.messages import ROLES, Conversation, Message, RowRejected, is_answer, prepare
from stages.tokens.spans import Draw, Span, answer_spans
from stages.tokens.special import MOST_PRIVATE, SpecialTokens, num_private

log = logging.getLogger(__name__)

TEMPLATES = ("alpaca", "magicoder", "chatml", "plain")
ASKS_DAY = re.compile(r"strftime_now\s*\(\s*(?P<quote>['\"])(?P<form>.*?)(?P=quote)\s*\)")
DATE = "2024-07-26"  # what Llama's templates say where nobody tells them the day


@dataclass(frozen=True)
class Template:
    """A chat template in Jinja.

    Attributes
    ----------
    name : str
        As it is chosen in `tokens.template`.
    text : str
        Its source.
    tools_text : str
        Its source for conversations with tools; some tokenizers have another one for these.
    """

    name: str
    text: str
    tools_text: str

    @property
    def supports_tools(self) -> bool:
        """Whether the template writes tool calls."""
        return "tool_calls" in self.tools_text

    @property
    def describes_tools(self) -> bool:
        """Whether the template writes what the tools are."""
        return re.search(r"\btools\b", self.tools_text) is not None

    def knows(self, role: str) -> bool:
        """Say whether a role is one of the usual, or one that the template names."""
        return role in ROLES or f"'{role}'" in self.tools_text or f'"{role}"' in self.tools_text


@dataclass(frozen=True)
class Rendering:
    """The text of one row, and the half-open ranges of characters that are trained.

    Attributes
    ----------
    text : str
        The whole conversation.
    spans : tuple of (int, int)
        One range of characters per answer, in order, its end-of-turn token included.
    trailing_dropped : int
        Turns behind the last answer that were left out.
    literals : tuple of (int, int)
        Characters of the special tokens that somebody wrote into a message.
    mended : tuple of str
        Policies that acted, since the template refuses the row as it is.
    tools_left_out : bool
        Whether the row describes tools that the text does not.
    """

    text: str
    spans: tuple[Span, ...]
    trailing_dropped: int = 0
    literals: tuple[Span, ...] = ()
    mended: tuple[str, ...] = ()
    tools_left_out: bool = False


def choose_template(name: str, source: str | None, tokenizer: Any, date: str = DATE) -> Template:
    """Take a template's source, or the tokenizer's own, and check that it is Jinja.

    Parameters
    ----------
    name : str
        As it is chosen in `tokens.template`.
    source : str or None
        Its text; None takes the tokenizer's own.
    tokenizer : transformers tokenizer
        Owner of the `chat` template.
    date : str
        The day that is written where the template asks for it.

    Raises
    ------
    ConfigurationError
        If there is no such template, its syntax is wrong, or it takes the day of the run.
    """
    if source is not None:
        text = tools_text = source
    else:
        require(
            bool(tokenizer.chat_template),
            "tokens.template=chat needs a tokenizer with a chat template, and that of "
            f"{tokenizer.name_or_path} has none; set tokens.template to one of "
            f"{', '.join(TEMPLATES)} or to a file that ends in .jinja",
        )
        try:
            text = tokenizer.get_chat_template()
        except ValueError as error:
            raise ConfigurationError(
                f"tokens.template=chat: {error}; set tokens.template to a file that ends in .jinja"
            ) from error
        tools_text = tokenizer.get_chat_template(tools=[{}])
    template = Template(name, *(dated(each, date, name) for each in (text, tools_text)))
    _check_syntax(template, tokenizer)
    return template


def dated(source: str, date: str, name: str) -> str:
    """Write a day into a template where it asks for that of the run, as those of Llama 3 do.

    Raises
    ------
    ConfigurationError
        If it asks in another way than by `strftime_now` of a literal.
    """
    day = datetime.fromisoformat(date)
    written = ASKS_DAY.sub(lambda asked: repr(day.strftime(asked["form"])), source)
    rest = re.sub(r"strftime_now\s+is\s+(not\s+)?defined", "", written)
    require(
        "strftime_now" not in rest,
        f"tokens.template={name} takes the day of the run by strftime_now in a way that cannot be "
        f"replaced by tokens.date={date}; write strftime_now('%d %b %Y'), or the day, into a copy "
        f"of it and set tokens.template to that file",
    )
    return written


def render_row(
    messages: Sequence[Mapping[str, Any]],
    meta: str | None,
    *,
    template: Template,
    tokenizer: Any,
    special: SpecialTokens,
    policies: Sequence[str] = (),
) -> Rendering:
    """Render one row and find its answers.

    Parameters
    ----------
    messages : sequence of mapping
        Role and content.
    meta : str or None
        JSON of the row's other columns.
    template : Template
        How the messages become text.
    tokenizer : transformers tokenizer
        Its special tokens are known to the template.
    special : SpecialTokens
        Those of the tokenizer.
    policies : sequence of str
        What may be done to a row that the template refuses.

    Raises
    ------
    RowRejected
        If the row cannot be rendered or holds nothing to learn.
    """
    row = prepare(messages, meta, supports_tools=template.supports_tools)
    if not any(is_answer(turn) for turn in row.turns):
        raise RowRejected(
            "no_supervised_tokens",
            "the answer is empty: 0 supervised tokens before and 0 after truncation",
        )
    has_tools = row.tools is not None or any(turn.get("tool_calls") for turn in row.turns)
    source = template.tools_text if has_tools else template.text

    def draw_with(turns: Sequence[Message], tools: list[Any] | None, prompt: bool) -> str:
        with limited():
            text: str = tokenizer.apply_chat_template(
                list(turns),
                tools=tools,
                chat_template=source,
                tokenize=False,
                add_generation_prompt=prompt,
            )
        for turn in turns:
            if not template.knows(turn["role"]):
                role = one_line(turn["role"])
                raise RowRejected("unknown_role", f"{role}: the template names no such")
        return text

    def draw(turns: Sequence[Message], prompt: bool) -> str:
        return draw_with(turns, row.tools, prompt)

    turns, text, mended = _draw_or_mend(row, draw, policies)
    if num_private(text) > MOST_PRIVATE:
        detail = f"{num_private(text)} different private characters, at most {MOST_PRIVATE}"
        raise RowRejected("too_many_private_characters", detail)
    spans = answer_spans(text, turns, draw, eos=tokenizer.eos_token or "")
    literals = special.find(
        text, [turns, row.tools], lambda parts: draw_with(parts[0], parts[1], False)
    )
    left_out = row.tools_unread or (row.tools is not None and not template.describes_tools)
    return Rendering(text, spans, row.trailing_dropped, literals, mended, left_out)


def _draw_or_mend(
    row: Conversation, draw: Draw, policies: Sequence[str]
) -> tuple[list[Message], str, tuple[str, ...]]:
    """Render a row, changed by the policies if it must be; give it, its text and what acted."""
    try:
        return row.turns, draw(row.turns, False), ()
    except TooSlow as error:
        raise RowRejected("template_error", f"the template: {error}") from error
    except Exception as error:  # a template is a program, and may raise anything
        refusal = error

    def accepts(turns: Sequence[Message]) -> bool:
        try:
            return bool(draw(turns, False))
        except Exception:
            return False

    mended = mend(row.turns, policies, accepts)
    if mended is not None:
        turns, names = mended
        return turns, draw(turns, False), names
    if isinstance(refusal, RowRejected):
        raise refusal
    detail = one_line(f"{type(refusal).__name__}: {refusal}")
    raise RowRejected("template_error", detail) from refusal


def _check_syntax(template: Template, tokenizer: Any) -> None:
    """Refuse a template that is none, or that cannot be trusted with a row.

    What it thinks of a row is said per row.
    """
    from jinja2 import TemplateSyntaxError

    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    remedy = "correct the file, or set tokens.template=chatml"
    for text in {template.text, template.tools_text}:
        try:
            power = _line_of_power(text)
            require(
                power == 0,
                f"tokens.template={template.name} raises to a power in line {power}, which no "
                f"template needs, and which could go on for ever; {remedy}",
            )
            with limited():
                tokenizer.apply_chat_template(turns, chat_template=text, tokenize=False)
        except TemplateSyntaxError as error:
            raise ConfigurationError(
                f"tokens.template={template.name} is not a Jinja template, line {error.lineno}: "
                f"{error.message}; {remedy}"
            ) from error
        except TooSlow as error:
            raise ConfigurationError(
                f"tokens.template={template.name} does not end for a question and an answer of "
                f"one letter: {error}; {remedy}"
            ) from error
        except ConfigurationError:
            raise
        except Exception:
            log.debug("the template refuses the first try", exc_info=True)


def _line_of_power(text: str) -> int:
    """Find the first `a ** b` of a template: its line, or 0.

    It is one operation of Python, which nothing can stop while it runs, and which Jinja may
    run when it compiles. The `**` of `dict(**other)` stands behind a bracket or a comma.
    """
    from jinja2 import Environment

    before = ""
    for line, kind, value in Environment().lex(text):
        if kind == "operator" and value == "**" and before not in ("(", ","):
            return line
        if kind != "whitespace":
            before = value
    return 0
