"""The trajectory room's door to the disk: which rows are trained on, and the passes over all."""

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import DataError, require, require_at_least
from stages.contract.fingerprint import section_params
from stages.contract.parts import Facts, Outcome, PartSpec, Receipt, Run, Spread, cut, total
from stages.contract.stage import Stage, work_through
from stages.embed.stage import EmbedSettings
from stages.embed.stage import identity as identity_of_pass

if TYPE_CHECKING:
    from stages.trajectory.worker import TrajectoryWorker

log = logging.getLogger(__name__)

# Further tables: which rows were trained on, what each checkpoint saw, and its adapters.
TRAINED, CHECKPOINTS, ADAPTERS = "trained.parquet", "checkpoints.parquet", "adapters.parquet"


@dataclass(kw_only=True)
class TrajectoryConfig:
    """A short warm-up of the model, and how often all rows are passed through it.

    Attributes
    ----------
    steps : int
        Steps of the warm-up; 0 for none. It runs only where a selector reads it.
    rows : int
        Rows that it trains on, a seeded sample; all where there are fewer.
    checkpoints : int
        Passes over all rows, evenly over the steps, the last after the last one.
    rank : int
        Of the adapters.
    batch_rows : int
        Rows of one step.
    learning_rate : float
        Of AdamW, constant.
    seed : int
        Of the sample, its order, and the adapters' first numbers.
    """

    steps: int = 0
    rows: int = 512
    checkpoints: int = 3
    rank: int = 8
    batch_rows: int = 16
    learning_rate: float = 5e-4
    seed: int = 0

    def __post_init__(self) -> None:
        """Check each field by itself, and checkpoints against steps."""
        require_at_least("trajectory.steps", self.steps, 0)
        for name in ("rows", "checkpoints", "rank", "batch_rows"):
            require_at_least(f"trajectory.{name}", getattr(self, name), 1)
        require(
            0.0 < self.learning_rate < float("inf"),
            f"trajectory.learning_rate={self.learning_rate} must be > 0, such as 0.0005",
        )
        require(
            self.steps == 0 or self.steps >= self.checkpoints,
            f"trajectory.steps={self.steps} must be >= trajectory.checkpoints={self.checkpoints}; "
            f"set trajectory.steps={20 * self.checkpoints}",
        )


@dataclass(frozen=True)
class TrajectorySettings:
    """The section, and the pass: model, device, and how batches are cut, as of the embed stage."""

    trajectory: TrajectoryConfig
    embed: EmbedSettings


def identity(settings: TrajectorySettings) -> Facts:
    """Name the section, how batches are cut, the number format, the device and the weights."""
    of_pass = identity_of_pass(settings.embed)
    cuts = ("tokens_per_batch", "rows_per_part", "logits_chunk")
    return {
        **{name: value for name, value in of_pass.items() if name != "embed"},
        "trajectory": section_params(settings.trajectory),
        "cuts": {name: getattr(settings.embed.embed, name) for name in cuts},
    }


def trajectory_schema(checkpoints: int) -> pa.Schema:
    """Give the schema of a part: the loss at each checkpoint, and the last one by itself."""
    return pa.schema(
        [
            ("row_id", pa.int64()),
            ("trajectory", pa.list_(pa.float32(), checkpoints)),
            ("loss", pa.float32()),
        ]
    )


def sample(
    row_ids: npt.NDArray[np.int64], count: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw the rows that are trained on, in increasing order."""
    return np.sort(rng.choice(row_ids, min(count, row_ids.size), replace=False))


def run(
    settings: TrajectorySettings, inputs: Mapping[str, Artifact], draft: Draft, spread: Spread
) -> Run:
    """Warm the model up, unless a killed run did, and pass all rows through each checkpoint."""
    tokens = inputs["tokens"]
    uses_gpu = settings.embed.device == "cuda"
    seconds = None  # of a warm-up in an earlier run that was killed
    # The adapters are written last of the three, so their presence means that all are there.
    if not (draft.path / ADAPTERS).exists():
        train = functools.partial(load_trainer, settings, tokens, draft)
        whole = PartSpec(0, 0, tokens.parts[-1].stop, ADAPTERS)
        for receipt in spread(train, [whole], uses_gpu=uses_gpu):
            seconds = receipt.stats["seconds"]
            yield receipt
    parts = cut(tokens.parts[-1].stop, settings.embed.embed.rows_per_part)
    make = functools.partial(load_worker, settings, tokens, draft)
    receipts = yield from work_through(draft, parts, make, spread, uses_gpu=uses_gpu)
    kept = sum(receipt.rows for receipt in receipts)
    if kept == 0:
        raise DataError(
            "trajectory: no row has a loss at every checkpoint; lower trajectory.learning_rate"
        )
    seen = pq.read_table(draft.file(CHECKPOINTS))
    facts = {
        "kept": kept,
        "rejected": total(receipts, "refused"),
        "rows_trained": pq.read_metadata(draft.file(TRAINED)).num_rows,
        "tokens_trained": seen["tokens"][-1].as_py(),
        "seconds_trained": seconds,
        "tokens_passed": sum(receipt.tokens for receipt in receipts),
        "losses": seen["loss"].to_pylist(),
    }
    log.info(
        "trajectory: %d rows and %d tokens trained, %d tokens passed, training loss %s",
        facts["rows_trained"],
        facts["tokens_trained"],
        facts["tokens_passed"],
        " ".join(f"{loss:.3f}" for loss in facts["losses"]),
    )
    return Outcome(parts, facts, (TRAINED, CHECKPOINTS, ADAPTERS))


def load_trainer(
    settings: TrajectorySettings, tokens: Artifact, draft: Draft
) -> Callable[[PartSpec], Receipt]:
    """Load the model and give the function that trains it, in the process that will use it."""
    from stages.trajectory.worker import load, train

    model, adapters = load(settings)
    return functools.partial(train, model, adapters, settings, tokens, draft)


def load_worker(settings: TrajectorySettings, tokens: Artifact, draft: Draft) -> "TrajectoryWorker":
    """Load the model and the numbers of each checkpoint."""
    from stages.trajectory.worker import TrajectoryWorker, load, read_states

    model, adapters = load(settings)
    return TrajectoryWorker(
        model, adapters, read_states(draft.file(ADAPTERS)), settings.embed.embed, tokens, draft
    )


TRAJECTORY = Stage(name="trajectory", version=1, reads=("tokens",), identity=identity, run=run)
