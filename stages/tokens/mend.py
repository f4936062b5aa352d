"""What may be done to a conversation that a template refuses. Functions of messages only.

A policy acts only where the template raises on the row as it is, and no more of them act than
are needed: the one that is named last is the last to be tried.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

from stages.tokens.messages import Message, is_answer

Accepts = Callable[[Sequence[Message]], bool]

GAP = "\n\n"  # between two texts that become one


def merge_system(turns: Sequence[Message], accepts: Accepts) -> list[Message]:
    """Write each system turn into a user turn: above the next one, or below the one before it.

    Below where an answer comes before the next user turn.

    Parameters
    ----------
    turns : sequence of dict
        They stay as they are where a system turn finds no user turn.
    accepts : callable
        Of no effect here.
    """
    mended: list[Message] = []
    waiting: list[Message] = []
    for turn in turns:
        if turn["role"] == "system" and set(turn) == {"role", "content"}:
            waiting.append(turn)
        elif turn["role"] == "user" and waiting and type(turn.get("content")) is str:
            mended.append({**turn, "content": _joined([*waiting, turn])})
            waiting = []
        else:
            before = mended[-1] if mended else {}
            if waiting and before.get("role") == "user" and type(before.get("content")) is str:
                mended[-1] = {**before, "content": _joined([before, *waiting])}
                waiting = []
            mended.append(turn)
    return list(turns) if waiting else mended


def join_turns(turns: Sequence[Message], accepts: Accepts) -> list[Message]:
    """Make one turn of consecutive turns of one role; results and calls of tools stay apart.

    Parameters
    ----------
    turns : sequence of dict
        Roles and contents.
    accepts : callable
        Of no effect here.
    """
    mended: list[Message] = []
    for turn in turns:
        before = mended[-1] if mended else {}
        plain = set(before) == set(turn) == {"role", "content"}
        if plain and before["role"] == turn["role"] != "tool":
            mended[-1] = {**turn, "content": _joined([before, turn])}
        else:
            mended.append(turn)
    return mended


def skip_turn(turns: Sequence[Message], accepts: Accepts) -> list[Message]:
    """Leave out the turns that are refused: one if that is enough, else all that do not fit.

    Of two turns either of which would do, the earlier goes, and an answer is the last to go.

    Parameters
    ----------
    turns : sequence of dict
        Roles and contents.
    accepts : callable
        Says whether the template takes some turns.
    """
    for index in sorted(range(len(turns)), key=lambda at: (is_answer(turns[at]), at)):
        rest = [*turns[:index], *turns[index + 1 :]]
        if any(map(is_answer, rest)) and accepts(rest):
            return rest
    fitting: list[Message] = []
    for turn in turns:
        if accepts([*fitting, turn]):
            fitting.append(turn)
    return fitting


MENDS: dict[str, Callable[[Sequence[Message], Accepts], list[Message]]] = {
    "merge_system": merge_system,
    "join_turns": join_turns,
    "skip_turn": skip_turn,
}
REJECT = "reject"


def mend(
    turns: Sequence[Message], policies: Sequence[str], accepts: Accepts
) -> tuple[list[Message], tuple[str, ...]] | None:
    """Change a refused conversation as little as makes a template take it.

    Parameters
    ----------
    turns : sequence of dict
        What the template refuses.
    policies : sequence of str
        Names of `MENDS`, the ones to be preferred first.
    accepts : callable
        Says whether the template takes some turns.

    Returns
    -------
    (list of dict, tuple of str) or None
        The turns, up to their last answer, and the policies that acted; None if none helps.
    """
    for names in _choices(policies):
        mended = list(turns)
        for name in names:
            changed = MENDS[name](mended, accepts)
            if changed == mended:
                break  # the same as without this policy, which was tried
            mended = changed
        else:
            while mended and not is_answer(mended[-1]):
                mended.pop()
            if mended and accepts(mended):
                return mended, names
    return None


def _choices(policies: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Give all choices of policies; those with a later one come after all without it.

    >>> list(_choices("ab"))
    [('a',), ('b',), ('a', 'b')]
    """
    masks = itertools.product((False, True), repeat=len(policies))
    for mask in itertools.islice(masks, 1, None):
        yield tuple(itertools.compress(policies, reversed(mask)))


def _joined(turns: Sequence[Message]) -> str:
    """Join the texts of turns; a blank one adds nothing."""
    texts = [turn["content"] for turn in turns]
    return GAP.join([text for text in texts if text.strip()] or texts[:1])
