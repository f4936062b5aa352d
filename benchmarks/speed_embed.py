"""The pass against a bare forward, and against the plain way that pads, keeps and gathers all."""

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers

from benchmarks.results import Figure
from benchmarks.speed_timing import Way, growth, interleaved, ratio
from evenshard.shards import IGNORED_LABEL
from pipeline.config import compose
from pipeline.plan import run_stages, stage_settings
from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.parts import PartSpec
from stages.contract.schemas import JUDGE
from stages.embed.batching import pad_rows, token_batches
from stages.embed.model import TargetModel
from stages.embed.stage import EmbedSettings, load_worker
from stages.embed.worker import EmbedWorker, PassOptions, list_rows

ROWS_OF_PLAIN_BATCH = 16
PASSES = {
    "target_row": ("target_row",),
    "target_row and judge": ("target_row", JUDGE),
    "head_sketch": ("head_sketch",),
    "head_sketch and judge": ("head_sketch", JUDGE),
}


class Rows:
    """Rows of one part as arrays, and the batches that the pass makes of them."""

    def __init__(self, tokens: Artifact, tokens_per_batch: int) -> None:
        table = tokens.read(["input_ids", "labels"])
        self.input_ids = list_rows(table["input_ids"])
        self.labels = list_rows(table["labels"])
        lengths = np.array([ids.size for ids in self.input_ids], np.int64)
        self.batches = token_batches(lengths, tokens_per_batch)
        self.num_tokens = int(lengths.sum())


def bare_forward(model: TargetModel, rows: Rows, chunk: int) -> None:
    """Run the trunk over the same batches, and the head over as many positions as are trained.

    No softmax, no gather (the first positions stand for the trained ones), nothing kept.
    """
    with torch.inference_mode():
        for batch in rows.batches:
            padded = pad_rows([rows.input_ids[i] for i in batch], 0)
            hidden = model.trunk(torch.from_numpy(padded)).flatten(0, 1)
            trained = sum(int(np.count_nonzero(rows.labels[i][1:] != IGNORED_LABEL)) for i in batch)
            for start in range(0, trained, chunk):
                model.head(hidden[start : min(start + chunk, trained)])


def plain_pass(model: transformers.PreTrainedModel, rows: Rows) -> np.ndarray:
    """Compute target_row as one would at first.

    Rows in file order, in padded batches, all hidden states of all layers, the logits and their
    log-softmax at every position.

    Returns
    -------
    ndarray of shape (num_rows, hidden), float32
    """
    found = []
    for start in range(0, len(rows.input_ids), ROWS_OF_PLAIN_BATCH):
        stop = start + ROWS_OF_PLAIN_BATCH
        input_ids = torch.from_numpy(pad_rows(rows.input_ids[start:stop], 0))
        labels = torch.from_numpy(pad_rows(rows.labels[start:stop], IGNORED_LABEL))
        lengths = torch.tensor([ids.size for ids in rows.input_ids[start:stop]])
        mask = torch.arange(input_ids.shape[1]) < lengths[:, None]
        with torch.inference_mode():
            output = model(input_ids=input_ids, attention_mask=mask, output_hidden_states=True)
            log_p = torch.log_softmax(output.logits, dim=-1)[:, :-1]
            targets = labels[:, 1:]
            wanted = targets != IGNORED_LABEL
            right = log_p.gather(2, targets.clamp(min=0)[:, :, None])[:, :, 0]
            minus_wrong = torch.where(wanted, right.exp() - 1.0, 0.0)
            hidden = output.hidden_states[-1][:, :-1]
            sums = torch.einsum("bt,bth->bh", minus_wrong, hidden)
            found.append((sums / wanted.sum(1)[:, None]).numpy())
    return np.concatenate(found)


def prepare(overrides: Sequence[str], folder: Path) -> tuple[EmbedSettings, Artifact, Artifact]:
    """Make the tokens of some rows, and give what the pass is told and reads."""
    config = compose([*overrides, f"store={folder / 'store'}", "report=false"])
    reports = run_stages(config, last="tokens")
    settings = stage_settings("embed", config)
    assert isinstance(settings, EmbedSettings)
    return settings, reports["tokens"].artifact, reports["rows"].artifact


def ways(
    settings: EmbedSettings, tokens: Artifact, rows: Artifact, folder: Path
) -> tuple[dict[str, Way], int]:
    """Build every way of the pass over one loaded model, and count the tokens."""
    every = replace(settings.embed, feature="target_row", also=["head_sketch"], judge=True)
    worker = load_worker(
        replace(settings, embed=every), tokens, rows.path, Draft.create(folder, "embed", "timed")
    )
    whole = transformers.AutoModelForCausalLM.from_pretrained(
        settings.weights, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    held = Rows(tokens, every.tokens_per_batch)
    spec = PartSpec(0, 0, rows.num_rows, "part-00000.parquet")

    def measured(features: tuple[str, ...]) -> EmbedWorker:
        sketches = {name: worker.sketches[name] for name in features if name in worker.sketches}
        options = PassOptions(features, every.tokens_per_batch, every.logits_chunk)
        return replace(worker, sketches=sketches, options=options)

    built: dict[str, Way] = {
        "bare": functools.partial(bare_forward, worker.model, held, every.logits_chunk),
        "plain": functools.partial(plain_pass, whole, held),
    }
    for name, features in PASSES.items():
        built[name] = functools.partial(measured(features), spec)
    return built, held.num_tokens


def measure(overrides: Sequence[str], rounds: int) -> list[Figure]:
    """Take the figures of the pass."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings, tokens, rows = prepare(overrides, folder)
        built, num_tokens = ways(settings, tokens, rows, folder)
        plain = built.pop("plain")
        built["bare"]()  # so that all weights are in memory, and kernels are chosen
        own_bytes = growth(built["target_row"])
        plain_bytes = growth(plain)
        plain_seconds = interleaved({"target_row": built["target_row"], "plain": plain}, 1)
        seconds = interleaved(built, rounds)
    return [
        Figure("embed: tokens of the rows", float(num_tokens), None, "higher"),
        Figure(
            "embed: target_row, tokens a second on one thread",
            num_tokens / float(np.median(seconds["target_row"])),
            None,
            "higher",
        ),
        Figure(
            "embed: time of target_row over the bare forward",
            ratio(seconds, "target_row", "bare"),
            1.10,
            "lower",
        ),
        Figure(
            "embed: time of target_row over the plain way",
            ratio(plain_seconds, "target_row", "plain"),
            0.4,
            "lower",
        ),
        Figure(
            "embed: memory of target_row beyond the weights, MB", own_bytes / 1e6, None, "lower"
        ),
        Figure("embed: memory of the plain way, MB", plain_bytes / 1e6, None, "lower"),
        Figure(
            "embed: memory of target_row over the plain way", own_bytes / plain_bytes, 0.4, "lower"
        ),
        Figure(
            "embed: time of head_sketch over target_row",
            ratio(seconds, "head_sketch", "target_row"),
            1.25,
            "lower",
        ),
        Figure(
            "embed: time of target_row with the judge over without",
            ratio(seconds, "target_row and judge", "target_row"),
            None,
            "lower",
        ),
        Figure(
            "embed: time of head_sketch with the judge over target_row with it",
            ratio(seconds, "head_sketch and judge", "target_row and judge"),
            None,
            "lower",
        ),
    ]
