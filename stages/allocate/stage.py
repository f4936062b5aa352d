"""The allocate room's door to the disk: quota, then selection, then weight, then schedule."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evenshard.shards import OBJECTIVES
from stages.allocate.budget import Asked, StepShape, exact, parse_budget
from stages.allocate.candidates import Candidates, IntArray
from stages.allocate.choose import Selection, choose
from stages.allocate.figures import beside_random, figures_of, random_figures
from stages.allocate.objective import as_counted, counted_by, weights_of
from stages.allocate.order import balanced, kinds_of, prefix_errors, projected
from stages.allocate.plan_figures import imbalance, max_deviation, places
from stages.allocate.quality import ReadJudge, Weighted
from stages.allocate.reading import (
    SECOND,
    judge_of,
    num_targets_of,
    read_candidates,
    unscored,
)
from stages.allocate.schedule import SCHEDULES, Schedule, build_schedule
from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.weights import effective_sample_size, level_by_cluster
from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import (
    require,
    require_at_least,
    require_one_of,
    require_share,
)
from stages.contract.fingerprint import section_params
from stages.contract.parts import Facts, Outcome, Run, Spread, cut
from stages.contract.rejects import ROW_COLUMNS, reject_rows
from stages.contract.schemas import ALLOCATE
from stages.contract.stage import Stage
from stages.contract.tables import Layout

log = logging.getLogger(__name__)

ORDERS = ("random", "balanced")
ROWS_PER_PART = 1_000_000
SCHEDULE_STREAM = 1
JUDGE_STREAM = 2
REJECTS = "rejects-00000.parquet"
# The feature whose sums `order=balanced` keeps small, read by so many rows at once.
BALANCED = "head_sketch"
ROWS_PER_BLOCK = 8192


@dataclass(kw_only=True)
class AllocateConfig:
    """What is kept and how it is dealt.

    Attributes
    ----------
    selector : Selector
        How rows are chosen; a group, one file each under stages/allocate/selectors.
    ratio : float, optional
        A share of the smallest cluster (cluster_balanced) or of the candidates (the others);
        1.0 and 0.5 where neither it nor a budget is given.
    budget : str, optional
        2000 or 2000rows, 0.5 or 50% of the candidates, 300000tokens; not with a ratio.
    num_workers : int
        W, data-parallel workers of the training job, one shard each.
    micro_batch, accumulation : int
        B and A of the training job; every worker gets whole steps of A * B rows.
    order : str
        Rows of one cluster and like length meet the steps in a random order, or in one that keeps
        the sum of gradients in balance (balanced; it needs the feature head_sketch).
    schedule : str
        auto, pinned (a worker holds its own clusters) or dealt (tokens even out).
    objective : str
        What the trainer computes, written into the manifest: sample, token, or rank. For token
        rows count by their trained tokens, in choosing, weighing and judging. For rank with a
        micro_batch above 1, the rows of a cluster get one weight, their mean.
    on_empty_quota : str
        A cluster that would keep no row: merge its mass into the nearest, or error.
    seed : int
        Of selection and schedule.
    """

    selector: Any = field(default_factory=ClusterBalanced)
    ratio: float | None = None
    budget: str | None = None
    num_workers: int = 4
    micro_batch: int = 1
    accumulation: int = 1
    order: str = "random"
    schedule: str = "auto"
    objective: str = "sample"
    on_empty_quota: str = "merge"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check each field by itself, and ratio against budget."""
        for name in ("num_workers", "micro_batch", "accumulation"):
            require_at_least(f"allocate.{name}", getattr(self, name), 1)
        require_one_of("allocate.schedule", self.schedule, SCHEDULES)
        require_one_of("allocate.order", self.order, ORDERS)
        require_one_of("allocate.objective", self.objective, OBJECTIVES)
        require_one_of("allocate.on_empty_quota", self.on_empty_quota, ("merge", "error"))
        require(
            self.ratio is None or self.budget is None,
            f"allocate.ratio={self.ratio} and allocate.budget={self.budget} exclude each other; "
            f"give one of them",
        )
        if self.ratio is not None:
            require_share("allocate.ratio", self.ratio)
        if self.budget is not None:
            parse_budget(self.budget)

    @property
    def asked(self) -> Asked:
        """The budget, whichever key it came by."""
        if self.budget is not None:
            return parse_budget(self.budget)
        return Asked("ratio", exact(self.share), f"allocate.ratio={self.share}")

    @property
    def share(self) -> float:
        """The ratio where no budget is given; the default is the paper's, or half of the rows."""
        if self.ratio is not None:
            return self.ratio
        return 1.0 if self.selector.ratio_of == "smallest_cluster" else 0.5

    @property
    def step(self) -> StepShape:
        """How a synchronized step is laid out."""
        return StepShape(self.num_workers, self.accumulation, self.micro_batch)


def identity(settings: AllocateConfig) -> Facts:
    """Name every setting of the section, with the default ratio resolved."""
    params = section_params(settings)
    if settings.budget is None and settings.ratio is None:
        params["ratio"] = settings.share
    return params


def run(
    settings: AllocateConfig, inputs: Mapping[str, Artifact], draft: Draft, spread: Spread
) -> Run:
    """Choose, weigh and schedule rows; write them in order of their row ids."""
    from threadpoolctl import threadpool_limits

    candidates, row_ids = read_candidates(inputs)
    num_targets = num_targets_of(inputs, row_ids)
    counted = as_counted(candidates, num_targets, settings.objective)
    # Selectors multiply matrices; sums depend on the number of threads.
    with threadpool_limits(1):
        chosen = choose(
            settings.selector,
            settings.asked,
            settings.step,
            counted,
            on_empty_quota=settings.on_empty_quota,
            seed=settings.seed,
        )
    if settings.objective == "rank" and settings.micro_batch > 1:
        chosen = levelled(chosen, candidates)
    own = num_targets[chosen.rows]
    selection = Selection(chosen.rows, weights_of(chosen.weights, own, settings.objective))
    clusters = candidates.cluster[selection.rows]
    num_tokens = candidates.num_tokens[selection.rows]
    schedule = build_schedule(
        clusters,
        num_tokens,
        candidates.num_clusters,
        settings.step,
        kind=settings.schedule,
        objective=settings.objective,
        rng=np.random.default_rng([settings.seed, SCHEDULE_STREAM]),
        rearrange=balancer(settings, candidates, chosen) if settings.order != "random" else None,
    )
    worker, position = places(schedule.plan)
    kept_ids = row_ids[selection.rows]
    parts = cut(int(row_ids[-1]) + 1, ROWS_PER_PART)
    columns = (kept_ids, worker, position, selection.weights.astype(np.float32), clusters)
    for spec in parts:
        first, last = np.searchsorted(kept_ids, [spec.start, spec.stop])
        table = pa.table([column[first:last] for column in columns], schema=ALLOCATE)
        yield draft.write_part(spec, table, layout=Layout())
    facts = describe(settings, candidates, selection, schedule)
    read_judge = judge_of(inputs["embed"], row_ids)
    if read_judge is not None:
        weights = counted_by(
            selection.weights, own, settings.objective, schedule.plan, settings.micro_batch
        )
        kept = Weighted(selection.rows, weights)
        facts["quality"] = judged(settings, counted, read_judge, kept, schedule)
    left_out = unscored(inputs)
    if left_out:
        facts["unscored"] = dict(Counter(left_out.values()))
        draft.write_side(REJECTS, refused(inputs["rows"], left_out))
    return Outcome(parts, facts, (REJECTS,) if left_out else ())


def refused(rows: Artifact, reasons: Mapping[int, str]) -> pa.Table:
    """List rows that were no candidates, since a further pass could not score them."""
    wanted = pa.array(list(reasons), pa.int64())
    parts = rows.iter_parts(ROW_COLUMNS)
    found = pa.concat_tables(t.filter(pc.is_in(t["row_id"], value_set=wanted)) for t in parts)
    details = ["a further pass gave no number, so the row was no candidate"] * found.num_rows
    return reject_rows(found, stage="allocate", reasons=list(reasons.values()), details=details)


def levelled(selection: Selection, candidates: Candidates) -> Selection:
    """Give the rows of a cluster one weight: the objective rank has one for each micro-batch."""
    clusters = candidates.cluster[selection.rows]
    weights = level_by_cluster(clusters, selection.weights, candidates.num_clusters)
    if not np.allclose(weights, selection.weights, rtol=1e-6, atol=0.0):
        log.info(
            "allocate: weights are levelled to the mean of their cluster, since "
            "allocate.objective=rank weighs whole micro-batches (allocate.micro_batch=1 keeps "
            "each row's own)"
        )
    return Selection(selection.rows, weights)


def balancer(
    settings: AllocateConfig, candidates: Candidates, selection: Selection
) -> Callable[[IntArray], IntArray]:
    """Prepare the order of the steps by balancing the kept rows' weighted gradients."""
    from threadpoolctl import threadpool_limits

    rows, weights = selection.rows, selection.weights
    blocks = np.array_split(np.arange(rows.size), -(-rows.size // ROWS_PER_BLOCK))
    with threadpool_limits(1):
        short = [
            projected(candidates.read_feature(BALANCED, rows[b]), settings.seed) for b in blocks
        ]
    gradients = np.concatenate(short).astype(np.float64) * weights[:, None]
    gradients -= gradients.mean(axis=0)
    kinds = kinds_of(candidates.cluster[rows], candidates.num_tokens[rows])

    def rearrange(steps: IntArray) -> IntArray:
        with threadpool_limits(1):
            found = balanced(steps, kinds, gradients)
        before, after = (prefix_errors(s, gradients).max() for s in (steps, found))
        log.info("allocate: the largest prefix sum of gradients fell to %.2f", after / before)
        return found

    return rearrange


def judged(
    settings: AllocateConfig,
    candidates: Candidates,
    read_judge: ReadJudge,
    kept: Weighted,
    schedule: Schedule,
) -> Facts:
    """Take the figures of the selection beside those of random ones, with one thread."""
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng([settings.seed, JUDGE_STREAM])
    with threadpool_limits(1):
        (own,) = figures_of(candidates, read_judge, [kept], [schedule.plan], rng)
        random = random_figures(candidates, read_judge, schedule.plan.shape, rng)
    return beside_random(own, random)


def describe(
    settings: AllocateConfig, candidates: Candidates, selection: Selection, schedule: Schedule
) -> Facts:
    """Say what was asked, what was got, and how even it is, in plain values."""
    clusters = candidates.cluster[selection.rows]
    num_tokens = candidates.num_tokens[selection.rows]
    tokens = int(num_tokens.sum())
    kept = np.bincount(clusters, minlength=candidates.num_clusters)
    share = selection.rows.size / candidates.num_rows
    weights = selection.weights.astype(np.float32).astype(np.float64)
    return {
        "asked": settings.asked.text,
        "got": (
            f"{selection.rows.size} of {candidates.num_rows} rows ({share:.1%}), {tokens} tokens"
        ),
        "rows": int(selection.rows.size),
        "candidates": candidates.num_rows,
        "tokens": tokens,
        "steps_per_epoch": int(schedule.plan.shape[0]),
        "selector": type(settings.selector).__name__,
        "weights": {
            "min": float(weights.min()),
            "max": float(weights.max()),
            "effective_sample_size": effective_sample_size(weights),
        },
        "schedule": {
            "kind": schedule.kind,
            "reason": schedule.reason,
            "window_steps": schedule.window_steps,
            "imbalance": imbalance(schedule.plan, num_tokens),
            "max_deviation": max_deviation(schedule.plan, clusters, candidates.num_clusters),
        },
        "clusters": [
            {"cluster": k, "candidates": int(d), "mass": int(n), "kept": int(q)}
            for k, (d, n, q) in enumerate(
                zip(candidates.sizes(), candidates.mass(), kept, strict=True)
            )
        ],
    }


ALLOCATE_STAGE = Stage(
    name="allocate",
    version=4,
    reads=("embed", "cluster", "tokens", "screen", "rows"),
    identity=identity,
    run=run,
    may_read=SECOND,
)
