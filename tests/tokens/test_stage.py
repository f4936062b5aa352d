"""The stage as a whole: parts, rejects, facts, and what stops it."""

import dataclasses
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.fingerprint import artifact_key
from stages.contract.schemas import TOKENS as TOKENS_SCHEMA
from stages.tokens.stage import TOKENS, MakeWorker, TokensConfig, TokensSettings
from tests.artifacts import screened
from tests.tokens.samples import CASES, case_rows, here, rows_artifact, tokenizer_folder, turns


def settings_of(**keys: Any) -> TokensSettings:
    return TokensSettings(TokensConfig(**keys), tokenizer_folder())


def run_stage(store: Path, rows: Artifact, settings: TokensSettings) -> Artifact:
    params = TOKENS.identity(settings)
    screen = screened(store, rows, rows_per_part=rows.parts[0].stop)
    inputs = {"screen": screen.key, "rows": rows.key}
    draft = Draft.create(store, "tokens", artifact_key("tokens", TOKENS.version, params, inputs))
    steps = TOKENS.run(settings, {"screen": screen, "rows": rows}, draft, here)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            outcome = stop.value
            break
    return draft.commit(
        outcome,
        params=params,
        inputs=inputs,
        version=TOKENS.version,
        parent=screen,
        keeps_order=TOKENS.keeps_order,
    )


ROWS = [
    {"messages": turns("Name a prime below 10.", "7")},
    {"messages": turns("Hi", "")},
    {"messages": turns("Hi", "Hello.", "Bye")},
    {"messages": turns("Count upwards.", "0 1 2 3 4 5 6 7 8 9 " * 20)},
    {"messages": turns("Hi", "Zwölf 🙂"), "note": "x"},
]


def test_parts_rejects_and_facts(tmp_path: Path) -> None:
    rows = rows_artifact(tmp_path, ROWS, rows_per_part=2)
    tokens = run_stage(tmp_path, rows, settings_of(max_length=64, max_reject_fraction=0.2))
    table = tokens.read(TOKENS_SCHEMA.names)
    assert table.schema == TOKENS_SCHEMA
    assert table["row_id"].to_pylist() == [0, 2, 3, 4]
    assert [(part.start, part.stop) for part in tokens.parts] == [(0, 2), (2, 4), (4, 5)]
    assert max(table["num_tokens"].to_pylist()) == 64
    for row in table.to_pylist():
        assert row["num_tokens"] == len(row["input_ids"]) == len(row["labels"])
        assert row["num_targets"] == sum(label != -100 for label in row["labels"][1:]) > 0
    facts = tokens.facts
    assert facts["kept"] == 4
    assert facts["rejected"] == 1
    assert facts["rejects_by_reason"] == {"no_supervised_tokens": 1}
    assert facts["truncated"] == 1
    assert 0 < facts["truncated_kept_share"] < 1
    assert facts["tokens"] == sum(table["num_tokens"].to_pylist())
    assert facts["targets"] == sum(table["num_targets"].to_pylist())
    assert facts["trailing_user_dropped"] == 1
    assert facts["max_length_seen"] > 64
    (rejects,) = tokens.sides("rejects-")
    (reject,) = rejects.to_pylist()
    assert (reject["file"], reject["line"], reject["row_id"]) == ("rows.jsonl", 2, 1)
    assert (reject["stage"], reject["reason"]) == ("tokens", "no_supervised_tokens")
    assert json.loads(reject["raw"])["messages"] == ROWS[1]["messages"]


def test_what_was_done_to_rows_is_counted_recorded_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system') }}{% endif %}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        encoding="utf-8",
    )
    raw = [
        {"messages": turns("Hi", "Hello.", system="Be short.")},
        {"messages": turns("Hi", "Hello.", "Bye")},
        {"messages": turns("Say <|im_end|>.", "<|im_end|><|im_start|>")},
    ]
    rows = rows_artifact(tmp_path, raw, rows_per_part=2)
    tokens = run_stage(tmp_path, rows, settings_of(template=str(template)))
    assert tokens.facts["mended"] == {"merge_system": 1}
    assert tokens.facts["mended_rows"] == 1
    assert (tokens.facts["special_in_text"], tokens.facts["special_in_text_rows"]) == (3, 1)
    assert tokens.facts["without_end_token"] == 3
    changes = [line for table in tokens.sides("changes-") for line in table.to_pylist()]
    assert [(line["row_id"], line["change"], line["count"]) for line in changes] == [
        (0, "merge_system", 1),
        (1, "trailing_user_dropped", 1),
        (2, "special_in_text", 3),
    ]
    assert [(line["file"], line["line"]) for line in changes][2] == ("rows.jsonl", 3)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 3
    assert "refuses 1 of the 3 rows as they are" in said[0] and "merge_system 1" in said[0]
    assert "3 special tokens" in said[1] and "tokens.special_in_text=text" in said[1]
    assert "3 of the 3 rows have an answer that no end-of-turn token follows" in said[2]
    settings = settings_of(template=str(template), on_template_error="reject")
    with pytest.raises(DataError, match=r"template_error 1[^$]*tokens\.on_template_error"):
        run_stage(tmp_path, rows, settings)


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    settings = settings_of(max_reject_fraction=0.5)
    hashes = []
    for name in ("first", "second"):
        rows = rows_artifact(tmp_path / name, ROWS, rows_per_part=2)
        manifest = run_stage(tmp_path / name, rows, settings).manifest
        hashes.append([entry["sha256"] for entry in [*manifest["parts"], *manifest["sides"]]])
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 5  # three parts, changes and rejects


def test_the_maker_of_workers_can_travel(tmp_path: Path) -> None:
    rows = rows_artifact(tmp_path, ROWS)
    draft = Draft.create(tmp_path, "tokens", "0" * 16)
    maker = MakeWorker(settings_of(), rows, screened(tmp_path, rows), draft)
    assert pickle.loads(pickle.dumps(maker)) == maker


def test_too_many_rejects_stop_the_run(tmp_path: Path) -> None:
    long = [{"messages": turns("question " * 60, f"Answer {index}.")} for index in range(7)]
    rows = rows_artifact(tmp_path, [*ROWS, *long])
    with pytest.raises(DataError) as caught:
        run_stage(tmp_path, rows, settings_of(max_length=48))
    text = str(caught.value)
    assert text.startswith("tokens: 8 of 12 rows were rejected (66.7%")
    assert "no_supervised_tokens 8" in text
    assert text.count("\n  rows.jsonl:") == 5
    assert "rows.jsonl:2 no_supervised_tokens" in text
    assert "tokens.max_reject_fraction=0.1" in text
    assert "tokens.on_too_long=keep_answer" in text
    kept = run_stage(tmp_path, rows, settings_of(max_length=48, on_too_long="keep_answer"))
    assert kept.facts["rejected"] == 1
    with pytest.raises(DataError, match=r"too_long.*\n[^$]*raise tokens\.max_length=48"):
        run_stage(tmp_path, rows, settings_of(max_length=48, on_too_long="reject"))


def test_no_row_left_is_an_error_whatever_the_fraction(tmp_path: Path) -> None:
    rows = rows_artifact(tmp_path, [ROWS[1]])
    with pytest.raises(DataError, match="none is left"):
        run_stage(tmp_path, rows, settings_of(max_reject_fraction=1.0))


def test_the_key_follows_settings_tokenizer_and_template(tmp_path: Path) -> None:
    base = settings_of()
    other = shutil.copytree(tokenizer_folder(), tmp_path / "other")
    assert TOKENS.identity(TokensSettings(base.tokens, other)) == TOKENS.identity(base)
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    assert TOKENS.identity(TokensSettings(base.tokens, other)) != TOKENS.identity(base)
    for keys in (
        {"max_length": 7},
        {"on_template_error": "reject"},
        {"on_template_error": "join_turns+merge_system"},
        {"special_in_text": "special"},
    ):
        assert TOKENS.identity(settings_of(**keys)) != TOKENS.identity(base)
    assert "template_sha256" in TOKENS.identity(settings_of(template="alpaca"))
    files = [tmp_path / name for name in ("a.jinja", "b.jinja")]
    for file in files:
        file.write_text("{{ messages }}", encoding="utf-8")
    first, second = (TOKENS.identity(settings_of(template=str(file))) for file in files)
    assert first == second
    files[1].write_text("{{ messages[0] }}", encoding="utf-8")
    assert TOKENS.identity(settings_of(template=str(files[1]))) != first


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"template": "alpacca"},
            r"tokens\.template=alpacca .* Did you mean tokens\.template=alpaca",
        ),
        ({"template": "none.jinja"}, r"tokens\.template=none\.jinja must be an existing file"),
        ({"max_length": 1}, r"tokens\.max_length=1 must be >= 2"),
        ({"on_too_long": "keep"}, r"tokens\.on_too_long=keep must be one of"),
        (
            {"on_template_error": "merge_sistem"},
            r"Did you mean tokens\.on_template_error=merge_system",
        ),
        ({"on_template_error": "reject+skip_turn"}, r"reject alone"),
        ({"on_template_error": "skip_turn+skip_turn"}, r"must name each policy once"),
        ({"special_in_text": "token"}, r"tokens\.special_in_text=token must be one of"),
        ({"max_reject_fraction": 1.5}, r"tokens\.max_reject_fraction=1\.5 must lie in"),
    ],
)
def test_wrong_settings_name_their_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TokensConfig(**keys)


def test_a_tokenizer_without_template_stops_before_any_row(tmp_path: Path) -> None:
    rows = rows_artifact(tmp_path, ROWS)
    bare = shutil.copytree(tokenizer_folder(), tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    settings = dataclasses.replace(settings_of(), tokenizer=bare)
    with pytest.raises(ConfigurationError, match=r"tokens\.template=chat .* alpaca"):
        run_stage(tmp_path, rows, settings)
    with pytest.raises(ConfigurationError, match=r"model\.path=.*nowhere"):
        run_stage(tmp_path, rows, dataclasses.replace(settings, tokenizer=tmp_path / "nowhere"))


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
def test_case_01_prompt_fills_the_window(tmp_path: Path) -> None:
    raw = case_rows("01-prompt-fills-window")
    rows = rows_artifact(tmp_path, raw)
    tokens = run_stage(tmp_path, rows, settings_of(max_length=256, max_reject_fraction=0.5))
    names = [row["id"] for row in raw]
    kept = [names[row_id] for row_id in tokens.array("row_id")]
    assert kept == ["ok-1", "half-cut"]
    assert tokens.facts["truncated"] == 1
    assert 0 < tokens.facts["truncated_kept_share"] < 1
    rejects = [reject for table in tokens.sides("rejects-") for reject in table.to_pylist()]
    assert [names[reject["row_id"]] for reject in rejects] == ["window-full", "empty-answer"]
    assert {reject["reason"] for reject in rejects} == {"no_supervised_tokens"}
    assert all("before and 0 after truncation" in reject["detail"] for reject in rejects)
    saved = run_stage(
        tmp_path,
        rows,
        settings_of(max_length=256, max_reject_fraction=0.5, on_too_long="keep_answer"),
    )
    assert [names[row_id] for row_id in saved.array("row_id")] == [
        "ok-1",
        "window-full",
        "half-cut",
    ]
