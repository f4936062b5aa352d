"""The model that runs tune: a real one, or the small Llama with its tokenizer and pre-training."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.training_data import (
    Rows,
    known,
    pool_of,
    read_rows,
    read_texts,
    train_tokenizer,
)
from benchmarks.training_loop import heldout_losses, make_optimizer, rank_loss, rate_at
from benchmarks.training_regime import Regime
from evenshard.collate import PadCollator, WeightCollator
from stages.embed.checkpoint import resolve_model
from stages.trajectory.adapters import add_adapters

log = logging.getLogger(__name__)

DONE = "pretrained"
MODELS = Path("data/models")  # where the pipeline keeps the embedded one, too


@dataclass(frozen=True)
class Start:
    """What every run begins with.

    Attributes
    ----------
    folder : Path
        Of the model before fine-tuning.
    train, heldout : Rows
        All rows of the first file; of the second, those like the pools'.
    adapter_rank, seed : int
        Of the adapters that are tuned; without any, all weights are.
    """

    folder: Path
    train: Rows
    heldout: Rows
    adapter_rank: int = 0
    seed: int = 0

    def model(self) -> Any:
        """Load the model as it is; one that stays frozen under adapters in bfloat16."""
        from transformers import AutoModelForCausalLM

        dtype = torch.bfloat16 if self.adapter_rank else torch.float32
        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=dtype)

    def learner(self) -> Any:
        """Load the model as it is tuned: all of its weights, or adapters beside them."""
        model = self.model()
        if self.adapter_rank:
            add_adapters(model, self.adapter_rank, self.seed)
        return model

    def pool(self, regime: Regime, seed: int) -> Rows:
        """Draw a seed's pool."""
        return pool_of(self.train, regime, seed)


def prepare(regime: Regime) -> Start:
    """Make or find the tokenizer, the rows and the model."""
    if regime.model:
        return real_model(regime)
    blank, folder = regime.folder / "blank", regime.folder / "model"
    if not (blank / "tokenizer.json").exists():
        blank_model(regime).save_pretrained(blank)
        texts = read_texts(regime.train, regime, str(blank))
        train_tokenizer(texts, regime.vocabulary, blank)
    heldout = read_rows(regime.heldout, regime, str(blank))
    if regime.new_sources:
        heldout = heldout.take(np.flatnonzero(~known(heldout, regime)))
    start = Start(folder, read_rows(regime.train, regime, str(blank)), heldout)
    if not (folder / DONE).exists():
        model = blank_model(regime)
        report = pretrain(model, start, regime)
        model.save_pretrained(folder)
        (folder / DONE).write_text(report, encoding="utf-8")
    return start


def real_model(regime: Regime) -> Start:
    """Find a real model, and the rows as it reads them."""
    folder = resolve_model(regime.model, MODELS)
    heldout = read_rows(regime.heldout, regime, regime.model)
    rng = np.random.default_rng(regime.seed)
    drawn = rng.permutation(len(heldout))[: regime.heldout_rows or None]
    return Start(
        folder,
        read_rows(regime.train, regime, regime.model),
        heldout.take(np.sort(drawn)),
        regime.adapter_rank,
        regime.seed,
    )


def blank_model(regime: Regime) -> Any:
    """Make the Llama with random weights from the regime's seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=regime.vocabulary,
        hidden_size=regime.hidden,
        intermediate_size=regime.feed_forward,
        num_hidden_layers=regime.layers,
        num_attention_heads=regime.heads,
        num_key_value_heads=regime.heads,
        max_position_embeddings=2 * regime.max_length,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(regime.seed)
        return LlamaForCausalLM(config)


def pretrain(model: Any, start: Start, regime: Regime) -> str:
    """Train on every token of the rows that are for it, and say how the held-out loss went."""
    rows = start.train.take(np.flatnonzero(known(start.train, regime)))
    steps = [
        step for epoch in range(regime.pretrain_epochs) for step in _order(rows, epoch, regime)
    ]
    optimizer = make_optimizer(model, regime.pretrain_rate, regime)
    collate = WeightCollator(PadCollator(0), "token")
    began, lines, tokens = time.monotonic(), [], 0
    for number, places in enumerate(steps):
        for group in optimizer.param_groups:
            group["lr"] = regime.pretrain_rate * rate_at(number, len(steps), regime)
        ids = [rows.input_ids[i].astype(np.int64) for i in places]
        batch = collate([{"input_ids": one, "labels": one, "weight": 1.0} for one in ids])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=regime.bfloat16):
            loss = rank_loss(model, batch, denominator=batch["loss_denominator"], world_size=1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), regime.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += sum(one.size for one in ids)
        if (number + 1) % max(1, len(steps) // regime.pretrain_epochs) == 0:
            losses = heldout_losses(model, start.heldout)
            model.train()
            lines.append(
                f"{number + 1} of {len(steps)} steps, {tokens} tokens, held-out loss "
                f"{losses['plain']:.4f}, {time.monotonic() - began:.0f} s"
            )
            log.info("pre-training: %s", lines[-1])
    return "".join(f"{line}\n" for line in lines)


def _order(rows: Rows, epoch: int, regime: Regime) -> Iterator[np.ndarray]:
    """Deal the rows of an epoch into steps of like lengths, in random order."""
    rng = np.random.default_rng([regime.seed, epoch])
    # Lengths with a little noise, so that steps differ between the epochs.
    lengths = rows.num_tokens + rng.normal(0.0, 8.0, len(rows))
    order = np.argsort(lengths)
    count = len(rows) // regime.pretrain_rows
    steps = order[: count * regime.pretrain_rows].reshape(count, -1)
    yield from steps[rng.permutation(count)]
