"""Rows for the training benchmark: read, rendered and cut by the pipeline, then plain arrays."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.training_regime import Regime, digest
from pipeline.config import Config, compose
from pipeline.plan import run_stages

IntArray = npt.NDArray[np.int64]

BOS, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class Rows:
    """Tokenised rows.

    Attributes
    ----------
    row_ids : ndarray of shape (num_rows,), int64
        Increasing places in the file.
    uids : list of str
        A hash of each row's text, or its own id.
    source : ndarray of shape (num_rows,), int32
        Number of the source in `source_names`.
    source_names : list of str
        The file's sources, sorted.
    input_ids, labels : list of ndarray of int32
        Of each row; labels are -100 where nothing is trained.
    """

    row_ids: IntArray
    uids: list[str]
    source: npt.NDArray[np.int32]
    source_names: list[str]
    input_ids: list[npt.NDArray[np.int32]]
    labels: list[npt.NDArray[np.int32]]

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def num_tokens(self) -> IntArray:
        """Length of each row."""
        return np.array([ids.size for ids in self.input_ids], np.int64)

    def save(self, path: Path) -> None:
        """Write the rows into one file, whole or not at all."""
        unfinished = path.with_suffix(f".{time.monotonic_ns()}.npz")
        np.savez(
            unfinished,
            row_ids=self.row_ids,
            uids=np.array(self.uids),
            source=self.source,
            source_names=np.array(self.source_names),
            lengths=self.num_tokens,
            input_ids=np.concatenate(self.input_ids),
            labels=np.concatenate(self.labels),
        )
        unfinished.rename(path)

    @classmethod
    def load(cls, path: Path) -> "Rows":
        """Read what `save` wrote."""
        with np.load(path) as file:
            cuts = np.cumsum(file["lengths"])[:-1]
            return cls(
                file["row_ids"],
                file["uids"].tolist(),
                file["source"],
                file["source_names"].tolist(),
                np.split(file["input_ids"], cuts),
                np.split(file["labels"], cuts),
            )

    def take(self, places: Iterable[int]) -> "Rows":
        """Give some of the rows."""
        chosen = np.asarray(list(places), np.int64)
        return Rows(
            self.row_ids[chosen],
            [self.uids[i] for i in chosen],
            self.source[chosen],
            self.source_names,
            [self.input_ids[i] for i in chosen],
            [self.labels[i] for i in chosen],
        )


def read_rows(path: str, regime: Regime, model: str) -> Rows:
    """Let the pipeline read, screen, render and tokenise a file; exact duplicates collapse.

    The result is kept in the regime's folder.
    """
    kept = regime.folder / f"rows-{digest(path)}.npz"
    if kept.exists():
        return Rows.load(kept)
    reports = run_stages(_config(path, regime, model), last="tokens")
    rows, tokens = reports["rows"].artifact, reports["tokens"].artifact
    row_ids = tokens.array("row_id").astype(np.int64)
    text = rows.read(["uid", "source"])
    names = text["source"].to_pylist()
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    uids = text["uid"].to_pylist()
    table = tokens.read(["input_ids", "labels"])
    found = Rows(
        row_ids,
        [uids[i] for i in row_ids],
        np.array([numbers[names[i]] for i in row_ids], np.int32),
        list(numbers),
        list(_lists(table["input_ids"])),
        list(_lists(table["labels"])),
    )
    found.save(kept)
    return found


def read_texts(path: str, regime: Regime, model: str) -> Iterator[list[str]]:
    """Give the messages of each row that is for pre-training, before there is a tokenizer."""
    reports = run_stages(_config(path, regime, model), last="rows")
    table = reports["rows"].artifact.read(["uid", "source", "messages"])
    for uid, source, messages in zip(
        *(column.to_pylist() for column in table.columns), strict=True
    ):
        if is_known(uid, source, regime):
            yield [message["content"] for message in messages]


def is_known(uid: str, source: str, regime: Regime) -> bool:
    """Say whether a row is for pre-training.

    A real model has no row of them to learn. Where the regime has new sources, those of all others
    are; else half of the rows are, by a hash of their text and the regime's seed.
    """
    if regime.model:
        return False
    if regime.new_sources:
        return not source.startswith(regime.new_sources)
    return hash_of(uid, regime.seed) % 2 == 0


def known(rows: Rows, regime: Regime) -> npt.NDArray[np.bool_]:
    """Say of each row whether it is for pre-training."""
    names = [rows.source_names[number] for number in rows.source]
    pairs = zip(rows.uids, names, strict=True)
    return np.array([is_known(uid, name, regime) for uid, name in pairs], bool)


def hash_of(uid: str, *seeds: int) -> int:
    """Hash a row's uid with seeds: its place in a random order that no other row decides."""
    return int(hashlib.sha256(f"{seeds}:{uid}".encode()).hexdigest()[:15], 16)


def pool_of(rows: Rows, regime: Regime, seed: int) -> Rows:
    """Draw a seed's pool from what pre-training leaves: the rows with the smallest hashes."""
    left = np.flatnonzero(~known(rows, regime)).tolist()
    order = sorted(left, key=lambda i: hash_of(rows.uids[i], regime.seed, seed, 1))
    assert len(order) >= regime.pool_rows, (
        f"pool_rows={regime.pool_rows} must be <= the {len(order)} rows of "
        f"{regime.train} that pre-training leaves; lower it"
    )
    return rows.take(sorted(order[: regime.pool_rows]))


def train_tokenizer(texts: Iterable[Sequence[str]], vocabulary: int, folder: Path) -> None:
    """Train a byte-level BPE on messages and save it with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, BOS, END, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator((text for row in texts for text in row), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=BOS, eos_token=END, pad_token=PAD
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def _config(path: str, regime: Regime, model: str) -> Config:
    return compose(
        [
            f"rows.path='{path}'",
            f"model.path='{model}'",
            f"tokens.template={regime.template}",
            f"tokens.max_length={regime.max_length}",
            "tokens.on_too_long=keep_answer",
            f"store={regime.folder / 'store'}",
            "compute.workers=0",
            "name=bench",
        ]
    )


def _lists(column: Any) -> Iterator[npt.NDArray[np.int32]]:
    for chunk in column.chunks:
        flat, ends = chunk.flatten().to_numpy(), chunk.offsets.to_numpy()
        first = ends[0]
        for start, stop in zip(ends[:-1] - first, ends[1:] - first, strict=True):
            yield np.array(flat[start:stop])
