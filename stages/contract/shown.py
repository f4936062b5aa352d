"""What messages show: text of others in one line that moves no cursor, and settings by name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

# Control characters, line separators, marks of writing direction, and halves of surrogate pairs.
_UNSEEN = re.compile("[\0-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str, most: int = 200) -> str:
    r"""Write a text so that it can stand in a message: escapes for what cannot be seen, and cut.

    Parameters
    ----------
    text : str
        Anything that a file, a template or a library says.
    most : int, default=200
        Characters that are shown, escapes counted.

    Returns
    -------
    str
        One line, which UTF-8 can write.

    Examples
    --------
    >>> one_line("a\nb")
    'a\\nb'
    """
    seen = _UNSEEN.sub(
        lambda match: match.group().encode("unicode_escape").decode(), text[: most + 1]
    )
    return seen if len(seen) <= most else seen[:most] + "..."


def first_of(texts: Sequence[str], most: int = 5, width: int = 200) -> str:
    """Name the first texts, each in one line, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(one_line(text, width) for text in texts[:most]) + more


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give nested settings by their full names, as they stand on the command line."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found
