"""The allocate stage on small artifacts: what it writes, and what it says of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.allocate.reading import read_candidates
from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.selectors.uniform import Uniform
from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.artifact import Artifact
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.schemas import ALLOCATE
from stages.embed.reading import prepare
from tests.artifacts import blobs, bytes_of, run_stage, store_inputs

MISSING = [0, 5, 64, *range(128, 192)]


def clustered(store: Path, *, num_clusters: int = 3, **keys: Any) -> dict[str, Artifact]:
    """Give rows, tokens, embed and cluster of 240 rows with duplicates and gaps."""
    rng = np.random.default_rng(0)
    inputs = store_inputs(
        store,
        num_rows=240,
        embeddings=blobs([120, 80, 40]) * 2 + 1,
        lengths=rng.integers(4, 60, 240).tolist(),
        missing=MISSING,
        multiplicity=rng.integers(1, 5, 240).tolist(),
    )
    settings = ClusterConfig(num_clusters=num_clusters, n_init=2, min_rows=0, **keys)
    return {**inputs, "cluster": run_stage(CLUSTER_STAGE, settings, inputs, store)}


def allocate(store: Path, inputs: dict[str, Artifact], **keys: Any) -> Artifact:
    return run_stage(ALLOCATE_STAGE, AllocateConfig(**keys), inputs, store)


def column(artifact: Artifact, name: str) -> np.ndarray:
    """Spread a column over all row ids; -1 where there is none."""
    values = artifact.array(name)
    spread = np.full(240, -1, values.dtype)
    spread[artifact.array("row_id")] = values
    return spread


def test_candidates_line_up_by_row_id(tmp_path: Path) -> None:
    inputs = clustered(tmp_path, center=True)
    rows, row_ids = read_candidates(inputs)
    assert row_ids.tolist() == np.setdiff1d(np.arange(240), MISSING).tolist()
    assert np.array_equal(rows.multiplicity, column(inputs["screen"], "multiplicity")[row_ids])
    assert np.array_equal(rows.num_tokens, column(inputs["tokens"], "num_tokens")[row_ids])
    assert np.array_equal(rows.cluster, column(inputs["cluster"], "cluster")[row_ids])
    assert np.array_equal(rows.read_signal("loss"), inputs["embed"].array("loss"))
    raw = np.stack(inputs["embed"].read(["embedding"])["embedding"].to_numpy())
    prepared = prepare(raw, normalize=True, mean=raw.astype(np.float64).mean(axis=0))
    places = np.array([0, 1, 61, 62, 63, 120, rows.num_rows - 1])
    assert np.allclose(rows.read_embeddings(places), prepared[places], atol=1e-6)
    own = np.linalg.norm(prepared - rows.centers[rows.cluster], axis=1)
    assert np.allclose(own, rows.distance, atol=1e-5)


@pytest.mark.parametrize("keep", ["farthest", "kcenter"])
@pytest.mark.parametrize("num_workers", [3, 4])
def test_the_plan_covers_every_place_of_every_worker_once(
    tmp_path: Path, keep: str, num_workers: int
) -> None:
    inputs = clustered(tmp_path)
    found = allocate(
        tmp_path,
        inputs,
        selector=ClusterBalanced(keep=keep),
        budget="50%",
        num_workers=num_workers,
        micro_batch=2,
    )
    assert found.read(ALLOCATE.names).schema == ALLOCATE
    rows = found.num_rows
    assert rows == found.facts["rows"] == 173 // 2 // (2 * num_workers) * (2 * num_workers)
    assert np.all(np.diff(found.array("row_id")) > 0)
    assert not np.isin(found.array("row_id"), MISSING).any()
    per_worker = rows // num_workers
    places = found.array("worker").astype(np.int64) * per_worker + found.array("position")
    assert sorted(places.tolist()) == list(range(rows))
    ids = found.array("row_id")
    assert np.array_equal(found.array("cluster"), column(inputs["cluster"], "cluster")[ids])


def test_weights_give_back_the_shares_of_the_original_mixture(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    found = allocate(tmp_path, inputs, budget="60rows", num_workers=2)
    weights = found.array("weight").astype(np.float64)
    assert abs(weights.mean() - 1) < 1e-6
    embedded = inputs["embed"].array("row_id")
    copies = column(inputs["screen"], "multiplicity")[embedded]
    mass = np.bincount(inputs["cluster"].array("cluster"), weights=copies)
    shares = np.bincount(found.array("cluster"), weights=weights) / weights.sum()
    assert np.allclose(shares, mass / mass.sum(), atol=1e-6)
    assert [c["mass"] for c in found.facts["clusters"]] == mass.tolist()


def test_facts_say_what_was_asked_and_got(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    found = allocate(tmp_path, inputs, budget="50%", num_workers=4, accumulation=2)
    facts = found.facts
    tokens = int(column(inputs["tokens"], "num_tokens")[found.array("row_id")].sum())
    assert facts["asked"] == "allocate.budget=50%"
    assert facts["got"] == f"80 of 173 rows (46.2%), {tokens} tokens"
    assert (facts["rows"], facts["candidates"], facts["tokens"]) == (80, 173, tokens)
    assert facts["steps_per_epoch"] == 10
    assert facts["selector"] == "ClusterBalanced"
    assert [c["kept"] for c in facts["clusters"]] == np.bincount(found.array("cluster")).tolist()
    assert sum(c["candidates"] for c in facts["clusters"]) == 173
    weights = found.array("weight")
    assert facts["weights"]["min"] == weights.min()
    assert facts["weights"]["max"] == weights.max()
    schedule = facts["schedule"]
    assert (schedule["kind"], schedule["window_steps"]) == ("dealt", 1)
    assert 1 <= schedule["imbalance"] < 1.5
    assert 0 <= schedule["max_deviation"] < 1


def test_the_papers_setting_pins_a_cluster_to_each_worker(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    found = allocate(tmp_path, inputs, num_workers=3, objective="rank")
    sizes = np.bincount(inputs["cluster"].array("cluster"))
    assert found.num_rows == 3 * sizes.min()
    assert np.array_equal(found.array("worker"), found.array("cluster"))
    assert found.facts["schedule"]["kind"] == "pinned"


@pytest.mark.parametrize(("micro_batch", "levelled"), [(1, False), (2, True), (4, True)])
def test_rows_of_a_micro_batch_have_one_weight_under_the_objective_rank(
    tmp_path: Path, micro_batch: int, levelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows stand for one to five originals, so their own weights differ inside a cluster."""
    inputs = clustered(tmp_path)
    keys = {"num_workers": 3, "micro_batch": micro_batch, "schedule": "pinned"}
    with caplog.at_level("INFO"):
        found = allocate(tmp_path / "rank", inputs, objective="rank", **keys)
    own = allocate(tmp_path / "sample", inputs, objective="sample", **keys)
    weights, clusters = found.array("weight"), found.array("cluster")
    assert np.array_equal(found.array("row_id"), own.array("row_id"))
    sums = [np.bincount(clusters, each.array("weight")) for each in (found, own)]
    assert np.allclose(*sums, rtol=1e-6)
    per_cluster = [np.unique(weights[clusters == k]).size for k in range(3)]
    assert (per_cluster == [1, 1, 1]) == levelled
    assert levelled or np.array_equal(weights, own.array("weight"))
    lines = [line for line in caplog.messages if "levelled to the mean of their cluster" in line]
    assert len(lines) == levelled and all("allocate.objective=rank" in line for line in lines)
    assert found.facts["weights"]["max"] == weights.max()


@pytest.mark.parametrize("selector", [ClusterBalanced(keep="random"), Uniform()])
def test_the_same_input_and_seed_give_the_same_bytes(tmp_path: Path, selector: Any) -> None:
    inputs = clustered(tmp_path)
    found = [
        allocate(tmp_path / name, inputs, selector=selector, budget="60rows", seed=seed)
        for name, seed in (("one", 0), ("two", 0), ("three", 1))
    ]
    assert bytes_of(found[0].path) == bytes_of(found[1].path)
    assert bytes_of(found[0].path) != bytes_of(found[2].path)


def test_pinned_that_cannot_be_stops_the_stage(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    with pytest.raises(DataError, match=r"allocate\.schedule=pinned is not possible"):
        allocate(tmp_path, inputs, num_workers=2, schedule="pinned")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_workers": 0}, "allocate.num_workers=0 must be >= 1"),
        ({"micro_batch": 0}, "allocate.micro_batch=0 must be >= 1"),
        ({"accumulation": -1}, "allocate.accumulation=-1 must be >= 1"),
        ({"schedule": "deal"}, "Did you mean allocate.schedule=dealt?"),
        ({"objective": "samples"}, "Did you mean allocate.objective=sample?"),
        ({"on_empty_quota": "drop"}, "allocate.on_empty_quota=drop must be one of error, merge"),
        ({"ratio": 0.0}, "allocate.ratio=0.0 must lie in (0, 1]"),
        ({"ratio": 1.5}, "allocate.ratio=1.5 must lie in (0, 1]"),
        ({"budget": "lots"}, "allocate.budget=lots must be a number of rows"),
        (
            {"ratio": 0.5, "budget": "50%"},
            "allocate.ratio=0.5 and allocate.budget=50% exclude each other",
        ),
    ],
)
def test_a_wrong_setting_is_refused_at_once(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AllocateConfig(**keys)
    assert message in str(caught.value)
