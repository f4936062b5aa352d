"""Messages become one text by a chat template, and the answers' places in it become spans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.contract.errors import ConfigurationError, require
from stages.tokens.messages import Message, RowRejected, is_answer, prepare
from stages.tokens.spans import Span, answer_spans

TEMPLATES = ("alpaca", "magicoder", "chatml", "plain")


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
    """

    text: str
    spans: tuple[Span, ...]
    trailing_dropped: int = 0


def choose_template(name: str, source: str | None, tokenizer: Any) -> Template:
    """Take a template's source, or the tokenizer's own, and check that it is Jinja.

    Parameters
    ----------
    name : str
        As it is chosen in `tokens.template`.
    source : str or None
        Its text; None takes the tokenizer's own.
    tokenizer : transformers tokenizer
        Owner of the `chat` template.

    Raises
    ------
    ConfigurationError
        If there is no such template or its syntax is wrong.
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
    template = Template(name, text, tools_text)
    _check_syntax(template, tokenizer)
    return template


def render_row(
    messages: Sequence[Mapping[str, Any]], meta: str | None, *, template: Template, tokenizer: Any
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
    has_calls = any(turn.get("tool_calls") for turn in row.turns)
    source = template.tools_text if has_calls else template.text

    def draw(turns: Sequence[Message], prompt: bool) -> str:
        text: str = tokenizer.apply_chat_template(
            list(turns),
            tools=row.tools,
            chat_template=source,
            tokenize=False,
            add_generation_prompt=prompt,
        )
        return text

    try:
        text = draw(row.turns, False)
    except Exception as error:  # a template is a program, and may raise anything
        raise RowRejected("template_error", f"{type(error).__name__}: {error}") from error
    spans = answer_spans(text, row.turns, draw, eos=tokenizer.eos_token or "")
    return Rendering(text, spans, row.trailing_dropped)


def _check_syntax(template: Template, tokenizer: Any) -> None:
    from jinja2 import TemplateError, TemplateSyntaxError

    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    try:
        tokenizer.apply_chat_template(turns, chat_template=template.text, tokenize=False)
    except TemplateSyntaxError as error:
        raise ConfigurationError(
            f"tokens.template={template.name} is not a Jinja template, line {error.lineno}: "
            f"{error.message}; correct the file, or set tokens.template=chatml"
        ) from error
    except TemplateError:
        pass  # what a template thinks of a row is said per row
