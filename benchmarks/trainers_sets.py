"""Three small sets for the trainers, made by the pipeline; their clusters differ in length."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evenshard.shards import MANIFEST, file_digest
from evenshard.shardset import ShardSet
from evenshard.verify import verify
from pipeline.config import compose
from pipeline.plan import run_plan
from tests.tiny import tiny_model

EFFECTIVE = 0.5  # share of the rows, of the lognormal weights
# What a kind of rows is made of, and how many words an answer has.
KINDS = (
    (("one", "two", "three", "five", "seven", "number"), 2, 60),
    (("0", "1", "2", "3", "7", "9", "25"), 60, 36),
    (("Oslo", "Paris", "France", "weather", "cold", "capital", "colder"), 24, 24),
)


@dataclass(frozen=True)
class TrainingSet:
    """A published folder, what it is called, and the objectives that apply to it."""

    label: str
    folder: Path
    objectives: tuple[str, ...]


def make_sets(folder: Path) -> tuple[Path, list[TrainingSet]]:
    """Make a tiny model and the sets, and check them.

    Parameters
    ----------
    folder : Path
        Where everything goes.

    Returns
    -------
    tuple of Path and list of TrainingSet
        The folder of the model, and the sets.
    """
    model = tiny_model(folder / "model")
    pinned = _curate(folder, model, "pinned", kinds=2, objective="rank")
    dealt = _curate(folder, model, "dealt", kinds=3, objective="sample")
    lognormal = _curate(folder, model, "lognormal", kinds=3, objective="sample")
    _draw_weights(lognormal, np.random.default_rng(0))
    sets = [
        TrainingSet("K = W", pinned, ("sample", "token", "rank")),
        TrainingSet("K = 3", dealt, ("sample", "token")),
        TrainingSet("lognormal", lognormal, ("sample", "token")),
    ]
    for one in sets:
        problems = verify(one.folder)
        assert not problems, problems
    return model, sets


def mean_lengths(folder: Path) -> list[float]:
    """Give the mean number of tokens of the rows of each cluster, from the shortest."""
    shards = ShardSet(folder)
    lengths, clusters = shards.num_tokens, shards.cluster
    return sorted(float(lengths[clusters == k].mean()) for k in np.unique(clusters))


def _curate(folder: Path, model: Path, name: str, *, kinds: int, objective: str) -> Path:
    """Run the pipeline on rows of so many kinds, for 2 workers of 2 micro-batches of 2 rows."""
    rng = np.random.default_rng(kinds)
    rows = []
    for words, length, count in KINDS[:kinds]:
        for number in range(count):
            sizes = 3, int(rng.integers(length, length * 4 // 3 + 1))
            ask, answer = (" ".join(rng.choice(words, size)) for size in sizes)
            rows.append({"prompt": f"{ask} {number}?", "completion": answer})
    source = folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    overrides = [
        f"name={name}",
        f"store={folder / 'store'}",
        f"out={folder / name}",
        f"rows.path={source}",
        f"model.path={model}",
        "compute.workers=0",
        f"cluster.num_clusters={kinds}",
        "cluster.min_rows=0",
        "allocate.num_workers=2",
        "allocate.micro_batch=2",
        "allocate.accumulation=2",
        "allocate.selector=cluster_balanced",
        "allocate.ratio=1.0",
        f"allocate.objective={objective}",
        f"allocate.schedule={'pinned' if objective == 'rank' else 'dealt'}",
    ]
    run_plan(compose(overrides), overrides)
    return folder / name


def _draw_weights(folder: Path, rng: np.random.Generator) -> None:
    """Give the rows lognormal weights of mean 1, in the files and in the manifest."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    drawn = rng.standard_normal((manifest["world_size"], manifest["rows_per_worker"]))
    least, most = 0.0, 4.0  # of the sigma, which is found by halving
    for _ in range(50):
        sigma = (least + most) / 2
        weights = np.exp(sigma * drawn)
        weights /= weights.mean()
        too_even = 1 / np.mean(weights**2) > EFFECTIVE
        least, most = (sigma, most) if too_even else (least, sigma)
    weights = weights.astype(np.float32)
    for worker, column in zip(manifest["workers"], weights, strict=True):
        path = folder / worker["file"]
        table = pq.read_table(path)
        place = table.schema.get_field_index("weight")
        table = table.set_column(place, table.schema.field(place), pa.array(column))
        pq.write_table(table, path, compression="zstd")
        worker |= {"sha256": file_digest(path), "num_bytes": path.stat().st_size}
    exact = weights.astype(np.float64)
    manifest["weights"] |= {
        "min": float(exact.min()),
        "max": float(exact.max()),
        "effective_sample_size": float(exact.sum() ** 2 / (exact.size * (exact**2).sum())),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
