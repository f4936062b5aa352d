import bz2
import csv
import gzip
import io
import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract.errors import ConfigurationError, DataError
from stages.rows.formats import json_array, read_file
from stages.rows.formats.record import Record, from_json


def read(path: Path, content: bytes) -> list[Record]:
    path.write_bytes(content)
    return list(read_file(path))


def values(records: list[Record]) -> list[Any]:
    return [record.value if record.value is not None else record.reason for record in records]


def test_lines(tmp_path: Path) -> None:
    content = (
        b'\xef\xbb\xbf{"a": "\xe2\x80\xa8\\r"}\r\n\r\n  \n[1]\n{"a": 1, "a": 2}\n{"b": NaN}\nx'
    )
    records = read(tmp_path / "a.jsonl", content)
    assert values(records) == [
        {"a": "\u2028\r"},
        "not_an_object",
        {"a": 2},
        {"b": "NaN"},
        "not_json",
    ]
    assert [record.line for record in records] == [1, 4, 5, 6, 7]
    for record in records[1:]:
        assert record.raw is not None
        assert content[record.offset :].startswith(record.raw)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a": "\xff"}', "not_utf8"),
        (b'{"a": "\\ud800"}', "not_utf8"),
        (b'{"a": "\\ud83d\\ude00"}', ""),
        (b'{"a": 1,}', "not_json"),
        (b"7", "not_an_object"),
        (b"[" * 100_000, "not_json"),
        (b'{"a":' * 700 + b"null" + b"}" * 700, "not_json"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not_json"),
        (b'{"a": 1e999}', ""),
    ],
)
def test_reasons(raw: bytes, reason: str) -> None:
    assert from_json(raw, 1, 0).reason == reason


def test_null_keys_are_no_keys() -> None:
    raw = b'{"a": null, "b": {"c": null, "d": [null, {"e": null}]}}'
    assert from_json(raw, 1, 0).value == {"b": {"d": [None, {}]}}


LINES = b"".join(json.dumps({"n": n, "text": "x" * (n % 97)}).encode() + b"\n" for n in range(9000))


def test_compressions_give_the_same_records(tmp_path: Path) -> None:
    expected = read(tmp_path / "a.jsonl", LINES)
    assert len(expected) == 9000
    zst = pa.Codec("zstd").compress(LINES, asbytes=True)
    two_members = gzip.compress(LINES[:5000]) + gzip.compress(LINES[5000:])
    assert read(tmp_path / "a.jsonl.gz", two_members) == expected
    assert read(tmp_path / "a.jsonl.bz2", bz2.compress(LINES)) == expected
    assert read(tmp_path / "a.jsonl.xz", lzma.compress(LINES)) == expected
    assert read(tmp_path / "a.jsonl.zst", zst) == expected
    assert values(read(tmp_path / "a.json.gz", gzip.compress(LINES))) == values(expected)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv"])
def test_a_cut_gz_gives_what_it_has_and_a_reject(tmp_path: Path, suffix: str) -> None:
    rows = [{"n": str(n), "text": "x" * (n % 97)} for n in range(9000)]
    if suffix == ".csv":
        content = "n,text\n" + "".join(f"{row['n']},{row['text']}\n" for row in rows)
    elif suffix == ".json":
        content = json.dumps(rows)
    else:
        content = "".join(json.dumps(row) + "\n" for row in rows)
    packed = gzip.compress(content.encode())
    records = read(tmp_path / f"a{suffix}.gz", packed[: len(packed) // 2])
    assert values(records)[:-1] == rows[: len(records) - 1]
    assert records[-1].reason == "truncated_file"
    assert len(records) > 3000
    noise = packed[:2000] + b"\xff" * 50 + packed[2050:]
    assert read(tmp_path / f"b{suffix}.gz", noise)[-1].reason


def test_array_streams_through_a_small_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "WINDOW_BYTES", 7)
    rows = [{"n": n, "é": ["]}", '"\\', {"x": None or n}]} for n in range(50)]
    content = json.dumps(rows, ensure_ascii=False, indent=1).encode()
    records = read(tmp_path / "a.json", content)
    assert values(records) == rows
    for record in records:
        assert record.raw is not None
        assert content[record.offset :].startswith(record.raw)
        assert content[: record.offset].count(b"\n") + 1 == record.line


def test_array_survives_broken_elements(tmp_path: Path) -> None:
    content = b'[{"a": 1}, {"a": 1,}, {\'a\': [1]}, 7, "x", nope, {"a": "\xff"}, {"a": 2}] x'
    assert values(read(tmp_path / "a.json", content)) == [
        {"a": 1},
        "not_json",
        "not_json",
        "not_an_object",
        "not_an_object",
        "not_json",
        "not_utf8",
        {"a": 2},
        "not_json",
    ]
    assert values(read(tmp_path / "b.json", b'[{"a": 1}, {"a": ')) == [{"a": 1}, "truncated_file"]
    assert values(read(tmp_path / "c.json", b'[{"a": 1}')) == [{"a": 1}, "truncated_file"]
    assert values(read(tmp_path / "d.json", b"[]")) == []
    # Half a character at the end of the file.
    assert values(read(tmp_path / "e.json", b'[{"a": 1}]\xdd')) == [{"a": 1}, "not_utf8"]


def test_json_may_be_lines_or_objects(tmp_path: Path) -> None:
    lines = b'{"a": 1}\n{"a": 2,}\n{"a": 3}\n'
    assert values(read(tmp_path / "a.json", lines)) == [{"a": 1}, "not_json", {"a": 3}]
    tall = b'\xef\xbb\xbf{\n "a": 1\n}\n{\n "a": 2\n}\n'
    assert values(read(tmp_path / "b.json", tall)) == [{"a": 1}, {"a": 2}]


def test_task_of_natural_instructions(tmp_path: Path) -> None:
    task = {
        "Definition": ["D"],
        "Positive Examples": [{"input": '"Instances": [', "output": "x"}],
        "Instances": [{"id": "1", "input": "é", "output": ["a"]}, {"id": "2", "output": ["b"]}],
        "Domains": ["d"],
    }
    for indent in (None, 2):
        content = json.dumps(task, indent=indent, ensure_ascii=False).encode()
        records = read(tmp_path / "a.json", content)
        assert values(records) == [
            {"Definition": ["D"], "Domains": ["d"], "id": "1", "input": "é", "output": ["a"]},
            {"Definition": ["D"], "Domains": ["d"], "id": "2", "output": ["b"]},
        ]
        for record in records:
            assert record.raw is not None
            assert content[record.offset :].startswith(record.raw)


def test_delimited_is_text_only(tmp_path: Path) -> None:
    content = (
        b'id,a,b\r\n1,NA,007\r\n\r\n2,"x\r\ny,""z""",\r\n3,one\r\n4,a,b,c\r\n5,\xff,b\r\n6,a,b'
    )
    records = read(tmp_path / "a.csv", content)
    assert values(records) == [
        {"id": "1", "a": "NA", "b": "007"},
        {"id": "2", "a": 'x\r\ny,"z"', "b": ""},
        "broken_csv_row",
        "broken_csv_row",
        "not_utf8",
        {"id": "6", "a": "a", "b": "b"},
    ]
    assert [record.line for record in records] == [2, 4, 6, 7, 8, 9]
    for record in records:
        assert record.raw is not None
        assert content[record.offset :].startswith(record.raw)


def test_delimiters_and_bom(tmp_path: Path) -> None:
    assert values(read(tmp_path / "a.csv", b"\xef\xbb\xbfa;b\n1,5;2\n")) == [{"a": "1,5", "b": "2"}]
    assert values(read(tmp_path / "b.csv", b"a\tb\n1\t2\n")) == [{"a": "1", "b": "2"}]
    assert values(read(tmp_path / "c.tsv", b"a\n1,2\n")) == [{"a": "1,2"}]
    assert read(tmp_path / "d.csv", b"\xef\xbb\xbfa;b\n1;2\n")[0].offset == 7


@pytest.mark.parametrize(
    ("name", "header", "told"),
    [
        ("a.csv", b"prompt,completion,completion", "completion 2 times"),
        ("a.csv", b'"a\x1b\nb","a\x1b\nb","a\x1b\nb"', r"a\x1b\nb 3 times"),
        ("a.tsv", b"\xef\xbb\xbfa\tb\ta", "a 2 times"),
    ],
)
def test_a_column_named_twice_is_told(tmp_path: Path, name: str, header: bytes, told: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path / name, header + b"\n1,2,3\n")
    assert f"the header names the column {told}; give each column a name" in str(caught.value)


def test_columns_that_have_no_name_may_be_many(tmp_path: Path) -> None:
    (record,) = read(tmp_path / "a.csv", b"a,b,,\n1,2,,\n")
    assert record.value == {"a": "1", "b": "2", "": ""}


def test_a_quote_that_never_closes_loses_no_line_unseen(tmp_path: Path) -> None:
    records = read(tmp_path / "a.csv", b'a,b\n1,2\n3,"4\n5,6\n7,8\n')
    assert values(records) == [{"a": "1", "b": "2"}] + ["broken_csv_row"] * 3
    assert [record.line for record in records] == [2, 3, 4, 5]
    assert values(read(tmp_path / "b.csv", b'a,b\n"1"x,2\n3,4\n'))[1] == {"a": "3", "b": "4"}


def test_cells_larger_than_csv_allows_by_default(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", b"a,b\n" + b"x" * 200_000 + b",y\n")[0].reason == ""


def test_arrow_file_and_stream(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(2500)), "b": [None] * 2500})
    for name, make in (("f", pa.ipc.new_file), ("s", pa.ipc.new_stream)):
        path = tmp_path / f"{name}.arrow"
        with make(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=1200)
        records = list(read_file(path))
        assert values(records) == [{"a": n} for n in range(2500)]
        assert [record.line for record in records] == list(range(1, 2501))


def test_columnar_rejects_only_the_bad_row(tmp_path: Path) -> None:
    text = pa.array([b"ok", b"\xff", b"fine"]).cast(pa.binary()).view(pa.string())
    pq.write_table(pa.table({"a": text}), tmp_path / "a.parquet")
    assert values(list(read_file(tmp_path / "a.parquet"))) == [
        {"a": "ok"},
        "not_utf8",
        {"a": "fine"},
    ]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_damaged_columnar_files_are_errors(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / f"a{suffix}", b"not what the name says")


def test_hub_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from stages.rows.formats import hub

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r"rows.path=org/none .* make setup"):
        list(hub.read("org/none"))


def test_hub_reads_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    from stages.rows.formats import hub

    data = datasets.Dataset.from_list([{"a": str(n), "b": None} for n in range(1500)])
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: data)
    assert values(list(hub.read("org/some"))) == [{"a": str(n)} for n in range(1500)]
    assert hub.fingerprint("org/some") == data._fingerprint

    def offline(name: str, split: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ConfigurationError, match=r"rows.path=org/other .*no route.*network"):
        list(hub.read("org/other"))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("chunks", [1, 3])
def test_hub_rejects_only_the_rows_with_bad_text(
    monkeypatch: pytest.MonkeyPatch, chunks: int, kind: Any
) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    from stages.rows.formats import hub

    bad = pa.array([b"x", b"\xff", b"z"]).cast(pa.binary()).view(pa.string()).cast(kind)
    table = pa.table({"a": pa.chunked_array([bad] * chunks), "n": list(range(3 * chunks))})
    data = datasets.Dataset(table)
    monkeypatch.setattr(hub, "_load", lambda name: data)
    records = list(hub.read("org/some"))
    assert values(records) == [
        {"a": "xz"[n // 2], "n": 3 * chunk + n} if n != 1 else "not_utf8"
        for chunk in range(chunks)
        for n in range(3)
    ]
    assert [record.line for record in records] == list(range(1, 3 * chunks + 1))
    assert json.loads(records[1].raw_bytes()) == {"a": "/w==", "n": 1}


def test_hub_reads_nothing_outside_the_memory_of_its_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stages.rows.formats import hub

    offsets = pa.array([0, 2**31 - 9, 2], pa.int32()).buffers()[1]
    damaged = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])

    class Data:
        def with_format(self, kind: str) -> "Data":
            return self

        def iter(self, batch_size: int) -> list[Any]:
            return [pa.table({"a": damaged})]

    monkeypatch.setattr(hub, "_load", lambda name: Data())
    with pytest.raises(DataError, match=r"rows.path=org/some cannot be read .*fetch it again"):
        list(hub.read("org/some"))


def test_reading_needs_no_heavy_package() -> None:
    code = "import sys, stages.rows.stage; print(*sys.modules)"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert not {"torch", "ray", "sklearn", "datasets", "transformers"} & set(done.stdout.split())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.binary(), st.text().map(str.encode)), max_size=5))
def test_any_bytes_give_records_and_never_an_exception(lines: list[bytes]) -> None:
    content = b"\n".join(lines)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.jsonl", "a.json", "b.json"):
            prefix = b"[" if name == "b.json" else b""
            for record in read(Path(folder) / name, prefix + content):
                assert (record.value is None) == bool(record.reason)
                assert record.line >= 1
        for record in read(Path(folder) / "a.csv", b"a,b\n" + content):
            assert (record.value is None) == bool(record.reason)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_text_out_is_text_in(pairs: list[tuple[str, str]]) -> None:
    rows = [{"a": a, "b": b} for a, b in pairs]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for ascii_only in (True, False):
            lines = [json.dumps(row, ensure_ascii=ascii_only).encode() for row in rows]
            assert values(read(folder / "a.jsonl", b"\n".join(lines))) == rows
            array = json.dumps(rows, ensure_ascii=ascii_only).encode()
            assert values(read(folder / "a.json", array)) == rows
        pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
        assert values(list(read_file(folder / "a.parquet"))) == rows
        for delimiter in ",;\t":
            out = io.StringIO(newline="")
            writer = csv.writer(out, delimiter=delimiter)
            writer.writerows([["a", "b"], *pairs])
            assert values(read(folder / "a.csv", out.getvalue().encode())) == rows
