"""What a training benchmark is told: data, model, schedule; and the folder that these name."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHE = Path("data/bench")


@dataclass(frozen=True, kw_only=True)
class Regime:
    """All settings that runs share.

    Attributes
    ----------
    train, heldout : str
        Files of rows. A part of the first is for pre-training, by source or by half; pools
        come from the other.
    model : str
        A real model that is tuned, as `model.path` names it; empty for the small Llama. There is
        no pre-training then, pools come from all rows, and no reference is tuned.
    template : str
        As `tokens.template` names it.
    adapter_rank : int
        Of the adapters (LoRA) that are tuned beside the frozen model; 0 tunes all weights.
    heldout_rows : int
        How many of the held-out rows are passed, drawn by the seed; 0 for all.
    new_sources : tuple of str
        Sources, by the beginning of their names, that only pools and held-out rows have; where
        there are none, half of all rows are for pre-training and pools come from the other half.
    seed : int
        Of the halves, of the tokenizer and the model.
    vocabulary, max_length : int
        Tokens there are, and most tokens of a row.
    hidden, layers, feed_forward, heads : int
        Shape of the Llama; its embedding matrix is its head.
    pretrain_epochs, pretrain_rows : int
        Passes over that part, and rows of a step.
    pretrain_rate : float
        Largest learning rate of pre-training.
    pool_rows : int
        Rows that a seed draws from what pre-training leaves, to be selected from.
    epochs : int
        Passes over the kept rows.
    micro_batch : int
        B; a step has 4 workers of B rows.
    learning_rate : float
        Largest learning rate of every run, tuned once on all rows.
    warmup, floor : float
        Share of the steps in which the rate rises, and the share of it that is left at the end.
    weight_decay, clip : float
        Of AdamW, and of the norm of the gradient.
    bfloat16 : bool
        Whether training and held-out passes compute matrix products in bfloat16; weights, sums
        of losses, the optimizer and features stay in float32.
    marks : tuple of float
        Shares of the steps of a run after which all held-out rows are passed.
    slice_share : float
        Share of the pool that the reference of reducible loss is tuned on, twice: see
        `training_passes.reference_signals`.
    sketch_vocab, sketch_hidden : int
        Size of the sketches.
    """

    train: str = "../shared/data/mix/train.jsonl"
    heldout: str = "../shared/data/mix/heldout.jsonl"
    model: str = ""
    template: str = "chat"
    adapter_rank: int = 0
    heldout_rows: int = 0
    new_sources: tuple[str, ...] = ("code", "math", "templated", "medical")
    seed: int = 0
    vocabulary: int = 4096
    max_length: int = 160
    hidden: int = 256
    layers: int = 3
    feed_forward: int = 512
    heads: int = 4
    pretrain_epochs: int = 1
    pretrain_rows: int = 32
    pretrain_rate: float = 2e-3
    pool_rows: int = 800
    epochs: int = 4
    micro_batch: int = 4
    learning_rate: float = 3e-3
    warmup: float = 0.1
    floor: float = 0.0
    weight_decay: float = 0.0
    clip: float = 1.0
    bfloat16: bool = True
    marks: tuple[float, ...] = (0.5, 0.75, 0.9, 1.0)
    slice_share: float = 0.1
    sketch_vocab: int = 64
    sketch_hidden: int = 32

    NUM_WORKERS = 4

    @property
    def model_key(self) -> str:
        """Name the tokenizer, the rows and the model that is tuned by what decides them."""
        names = (
            "train heldout model template adapter_rank heldout_rows new_sources seed vocabulary "
            "max_length hidden layers feed_forward heads "
            "pretrain_epochs pretrain_rows pretrain_rate weight_decay clip"
        )
        return digest({name: getattr(self, name) for name in names.split()})

    @property
    def key(self) -> str:
        """Name the regime by all of its settings."""
        return digest(self.facts)

    @property
    def facts(self) -> dict[str, Any]:
        """Give all settings as JSON has them."""
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return found

    @property
    def folder(self) -> Path:
        """Where the model and what was measured with it are kept; git does not see it."""
        folder = CACHE / self.model_key
        folder.mkdir(parents=True, exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
        return folder


def digest(facts: object) -> str:
    """Hash plain values to 12 hexadecimal digits."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


FULL = Regime()
# Fine-tuning on more rows of the mixture that the model was pre-trained on.
SAME = Regime(new_sources=(), pool_rows=1600, epochs=2, learning_rate=1e-3)
# The embedded model, by adapters beside it.
REAL = Regime(
    model="smollm2",
    template="chatml",  # its own adds a system prompt to every row, a quarter of the tokens here
    adapter_rank=16,
    heldout_rows=100,
    new_sources=(),
    max_length=96,
    pool_rows=400,
    epochs=2,
    micro_batch=2,
    learning_rate=1e-3,
    bfloat16=False,  # the frozen model is, the rest stays in float32
    marks=(0.15, 0.4, 0.75, 1.0),
)
REGIMES = {"training": FULL, "training-same": SAME, "training-smollm2": REAL}
# For tests: seconds, on rows that the caller names.
TINY = Regime(
    new_sources=(),
    vocabulary=300,
    max_length=48,
    hidden=16,
    layers=1,
    feed_forward=32,
    heads=2,
    pretrain_epochs=1,
    pretrain_rows=16,
    pool_rows=64,
    epochs=1,
    learning_rate=1e-3,
    micro_batch=2,
    bfloat16=False,
    slice_share=0.25,
    sketch_vocab=8,
    sketch_hidden=8,
)
