"""Any text, in every dialect, written in every format that can hold it, is read again as it was."""

import csv
import gzip
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from stages.rows.dialects import DIALECTS
from stages.rows.formats import json_array, read_file
from stages.rows.reading import Reject, Row, read_rows

ODD = [
    "\0",
    "\r\n",
    "\r",
    "\n",
    "\u2028",
    "\u2029",
    "\x85",
    "\ufeff",
    "\x1a",
    "\x1b[2J",
    '"',
    '""',
    ",",
    ";",
    "\t",
    "\\",
    "\\n",
    "\\u0041",
    "\\ud800",
    "null",
    "NaN",
    "NA",
    "]",
    "[{",
    "'",
    "é",
    "e\u0301",
    "🙂",
    "👩\u200d👧",
    "\U0010ffff",
    "\ue000",
    "\U000f0000",
    "\uffff",
    "\u202e",
    "﷽",
]
TEXT = st.lists(
    st.sampled_from(ODD) | st.text(st.characters(codec="utf-8"), max_size=8), max_size=5
).map("".join)
SAID = TEXT.filter(lambda text: bool(text.strip()))
PAIRS = st.lists(st.tuples(SAID, TEXT), min_size=1, max_size=3)
BOM = b"\xef\xbb\xbf"

Write = Callable[[str, str], dict[str, Any]]


def of_turns(name: str, role: str, content: str, user: str, assistant: str) -> Write:
    return lambda asked, answer: {
        name: [{role: user, content: asked}, {role: assistant, content: answer}]
    }


WRITE: dict[str, Write] = {
    "messages": of_turns("messages", "role", "content", "user", "assistant"),
    "sharegpt": of_turns("conversations", "from", "value", "human", "gpt"),
    "natural_instructions": lambda a, b: {"Definition": [a], "input": "", "output": [b]},
    "instances": lambda a, b: {"instruction": a, "instances": [{"input": "", "output": b}]},
    "alpaca": lambda a, b: {"instruction": a, "input": "", "output": b},
    "magicoder": lambda a, b: {"problem": a, "solution": b},
    "prompt_completion": lambda a, b: {"prompt": a, "completion": b},
    "question_answer": lambda a, b: {"question": a, "answer": b},
    "marked_text": lambda a, b: {"text": f"<|user|> {a} <|ai|> {b}"},
}


def files(rows: list[dict[str, Any]]) -> dict[str, bytes]:
    """Write rows in every format that can hold them."""
    made: dict[str, bytes] = {}
    for ascii_only in (True, False):
        lines = [json.dumps(row, ensure_ascii=ascii_only).encode() for row in rows]
        made[f"lines{ascii_only}.jsonl"] = b"\n".join(lines)
        made[f"windows{ascii_only}.ndjson"] = BOM + b"\r\n".join(lines) + b"\r\n"
        for indent in (None, 2):
            array = json.dumps(rows, ensure_ascii=ascii_only, indent=indent).encode()
            made[f"array{ascii_only}{indent}.json"] = array
    made["packed.jsonl.gz"] = gzip.compress(made["linesFalse.jsonl"])
    table = pa.Table.from_pylist(rows)
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    made["a.parquet"] = buffer.getvalue()
    for name, make in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        sink = pa.BufferOutputStream()
        with make(sink, table.schema) as writer:
            writer.write_table(table)
        made[f"{name}.arrow"] = sink.getvalue().to_pybytes()
    if all(isinstance(value, str) for value in rows[0].values()):
        for name, delimiter in (("a.csv", ","), ("semicolon.csv", ";"), ("a.tsv", "\t")):
            out = io.StringIO(newline="")
            writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL)
            writer.writerows([list(rows[0]), *(list(row.values()) for row in rows)])
            made[name] = out.getvalue().encode()
            made["packed." + name + ".gz"] = gzip.compress(made[name])
    return made


def said(item: Row | Reject) -> list[tuple[str, str]]:
    assert isinstance(item, Row), str(item)
    return [(message["role"], message["content"]) for message in item.messages]


def test_every_dialect_is_written() -> None:
    assert list(WRITE) == list(DIALECTS)


@pytest.mark.parametrize("dialect", WRITE)
@settings(deadline=None, max_examples=20)
@given(pairs=PAIRS)
@example(pairs=[("".join(ODD), "".join(reversed(ODD)))])
def test_text_out_is_text_in(dialect: str, pairs: list[tuple[str, str]]) -> None:
    if dialect == "marked_text":
        # Spaces around markers belong to them, and a marker inside a text is a marker.
        pairs = [(a.replace("<|", "").strip(" "), b.replace("<|", "").strip(" ")) for a, b in pairs]
        assume(all(asked.strip() for asked, _ in pairs))
    expected = [[("user", asked), ("assistant", answer)] for asked, answer in pairs]
    rows = [WRITE[dialect](asked, answer) for asked, answer in pairs]
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files(rows).items():
            path = Path(folder) / name
            path.write_bytes(content)
            found = list(read_rows(str(path), dialect))
            assert [said(item) for item in found] == expected, name
            assert [item.dialect for item in found if isinstance(item, Row)] == [dialect] * len(
                rows
            )


HALF = st.sampled_from(["\ud800", "\udbff", "\udc00", "\udfff"])


@settings(deadline=None, max_examples=30)
@given(before=TEXT, half=HALF, after=TEXT, in_key=st.booleans())
def test_half_of_a_pair_costs_its_row_only(
    before: str, half: str, after: str, in_key: bool
) -> None:
    """Escapes can write it in JSON, and careless bytes everywhere; UTF-8 cannot hold it."""
    text = before.rstrip("\ud83d") + half + after
    good = {"prompt": "P", "completion": "C"}
    bad = {**good, **({"k" + text: "x"} if in_key else {"completion": text})}
    escaped = json.dumps(bad).encode()
    raw = json.dumps(bad, ensure_ascii=False).encode("utf-8", "surrogatepass")
    with tempfile.TemporaryDirectory() as folder:
        for broken in (escaped, raw):
            whole = json.dumps(good).encode()
            for name, content in (
                ("a.jsonl", b"\n".join([whole, broken, whole])),
                ("a.json", b"[" + b",".join([whole, broken, whole]) + b"]"),
            ):
                path = Path(folder) / name
                path.write_bytes(content)
                first, rejected, last = read_rows(str(path))
                assert said(first) == said(last) == [("user", "P"), ("assistant", "C")]
                assert isinstance(rejected, Reject) and rejected.reason == "not_utf8"
                assert rejected.raw == broken


PIECES = st.binary(max_size=12) | st.sampled_from(
    [*(b"[", b"{", b"]", b"}", b'"', b",", b'{"a":1}', b'{"a":', b"\n", b"\\", b"null"), BOM]
)


@settings(deadline=None, max_examples=60)
@given(content=st.lists(PIECES, max_size=12).map(b"".join), window=st.integers(1, 9))
def test_a_small_window_reads_what_a_large_one_does(content: bytes, window: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        path.write_bytes(content)
        expected = list(json_array.read(path))
        before = json_array.WINDOW_BYTES
        try:
            json_array.WINDOW_BYTES = window
            assert list(json_array.read(path)) == expected
        finally:
            json_array.WINDOW_BYTES = before


@settings(deadline=None, max_examples=80)
@given(st.lists(st.binary(max_size=30), max_size=6))
def test_lines_in_are_rows_and_rejects(lines: list[bytes]) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    good = b'{"prompt": "P", "completion": "C"}'
    content = b"\n".join([good, *lines])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(content)
        found = list(read_rows(str(path)))
        assert len(found) == len(list(read_file(path))) == 1 + sum(bool(x.strip()) for x in lines)
        for item in found:
            if isinstance(item, Reject):
                assert item.raw == lines[item.line - 2].removesuffix(b"\r")
                assert content[item.byte_offset :].startswith(item.raw)
