"""What makes two texts the same, and what a word is. Pure functions of text.

Two normal forms. `plain` is that of duplicates: Unicode NFKC, case kept, runs of white space as
one space, none at the ends. `bare_words` is that of benchmark overlap, as in the reports of GPT-3
and in lm-eval: lower case, punctuation and symbols removed, split at white space. Scripts that
are written without spaces (Chinese, Japanese, Thai, Lao, Burmese, Khmer) have no words to split
at; there each character counts as a word.
"""

import hashlib
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from stages.contract.fingerprint import canonical_json
from stages.rows.tools import with_tools

DIGEST_BYTES = 16
# Both are white space, so neither is left in a normalised text.
END_OF_ROLE, END_OF_TURN = "\x1f", "\x1e"
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]"
)

Message = Mapping[str, Any]


def plain(text: str | None) -> str:
    """Normalise a text for the comparison of rows; null is the empty text."""
    return " ".join(_composed(text).split())


def digest(messages: Sequence[Message], meta: str | None) -> bytes:
    """Hash what is said in a row, by whom, and the tools that a template would render.

    Other columns do not count: rows of one text whose `meta` differs are duplicates.
    """
    turns = [f"{plain(m['role'])}{END_OF_ROLE}{plain(m['content'])}" for m in messages]
    added = with_tools(messages, meta).added
    text = END_OF_TURN.join([*turns, canonical_json(added)] if added else turns)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def words(text: str | None) -> list[str]:
    """Split a text into words with their case and punctuation."""
    return _split(_composed(text))


def bare_words(text: str | None) -> list[str]:
    """Split a text into words without case, punctuation and symbols."""
    return _split(_composed(text).lower().translate(_removed()))


def word_code(word: str) -> int:
    """Give a word 64 bits that are the same in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def _composed(text: str | None) -> str:
    if not text:
        return ""
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _split(text: str) -> list[str]:
    return text.split() if text.isascii() else UNSPACED.sub(r" \g<0> ", text).split()


@cache
def _removed() -> dict[int, None]:
    """List all characters of the Unicode categories P (punctuation) and S (symbols)."""
    return {
        code: None
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code))[0] in "PS"
    }
