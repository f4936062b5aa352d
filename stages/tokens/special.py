"""Special tokens that are written inside the text of a row, and how they are kept text.

A tokenizer takes the letters `<|im_end|>` for its token wherever they stand. Those that the
template wrote have to be tokens; those that somebody wrote into a message are, by default, text.
Which is which is found by rendering the row a second time, with marks in the messages' places.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import Any

import numpy as np

from stages.tokens.spans import Span

CHOICES = ("text", "special")

# Private characters, of which text that people exchange has none; those of a row are left out.
_PRIVATE = range(0xF0000, 0xFFFFE)
MOST_PRIVATE = 1 << 15  # different ones in a row; nobody writes so many, and marks need some


class SpecialTokens:
    """The special tokens of a tokenizer, and a tokenizer that takes them for text.

    Parameters
    ----------
    tokenizer : transformers tokenizer
        A fast one, whose offsets count spaces.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._added = {
            token.content: token
            for token in tokenizer.added_tokens_decoder.values()
            if token.special and token.content
        }
        self._ids = {
            token.content: index
            for index, token in tokenizer.added_tokens_decoder.items()
            if token.content in self._added
        }
        self._copies: dict[str, Any] = {}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._added, key=lambda text: (-len(text), text))
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def inside(self, value: object) -> bool:
        """Say whether a text, or any text in lists and mappings, holds a special token."""
        if isinstance(value, str):
            return self._pattern.search(value) is not None
        if isinstance(value, dict):
            return any(map(self.inside, value.values()))
        return isinstance(value, list) and any(map(self.inside, value))

    def find(self, text: str, parts: Any, draw: Callable[[Any], str]) -> tuple[Span, ...]:
        """Find the special tokens of a rendering that were written in its messages.

        Parameters
        ----------
        text : str
            The rendering.
        parts : list or dict
            What was rendered.
        draw : callable
            Gives the rendering of other parts; it may raise.

        Returns
        -------
        tuple of (int, int)
            Half-open ranges of characters, increasing. None where a template writes something
            else when the tokens are marks: there they mean something to it.
        """
        if not self.inside(parts):
            return ()
        marks = dict(zip(sorted(self._added), _unused(text, len(self._added)), strict=True))
        try:
            marked = draw(self._marked(parts, marks))
        except Exception:  # a template is a program, and may raise anything
            return ()
        texts = {mark: token for token, mark in marks.items()}
        pieces: list[str] = re.split(f"([{''.join(texts)}])", marked)
        restored: list[str] = [texts.get(piece, piece) for piece in pieces]
        if "".join(restored) != text:
            return ()
        ends = accumulate(map(len, restored))
        return tuple(
            (end - len(whole), end)
            for piece, whole, end in zip(pieces, restored, ends, strict=True)
            if piece in texts
        )

    def encode(
        self, texts: Sequence[str], literals: Sequence[Sequence[Span]]
    ) -> list[tuple[list[int], list[Span]]]:
        """Tokenize texts in which some special tokens are text and all others are tokens.

        The tokens stand in the text as one private character each, which a copy of the
        tokenizer knows, and which takes no special token for one. Everything else of it is the
        same, so a text without literals gets the ids that it gets anyhow.

        Parameters
        ----------
        texts : sequence of str
            Renderings.
        literals : sequence of sequence of (int, int)
            For each of them the special tokens that are text, as `find` gives them.

        Returns
        -------
        list of (list of int, list of (int, int))
            Ids, and the characters of the text that each stands for.
        """
        stand_ins = _unused("".join(texts), len(self._added))
        if len(stand_ins) < len(self._added) and len(texts) > 1:  # rows that hold them all together
            pairs = zip(texts, literals, strict=True)
            return [self.encode([one], [places])[0] for one, places in pairs]
        of_token = dict(zip(sorted(self._added), stand_ins, strict=True))
        copy = self._copy(of_token)
        ids = {copy.token_to_id(mark): self._ids[token] for token, mark in of_token.items()}
        drawn = [self._stood(*pair, of_token) for pair in zip(texts, literals, strict=True)]
        encodings = copy.encode_batch([stood for stood, _ in drawn], add_special_tokens=False)
        results = []
        for encoding, (_, places) in zip(encodings, drawn, strict=True):
            offsets = places[np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)]
            results.append(([ids.get(i, i) for i in encoding.ids], offsets.tolist()))
        return results

    def _marked(self, value: Any, marks: dict[str, str]) -> Any:
        if isinstance(value, str):
            return self._pattern.sub(lambda match: marks[match.group()], value)
        if isinstance(value, dict):
            return {key: self._marked(item, marks) for key, item in value.items()}
        return [self._marked(item, marks) for item in value] if isinstance(value, list) else value

    def _stood(
        self, text: str, literals: Sequence[Span], of_token: dict[str, str]
    ) -> tuple[str, Any]:
        """Put the stand-ins into a text; give it, and the place in the text of each character."""
        pieces: list[str] = []
        widths: list[int] = []
        at = 0
        for start, stop in self._tokens_outside(text, literals):
            pieces += [text[at:start], of_token[text[start:stop]]]
            widths += [*[1] * (start - at), stop - start]
            at = stop
        pieces.append(text[at:])
        widths += [1] * (len(text) - at)
        return "".join(pieces), np.cumsum([0, *widths])

    def _tokens_outside(self, text: str, literals: Sequence[Span]) -> list[Span]:
        """Find the special tokens between the literals; none lies across the border of one."""
        found: list[Span] = []
        at = 0
        for start, stop in [*literals, (len(text), len(text))]:
            found += [match.span() for match in self._pattern.finditer(text, at, start)]
            at = stop
        return found

    def _copy(self, of_token: dict[str, str]) -> Any:
        """Make the tokenizer that knows the stand-ins, once."""
        from tokenizers import AddedToken, Tokenizer

        name = "".join(of_token.values())
        if name not in self._copies:
            copy = Tokenizer.from_str(self._backend.to_str())
            copy.no_truncation()
            copy.no_padding()
            copy.encode_special_tokens = True
            copy.add_tokens(
                [
                    AddedToken(
                        mark,
                        lstrip=self._added[token].lstrip,
                        rstrip=self._added[token].rstrip,
                        normalized=False,
                    )
                    for token, mark in of_token.items()
                ]
            )
            self._copies = {name: copy}
        return self._copies[name]


def num_private(text: str) -> int:
    """Count the different private characters of a text."""
    return sum(ord(character) in _PRIVATE for character in set(text))


def _unused(text: str, count: int) -> list[str]:
    """Take as many private characters as asked that a text does not hold."""
    held = {ord(character) for character in set(text) if ord(character) in _PRIVATE}
    free = (chr(code) for code in _PRIVATE if code not in held)
    return list(islice(free, count))
