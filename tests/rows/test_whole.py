"""Real files of each format through rows and tokens: every row is kept or is a reject."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from tests.cases.rooms import through
from tests.rows.test_source import STRAIGHT

# Calls of tools that the tiny template does not write; of the other files every row is kept.
REJECTS = {
    "openai_messages/glaive_as_openai_tools.jsonl": {"template_cannot_render_tools": 100},
    "parquet/messages_tools_nulls.parquet": {"template_cannot_render_tools": 53},
}


@pytest.mark.parametrize("file", STRAIGHT)
def test_rows_in_are_rows_kept_and_rejects(formats: Path, tmp_path: Path, file: str) -> None:
    with (formats / "MANIFEST.tsv").open(encoding="utf-8") as stream:
        counts = {
            line["file"]: int(line["rows"]) for line in csv.DictReader(stream, delimiter="\t")
        }
    rooms = through(tmp_path, formats / file, max_length=4096, on_too_long="keep_answer")
    assert len(rooms.kept) + len(rooms.rejects) == counts[file]
    assert Counter(reject["reason"] for reject in rooms.rejects) == REJECTS.get(file, {})
    assert rooms.facts["rejects_by_reason"] == REJECTS.get(file, {})
    assert all(reject["raw"] and reject["line"] >= 1 for reject in rooms.rejects)
