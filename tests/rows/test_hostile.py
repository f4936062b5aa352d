"""Files made to break a reader: bombs, endless lines, deep values, damaged memory, false paths."""

import bz2
import importlib
import json
import lzma
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.contract.errors import ConfigurationError, DataError
from stages.contract.shown import one_line
from stages.rows.formats import columnar, delimited, json_array, jsonl, read_file
from stages.rows.formats.record import MOST_LEVELS, Record, from_json
from stages.rows.reading import Reject, Row, read_rows
from stages.rows.source import find

GOOD = b'{"instruction": "I", "output": "O"}'


def read(path: Path, content: bytes) -> list[Record]:
    path.write_bytes(content)
    return list(read_file(path))


def outcomes(path: Path, content: bytes) -> list[str]:
    path.write_bytes(content)
    return [item.reason if isinstance(item, Reject) else "row" for item in read_rows(str(path))]


@pytest.mark.parametrize(("suffix", "pack"), [(".bz2", bz2.compress), (".xz", lzma.compress)])
def test_a_bomb_is_unpacked_a_little_at_a_time(
    tmp_path: Path, suffix: str, pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "MAX_ROW_BYTES", 1 << 20)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(pack(GOOD + b"\n" + b"a" * (40 << 20) + b"\n" + GOOD))
    tracemalloc.start()
    reasons, num_bytes = [], 0
    for record in read_file(path):
        reasons.append(record.reason)
        num_bytes += len(record.raw or b"")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reasons == ["", *["row_too_long"] * 40, ""]
    assert num_bytes == (40 << 20) + 2 * len(GOOD)
    assert most < 20 << 20  # the dictionary of xz is 8 MiB of it


def test_a_stream_that_asks_for_more_memory_than_allowed_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = importlib.import_module("stages.rows.formats.opening")
    monkeypatch.setattr(opening, "XZ_MEMORY_BYTES", 1 << 20)
    packed = lzma.compress(GOOD, preset=6)  # asks for 9 MiB
    assert [r.reason for r in read(tmp_path / "a.jsonl.xz", packed)] == ["broken_file"]


def test_a_line_that_is_too_long_is_rejected_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (jsonl, json_array, delimited):
        monkeypatch.setattr(module, "MAX_ROW_BYTES", 100)
    monkeypatch.setattr(json_array, "WINDOW_BYTES", 10)
    long = b'{"instruction": "' + b"x" * 250 + b'"}'
    records = read(tmp_path / "a.jsonl", b"\n".join([GOOD, long, GOOD]))
    assert [r.reason for r in records] == ["", *["row_too_long"] * 3, ""]
    assert [r.line for r in records] == [1, 2, 2, 2, 3]
    assert b"".join(r.raw or b"" for r in records[1:4]) == long
    table = b"instruction,output\nI," + b"x" * 250 + b"\nI,O\n"
    records = read(tmp_path / "a.csv", table)
    assert [r.reason for r in records] == [*["broken_csv_row"] * 3, ""]
    assert [r.line for r in records] == [2, 2, 2, 3]
    open_quote = b'instruction,output\nI,"' + b"x\n" * 60 + b"I,O\n"
    records = read(tmp_path / "b.csv", open_quote)
    assert b"\n".join(r.raw or b"" for r in records) == open_quote[19:-1]
    assert all(r.reason == "broken_csv_row" for r in records[:-1]) and not records[-1].reason
    first, *others = read(tmp_path / "a.json", b"[" + b"{" * 150)
    assert first.reason == "row_too_long" and all(r.reason for r in others)
    assert b"".join(r.raw or b"" for r in [first, *others]) == b"{" * 150


def test_values_nested_too_deeply_for_later_stages_are_rejects(tmp_path: Path) -> None:
    def nested(levels: int) -> bytes:
        return b'{"instruction": "I", "output": "O", "k": %b}' % (b"[" * levels + b"]" * levels)

    assert from_json(nested(MOST_LEVELS - 1), 1, 0).reason == ""
    for levels in (MOST_LEVELS, 500, 985, 995, 100_000):
        assert outcomes(tmp_path / "a.jsonl", nested(levels) + b"\n" + GOOD) == ["not_json", "row"]
    flat = json.dumps({"instruction": "I", "output": "O", "k": [[1]] * 1000}).encode()
    assert outcomes(tmp_path / "a.jsonl", flat) == ["row"]


def test_many_messages_and_many_columns(tmp_path: Path) -> None:
    turns = [{"role": ("user", "assistant")[n % 2], "content": f"m{n}"} for n in range(100_000)]
    (row,) = read_rows(str(write(tmp_path / "a.jsonl", json.dumps({"messages": turns}).encode())))
    assert isinstance(row, Row) and row.messages == turns
    names = ["instruction", "output", *(f"c{n}" for n in range(10_000))]
    content = ",".join(names) + "\n" + ",".join(["x"] * len(names)) + "\n"
    (row,) = read_rows(str(write(tmp_path / "a.csv", content.encode())))
    assert isinstance(row, Row) and len(json.loads(row.meta)) == 10_000


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_messages_are_one_short_line_whatever_a_file_holds(tmp_path: Path) -> None:
    evil = "\x1b[2J\n\u202e" + "x" * 100_000
    with pytest.raises(DataError, match=r"\\x1b\[2J\\n\\u202ex") as caught:
        list(read_rows(str(write(tmp_path / "a.jsonl", json.dumps({evil: 1}).encode()))))
    assert len(str(caught.value)) < 1000 and str(caught.value).isprintable()
    line = json.dumps({"messages": [{"role": evil, "content": "x"}]}).encode()
    good = json.dumps({"messages": [{"role": "assistant", "content": "x"}]}).encode()
    _, reject = read_rows(str(write(tmp_path / "b.jsonl", good + b"\n" + line)))
    assert isinstance(reject, Reject) and len(reject.detail) < 300 and reject.detail.isprintable()
    assert one_line("a\x00\ud800é🙂") == "a\\x00\\ud800é🙂"
    assert one_line("abc", 2) == "ab..."
    assert one_line("\0" * 1000) == "\\x00" * 50 + "..."


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_header_that_is_not_utf8_is_told(tmp_path: Path, name: str, encoding: str) -> None:
    content = "instruction\toutput\tgröße\nI\tO\tx\n".encode(encoding)
    with pytest.raises(DataError, match="the header is not UTF-8; save the file as UTF-8"):
        read(tmp_path / name, content)


def stream_of(table: pa.Table, make: Any = pa.ipc.new_stream) -> bytes:
    sink = pa.BufferOutputStream()
    with make(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("offset", [0xFFFFFFF0, 0x7FFFFFF0, 0x00FFFFFF])
def test_places_outside_the_memory_of_an_arrow_file_are_never_read(
    tmp_path: Path, make: Any, offset: int
) -> None:
    """Such a file ended the process, or gave the bytes that lay there as text."""
    table = pa.table({"instruction": ["question", "q"], "output": ["answer", "a"]})
    content = stream_of(table, make)
    sound = b"".join(n.to_bytes(4, "little") for n in (0, 8, 9))
    assert content.count(sound) == 1
    damaged = content.replace(sound, sound[:4] + offset.to_bytes(4, "little") + sound[8:])
    with pytest.raises(DataError, match="cannot be read as Arrow IPC"):
        read(tmp_path / "a.arrow", damaged)


BAD = pa.array([b"ok", b"\xff", b"fine"]).view(pa.string())
NESTED = pa.StructArray.from_arrays([BAD, pa.array([1, 2, 3])], names=["a", "b"])


@pytest.mark.parametrize(
    "column",
    [
        BAD,
        BAD.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string()),
        NESTED,
        pa.ListArray.from_arrays([0, 1, 2, 3], NESTED),
        pa.LargeListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int64()), NESTED),
        pa.FixedSizeListArray.from_arrays(NESTED, 1),
        pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["x", "y", "z"]), BAD),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), BAD),
    ],
    ids=lambda column: str(column.type),
)
def test_text_that_is_not_utf8_costs_its_row_only_and_is_kept(tmp_path: Path, column: Any) -> None:
    table = pa.table({"instruction": ["x", "y", "z"], "output": ["O"] * 3, "k": column})
    first, rejected, last = read(tmp_path / "a.arrow", stream_of(table))
    assert first.value is not None and last.value is not None
    assert rejected.reason == "not_utf8"
    raw = json.loads(rejected.raw_bytes())
    assert raw["instruction"] == "y" and raw["output"] == "O"
    assert "/w==" in json.dumps(raw["k"])  # base64 of the byte 0xff


def test_times_that_python_cannot_hold_are_text(tmp_path: Path) -> None:
    table = pa.table(
        {
            "prompt": ["P"] * 2,
            "completion": ["C"] * 2,
            "far": pa.array([1, 2**40], pa.timestamp("s")),
            "inside": pa.array([[0], [2**40]], pa.list_(pa.timestamp("s"))),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    near, far = read_rows(str(tmp_path / "a.parquet"))
    assert isinstance(near, Row) and isinstance(far, Row)
    assert json.loads(near.meta)["far"] == "1970-01-01T00:00:01"
    meta = json.loads(far.meta)
    assert "out of range" in meta["far"] and "out of range" in meta["inside"][0]


@pytest.mark.parametrize("where", ["dictionary", "large_list", "list_view", "fixed", "views"])
def test_messages_of_every_kind_of_list_and_text(tmp_path: Path, where: str) -> None:
    turns = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]
    text = {"dictionary": pa.dictionary(pa.int32(), pa.string()), "views": pa.string_view()}
    kind = text.get(where, pa.string())
    message = pa.struct([("role", kind), ("content", kind)])
    lists = {"large_list": pa.large_list(message), "list_view": pa.list_view(message),
             "fixed": pa.list_(message, 2)}  # fmt: skip
    column = pa.array([turns, turns], lists.get(where, pa.list_(message)))
    path = write(tmp_path / "a.arrow", stream_of(pa.table({"messages": column})))
    found = list(read_rows(str(path)))
    assert [item.messages for item in found if isinstance(item, Row)] == [turns, turns]
    assert columnar.sound(pa.record_batch({"messages": column})).num_rows == 2


def test_the_instances_of_a_task_are_its_own(tmp_path: Path) -> None:
    task = {
        "Definition": ["D"],
        "k": {"Instances": [{"input": "wrong", "output": ["x"]}]},
        "Instances": [{"input": "right", "output": ["x"]}],
    }
    for indent in (None, 1):
        (record,) = read(tmp_path / "a.json", json.dumps(task, indent=indent).encode())
        assert record.value is not None and record.value["input"] == "right"


def test_a_row_that_holds_a_list_of_objects_is_a_row(tmp_path: Path) -> None:
    rows = [{"instruction": f"I{n}", "output": "O", "examples": [{"x": 1}]} for n in range(2)]
    content = b"\n".join(json.dumps(row, indent=1).encode() for row in rows)
    assert [record.value for record in read(tmp_path / "a.json", content)] == rows


def saved(folder: Path, name: object) -> Path:
    (folder / "d").mkdir()
    (folder / "d" / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    (folder / "d" / "dataset_info.json").write_text("{}")
    return folder / "d"


@pytest.mark.parametrize(
    "name", ["../a.arrow", "/etc/passwd", "x/../../a.arrow", "none", 7, "\ud800"]
)
def test_a_saved_data_set_reads_no_file_outside_its_folder(tmp_path: Path, name: object) -> None:
    write(tmp_path / "a.arrow", stream_of(pa.table({"prompt": ["P"], "completion": ["C"]})))
    with pytest.raises(ConfigurationError, match="save the data set again"):
        find(str(saved(tmp_path, name)))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"splits": 7}', '{"splits": [7]}', "[" * 5000])
def test_a_damaged_list_of_splits_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset_dict.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"must list splits as .* save the data set again"):
        find(str(tmp_path))


def test_links_that_lead_nowhere_and_names_that_are_no_text(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", GOOD)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone.jsonl")
    for path in (tmp_path, tmp_path / "*.jsonl"):
        with pytest.raises(ConfigurationError, match=r"b\.jsonl is a link that leads nowhere"):
            find(str(path))
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    with pytest.raises(ConfigurationError, match="leads nowhere"):
        find(str(tmp_path))
    (tmp_path / "loop.jsonl").unlink()
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert [found.name for found in find(str(tmp_path))] == ["a.jsonl"]
    (tmp_path / os.fsdecode(b"\xff.jsonl")).write_bytes(GOOD)
    for path in (tmp_path, tmp_path / os.fsdecode(b"\xff.jsonl")):
        with pytest.raises(ConfigurationError, match="not UTF-8"):
            find(str(path))
