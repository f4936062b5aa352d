"""Rendered texts become token ids and labels, in one tokenisation, by the tokenizer's offsets.

Prompt and answer are never tokenised apart: a token may lie across their border. A token that
touches an answer is trained. The mask follows offsets and never ids: a token that also serves as
padding is trained where it ends an answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from evenshard.shards import IGNORED_LABEL
from stages.tokens.mask import answer_runs, trained
from stages.tokens.messages import RowRejected
from stages.tokens.render import Rendering, Template, render_row
from stages.tokens.spans import Span
from stages.tokens.special import SpecialTokens
from stages.tokens.truncate import SHORTEN, Ids, count_targets

Tokens = tuple[list[int], list[Span]]


@dataclass(frozen=True)
class Encoded:
    """One row as the model reads it.

    Attributes
    ----------
    input_ids : ndarray of shape (num_tokens,), int32
        Token ids, without padding.
    labels : ndarray of shape (num_tokens,), int32
        The same ids where trained, -100 elsewhere.
    num_tokens_before, num_targets_before : int
        Counts before truncation.
    trailing_dropped : int
        Turns behind the last answer that were left out.
    mended : tuple of str
        Policies that acted on the row, since the template refuses it as it is.
    num_literals : int
        Special tokens that somebody wrote into a message.
    lacks_end : bool
        Whether an answer ends, before truncation, in another token than a special or added one.
    tools_left_out : bool
        Whether the row describes tools that it is rendered without.
    """

    input_ids: Ids
    labels: Ids
    num_tokens_before: int
    num_targets_before: int
    trailing_dropped: int = 0
    mended: tuple[str, ...] = ()
    num_literals: int = 0
    lacks_end: bool = False
    tools_left_out: bool = False

    @property
    def num_targets(self) -> int:
        """Number of tokens that are predicted and trained."""
        return count_targets(self.labels)

    @property
    def is_truncated(self) -> bool:
        """Whether tokens were cut off."""
        return self.input_ids.size < self.num_tokens_before


@dataclass(frozen=True)
class Rejected:
    """A row that was not encoded, and why.

    Attributes
    ----------
    reason, detail : str
        As in the table of rejects.
    num_tokens_before, num_targets_before : int
        Counts before truncation; 0 where it was not tokenised.
    """

    reason: str
    detail: str
    num_tokens_before: int = 0
    num_targets_before: int = 0


@dataclass(frozen=True)
class Encoder:
    """A tokenizer with the settings that turn rows into ids.

    Attributes
    ----------
    tokenizer : transformers tokenizer
        A fast one.
    template : Template
        How messages become text.
    max_length : int
        Most tokens of a row.
    on_too_long : str
        `truncate`, `keep_answer` or `reject`.
    adds_bos : bool
        Whether the tokenizer begins texts with its BOS token by itself.
    special : SpecialTokens
        Those of the tokenizer.
    special_in_text : str
        `text` or `special`: what special tokens are that somebody wrote into a message.
    on_template_error : tuple of str
        What may be done to a row that the template refuses.
    """

    tokenizer: Any
    template: Template
    max_length: int
    on_too_long: str
    adds_bos: bool
    special: SpecialTokens
    special_in_text: str = "text"
    on_template_error: tuple[str, ...] = ()

    @cached_property
    def _ends(self) -> frozenset[int]:
        """Ids that may end a turn: of all tokens that are no pieces of text."""
        return frozenset([*self.tokenizer.added_tokens_decoder, self.tokenizer.eos_token_id])

    def encode(
        self, rows: Sequence[tuple[Sequence[Mapping[str, Any]], str | None]]
    ) -> list[Encoded | Rejected]:
        """Encode some rows together.

        Parameters
        ----------
        rows : sequence of (messages, meta)
            As in the rows artifact.

        Returns
        -------
        list of Encoded or Rejected
            One per row, in order.
        """
        drawn = [self._render(messages, meta) for messages, meta in rows]
        tokens = iter(self._tokenize([item for item in drawn if isinstance(item, Rendering)]))
        return [
            self._fit(item, *next(tokens)) if isinstance(item, Rendering) else item
            for item in drawn
        ]

    def _render(
        self, messages: Sequence[Mapping[str, Any]], meta: str | None
    ) -> Rendering | Rejected:
        try:
            return render_row(
                messages,
                meta,
                template=self.template,
                tokenizer=self.tokenizer,
                special=self.special,
                policies=self.on_template_error,
            )
        except RowRejected as error:
            return Rejected(error.reason, error.detail)

    def _tokenize(self, drawn: list[Rendering]) -> list[Tokens]:
        """Give ids and offsets of each rendering."""
        keeps_text = self.special_in_text == "text"
        apart = [item for item in drawn if keeps_text and item.literals]
        texts = [item.text for item in drawn if not (keeps_text and item.literals)]
        literal = iter(
            self.special.encode([x.text for x in apart], [x.literals for x in apart])
            if apart
            else []
        )
        plain = iter(self._tokenize_plain(texts))
        return [next(literal if keeps_text and item.literals else plain) for item in drawn]

    def _tokenize_plain(self, texts: list[str]) -> list[Tokens]:
        if not texts:
            return []
        batch = self.tokenizer(
            texts,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return list(zip(batch["input_ids"], batch["offset_mapping"], strict=True))

    def _fit(
        self, rendering: Rendering, token_ids: list[int], offsets: list[Span]
    ) -> Encoded | Rejected:
        ids = np.asarray(token_ids, dtype=np.int32)
        runs = answer_runs(np.asarray(offsets, dtype=np.int64).reshape(-1, 2), rendering.spans)
        mask = trained(len(ids), runs)
        lacks_end = not all(ids[last] in self._ends for _, last in runs)
        bos = self.tokenizer.bos_token_id
        if self.adds_bos and (ids.size == 0 or ids[0] != bos):
            ids = np.concatenate([np.asarray([bos], dtype=np.int32), ids])
            mask = np.concatenate([[False], mask])
        labels = np.where(mask, ids, np.int32(IGNORED_LABEL))
        length, before = ids.size, count_targets(labels)
        if length > self.max_length:
            if self.on_too_long == "reject":
                detail = f"{length} tokens, tokens.max_length={self.max_length}"
                return Rejected("too_long", detail, length, before)
            keep_first = bos is not None and bool(ids[0] == bos)
            kept = SHORTEN[self.on_too_long](labels, self.max_length, keep_first)
            ids, labels = ids[kept], labels[kept]
        after = count_targets(labels)
        if after == 0:
            detail = (
                f"{before} supervised tokens before and 0 after truncation "
                f"of {length} tokens to tokens.max_length={self.max_length}"
            )
            return Rejected("no_supervised_tokens", detail, length, before)
        return Encoded(
            ids,
            labels,
            length,
            before,
            trailing_dropped=rendering.trailing_dropped,
            mended=rendering.mended,
            num_literals=len(rendering.literals),
            lacks_end=lacks_end,
            tools_left_out=rendering.tools_left_out,
        )
