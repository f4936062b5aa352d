"""Tools that a row describes are in its text, or the row is among the changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tokens.samples import rows_artifact, turns
from tests.tokens.test_render import TOOLS, render
from tests.tokens.test_stage import run_stage, settings_of

TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
CALLS = [{"type": "function", "function": {"name": "add", "arguments": {}}}]
SAID = turns("What is 2 + 2?", "Which numbers do you mean?")
WITHOUT = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"


def meta_of(tools: Any, calls: bool) -> str:
    called = [SAID[0], {**SAID[1], "tool_calls": CALLS}]
    return json.dumps({"tools": tools, **({"messages": called} if calls else {})})


@pytest.mark.parametrize("calls", [True, False])
@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL])], ids=["list", "text"])
def test_they_are_described_whether_or_not_one_is_called(tools: Any, calls: bool) -> None:
    found = render(TOOLS, SAID, meta_of(tools, calls))
    assert found.text.startswith("TOOLS 1\n") and not found.tools_left_out
    assert ("CALL add" in found.text) == calls
    [span] = found.spans
    assert "TOOLS" not in found.text[slice(*span)]


@pytest.mark.parametrize("tools", [[], "[]", None], ids=repr)
def test_none_are_none(tools: Any) -> None:
    found = render(TOOLS, SAID, meta_of(tools, False))
    assert "TOOLS" not in found.text and not found.tools_left_out
    assert not render(WITHOUT, SAID, meta_of(tools, False)).tools_left_out


@pytest.mark.parametrize(
    ("source", "tools"), [(WITHOUT, [TOOL]), (TOOLS, "search"), (WITHOUT, "search")]
)
def test_what_is_not_described_is_told(source: str, tools: Any) -> None:
    found = render(source, SAID, meta_of(tools, False))
    assert found.tools_left_out and "TOOLS" not in found.text


def test_rows_without_their_tools_are_among_the_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template = tmp_path / "t.jinja"
    template.write_text(WITHOUT, encoding="utf-8")
    rows = rows_artifact(tmp_path, [{"messages": SAID}, {"messages": SAID, "tools": [TOOL]}])
    tokens = run_stage(tmp_path, rows, settings_of(template=str(template)))
    assert tokens.facts["tools_left_out"] == 1
    [changes] = tokens.sides("changes-")
    assert [(line["row_id"], line["change"]) for line in changes.to_pylist()] == [
        (1, "tools_left_out")
    ]
    assert "1 of the 2 rows describe tools that their text does not" in caplog.text
