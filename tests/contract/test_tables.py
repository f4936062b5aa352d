"""Tables as Parquet bytes: the same bytes twice, bounded row groups, whole files or none."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contract.tables import Layout, read_scratch, row_groups, write_table
from tests.artifacts import SEEDED, embed_table, rows_table


def groups_of(path: Path) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    table = rows_table(300, texts=["a", "zwölf\n🙂", ""])
    in_pieces = pa.concat_tables([table.slice(0, 7), table.slice(7)])
    for name, each in (("one", table), ("two", table), ("pieces", in_pieces)):
        write_table(each, tmp_path / name, Layout(max_group_rows=100))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert pq.read_table(tmp_path / "pieces").equals(table)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "pieces").read_bytes()


def test_row_groups_hold_at_most_the_rows_of_the_layout(tmp_path: Path) -> None:
    write_table(rows_table(25), tmp_path / "t", Layout(max_group_rows=10))
    assert groups_of(tmp_path / "t") == [10, 10, 5]


def test_row_groups_hold_at_most_the_bytes_of_the_layout(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(100, dtype=np.int64)})
    write_table(table, tmp_path / "t", Layout(max_group_bytes=240))
    # 8 bytes a row: 100 rows are halved to 25, then 75 to 19, then 56 to 28.
    assert groups_of(tmp_path / "t") == [25, 19, 28, 28]


@SEEDED
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 20), st.integers(1, 300)
)
def test_row_groups_respect_both_bounds_and_cover_every_row(
    lengths: list[int], max_rows: int, max_bytes: int
) -> None:
    table = pa.table({"text": ["x" * length for length in lengths]})
    layout = Layout(max_group_rows=max_rows, max_group_bytes=max_bytes)
    groups = list(row_groups(table, layout))
    assert [start for start, _ in groups] == [0, *(stop for _, stop in groups[:-1])]
    assert groups[-1][1] == len(lengths)
    for start, stop in groups:
        assert 1 <= stop - start <= max_rows
        assert stop - start == 1 or table.slice(start, stop - start).nbytes <= max_bytes


def test_the_embed_layout_splits_bytes_and_neither_indexes_nor_compresses(tmp_path: Path) -> None:
    worker = pytest.importorskip("stages.embed.worker")
    values = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    write_table(embed_table(range(50), values), tmp_path / "t", worker.embed_layout(["embedding"]))
    group = pq.read_metadata(tmp_path / "t").row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    embedding = columns["embedding.list.element"]
    assert "BYTE_STREAM_SPLIT" in embedding.encodings
    for column in columns.values():
        assert column.compression == "UNCOMPRESSED"
        assert not column.has_dictionary_page
        assert not {"PLAIN_DICTIONARY", "RLE_DICTIONARY"} & set(column.encodings)
    found = pq.read_table(tmp_path / "t")["embedding"].combine_chunks().flatten().to_numpy()
    assert np.array_equal(found.reshape(50, 8), values)


def test_an_empty_table_keeps_its_schema(tmp_path: Path) -> None:
    empty = rows_table(3).slice(0, 0)
    write_table(empty, tmp_path / "t", Layout())
    assert pq.read_table(tmp_path / "t").schema == empty.schema
    assert pq.read_metadata(tmp_path / "t").num_rows == 0


def test_text_is_compressed_by_zstd(tmp_path: Path) -> None:
    write_table(rows_table(200), tmp_path / "t", Layout())
    group = pq.read_metadata(tmp_path / "t").row_group(0)
    assert {group.column(i).compression for i in range(group.num_columns)} == {"ZSTD"}


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 21, 25])
def test_any_range_of_a_scratch_file_comes_back(
    tmp_path: Path, num_rows: int, opened: bool
) -> None:
    layout = Layout(max_group_rows=7, scratch=True)
    table = rows_table(num_rows, texts=["a", "zwölf\n🙂", ""])
    in_pieces = pa.concat_tables([table.slice(0, 5), table.slice(5)])
    for name, each in (("t", table), ("pieces", in_pieces)):
        write_table(each, tmp_path / name, layout)
    assert (tmp_path / "t").read_bytes() == (tmp_path / "pieces").read_bytes()
    for start in range(num_rows + 1):
        for stop in range(start, num_rows + 1):
            file = pa.OSFile(str(tmp_path / "t")) if opened else tmp_path / "t"
            found = read_scratch(file, layout, start, stop)
            assert found.equals(table.slice(start, stop - start)), (start, stop)


@pytest.mark.parametrize("old", [None, b"an older file"])
@pytest.mark.parametrize("fails", ["writing", "flushing"])
def test_an_interrupted_write_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None, fails: str
) -> None:
    if old is not None:
        (tmp_path / "t").write_bytes(old)

    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    if fails == "writing":
        calls = iter(range(10))
        real = pq.ParquetWriter.write_table

        def second_fails(self: Any, *args: Any, **kwargs: Any) -> None:
            if next(calls):
                raise KeyboardInterrupt
            real(self, *args, **kwargs)

        monkeypatch.setattr(pq.ParquetWriter, "write_table", second_fails)
    else:
        monkeypatch.setattr("stages.contract.tables.os.fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_table(rows_table(30), tmp_path / "t", Layout(max_group_rows=10))
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == ({} if old is None else {"t": old})
