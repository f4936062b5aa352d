"""The shards room's door to the disk: the kept rows of each worker, in the order of its steps."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evenshard.shards import SHARD_SCHEMA, shard_name
from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.parts import Facts, Outcome, PartSpec, Receipt, Run, Spread, Worker
from stages.contract.schemas import ALLOCATE
from stages.contract.stage import Stage, work_through
from stages.contract.tables import Layout

ROW_COLUMNS = ("row_id", "source", "uid", "messages", "meta")
SCREEN_COLUMNS = ("row_id", "multiplicity")
ROWS_PER_SLICE = 1000
TOKEN_COLUMNS = ("row_id", "input_ids", "labels", "num_tokens")


def wide(kind: pa.DataType) -> pa.DataType:
    """Give the same type with 64-bit offsets, for columns of more than 2 GiB."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_list(kind):
        return pa.large_list(wide(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, wide(field.type)) for field in kind])
    return kind


WIDE_SCHEMA = pa.schema([(field.name, wide(field.type)) for field in SHARD_SCHEMA])


@dataclass(frozen=True)
class ShardsSettings:
    """All that the shards stage is told; it has no choices of its own.

    Attributes
    ----------
    num_workers : int
        W, the number of shards.
    """

    num_workers: int


@dataclass(frozen=True)
class Sources:
    """The artifacts that a shard is gathered from."""

    allocate: Artifact
    rows: Artifact
    screen: Artifact
    tokens: Artifact


def identity(settings: ShardsSettings) -> Facts:
    """Name the settings; all else is decided by the inputs."""
    return {"num_workers": settings.num_workers}


def run(
    settings: ShardsSettings, inputs: Mapping[str, Artifact], draft: Draft, spread: Spread
) -> Run:
    """Write the shards that are missing."""
    sources = Sources(inputs["allocate"], inputs["rows"], inputs["screen"], inputs["tokens"])
    parts = tuple(
        PartSpec(r, 0, sources.rows.num_rows, shard_name(r, settings.num_workers))
        for r in range(settings.num_workers)
    )
    make = functools.partial(make_worker, sources, draft)
    receipts = yield from work_through(draft, parts, make, spread)
    facts = {
        "workers": [
            {"worker": spec.index, "rows": receipt.rows, "tokens": receipt.tokens}
            for spec, receipt in zip(parts, receipts, strict=True)
        ]
    }
    return Outcome(parts, facts)


def make_worker(sources: Sources, draft: Draft) -> Worker:
    """Build the function that writes one shard."""

    def work(spec: PartSpec) -> Receipt:
        table = shard_table(sources, worker=spec.index)
        num_tokens = int(pc.sum(table["num_tokens"]).as_py())
        return draft.write_part(spec, table, layout=Layout(), tokens=num_tokens)

    return work


def shard_table(sources: Sources, *, worker: int) -> pa.Table:
    """Gather the rows of one worker in order of their positions.

    Text is read part by part and only the worker's rows are kept, so memory holds one part and
    one shard.
    """
    mine = pa.concat_tables(
        table.filter(pc.field("worker") == worker)
        for table in sources.allocate.iter_parts(ALLOCATE.names)
    )
    wanted = mine["row_id"].combine_chunks()
    columns = {name: mine[name] for name in ("row_id", "weight", "cluster")}
    for artifact, names in (
        (sources.rows, ROW_COLUMNS),
        (sources.screen, SCREEN_COLUMNS),
        (sources.tokens, TOKEN_COLUMNS),
    ):
        found = pa.concat_tables(
            table.filter(pc.is_in(table["row_id"], value_set=wanted))
            for table in artifact.iter_parts(names)
        )
        columns.update({name: found[name] for name in names})
    order = np.argsort(mine["position"].to_numpy())
    table = pa.table({name: columns[name] for name in SHARD_SCHEMA.names}).cast(WIDE_SCHEMA)
    table = table.combine_chunks()
    # A shard's columns have 32-bit offsets: cast a slice at a time, never all text at once.
    starts = range(0, order.size, ROWS_PER_SLICE)
    slices = [order[start : start + ROWS_PER_SLICE] for start in starts]
    return pa.concat_tables([table.take(rows).cast(SHARD_SCHEMA) for rows in slices])


SHARDS = Stage(
    name="shards",
    version=1,
    reads=("allocate", "rows", "screen", "tokens"),
    identity=identity,
    run=run,
    keeps_order=False,
)
