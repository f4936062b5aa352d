"""Gathering rows: what pyarrow's own take gives, for all kinds of columns and slices."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.shards.gather import take_rows, take_slices
from stages.shards.stage import WIDE_SCHEMA
from tests.artifacts import SEEDED

LISTS = [[1, -100], [], [7], [3, 4, 5], None, [2**24]]


def table_of(lists: list[list[int] | None], kind: pa.DataType) -> pa.Table:
    columns = {
        "ids": pa.array(range(len(lists)), pa.int64()),
        "text": pa.array([None if x is None else "é" * len(x) for x in lists], pa.large_string()),
        "lists": pa.array(lists, kind),
    }
    return pa.table(columns)


KINDS = [pa.large_list(pa.int32()), pa.large_list(pa.float32()), pa.list_(pa.int32())]
KINDS += [pa.large_list(pa.int64()), pa.large_list(pa.field("item", pa.int32(), nullable=False))]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_lists_by_hand(kind: pa.DataType) -> None:
    table = table_of([[1, 2], [], [9]], kind)
    taken = take_rows(table, np.array([2, 0, 0, 1]))
    assert taken["lists"].to_pylist() == [[9], [1, 2], [1, 2], []]
    assert taken.schema == table.schema


@SEEDED
@given(
    lists=st.lists(st.sampled_from(LISTS), min_size=1, max_size=12),
    without_nulls=st.booleans(),
    kind=st.sampled_from(KINDS[:4]),
    data=st.data(),
)
def test_it_is_what_take_gives(
    lists: list[list[int] | None], without_nulls: bool, kind: pa.DataType, data: st.DataObject
) -> None:
    if without_nulls:
        lists = [x or [] for x in lists]
    whole = table_of(lists, kind)
    start = data.draw(st.integers(0, len(lists) - 1))
    cut = data.draw(st.integers(start, len(lists)))
    # Slices of one buffer, and of several.
    for table in (whole.slice(start), pa.concat_tables([whole.slice(start, cut - start), whole])):
        rows = data.draw(st.lists(st.integers(0, table.num_rows - 1), max_size=20))
        wanted = np.array(rows, np.int64)
        taken = take_rows(table, wanted)
        taken.validate(full=True)
        assert taken.equals(table.combine_chunks().take(wanted))


def test_no_rows_of_no_rows() -> None:
    empty = WIDE_SCHEMA.empty_table()
    assert take_rows(empty, np.empty(0, np.int64)).equals(empty)


def test_slices_are_those_of_one_gathering() -> None:
    table = table_of([[1, 2], [], [9], [4, 4, 4]], KINDS[0]).slice(1)
    order = np.array([2, 0, 0, 1])
    pieces = list(take_slices(table, [order[:1], order[1:1], order[1:]]))
    assert [piece.num_rows for piece in pieces] == [1, 0, 3]
    assert pa.concat_tables(pieces).combine_chunks().equals(table.combine_chunks().take(order))
