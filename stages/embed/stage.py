"""The embed room's door to the disk: which parts, which model, which rows were refused."""

import functools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import (
    ConfigurationError,
    DataError,
    require_at_least,
    require_one_of,
    require_share,
)
from stages.contract.fingerprint import section_params
from stages.contract.folder import StorePath
from stages.contract.parts import Facts, Outcome, Run, Spread, cut, total
from stages.contract.schemas import JUDGE, SKETCHES
from stages.contract.stage import Stage, work_through
from stages.embed.checkpoint import check_model_path, vocabulary_size, weights_sha256

if TYPE_CHECKING:
    from stages.embed.worker import EmbedWorker

log = logging.getLogger(__name__)

FEATURES = ("target_row", "hidden_mean", "head_sketch", "position_mean")
# Of the sketch's seed: the judge shares no number with the feature that it judges.
JUDGE_STREAM = 1


@dataclass(kw_only=True)
class ModelConfig:
    """Which model the rows are measured with.

    Attributes
    ----------
    path : str
        `smollm2` (embedded), a folder, or a hub name.
    dtype : str
        auto (bfloat16 on a GPU, float32 on a CPU), bfloat16, float16 or float32.
    attn_implementation : str
        sdpa, eager or flash_attention_2.
    """

    path: str = "smollm2"
    dtype: str = "auto"
    attn_implementation: str = "sdpa"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("model.dtype", self.dtype, ("auto", "bfloat16", "float16", "float32"))
        require_one_of(
            "model.attn_implementation",
            self.attn_implementation,
            ("sdpa", "eager", "flash_attention_2"),
        )
        check_model_path(self.path)


@dataclass(kw_only=True)
class EmbedConfig:
    """How rows become features.

    Attributes
    ----------
    feature : str
        target_row (the paper's), head_sketch, hidden_mean or position_mean.
    also : list of str
        Further features of the same pass, for selectors and clusterings that ask for them.
    judge : bool
        Whether a second sketch is kept, by which selections are judged and never made.
    answer_alone : bool
        Whether a second pass takes the loss of the answer without its prompt; `ifd` needs it.
    max_reject_fraction : float
        Share of rows without numbers above which the run stops.
    tokens_per_batch : int
        Bound of rows times longest row of a batch.
    rows_per_part : int
        Rows of one part; a kill costs each worker at most one part.
    logits_chunk : int
        Supervised positions that meet the head at once; (logits_chunk, vocabulary) is the
        largest tensor beyond the weights.
    sketch_vocab, sketch_hidden : int
        Size of the sketch: buckets of the vocabulary times dimensions of the hidden state.
    seed : int
        Of the sketch.
    """

    feature: str = "target_row"
    also: list[str] = field(default_factory=list)
    judge: bool = True
    answer_alone: bool = False
    max_reject_fraction: float = 0.01
    tokens_per_batch: int = 2048
    rows_per_part: int = 32
    logits_chunk: int = 256
    sketch_vocab: int = 64
    sketch_hidden: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("embed.feature", self.feature, FEATURES)
        for name in self.also:
            require_one_of("embed.also", name, FEATURES)
        at_least_one = (
            "tokens_per_batch",
            "rows_per_part",
            "logits_chunk",
            "sketch_vocab",
            "sketch_hidden",
        )
        for name in at_least_one:
            require_at_least(f"embed.{name}", getattr(self, name), 1)
        require_share("embed.max_reject_fraction", self.max_reject_fraction, zero_allowed=True)

    @property
    def features(self) -> tuple[str, ...]:
        """All features of the pass, each once, that of `embedding` first."""
        names = (self.feature, *sorted(self.also), *((JUDGE,) if self.judge else ()))
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class EmbedSettings:
    """All that the embed stage is told.

    Attributes
    ----------
    embed : EmbedConfig
        The stage's section.
    model : ModelConfig
        The model's section.
    weights : Path
        Local folder of the model.
    device : str
        cpu or cuda, decided by the resources of a worker.
    num_devices : int
        GPUs per worker.
    hash_cache : Path
        Folder of remembered hashes.
    """

    embed: EmbedConfig
    model: ModelConfig
    weights: Path
    device: str
    num_devices: int
    hash_cache: Path

    @property
    def dtype(self) -> str:
        """The number format, with `auto` resolved."""
        if self.model.dtype != "auto":
            return self.model.dtype
        return "bfloat16" if self.device == "cuda" else "float32"


def identity(settings: EmbedSettings) -> Facts:
    """Name the settings, the resolved number format and device, and the weights by content."""
    sketched = set(SKETCHES) & set(settings.embed.features)
    without = () if sketched else ("sketch_vocab", "sketch_hidden", "seed")
    return {
        "embed": {
            **section_params(settings.embed, without=("also", "max_reject_fraction", *without)),
            "also": sorted(set(settings.embed.also) - {settings.embed.feature}),
        },
        "dtype": settings.dtype,
        "device": settings.device,
        "attn_implementation": settings.model.attn_implementation,
        "weights": weights_sha256(settings.weights, settings.hash_cache),
    }


def run(
    settings: EmbedSettings, inputs: Mapping[str, Artifact], draft: Draft, spread: Spread
) -> Run:
    """Compute the parts that are missing; the model is loaded only if there are any."""
    tokens, rows = inputs["tokens"], inputs["rows"]
    check_vocabulary(tokens, settings.weights)
    parts = cut(rows.num_rows, settings.embed.rows_per_part)
    make = functools.partial(load_worker, settings, tokens, rows.path, draft)
    receipts = yield from work_through(
        draft, parts, make, spread, uses_gpu=settings.device == "cuda"
    )
    kept = sum(receipt.rows for receipt in receipts)
    if kept == 0:
        raise DataError(
            "embed: no row could be embedded, all were refused; see rejects in "
            f"{draft.path}, and lower tokens.max_length or choose a smaller model"
        )
    rejected = total(receipts, "rejected")
    check_rejects(kept, rejected, settings.embed.max_reject_fraction, draft.path)
    facts = {
        "kept": kept,
        "rejected": rejected,
        "tokens": sum(receipt.tokens for receipt in receipts),
        "halvings": total(receipts, "halvings"),
        "peak_rss_mb": max(int(receipt.stats["peak_rss_mb"]) for receipt in receipts),
    }
    log.info(
        "embed: %d rows kept, %d rejected, %d batches halved, at most %d MB in a worker",
        facts["kept"],
        facts["rejected"],
        facts["halvings"],
        facts["peak_rss_mb"],
    )
    return Outcome(parts, facts)


def check_rejects(kept: int, rejected: int, most: float, folder: object) -> None:
    """Stop if too many rows have no numbers; none is ever given a default.

    Raises
    ------
    DataError
        If it is more than `most` of them.
    """
    share = rejected / (kept + rejected)
    if share > most:
        raise DataError(
            f"embed: {rejected} of {kept + rejected} rows ({share:.2%}) have no numbers, which is "
            f"more than embed.max_reject_fraction={most} allows; their reasons are in "
            f"{folder}/rejects-*.parquet. Lower tokens.max_length, choose another model, or go on "
            f"without them by embed.max_reject_fraction={math.ceil(share * 1000) / 1000:g}"
        )


def check_vocabulary(tokens: Artifact, weights: Path) -> None:
    """Check that the model knows every token, before it is loaded.

    Raises
    ------
    ConfigurationError
        If a row has a token beyond the model's vocabulary; on a GPU that would end in an
        assertion of the device.
    """
    size = vocabulary_size(weights)
    for table in tokens.iter_parts(["input_ids"]):
        largest = pc.max(pc.list_flatten(table["input_ids"])).as_py()
        if size is not None and largest is not None and largest >= size:
            raise ConfigurationError(
                f"model.path: a row has token {largest}, which must be < {size}, the model's "
                f"vocabulary; the tokenizer and the weights do not belong together"
            )


def load_worker(
    settings: EmbedSettings, tokens: Artifact, rows: StorePath, draft: Draft
) -> "EmbedWorker":
    """Load the model in the process that will use it."""
    import torch

    from stages.embed.model import load_model
    from stages.embed.sketch import make_sketch
    from stages.embed.worker import EmbedWorker, PassOptions

    # Sums depend on the number of threads: with one, the bytes are the same for any number of
    # workers, and as many workers as cores keep the machine busy.
    torch.set_num_threads(1)
    log.info(
        "loading the model from %s (%s, %s)", settings.weights, settings.dtype, settings.device
    )
    model = load_model(
        settings.weights,
        dtype=settings.dtype,
        device=settings.device,
        attn_implementation=settings.model.attn_implementation,
        num_devices=settings.num_devices,
    )
    config = settings.embed
    seeds: dict[str, int | list[int]] = {
        "head_sketch": config.seed,
        JUDGE: [config.seed, JUDGE_STREAM],
    }
    sketches = {
        name: make_sketch(
            model.vocab_size,
            model.hidden_size,
            sketch_vocab=config.sketch_vocab,
            sketch_hidden=config.sketch_hidden,
            seed=seeds[name],
            device=model.head_device,
        )
        for name in config.features
        if name in seeds
    }
    options = PassOptions(
        config.features, config.tokens_per_batch, config.logits_chunk, config.answer_alone
    )
    return EmbedWorker(model, sketches, options, tokens, rows, draft)


EMBED = Stage(name="embed", version=3, reads=("tokens", "rows"), identity=identity, run=run)
