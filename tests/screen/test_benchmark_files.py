"""Files of test sets: none that was asked for is left out without a word."""

import logging
from pathlib import Path

import pytest

from stages.contract.errors import ConfigurationError
from stages.screen.reading import find_benchmarks
from tests.screen.samples import benchmark


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of one file that can be read."""
    (tmp_path / "bench").mkdir()
    benchmark(tmp_path / "bench" / "known.jsonl", {"q": "text"})
    return tmp_path / "bench"


def names(*patterns: str | Path) -> list[str]:
    return [file.name for file in find_benchmarks([str(pattern) for pattern in patterns])]


UNKNOWN = ["test.txt", "mmlu.zip", "known.jsonl.gz.part", "noending", "test.parquet.gz"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_file_among_known_ones_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("a question")
    for patterns in (
        [folder / "*"],
        [folder / "**"],
        [folder.parent / "**" / "*"],
        [folder / "known.jsonl", folder / "*"],
    ):
        with pytest.raises(ConfigurationError, match=rf"screen\.benchmarks=.*{name}, too, whose"):
            find_benchmarks([str(pattern) for pattern in patterns])
    with pytest.raises(ConfigurationError, match=rf"{name} has no known format"):
        names(folder / "known.jsonl", folder / name)
    assert names(folder / "*.jsonl") == ["known.jsonl"]


def test_all_unknown_files_are_named(folder: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (folder / name).write_text("a question")
    with pytest.raises(ConfigurationError, match=r"means a\.txt, b\.txt, too"):
        names(folder / "*")


def test_readmes_are_left_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("README.md", "LICENSE"):
        (folder / name).write_text("about it")
    assert names(folder / "*") == ["known.jsonl"]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "not held against LICENSE, README.md" in record.getMessage()


def test_a_folder_is_refused_or_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigurationError, match="bench is a folder; give files or globs"):
        names(folder)
    with pytest.raises(ConfigurationError, match="means folders only; give files or globs"):
        names(folder.parent / "*")
    (folder / "mmlu").mkdir()
    benchmark(folder / "mmlu" / "test.jsonl", {"q": "text"})
    assert names(folder / "*") == ["known.jsonl"]
    [record] = caplog.records
    assert "not held against mmlu" in record.getMessage()
    caplog.clear()
    assert names(folder / "**" / "*") == ["known.jsonl", "test.jsonl"]
    assert not caplog.records


def test_a_link_that_leads_nowhere_is_refused(folder: Path) -> None:
    (folder / "lost.jsonl").symlink_to(folder / "none.jsonl")
    for pattern in (folder / "*", folder / "lost.jsonl"):
        with pytest.raises(ConfigurationError, match=r"means .*, a link that leads nowhere"):
            names(pattern)


def test_a_file_is_looked_for_once(folder: Path) -> None:
    (folder / "deep").mkdir()
    benchmark(folder / "deep" / "more.jsonl", {"q": "text"})
    (folder / "deep" / "round").symlink_to("..")
    assert names(folder / "**" / "**" / "*.jsonl", folder / "known.jsonl") == [
        "more.jsonl",
        "known.jsonl",
    ]
