"""How the embed table is read: raw features, centred and normalised on reading if asked."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from stages.contract.artifact import Artifact

FloatArray = npt.NDArray[np.float32]


def prepare(
    embeddings: FloatArray, *, normalize: bool, mean: npt.NDArray[np.float64] | None
) -> FloatArray:
    """Centre and then normalise raw embeddings, each if asked.

    Parameters
    ----------
    embeddings : ndarray of shape (num_rows, dim), float32
        Raw features.
    normalize : bool
        Scale every row to unit L2 norm; a zero row stays zero.
    mean : ndarray of shape (dim,), float64, or None
        Subtracted first, where given.

    Returns
    -------
    ndarray of shape (num_rows, dim), float32
    """
    values = embeddings.astype(np.float64)
    if mean is not None:
        values -= mean
    if normalize:
        norms = np.sqrt(np.einsum("ij,ij->i", values, values))
        values /= np.where(norms > 0.0, norms, 1.0)[:, None]
    return values.astype(np.float32)


@dataclass(frozen=True)
class Space:
    """Where rows are compared: raw embeddings, centred and normalised on reading if asked.

    Attributes
    ----------
    embed : Artifact
        The embed table.
    normalize : bool
        Whether rows are scaled to unit length.
    mean : ndarray of shape (dim,), float64, or None
        What is subtracted first.
    """

    embed: Artifact
    normalize: bool
    mean: npt.NDArray[np.float64] | None

    def read(self, start: int, stop: int) -> FloatArray:
        """Read the prepared embeddings of the rows whose id lies in [start, stop)."""
        return self.prepare(matrix(self.embed.read(["embedding"], start=start, stop=stop)))

    def read_rows(self, row_ids: npt.NDArray[np.int64]) -> FloatArray:
        """Read the prepared embeddings of some rows, given in increasing order, part by part."""
        pieces = [np.empty((0, self.dim), np.float32)]
        for part in self.embed.parts:
            first, last = np.searchsorted(row_ids, [part.start, part.stop])
            if first < last:
                table = self.embed.read(["row_id", "embedding"], start=part.start, stop=part.stop)
                inside = np.searchsorted(table["row_id"].to_numpy(), row_ids[first:last])
                pieces.append(self.prepare(matrix(table)[inside]))
        return np.concatenate(pieces)

    @property
    def dim(self) -> int:
        """Size of an embedding."""
        schema = pq.read_schema(self.embed.path / self.embed.parts[0].name)
        return int(schema.field("embedding").type.list_size)

    def prepare(self, embeddings: FloatArray) -> FloatArray:
        """Centre and normalise raw embeddings."""
        return prepare(embeddings, normalize=self.normalize, mean=self.mean)


def matrix(table: pa.Table) -> FloatArray:
    """View the embedding column as an array of shape (num_rows, dim)."""
    column = table["embedding"].combine_chunks()
    dim = column.type.list_size
    values: FloatArray = column.flatten().to_numpy().reshape(-1, dim)
    return values


def read_mean(embed: Artifact) -> npt.NDArray[np.float64]:
    """Average all raw embeddings, part by part in a fixed order."""
    sums = [
        matrix(table).sum(axis=0, dtype=np.float64) for table in embed.iter_parts(["embedding"])
    ]
    mean: npt.NDArray[np.float64] = np.sum(sums, axis=0) / embed.num_rows
    return mean
