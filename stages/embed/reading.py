"""How the embed table is read: raw features, centred and normalised on reading if asked."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.contract.artifact import Artifact
from stages.contract.errors import ConfigurationError
from stages.contract.schemas import feature_column

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
    column : str
        Which column of features.
    """

    embed: Artifact
    normalize: bool
    mean: npt.NDArray[np.float64] | None
    column: str = "embedding"

    def read(self, start: int, stop: int) -> FloatArray:
        """Read the prepared embeddings of the rows whose id lies in [start, stop)."""
        table = self.embed.read([self.column], start=start, stop=stop)
        return self.prepare(matrix(table, self.column))

    def read_rows(self, row_ids: npt.NDArray[np.int64]) -> FloatArray:
        """Read the prepared embeddings of some rows, given in increasing order, part by part."""
        pieces = [np.empty((0, self.dim), np.float32)]
        parts = self.embed.parts
        bounds = np.searchsorted(row_ids, [part.start for part in parts] + [parts[-1].stop])
        for part, first, last in zip(parts, bounds[:-1], bounds[1:], strict=True):
            if first < last:
                columns = ["row_id", self.column]
                table = self.embed.read(columns, start=part.start, stop=part.stop)
                inside = np.searchsorted(table["row_id"].to_numpy(), row_ids[first:last])
                pieces.append(self.prepare(matrix(table, self.column)[inside]))
        return np.concatenate(pieces)

    @property
    def dim(self) -> int:
        """Size of an embedding."""
        return int(self.embed.schema().field(self.column).type.list_size)

    def prepare(self, embeddings: FloatArray) -> FloatArray:
        """Centre and normalise raw embeddings."""
        return prepare(embeddings, normalize=self.normalize, mean=self.mean)


def matrix(table: pa.Table, column: str = "embedding") -> FloatArray:
    """View a column of features as an array of shape (num_rows, dim)."""
    lists = table[column].combine_chunks()
    dim = lists.type.list_size
    values: FloatArray = lists.flatten().to_numpy().reshape(-1, dim)
    return values


def read_mean(embed: Artifact, column: str = "embedding") -> npt.NDArray[np.float64]:
    """Average all raw features of a column, part by part in a fixed order."""
    sums = [
        matrix(table, column).sum(axis=0, dtype=np.float64) for table in embed.iter_parts([column])
    ]
    mean: npt.NDArray[np.float64] = np.sum(sums, axis=0) / embed.num_rows
    return mean


def column_of(embed: Artifact, name: str) -> str:
    """Find the column of a feature by the feature's name.

    Raises
    ------
    ConfigurationError
        If the pass did not make it.
    """
    column = feature_column(name, embed.manifest["params"]["embed"]["feature"])
    if column not in embed.schema().names:
        raise ConfigurationError(
            f"the feature {name} is needed, and the pass did not make it; set embed.also=[{name}] "
            f"or embed.feature={name}"
        )
    return column


def space_of(embed: Artifact, feature: str | None, normalize: bool, center: bool) -> Space:
    """Build the space of a clustering from its settings; `feature` None is embed.feature."""
    column = "embedding" if feature is None else column_of(embed, feature)
    return Space(embed, normalize, read_mean(embed, column) if center else None, column)
