"""The benchmark of reading, on a file so small that only its counts mean something."""

import json
from pathlib import Path

import pytest

from benchmarks import results, rows
from benchmarks.rows import EVERY, lines, main, resident_bytes, watch, write

FIGURES = {
    "rows stage, compute.workers=0: peak of memory, MB",
    "rows stage, compute.workers=2: rows a second",
    "datasets.load_dataset, without the lines that are no JSON: rows a second",
    "rate of the rows stage (compute.workers=0) over that of datasets",
}


def parses(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def test_lines_are_the_same_for_a_seed_and_bad_where_they_say_so() -> None:
    made = list(lines(4100, 1))
    assert made == list(lines(4100, 1)) != list(lines(4100, 2))
    wrong = {place: name for place, (_, name) in enumerate(made) if name}
    assert wrong == {1999: "no_json", 2000: "no_question", 3999: "no_json", 4001: "no_question"}
    assert [i for i, (line, _) in enumerate(made) if not parses(line)] == [1999, 3999]
    assert not json.loads(made[2000][0])["instruction"] and not json.loads(made[2000][0])["input"]
    assert 200 < sum(len(line) for line, _ in made) / len(made) < 800


def test_the_second_file_lacks_what_is_no_json(tmp_path: Path) -> None:
    whole, parsable, num_bad = write(tmp_path, 2 * EVERY["no_question"], 0)
    assert num_bad == 4
    good = [line for line in whole.read_bytes().splitlines() if parses(line)]
    assert parsable.read_bytes().splitlines() == good
    assert len(good) == 4000


def test_memory_of_a_child_counts() -> None:
    grandchild = "import time; held = bytearray(300_000_000); time.sleep(1)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}]);"
    child += 'print(\'{"rows": 1, "rejects": 2, "seconds": 3, "cpu_seconds": 6}\')'
    done = watch(child)
    assert 300 < done.megabytes < 900
    assert (done.rows, done.rejects, done.rate, done.cost) == (1, 2, 1.0, 2e6)
    with pytest.raises(RuntimeError, match="no such file"):
        watch("raise SystemExit('no such file')")
    assert resident_bytes(2**22 + 1) == 0  # no such process


def test_a_small_run_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "benchmarks.md"
    docs.write_text("before\n<!-- rows: begin -->\n<!-- rows: end -->\nafter\n")
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(results, "DOCS", docs)
    monkeypatch.setattr(rows, "EVERY", {"no_json": 200, "no_question": 201})
    main(["--rows", "450", "--folder", str(tmp_path)])
    result = json.loads((tmp_path / "results" / "rows.json").read_text())
    assert result["command"] == "python -m benchmarks.rows --rows 450 --seed 0"
    values = {row["figure"]: row["value"] for row in result["rows"]}
    assert values.keys() >= FIGURES and all(value >= 0 for value in values.values())
    for workers in (0, 2):
        label = f"rows stage, compute.workers={workers}: just the 4 bad lines are rejects"
        assert values[label] == 1
    assert values["datasets.load_dataset: reads the file with its bad lines"] == 0
    assert "python -m benchmarks.rows --rows 450" in docs.read_text()
    assert not list(tmp_path.glob("tmp*"))
