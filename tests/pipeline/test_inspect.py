import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.inspect import lineage, main
from stages.contract.errors import ConfigurationError
from tests.artifacts import rows_table, save
from tests.conftest import ROOT


@pytest.fixture
def screen_folder(tmp_path: Path) -> Path:
    rows = save(tmp_path, "rows", rows_table(3), params={"path": "a\x1b[31m", "deep": {"x": 1}})
    screen = rows_table(3).select(["row_id"])
    return save(tmp_path, "screen", screen, parent=rows, params={"ngram": 13}).path


def test_an_artifact_tells_what_it_was_made_from(screen_folder: Path) -> None:
    text = lineage(screen_folder)
    rows_key = next((screen_folder.parent.parent / "rows").iterdir()).name
    assert text.index(f"screen {screen_folder.name} (version 1)") < text.index(f"rows {rows_key}")
    assert f"from      rows {rows_key}" in text
    assert "setting   ngram=13" in text and "setting   deep.x=1" in text
    assert "holds     3 rows in 1 parts" in text
    assert "\x1b" not in text


def test_an_input_that_was_deleted_is_named(screen_folder: Path) -> None:
    [rows] = (screen_folder.parent.parent / "rows").iterdir()
    rows.rename(rows.with_name("away"))
    assert f"rows {rows.name}: no longer in" in lineage(screen_folder)


def write_manifest(out: Path, screen_folder: Path, store: str) -> Path:
    """Write what a published folder says of itself."""
    out.mkdir()
    manifest = {
        "format": "evenshard-shards",
        "name": "n",
        "rows": 2,
        "world_size": 1,
        "asked": "a",
        "got": "g",
        "overrides": ["name=n"],
        "settings": {"store": store},
        "keys": {"screen": screen_folder.name},
    }
    (out / "manifest.json").write_text(json.dumps(manifest))
    return out


def test_a_published_folder_tells_its_stages(screen_folder: Path, tmp_path: Path) -> None:
    out = write_manifest(tmp_path / "out", screen_folder, str(screen_folder.parent.parent))
    text = lineage(out)
    assert "the set n, 2 rows for 1 workers" in text
    assert "overrides name=n" in text
    assert f"screen {screen_folder.name}" in text and "\nrows " in text


@pytest.mark.parametrize("given", [False, True])
def test_a_store_on_a_url_is_read_where_the_set_or_the_user_says(
    screen_folder: Path, tmp_path: Path, given: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    store = screen_folder.parent.parent
    url = f"file://{store}"
    out = write_manifest(tmp_path / "out", screen_folder, "elsewhere" if given else url)
    assert main([str(out), *([url] if given else [])]) == 0
    told = capsys.readouterr().out
    assert "no longer in" not in told and "\nrows " in told
    assert main([f"{url}/screen/{screen_folder.name}"]) == 0
    assert capsys.readouterr().out == lineage(screen_folder).replace(str(screen_folder), "") + "\n"


def test_a_store_that_nobody_answers_for_and_another_version_are_one_sentence(
    screen_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = write_manifest(tmp_path / "out", screen_folder, "gopher://store")
    assert main([str(out)]) == 2
    assert "store=gopher://store cannot be reached" in capsys.readouterr().err
    (out / "manifest.json").write_text('{"format": "evenshard-shards", "format_version": 2}')
    assert main([str(out)]) == 2
    assert "has format_version=2, this evenshard reads 1" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{}", "[]", "no json", None])
def test_a_folder_that_is_not_ours_is_an_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"manifest\.json"):
        lineage(tmp_path)
    assert main([str(tmp_path)]) == 2


def test_the_command_line(screen_folder: Path) -> None:
    command = [sys.executable, "-m", "pipeline.inspect", str(screen_folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == lineage(screen_folder) + "\n"
    assert main([]) == 2 and main(["--help"]) == 0
