"""Columns of a shard are gathered with 64-bit offsets, whatever their final type."""

import pyarrow as pa
import pytest

from evenshard.shards import SHARD_SCHEMA
from stages.shards.stage import WIDE_SCHEMA, wide


@pytest.mark.parametrize(
    ("narrow", "expected"),
    [
        (pa.string(), pa.large_string()),
        (pa.list_(pa.int32()), pa.large_list(pa.int32())),
        (
            pa.list_(pa.struct([("a", pa.string())])),
            pa.large_list(pa.struct([("a", pa.large_string())])),
        ),
        (pa.float32(), pa.float32()),
    ],
)
def test_types_are_widened_at_every_depth(narrow: pa.DataType, expected: pa.DataType) -> None:
    assert wide(narrow) == expected


def test_the_wide_schema_has_the_columns_of_a_shard() -> None:
    assert WIDE_SCHEMA.names == SHARD_SCHEMA.names
    assert WIDE_SCHEMA.empty_table().cast(SHARD_SCHEMA).schema == SHARD_SCHEMA
