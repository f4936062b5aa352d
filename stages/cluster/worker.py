"""One pass over all embeddings: which centres are nearest to each row, part by part."""

import functools
import hashlib
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.cluster.kmeans import FloatArray, IntArray, nearest_centers
from stages.contract.draft import Draft
from stages.contract.parts import PartSpec, Receipt, Spread, Worker
from stages.contract.stage import work_through
from stages.contract.tables import Layout
from stages.embed.reading import Space

BYTES_PER_ASSIGNMENT = 256 << 20


@dataclass(frozen=True)
class Nearest:
    """The nearest centres of every row, nearest first, in order of the row ids.

    Attributes
    ----------
    candidates : ndarray of shape (num_rows, num_candidates), int32
        Numbers of centres.
    distances : ndarray of the same shape, float32
        Euclidean distances.
    """

    candidates: IntArray
    distances: FloatArray


def find_nearest(
    space: Space, centers: FloatArray, num_candidates: int, *, draft: Draft, spread: Spread
) -> Generator[Receipt, None, Nearest]:
    """Compare every row with every centre, spread over workers.

    Each worker leaves its answer in a scratch file of the draft; only counts come back. The
    scratch files are named by the centres, so that a pass of a killed run is found again.
    """
    ends = [part.stop for part in space.embed.parts]
    num_rows = max(1, BYTES_PER_ASSIGNMENT // (4 * space.dim))
    starts = range(0, ends[-1], num_rows)
    name = f"nearest-{num_candidates}-{hash_of(centers)}"
    parts = [
        PartSpec(i, a, min(a + num_rows, ends[-1]), f"{name}-{i:05d}.parquet")
        for i, a in enumerate(starts)
    ]
    make = functools.partial(_make_worker, space, centers, num_candidates, draft)
    yield from work_through(draft, parts, make, spread)
    tables = [pq.read_table(draft.file(spec.name)) for spec in parts]
    table = pa.concat_tables(tables)
    shape = (-1, num_candidates)
    return Nearest(
        table["candidates"].combine_chunks().flatten().to_numpy().reshape(shape),
        table["distances"].combine_chunks().flatten().to_numpy().reshape(shape),
    )


def hash_of(centers: FloatArray) -> str:
    """Name a set of centres by its bytes."""
    return hashlib.sha256(np.ascontiguousarray(centers).tobytes()).hexdigest()[:12]


def _make_worker(space: Space, centers: FloatArray, num_candidates: int, draft: Draft) -> Worker:
    def work(spec: PartSpec) -> Receipt:
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):
            embeddings = space.read(spec.start, spec.stop)
            candidates, distances = nearest_centers(embeddings, centers, num_candidates)
        lists = [
            pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), num_candidates)
            for values in (candidates, distances)
        ]
        table = pa.table(lists, names=["candidates", "distances"])
        return draft.write_part(spec, table, layout=Layout(compression="none"))

    return work
