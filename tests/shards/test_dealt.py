"""Shards of a store of several stretches: the same bytes as of one."""

from pathlib import Path

import pytest

from stages.shards import stage
from stages.shards.stage import SHARDS, ShardsSettings, stretches_of
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
