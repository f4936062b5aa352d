"""A finished folder: it opens only when it is whole, and reads any range of row ids."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contract.artifact import MANIFEST, Artifact
from stages.contract.errors import DataError
from stages.contract.rejects import reject_rows
from stages.contract.schemas import REJECTS
from tests.artifacts import EMBED_LAYOUT, SEEDED, embed_table, rows_table, save


@cache
def sparse_embed() -> tuple[Artifact, pa.Table]:
    """Give 90 embedded rows of 150, one part of which is empty, and the same as one table."""
    store = Path(mkdtemp())
    parent = save(store, "rows", rows_table(150), rows_per_part=64)
    kept = np.setdiff1d(np.arange(150), np.r_[20:40, 60:80, 130:150])
    values = np.random.default_rng(0).normal(size=(kept.size, 4))
    table = embed_table(kept, values)
    artifact = save(
        store, "embed", table, stop=150, rows_per_part=20, parent=parent, layout=EMBED_LAYOUT
    )
    return artifact, table


def test_the_whole_is_read_as_it_was_written() -> None:
    artifact, table = sparse_embed()
    assert artifact.num_rows == table.num_rows == 90
    assert artifact.read(table.column_names).equals(table)
    assert np.array_equal(artifact.array("row_id"), table["row_id"].to_numpy())
    assert [part.num_rows for part in artifact.iter_parts(["loss"])] == [
        20,
        0,
        20,
        0,
        20,
        20,
        10,
        0,
    ]


@SEEDED
@given(st.integers(-5, 160), st.integers(-5, 160))
def test_a_range_equals_a_filter_over_the_whole(start: int, stop: int) -> None:
    artifact, table = sparse_embed()
    ids = table["row_id"]
    for low, high in ((start, stop), (start, None), (None, stop)):
        mask = pc.and_(
            pc.greater_equal(ids, -1000 if low is None else low),
            pc.less(ids, 1000 if high is None else high),
        )
        expected = table.filter(mask).select(["loss", "embedding"])
        found = artifact.read(["loss", "embedding"], start=low, stop=high)
        assert found.equals(expected)


def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    artifact = save(tmp_path, "rows", rows_table(10), rows_per_part=4)
    (artifact.path / "part-00001.parquet").unlink()
    with pytest.raises(DataError) as caught:
        Artifact.open(artifact.path)
    message = str(caught.value)
    assert "part-00001.parquet is missing" in message
    assert f"delete the folder {artifact.path} and run again" in message


@pytest.mark.parametrize("name", ["part-00002.parquet", "extra.parquet"])
def test_a_resized_file_is_named_with_both_sizes(tmp_path: Path, name: str) -> None:
    sides = {"extra.parquet": pa.table({"n": [1]})}
    artifact = save(tmp_path, "rows", rows_table(10), rows_per_part=4, sides=sides)
    file = artifact.path / name
    size = file.stat().st_size
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(DataError, match=rf"{name} has {size + 1} bytes, .* says {size} bytes"):
        Artifact.open(artifact.path)


def test_a_folder_without_a_manifest_does_not_open(tmp_path: Path) -> None:
    artifact = save(tmp_path, "rows", rows_table(10))
    (artifact.path / MANIFEST).unlink()
    with pytest.raises(FileNotFoundError):
        Artifact.open(artifact.path)


def test_sides_come_in_order_of_their_names(tmp_path: Path) -> None:
    names = ("rejects-00002.parquet", "other.parquet", "rejects-00001.parquet")
    sides = {name: pa.table({"n": [name]}) for name in names}
    artifact = save(tmp_path, "rows", rows_table(3), sides=sides)
    found = [table["n"].to_pylist() for table in artifact.sides("rejects")]
    assert found == [["rejects-00001.parquet"], ["rejects-00002.parquet"]]
    assert artifact.side("other.parquet")["n"].to_pylist() == ["other.parquet"]


def test_a_rejected_row_keeps_its_place_and_its_whole_content() -> None:
    rows = rows_table(4, texts=["zwölf\n🙂"]).slice(2, 2)
    table = reject_rows(rows, stage="tokens", reasons=["a", "b"], details=["", "4 > 3"])
    assert table.schema == REJECTS
    first, second = table.to_pylist()
    assert (first["file"], first["line"], first["row_id"]) == ("rows.jsonl", 3, 2)
    assert (second["stage"], second["reason"], second["detail"]) == ("tokens", "b", "4 > 3")
    assert json.loads(first["raw"]) == {
        "messages": rows["messages"].to_pylist()[0],
        "meta": {"note": "zwölf\n🙂"},
    }
    assert json.loads(second["raw"])["meta"] == {}
