"""Where a broken value of JSON ends, so that it costs itself and not the rows behind it.

Brackets and strings tell it, and what JSON never allows: no string goes over a line's end, no
object stands in an object without a key, no bracket closes one of the other kind. Where a quote
is missing, text and structure are exchanged from there on; then the value ends at latest before
what begins as it begins itself, or as the row before did.
"""

import re

_SPACE = r"\s{0,200}+"  # bounded, since it is tried at every line's end
_STRING = r'"(?:[^"\\\n]++|\\[^\n])*+'
# A string is sound if what stands behind it may stand behind a string.
_TOKEN = re.compile(
    rf'{_STRING}(?P<closed>"(?P<sound>\s*+(?=[,:\]}}]|\Z))?)?|[:,\n]{_SPACE}\{{|[\[\]{{}},]'
)
_HEAD = re.compile(rf'[\[{{]{_SPACE}(?:\{{{_SPACE})?{_STRING}"(?={_SPACE}:)')
_HEAD_CHARS = 200
_CLOSES = {"]": "[", "}": "{"}
# Behind the bracket that closes the array of rows.
_LAST = re.compile(r"\s*+(?:\}\s*+)?(?:\Z|[\[{])")


def head_of(text: str, start: int) -> str:
    """Give the beginning of a row up to its first key, "" if it has none."""
    head = _HEAD.match(text, start, start + _HEAD_CHARS)
    return head.group() if head else ""


def extent(text: str, start: int, known: str, *, torn: bool) -> int:
    """Find where a broken value ends.

    Parameters
    ----------
    text : str
        What is known of the file.
    start : int
        Where the value begins.
    known : str
        Beginning of the row before, or "".
    torn : bool
        Whether its end is sought before the next row only. So it is once a value of the file had
        no end, since each further one would be followed to the end of the file.

    Returns
    -------
    int
        The place behind its last character, -1 if it is not within the text.
    """
    heads = {head for head in (head_of(text, start), known) if head}
    begins = "|".join(map(_loosely, sorted(heads))) or r"\b\B"  # which never matches
    next_row = re.compile(rf"(?:[,\n]|(?<=[}}\]])){_SPACE}(?:{begins}){_SPACE}:")
    found = next_row.search(text, start + 1) if torn else None
    if found:
        end, _ = _by_structure(text, start, found.start())
        return found.start() if end < 0 else end
    end, doubt = _by_structure(text, start, len(text))
    if doubt:
        found = next_row.search(text, start + 1, end if end >= 0 else len(text))
    return found.start() if found else end


def _loosely(head: str) -> str:
    """Make a pattern of the beginning of a row in which any space may stand between brackets."""
    brackets, quote, key = head.partition('"')
    opening = "".join(re.escape(mark) + _SPACE for mark in brackets if mark in "[{")
    return opening + re.escape(quote + key)


def _by_structure(text: str, start: int, stop: int) -> tuple[int, bool]:
    """Follow brackets and strings to the end of a value.

    Returns
    -------
    tuple
        Its end, or -1, and whether something up to it is what JSON never allows.
    """
    opened: list[str] = []
    doubt, at = False, start
    while token := _TOKEN.search(text, at, stop):
        mark, begin, at = token.group(), token.start(), token.end()
        if mark[0] == '"':
            if not token["closed"]:
                if "\n" not in text[at : at + 2]:
                    return -1, doubt
                at = begin + 1
            doubt = doubt or token["sound"] is None
        elif mark in _CLOSES:
            if not opened:
                return begin, doubt
            if _CLOSES[mark] in opened:
                while opened.pop() != _CLOSES[mark]:
                    doubt = True
            elif mark == "]" and _LAST.match(text, at):
                return begin, doubt
            if not opened:
                return at, doubt
        elif mark[-1] in "[{":
            if mark[0] in ",\n":
                while opened[-1:] == ["{"]:
                    opened.pop()
                if not opened:
                    return begin, doubt
            opened.append(mark[-1])
        elif mark == "," and not opened:
            return begin, doubt
    return -1, doubt
