"""Clusters of a feature against the sources of a mixed set, which the feature never saw.

Normalised mutual information of cluster and source (arithmetic mean of the entropies), for each
feature and number of clusters, beside random labelings of the same sizes.

    python -m benchmarks.clusters rows.path=mix.jsonl rows.limit=400
"""

import shlex
import sys
from collections.abc import Sequence

import numpy as np
from sklearn.metrics import normalized_mutual_info_score

from benchmarks.results import Figure, report
from pipeline.config import compose
from pipeline.plan import run_stages

FEATURES = ("target_row", "hidden_mean", "head_sketch")
NUM_CLUSTERS = (4, 15)
RANDOM_LABELINGS = 20


def measure(feature: str, num_clusters: int, overrides: Sequence[str]) -> tuple[float, list[float]]:
    """Cluster by one feature and compare with the sources; the random ones after it."""
    # No floor, so that there are as many clusters as the figure says.
    config = compose(
        [
            *overrides,
            f"embed.feature={feature}",
            f"cluster.num_clusters={num_clusters}",
            "cluster.min_rows=0",
        ]
    )
    reports = run_stages(config, last="cluster")
    cluster = reports["cluster"].artifact
    rows = reports["rows"].artifact.read(["source"])
    sources = np.array(rows["source"].to_pylist())[cluster.array("row_id")]
    labels = cluster.array("cluster")
    rng = np.random.default_rng(config.seed)
    random = [
        float(normalized_mutual_info_score(sources, rng.permutation(labels)))
        for _ in range(RANDOM_LABELINGS)
    ]
    return float(normalized_mutual_info_score(sources, labels)), random


def main(overrides: Sequence[str]) -> None:
    """Measure every feature at every number of clusters."""
    figures = []
    for num_clusters in NUM_CLUSTERS:
        for feature in FEATURES:
            value, random = measure(feature, num_clusters, overrides)
            label = f"NMI of cluster and source, {feature}, K = {num_clusters}"
            figures.append(Figure(label, value, max(random), "higher"))
            label = f"the same, mean of {RANDOM_LABELINGS} random labelings of the same sizes"
            figures.append(Figure(label, float(np.mean(random)), None, "higher"))
    report("clusters", f"python -m benchmarks.clusters {shlex.join(overrides)}", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
