"""The cluster room's door to the disk: fit on a sample, assign by part, floors, then the cap."""

import logging
from collections.abc import Generator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stages.cluster.capacity import capped_labels, exceeds_cap, place_rest, soft_capacity
from stages.cluster.kmeans import (
    FloatArray,
    IntArray,
    distances_to,
    fit_from_starts,
    nearest_centers,
    num_distinct,
    small_clusters,
    split_center,
)
from stages.cluster.worker import Nearest, find_nearest
from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import require, require_at_least, require_one_of
from stages.contract.fingerprint import section_params
from stages.contract.parts import Facts, Outcome, Receipt, Run, Spread, cut
from stages.contract.schemas import CENTERS, CLUSTER
from stages.contract.stage import Stage
from stages.contract.tables import Layout
from stages.embed.reading import Space, matrix, space_of

log = logging.getLogger(__name__)

ROWS_PER_PART = 1_000_000
SPLIT_TRIES = 3
# The starts of k-means are compared on at least so many rows, in all and for each cluster.
START_ROWS, START_ROWS_PER_CLUSTER = 10_000, 50
# Where no number is given: so many clusters, of so many rows each at least. In the training
# benchmark 16 served as well as 64 of 12 rows each, and better than 4 (docs/benchmarks.md).
USUAL_CLUSTERS, USUAL_ROWS = 16, 12


@dataclass(kw_only=True)
class ClusterConfig:
    """How rows are grouped.

    Attributes
    ----------
    num_clusters : int, optional
        K; by default 16, or one for every 12 rows where there are fewer than 192. What needs as
        many as workers (the paper's selection, pinned schedules) gets these, see
        `pipeline.config`.
    feature : str, optional
        Which feature of the pass; by default embed.feature. A run takes head_sketch instead of
        target_row where the pass makes both and the selection is not the paper's, see
        `pipeline.config`.
    normalize, center : bool
        What is done to raw embeddings on reading.
    n_init : int
        Starts of k-means.
    fit_rows : int
        K-means is fitted on at most that many rows, drawn with the seed. The starts are compared
        on `fit_rows / n_init` of them, so that all together cost about one pass over them.
    slack : float
        Soft cap: no cluster above ceil((1 + slack) N / K) once one exceeds (1 + slack) N / K.
    candidates : int
        Nearest centres that the cap considers before it looks for any with room.
    min_rows : int
        Clusters below are merged into their nearest; at most N / (2 K), so that a floor can be
        kept. 0 for none.
    restore_count : str
        Whether the largest clusters are split until there are K again after a merge: yes, no,
        or auto, which means yes where K is the number of workers.
    seed : int
        Of the sample and of k-means.
    """

    num_clusters: int | None = None
    feature: str | None = None
    normalize: bool = True
    center: bool = False
    n_init: int = 10
    fit_rows: int = 100_000
    slack: float = 0.5
    candidates: int = 64
    min_rows: int = 16
    restore_count: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check each field by itself."""
        if self.num_clusters is not None:
            require_at_least("cluster.num_clusters", self.num_clusters, 1)
        for name in ("n_init", "candidates"):
            require_at_least(f"cluster.{name}", getattr(self, name), 1)
        require(
            0.0 <= self.slack < float("inf"),
            f"cluster.slack={self.slack} must be >= 0 and finite; for no cap set it to "
            f"cluster.num_clusters",
        )
        require_at_least("cluster.min_rows", self.min_rows, 0)
        require_at_least("cluster.fit_rows", self.fit_rows, self.num_clusters or 1)
        require_one_of("cluster.restore_count", self.restore_count, ("auto", "yes", "no"))

    def wanted(self, num_rows: int) -> int:
        """Count the clusters that so many rows shall have."""
        if self.num_clusters is not None:
            return self.num_clusters
        return max(1, min(USUAL_CLUSTERS, num_rows // USUAL_ROWS, self.fit_rows))

    def start_rows(self, num_clusters: int) -> int:
        """Count the rows on which the starts of k-means are compared."""
        of_each = START_ROWS_PER_CLUSTER * num_clusters
        return max(START_ROWS, of_each, self.fit_rows // self.n_init)


def identity(settings: ClusterConfig) -> Facts:
    """Name every setting of the section, and the rule where no number is given."""
    params = section_params(settings)
    if settings.num_clusters is None:
        params["num_clusters"] = [USUAL_CLUSTERS, USUAL_ROWS]
    return params


def run(
    settings: ClusterConfig, inputs: Mapping[str, Artifact], draft: Draft, spread: Spread
) -> Run:
    """Cluster all embedded rows."""
    from threadpoolctl import threadpool_limits

    embed = inputs["embed"]
    # Sums depend on the number of threads; with one, the same rows give the same bytes.
    with threadpool_limits(1):
        space = space_of(embed, settings.feature, settings.normalize, settings.center)
        sample = read_sample(space, settings)
        fitted = fit(sample, settings.wanted(embed.num_rows), settings)
        centers, nearest = yield from assign_with_floors(
            fitted, sample, space, settings, draft=draft, spread=spread
        )
        labels, distances = nearest.candidates[:, 0], nearest.distances[:, 0]
        sizes = np.bincount(labels, minlength=len(centers))
        capped = exceeds_cap(sizes, settings.slack)
        if capped:
            labels, distances = yield from cap_clusters(
                centers, space, settings, draft=draft, spread=spread
            )
            sizes = np.bincount(labels, minlength=len(centers))
    parts = cut(embed.parts[-1].stop, ROWS_PER_PART)
    row_ids = embed.array("row_id")
    for spec in parts:
        first, last = np.searchsorted(row_ids, [spec.start, spec.stop])
        columns = [row_ids[first:last], labels[first:last], distances[first:last]]
        yield draft.write_part(spec, pa.table(columns, schema=CLUSTER), layout=Layout())
    draft.write_side("centers.parquet", centers_table(centers, sizes))
    facts = {"num_clusters": len(centers), "sizes": sizes.tolist(), "capped": capped}
    return Outcome(parts, facts, ("centers.parquet",))


def read_sample(space: Space, settings: ClusterConfig) -> FloatArray:
    """Read the prepared rows that k-means is fitted on, in order of their ids."""
    num_rows = space.embed.num_rows
    places = np.arange(num_rows)
    if settings.fit_rows < num_rows:
        rng = np.random.default_rng(settings.seed)
        places = np.sort(rng.choice(num_rows, settings.fit_rows, replace=False))
    pieces = []
    start = 0
    for table in space.embed.iter_parts([space.column]):
        first, last = np.searchsorted(places, [start, start + table.num_rows])
        pieces.append(space.prepare(matrix(table, space.column)[places[first:last] - start]))
        start += table.num_rows
    return np.concatenate(pieces)


def fit(sample: FloatArray, wanted: int, settings: ClusterConfig) -> FloatArray:
    """Fit the centres, fewer than wanted where there are fewer distinct embeddings."""
    possible = num_distinct(sample, wanted)
    if possible < wanted:
        log.warning(
            "cluster: there are only %d distinct embeddings; cluster.num_clusters=%d is lowered",
            possible,
            wanted,
        )
    num_clusters = min(wanted, possible)
    return fit_from_starts(
        sample,
        num_clusters,
        n_init=settings.n_init,
        start_rows=settings.start_rows(num_clusters),
        seed=settings.seed,
    )


def assign_with_floors(
    centers: FloatArray,
    sample: FloatArray,
    space: Space,
    settings: ClusterConfig,
    *,
    draft: Draft,
    spread: Spread,
) -> Generator[Receipt, None, tuple[FloatArray, Nearest]]:
    """Assign all rows; merge clusters under the floor, and split the largest where asked.

    A split can leave a cluster under the floor again, so it is tried a few times; after that
    the merge stands and there are fewer clusters than asked, which is logged.
    """
    wanted = len(centers)
    least = min(settings.min_rows, space.embed.num_rows // (2 * wanted))
    tries_left = SPLIT_TRIES if settings.restore_count == "yes" else 0
    while True:
        nearest = yield from find_nearest(space, centers, 1, draft=draft, spread=spread)
        sizes = np.bincount(nearest.candidates[:, 0], minlength=len(centers))
        small = small_clusters(centers, sizes, least)
        if small.size == 0:
            break
        log.warning(
            "cluster: clusters of %s rows are under the floor of %d and go to their nearest%s",
            sizes[small].tolist(),
            least,
            "; the largest are split instead" if tries_left else "",
        )
        centers = np.delete(centers, small, axis=0)
        if tries_left:
            in_sample = least * len(sample) // space.embed.num_rows
            centers = split_largest(centers, sample, wanted, in_sample, settings)
            tries_left -= 1
    if len(centers) < wanted:
        log.warning("cluster: %d clusters are left of %d", len(centers), wanted)
    return centers, nearest


def split_largest(
    centers: FloatArray, sample: FloatArray, wanted: int, least: int, settings: ClusterConfig
) -> FloatArray:
    """Cut the largest cluster that can be cut in two, until there are `wanted` centres."""
    while len(centers) < wanted:
        labels = nearest_centers(sample, centers, 1)[0][:, 0]
        by_size = np.argsort(-np.bincount(labels, minlength=len(centers)), kind="stable")
        for cluster in by_size:
            members = sample[labels == cluster]
            halves = split_center(members, least=least, n_init=settings.n_init, seed=settings.seed)
            if halves is not None:
                centers = np.concatenate([np.delete(centers, cluster, axis=0), halves])
                break
        else:
            break
    return centers


def cap_clusters(
    centers: FloatArray, space: Space, settings: ClusterConfig, *, draft: Draft, spread: Spread
) -> Generator[Receipt, None, tuple[IntArray, FloatArray]]:
    """Assign all rows again so that no cluster exceeds the soft cap."""
    num_clusters = len(centers)
    num_candidates = min(num_clusters, settings.candidates)
    nearest = yield from find_nearest(space, centers, num_candidates, draft=draft, spread=spread)
    capacity = soft_capacity(len(nearest.candidates), num_clusters, settings.slack)
    labels, distances = capped_labels(nearest.candidates, nearest.distances, capacity, num_clusters)
    rest = np.flatnonzero(labels < 0)
    if rest.size:
        to_all = distances_to(space.read_rows(space.embed.array("row_id")[rest]), centers)
        labels[rest], distances[rest] = place_rest(labels, to_all, capacity)
    log.info("cluster: the soft cap of %d rows was applied", capacity)
    return labels, distances


def centers_table(centers: FloatArray, sizes: npt.NDArray[np.int64]) -> pa.Table:
    """Lay centres and sizes into the side table."""
    numbers = np.arange(len(centers), dtype=np.int32)
    vectors = pa.array(list(centers), CENTERS.field("center").type)
    return pa.table([pa.array(numbers), pa.array(sizes), vectors], schema=CENTERS)


CLUSTER_STAGE = Stage(name="cluster", version=4, reads=("embed",), identity=identity, run=run)
