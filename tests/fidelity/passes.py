"""Rows of random tokens, and the real embed worker run over them."""

from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import torch

from stages.contract.draft import Draft
from stages.contract.parts import cut
from stages.contract.schemas import SIGNALS
from stages.embed.sketch import make_sketch
from stages.embed.worker import EmbedWorker, PassOptions
from tests.fidelity.artifacts import write_rows, write_tokens
from tests.tiny import VOCAB

HIDDEN = 32
CPU = torch.device("cpu")
LENGTHS = (2, 3, 9, 17, 33, 64)


def make_rows(lengths=LENGTHS, seed=0):
    """Rows of random tokens: prompts of several lengths, gaps, and label 0 supervised once."""
    rng = np.random.default_rng(seed)
    rows = []
    for number, length in enumerate(lengths):
        ids = rng.integers(1, VOCAB, length)
        labels = ids.copy()
        labels[: length // 3] = -100
        if length > 8:
            labels[length // 2 : length // 2 + 2] = -100
        if number == 0:
            labels[0] = ids[0]
        rows.append((ids.tolist(), labels.tolist()))
    return rows


ROWS = make_rows()


def make_worker(store, target, rows, *, feature="target_row", tokens_per_batch=10**6, chunk=256):
    written = write_rows(store, len(rows), 1000)
    tokens = write_tokens(store, written, [r[0] for r in rows], [r[1] for r in rows], 1000)
    sketches = {"head_sketch": sketch_of(target)} if feature == "head_sketch" else {}
    options = PassOptions((feature,), tokens_per_batch, chunk)
    draft = Draft.create(store, "embed", "hand")
    return EmbedWorker(target, sketches, options, tokens, written.path, draft)


def sketch_of(target, seed=0, sketch_vocab=64, sketch_hidden=16):
    return make_sketch(
        target.vocab_size,
        target.hidden_size,
        sketch_vocab=sketch_vocab,
        sketch_hidden=sketch_hidden,
        seed=seed,
        device=CPU,
    )


def embed(store, target, rows, **options):
    """Run the real worker over one part: its table as arrays, its receipt, its rejects."""
    worker = make_worker(store, target, rows, **options)
    (spec,) = cut(len(rows), 1000)
    receipt = worker(spec)
    table = pq.read_table(worker.draft.path / spec.name)
    rejects = worker.draft.path / "rejects-00000.parquet"
    return SimpleNamespace(
        row_ids=table["row_id"].to_pylist(),
        embedding=np.array(table["embedding"].to_pylist(), np.float64),
        signals={name: table[name].to_numpy().astype(np.float64) for name in SIGNALS},
        stats=receipt.stats,
        rejects=pq.read_table(rejects).to_pylist() if rejects.exists() else [],
    )


def supervised(labels):
    """Positions whose next token is trained, with that token."""
    return [(t, labels[t + 1]) for t in range(len(labels) - 1) if labels[t + 1] != -100]
