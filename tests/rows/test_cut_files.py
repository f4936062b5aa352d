"""A file that is cut, or damaged where it is packed, stops the run with a sentence: in every text
format and every compression. `rows.allow_truncated` takes what can be read of it."""

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract.errors import DataError
from stages.rows.formats import read_file
from stages.rows.stage import RowsConfig

PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": lambda data: bz2.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
}


def rows_of(count: int) -> list[dict[str, str]]:
    """Make rows that do not pack well, so that a half of the bytes is about a half of the rows."""
    rng = random.Random(count)
    return [
        {"instruction": f"q {n}", "output": rng.randbytes(rng.randrange(1, 300)).hex()}
        for n in range(count)
    ]


def table(rows: list[dict[str, str]], mark: str) -> bytes:
    lines = [mark.join(rows[0]), *(mark.join(row.values()) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


WRITE: dict[str, Callable[[list[dict[str, str]]], bytes]] = {
    "lines.jsonl": lambda rows: b"".join(json.dumps(row).encode() + b"\n" for row in rows),
    "lines.ndjson": lambda rows: b"".join(json.dumps(row).encode() + b"\n" for row in rows),
    "array.json": lambda rows: json.dumps(rows).encode(),
    "tall.json": lambda rows: json.dumps(rows, indent=1).encode(),
    "array.jsonl": lambda rows: json.dumps(rows, indent=1).encode(),
    "wrapped.json": lambda rows: json.dumps({"n": 1, "data": rows, "by": "x"}).encode(),
    "objects.json": lambda rows: "\n".join(json.dumps(row, indent=1) for row in rows).encode(),
    "table.csv": lambda rows: table(rows, ","),
    "table.tsv": lambda rows: table(rows, "\t"),
}
# What has an end that can be missing also where it is not packed.
CLOSED = ("array.json", "tall.json", "array.jsonl", "wrapped.json", "objects.json")
FILES = [(name, pack) for name in WRITE for pack in PACK] + [(name, "") for name in CLOSED]


def cut_file(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write rows as the name says, and only the first 6/10 of the bytes."""
    packed = path.suffix in PACK
    whole = WRITE[path.stem if packed else path.name](rows)
    whole = PACK[path.suffix](whole) if packed else whole
    path.write_bytes(whole[: len(whole) * 6 // 10])
    return path


@pytest.mark.parametrize(("name", "pack"), FILES)
def test_a_cut_file_stops_the_run(tmp_path: Path, curate: Any, name: str, pack: str) -> None:
    rows = rows_of(2500)
    path = cut_file(tmp_path / (name + pack), rows)
    *good, last = read_file(path)
    num_read = sum(record.value is not None for record in good)
    assert [record.value for record in good][:num_read] == rows[:num_read]
    assert len(good) <= num_read + 1 and 500 < num_read < 2500
    assert last.reason == "truncated_file" and last.detail
    with pytest.raises(DataError) as caught:
        curate(RowsConfig(path=str(path), max_reject_fraction=1.0))
    message = str(caught.value)
    for words in (path.name, "ends too early", f"{num_read} rows", "fetch it again"):
        assert words in message
    assert message.count("rows.allow_truncated=true") == 1
    artifact, _ = curate(RowsConfig(path=str(path), allow_truncated=True), store="all")
    assert artifact.facts["kept"] == num_read
    assert artifact.facts["rejects_by_reason"]["truncated_file"] == 1


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("name", WRITE)
def test_a_damaged_file_stops_the_run(tmp_path: Path, curate: Any, name: str, pack: str) -> None:
    packed = bytearray(PACK[pack](WRITE[name](rows_of(2500))))
    half = len(packed) // 2
    packed[half:] = random.Random(0).randbytes(len(packed) - half)
    path = tmp_path / (name + pack)
    path.write_bytes(packed)
    assert list(read_file(path))[-1].reason == "broken_file"
    with pytest.raises(
        DataError, match=r"cannot be unpacked to its end.*rows\.allow_truncated=true"
    ):
        curate(RowsConfig(path=str(path), max_reject_fraction=1.0))
    curate(RowsConfig(path=str(path), allow_truncated=True, max_reject_fraction=1.0), store="all")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(FILES), st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_a_cut_anywhere_is_seen(
    tmp_path_factory: pytest.TempPathFactory, file: tuple[str, str], share: float
) -> None:
    """Of a packed file each cut is seen; of a file in the clear each within its rows."""
    name, pack = file
    rows = rows_of(40)
    whole = PACK[pack](WRITE[name](rows)) if pack else WRITE[name](rows)
    path = tmp_path_factory.getbasetemp() / (name + pack)
    path.write_bytes(whole[: max(1, int(len(whole) * share))])
    try:
        records = list(read_file(path))
    except DataError:
        return
    found = [record.value for record in records if record.value is not None]
    assert found == rows[: len(found)]
    between = name == "objects.json" and len(records) == len(found)
    assert (not pack and (between or not found)) or records[-1].reason == "truncated_file"


def test_a_second_file_is_counted_by_itself(tmp_path: Path, curate: Any) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.jsonl").write_bytes(WRITE["lines.jsonl"](rows_of(50)))
    (tmp_path / "d" / "b.json").write_bytes(WRITE["array.json"](rows_of(7))[:-1])
    with pytest.raises(DataError, match=r"b\.json ends too early, after 7 rows"):
        curate(RowsConfig(path=str(tmp_path / "d")))


def test_the_last_line_of_a_file_in_the_clear_is_a_reject_as_others(
    tmp_path: Path, curate: Any
) -> None:
    whole = WRITE["lines.jsonl"](rows_of(200))
    (tmp_path / "a.jsonl").write_bytes(whole[:-9])
    artifact, _ = curate(RowsConfig(path=str(tmp_path / "a.jsonl")))
    assert artifact.facts["kept"] == 199
    assert artifact.facts["rejects_by_reason"] == {"not_json": 1}
