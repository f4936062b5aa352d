"""Rendered texts become token ids and labels, in one tokenisation, by the tokenizer's offsets.

Prompt and answer are never tokenised apart: a token may lie across their border. A token that
touches an answer is trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.tokens.messages import RowRejected
from stages.tokens.render import Rendering, Template, render_row
from stages.tokens.spans import Span
from stages.tokens.truncate import IGNORED, SHORTEN, Ids, count_targets


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
    """

    input_ids: Ids
    labels: Ids
    num_tokens_before: int
    num_targets_before: int
    trailing_dropped: int = 0

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
    """

    tokenizer: Any
    template: Template
    max_length: int
    on_too_long: str
    adds_bos: bool

    def encode(
        self, rows: Sequence[tuple[Sequence[Mapping[str, Any]], str | None]]
    ) -> list[Encoded | Rejected]:
        """Encode some rows, with one call of the tokenizer.

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
        texts = [item.text for item in drawn if isinstance(item, Rendering)]
        tokens = iter(self._tokenize(texts))
        return [
            self._fit(item, *next(tokens)) if isinstance(item, Rendering) else item
            for item in drawn
        ]

    def _render(
        self, messages: Sequence[Mapping[str, Any]], meta: str | None
    ) -> Rendering | Rejected:
        try:
            return render_row(messages, meta, template=self.template, tokenizer=self.tokenizer)
        except RowRejected as error:
            return Rejected(error.reason, error.detail)

    def _tokenize(self, texts: list[str]) -> list[tuple[list[int], list[Span]]]:
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
        mask = trained(np.asarray(offsets, dtype=np.int64).reshape(-1, 2), rendering.spans)
        bos = self.tokenizer.bos_token_id
        if self.adds_bos and (ids.size == 0 or ids[0] != bos):
            ids = np.concatenate([np.asarray([bos], dtype=np.int32), ids])
            mask = np.concatenate([[False], mask])
        labels = np.where(mask, ids, np.int32(IGNORED))
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
        return Encoded(ids, labels, length, before, rendering.trailing_dropped)


def trained(offsets: npt.NDArray[np.int64], spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
    """Mark the tokens that touch an answer, and all between the first and the last of them.

    Parameters
    ----------
    offsets : ndarray of shape (num_tokens, 2)
        Characters of each token, half-open. Several tokens of one character have the same.
    spans : sequence of (int, int)
        Characters of each answer, half-open.

    Returns
    -------
    ndarray of shape (num_tokens,)
        True where a token is trained.
    """
    mask = np.zeros(len(offsets), dtype=np.bool_)
    if not len(offsets):
        return mask
    starts, stops = offsets[:, 0], offsets[:, 1]
    # A token without width stands for what lies between its neighbour on the left and itself.
    reached = np.concatenate([[0], np.maximum.accumulate(stops)[:-1]])
    starts = np.where(starts == stops, np.minimum(reached, starts), starts)
    for start, stop in spans:
        touching = np.flatnonzero((starts < stop) & (stops > start))
        if touching.size:
            mask[touching[0] : touching[-1] + 1] = True
    return mask
