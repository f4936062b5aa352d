"""The cluster stage on small embed artifacts: floors, counts, caps, samples, parts, gaps."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stages.cluster import stage
from stages.cluster.kmeans import distances_to, nearest_centers
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.artifact import Artifact
from stages.contract.errors import ConfigurationError
from stages.contract.schemas import CENTERS, CLUSTER
from stages.embed.reading import prepare
from tests.artifacts import EMBED_LAYOUT, blobs, bytes_of, embed_table, run_stage, save


def embedded(
    store: Path,
    embeddings: np.ndarray,
    *,
    missing: Any = (),
    rows_per_part: int = 64,
) -> Artifact:
    """Write an embed artifact over ids of which some are missing, and its parent."""
    num_rows = len(embeddings) + len(missing)
    kept = np.setdiff1d(np.arange(num_rows), missing)
    ids = pa.table({"row_id": np.arange(num_rows)})
    parent = save(store, "tokens", ids)
    return save(
        store,
        "embed",
        embed_table(kept, embeddings),
        stop=num_rows,
        rows_per_part=rows_per_part,
        parent=parent,
        layout=EMBED_LAYOUT,
    )


def cluster(store: Path, embed: Artifact, **keys: Any) -> Artifact:
    keys = {"n_init": 3, "min_rows": 0, **keys}
    return run_stage(CLUSTER_STAGE, ClusterConfig(**keys), {"embed": embed}, store)


def centers_of(artifact: Artifact) -> np.ndarray:
    table = artifact.side("centers.parquet")
    assert table.schema == CENTERS
    assert table["cluster"].to_pylist() == list(range(table.num_rows))
    return np.stack(table["center"].to_numpy()).astype(np.float32)


def check_distances(artifact: Artifact, prepared: np.ndarray) -> None:
    """Hold every row's distance to be that to its own centre."""
    to_all = distances_to(prepared, centers_of(artifact)).astype(np.float32)
    own = to_all[np.arange(len(prepared)), artifact.array("cluster")]
    assert np.array_equal(artifact.array("distance"), own)


def sizes_of(artifact: Artifact) -> list[int]:
    sizes = np.bincount(artifact.array("cluster"), minlength=len(centers_of(artifact))).tolist()
    assert artifact.facts["sizes"] == sizes
    assert artifact.side("centers.parquet")["num_rows"].to_pylist() == sizes
    return sizes


def test_separated_groups_are_found_and_every_row_knows_its_centre(tmp_path: Path) -> None:
    values = blobs([50, 40, 30])
    embed = embedded(tmp_path, values)
    found = cluster(tmp_path, embed, num_clusters=3)
    assert found.read(CLUSTER.names).schema == CLUSTER
    assert np.array_equal(found.array("row_id"), np.arange(120))
    assert sorted(sizes_of(found)) == [30, 40, 50]
    assert found.facts["capped"] is False
    check_distances(found, prepare(values, normalize=True, mean=None))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("center", [True, False])
def test_rows_are_prepared_as_asked(tmp_path: Path, normalize: bool, center: bool) -> None:
    values = blobs([50, 40, 30]) * 3 + 2
    found = cluster(
        tmp_path, embedded(tmp_path, values), num_clusters=3, normalize=normalize, center=center
    )
    mean = values.astype(np.float64).mean(axis=0) if center else None
    prepared = prepare(values, normalize=normalize, mean=mean)
    to_all = distances_to(prepared, centers_of(found))
    own = to_all[np.arange(120), found.array("cluster")]
    assert np.allclose(found.array("distance"), own, atol=1e-5)
    assert sorted(sizes_of(found)) == [30, 40, 50]


def test_a_cluster_under_the_floor_is_merged(tmp_path: Path) -> None:
    embed = embedded(tmp_path, blobs([100, 90, 4]))
    found = cluster(tmp_path, embed, num_clusters=3, min_rows=16, slack=5.0)
    assert found.facts["num_clusters"] == 2
    assert min(sizes_of(found)) >= 16


def test_the_largest_is_split_where_the_count_is_to_be_kept(tmp_path: Path) -> None:
    values = blobs([100, 90, 4])
    embed = embedded(tmp_path, values)
    found = cluster(tmp_path, embed, num_clusters=3, min_rows=16, slack=5.0, restore_count="yes")
    assert found.facts["num_clusters"] == 3
    assert min(sizes_of(found)) >= 16
    check_distances(found, prepare(values, normalize=True, mean=None))


def test_where_the_largest_cannot_be_split_the_next_is(tmp_path: Path) -> None:
    alike = np.tile([1.0, 0.0, 0.0, 0.0], (100, 1))
    varied = np.concatenate([np.zeros((90, 1)), blobs([90], dim=3, spread=0.2)], axis=1)
    few = np.tile([0.0, 0.0, 0.0, -1.0], (4, 1))
    embed = embedded(tmp_path, np.concatenate([alike, varied, few]))
    found = cluster(tmp_path, embed, num_clusters=3, min_rows=16, slack=5.0, restore_count="yes")
    assert found.facts["num_clusters"] == 3
    assert min(sizes_of(found)) >= 16


def test_the_floor_is_at_most_half_the_mean_size(tmp_path: Path) -> None:
    embed = embedded(tmp_path, blobs([20, 20, 8]))  # half of 16 is 8, so the third may stay
    found = cluster(tmp_path, embed, num_clusters=3, min_rows=1000)
    assert sorted(sizes_of(found)) == [8, 20, 20]


@pytest.mark.parametrize("restore_count", ["yes", "no"])
def test_fewer_distinct_rows_than_clusters_lower_the_count_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, restore_count: str
) -> None:
    values = np.eye(3, dtype=np.float32)[np.arange(60) % 3]
    with caplog.at_level(logging.WARNING):
        found = cluster(
            tmp_path,
            embedded(tmp_path, values),
            num_clusters=5,
            min_rows=4,
            restore_count=restore_count,
        )
    assert found.facts["num_clusters"] == 3
    assert sizes_of(found) == [20, 20, 20]
    assert "there are only 3 distinct embeddings; cluster.num_clusters=5 is lowered" in caplog.text


def test_one_embedding_for_all_makes_one_cluster(tmp_path: Path) -> None:
    found = cluster(tmp_path, embedded(tmp_path, np.ones((30, 4), np.float32)), num_clusters=4)
    assert sizes_of(found) == [30]
    assert np.all(found.array("distance") < 1e-3)


def test_zero_embeddings_are_a_cluster_like_any_other(tmp_path: Path) -> None:
    values = np.concatenate([np.zeros((30, 4)), np.ones((30, 4))]).astype(np.float32)
    found = cluster(tmp_path, embedded(tmp_path, values), num_clusters=2)
    labels = found.array("cluster")
    assert sizes_of(found) == [30, 30]
    assert len(set(labels[:30])) == len(set(labels[30:])) == 1


def test_the_soft_cap_holds_and_only_moves_rows_where_it_is_needed(tmp_path: Path) -> None:
    values = blobs([140, 20, 20, 20], spread=0.2)
    embed = embedded(tmp_path, values)
    found = cluster(tmp_path, embed, num_clusters=4, slack=0.5)
    free = cluster(tmp_path / "free", embed, num_clusters=4, slack=10.0)
    assert (found.facts["capped"], free.facts["capped"]) == (True, False)
    assert np.array_equal(centers_of(found), centers_of(free))
    assert max(sizes_of(found)) <= 75 < max(sizes_of(free))
    prepared = prepare(values, normalize=True, mean=None)
    check_distances(found, prepared)
    check_distances(free, prepared)
    stayed = found.array("cluster") == free.array("cluster")
    largest = int(np.argmax(sizes_of(free)))
    assert np.all(free.array("cluster")[~stayed] == largest) or max(sizes_of(found)) == 75


def test_rows_whose_candidates_are_full_still_find_a_place(tmp_path: Path) -> None:
    values = blobs([140, 20, 20, 20], spread=0.2)
    embed = embedded(tmp_path, values, missing=[0, 70, 71])
    found = cluster(tmp_path, embed, num_clusters=4, slack=0.0, candidates=1)
    assert sizes_of(found) == [50, 50, 50, 50]
    check_distances(found, prepare(values, normalize=True, mean=None))


def test_a_fit_on_a_sample_assigns_everyone(tmp_path: Path) -> None:
    values = blobs([80, 70, 50])
    embed = embedded(tmp_path, values)
    found = cluster(tmp_path, embed, num_clusters=3, fit_rows=40)
    again = cluster(tmp_path / "again", embed, num_clusters=3, fit_rows=40)
    other = cluster(tmp_path / "other", embed, num_clusters=3, fit_rows=40, seed=1)
    assert sorted(sizes_of(found)) == [50, 70, 80]
    check_distances(found, prepare(values, normalize=True, mean=None))
    assert bytes_of(found.path) == bytes_of(again.path)
    assert not np.array_equal(centers_of(found), centers_of(other))
    nearest = nearest_centers(prepare(values, normalize=True, mean=None), centers_of(found), 1)
    assert np.array_equal(found.array("cluster"), nearest[0][:, 0])


@pytest.mark.parametrize("keys", [{}, {"center": True}, {"fit_rows": 100}, {"slack": 0.0}])
def test_labels_do_not_depend_on_the_number_of_parts(tmp_path: Path, keys: dict[str, Any]) -> None:
    values = blobs([140, 30, 30], spread=0.3)
    found = [
        cluster(tmp_path, embedded(tmp_path, values, rows_per_part=size), num_clusters=3, **keys)
        for size in (64, 7, 1000)
    ]
    for other in found[1:]:
        assert np.array_equal(found[0].array("cluster"), other.array("cluster"))
        if not keys.get("center"):
            assert np.array_equal(found[0].array("distance"), other.array("distance"))


def test_rejected_rows_leave_gaps_and_nothing_shifts(tmp_path: Path) -> None:
    values = blobs([60, 40, 30])
    missing = [0, 1, 63, 64, *range(128, 192), 193]  # a whole part is missing
    embed = embedded(tmp_path, values, missing=missing)
    found = cluster(tmp_path, embed, num_clusters=3)
    plain = cluster(tmp_path / "plain", embedded(tmp_path / "plain", values), num_clusters=3)
    assert np.array_equal(found.array("row_id"), embed.array("row_id"))
    assert np.array_equal(found.array("cluster"), plain.array("cluster"))
    assert np.array_equal(found.array("distance"), plain.array("distance"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_clusters": 0}, "cluster.num_clusters=0 must be >= 1"),
        ({"n_init": 0}, "cluster.n_init=0 must be >= 1"),
        ({"candidates": 0}, "cluster.candidates=0 must be >= 1"),
        ({"slack": -0.5}, "cluster.slack=-0.5 must be >= 0 and finite"),
        ({"slack": float("inf")}, "for no cap set it to cluster.num_clusters"),
        ({"min_rows": -1}, "cluster.min_rows=-1 must be >= 0"),
        ({"fit_rows": 3, "num_clusters": 4}, "cluster.fit_rows=3 must be >= 4"),
        ({"restore_count": "maybe"}, "cluster.restore_count=maybe must be one of auto, no, yes"),
    ],
)
def test_a_wrong_setting_is_refused_at_once(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ClusterConfig(**keys)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("num_rows", "expected"), [(5, 1), (12, 1), (36, 3), (180, 15), (192, 16), (1_000_000, 16)]
)
def test_how_many_clusters_where_no_number_is_given(num_rows: int, expected: int) -> None:
    assert ClusterConfig().wanted(num_rows) == expected
    assert ClusterConfig(num_clusters=7).wanted(num_rows) == 7


def test_no_number_is_clusters_of_12_rows_at_least(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(120, 6)).astype(np.float32)
    found = cluster(tmp_path, embedded(tmp_path, values), slack=20.0, min_rows=0)
    assert found.facts["num_clusters"] == 10


def test_another_rule_for_their_number_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CLUSTER_STAGE.identity(ClusterConfig())
    given = CLUSTER_STAGE.identity(ClusterConfig(num_clusters=16))
    monkeypatch.setattr(stage, "USUAL_CLUSTERS", 17)
    assert CLUSTER_STAGE.identity(ClusterConfig()) != before != given
    assert CLUSTER_STAGE.identity(ClusterConfig(num_clusters=16)) == given
