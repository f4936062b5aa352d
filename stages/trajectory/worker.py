"""What a worker of the trajectory room does: train once, or pass parts through every checkpoint.

Where gradients are asked for, the same passes go back as well.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.parts import PartSpec, Receipt
from stages.contract.tables import Layout
from stages.embed.batching import token_batches
from stages.embed.model import DTYPES, TargetModel, wrap_model
from stages.embed.stage import EmbedConfig
from stages.embed.worker import is_out_of_memory, list_rows, release_memory
from stages.trajectory.adapters import LowRank, add_adapters, set_state
from stages.trajectory.gradients import (
    Directions,
    folded_gradients,
    joined,
)
from stages.trajectory.stage import (
    ADAPTERS,
    CHECKPOINTS,
    GRADIENTS,
    MOMENTS,
    TRAINED,
    TrajectorySettings,
    sample,
    trajectory_schema,
)
from stages.trajectory.train import Rows, batches_of, checkpoint_steps, row_losses, warm_up

log = logging.getLogger(__name__)

COLUMNS = ("row_id", "input_ids", "labels")
State = Mapping[str, Tensor]


def load(settings: TrajectorySettings) -> tuple[TargetModel, dict[str, LowRank]]:
    """Load the model with adapters that do nothing yet; one thread, so that bytes are fixed."""
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    of_pass = settings.embed
    model = transformers.AutoModelForCausalLM.from_pretrained(
        of_pass.weights,
        dtype=DTYPES[of_pass.dtype],
        attn_implementation=of_pass.model.attn_implementation,
        trust_remote_code=False,
        use_safetensors=True,
        device_map="auto" if of_pass.num_devices > 1 else of_pass.device,
    )
    model.eval()  # no dropout: the same step, the same numbers
    target = wrap_model(model)
    return target, add_adapters(model, settings.trajectory.rank, settings.trajectory.seed)


def read_rows(tokens: Artifact, row_ids: npt.NDArray[np.int64]) -> Rows:
    """Read some rows, given in increasing order, part by part."""
    found = Rows([], [])
    for table in tokens.iter_parts(COLUMNS):
        own = table.filter(pc.is_in(table["row_id"], value_set=pa.array(row_ids)))
        found.input_ids.extend(list_rows(own["input_ids"]))
        found.labels.extend(list_rows(own["labels"]))
    return found


def train(
    model: TargetModel,
    adapters: Mapping[str, LowRank],
    settings: TrajectorySettings,
    tokens: Artifact,
    draft: Draft,
    spec: PartSpec,
) -> Receipt:
    """Warm the model up and write which rows it saw, its losses, and last its adapters."""
    started = time.monotonic()
    config = settings.trajectory
    rng = np.random.default_rng(config.seed)
    chosen = sample(tokens.array("row_id"), config.rows, rng)
    result = warm_up(
        model,
        adapters,
        read_rows(tokens, chosen),
        list(batches_of(chosen.size, min(config.batch_rows, chosen.size), config.steps, rng)),
        checkpoints=config.checkpoints,
        learning_rate=config.learning_rate,
        tokens_per_batch=settings.embed.embed.tokens_per_batch,
        chunk=settings.embed.embed.logits_chunk,
        keep_moments=config.gradient_dim > 0,
        tell=lambda step, loss: log.info("trajectory: step %d, loss %.4f", step, loss),
    )
    steps = checkpoint_steps(config.steps, config.checkpoints)
    draft.write_side(TRAINED, pa.table({"row_id": pa.array(chosen, pa.int64())}))
    draft.write_side(
        CHECKPOINTS, pa.table({"step": steps, "loss": result.losses, "tokens": result.tokens})
    )
    if config.gradient_dim:
        draft.write_side(MOMENTS, states_table(result.moments))
    draft.write_side(ADAPTERS, states_table(result.states))
    stats = {"seconds": round(time.monotonic() - started, 3)}
    return Receipt(spec.index, 0, result.tokens[-1], stats=stats)


def states_table(states: Sequence[State]) -> pa.Table:
    """Lay the numbers of all checkpoints into a table, an array a row."""
    entries = [(i, name, state[name]) for i, state in enumerate(states) for name in state]
    return pa.table(
        {
            "checkpoint": pa.array([i for i, _, _ in entries], pa.int32()),
            "name": [name for _, name, _ in entries],
            "shape": [list(values.shape) for _, _, values in entries],
            "values": pa.array(
                [values.flatten().numpy() for _, _, values in entries], pa.list_(pa.float32())
            ),
        }
    )


def read_states(file: Any) -> list[State]:
    """Read the numbers of all checkpoints, from what pyarrow reads a file from."""
    found: dict[int, dict[str, Tensor]] = {}
    table = pq.read_table(file)
    columns = (table[name] for name in ("checkpoint", "name", "shape", "values"))
    for index, name, shape, values in zip(*columns, strict=True):
        numbers = torch.from_numpy(values.values.to_numpy().copy())
        found.setdefault(index.as_py(), {})[name.as_py()] = numbers.reshape(shape.as_py())
    return [found[index] for index in sorted(found)]


@dataclass(frozen=True)
class TrajectoryWorker:
    """A model with its adapters, and the numbers of each checkpoint."""

    model: TargetModel
    adapters: Mapping[str, LowRank]
    states: Sequence[State]
    config: EmbedConfig
    tokens: Artifact
    draft: Draft
    directions: Directions | None

    def __call__(self, spec: PartSpec) -> Receipt:
        """Take the losses and gradients of one part at every checkpoint, and write them."""
        table = self.tokens.read(COLUMNS, start=spec.start, stop=spec.stop)
        rows = Rows(list_rows(table["input_ids"]), list_rows(table["labels"]))
        shape = (len(rows.labels), len(self.states))
        losses = np.full(shape, np.nan, np.float32)
        dim = self.directions.dim if self.directions else 0
        gradients = np.full((*shape, dim), np.nan, np.float32)
        for place, state in enumerate(self.states):
            set_state(self.adapters, state)
            for batch in token_batches(rows.lengths, self.config.tokens_per_batch):
                self._pass(rows, batch, place, losses, gradients)
        # A row without numbers at every checkpoint is left out, never given a default.
        kept = np.isfinite(losses).all(axis=1) & np.isfinite(gradients).all(axis=(1, 2))
        found = joined(gradients[kept]) if dim else None
        return self.draft.write_part(
            spec,
            trajectory_table(table["row_id"].to_numpy()[kept], losses[kept], found),
            layout=Layout("none", float_lists=float_lists(dim), max_group_rows=1 << 20),
            tokens=int(rows.lengths.sum()) * len(self.states),
            stats={"refused": int((~kept).sum())},
        )

    def _pass(
        self,
        rows: Rows,
        batch: npt.NDArray[np.int64],
        place: int,
        losses: npt.NDArray[np.float32],
        gradients: npt.NDArray[np.float32],
    ) -> None:
        """Take the numbers of a batch; where the device runs out of memory, halve it."""
        try:
            found, folded = self._compute(rows.take(batch), place)
            losses[batch, place] = found.cpu().numpy()
            if folded is not None:
                gradients[batch, place] = folded.cpu().numpy()
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            halves = np.array_split(batch, 2) if batch.size > 1 else []
        else:
            return
        release_memory(self.model.device)
        for half in halves:
            self._pass(rows, half, place, losses, gradients)

    def _compute(self, rows: Rows, place: int) -> tuple[Tensor, Tensor | None]:
        chunk, asked = self.config.logits_chunk, self.directions
        if asked is None:
            with torch.inference_mode():
                return row_losses(self.model, rows, chunk), None
        return folded_gradients(
            *(self.model, self.adapters, rows, chunk, asked.folds, asked.dim),
            asked.moments[place],
        )


def float_lists(gradient_dim: int) -> tuple[str, ...]:
    """Name the columns of lists of floats."""
    return ("trajectory", GRADIENTS) if gradient_dim else ("trajectory",)


def trajectory_table(
    row_ids: npt.NDArray[np.int64],
    losses: npt.NDArray[np.float32],
    gradients: npt.NDArray[np.float16] | None,
) -> pa.Table:
    """Lay losses of shape (num_rows, checkpoints) and gradients into the columns of a part."""
    checkpoints = losses.shape[1]
    flat = pa.array(np.ascontiguousarray(losses).reshape(-1), pa.float32())
    columns = [
        pa.array(row_ids, pa.int64()),
        pa.FixedSizeListArray.from_arrays(flat, checkpoints),
        pa.array(np.ascontiguousarray(losses[:, -1]), pa.float32()),
    ]
    width = 0
    if gradients is not None:
        width = gradients.shape[1]
        numbers = pa.array(gradients.reshape(-1), pa.float16())
        columns.append(pa.FixedSizeListArray.from_arrays(numbers, width))
    return pa.table(columns, schema=trajectory_schema(checkpoints, width // checkpoints))
