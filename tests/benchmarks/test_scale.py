"""The benchmark of scale: its generated store, its simulation and its arithmetic, all small."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import results, scale, scale_matched, scale_report, scale_simulate
from benchmarks.scale_model import Job, llama_7b, llama_70b
from benchmarks.scale_store import generate, lengths_of


def test_the_arithmetic_by_hand() -> None:
    job = Job(1000, 100, 1e9, 512, 2, 1.0)
    assert job.tokens == 1e5
    # 2e9 operations a token, two GPUs of 0.4 * 989.4e12 a second.
    assert job.hours == pytest.approx(1e5 * 2e9 / (2 * 0.4 * 989.4e12) / 3600)
    assert job.gpus_per_copy == 1 and job.hours_in_turn == job.hours
    assert job.embed_bytes == 1000 * (8 + 4 * (512 + 2048 + 8))
    assert job.token_bytes == 8e5
    assert llama_7b(8, tokens_per_row=500, overhead=1.0).gpus_per_copy == 1
    # 141 GB of weights need two GPUs of 80 GB, and those work one at a time.
    large = llama_70b(8, tokens_per_row=500, overhead=1.0)
    assert large.gpus_per_copy == 2 and large.hours_in_turn == 2 * large.hours


def test_lengths_have_the_mean_they_are_told() -> None:
    lengths = lengths_of(200_000, 100.0, np.random.default_rng(0))
    assert lengths.min() >= 2 and lengths.max() <= 1600
    assert lengths.mean() == pytest.approx(100.0, rel=0.05)


def test_a_generated_store_is_one_that_the_stages_read(tmp_path: Path) -> None:
    made = generate(tmp_path / "a", 300, dim=4, mean_tokens=20, text_bytes=40, seed=1)
    again = generate(tmp_path / "b", 300, dim=4, mean_tokens=20, text_bytes=40, seed=1)
    for stage, artifact in made.items():
        hashes = [part["sha256"] for part in artifact.manifest["parts"]]
        assert hashes == [part["sha256"] for part in again[stage].manifest["parts"]]
        assert artifact.num_rows == 300
    ids = made["tokens"].read(["input_ids", "num_tokens"])
    assert [len(row) for row in ids["input_ids"].to_pylist()] == ids["num_tokens"].to_pylist()


def test_rows_of_the_pools_differ_and_come_back_the_same() -> None:
    features = scale_matched.Features(0)
    places = np.array([0, 5, 4093, 4099, 999_999])
    found = features.read(places)
    assert len(np.unique(found, axis=0)) == 5
    np.testing.assert_array_equal(found[2:4], features.read(places[2:4]))
    assert features.seconds > 0


def test_matched_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_matched, "DIM", 16)
    each, memory = scale_matched.measure(64)
    assert each.value > 0 and memory.value >= 0


def test_the_simulated_schedule_is_in_proportion(tmp_path: Path) -> None:
    figures = scale_simulate.simulate(3000, tmp_path)  # 2,560 rows: 5 steps of 512
    values = {figure.figure.partition(": ")[2]: figure.value for figure in figures}
    assert values["largest distance of a running count, rows"] < 1.0
    assert 1.0 <= values["max / mean tokens of a step"] < 1.2
    assert not list((tmp_path / "allocate").iterdir())


def test_the_command_measures_each_size_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "benchmarks.md"
    docs.write_text("<!-- scale: begin -->\n<!-- scale: end -->\n")
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "DOCS", docs)
    scale.main(["rows", "model", "--rows", "600", "--folder", str(tmp_path)])
    values = {
        row["figure"]: row["value"]
        for row in json.loads((tmp_path / "scale.json").read_text())["rows"]
    }
    assert values["rows, 600 x 64: shards, CPU microseconds a row"] > 0
    assert values["rows, 600 x 64: largest peak, MB"] < scale.MOST_MEMORY_MB
    assert values["model: time of the pass over the bare forward"] == scale.OVERHEAD
    assert "rows, 600 x 64" in docs.read_text()
    with pytest.raises(SystemExit):
        scale.main(["nothing"])


def test_the_report_of_a_generated_run_is_measured(tmp_path: Path) -> None:
    found = scale_report.measure(600, tmp_path / "store", tmp_path / "out")
    each, memory, size = (figure.value for figure in found)
    assert each > 0 and memory >= 0
    assert size == (tmp_path / "out" / "report.html").stat().st_size / 1e6
    assert found[2].target == 5.0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    kept = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))["rows"]
    assert kept > 290 and f"Of 600 rows, {kept} were kept" in page
