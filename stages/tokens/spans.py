"""Where the answers stand in a rendered text.

A text is rendered once as a whole. Where an answer begins and ends in it is found by rendering
less of the conversation: what the model would be prompted with is a prefix of the text, and what
stands behind it is the answer. Templates that rewrite earlier turns are met by other means.
"""

from collections.abc import Callable, Sequence

from stages.tokens.messages import Message, RowRejected, is_answer

STAND_IN = "EVENSHARD-ANSWER-STANDS-HERE"

Span = tuple[int, int]
Draw = Callable[[Sequence[Message], bool], str]


def answer_spans(
    text: str, turns: Sequence[Message], draw: Draw, *, eos: str = ""
) -> tuple[Span, ...]:
    """Find the characters of every answer in the rendering of all turns.

    Parameters
    ----------
    text : str
        Rendering of all turns.
    turns : sequence of dict
        The last one is an assistant's.
    draw : callable
        (turns, whether the generation prompt is added) -> rendering; it may raise.
    eos : str
        Text of the end-of-text token.

    Returns
    -------
    tuple of (int, int)
        Half-open ranges of characters, increasing.

    Raises
    ------
    RowRejected
        `answer_not_found_in_rendering`.
    """
    spans: list[Span] = []
    floor = 0  # where the last answer ended
    since = 0  # the turn behind it
    ends: tuple[str, ...] = ()
    for index, turn in enumerate(turns):
        if not is_answer(turn):
            continue
        span = _between_prefixes(text, turns, index, draw)
        if span is None or span[0] < floor:
            ends = ends or _ends_of_turn(turns, draw, eos)
            span = _at_stand_in(text, turns, index, draw, ends)
        if span is None or span[0] < floor:
            span = _in_order(text, turns[since : index + 1], floor, ends)
        if span is None:
            raise RowRejected(
                "answer_not_found_in_rendering",
                f"the template rewrote turn {index} beyond recognition: {len(text)} characters",
            )
        spans.append(span)
        floor, since = span[1], index + 1
    return tuple(spans)


def _between_prefixes(text: str, turns: Sequence[Message], index: int, draw: Draw) -> Span | None:
    """Take what stands between the prompt of an answer and the end of its turn."""
    prefix = _try_draw(draw, turns[:index], prompt=True) if index else None
    if not prefix or not text.startswith(prefix):
        return None
    is_last = index == len(turns) - 1
    through = text if is_last else _try_draw(draw, turns[: index + 1], prompt=False)
    if through is None or not text.startswith(through):
        return None
    start, stop = len(prefix), len(through.rstrip())
    content = turns[index].get("content", "")
    if not content.strip():  # tool calls alone
        return (start, stop) if start < stop else None
    for variant in _variants(content):
        at = text.find(variant, start, len(through))
        if at >= 0:
            break
    else:
        return None
    if text[start:at].strip() and prefix == _try_draw(draw, turns[:index], prompt=False):
        return None  # no generation prompt: the turn's header stands before the answer
    return start, max(stop, at + len(variant))


def _at_stand_in(
    text: str, turns: Sequence[Message], index: int, draw: Draw, ends: Sequence[str]
) -> Span | None:
    """Put a stand-in in the place of an answer: up to it, the rendering stays the same."""
    stand_in = {**turns[index], "content": STAND_IN}
    drawn = _try_draw(draw, [*turns[:index], stand_in, *turns[index + 1 :]], prompt=False)
    start = -1 if drawn is None else drawn.find(STAND_IN)
    if drawn is None or start < 0 or drawn[:start] != text[:start]:
        return None
    for variant in _variants(turns[index].get("content", "")):
        if text.startswith(variant, start):
            return start, _past_end(text, start + len(variant), ends)
    return None


def _in_order(text: str, turns: Sequence[Message], floor: int, ends: Sequence[str]) -> Span | None:
    """Find the contents of some turns one behind the other; the last one is the answer."""
    span = None
    for turn in turns:
        content = turn.get("content", "")
        places = [(text.find(variant, floor), variant) for variant in _variants(content)]
        found = next(((at, variant) for at, variant in places if at >= 0), None)
        if found is None:
            if content.strip():
                return None
            span = None
            continue
        span = (found[0], found[0] + len(found[1]))
        floor = span[1]
    return None if span is None else (span[0], _past_end(text, span[1], ends))


def _variants(content: str) -> list[str]:
    """Give the forms in which templates write a content: as it is, trimmed, without reasoning."""
    spoken = content.rpartition("</think>")[2]
    forms = (content, content.rstrip(), content.lstrip(), content.strip(), spoken.strip())
    return [form for form in dict.fromkeys(forms) if form.strip()]


def _ends_of_turn(turns: Sequence[Message], draw: Draw, eos: str) -> tuple[str, ...]:
    """Give what may end an answer: what the template writes behind the last one, and the eos."""
    last = {**turns[-1], "content": STAND_IN}
    drawn = _try_draw(draw, [*turns[:-1], last], prompt=False) or ""
    behind = drawn.rpartition(STAND_IN)[2].rstrip() if STAND_IN in drawn else ""
    return tuple(end for end in dict.fromkeys((behind, eos)) if end)


def _past_end(text: str, stop: int, ends: Sequence[str]) -> int:
    return stop + next((len(end) for end in ends if text.startswith(end, stop)), 0)


def _try_draw(draw: Draw, turns: Sequence[Message], *, prompt: bool) -> str | None:
    try:
        return draw(turns, prompt)
    except Exception:  # a part of a conversation may be what a template refuses
        return None
