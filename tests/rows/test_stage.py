import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contract.artifact import Artifact
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.schemas import REJECTS
from stages.contract.schemas import ROWS as SCHEMA
from stages.rows.reading import Reject, Row, read_rows
from stages.rows.stage import RowsConfig, RowsSettings, _parts, identity


def ask(n: int, **more: Any) -> dict[str, Any]:
    return {"instruction": f"I{n}", "output": f"O{n}", **more}


def column(artifact: Artifact, name: str) -> list[Any]:
    values: list[Any] = artifact.read([name])[name].to_pylist()
    return values


def rejects(artifact: Artifact) -> list[dict[str, Any]]:
    return pa.concat_tables(artifact.sides("rejects")).to_pylist()  # type: ignore[no-any-return]


def test_rows_come_out_as_the_contract_says(curate: Any, write_lines: Any) -> None:
    more = {"score": 1.5, "tags": ["é", None], "none": None, "source": "book"}
    path = write_lines("d/a.jsonl", [ask(0, id=7, **more), b"", ask(1, source={"site": "forum"})])
    artifact, receipts = curate(RowsConfig(path=str(path.parent)))
    table = pq.read_table(artifact.path / "part-00000.parquet")
    assert table.schema.equals(SCHEMA)
    first, second = table.to_pylist()
    meta = first.pop("meta")
    assert json.loads(meta) == {"id": 7, "score": 1.5, "tags": ["é", None], "source": "book"}
    assert "é" in meta
    assert first == {
        "row_id": 0,
        "source_file": "a.jsonl",
        "source_line": 1,
        "source": "book",
        "uid": "7",
        "messages": [
            {"role": "user", "content": "I0"},
            {"role": "assistant", "content": "O0"},
        ],
        "multiplicity": 1,
    }
    assert (second["row_id"], second["source_line"], second["source"]) == (1, 3, "a.jsonl")
    assert json.loads(second["meta"]) == {"source": {"site": "forum"}}
    canonical = b'[{"content":"I1","role":"user"},{"content":"O1","role":"assistant"}]'
    assert second["uid"] == hashlib.sha256(canonical).hexdigest()[:16]
    assert [receipt.rows for receipt in receipts] == [2]
    assert artifact.facts == {
        "files": ["a.jsonl"],
        "dialects": {"a.jsonl": "alpaca"},
        "read": 2,
        "kept": 2,
        "rejected": 0,
        "rejects_by_reason": {},
        "limit": 0,
    }
    assert rejects(artifact) == []


def test_rejects_are_kept_whole(curate: Any, write_lines: Any) -> None:
    bad = b'{"instruction": "\xff"}'
    path = write_lines("a.jsonl", [ask(0), bad, ask(1), ask(2, instruction=" "), [1]])
    artifact, _ = curate(RowsConfig(path=str(path), max_reject_fraction=1.0))
    assert column(artifact, "source_line") == [1, 3]
    assert artifact.facts["rejects_by_reason"] == {
        "empty_user_turn": 1,
        "not_an_object": 1,
        "not_utf8": 1,
    }
    assert artifact.facts["read"] == 5
    first, *_ = found = rejects(artifact)
    assert next(artifact.sides("rejects")).schema.equals(REJECTS)
    assert [(r["line"], r["reason"], r["row_id"], r["stage"]) for r in found] == [
        (2, "not_utf8", None, "rows"),
        (4, "empty_user_turn", None, "rows"),
        (5, "not_an_object", None, "rows"),
    ]
    assert first["raw"] == bad
    assert path.read_bytes()[first["byte_offset"] :].startswith(bad)


def test_rejects_are_written_in_bounded_tables(
    curate: Any, write_lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.rows.stage.REJECTS_PER_SIDE", 3)
    path = write_lines("a.jsonl", [ask(0), *[b"x"] * 7])
    artifact, _ = curate(RowsConfig(path=str(path), max_reject_fraction=1.0))
    assert [side.num_rows for side in artifact.sides("rejects")] == [3, 3, 1]
    assert [reject["line"] for reject in rejects(artifact)] == list(range(2, 9))


def test_too_many_rejects_stop_the_run(curate: Any, write_lines: Any, tmp_path: Path) -> None:
    path = write_lines("a.jsonl", [ask(n) for n in range(93)] + [b"{"] * 7)
    with pytest.raises(DataError) as caught:
        curate(RowsConfig(path=str(path)))
    message = str(caught.value)
    assert "7 of 100 rows cannot be used (not_json 7)" in message
    assert "rows.max_reject_fraction=0.01 allows" in message
    assert "a.jsonl:98 not_json" in message and "a.jsonl:99" not in message
    assert message.endswith("rows.max_reject_fraction=0.07")
    file = tmp_path / "store" / "rows" / "k.partial" / "rejects-00000.parquet"
    assert str(file) in message
    assert pq.read_table(file).num_rows == 7
    artifact, _ = curate(RowsConfig(path=str(path), max_reject_fraction=0.07))
    assert artifact.num_rows == 93


def test_strict_stops_at_the_first(curate: Any, write_lines: Any) -> None:
    path = write_lines("a.jsonl", [ask(0), ask(1, output=3), b"x"])
    with pytest.raises(DataError, match=r"a.jsonl:2 not_text .*rows.strict=true"):
        curate(RowsConfig(path=str(path), strict=True, max_reject_fraction=1.0))


def test_nothing_good_is_an_error(curate: Any, write_lines: Any) -> None:
    path = write_lines("a.jsonl", [b"x", b"y"])
    with pytest.raises(DataError, match=r"2 of 2 rows cannot be used .* none is left"):
        curate(RowsConfig(path=str(path), max_reject_fraction=1.0))
    for content in ([], [b"", b"  "]):
        empty = write_lines("empty.jsonl", content)
        with pytest.raises(DataError, match=r"empty.jsonl is empty"):
            curate(RowsConfig(path=str(empty)))


def test_limit_is_a_seeded_sample_in_file_order(curate: Any, write_lines: Any) -> None:
    path = write_lines("a.jsonl", [ask(n) for n in range(200)] + [b"x"])
    runs = []
    for store, seed in (("a", 0), ("b", 0), ("c", 1)):
        artifact, _ = curate(RowsConfig(path=str(path), limit=20, seed=seed), store=store)
        lines = column(artifact, "source_line")
        assert len(lines) == 20 and lines == sorted(set(lines))
        assert column(artifact, "row_id") == list(range(20))
        assert (artifact.facts["read"], artifact.facts["kept"]) == (201, 20)
        assert len(rejects(artifact)) == 1
        runs.append(lines)
    assert runs[0] == runs[1] != runs[2]
    artifact, _ = curate(RowsConfig(path=str(path), limit=1000), store="d")
    assert artifact.num_rows == 200


def test_same_bytes_from_any_name_of_the_folder(curate: Any, write_lines: Any) -> None:
    digests = []
    for folder in ("x", "y"):
        path = write_lines(f"{folder}/a.jsonl", [ask(n) for n in range(50)])
        artifact, _ = curate(RowsConfig(path=str(path), rows_per_part=20), store=folder)
        assert [part.stop for part in artifact.parts] == [20, 40, 50]
        digests.append([part["sha256"] for part in artifact.manifest["parts"]])
    assert digests[0] == digests[1]


def test_a_killed_run_leaves_nothing_behind(curate: Any, write_lines: Any, tmp_path: Path) -> None:
    left = tmp_path / "store" / "rows" / "k.partial"
    left.mkdir(parents=True)
    (left / "part-00007.parquet").write_text("half")
    artifact, _ = curate(RowsConfig(path=str(write_lines("a.jsonl", [ask(0)]))))
    assert sorted(os.listdir(artifact.path)) == [
        "manifest.json",
        "part-00000.parquet",
        "rejects-00000.parquet",
    ]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 9), st.integers(1, 90))
def test_parts_keep_both_bounds(sizes: list[int], max_rows: int, max_bytes: int) -> None:
    config = RowsConfig(rows_per_part=max_rows, bytes_per_part=max_bytes)
    rows = [
        Row("f", n, "s", "u", [{"role": "user", "content": "x" * size}], "", "alpaca")
        for n, size in enumerate(sizes)
    ]
    parts = list(_parts(iter(rows), config))
    assert [row for _, part in parts for row in part] == rows
    assert [spec.start for spec, _ in parts] == [0] + [spec.stop for spec, _ in parts[:-1]]
    for spec, part in parts:
        num_bytes = sum(len(row.messages[0]["content"]) for row in part)
        assert spec.stop - spec.start == len(part) <= max_rows
        assert num_bytes <= max_bytes or len(part) == 1


def test_identity_follows_bytes_and_settings_but_not_the_path(
    write_lines: Any, tmp_path: Path
) -> None:
    def key(path: Path, **settings: Any) -> str:
        config = RowsConfig(path=str(path), **settings)
        facts = identity(RowsSettings(config, tmp_path / "hashes"))
        assert facts["class"] == "RowsConfig" and "path" not in facts
        return json.dumps(facts)

    first = write_lines("x/a.jsonl", [ask(0)])
    same = write_lines("y/a.jsonl", [ask(0)])
    assert key(first) == key(same) == key(first.parent)
    assert key(first) != key(first, limit=5)
    assert key(first) != key(write_lines("x/b.jsonl", [ask(0)]))
    before = key(same)
    write_lines("y/a.jsonl", [ask(1)])
    assert key(same) != before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dialect": "alpca"}, r"rows.dialect=alpca .*Did you mean rows.dialect=alpaca"),
        ({"limit": -1}, r"rows.limit=-1 must be >= 0"),
        ({"max_reject_fraction": 1.5}, r"rows.max_reject_fraction=1.5 must lie in \[0, 1\]"),
        ({"rows_per_part": 0}, r"rows.rows_per_part=0 must be >= 1"),
        ({"bytes_per_part": 0}, r"rows.bytes_per_part=0"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RowsConfig(**settings)


def test_the_choice_of_dialect_is_said_once(
    curate: Any, write_lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("d/a.jsonl", "d/b.jsonl"):
        path = write_lines(name, [ask(0, input="x")])
    write_lines("d/c.jsonl", [{"question": "Q", "answer": "A"}])
    artifact, _ = curate(RowsConfig(path=str(path.parent), limit=2))
    lines = [record.getMessage() for record in caplog.records if " is " in record.getMessage()]
    assert lines == [
        "rows: a.jsonl is alpaca (instruction, input, output)",
        "rows: c.jsonl is question_answer (question, answer)",
    ]
    assert artifact.facts["dialects"]["c.jsonl"] == "question_answer"


def test_a_padded_row_equals_the_unpadded_one(write_lines: Any, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]},
        {
            "messages": [
                {"role": "user", "content": "U"},
                {"role": "assistant", "tool_calls": [{"name": "f"}]},
            ],
            "tools": "[]",
        },
    ]
    path = write_lines("a.jsonl", rows)
    table = pa.Table.from_pylist(
        [{"tools": None, **row} for row in rows],
        schema=pa.schema(
            [
                ("tools", pa.string()),
                (
                    "messages",
                    pa.list_(
                        pa.struct(
                            [
                                ("role", pa.string()),
                                ("content", pa.string()),
                                ("tool_calls", pa.list_(pa.struct([("name", pa.string())]))),
                            ]
                        )
                    ),
                ),
            ]
        ),
    )
    pq.write_table(table, tmp_path / "a.parquet")
    plain = [r for r in read_rows(str(path)) if isinstance(r, Row)]
    padded = read_rows(str(tmp_path / "a.parquet"))
    for one, other in zip(plain, padded, strict=True):
        assert isinstance(other, Row)
        assert (one.uid, one.messages) == (other.uid, other.messages)
        assert json.loads(one.meta) == json.loads(other.meta)


def test_meta_is_json_whatever_a_column_holds(tmp_path: Path) -> None:
    table = pa.table(
        {
            "question": ["Q", "Q"],
            "answer": ["A", "A"],
            "score": [float("nan"), 1.0],
            "day": pa.array([0, 1], pa.date32()),
            "blob": [b"\xff", b"text"],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    first, second = read_rows(str(tmp_path / "a.parquet"))
    assert isinstance(first, Row) and isinstance(second, Row)
    assert json.loads(first.meta) == {"score": "NaN", "day": "1970-01-01", "blob": "/w=="}
    assert json.loads(second.meta) == {"score": 1.0, "day": "1970-01-02", "blob": "text"}


def test_broken_lines_of_the_case(cases: Path) -> None:
    out = list(read_rows(str(cases / "14-broken-lines" / "data.jsonl")))
    assert [row.uid for row in out if isinstance(row, Row)] == ["bom", "nan", "dupkey", "good"]
    bad = [(item.line, item.reason) for item in out if isinstance(item, Reject)]
    assert bad == [
        (4, "not_json"),
        (5, "not_json"),
        (6, "not_an_object"),
        (9, "not_json"),
        (11, "not_json"),
    ]
    (row,) = read_rows(str(cases / "14-broken-lines" / "array.json"))
    assert isinstance(row, Row) and row.uid == "a"


def test_null_contents_of_the_case(cases: Path) -> None:
    path = cases / "03-null-content-and-padded-keys" / "data.jsonl"
    out = list(read_rows(str(path)))
    tool, padded, null_user, null_answer, literal = out
    assert isinstance(tool, Row) and "None" not in str(tool.messages)
    assert isinstance(padded, Row) and json.loads(padded.meta) == {"id": "padded"}
    assert isinstance(null_user, Reject) and null_user.reason == "empty_user_turn"
    assert isinstance(null_answer, Row) and null_answer.messages[1]["content"] == ""
    assert isinstance(literal, Row) and literal.messages[1]["content"] == "None"


def test_late_fields_csv_and_scripts_of_the_cases(cases: Path) -> None:
    late = cases / "04-field-null-for-the-first-blocks" / "small.jsonl"
    *_, last = read_rows(str(late))
    assert isinstance(last, Row) and last.messages[0]["content"] == "Echo.\n\nloudly"
    folder = cases / "10-csv-with-newlines-and-quotes"
    rows = [r for r in read_rows(str(folder / "data.csv")) if isinstance(r, Row)]
    assert rows[3].messages[0]["content"].endswith("007")
    assert rows[3].messages[1]["content"] == "1e5"
    assert rows[4].messages[0]["content"].endswith("NA")
    assert rows[4].messages[1]["content"] == ""
    semicolons = list(read_rows(str(folder / "bom-semicolon.csv")))
    assert [r.messages for r in semicolons if isinstance(r, Row)] == [r.messages for r in rows[:3]]
    scripts = cases / "15-non-ascii-must-survive-and-scores-must-not-default" / "data.jsonl"
    first, *_ = read_rows(str(scripts))
    assert isinstance(first, Row) and first.messages[1]["content"].startswith("雨落青瓦")
