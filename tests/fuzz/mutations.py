"""Seeds of every format and dialect, and what scraped files and attackers do to them."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Seed = tuple[str, bytes]

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
TEXTS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
LARGEST_SEED = 1 << 16

HOSTILE = [
    *(b"\0", b"\n", b"\r", b"\r\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\xff", b"\xc3"),
    b"\xed\xa0\x80",
    *(b"\xe2\x80\xa8", b"\xf0\x9f\x99\x82", b"\x1b[2J", b"\\ud800", b"\\udc00", b"\\u0000", b"\\"),
    *(b'"', b"'", b",", b";", b"\t", b":", b"[", b"]", b"{", b"}", b"[[[[", b"]]]]", b'""', b"\\n"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"-0", b"0.1e-400", b"{}"),
    *(b"[]", b'{"a":', b'"messages":', b'"role":"user"', b'"content":null', b'"instances":['),
    *(b'"Instances":[', b'"Definition":', b'"data":[', b'"text":', b"<|user|>", b'"id":'),
    b"<|ai|>",
    *(b"[" * 1200, b'{"a":' * 1200, b"}" * 40, b'"image":{}', b'"chosen":"a","rejected":"b"'),
    *(b'"source":', b'"from":"gpt","value":', b"/*", b"//", b"#", b" ", b"\xa0", b"\x85"),
    b"\x1a",
]  # fmt: skip

TURNS = [{"role": "user", "content": "U é"}, {"role": "assistant", "content": "A\n"}]
SHARED_TURNS = [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A 🙂"}]
BY_DIALECT: dict[str, dict[str, Any]] = {
    "messages": {"messages": TURNS, "id": 7, "tools": None},
    "sharegpt": {"conversations": SHARED_TURNS, "system": "S", "id": "a"},
    "natural_instructions": {"Definition": ["D"], "input": "I", "output": ["O"]},
    "instances": {"instruction": "I", "instances": [{"input": "x", "output": "O"}]},
    "alpaca": {"instruction": "I", "input": "x", "output": "O", "score": 0.5},
    "magicoder": {"problem": "P", "solution": "S"},
    "prompt_completion": {"prompt": "P", "completion": "C"},
    "question_answer": {"question": "Q", "answer": "A"},
    "marked_text": {"text": "<|user|> U <|ai|> A", "source": "s"},
}


def seeds(folder: Path, real: tuple[Path, ...] = ()) -> list[Seed]:
    """Make files of each dialect in each format, and take real ones that are short enough."""
    made = [seed for row in BY_DIALECT.values() for seed in _written(folder, row)]
    task = {"Definition": ["D"], "Instances": [{"input": "I", "output": ["O"]}], "Domains": []}
    made += [
        ("a.json", json.dumps({"version": 1, "data": [BY_DIALECT["alpaca"]] * 3}).encode()),
        ("a.json", json.dumps([TURNS, SHARED_TURNS], indent=1).encode()),
        ("a.json", json.dumps(task, indent=1).encode()),
    ]
    for file in (file for place in real for file in sorted(place.rglob("*"))):
        suffix = "".join(file.suffixes[-1:]).lower()
        if file.is_file() and suffix in SUFFIXES:
            content = file.read_bytes()
            if suffix in TEXTS:
                content = content[:LARGEST_SEED]
            if len(content) <= 4 * LARGEST_SEED:
                made.append(("a" + suffix, content))
    return made


def _written(folder: Path, row: dict[str, Any]) -> list[Seed]:
    rows = [row, {**row, "late": "x"}, row]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    made = [
        ("a.jsonl", lines),
        ("a.json", json.dumps(rows).encode()),
        ("a.json", json.dumps(rows, indent=1, ensure_ascii=False).encode()),
    ]
    table = pa.Table.from_pylist(rows)
    for compression in ("none", "snappy"):
        path = folder / "seed.parquet"
        pq.write_table(table, path, compression=compression)
        made.append(("a.parquet", path.read_bytes()))
    for make in (pa.ipc.new_file, pa.ipc.new_stream):
        sink = pa.BufferOutputStream()
        with make(sink, table.schema) as writer:
            writer.write_table(table)
        made.append(("a.arrow", sink.getvalue().to_pybytes()))
    if all(isinstance(value, str) for value in row.values()):
        for delimiter, suffix in ((",", ".csv"), (";", ".csv"), ("\t", ".tsv")):
            body = delimiter.join(row) + "\n" + (delimiter.join(row.values()) + "\n") * 2
            quoted = delimiter.join(f'"{value}\n"' for value in row.values())
            made.append(("a" + suffix, (body + quoted + "\r\n").encode()))
    return made


def mutated(rng: random.Random, known: list[Seed]) -> Seed:
    """Take a seed, change it a few times, and sometimes call it by another format's name."""
    name, content = rng.choice(known)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        content = rng.choice(CHANGES)(rng, content, known)
    if rng.random() < 0.1:
        name = "a" + rng.choice(TEXTS)
    return name, content[: 8 * LARGEST_SEED]


def _place(rng: random.Random, content: bytes) -> int:
    return rng.randrange(len(content) + 1)


def _range(rng: random.Random, content: bytes) -> tuple[int, int]:
    start = _place(rng, content)
    return start, min(len(content), start + rng.choice((1, 1, 2, 4, 16, 256, 4096)))


def _flip(rng: random.Random, content: bytes, known: list[Seed]) -> bytes:
    if not content:
        return content
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 4, 32))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite(rng: random.Random, content: bytes, known: list[Seed]) -> bytes:
    start, stop = _range(rng, content)
    filling = rng.choice(
        (rng.randbytes(stop - start), b"\xff" * (stop - start), bytes(stop - start))
    )
    return content[:start] + filling + content[stop:]


def _cut(rng: random.Random, content: bytes, known: list[Seed]) -> bytes:
    at = _place(rng, content)
    return content[:at] if rng.random() < 0.7 else content[at:]


def _drop(rng: random.Random, content: bytes, known: list[Seed]) -> bytes:
    start, stop = _range(rng, content)
    return content[:start] + content[stop:]


def _repeat(rng: random.Random, content: bytes, known: list[Seed]) -> bytes:
    start, stop = _range(rng, content)
    return content[:stop] + content[start:stop] * rng.choice((1, 2, 9)) + content[stop:]


def _insert(rng: random.Random, content: bytes, known: list[Seed]) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = _place(rng, content)
        content = content[:at] + rng.choice(HOSTILE) + content[at:]
    return content


def _swap_word(rng: random.Random, content: bytes, known: list[Seed]) -> bytes:
    """Put a hostile piece in the place of a quote, bracket or number."""
    marks = [at for at, byte in enumerate(content[:LARGEST_SEED]) if byte in b'"[]{}:,0123456789\n']
    if not marks:
        return content
    at = rng.choice(marks)
    return content[:at] + rng.choice(HOSTILE) + content[at + 1 :]


def _splice(rng: random.Random, content: bytes, known: list[Seed]) -> bytes:
    other = rng.choice(known)[1]
    start, stop = _range(rng, other)
    at = _place(rng, content)
    return content[:at] + rng.choice((other[start:stop], other, other[start:])) + content[at:]


def _encode(rng: random.Random, content: bytes, known: list[Seed]) -> bytes:
    text = content.decode("utf-8", "replace")
    name = rng.choice(("utf-16", "utf-16-be", "utf-32", "latin-1", "utf-8-sig", "utf-7", "cp1252"))
    return text.encode(name, "replace")


CHANGES: tuple[Callable[[random.Random, bytes, list[Seed]], bytes], ...] = (
    _flip, _flip, _overwrite, _cut, _drop, _repeat, _insert, _insert, _swap_word, _swap_word,
    _splice, _encode,
)  # fmt: skip
