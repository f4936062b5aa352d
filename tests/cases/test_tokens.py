"""Cases of the tokens room: prompts that fill the window, nulls, refused roles, one giant row."""

from pathlib import Path

import pytest

from stages.contract.errors import DataError
from tests.cases.rooms import case, made, through
from tests.tiny import EOS
from tests.tokens.samples import encoder
from tests.tokens.test_render import TOOLS


def trained(labels: list[int]) -> str:
    text: str = encoder().tokenizer.decode([label for label in labels if label != -100])
    return text


def test_01_rows_without_supervised_tokens_are_rejected_with_their_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = case("01-prompt-fills-window") / "data.jsonl"
    rooms = through(tmp_path, path, max_length=256)
    assert rooms.kept == ["ok-1", "half-cut"]
    assert rooms.reasons == {
        "window-full": ("tokens", "no_supervised_tokens"),
        "empty-answer": ("tokens", "no_supervised_tokens"),
    }
    for reject in rooms.rejects:
        assert reject["file"] == "data.jsonl" and reject["line"] > 1
        assert "before and 0 after truncation" in reject["detail"]
    assert rooms.facts["truncated"] == 1
    assert 0 < rooms.facts["truncated_kept_share"] < 1
    assert min(rooms.column("num_targets").values()) > 0
    (line,) = [m for m in caplog.messages if m.startswith("tokens: 2 rows kept, 2 rejected")]
    assert "'no_supervised_tokens': 2" in line and "1 truncated" in line
    saved = through(tmp_path / "b", path, max_length=256, on_too_long="keep_answer")
    assert saved.kept == ["ok-1", "window-full", "half-cut"]
    with pytest.raises(DataError, match=r"tokens\.max_reject_fraction=0\.1"):
        through(tmp_path / "c", path, max_length=256, max_reject_fraction=0.1)


def test_03_nulls_are_no_text(tmp_path: Path) -> None:
    path = case("03-null-content-and-padded-keys") / "data.jsonl"
    rooms = through(tmp_path, path)
    assert rooms.kept == ["padded", "literal-none"]
    assert rooms.reasons == {
        "line 3": ("rows", "empty_user_turn"),
        "tool": ("tokens", "template_cannot_render_tools"),
        "null-answer": ("tokens", "no_supervised_tokens"),
    }
    assert trained(rooms.column("labels")["literal-none"]) == "None" + EOS
    for name, ids in rooms.column("input_ids").items():
        text = encoder().tokenizer.decode(ids)
        assert text.count("None") == (1 if name == "literal-none" else 0)
    unpadded = tmp_path / "unpadded.jsonl"
    unpadded.write_text(
        '{"id": "padded", "messages": [{"role": "user", "content": "Hi"},'
        ' {"role": "assistant", "content": "Hello."}]}\n'
    )
    alone = through(tmp_path / "b", unpadded)
    columns = ["uid", "messages", "meta"]
    padded = rooms.artifacts["rows"].read(columns).slice(1, 1)
    assert padded.to_pylist() == alone.artifacts["rows"].read(columns).to_pylist()
    assert rooms.column("input_ids")["padded"] == alone.column("input_ids")["padded"]


def test_03_a_template_that_writes_tools_takes_the_tool_call(tmp_path: Path) -> None:
    template = tmp_path / "tools.jinja"
    template.write_text(TOOLS, encoding="utf-8")
    path = case("03-null-content-and-padded-keys") / "data.jsonl"
    rooms = through(tmp_path, path, template=str(template))
    assert rooms.kept == ["tool", "padded", "literal-none"]
    labels = rooms.column("labels")["tool"]
    assert trained(labels) == f"CALL weather{EOS}It is 4 degrees.{EOS}"


ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."


def test_05_every_row_has_an_outcome(tmp_path: Path) -> None:
    folder = case("05-template-refuses-roles")
    template = str(folder / "template-no-system.jinja")
    rooms = through(tmp_path, folder / "data.jsonl", template=template)
    assert rooms.kept == ["plain", "system", "two-users", "ends-user", "sharegpt-roles"]
    assert rooms.reasons == {
        "starts-assistant": ("tokens", "template_error"),
        "unknown-role": ("tokens", "template_error"),
    }
    assert all(ALTERNATE in reject["detail"] for reject in rooms.rejects)
    assert rooms.changes == [
        ("system", "merge_system"),
        ("two-users", "join_turns"),
        ("ends-user", "trailing_user_dropped"),
    ]
    assert rooms.facts["mended"] == {"join_turns": 1, "merge_system": 1}
    assert rooms.facts["trailing_user_dropped"] == 1
    assert rooms.facts["rejects_by_reason"] == {"template_error": 2}
    decoded = {
        name: encoder().tokenizer.decode(ids) for name, ids in rooms.column("input_ids").items()
    }
    assert "<turn>user\nAnswer in French.\n\nHi</turn>" in decoded["system"]
    assert "<turn>user\nHi\n\nAre you there?</turn>" in decoded["two-users"]
    assert "Bye" not in decoded["ends-user"]
    assert decoded["sharegpt-roles"] == decoded["plain"]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("reject", ["plain", "ends-user", "sharegpt-roles"]),
        ("merge_system", ["plain", "system", "ends-user", "sharegpt-roles"]),
        ("join_turns", ["plain", "two-users", "ends-user", "sharegpt-roles"]),
        (
            "skip_turn",
            ["plain", "system", "two-users", "starts-assistant", "ends-user", "sharegpt-roles"],
        ),
    ],
)
def test_05_each_policy_alone(tmp_path: Path, policy: str, kept: list[str]) -> None:
    folder = case("05-template-refuses-roles")
    template = str(folder / "template-no-system.jinja")
    rooms = through(tmp_path, folder / "data.jsonl", template=template, on_template_error=policy)
    assert rooms.kept == kept
    assert set(rooms.kept) | set(rooms.reasons) == set(rooms.ids)


def test_05_a_template_that_takes_all_roles_changes_nothing(tmp_path: Path) -> None:
    rooms = through(tmp_path, case("05-template-refuses-roles") / "data.jsonl")
    assert rooms.facts["mended"] == {}
    assert rooms.reasons == {"unknown-role": ("tokens", "unknown_role")}


def test_17_one_giant_row_is_cut_or_rejected_before_the_model(tmp_path: Path) -> None:
    script = case("17-one-very-long-row") / "make_input.py"
    path = made(script, tmp_path / "long.jsonl")
    short = [f"s{n}" for n in range(63)]
    cut = through(tmp_path / "a", path, max_length=512)
    assert cut.kept == [*short, "giant", "no-space"]
    assert max(cut.column("num_tokens").values()) == 512
    assert cut.facts["truncated"] == 2 and cut.facts["max_length_seen"] > 100_000
    out = through(tmp_path / "b", path, max_length=512, on_too_long="reject")
    assert out.kept == short
    assert out.reasons == {"giant": ("tokens", "too_long"), "no-space": ("tokens", "too_long")}
    assert out.column("input_ids") == {name: cut.column("input_ids")[name] for name in short}
