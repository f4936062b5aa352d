"""Cases of the rows room: fields that come late, CSV, text beyond 2 GiB, broken lines, scripts."""

import json
import runpy
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.contract import schemas
from stages.contract.errors import DataError
from stages.rows.formats import read_file
from stages.rows.reading import read_rows
from stages.rows.stage import RowsConfig
from tests.cases.rooms import case, made, rows_of, through
from tests.tokens.samples import encoder


def content(artifact: object) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = artifact.read(schemas.ROWS.names).to_pylist()  # type: ignore[attr-defined]
    return rows


def test_04_the_result_does_not_depend_on_the_size_of_a_block(tmp_path: Path) -> None:
    folder = case("04-field-null-for-the-first-blocks")
    big = made(folder / "make_input.py", tmp_path / "late_string.jsonl")
    first = rows_of(tmp_path / "a", big, max_reject_fraction=0.0)
    other = rows_of(tmp_path / "b", big, max_reject_fraction=0.0, rows_per_part=7_777)
    assert first.num_rows == other.num_rows == 40_011
    assert (len(first.parts), len(other.parts)) == (5, 6)
    one, two = (found.read(schemas.ROWS.names) for found in (first, other))
    assert one.schema == two.schema == schemas.ROWS
    assert one.equals(two)
    *_, late, last = one.slice(40_000).to_pylist()
    assert late["source"] == "handmade" and "in words" in late["messages"][0]["content"]
    assert json.loads(last["meta"])["source"] == {"site": "forum", "score": 3}
    # The same in the tokens room, on the end of the file and some rows before it.
    short = tmp_path / "short.jsonl"
    short.write_bytes(b"".join(big.read_bytes().splitlines(keepends=True)[-600:]))
    tables = [
        through(tmp_path / name, short, rows={"rows_per_part": size})
        .artifacts["tokens"]
        .read(schemas.TOKENS.names)
        for name, size in (("c", 600), ("d", 97))
    ]
    assert tables[0].num_rows == 600
    assert tables[0].equals(tables[1])


def test_04_small(tmp_path: Path) -> None:
    folder = case("04-field-null-for-the-first-blocks")
    rooms = through(tmp_path, folder / "small.jsonl")
    assert rooms.kept == [f"r{n}" for n in range(9)]
    *_, last = content(rooms.artifacts["rows"])
    assert json.loads(str(last["meta"])) == {"id": "r8", "extra": {"k": 1}}


def test_10_every_cell_is_text(tmp_path: Path) -> None:
    folder = case("10-csv-with-newlines-and-quotes")
    rooms = through(tmp_path, folder / "data.csv")
    assert rooms.kept == ["1", "2", "3", "4"]
    assert rooms.reasons == {"5": ("tokens", "no_supervised_tokens")}
    said = [[m["content"] for m in row["messages"]] for row in content(rooms.artifacts["rows"])]  # type: ignore[attr-defined]
    assert said == [
        ["Write a haiku.", 'Old pond,\na frog jumps in;\n"plop".'],
        ['Return this CSV row\n\na,b,"c"', 'a,b,"c"'],
        ["Windows line", "first\r\nsecond"],
        ["Looks like a number\n\n007", "1e5"],
        ["Empty and NA\n\nNA", ""],
    ]
    semicolons = through(tmp_path / "b", folder / "bom-semicolon.csv")
    again = [
        [m["content"] for m in row["messages"]]  # type: ignore[attr-defined]
        for row in content(semicolons.artifacts["rows"])
    ]
    assert again == said[:3] and semicolons.kept == ["1", "2", "3"]


def test_10_a_large_file_has_all_its_rows_whatever_the_part(tmp_path: Path) -> None:
    folder = case("10-csv-with-newlines-and-quotes")
    big = made(folder / "make_big.py", tmp_path / "big.csv")
    first = rows_of(tmp_path / "a", big, max_reject_fraction=0.0)
    other = rows_of(tmp_path / "b", big, max_reject_fraction=0.0, bytes_per_part=1 << 18)
    assert first.num_rows == other.num_rows == 60_000
    assert len(other.parts) > len(first.parts)
    assert first.read(schemas.ROWS.names).equals(other.read(schemas.ROWS.names))
    last = content(first)[-1]
    assert last["messages"] == [
        {"role": "user", "content": "Split 59999\nover two lines."},
        {"role": "assistant", "content": "part 59999\n\npart 60000"},
    ]


def texts_of(kind: pa.DataType) -> list[pa.DataType]:
    """Give the types of text at any depth of a type."""
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    if inner:
        return [found for child in inner for found in texts_of(child)]
    return [kind] if pa.types.is_string(kind) or pa.types.is_large_string(kind) else []


def test_13_text_is_large_string_in_bounded_groups(tmp_path: Path) -> None:
    runpy.run_path(str(case("13-string-column-over-2-GiB") / "small_check.py"))
    declared = [value for value in vars(schemas).values() if isinstance(value, pa.Schema)]
    assert len(declared) >= 5
    texts = [found for schema in declared for field in schema for found in texts_of(field.type)]
    assert texts and set(texts) == {pa.large_string()}
    # 120 MB of text in one row group of the input.
    table = pa.table({"prompt": ["Repeat."] * 120, "completion": ["x" * 1_000_000] * 120})
    pq.write_table(table, tmp_path / "wide.parquet", compression="zstd")
    rows = rows_of(tmp_path, tmp_path / "wide.parquet", max_reject_fraction=0.0)
    assert rows.num_rows == 120 and len(rows.parts) == 2
    for part in rows.parts:
        file = pq.ParquetFile(rows.path / part.name)
        assert file.schema_arrow == schemas.ROWS
        groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
        assert all(group.num_rows <= 1000 for group in groups)
        assert all(group.num_rows * 1_000_000 <= 64 << 20 for group in groups)


@pytest.mark.slow
def test_13_a_column_over_2_gib_is_read_whole(tmp_path: Path) -> None:
    folder = case("13-string-column-over-2-GiB")
    big = made(folder / "make_input.py", tmp_path / "big.parquet")
    sizes = [len(record.value["output"]) for record in read_file(big) if record.value is not None]
    assert sizes == [1_000_000] * 2200


def test_14_each_broken_line_is_a_reject_with_its_place(tmp_path: Path) -> None:
    folder = case("14-broken-lines")
    path = folder / "data.jsonl"
    rooms = through(tmp_path, path)
    assert rooms.kept == ["bom", "nan", "dupkey", "good"]
    assert rooms.reasons == {
        "line 4": ("rows", "not_json"),
        "line 5": ("rows", "not_json"),
        "line 6": ("rows", "not_an_object"),
        "line 9": ("rows", "not_json"),
        "line 11": ("rows", "not_json"),
    }
    raw = path.read_bytes()
    for reject in rooms.rejects:
        assert reject["file"] == "data.jsonl"
        assert reject["raw"] and raw[reject["byte_offset"] :].startswith(reject["raw"])
    rows = content(rooms.artifacts["rows"])
    # The documented rules: NaN is kept letter by letter, of a key given twice the last counts.
    assert json.loads(str(rows[1]["meta"])) == {"id": "nan", "score": "NaN"}
    assert rows[2]["messages"][0]["content"] == "two"  # type: ignore[index]


def test_14_too_many_stop_the_run_and_the_first_five_are_shown(tmp_path: Path) -> None:
    path = case("14-broken-lines") / "data.jsonl"
    fraction = RowsConfig().max_reject_fraction
    assert fraction == 0.01
    with pytest.raises(DataError, match=r"5 of 9 rows") as caught:
        rows_of(tmp_path, path, max_reject_fraction=fraction)
    assert str(caught.value).count("data.jsonl:") == 5
    with pytest.raises(DataError, match=r"data\.jsonl:4 not_json .*rows\.strict=true"):
        rows_of(tmp_path, path, strict=True)


def test_14_an_array_and_an_empty_file(tmp_path: Path) -> None:
    folder = case("14-broken-lines")
    assert through(tmp_path, folder / "array.json").kept == ["a"]
    with pytest.raises(DataError, match=r"empty\.jsonl is empty"):
        list(read_rows(str(folder / "empty.jsonl")))


def test_15_text_out_is_text_in(tmp_path: Path) -> None:
    path = case("15-non-ascii-must-survive-and-scores-must-not-default") / "data.jsonl"
    rooms = through(tmp_path, path)
    given = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rooms.kept == [row["id"] for row in given]
    for row, raw in zip(content(rooms.artifacts["rows"]), given, strict=True):
        assert row["messages"] == [
            {"role": "user", "content": raw["instruction"]},
            {"role": "assistant", "content": raw["output"]},
        ]
    tokenizer = encoder().tokenizer
    ids, labels = rooms.column("input_ids"), rooms.column("labels")
    for raw in given:
        text = tokenizer.decode(ids[raw["id"]])
        assert raw["instruction"] in text and raw["output"] in text
        trained = tokenizer.decode([label for label in labels[raw["id"]] if label != -100])
        assert trained == raw["output"] + tokenizer.eos_token


def test_15_rejects_are_utf8_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"instruction": "写", "output": "雨"}, {"instruction": "写诗", "output": ""}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (reject,) = through(tmp_path, path).rejects
    assert "写诗" in reject["raw"].decode() and b"\\u" not in reject["raw"]
