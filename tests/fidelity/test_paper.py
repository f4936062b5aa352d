"""The stages `cluster` and `allocate` do what the paper says, and not what its code gets wrong."""

import logging
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from pipeline.config import compose
from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.stage import AllocateConfig
from stages.cluster.stage import ClusterConfig
from stages.contract.errors import DataError
from tests.fidelity import paper
from tests.fidelity.artifacts import (
    CASES,
    embedded,
    paper_allocate,
    paper_cluster,
    paper_preset,
    run_allocate,
    run_cluster,
)

WORKERS = (2, 4, 8)
RATIOS = (1.0, 0.75, 0.5)
EXACT_RULES = ("farthest", "nearest", "mixed", "largest_norm", "kcenter")
SLACK = 0.5
NO_CAP = 1000.0
# Share of the rows in the first Gaussian; the others share the rest.
MIXTURES = {"even": None, "one_large": 0.8, "blurred": 0.7}
SEED = 3
DIM = 8


def mixture(name, num_clusters, num_rows=323):
    """Rows of `num_clusters` Gaussians around random directions, with lengths that vary."""
    rng = np.random.default_rng([num_clusters, sorted(MIXTURES).index(name)])
    first = MIXTURES[name] or 1 / num_clusters
    shares = np.array([first] + [(1 - first) / (num_clusters - 1)] * (num_clusters - 1))
    component = rng.choice(num_clusters, num_rows, p=shares)
    directions = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0][:num_clusters]
    noise = 0.5 if name == "blurred" else 0.15
    rows = directions[component] + noise * rng.normal(size=(num_rows, DIM))
    return (rows * rng.lognormal(0.0, 0.7, size=(num_rows, 1))).astype(np.float32)


@dataclass(frozen=True)
class Clustered:
    """One mixture: what the real stage made of it, and what the paper's rules make of it."""

    raw: np.ndarray
    row_ids: np.ndarray
    inputs: dict
    artifact: object
    points: np.ndarray
    centers: np.ndarray
    uncapped: np.ndarray
    labels: np.ndarray
    distance: np.ndarray


@pytest.fixture(scope="session")
def clustered(tmp_path_factory):
    @cache
    def make(name, num_clusters, slack):
        store = tmp_path_factory.mktemp("fidelity")
        raw = mixture(name, num_clusters)
        inputs = embedded(store, raw, refused=(0, 7, 150))
        settings = paper_cluster(num_clusters, slack=slack, seed=SEED)
        artifact = run_cluster(settings, inputs, store)
        points = paper.unit_rows(raw)
        uncapped, centers = paper.fit_kmeans(points, num_clusters, SEED)
        distances = paper.distance_table(points, centers)
        labels = paper.soft_cap(uncapped, distances, slack)
        own = distances[np.arange(len(raw)), labels]
        row_ids = artifact.array("row_id")
        return Clustered(raw, row_ids, inputs, artifact, points, centers, uncapped, labels, own)

    return make


def kept_ids(case, num_workers, keep, quota):
    """Say which row ids the paper keeps of every cluster."""
    norms = [float(np.sqrt((row.astype(float) ** 2).sum())) for row in case.raw]
    kept = {}
    for cluster in range(num_workers):
        members = [row for row, label in enumerate(case.labels) if label == cluster]
        chosen = paper.keep_rows(keep, members, quota, case.points, case.distance, norms)
        kept[cluster] = {int(case.row_ids[row]) for row in chosen}
    return kept


def columns(artifact):
    names = ("row_id", "worker", "position", "weight", "cluster")
    return {name: artifact.array(name) for name in names}


def assert_whole_shards(got, num_workers):
    """Every worker has equally many rows, at positions 0, 1, 2, ..."""
    held = [np.sort(got["position"][got["worker"] == rank]) for rank in range(num_workers)]
    for positions in held:
        assert positions.tolist() == list(range(got["row_id"].size // num_workers))


def test_the_preset_says_what_the_paper_says():
    preset = paper_preset()
    assert preset.embed.feature == "target_row"
    cluster = paper_cluster(4)
    assert (cluster.normalize, cluster.center) == (True, False)
    assert (cluster.n_init, cluster.slack, cluster.min_rows) == (10, 0.5, 0)
    assert cluster.fit_rows >= 10**9
    raw = preset._get_node("cluster")._get_node("num_clusters")._value()
    assert raw == "${allocate.num_workers}"
    allocate = paper_allocate(4)
    assert compose(["experiment=paper"]).allocate.selector == ClusterBalanced(keep="farthest")
    assert (allocate.ratio, allocate.budget, allocate.micro_batch) == (1.0, None, 1)
    assert (allocate.schedule, allocate.objective) == ("pinned", "rank")


def test_the_cap_triggers_in_some_cases_and_not_in_others(clustered):
    seen = {}
    for name in MIXTURES:
        for num_clusters in WORKERS:
            for slack in (SLACK, NO_CAP):
                case = clustered(name, num_clusters, slack)
                triggers = paper.needs_cap(case.uncapped, num_clusters, slack)
                assert case.artifact.facts["capped"] is triggers
                assert np.any(case.labels != case.uncapped) == triggers
                seen.setdefault((num_clusters, slack), set()).add(triggers)
    for num_clusters in WORKERS:
        assert seen[num_clusters, SLACK] == {True, False}
        assert seen[num_clusters, NO_CAP] == {False}


@pytest.mark.parametrize("slack", [SLACK, NO_CAP])
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("name", MIXTURES)
def test_labels_and_distances_are_the_papers(clustered, name, num_workers, slack):
    case = clustered(name, num_workers, slack)
    assert case.artifact.array("cluster").tolist() == case.labels.tolist()
    np.testing.assert_allclose(case.artifact.array("distance"), case.distance, atol=1e-6)
    sizes = np.bincount(case.labels, minlength=num_workers)
    assert case.artifact.facts["sizes"] == sizes.tolist()
    if case.artifact.facts["capped"]:
        assert sizes.max() == np.ceil((1 + slack) * len(case.raw) / num_workers)


@pytest.mark.parametrize("slack", [0.0, 0.2, SLACK])
@pytest.mark.parametrize("candidates", [1, 2, 3, 8])
def test_rows_whose_candidates_are_full_go_to_the_nearest_center_with_room(
    clustered, tmp_path, candidates, slack
):
    case = clustered("one_large", 8, SLACK)
    settings = paper_cluster(8, slack=slack, candidates=candidates, seed=SEED)
    artifact = run_cluster(settings, case.inputs, tmp_path)
    distances = paper.distance_table(case.points, case.centers)
    labels = paper.soft_cap(case.uncapped, distances, slack, candidates)
    assert artifact.array("cluster").tolist() == labels.tolist()
    own = distances[np.arange(len(labels)), labels]
    np.testing.assert_allclose(artifact.array("distance"), own, atol=1e-6)


@pytest.mark.parametrize("keep", [*EXACT_RULES, "random"])
@pytest.mark.parametrize("slack", [SLACK, NO_CAP])
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("name", MIXTURES)
def test_kept_rows_weights_and_workers_are_the_papers(
    clustered, tmp_path, name, num_workers, slack, keep
):
    case = clustered(name, num_workers, slack)
    weights = paper.worker_weights(case.labels, num_workers)
    label_of = dict(zip(case.row_ids.tolist(), case.labels.tolist(), strict=True))
    for ratio in RATIOS:
        settings = paper_allocate(num_workers, keep, ratio=ratio)
        got = columns(run_allocate(settings, case.inputs, case.artifact, tmp_path / str(ratio)))
        quota = paper.cluster_quota(case.labels, num_workers, ratio)
        assert quota > 0
        assert [label_of[row_id] for row_id in got["row_id"].tolist()] == got["cluster"].tolist()
        assert np.bincount(got["cluster"]).tolist() == [quota] * num_workers
        if keep != "random":
            for cluster, ids in kept_ids(case, num_workers, keep, quota).items():
                assert set(got["row_id"][got["cluster"] == cluster].tolist()) == ids
        # Worker r of the paper holds cluster r, and its weight is W n_r / N.
        assert got["worker"].tolist() == got["cluster"].tolist()
        assert_whole_shards(got, num_workers)
        expected = np.array(weights)[got["cluster"]]
        np.testing.assert_allclose(got["weight"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["even", "one_large"])
def test_the_weighted_mean_over_workers_is_the_full_mixture(clustered, tmp_path, name):
    """Sum over ranks of w_r / W times a cluster's mean is the sum of n_k / N times that mean."""
    case = clustered(name, 4, SLACK)
    got = columns(run_allocate(paper_allocate(4), case.inputs, case.artifact, tmp_path))
    shares = np.bincount(case.labels) / len(case.labels)
    per_cluster = np.bincount(got["cluster"], weights=got["weight"]) / got["row_id"].size
    np.testing.assert_allclose(per_cluster, shares, atol=1e-6)


def test_random_keeps_depend_on_the_seed_only(clustered, tmp_path):
    case = clustered("even", 4, NO_CAP)
    kept = []
    for run, seed in enumerate((0, 0, 1)):
        settings = paper_allocate(4, "random", ratio=0.5, seed=seed)
        artifact = run_allocate(settings, case.inputs, case.artifact, tmp_path / str(run))
        kept.append(artifact.array("row_id").tolist())
    assert kept[0] == kept[1] != kept[2]


@pytest.mark.parametrize(("micro_batch", "accumulation"), [(2, 1), (3, 1), (2, 4)])
def test_quotas_are_floored_to_whole_steps(clustered, tmp_path, micro_batch, accumulation):
    case = clustered("one_large", 4, SLACK)
    settings = paper_allocate(4, ratio=0.75, micro_batch=micro_batch, accumulation=accumulation)
    got = columns(run_allocate(settings, case.inputs, case.artifact, tmp_path))
    unrounded = paper.cluster_quota(case.labels, 4, 0.75)
    quota = paper.cluster_quota(case.labels, 4, 0.75, micro_batch * accumulation)
    assert 0 < quota <= unrounded < quota + micro_batch * accumulation
    assert np.bincount(got["cluster"]).tolist() == [quota] * 4
    for cluster, ids in kept_ids(case, 4, "farthest", quota).items():
        assert set(got["row_id"][got["cluster"] == cluster].tolist()) == ids


# Faults of the reference code, with the right behaviour.


def test_the_weight_belongs_to_the_row_at_micro_batch_2(clustered, tmp_path):
    case = clustered("one_large", 4, SLACK)
    settings = paper_allocate(4, micro_batch=2)
    got = columns(run_allocate(settings, case.inputs, case.artifact, tmp_path))
    weights = np.array(paper.worker_weights(case.labels, 4))
    assert len(set(weights.tolist())) > 1
    label_of = dict(zip(case.row_ids.tolist(), case.labels.tolist(), strict=True))
    own = np.array([label_of[row_id] for row_id in got["row_id"].tolist()])
    assert got["worker"].tolist() == own.tolist()
    np.testing.assert_allclose(got["weight"], weights[own], atol=1e-6)
    assert_whole_shards(got, 4)
    assert np.bincount(got["worker"]).max() % 2 == 0


@pytest.mark.parametrize("changes", [{"ratio": 0.02}, {"micro_batch": 64}])
def test_a_quota_floored_to_zero_is_an_error_that_names_the_remedy(clustered, tmp_path, changes):
    case = clustered("one_large", 8, NO_CAP)
    rows_per_step = changes.get("micro_batch", 1)
    assert paper.cluster_quota(case.labels, 8, changes.get("ratio", 1.0), rows_per_step) == 0
    with pytest.raises(DataError, match=r"allocate\.ratio=.*allocate\.budget="):
        run_allocate(paper_allocate(8, **changes), case.inputs, case.artifact, tmp_path)


def test_a_cluster_without_a_quota_is_an_error_or_merged_and_never_kept_whole(clustered, tmp_path):
    case = clustered("one_large", 4, NO_CAP)
    budget = {"ratio": None, "budget": "2rows", "schedule": "dealt", "objective": "sample"}
    with pytest.raises(DataError, match=r"on_empty_quota=merge"):
        settings = paper_allocate(2, **budget, on_empty_quota="error")
        run_allocate(settings, case.inputs, case.artifact, tmp_path / "error")
    settings = paper_allocate(2, **budget, on_empty_quota="merge")
    got = columns(run_allocate(settings, case.inputs, case.artifact, tmp_path / "merge"))
    assert got["row_id"].size == 2
    np.testing.assert_allclose(got["weight"].mean(), 1.0, atol=1e-6)
    # Clusters without a quota hand their mass to the nearest that has one.
    sizes = np.bincount(case.labels)
    kept = got["cluster"].tolist()
    carried = dict.fromkeys(kept, 0)
    for cluster, size in enumerate(sizes.tolist()):
        gaps = {k: float(((case.centers[cluster] - case.centers[k]) ** 2).sum()) for k in kept}
        carried[min(gaps, key=gaps.get)] += size
    expected = [2 * carried[cluster] / len(case.labels) for cluster in kept]
    np.testing.assert_allclose(got["weight"], expected, atol=1e-6)


def test_one_worker_still_clusters_and_prunes(clustered, tmp_path):
    case = clustered("one_large", 4, SLACK)
    settings = paper_allocate(1, ratio=0.5)
    got = columns(run_allocate(settings, case.inputs, case.artifact, tmp_path))
    quota = paper.cluster_quota(case.labels, 4, 0.5)
    assert np.bincount(got["cluster"]).tolist() == [quota] * 4
    for cluster, ids in kept_ids(case, 4, "farthest", quota).items():
        assert set(got["row_id"][got["cluster"] == cluster].tolist()) == ids
    # Four clusters with equal quotas: 4 n_k / N, whoever holds the rows.
    expected = np.array(paper.worker_weights(case.labels, 4))[got["cluster"]]
    np.testing.assert_allclose(got["weight"], expected, atol=1e-6)
    assert set(got["worker"].tolist()) == {0}


@pytest.fixture(scope="session")
def outliers(tmp_path_factory):
    """197 rows around the origin and 3 far away, a cluster of their own unless normalised."""
    path = CASES / "19-one-tiny-cluster-eats-the-budget" / "embeddings.npy"
    if not path.exists():
        pytest.skip(f"the case is not here: {path}")
    return embedded(tmp_path_factory.mktemp("case-19"), np.load(path))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("min_rows", [0, ClusterConfig().min_rows])
@pytest.mark.parametrize("micro_batch", [1, 8])
@pytest.mark.parametrize(("budget", "asked"), [("100%", 200), ("30%", 60)])
def test_a_budget_is_met_up_to_whole_steps_whatever_the_smallest_cluster(
    outliers, tmp_path, budget, asked, micro_batch, min_rows, normalize
):
    grouping = ClusterConfig(
        num_clusters=4, min_rows=min_rows, restore_count="yes", normalize=normalize
    )
    cluster = run_cluster(grouping, outliers, tmp_path)
    sizes = cluster.facts["sizes"]
    assert sum(sizes) == 200 and len(sizes) == 4
    assert min(sizes) >= min_rows
    if min_rows == 0 and not normalize:
        assert min(sizes) == 3
    settings = AllocateConfig(budget=budget, micro_batch=micro_batch, num_workers=4)
    artifact = run_allocate(settings, outliers, cluster, tmp_path)
    got = columns(artifact)
    rows_per_step = 4 * micro_batch
    assert got["row_id"].size == asked // rows_per_step * rows_per_step
    assert_whole_shards(got, 4)
    np.testing.assert_allclose(got["weight"].mean(), 1.0, atol=1e-6)
    assert artifact.facts["asked"] == f"allocate.budget={budget}"
    assert artifact.facts["rows"] == got["row_id"].size


def test_without_floor_and_budget_the_tiny_cluster_does_decide(outliers, tmp_path):
    """The paper's rule as it stands, 12 of 200 rows, and what it says where nothing is left."""
    cluster = run_cluster(paper_cluster(4, normalize=False), outliers, tmp_path)
    assert run_allocate(paper_allocate(4), outliers, cluster, tmp_path).facts["rows"] == 12
    with pytest.raises(DataError, match=r"sizes \[.*\b3\b.*allocate\.budget="):
        run_allocate(paper_allocate(4, ratio=0.3), outliers, cluster, tmp_path / "ratio")


@pytest.mark.parametrize("min_rows", [0, ClusterConfig().min_rows])
@pytest.mark.parametrize("num_distinct", [1, 2])
def test_identical_embeddings_lower_the_number_of_clusters_with_a_warning(
    tmp_path, caplog, num_distinct, min_rows
):
    distinct = np.random.default_rng(0).normal(size=(num_distinct, 6))
    inputs = embedded(tmp_path, np.repeat(distinct, 20 // num_distinct, axis=0))
    with caplog.at_level(logging.WARNING):
        settings = ClusterConfig(num_clusters=4, restore_count="yes", min_rows=min_rows)
        cluster = run_cluster(settings, inputs, tmp_path)
    assert "distinct embeddings" in caplog.text
    assert cluster.facts["sizes"] == [20 // num_distinct] * num_distinct
    got = columns(run_allocate(AllocateConfig(), inputs, cluster, tmp_path))
    assert got["row_id"].size == 20
    assert_whole_shards(got, 4)
    np.testing.assert_allclose(got["weight"], 1.0, atol=1e-6)
    with pytest.raises(DataError, match=r"allocate\.schedule=dealt"):
        run_allocate(paper_allocate(4), inputs, cluster, tmp_path / "pinned")


@pytest.mark.parametrize("keep", [*EXACT_RULES, "random"])
def test_every_keep_rule_takes_exact_counts_of_identical_rows(tmp_path, keep):
    inputs = embedded(tmp_path, np.ones((20, 6)))
    cluster = run_cluster(ClusterConfig(), inputs, tmp_path)
    settings = AllocateConfig(selector=ClusterBalanced(keep=keep), budget="8rows")
    got = columns(run_allocate(settings, inputs, cluster, tmp_path))
    assert np.unique(got["row_id"]).size == 8
