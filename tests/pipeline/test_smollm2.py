"""The embedded model for real: converted once, then rows of the sample go through it."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from evenshard import verify
from stages.contract.schemas import SIGNALS
from tests.pipeline.runs import run


def test_the_embedded_model_curates_rows_of_the_sample(tmp_path: Path) -> None:
    few = ("rows.limit=16", "compute=local", "tokens.max_length=64", "embed.rows_per_part=16")
    done = run(tmp_path, Path("smollm2"), *few, "allocate.num_workers=2")
    assert done.status == 0, done.log
    assert verify(done.out) == []
    [part] = (tmp_path / "store" / "embed").glob("*/part-00000.parquet")
    table = pq.read_table(part)
    assert table["embedding"].type.list_size == 576
    signals = {name: table[name].to_numpy() for name in SIGNALS}
    # A language model on plain English: a few nats a token, far from the 10.8 of guessing.
    assert 0.5 < signals["loss"].mean() < 5.0
    assert (signals["mean_p"] <= signals["max_p"] + 1e-6).all()
    assert (signals["el2n"] > 0).all() and (signals["el2n"] < 2**0.5 + 1e-6).all()
    manifest = json.loads(next((tmp_path / "store" / "embed").glob("*/manifest.json")).read_text())
    assert manifest["facts"]["peak_rss_mb"] < 3000
