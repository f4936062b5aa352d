"""The shards room's door to the disk: the kept rows of each worker, in the order of its steps.

A worker's rows lie anywhere in the store. They are dealt first: each stretch of row ids is read
once, and its kept rows are left in a scratch file, worker by worker. Then each shard gathers its
own ranges of these files. So the store is read once for any number of workers, and memory holds
one stretch, or one shard.
"""

import functools
from collections.abc import Mapping, Sequence
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
from stages.contract.tables import Layout, read_scratch
from stages.shards.gather import take_rows, take_slices

ROW_COLUMNS = ("row_id", "source", "uid", "messages", "meta")
SCREEN_COLUMNS = ("row_id", "multiplicity")
ROWS_PER_SLICE = 1000
ROWS_PER_STRETCH = 50_000
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
DEALT_SCHEMA = pa.schema([*WIDE_SCHEMA, ("position", pa.int64())])
SCRATCH = Layout(scratch=True)


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
    stretches = stretches_of(sources.rows)
    dealt: list[Receipt] = []
    if len(stretches) > 1 and any(draft.finished(spec) is None for spec in parts):
        deal = functools.partial(make_dealer, settings, sources, draft)
        dealt = yield from work_through(draft, stretches, deal, spread)
    bounds = [receipt.stats["bounds"] for receipt in dealt]
    make = functools.partial(make_worker, settings, sources, stretches, bounds, draft)
    receipts = yield from work_through(draft, parts, make, spread)
    facts = {
        "workers": [
            {"worker": spec.index, "rows": receipt.rows, "tokens": receipt.tokens}
            for spec, receipt in zip(parts, receipts, strict=True)
        ]
    }
    return Outcome(parts, facts)


def stretches_of(rows: Artifact) -> tuple[PartSpec, ...]:
    """Join parts of the rows to stretches of ROWS_PER_STRETCH rows, or one part that has more."""
    bounds: list[tuple[int, int]] = []
    for part in rows.parts:
        if bounds and part.stop - bounds[-1][0] <= ROWS_PER_STRETCH:
            bounds[-1] = (bounds[-1][0], part.stop)
        else:
            bounds.append((part.start, part.stop))
    return tuple(
        PartSpec(i, start, stop, f"dealt-{i:05d}.arrow") for i, (start, stop) in enumerate(bounds)
    )


def make_dealer(settings: ShardsSettings, sources: Sources, draft: Draft) -> Worker:
    """Build the function that deals the kept rows of one stretch."""

    def work(spec: PartSpec) -> Receipt:
        table, bounds = dealt_table(settings, sources, spec.start, spec.stop)
        return draft.write_part(spec, table, layout=SCRATCH, stats={"bounds": bounds})

    return work


def dealt_table(
    settings: ShardsSettings, sources: Sources, start: int, stop: int
) -> tuple[pa.Table, list[int]]:
    """Gather the kept rows of a stretch of row ids, worker by worker in order of positions.

    Returns
    -------
    pyarrow.Table
        The rows, of DEALT_SCHEMA.
    list of int
        Where each worker's rows begin, and where the last one's end: W + 1 numbers.
    """
    chosen = sources.allocate.read(ALLOCATE.names, start=start, stop=stop).combine_chunks()
    worker = chosen["worker"].to_numpy()
    chosen = chosen.take(np.lexsort((chosen["position"].to_numpy(), worker)))
    columns = {name: chosen[name] for name in ALLOCATE.names}
    for artifact, names in (
        (sources.rows, ROW_COLUMNS),
        (sources.screen, SCREEN_COLUMNS),
        (sources.tokens, TOKEN_COLUMNS),
    ):
        table = artifact.read(names, start=start, stop=stop)
        # Wide before it is joined: a stretch may have more text than 32-bit offsets reach.
        table = table.cast(pa.schema([(f.name, wide(f.type)) for f in table.schema]))
        # Row ids increase in every artifact, and what was allocated is in all of them.
        rows = np.searchsorted(table["row_id"].to_numpy(), chosen["row_id"].to_numpy())
        found = take_rows(table, rows)
        assert found["row_id"].equals(chosen["row_id"]), (artifact.path, start, stop)
        columns.update({name: found[name] for name in names if name != "row_id"})
    bounds = np.searchsorted(np.sort(worker), np.arange(settings.num_workers + 1))
    dealt = pa.table({name: columns[name] for name in DEALT_SCHEMA.names}).cast(DEALT_SCHEMA)
    return dealt, bounds.tolist()


def make_worker(
    settings: ShardsSettings,
    sources: Sources,
    stretches: Sequence[PartSpec],
    bounds: Sequence[Sequence[int]],
    draft: Draft,
) -> Worker:
    """Build the function that writes one shard; a single stretch is not worth scratch files."""
    if len(stretches) == 1:
        whole, edges = dealt_table(settings, sources, stretches[0].start, stretches[0].stop)

    def work(spec: PartSpec) -> Receipt:
        r = spec.index
        if len(stretches) == 1:
            pieces = [whole.slice(edges[r], edges[r + 1] - edges[r])]
        else:
            try:
                pieces = [
                    read_scratch(draft.file(stretch.name), SCRATCH, ends[r], ends[r + 1])
                    for stretch, ends in zip(stretches, bounds, strict=True)
                ]
            except FileNotFoundError:
                draft.check_there()  # another run of this key has ended, and removed its scratch
                raise
        table = shard_table(pieces)
        num_tokens = int(pc.sum(table["num_tokens"]).as_py())
        return draft.write_part(spec, table, layout=Layout(), tokens=num_tokens)

    return work


def shard_table(pieces: Sequence[pa.Table]) -> pa.Table:
    """Put the rows of one worker in order of their positions."""
    table = pa.concat_tables(pieces)
    order = np.argsort(table["position"].to_numpy())
    table = table.select(SHARD_SCHEMA.names).combine_chunks()
    # A shard's columns have 32-bit offsets: cast a slice at a time, never all text at once.
    starts = range(0, order.size, ROWS_PER_SLICE)
    slices = [order[start : start + ROWS_PER_SLICE] for start in starts]
    return pa.concat_tables([taken.cast(SHARD_SCHEMA) for taken in take_slices(table, slices)])


SHARDS = Stage(
    name="shards",
    version=1,
    reads=("allocate", "rows", "screen", "tokens"),
    identity=identity,
    run=run,
    keeps_order=False,
)
