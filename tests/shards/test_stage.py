"""The shards stage: the selection, whole and unchanged, in the order of the plan."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from evenshard.shards import SHARD_SCHEMA, shard_name
from stages.contract.artifact import Artifact
from stages.contract.parts import Receipt
from stages.contract.schemas import ALLOCATE
from stages.shards.stage import SHARDS, ShardsSettings
from tests.artifacts import bytes_of, run_stage
from tests.shards.sets import TEXTS, make

SAME_TEXT = ("uid", "source", "messages", "meta")
SAME_COUNT = ("multiplicity",)
SAME_TOKENS = ("input_ids", "labels", "num_tokens")


def rows_by_id(artifact: Artifact, columns: tuple[str, ...]) -> dict[int, dict[str, Any]]:
    return {row["row_id"]: row for row in artifact.read(["row_id", *columns]).to_pylist()}


def shards_of(artifact: Artifact) -> list[pa.Table]:
    return [pq.read_table(artifact.path / part.name) for part in artifact.parts]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_shards_are_the_selection_in_order_with_weights_and_text(
    tmp_path: Path, num_workers: int
) -> None:
    artifacts = make(tmp_path, num_workers=num_workers, micro_batch=2).artifacts
    found, plan = artifacts["shards"], artifacts["allocate"].read(ALLOCATE.names)
    tables = shards_of(found)
    assert [part.name for part in found.parts] == [
        shard_name(worker, num_workers) for worker in range(num_workers)
    ]
    ids = np.concatenate([table["row_id"].to_numpy() for table in tables])
    assert sorted(ids.tolist()) == plan["row_id"].to_pylist()
    texts, counts, tokens = (
        rows_by_id(artifacts["rows"], SAME_TEXT),
        rows_by_id(artifacts["screen"], SAME_COUNT),
        rows_by_id(artifacts["tokens"], SAME_TOKENS),
    )
    for worker, table in enumerate(tables):
        assert table.schema == SHARD_SCHEMA
        mine = plan.filter(pc.field("worker") == worker).sort_by("position")
        assert mine["position"].to_pylist() == list(range(table.num_rows))
        for name in ("row_id", "weight", "cluster"):
            assert table[name].to_pylist() == mine[name].to_pylist()
        for row in table.to_pylist():
            for name in SAME_TEXT:
                assert row[name] == texts[row["row_id"]][name]
            for name in SAME_COUNT:
                assert row[name] == counts[row["row_id"]][name]
            for name in SAME_TOKENS:
                assert row[name] == tokens[row["row_id"]][name]


def test_odd_texts_and_empty_columns_come_through(tmp_path: Path) -> None:
    made = make(tmp_path, budget="100%")
    rows = [row for table in shards_of(made.artifacts["shards"]) for row in table.to_pylist()]
    assert {row["messages"][1]["content"] for row in rows} == set(TEXTS)
    assert "" in {row["meta"] for row in rows}


def test_facts_count_what_is_in_each_shard(tmp_path: Path) -> None:
    found = make(tmp_path, num_workers=3).artifacts["shards"]
    assert found.facts["workers"] == [
        {
            "worker": worker,
            "rows": table.num_rows,
            "tokens": sum(table["num_tokens"].to_pylist()),
        }
        for worker, table in enumerate(shards_of(found))
    ]


def backwards(make: Any, parts: Any, *, uses_gpu: bool) -> Iterator[Receipt]:
    yield from map(make(), reversed(parts))


def test_the_same_input_gives_the_same_bytes_in_any_order_of_workers(tmp_path: Path) -> None:
    plain = make(tmp_path / "one", num_workers=3).artifacts["shards"]
    other = make(tmp_path / "two", num_workers=3, spread=backwards).artifacts["shards"]
    for part in plain.parts:
        assert (plain.path / part.name).read_bytes() == (other.path / part.name).read_bytes()
    assert plain.facts == other.facts


def test_a_killed_run_writes_only_the_shards_that_are_missing(tmp_path: Path) -> None:
    inputs = make(tmp_path / "inputs", num_workers=3).artifacts
    worked: list[int] = []

    def count(make: Any, parts: Any, *, uses_gpu: bool) -> Iterator[Receipt]:
        work = make()
        for spec in parts:
            worked.append(spec.index)
            yield work(spec)

    def die_after_two(make: Any, parts: Any, *, uses_gpu: bool) -> Iterator[Receipt]:
        yield from itertools.islice(count(make, parts, uses_gpu=uses_gpu), 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_stage(SHARDS, ShardsSettings(3), inputs, tmp_path, die_after_two)
    assert worked == [0, 1]
    again = run_stage(SHARDS, ShardsSettings(3), inputs, tmp_path, count)
    assert worked == [0, 1, 2]
    assert bytes_of(again.path) == bytes_of(inputs["shards"].path)


def test_shards_have_small_row_groups(tmp_path: Path) -> None:
    found = make(tmp_path, num_rows=2600, budget="100%", num_workers=1, rejects=False)
    shards = found.artifacts["shards"]
    metadata = pq.read_metadata(shards.path / shards.parts[0].name)
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert max(sizes) <= 1000
    assert sum(sizes) == 2596
    assert metadata.row_group(0).column(0).compression == "ZSTD"
