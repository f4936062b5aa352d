"""CluSTER's rules once more, slow and plain, written from the paper and not from our code.

Only numpy, scikit-learn's KMeans and loops. Tests compare the pipeline's labels, kept rows and
weights with what these functions say. Distances are float64 throughout.
"""

import math

import numpy as np
from sklearn.cluster import KMeans


def unit_rows(embeddings):
    """Each row divided by its own Euclidean length."""
    rows = np.asarray(embeddings, dtype=np.float64)
    return np.array([row / math.sqrt(float(row @ row)) for row in rows])


def fit_kmeans(points, num_clusters, seed):
    """k-means over every row: (labels, centers)."""
    model = KMeans(n_clusters=num_clusters, n_init=10, random_state=seed).fit(points)
    return model.labels_.astype(int), model.cluster_centers_.astype(np.float64)


def distance_table(points, centers):
    """Euclidean distance of each row to each center, of shape (rows, clusters)."""
    table = np.empty((len(points), len(centers)))
    for row, point in enumerate(points):
        for cluster, center in enumerate(centers):
            table[row, cluster] = math.sqrt(float(((point - center) ** 2).sum()))
    return table


def needs_cap(labels, num_clusters, slack):
    """Whether the largest cluster exceeds (1 + slack) N / K."""
    largest = max(np.bincount(labels, minlength=num_clusters))
    return bool(largest > (1 + slack) * len(labels) / num_clusters)


def soft_cap(labels, distances, slack, candidates=8):
    """Reassign every row greedily, nearest pair first, at most ceil((1 + slack) N / K) a cluster.

    A row asks its `candidates` nearest centers; rows left over then take any center with room,
    again nearest pair first. Nothing changes when no cluster exceeds the cap's threshold.
    Centers stay as they were.
    """
    num_rows, num_clusters = distances.shape
    if not needs_cap(labels, num_clusters, slack):
        return labels.copy()
    near = [sorted(range(num_clusters), key=lambda k: row[k])[:candidates] for row in distances]
    anyone = [range(num_clusters)] * num_rows
    room = [math.ceil((1 + slack) * num_rows / num_clusters)] * num_clusters
    capped = [-1] * num_rows
    for asked in (near, anyone):
        pairs = [(distances[row, k], row, k) for row in range(num_rows) for k in asked[row]]
        for _, row, cluster in sorted(pairs):
            if capped[row] == -1 and room[cluster] > 0:
                capped[row] = cluster
                room[cluster] -= 1
    assert -1 not in capped  # K caps of at least N / K hold all N rows
    return np.array(capped)


def cluster_quota(labels, num_clusters, ratio, rows_per_step=1):
    """The rows each cluster keeps: floor(ratio * smallest), down to a multiple of A * B."""
    smallest = min(np.bincount(labels, minlength=num_clusters))
    quota = math.floor(ratio * smallest)
    return quota - quota % rows_per_step


def farthest_first(points, start, count):
    """Greedy k-center: from `start`, always the member farthest from all chosen so far."""
    chosen = [start]
    gap = [float(((point - points[start]) ** 2).sum()) for point in points]
    while len(chosen) < count:
        open_members = [member for member in range(len(points)) if member not in chosen]
        best = max(open_members, key=lambda member: (gap[member], -member))
        chosen.append(best)
        gap = [min(gap[m], float(((p - points[best]) ** 2).sum())) for m, p in enumerate(points)]
    return chosen


def keep_rows(keep, members, quota, points, distance, norms):
    """The `quota` members of one cluster that the rule keeps, as a set of row ids.

    members : row ids of the cluster
    distance, norms : per row, to the row's own center and of the raw embedding
    """
    near = sorted(members, key=lambda row: (distance[row], row))
    if keep == "nearest":
        kept = near[:quota]
    elif keep == "farthest":
        kept = near[len(near) - quota :]
    elif keep == "mixed":
        half = quota // 2
        kept = near[:half] + near[len(near) - (quota - half) :]
    elif keep == "largest_norm":
        kept = sorted(members, key=lambda row: (-norms[row], row))[:quota]
    elif keep == "kcenter":
        start = members.index(near[0])
        kept = [members[at] for at in farthest_first(points[members], start, quota)]
    else:
        raise ValueError(f"keep={keep!r} leaves no fixed set of rows")
    assert len(set(kept)) == quota
    return set(kept)


def worker_weights(labels, num_workers):
    """W * n_k / N per cluster, n_k counted after the cap and before anything is dropped."""
    sizes = np.bincount(labels, minlength=num_workers)
    return [num_workers * int(size) / len(labels) for size in sizes]
