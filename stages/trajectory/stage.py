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

# Further tables: which rows were trained on, what each checkpoint saw, its adapters, and where
# gradients are asked for the running means of its optimizer.
TRAINED, CHECKPOINTS, ADAPTERS = "trained.parquet", "checkpoints.parquet", "adapters.parquet"
MOMENTS = "moments.parquet"
GRADIENTS = "gradients"  # the column


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
    gradient_dim : int
        Numbers to which each row's gradient in the adapters is folded at each checkpoint, such as
        1024; 0 for no gradients. Every row then goes forth and back at every checkpoint, two to
        three times what its losses alone cost, and takes 2 x checkpoints x gradient_dim bytes.
    seed : int
        Of the sample, its order, the adapters' first numbers, and the folding.
    """

    steps: int = 0
    rows: int = 512
    checkpoints: int = 3
    rank: int = 8
    batch_rows: int = 16
    learning_rate: float = 5e-4
    gradient_dim: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check each field by itself, and checkpoints against steps."""
        for name in ("steps", "gradient_dim"):
            require_at_least(f"trajectory.{name}", getattr(self, name), 0)
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
        require(
            self.gradient_dim == 0 or self.steps > 0,
            f"trajectory.gradient_dim={self.gradient_dim} needs a warm-up, and trajectory.steps=0 "
            f"makes none; set trajectory.steps={20 * self.checkpoints}",
        )


@dataclass(frozen=True)
class TrajectorySettings:
    """The section, and the pass: model, device, and how batches are cut, as of the embed stage."""

    trajectory: TrajectoryConfig
    embed: EmbedSettings


def identity(settings: TrajectorySettings) -> Facts:
    """Name the section, how batches are cut, the number format, the device and the weights.

    Without gradients their size is not named, so that keys are those from before there were any.
    """
    of_pass = identity_of_pass(settings.embed)
    unread = () if settings.trajectory.gradient_dim else ("gradient_dim",)
    cuts = ("tokens_per_batch", "rows_per_part", "logits_chunk")
    return {
        **{name: value for name, value in of_pass.items() if name != "embed"},
        "trajectory": section_params(settings.trajectory, without=unread),
        "cuts": {name: getattr(settings.embed.embed, name) for name in cuts},
    }


def trajectory_schema(checkpoints: int, gradient_dim: int = 0) -> pa.Schema:
    """Give the schema of a part: the loss at each checkpoint, the last one by itself, gradients."""
    gradients = pa.list_(pa.float16(), checkpoints * gradient_dim)
    return pa.schema(
        [
            ("row_id", pa.int64()),
            ("trajectory", pa.list_(pa.float32(), checkpoints)),
            ("loss", pa.float32()),
            *([(GRADIENTS, gradients)] if gradient_dim else []),
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
    """Warm the model up, unless a killed run did, and pass all rows through each checkpoint.

    Where the trajectory of other rows is read, its checkpoints are taken instead: that is how
    target rows get their gradients.
    """
    tokens, warmed = inputs["tokens"], inputs.get("trajectory")
    uses_gpu = settings.embed.device == "cuda"
    seconds = None  # of a warm-up in an earlier run that was killed
    # The adapters are written last of them all, so their presence means that all are there.
    if warmed is None and not (draft.path / ADAPTERS).exists():
        train = functools.partial(load_trainer, settings, tokens, draft)
        whole = PartSpec(0, 0, tokens.parts[-1].stop, ADAPTERS)
        for receipt in spread(train, [whole], uses_gpu=uses_gpu):
            seconds = receipt.stats["seconds"]
            yield receipt
    parts = cut(tokens.parts[-1].stop, settings.embed.embed.rows_per_part)
    make = functools.partial(load_worker, settings, tokens, draft, warmed)
    receipts = yield from work_through(draft, parts, make, spread, uses_gpu=uses_gpu)
    facts: Facts = {
        "kept": sum(receipt.rows for receipt in receipts),
        "rejected": total(receipts, "refused"),
        "tokens_passed": sum(receipt.tokens for receipt in receipts),
    }
    if facts["kept"] == 0:
        raise DataError(
            "trajectory: no row has a loss at every checkpoint; lower trajectory.learning_rate"
        )
    if warmed is not None:
        return Outcome(parts, facts)
    facts |= facts_of_training(draft, seconds)
    log.info(
        "trajectory: %d rows and %d tokens trained, %d tokens passed, training loss %s",
        facts["rows_trained"],
        facts["tokens_trained"],
        facts["tokens_passed"],
        " ".join(f"{loss:.3f}" for loss in facts["losses"]),
    )
    moments = (MOMENTS,) if settings.trajectory.gradient_dim else ()
    return Outcome(parts, facts, (TRAINED, CHECKPOINTS, ADAPTERS, *moments))


def facts_of_training(draft: Draft, seconds: float | None) -> Facts:
    """Say what the warm-up cost and how its loss went."""
    seen = pq.read_table(draft.file(CHECKPOINTS))
    return {
        "rows_trained": pq.read_metadata(draft.file(TRAINED)).num_rows,
        "tokens_trained": seen["tokens"][-1].as_py(),
        "seconds_trained": seconds,
        "losses": seen["loss"].to_pylist(),
    }


def load_trainer(
    settings: TrajectorySettings, tokens: Artifact, draft: Draft
) -> Callable[[PartSpec], Receipt]:
    """Load the model and give the function that trains it, in the process that will use it."""
    from stages.trajectory.worker import load, train

    model, adapters = load(settings)
    return functools.partial(train, model, adapters, settings, tokens, draft)


def load_worker(
    settings: TrajectorySettings, tokens: Artifact, draft: Draft, warmed: Artifact | None = None
) -> "TrajectoryWorker":
    """Load the model and the numbers of each checkpoint, of this warm-up or of another's."""
    from stages.trajectory.gradients import directions_of
    from stages.trajectory.worker import TrajectoryWorker, load, read_states

    model, adapters = load(settings)
    source = draft if warmed is None else warmed
    # Adam's direction is that of rows to learn from; target rows keep the plain gradient.
    by_adam = warmed is None and settings.trajectory.gradient_dim > 0
    moments = read_states(draft.file(MOMENTS)) if by_adam else None
    return TrajectoryWorker(
        model,
        adapters,
        read_states(source.file(ADAPTERS)),
        settings.embed.embed,
        tokens,
        draft,
        directions_of(settings.trajectory, adapters, moments),
    )


TRAJECTORY = Stage(
    name="trajectory",
    version=1,
    reads=("tokens",),
    identity=identity,
    run=run,
    may_read=("trajectory",),
)
