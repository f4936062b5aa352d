"""`compare`: one pass over the rows, then every method at every budget, beside random."""

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from pipeline.budgets import check_compared
from pipeline.comparison import Pool, compare
from pipeline.comparison_table import as_markdown, table
from pipeline.config import Config, compose
from pipeline.plan import run_stage, run_stages
from pipeline.versions import package_versions
from stages.allocate.candidates import Candidates, IntArray
from stages.allocate.reading import judge_of, read_candidates
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.artifact import Artifact
from stages.contract.draft import write_json
from stages.contract.folder import store_path
from stages.report.write import require_library, write_plot
from stages.shards.publish import COMPARISON

log = logging.getLogger(__name__)

RESULT, TABLE, PLOT = COMPARISON
# A feature is kept in memory up to this size; above it, every selection reads it anew.
CACHE_BYTES = 2 << 30


def run_compare(config: Config) -> str:
    """Embed once, select by every method, and write the comparison into the run's folder.

    Parameters
    ----------
    config : Config
        Composed with `compare_overrides`.

    Returns
    -------
    str
        The tables, one per budget, and where they are.
    """
    require_library()
    reports = run_stages(config, last="cluster", check=check_compared)
    artifacts = {name: report.artifact for name, report in reports.items()}
    paper = run_stage(
        CLUSTER_STAGE, paper_clusters(config), artifacts, store_path(config.store), config
    ).artifact
    pools = make_pools(artifacts, paper)
    with threadpool_limits(1):
        cells = compare(pools, config.allocate, config.compare, tell=log.info)
    rows = table(cells)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    told = "\n\n".join(
        f"## {text} of the rows\n\n{as_markdown(rows, text)}" for text in config.compare.budgets
    )
    facts = {
        "name": config.name,
        "rows": pools[False].candidates.num_rows,
        "clusters": pools[False].candidates.num_clusters,
        "seeds": config.compare.seeds,
        "keys": {name: artifact.key for name, artifact in artifacts.items()},
        "versions": package_versions(),
    }
    result = {**facts, "table": rows}
    write_json(out / RESULT, result)
    write_plot(out / PLOT, result)
    (out / TABLE).write_text(explained(config, facts) + told + "\n", encoding="utf-8")
    files = f"the numbers in {out / RESULT}, the plot in {out / PLOT}"
    return f"{told}\n\nThe tables are in {out / TABLE}, {files}."


def paper_clusters(config: Config) -> ClusterConfig:
    """Give the settings of the paper's clustering: `experiment=paper`, section cluster."""
    workers = config.allocate.num_workers
    paper = compose(
        ["experiment=paper", f"allocate.num_workers={workers}", f"seed={config.seed}"]
    ).cluster
    return dataclasses.replace(paper, feature="target_row")


def make_pools(artifacts: dict[str, Artifact], paper: Artifact) -> dict[bool, Pool]:
    """Gather candidates of the run's clusters and of the paper's, False and True.

    Features are kept in memory where they are small. Raw features and the judge are of the same
    rows in both, so they are kept once; only what a clustering prepared is its own.
    """
    candidates, row_ids = read_candidates(artifacts)
    read_judge = judge_of(artifacts["embed"], row_ids)
    assert read_judge is not None, "compare_overrides asks for the judge"
    every = np.arange(candidates.num_rows)
    judge: Any = kept_in_memory(lambda _, places: read_judge(places), every)
    features = kept_in_memory(candidates.read_feature, every)

    def pool(own: Candidates) -> Pool:
        prepared: Any = kept_in_memory(lambda _, places: own.read_embeddings(places), every)
        held: Candidates = dataclasses.replace(
            own,
            read_feature=features,
            read_embeddings=lambda places: prepared("", places),
        )
        return Pool(held, lambda places: judge("", places))

    of_paper, _ = read_candidates({**artifacts, "cluster": paper})
    return {False: pool(candidates), True: pool(of_paper)}


def kept_in_memory(
    read: Callable[[str, IntArray], npt.NDArray[np.float32]], every: IntArray
) -> Callable[[str, IntArray], npt.NDArray[np.float32]]:
    """Read a feature once, if it is small, and then serve rows of it."""
    held: dict[str, npt.NDArray[np.float32]] = {}

    def serve(name: str, places: IntArray) -> npt.NDArray[np.float32]:
        if name not in held:
            dim = read(name, every[:1]).shape[1]
            if 4 * dim * every.size > CACHE_BYTES:
                return read(name, places)
            held[name] = read(name, every)
        rows: npt.NDArray[np.float32] = held[name][places]
        return rows

    return serve


def explained(config: Config, facts: dict[str, Any]) -> str:
    """Say what the columns mean."""
    return f"""# {config.name}: methods compared

{facts["rows"]} rows, {facts["clusters"]} clusters, {facts["seeds"]} selections of each method;
`random` is twenty draws of as many rows. Every figure is taken on a sketch of the exact LM-head
gradient that no method has seen.

- error: of the weighted mean gradient of the kept rows against that of all rows, relative
- of random: the same over the error of random rows; same tokens: with as many tokens instead
- clusters, worst cluster: the same error inside each cluster, mean and largest
- step: error of the gradient of one synchronized step
- effective: effective sample size of the weights; radius: mean distance to the nearest kept row
- sources, lengths: how far the mix moved (total variation, 0 to 1)
- beats random: lower by more than two standard errors

"""
