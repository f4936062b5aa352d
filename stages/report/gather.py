"""From the artifacts to everything that the page says, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.contract.artifact import Artifact
from stages.report.charts import (
    NUM_COLOURS,
    Spec,
    compare_chart,
    errors_chart,
    funnel_chart,
    map_chart,
    strip_chart,
    weights_chart,
)
from stages.report.fates import funnel
from stages.report.numbers import (
    IntArray,
    Pool,
    cluster_rows,
    extremes,
    histogram,
    sample_both,
    sample_places,
    step_tokens,
    strip,
    worker_rows,
)
from stages.report.reading import (
    Excerpt,
    read_excerpts,
    read_leak_examples,
    read_plane,
    read_pool,
    read_reject_examples,
)
from stages.report.terms import top_terms

POINTS = 2000
HOVER_CHARS = 140
EXAMPLE_CHARS = 240
EXAMPLES = 3
# Clusters in the table, and clusters with terms and examples: the largest ones.
TABLE_CLUSTERS, TOLD_CLUSTERS = 400, 60
TERM_TEXTS = 4000
WORKERS_SHOWN = 128
REJECTS_PER_REASON = 5
CHART_METHODS = 6
MAP_STREAM, TERM_STREAM = 11, 12


@dataclass(frozen=True)
class Story:
    """All that the page says.

    Attributes
    ----------
    manifest : dict
        Of the published folder.
    facts : dict of str to dict
        Of every stage.
    charts : dict of str to Spec
        By the id of their place on the page.
    funnel, clusters, bins, workers : list of dict
        Rows of the tables.
    clusters_in_all : int
        How many there are; the table holds the largest.
    map_share, map_points : float, int
        Variance in the plane; rows on the map.
    keys : dict of str to list of dict
        `cluster` and `source`: name and slot of the colours of the map.
    rejects, leaks : examples.
    compare : list of dict
        Rows of compare.json, if there is one of this set.
    left_out : str
        Why a comparison is not shown, where there is one.
    """

    manifest: Mapping[str, Any]
    facts: Mapping[str, Mapping[str, Any]]
    charts: dict[str, Spec]
    funnel: list[dict[str, Any]]
    clusters: list[dict[str, Any]]
    clusters_in_all: int
    bins: list[dict[str, float]]
    workers: list[dict[str, float]]
    map_share: float
    map_points: int
    keys: dict[str, list[dict[str, Any]]]
    rejects: dict[str, list[dict[str, str]]]
    leaks: list[dict[str, str]]
    compare: list[dict[str, Any]]
    left_out: str


def gather(
    artifacts: Mapping[str, Artifact],
    manifest: Mapping[str, Any],
    compare: Mapping[str, Any] | None,
    left_out: str = "",
) -> Story:
    """Read and compute everything, in memory that holds a few numbers per row and no text."""
    facts = {name: artifact.facts for name, artifact in artifacts.items()}
    pool = read_pool(
        artifacts,
        num_workers=manifest["world_size"],
        rows_per_step=manifest["micro_batch"] * manifest["accumulation"],
    )
    seed = int(manifest["seed"])
    steps = step_tokens(pool)
    told = _told_clusters(pool)
    on_map = sample_both(pool.is_kept, POINTS, np.random.default_rng([seed, MAP_STREAM]))
    for_terms = _term_places(pool, told, np.random.default_rng([seed, TERM_STREAM]))
    ends = {k: extremes(pool, k, EXAMPLES) for k in told}
    wanted = np.concatenate([on_map, for_terms, *(e for pair in ends.values() for e in pair)])
    excerpts = read_excerpts(artifacts["rows"], pool.row_ids[wanted], most=EXAMPLE_CHARS)
    terms = top_terms(
        [excerpts[r].words for r in pool.row_ids[for_terms].tolist()],
        pool.cluster[for_terms].tolist(),
        pool.num_clusters,
    )
    points, centers, keys, share = _map(artifacts, pool, on_map, excerpts, told)
    steps_of = funnel(facts, pool.kept.size)
    bins = histogram(pool.weight)
    compared = compare_rows(compare)
    quality = facts["allocate"].get("quality")
    charts = {
        "funnel": funnel_chart(steps_of, "Rows left after each step, as bars"),
        "map": map_chart(points, centers, "Rows in the plane of their largest variance"),
        "weights": weights_chart(bins, "Histogram of the weights of the kept rows"),
        "strip": _strip_chart(pool, steps),
        **({"errors": _errors_chart(quality)} if quality is not None else {}),
        **({"compare": budget_chart(compared)} if compared else {}),
    }
    return Story(
        manifest=manifest,
        facts=facts,
        charts=charts,
        funnel=steps_of,
        clusters=_clusters(pool, quality, told, terms, ends, excerpts),
        clusters_in_all=pool.num_clusters,
        bins=bins,
        workers=worker_rows(pool, steps),
        map_share=share,
        map_points=on_map.size,
        keys=keys,
        rejects=read_reject_examples(artifacts, per_reason=REJECTS_PER_REASON, most=EXAMPLE_CHARS),
        leaks=read_leak_examples(artifacts["screen"], count=REJECTS_PER_REASON),
        compare=compared,
        left_out=left_out,
    )


def _told_clusters(pool: Pool) -> list[int]:
    """Give the largest clusters, largest first, of which terms and examples are shown."""
    sizes = np.bincount(pool.cluster, minlength=pool.num_clusters)
    order: list[int] = np.argsort(-sizes, kind="stable")[:TOLD_CLUSTERS].tolist()
    return order


def _term_places(pool: Pool, told: Sequence[int], rng: np.random.Generator) -> IntArray:
    """Draw the rows whose words are counted, as many of each cluster."""
    each = max(1, TERM_TEXTS // len(told))
    drawn = []
    for cluster in told:
        members = np.flatnonzero(pool.cluster == cluster)
        drawn.append(members[sample_places(members.size, each, rng)])
    return np.sort(np.concatenate(drawn)).astype(np.int64)


def _map(
    artifacts: Mapping[str, Artifact],
    pool: Pool,
    on_map: IntArray,
    excerpts: Mapping[int, Excerpt],
    told: Sequence[int],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, list[dict[str, Any]]], float]:
    """Place the sampled rows and the centres, and choose who gets a colour of its own."""
    row_ids = pool.row_ids[on_map]
    plane, middles, share = read_plane(artifacts, row_ids)
    weight = np.zeros(pool.row_ids.size)
    weight[pool.kept] = pool.weight
    kept = pool.is_kept[on_map]
    sources = [excerpts[r].source for r in row_ids.tolist()]
    slots = {
        "cluster": slots_of([str(k) for k in pool.cluster[on_map].tolist()]),
        "source": slots_of(sources),
    }
    points = []
    for at, (place, row_id) in enumerate(zip(on_map.tolist(), row_ids.tolist(), strict=True)):
        told_row, cluster = excerpts[row_id], int(pool.cluster[place])
        points.append(
            {
                "x": round(float(plane[at, 0]), 4),
                "y": round(float(plane[at, 1]), 4),
                "by_cluster": slots["cluster"].get(str(cluster), NUM_COLOURS),
                "by_source": slots["source"].get(sources[at], NUM_COLOURS),
                "row": row_id,
                "cluster": cluster,
                "source": sources[at],
                "state": "kept" if kept[at] else "not selected",
                "distance": f"{pool.distance[place]:.3f}",
                "tokens": int(pool.num_tokens[place]),
                "weight": f"{weight[place]:.3f}" if kept[at] else "none",
                "prompt": cut(told_row.prompt, HOVER_CHARS),
                "answer": cut(told_row.answer, HOVER_CHARS),
            }
        )
    # Dots over crosses: what is drawn later lies on top.
    points.sort(key=lambda point: point["state"] == "kept")
    centers = [
        {"x": round(float(middles[k, 0]), 4), "y": round(float(middles[k, 1]), 4), "name": str(k)}
        for k in sorted(told[:40])
    ]
    keys = {
        kind: [{"name": name, "slot": slot} for name, slot in found.items()]
        for kind, found in slots.items()
    }
    for kind, names in (("cluster", set(map(str, pool.cluster[on_map]))), ("source", set(sources))):
        if len(names) > NUM_COLOURS:
            keys[kind].append({"name": "all others", "slot": NUM_COLOURS})
    return points, centers, keys, share


def slots_of(names: Sequence[str]) -> dict[str, int]:
    """Give the most frequent names a colour each; ties go to the earlier name."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    best = sorted(counts, key=lambda name: (-counts[name], name))[:NUM_COLOURS]
    return {name: slot for slot, name in enumerate(best)}


def cut(text: str, most: int) -> str:
    """Shorten a text that is on one line already."""
    return text if len(text) <= most else text[:most] + "..."


def _clusters(
    pool: Pool,
    quality: Mapping[str, Any] | None,
    told: Sequence[int],
    terms: Sequence[Sequence[str]],
    ends: Mapping[int, tuple[IntArray, IntArray]],
    excerpts: Mapping[int, Excerpt],
) -> list[dict[str, Any]]:
    """Lay out the table of clusters: the largest ones, with terms and examples of the first."""
    errors = quality["selection"]["cluster_errors"] if quality else [None] * pool.num_clusters
    kept = pool.is_kept

    def examples(places: IntArray) -> list[dict[str, Any]]:
        return [
            {
                "excerpt": excerpts[int(pool.row_ids[place])],
                "distance": float(pool.distance[place]),
                "kept": bool(kept[place]),
            }
            for place in places.tolist()
        ]

    rows = sorted(cluster_rows(pool), key=lambda row: (-row["rows"], row["cluster"]))
    found: list[dict[str, Any]] = []
    for row in rows[:TABLE_CLUSTERS]:
        k = int(row["cluster"])
        more: dict[str, Any] = {"error": errors[k], "terms": terms[k], "examples": None}
        if k in ends:
            near, far = ends[k]
            more["examples"] = {"nearest": examples(near), "farthest": examples(far)}
        found.append({**row, **more})
    return found


def compare_rows(compare: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Take the rows of a comparison at equal numbers of rows, best first at each budget."""
    if compare is None:
        return []
    rows = [r for r in compare["table"] if r["by"] == "rows" and "ratio" in r]
    return sorted(rows, key=lambda r: (-budget_share(r["budget"]), r["ratio"], r["method"]))


def budget_share(text: str) -> float:
    """Read a budget of `compare` as a share of the rows: 0.5 or 50%."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _strip_chart(pool: Pool, steps: IntArray) -> Spec:
    """Draw the tokens of the first workers in every step."""
    cells = [cell for cell in strip(steps) if cell["worker"] < WORKERS_SHOWN]
    told = "Tokens of every worker in every step, beside the mean of the step"
    return strip_chart(cells, min(pool.num_workers, WORKERS_SHOWN), told)


def _errors_chart(quality: Mapping[str, Any]) -> Spec:
    """Draw the error of each cluster of which something is kept."""
    errors = enumerate(quality["selection"]["cluster_errors"])
    rows = [{"cluster": k, "error": error} for k, error in errors if error is not None]
    random_mean = quality["random"]["cluster_error_mean"]
    return errors_chart(rows[:TABLE_CLUSTERS], random_mean, "Gradient error of each cluster")


def budget_chart(rows: Sequence[Mapping[str, Any]]) -> Spec:
    """Draw random and the best methods, by their mean ratio to random over the budgets."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        ratios.setdefault(row["method"], []).append(row["ratio"])
    best = sorted(ratios, key=lambda m: (m != "random", float(np.mean(ratios[m])), m))
    shown = best[:CHART_METHODS]
    lines = [
        {
            "method": row["method"],
            "budget": budget_share(row["budget"]),
            "error": row["gradient_error"],
        }
        for row in rows
        if row["method"] in shown
    ]
    return compare_chart(lines, shown, "Gradient error against the share of rows kept")
