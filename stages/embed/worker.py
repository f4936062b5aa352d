"""What one embed worker does: load the model once, then turn parts of tokens into features."""

import itertools
import logging
import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from evenshard.shards import IGNORED_LABEL
from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.parts import PartSpec, Receipt
from stages.contract.rejects import ROW_COLUMNS, reject_rows
from stages.contract.schemas import SIGNALS, embed_schema
from stages.contract.tables import Layout
from stages.embed.batching import pad_rows, token_batches
from stages.embed.features import RowFeatures, row_features
from stages.embed.model import TargetModel
from stages.embed.sketch import Sketch

log = logging.getLogger(__name__)

EMBED_LAYOUT = Layout(compression="none", float_lists=("embedding",), max_group_rows=1 << 20)
TOKEN_COLUMNS = ("row_id", "input_ids", "labels", "num_tokens")


@dataclass(frozen=True)
class PassOptions:
    """How the pass is cut and what it keeps; see `EmbedConfig` for the meaning of each."""

    feature: str
    tokens_per_batch: int
    logits_chunk: int


@dataclass
class _Part:
    """Rows of one part while they are computed; arrays are indexed by position in the part."""

    input_ids: list[npt.NDArray[np.int32]]
    labels: list[npt.NDArray[np.int32]]
    done: dict[int, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]] = field(
        default_factory=dict
    )
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    halvings: int = 0


@dataclass(frozen=True)
class EmbedWorker:
    """A loaded model with the folders that it reads from and writes to."""

    model: TargetModel
    sketch: Sketch | None
    options: PassOptions
    tokens: Artifact
    rows: Path
    draft: Draft

    def __call__(self, spec: PartSpec) -> Receipt:
        """Compute and write one part."""
        table = self.tokens.read(TOKEN_COLUMNS, start=spec.start, stop=spec.stop)
        part = _Part(list_rows(table["input_ids"]), list_rows(table["labels"]))
        lengths = np.array([ids.size for ids in part.input_ids], np.int64)
        for batch in token_batches(lengths, self.options.tokens_per_batch):
            self._compute(part, batch)
        row_ids = table["row_id"].to_numpy()
        kept = sorted(part.done)
        features = (
            np.stack([part.done[i][0] for i in kept]) if kept else np.empty((0, 1), np.float32)
        )
        signals = np.stack([part.done[i][1] for i in kept]) if kept else np.empty((0, len(SIGNALS)))
        return self.draft.write_part(
            spec,
            embed_table(row_ids[kept], features, signals, dim=self.dim),
            layout=EMBED_LAYOUT,
            sides=self._rejects(spec, part, row_ids),
            tokens=int(lengths.sum()),
            stats={
                "halvings": part.halvings,
                "rejected": len(part.refused),
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            },
        )

    @property
    def dim(self) -> int:
        """Size of an embedding."""
        if self.options.feature == "head_sketch" and self.sketch is not None:
            return self.sketch.dim
        return self.model.hidden_size

    def _compute(self, part: _Part, batch: npt.NDArray[np.int64]) -> None:
        """Compute a batch; where the device runs out of memory, halve it, down to one row."""
        try:
            features = self._features(part, batch)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            message = str(error)
        else:
            self._keep(part, batch, features)
            return
        release_memory(self.model.device)
        if batch.size == 1:
            tokens = part.input_ids[int(batch[0])].size
            part.refused[int(batch[0])] = ("too_large_for_device", f"{tokens} tokens: {message}")
            return
        part.halvings += 1
        middle = batch.size // 2
        log.warning("out of memory with %d rows, halving the batch", batch.size)
        self._compute(part, batch[:middle])
        self._compute(part, batch[middle:])

    def _features(self, part: _Part, batch: npt.NDArray[np.int64]) -> RowFeatures:
        rows = [int(index) for index in batch]
        input_ids = torch.from_numpy(pad_rows([part.input_ids[i] for i in rows], 0))
        targets = [part.labels[i][1:] for i in rows]
        places = [np.flatnonzero(target != IGNORED_LABEL) for target in targets]
        row_index = np.repeat(np.arange(len(rows)), [place.size for place in places])
        flat_targets = np.concatenate([t[p] for t, p in zip(targets, places, strict=True)])
        device = self.model.head_device
        with torch.inference_mode():
            hidden_RTH = self.model.trunk(input_ids.to(self.model.device))
            hidden_PH = hidden_RTH[
                torch.from_numpy(row_index).to(hidden_RTH.device),
                torch.from_numpy(np.concatenate(places)).to(hidden_RTH.device),
            ].to(device)
            del hidden_RTH
            return row_features(
                hidden_PH,
                torch.from_numpy(flat_targets.astype(np.int64)).to(device),
                [place.size for place in places],
                self.model.head,
                feature=self.options.feature,
                chunk=self.options.logits_chunk,
                sketch=self.sketch,
            )

    def _keep(self, part: _Part, batch: npt.NDArray[np.int64], features: RowFeatures) -> None:
        """Store finite rows; a row whose numbers are not finite is refused, never defaulted."""
        embedding = features.embedding.cpu().numpy()
        signals = torch.stack([features.signals[name] for name in SIGNALS], dim=1).cpu().numpy()
        finite = np.isfinite(embedding).all(axis=1) & np.isfinite(signals).all(axis=1)
        for place, index in enumerate(batch.tolist()):
            if finite[place]:
                part.done[index] = (embedding[place], signals[place])
            else:
                part.refused[index] = ("not_finite", "the model gave NaN or infinity")

    def _rejects(
        self, spec: PartSpec, part: _Part, row_ids: npt.NDArray[np.int64]
    ) -> dict[str, pa.Table]:
        if not part.refused:
            return {}
        refused = sorted(part.refused)
        wanted = pa.array(row_ids[refused])
        rows = Artifact.open(self.rows).read(ROW_COLUMNS, start=spec.start, stop=spec.stop)
        rows = rows.filter(pa.compute.is_in(rows["row_id"], value_set=wanted))
        reasons = [part.refused[i][0] for i in refused]
        details = [part.refused[i][1] for i in refused]
        name = f"rejects-{spec.index:05d}.parquet"
        return {name: reject_rows(rows, stage="embed", reasons=reasons, details=details)}


def list_rows(column: pa.ChunkedArray) -> list[npt.NDArray[np.int32]]:
    """View each list of a column of lists of int32 as an array."""
    rows: list[npt.NDArray[np.int32]] = []
    for piece in column.chunks:
        offsets = piece.offsets.to_numpy()
        values = piece.values.to_numpy()
        rows.extend(values[a:b] for a, b in itertools.pairwise(offsets))
    return rows


def embed_table(
    row_ids: npt.NDArray[np.int64],
    embeddings: npt.NDArray[np.float32],
    signals: npt.NDArray[Any],
    *,
    dim: int,
) -> pa.Table:
    """Lay features and signals into the columns of the embed table."""
    flat = pa.array(np.ascontiguousarray(embeddings, np.float32).reshape(-1), pa.float32())
    if row_ids.size == 0:
        flat = pa.array([], pa.float32())
    columns = [pa.array(row_ids, pa.int64()), pa.FixedSizeListArray.from_arrays(flat, dim)]
    columns += [pa.array(signals[:, i].astype(np.float32)) for i in range(len(SIGNALS))]
    return pa.table(columns, schema=embed_schema(dim))


def is_out_of_memory(error: BaseException) -> bool:
    """Tell a device out of memory from every other fault."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    return "out of memory" in text or "DefaultCPUAllocator: can't allocate memory" in text


def release_memory(device: torch.device) -> None:
    """Give cached blocks back before a smaller try."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
