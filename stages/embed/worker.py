"""What one embed worker does: load the model once, then turn parts of tokens into features."""

import itertools
import logging
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from evenshard.shards import IGNORED_LABEL
from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.folder import StorePath
from stages.contract.parts import PartSpec, Receipt
from stages.contract.rejects import ROW_COLUMNS, reject_rows
from stages.contract.schemas import ALONE_LOSS, SIGNALS, embed_schema, feature_column
from stages.contract.tables import Layout
from stages.embed.batching import pad_rows, token_batches
from stages.embed.features import RowFeatures, position_mean, position_signals, row_features
from stages.embed.model import TargetModel
from stages.embed.sketch import Sketch

log = logging.getLogger(__name__)

TOKEN_COLUMNS = ("row_id", "input_ids", "labels", "num_tokens")


@dataclass(frozen=True)
class PassOptions:
    """How the pass is cut and what it keeps; see `EmbedConfig` for the meaning of each."""

    features: tuple[str, ...]
    tokens_per_batch: int
    logits_chunk: int
    answer_alone: bool = False


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
    sketches: Mapping[str, Sketch]
    options: PassOptions
    tokens: Artifact
    rows: StorePath
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
        dims = self.dims
        widths = (sum(dims.values()), len(SIGNALS) + self.options.answer_alone)
        features, signals = (
            np.stack([part.done[i][which] for i in kept])
            if kept
            else np.empty((0, widths[which]), np.float32)
            for which in (0, 1)
        )
        return self.draft.write_part(
            spec,
            embed_table(row_ids[kept], features, signals, dims=dims),
            layout=embed_layout(dims),
            sides=self._rejects(spec, part, row_ids),
            tokens=int(lengths.sum()),
            stats={
                "halvings": part.halvings,
                "rejected": len(part.refused),
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            },
        )

    @property
    def dims(self) -> dict[str, int]:
        """Size of each column of features, the main one first."""
        names = self.options.features
        return {
            feature_column(name, names[0]): (
                self.sketches[name].dim if name in self.sketches else self.model.hidden_size
            )
            for name in names
        }

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
            pooled = None
            if "position_mean" in self.options.features:
                lengths = torch.tensor([part.input_ids[i].size for i in rows])
                pooled = position_mean(hidden_RTH, lengths.to(hidden_RTH.device)).to(device)
            hidden_PH = hidden_RTH[
                torch.from_numpy(row_index).to(hidden_RTH.device),
                torch.from_numpy(np.concatenate(places)).to(hidden_RTH.device),
            ].to(device)
            del hidden_RTH
            found = row_features(
                hidden_PH,
                torch.from_numpy(flat_targets.astype(np.int64)).to(device),
                [place.size for place in places],
                self.model.head,
                names=[name for name in self.options.features if name != "position_mean"],
                chunk=self.options.logits_chunk,
                sketches=self.sketches,
                slope=self.model.slope,
            )
            if pooled is not None:
                found.features["position_mean"] = pooled
                first = found.features[self.options.features[0]]
                found.signals["embedding_norm"] = first.norm(dim=1)
            if self.options.answer_alone:
                alone = self._answer_alone([part.input_ids[i] for i in rows], places)
                found.signals[ALONE_LOSS] = alone
            return found

    def _answer_alone(
        self, input_ids: list[npt.NDArray[np.int32]], places: list[npt.NDArray[np.int64]]
    ) -> torch.Tensor:
        """Give the mean loss of the supervised tokens with nothing before them (Cherry, IFD).

        Only the row's first token, which starts a text, stays in front; the answers of a row of
        several turns follow each other.
        """
        device = self.model.head_device
        alone = [
            np.concatenate([ids[:1], ids[1:][place]])
            for ids, place in zip(input_ids, places, strict=True)
        ]
        counts = [ids.size - 1 for ids in alone]
        hidden_RTH = self.model.trunk(torch.from_numpy(pad_rows(alone, 0)).to(self.model.device))
        hidden_PH = torch.cat([h[:n] for h, n in zip(hidden_RTH, counts, strict=True)]).to(device)
        targets_P = torch.from_numpy(np.concatenate([ids[1:] for ids in alone])).long().to(device)
        signals, _ = position_signals(
            hidden_PH, targets_P, self.model.head, chunk=self.options.logits_chunk, sketches=[]
        )
        return torch.stack([nll.mean() for nll in torch.split(signals.nll, counts)])

    def _keep(self, part: _Part, batch: npt.NDArray[np.int64], features: RowFeatures) -> None:
        """Store finite rows; a row whose numbers are not finite is refused, never defaulted."""
        chosen = [features.features[name] for name in self.options.features]
        embedding = torch.cat(chosen, dim=1).cpu().numpy()
        names = (*SIGNALS, *((ALONE_LOSS,) if self.options.answer_alone else ()))
        signals = torch.stack([features.signals[name] for name in names], dim=1).cpu().numpy()
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
    features: npt.NDArray[np.float32],
    signals: npt.NDArray[Any],
    *,
    dims: Mapping[str, int],
) -> pa.Table:
    """Lay features, column beside column, and signals into the columns of the embed table."""
    columns = [pa.array(row_ids, pa.int64())]
    start = 0
    for dim in dims.values():
        values = np.ascontiguousarray(features[:, start : start + dim], np.float32).reshape(-1)
        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(values, pa.float32()), dim))
        start += dim
    columns += [pa.array(column.astype(np.float32)) for column in signals.T]
    alone = signals.shape[1] > len(SIGNALS)
    return pa.table(columns, schema=embed_schema(dims, alone=alone))


def embed_layout(columns: Iterable[str]) -> Layout:
    """Lay out the embed table: these columns of features byte-stream-split, nothing compressed."""
    return Layout("none", float_lists=tuple(columns), max_group_rows=1 << 20)


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
