"""Figures, weights and `matched` by what the trainer follows: its gradient in a plain loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.allocate.budget import StepShape, parse_budget
from stages.allocate.candidates import Candidates
from stages.allocate.choose import choose
from stages.allocate.figures import Figures, figures_of, random_figures
from stages.allocate.objective import as_counted, counted_by, weights_of
from stages.allocate.quality import Weighted
from stages.allocate.selectors import selector_classes
from stages.allocate.selectors.matched import Matched
from stages.allocate.selectors.uniform import Uniform
from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.artifact import Artifact
from stages.contract.schemas import JUDGE, embed_schema
from stages.contract.tables import Layout
from tests.allocate.samples import by_hand, candidates
from tests.artifacts import SEEDED, blobs, embed_table, run_stage, save, store_inputs

OBJECTIVES = ("sample", "token", "rank")


def step_gradient(
    objective: str, plan: np.ndarray, micro_batch: int, weights: Any, targets: Any, judge: Any
) -> tuple[np.ndarray, float]:
    """Follow one step as `evenshard.WeightCollator` weighs it: the sum over tokens, and D."""
    total, denominator = np.zeros(judge.shape[1]), 0.0
    for worker in plan:
        for first in range(0, worker.size, micro_batch):
            batch = worker[first : first + micro_batch]
            tokens = sum(targets[row] for row in batch)
            for row in batch:
                of_token = {
                    "sample": weights[row] / targets[row],
                    "token": weights[row],
                    "rank": weights[row] / tokens,
                }[objective]
                total += of_token * targets[row] * judge[row]
                denominator += {"sample": 1.0, "token": weights[row] * targets[row], "rank": 0.0}[
                    objective
                ]
            denominator += objective == "rank"
    return total, denominator


def plain_errors(
    objective: str, plan: np.ndarray, micro_batch: int, weights: Any, targets: Any, judge: Any, full
) -> tuple[float, float]:
    """Give the error of the epoch, and the mean one of its steps, whatever rows they hold."""
    steps = [step_gradient(objective, each, micro_batch, weights, targets, judge) for each in plan]
    epoch = sum(total for total, _ in steps) / sum(denominator for _, denominator in steps)
    norm = np.linalg.norm(full)
    of_steps = [np.linalg.norm(total / denominator - full) / norm for total, denominator in steps]
    return float(np.linalg.norm(epoch - full) / norm), float(np.mean(of_steps))


def full_gradient(objective: str, copies: Any, targets: Any, judge: np.ndarray) -> np.ndarray:
    mass = copies * (targets if objective == "token" else 1.0)
    return mass @ judge / mass.sum()


@SEEDED
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(OBJECTIVES),
    shape=st.sampled_from([(1, 1, 1), (2, 1, 3), (2, 2, 1), (3, 2, 2)]),
)
def test_the_figures_are_those_of_the_objectives_gradient_by_a_plain_loop(
    seed: int, objective: str, shape: tuple[int, int, int]
) -> None:
    step, rng = StepShape(*shape), np.random.default_rng(seed)
    rows = candidates([14, 20, 9], seed=seed)
    targets = rng.integers(1, 50, 43)
    judge = rng.normal(size=(43, 5)) + 0.5
    size = (1 + seed % 2) * step.rows
    kept = np.sort(rng.permutation(43)[:size])
    plan = rng.permutation(size).reshape(-1, step.num_workers, step.rows_per_worker)
    weights = rng.random(size) + 0.1
    if objective == "rank":  # the rows of a micro-batch weigh alike
        batches = plan.reshape(-1, step.micro_batch)
        weights[batches] = weights[batches[:, :1]]
    weights /= weights.mean()
    own = targets[kept]
    counted = counted_by(weights, own, objective, plan, step.micro_batch)
    (figures,) = figures_of(
        as_counted(rows, targets, objective),
        lambda places: judge[places].astype(np.float32),
        [Weighted(kept, counted)],
        [plan],
        np.random.default_rng(0),
    )
    full = full_gradient(objective, rows.multiplicity, targets, judge)
    epoch, of_steps = plain_errors(
        objective, plan, step.micro_batch, weights, own, judge[kept], full
    )
    assert figures.gradient_error == pytest.approx(epoch, rel=1e-5)
    assert figures.step_error == pytest.approx(of_steps, rel=1e-5)


def test_the_error_of_long_rows_left_out_by_hand() -> None:
    """Rows (gradient, tokens): kept are (2, 1) and (0, 9), left out (2, 9) and (0, 1)."""
    judge = np.array([[2.0], [0.0], [2.0], [0.0]], np.float32)
    targets, kept = np.array([1, 9, 9, 1]), np.array([0, 1])
    plan = np.array([[[0, 1]]])

    def figures(objective: str) -> Figures:
        counted = counted_by(np.ones(2), targets[kept], objective, plan, 1)
        rows = as_counted(by_hand(judge.tolist()), targets, objective)
        chosen = [Weighted(kept, counted)]
        (found,) = figures_of(rows, lambda p: judge[p], chosen, [plan], np.random.default_rng(0))
        return found

    assert figures("sample").gradient_error == pytest.approx(0.0, abs=1e-7)
    # Of all rows (2 + 18) / 20 = 1, of the kept ones 2 / 10.
    assert figures("token").gradient_error == pytest.approx(0.8)
    assert figures("token").step_error == pytest.approx(0.8)


def test_random_rows_count_their_tokens_too() -> None:
    """Gradients that no row of many tokens has: by tokens random rows have almost no error."""
    targets = np.array([1000] * 30 + [1] * 10)
    judge = np.where(targets > 1, 1.0, 50.0).astype(np.float32)[:, None]
    rows = by_hand(judge.tolist())
    errors = {}
    for objective in OBJECTIVES[:2]:
        found = random_figures(
            as_counted(rows, targets, objective),
            lambda places: judge[places],
            (5, 2, 2),
            np.random.default_rng(0),
        )
        errors[objective] = np.mean([draw.gradient_error for draw in found])
    assert errors["token"] < 0.02 < 0.1 < errors["sample"]


@SEEDED
@given(seed=st.integers(0, 10_000))
def test_weights_and_what_rows_count_are_each_others_inverse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    targets = rng.integers(1, 90, 20)
    counted = rng.random(20) + 0.1
    counted /= counted.mean()
    plan = np.arange(20).reshape(5, 2, 2)
    for objective in ("sample", "token"):
        weights = weights_of(counted, targets, objective)
        assert weights.mean() == pytest.approx(1.0)
        back = counted_by(weights, targets, objective, plan, 1)
        assert back.tolist() == pytest.approx(counted.tolist())
    assert weights_of(counted, targets, "sample") is counted
    assert counted_by(counted, targets, "rank", plan, 1) is counted


def chosen_for(objective: str, name: str, rows: Candidates, targets: np.ndarray) -> tuple:
    selection = choose(
        selector_classes()[name](),
        parse_budget("40%"),
        StepShape(2, 1, 1),
        as_counted(rows, targets, objective),
        on_empty_quota="merge",
        seed=0,
    )
    return selection.rows, weights_of(selection.weights, targets[selection.rows], objective)


@pytest.mark.parametrize("name", ["stratified", "cluster_balanced", "matched", "facility_location"])
def test_a_cluster_counts_by_its_tokens_where_tokens_count(name: str) -> None:
    rows = candidates([60, 40, 20], seed=1)
    targets = np.random.default_rng(0).integers(1, 200, 120) * (1 + 3 * rows.cluster)
    kept, weights = chosen_for("token", name, rows, targets)
    found = np.bincount(rows.cluster[kept], weights * targets[kept])
    wanted = np.bincount(rows.cluster, rows.multiplicity * targets)
    assert (found / found.sum()).tolist() == pytest.approx((wanted / wanted.sum()).tolist())


def test_uniform_weighs_by_copies_whatever_the_objective() -> None:
    rows = candidates([30, 20], seed=1)
    targets = np.random.default_rng(0).integers(1, 200, 50)
    found = [chosen_for(objective, "uniform", rows, targets) for objective in OBJECTIVES]
    for kept, weights in found:
        assert np.array_equal(kept, found[0][0])
        assert weights.tolist() == pytest.approx(found[0][1].tolist())


def judged_inputs(store: Path) -> dict[str, Artifact]:
    """Rows of all lengths with a sketch, which `matched` reads, and the same one to judge by."""
    rng = np.random.default_rng(0)
    points = blobs([60, 40, 20]) * 2 + 1
    inputs = store_inputs(
        store,
        num_rows=120,
        embeddings=points,
        lengths=rng.integers(4, 120, 120).tolist(),
        multiplicity=rng.integers(1, 4, 120).tolist(),
    )
    dims = {"embedding": points.shape[1], "embedding_head_sketch": 6, JUDGE: 6}
    table = embed_table(range(120), points)
    sketch = rng.normal(size=(120, 6)).astype(np.float32) + 0.3
    column = pa.FixedSizeListArray.from_arrays(pa.array(sketch.reshape(-1)), 6)
    table = table.append_column("embedding_head_sketch", column).append_column(JUDGE, column)
    inputs["embed"] = save(
        store,
        "embed",
        table.select(embed_schema(dims).names).cast(embed_schema(dims)),
        parent=inputs["tokens"],
        params={"embed": {"feature": "target_row"}},
        layout=Layout(compression="none", float_lists=tuple(dims)),
    )
    settings = ClusterConfig(num_clusters=2, n_init=2, min_rows=0)
    return {**inputs, "cluster": run_stage(CLUSTER_STAGE, settings, inputs, store)}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("micro_batch", [1, 3])
def test_the_stage_tells_the_error_of_what_its_trainer_will_follow(
    tmp_path: Path, objective: str, micro_batch: int
) -> None:
    inputs = judged_inputs(tmp_path)
    keys: dict[str, Any] = {"num_workers": 2, "micro_batch": micro_batch, "objective": objective}
    pinned = objective == "rank"  # equal quotas, which the paper's selector gives
    keys |= {"ratio": 0.5} if pinned else {"selector": Uniform(), "budget": "60rows"}
    found = run_stage(ALLOCATE_STAGE, AllocateConfig(**keys), inputs, tmp_path)
    judge = np.stack(inputs["embed"].read([JUDGE])[JUDGE].to_numpy()).astype(np.float64)
    targets = inputs["tokens"].array("num_targets")
    kept, weights = found.array("row_id"), found.array("weight").astype(np.float64)
    order = np.lexsort((found.array("position"), found.array("worker")))
    # order: (worker, step, place) -> plan: (step, worker, place)
    plan = order.reshape(2, -1, micro_batch).swapaxes(0, 1)
    full = full_gradient(objective, inputs["screen"].array("multiplicity"), targets, judge)
    epoch, of_steps = plain_errors(
        objective, plan, micro_batch, weights, targets[kept], judge[kept], full
    )
    told = found.facts["quality"]["selection"]
    assert told["gradient_error"] == pytest.approx(epoch, rel=1e-4)
    assert told["step_error"] == pytest.approx(of_steps, rel=1e-4)


@pytest.mark.parametrize("order", ["random", "balanced"])
def test_matched_matches_the_gradient_that_is_trained(tmp_path: Path, order: str) -> None:
    inputs = judged_inputs(tmp_path)
    for objective in ("sample", "token"):
        settings = AllocateConfig(
            selector=Matched(), budget="50%", num_workers=2, objective=objective, order=order
        )
        found = run_stage(ALLOCATE_STAGE, settings, inputs, tmp_path)
        assert found.array("weight").mean() == pytest.approx(1.0, abs=1e-6)
        quality = found.facts["quality"]
        assert quality["selection"]["gradient_error"] < 0.3 * quality["random"]["gradient_error"]
        # The clusters' masses that are shown stay rows.
        masses = [each["mass"] for each in found.facts["clusters"]]
        assert sum(masses) == inputs["screen"].array("multiplicity").sum()


def test_rows_of_as_many_tokens_are_chosen_alike_by_both_objectives() -> None:
    rows, targets = candidates([30, 20], seed=3), np.full(50, 7)
    for name in ("matched", "stratified", "importance", "gradmatch"):
        sample, token = (chosen_for(each, name, rows, targets) for each in OBJECTIVES[:2])
        assert np.array_equal(sample[0], token[0])
        assert sample[1].tolist() == pytest.approx(token[1].tolist(), rel=1e-5)
