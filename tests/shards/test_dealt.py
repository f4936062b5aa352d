"""Shards of a store of several stretches: the same bytes as of one."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline import plan
from pipeline.config import ComputeConfig, Config
from stages.shards import stage
from stages.shards.stage import SHARDS, ShardsSettings, read_scratch, stretches_of
from tests.artifacts import bytes_of, run_stage
from tests.shards.sets import make


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_store_of_several_stretches_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    artifacts = make(tmp_path, num_workers=num_workers, micro_batch=2).artifacts
    assert len(stretches_of(artifacts["rows"])) == 1
    monkeypatch.setattr(stage, "ROWS_PER_STRETCH", 1)
    stretches = stretches_of(artifacts["rows"])
    # A part that is larger than a stretch is one; together they are all rows, each once.
    assert [(s.start, s.stop) for s in stretches] == [
        (p.start, p.stop) for p in artifacts["rows"].parts
    ]
    assert len(stretches) > 1
    settings = ShardsSettings(num_workers)
    dealt = run_stage(SHARDS, settings, artifacts, tmp_path / "again")
    whole = bytes_of(artifacts["shards"].path)
    found = bytes_of(dealt.path)
    parts = [part.name for part in dealt.parts]
    assert parts and all(found[name] == whole[name] for name in parts)
    assert not [name for name in found if name.startswith("dealt")]


def test_a_run_whose_scratch_another_run_has_removed_uses_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other run ends when this one has written a shard, and is about to gather the next."""
    artifacts = make(tmp_path, num_workers=3, micro_batch=2).artifacts
    monkeypatch.setattr(stage, "ROWS_PER_STRETCH", 1)
    config, store = Config(compute=ComputeConfig(workers=0)), tmp_path / "again"
    num_stretches = len(stretches_of(artifacts["rows"]))
    calls: list[object] = []

    def run_shards() -> plan.StepReport:
        return plan.run_stage(SHARDS, ShardsSettings(3), artifacts, store, config)

    def overtaken(*read: object) -> pa.Table:
        calls.append(read)
        if len(calls) == num_stretches + 1:
            monkeypatch.setattr(stage, "read_scratch", read_scratch)
            run_shards()
        return read_scratch(*read)  # type: ignore[arg-type]

    monkeypatch.setattr(stage, "read_scratch", overtaken)
    with caplog.at_level("INFO"):
        report = run_shards()
    assert "another run has finished" in caplog.text and "Traceback" not in caplog.text
    assert report.artifact.num_rows == artifacts["shards"].num_rows
    assert [path.name for path in (store / "shards").iterdir()] == [report.artifact.key]
