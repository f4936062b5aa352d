"""Files as they are found: merged, wrapped, cut, and of mixed kinds. No row is lost unseen."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.rows.formats import columnar, read_file
from stages.rows.reading import Reject, Row, read_rows

TALK = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]


def ask(n: int, **more: Any) -> dict[str, Any]:
    return {"id": f"r{n}", "instruction": f"I{n}", "output": f"O{n}", **more}


def read(path: Path, content: bytes) -> tuple[list[Row], list[Reject]]:
    path.write_bytes(content)
    out = list(read_rows(str(path)))
    rows = [item for item in out if isinstance(item, Row)]
    return rows, [item for item in out if isinstance(item, Reject)]


def ids(path: Path, content: bytes) -> tuple[list[str], list[tuple[int, str]]]:
    rows, rejects = read(path, content)
    return [row.uid for row in rows], [(reject.line, reject.reason) for reject in rejects]


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_mixed_types_and_late_fields_are_carried_as_they_are(tmp_path: Path) -> None:
    extras: list[Any] = [1, "1", 1.5, True, [1, "a", None], {"k": {"n": None}}, None]
    content = lines(*(ask(n, extra=value) for n, value in enumerate(extras)), ask(7, late="x"))
    rows, rejects = read(tmp_path / "a.jsonl", content)
    assert rejects == []
    metas = [json.loads(row.meta) for row in rows]
    assert [meta.get("extra", "none") for meta in metas[:7]] == [*extras[:5], {"k": {}}, "none"]
    assert type(metas[0]["extra"]) is int and type(metas[3]["extra"]) is bool
    assert metas[7] == {"id": "r7", "late": "x"}


def test_values_of_another_type_than_text_reject_their_row_only(tmp_path: Path) -> None:
    content = lines(ask(0), ask(1, output=7), ask(2, output=["x"]), ask(3, instruction={}), ask(4))
    assert ids(tmp_path / "a.jsonl", content) == (
        ["r0", "r4"],
        [(2, "not_text"), (3, "not_text"), (4, "not_text")],
    )


def test_nul_and_odd_separators_are_text(tmp_path: Path) -> None:
    text = "a\0b\u2028c\u2029d\x85e\x0bf\x0cg\x1ch\rend"
    for ascii_only in (True, False):
        row = json.dumps(ask(0, output=text), ensure_ascii=ascii_only).encode()
        rows, rejects = read(tmp_path / "a.jsonl", row + b"\n" + row)
        assert rejects == []
        assert [row.messages[1]["content"] for row in rows] == [text, text]
    rows, rejects = read(tmp_path / "a.csv", b"instruction,output\nI,a\0b\nJ,c\n")
    assert rejects == []
    assert [row.messages[1]["content"] for row in rows] == ["a\0b", "c"]
    # A NUL as such within a JSON text is no JSON.
    raw = b'{"instruction": "I", "output": "a\0b"}\n' + lines(ask(1))
    assert ids(tmp_path / "b.jsonl", raw) == (["r1"], [(1, "not_json")])


def test_latin_1_and_windows_bytes_reject_their_row_only(tmp_path: Path) -> None:
    latin = '{"instruction": "Größe", "output": "“x”"}\n'.encode("cp1252")
    assert ids(tmp_path / "a.jsonl", lines(ask(0)) + latin + lines(ask(2))) == (
        ["r0", "r2"],
        [(2, "not_utf8")],
    )
    array = b"[" + lines(ask(0)).strip() + b"," + latin.strip() + b"," + lines(ask(2)) + b"]"
    assert ids(tmp_path / "a.json", array) == (["r0", "r2"], [(1, "not_utf8")])
    cells = "id,instruction,output\n0,a,b\n1,Größe,x\n2,c,d\n".encode("latin-1")
    assert ids(tmp_path / "a.csv", cells) == (["0", "2"], [(3, "not_utf8")])


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv"])
def test_a_missing_last_newline_and_windows_ends_change_nothing(tmp_path: Path, name: str) -> None:
    if name.endswith(("csv", "tsv")):
        mark = "," if name.endswith("csv") else "\t"
        table = [["id", "instruction", "output"], *(["r0", "a", "b"], ["r1", "c", "d"])]
        content = "".join(mark.join(row) + "\n" for row in table).encode()
    else:
        content = lines(ask(0), ask(1))
    expected, _ = read(tmp_path / name, content)
    assert [row.uid for row in expected] == ["r0", "r1"]
    for other in (content[:-1], content.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + content):
        assert read(tmp_path / name, other) == (expected, [])


def test_objects_and_arrays_one_after_the_other(tmp_path: Path) -> None:
    one, two, three = (json.dumps(ask(n), indent=1).encode() for n in range(3))
    expected = (["r0", "r1", "r2"], [])
    assert ids(tmp_path / "a.json", one + two + three) == expected
    assert ids(tmp_path / "b.json", one + b"\n" + two + b" " + three + b"\n") == expected
    assert ids(tmp_path / "c.json", b"[" + one + b"]\n[" + two + b"," + three + b"]") == expected
    # Objects over several lines, under the name of lines.
    assert ids(tmp_path / "d.jsonl", one + b"\n" + two + b"\n" + three) == expected
    # Two on a line are a reject, and say where.
    glued = lines(ask(0)) + lines(ask(1)).strip() + lines(ask(2)) + lines(ask(3))
    assert ids(tmp_path / "e.jsonl", glued) == (["r0", "r3"], [(2, "not_json")])


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".jsonl.gz", ".json"])
def test_an_array_under_the_name_of_lines(tmp_path: Path, suffix: str, indent: int | None) -> None:
    content = json.dumps([ask(n) for n in range(3)], indent=indent).encode()
    by_line = b"[" + lines(ask(0)).strip() + b",\n" + lines(ask(1)).strip() + b",\n"
    for whole in (content, b"\xef\xbb\xbf" + content + b"\n", by_line + lines(ask(2)) + b"]\n"):
        packed = gzip.compress(whole) if suffix.endswith(".gz") else whole
        assert ids(tmp_path / f"a{suffix}", packed) == (["r0", "r1", "r2"], [])


@pytest.mark.parametrize(
    "first", [b"[{", b"[", b"{", b"[1, 2", b'["x", {"a": 1}]', b"[[", b'{"a":', b'[{"a": "b']
)
def test_a_broken_first_line_makes_no_array_of_lines(tmp_path: Path, first: bytes) -> None:
    content = first + b"\n" + lines(*(ask(n) for n in range(40)))
    rows, rejects = read(tmp_path / "a.jsonl", content)
    assert [row.uid for row in rows] == [f"r{n}" for n in range(40)]
    assert len(rejects) == 1


@pytest.mark.parametrize("key", ["data", "rows", "train", "examples"])
def test_an_array_in_an_object(tmp_path: Path, key: str) -> None:
    rows = [ask(n) for n in range(3)]
    for whole in (
        {key: rows},
        {"version": "1.0", "n": 3, "ok": True, key: rows},
        {key: rows, "info": {"by": ["x"]}, "n": None},
    ):
        for indent in (None, 1):
            content = json.dumps(whole, indent=indent).encode()
            assert ids(tmp_path / "a.json", content) == (["r0", "r1", "r2"], [])
    two = json.dumps({key: rows, "test": [ask(9)]}).encode()
    assert ids(tmp_path / "b.json", two) == (["r0", "r1", "r2"], [(1, "not_the_rows")])
    cut = json.dumps({key: rows}).encode()[:-2]
    assert ids(tmp_path / "c.json", cut) == (["r0", "r1", "r2"], [(1, "truncated_file")])


def test_bare_lists_of_messages(tmp_path: Path) -> None:
    said = [[{"from": "human", "value": f"U{n}"}, {"from": "gpt", "value": "A"}] for n in range(2)]
    for content, name in (
        (lines(TALK, *said), "a.jsonl"),
        (json.dumps([TALK, *said]).encode(), "b.json"),
        (json.dumps([TALK, *said], indent=1).encode(), "c.jsonl"),
        (lines(TALK, *said), "d.json"),
        (json.dumps(TALK).encode() + json.dumps(said[0]).encode() + lines(said[1]), "e.json"),
    ):
        rows, rejects = read(tmp_path / name, content)
        assert rejects == [], name
        assert [row.messages[0]["content"] for row in rows] == ["U", "U0", "U1"]
        assert rows[0].messages == TALK


def test_rows_of_several_dialects_in_one_file(tmp_path: Path) -> None:
    rows, rejects = read(
        tmp_path / "a.jsonl",
        lines(
            {"messages": TALK, "id": "a"},
            ask(1),
            {"conversations": [{"from": "human", "value": "U"}, {"from": "gpt", "value": "B"}]},
            {"question": "Q", "answer": "C", "id": "d"},
            {"prompt": "P", "chosen": "C", "rejected": "D"},
            {"text": "raw"},
            {"messages": TALK, "prompt": "P", "completion": "C"},
        ),
    )
    assert [row.messages[1]["content"] for row in rows] == ["A", "O1", "B", "C", "A"]
    assert [row.dialect for row in rows] == [
        "messages", "alpaca", "sharegpt", "question_answer", "messages",
    ]  # fmt: skip
    assert [(reject.line, reject.reason) for reject in rejects] == [
        (5, "no_messages"),
        (6, "no_messages"),
    ]
    named = list(read_rows(str(tmp_path / "a.jsonl"), "messages"))
    assert [isinstance(item, Row) for item in named] == [True, *[False] * 5, True]


def test_an_empty_answer_is_not_another_dialect(tmp_path: Path) -> None:
    text = "### Instruction: I\n### Response:"
    rows, rejects = read(
        tmp_path / "a.jsonl", lines(ask(0, text=text), {"instruction": "I", "text": text})
    )
    assert rejects == []
    assert [row.dialect for row in rows] == ["alpaca", "alpaca"]
    assert rows[1].messages[1]["content"] == ""


def test_long_rows_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "BYTES_PER_BATCH", 10_000)
    sizes = [5, 9000, 1, 20_000, 3] * 60
    table = pa.table({"a": [str(n) + "x" * size for n, size in enumerate(sizes)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=110)
    found = list(read_file(tmp_path / "a.parquet"))
    assert [record.value for record in found] == table.to_pylist()
    assert [record.line for record in found] == list(range(1, 301))
    assert columnar.rows_within(1000, 100_000) == 100
    assert columnar.rows_within(1, 10**9) == 1 == columnar.rows_within(0, 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("messages", "role", "content", "from", "value", "instruction", "output", "data", "rows")
SHAPES = st.recursive(
    JSON | st.sampled_from(["user", "assistant", "U"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(SHAPES, max_size=4), st.sampled_from([None, 1]))
def test_any_values_beside_a_good_row_cost_it_nothing(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], indent: int | None
) -> None:
    folder = tmp_path_factory.getbasetemp()
    good = ask(0)
    by_line = lines(good, *values)
    rows, rejects = read(folder / "any.jsonl", by_line)
    assert "r0" in [row.uid for row in rows]
    assert len(rows) + len(rejects) >= 1 + len(values)
    array = json.dumps([good, *values], indent=indent).encode()
    for name in ("any.json", "array.jsonl"):
        rows, rejects = read(folder / name, array)
        assert "r0" in [row.uid for row in rows]
        assert len(rows) + len(rejects) >= 1 + len(values)
