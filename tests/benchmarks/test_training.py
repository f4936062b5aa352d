"""The training benchmark on a tiny grid: its gradient, its weights, its lines, its figures."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import training, training_regime  # noqa: E402
from benchmarks.training_data import Rows, known  # noqa: E402
from benchmarks.training_features import answers_alone, measure_rows, target_rows  # noqa: E402
from benchmarks.training_loop import (  # noqa: E402
    Course,
    add_gradients,
    heldout_losses,
    make_optimizer,
    rate_at,
    row_losses,
    train,
)
from benchmarks.training_methods import choose_rows, gradient_error, parse_method  # noqa: E402
from benchmarks.training_model import Start, prepare  # noqa: E402
from benchmarks.training_passes import FURTHER, pool_facts  # noqa: E402
from benchmarks.training_plan import plan_rows  # noqa: E402
from benchmarks.training_regime import TINY, Regime  # noqa: E402
from evenshard.loss import step_denominator, weighted_loss  # noqa: E402
from stages.allocate.budget import StepShape  # noqa: E402
from stages.allocate.selectors import selector_classes  # noqa: E402
from stages.contract.errors import ConfigurationError  # noqa: E402
from tests.conftest import SAMPLE  # noqa: E402
from tests.evenshard.ranks import run_ranks  # noqa: E402
from tests.evenshard.tiny_training import relative_error  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def regime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regime]:
    before = training_regime.CACHE
    training_regime.CACHE = tmp_path_factory.mktemp("bench")
    yield dataclasses.replace(TINY, train=str(SAMPLE), heldout=str(SAMPLE))
    training_regime.CACHE = before


@pytest.fixture(scope="module")
def start(regime: Regime) -> Start:
    return prepare(regime)


def uneven_course(start: Start, regime: Regime, objective: str = "sample") -> Course:
    """Rows of the pool with weights of mean 1 that differ, in four clusters by place."""
    rows = start.pool(regime, 0)
    clusters = np.arange(len(rows), dtype=np.int32) % 4
    weights = np.array([0.25, 0.5, 1.25, 2.0])[clusters]
    step = StepShape(4, 2, regime.micro_batch)
    plan = plan_rows(rows, clusters, 4, step, objective=objective, seed=3, weights=weights)
    return Course(rows, weights, plan, plan.num_steps)


def gradient_of(model: Any) -> Any:
    return torch.cat([p.grad.flatten() for p in model.parameters()]).double()


def gradients_of_a_rank(
    rank: int, world_size: int, regime: Regime, folder: Path, objective: str
) -> Any:
    """One rank of DDP: its own micro-batches, the loss as docs/trainers.md writes it."""
    from torch.nn.parallel import DistributedDataParallel

    training_regime.CACHE = folder
    start = prepare(regime)
    model = DistributedDataParallel(start.model())
    window = next(uneven_course(start, regime, objective).steps())[rank]
    denominator = step_denominator(window)
    for index, batch in enumerate(window):
        with model.no_sync() if index + 1 < len(window) else torch.enable_grad():
            logits = model(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
            ).logits
            weighted_loss(
                logits,
                batch["labels"],
                batch["loss_weight"],
                denominator=denominator,
                world_size=world_size,
            ).backward()
    return gradient_of(model).numpy()


@pytest.mark.parametrize("objective", ["sample", "rank"])
def test_ranks_in_one_process_are_four_gloo_ranks(
    start: Start, regime: Regime, objective: str
) -> None:
    model = start.model()
    add_gradients(model, next(uneven_course(start, regime, objective).steps()))
    here = gradient_of(model)
    there = run_ranks(gradients_of_a_rank, 4, regime, training_regime.CACHE, objective)
    for gradient in there:
        assert relative_error(here, torch.from_numpy(gradient)) < 1e-6


def test_a_step_is_the_weighted_mean_over_its_rows(start: Start, regime: Regime) -> None:
    course = uneven_course(start, regime)
    model = start.model()
    add_gradients(model, next(course.steps()))
    places = course.plan.shards.places.reshape(-1)  # type: ignore[attr-defined]
    numbers = course.plan.lay_out(course.plan.order(0), 0).reshape(-1)
    explicit = start.model()
    for place in places[numbers]:
        ids = torch.from_numpy(course.rows.input_ids[place].astype(np.int64))[None]
        labels = torch.from_numpy(course.rows.labels[place].astype(np.int64))[None]
        loss = explicit(input_ids=ids, labels=labels).loss  # the mean over the row's targets
        (course.weights[place] * loss / numbers.size).backward()
    assert relative_error(gradient_of(model), gradient_of(explicit)) < 1e-5
    unweighted = start.model()
    even = dataclasses.replace(course, weights=np.ones_like(course.weights))
    add_gradients(unweighted, next(even.steps()))
    assert relative_error(gradient_of(unweighted), gradient_of(explicit)) > 0.05


def test_all_rows_is_a_plain_training_loop(start: Start, regime: Regime) -> None:
    pool = start.pool(regime, 0)
    facts = pool_facts(start, regime, 0)
    course = choose_rows(parse_method("all"), "100%", pool, facts, regime, 0).course
    assert np.array_equal(course.weights, np.ones(len(course.rows)))
    model, plain = start.model(), start.model()
    trace = train(model, course, regime, rate=1e-2, marks=(1.0,), evaluate=dict)
    optimizer = make_optimizer(plain, 1e-2, regime)
    places = course.plan.shards.places.reshape(-1)  # type: ignore[attr-defined]
    seen = []
    for step in range(course.plan.num_steps):
        rows = course.rows.take(places[course.plan.lay_out(course.plan.order(0), step).reshape(-1)])
        seen += rows.row_ids.tolist()
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * rate_at(step, course.num_steps, regime)
        for ids, labels in zip(rows.input_ids, rows.labels, strict=True):
            given = [torch.from_numpy(one.astype(np.int64))[None] for one in (ids, labels)]
            (plain(input_ids=given[0], labels=given[1]).loss / len(rows)).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), regime.clip)
        optimizer.step()
        optimizer.zero_grad()
    assert sorted(seen) == course.rows.row_ids.tolist()
    assert trace.tokens == course.rows.num_tokens.sum() and trace.steps == course.num_steps
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_a_shuffled_order_takes_every_row_once_an_epoch(start: Start, regime: Regime) -> None:
    course = dataclasses.replace(uneven_course(start, regime), shuffled=True)
    course = dataclasses.replace(course, num_steps=2 * course.plan.num_steps)
    seen = [
        tuple(int(t) for t in ids[:length])
        for step in course.steps()
        for rank in step
        for batch in rank
        for ids, length in zip(batch["input_ids"], batch["attention_mask"].sum(1), strict=True)
    ]
    every = sorted(tuple(ids.tolist()) for ids in course.rows.input_ids)
    size = len(course.rows)
    assert sorted(seen[:size]) == sorted(seen[size:]) == every
    assert seen[:size] != seen[size:]


def test_row_losses_are_the_model_s_own(start: Start) -> None:
    rows, model = start.heldout.take(range(9)), start.model()
    found = row_losses(model, rows)
    for row, loss in enumerate(found):
        given = [
            torch.from_numpy(one[row].astype(np.int64))[None]
            for one in (rows.input_ids, rows.labels)
        ]
        with torch.no_grad():
            own = float(model(input_ids=given[0], labels=given[1]).loss)
        assert abs(own - loss) < 1e-5
    losses = heldout_losses(model, rows)
    assert losses["plain"] == pytest.approx(found.mean())
    means = [found[rows.source == source].mean() for source in set(rows.source.tolist())]
    assert losses["macro"] == pytest.approx(np.mean(means))


def test_signals_agree_with_losses_and_rows_keep_their_places(start: Start, regime: Regime) -> None:
    pool, model = start.pool(regime, 0), start.model()
    features, signals = measure_rows(model, pool, regime, ("target_row", "judge_sketch"))
    assert np.allclose(signals["loss"], row_losses(model, pool), atol=1e-5)
    one, _ = measure_rows(model, pool.take([7]), regime, ("target_row", "judge_sketch"))
    for name, values in one.items():
        assert np.allclose(values[0], features[name][7], atol=1e-5), name


def test_the_reference_scores_no_row_that_it_was_tuned_on(start: Start, regime: Regime) -> None:
    facts = pool_facts(start, regime, 0)
    assert np.all(facts.arrays["reference.loss"] > 0)
    cost = facts.costs["reference"]
    pool = start.pool(regime, 0)
    # Two slices of a quarter are trained on; each row is passed once.
    assert 0.3 * pool.num_tokens.sum() < cost.trained_tokens < 0.7 * pool.num_tokens.sum()
    assert cost.forward_tokens == pool.num_tokens.sum()
    assert cost.tokens == cost.trained_tokens + cost.forward_tokens / 3


def test_gradients_are_those_of_a_warm_up_on_rows_of_the_pool(start: Start, regime: Regime) -> None:
    pool, facts = start.pool(regime, 0), pool_facts(start, regime, 0, tuple(FURTHER))
    rows, targets = facts.arrays["gradients"], facts.arrays["targets.gradients"]
    assert rows.shape[0] == len(pool) and targets.shape[1] == rows.shape[1] == 4 * 1024
    # Each checkpoint's part has length 1/2, so a row's product with itself is 1.
    for values in (rows, targets):
        assert np.allclose(np.einsum("rd,rd->r", values, values), 1.0, atol=2e-3)
    # Four passes over the slice of a quarter, then one over all rows and targets a checkpoint.
    passed = pool.num_tokens.sum() + target_rows(start.train, pool, regime, 0).num_tokens.sum()
    cost = facts.costs["gradients"]
    assert 0.7 * pool.num_tokens.sum() < cost.trained_tokens - 4 * passed
    assert cost.trained_tokens - 4 * passed < 1.3 * pool.num_tokens.sum()
    chosen = choose_rows(parse_method("less"), "50%", pool, facts, regime, 0)
    assert chosen.cost.trained_tokens == cost.trained_tokens
    scores = (rows @ targets.T).max(axis=1)
    kept = np.isin(pool.row_ids, chosen.course.rows.row_ids)
    assert scores[kept].mean() > scores[~kept].mean()


def test_every_selector_has_what_it_reads(start: Start, regime: Regime) -> None:
    pool, facts = start.pool(regime, 0), pool_facts(start, regime, 0, tuple(FURTHER))
    for name in selector_classes():
        method = parse_method(f"{name}:clusters=4")
        chosen = choose_rows(method, "50%", pool, facts, regime, 0)
        assert 0 < len(chosen.course.rows) <= 32, name
        run = training.Run(method.text, "50%", 0, regime)
        read = {cost for cost in FURTHER if chosen.cost.trained_tokens and cost in run.further}
        assert chosen.cost.trained_tokens == 0 or read, name


def test_answers_alone_by_hand() -> None:
    rows = Rows(
        np.array([4]),
        ["a"],
        np.zeros(1, np.int32),
        ["s"],
        [np.array([1, 5, 6, 7, 8], np.int32)],
        [np.array([-100, -100, 6, -100, 8], np.int32)],
    )
    alone = answers_alone(rows)
    assert alone.input_ids[0].tolist() == [1, 6, 8]
    assert alone.labels[0].tolist() == [-100, 6, 8]


def test_gradient_error_by_hand() -> None:
    sketches = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 2.0]], np.float32)
    # The mean is (2, 2/3); the kept mean with weights 0.5 and 1.5 is (1.75, 1.5).
    error = gradient_error(np.array([0, 2]), np.array([0.5, 1.5]), sketches)
    assert error == pytest.approx(np.hypot(0.25, 1.5 - 2 / 3) / np.hypot(2.0, 2 / 3))


def test_rates_by_hand(regime: Regime) -> None:
    rates = [rate_at(step, 10, dataclasses.replace(regime, warmup=0.2)) for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0] and rates[6] == pytest.approx(0.5)
    assert rates[9] == pytest.approx(0.5 * (1 + np.cos(np.pi * 7 / 8)))


def test_halves_and_pools_are_apart(start: Start, regime: Regime) -> None:
    first = start.train.take(np.flatnonzero(known(start.train, regime))).uids
    assert 0.35 < len(first) / len(start.train) < 0.65
    pools = [start.pool(regime, seed) for seed in (0, 0, 1)]
    assert not set(pools[0].uids) & set(first)
    assert pools[0].uids == pools[1].uids != pools[2].uids


def test_a_real_model_is_tuned_by_adapters_alone(regime: Regime, model_folder: Path) -> None:
    real = dataclasses.replace(
        regime, model=str(model_folder), adapter_rank=2, heldout_rows=20, marks=(0.5, 1.0)
    )
    start = prepare(real)
    assert len(start.heldout) == 20 and len(start.train) > 250
    assert not known(start.train, real).any()
    model = start.learner()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pool, facts = start.pool(real, 0), pool_facts(start, real, 0, ())
    course = choose_rows(parse_method("matched"), "50%", pool, facts, real, 0).course
    trace = train(
        model,
        course,
        real,
        rate=1e-2,
        marks=real.marks,
        evaluate=lambda: heldout_losses(model, start.heldout),
    )
    assert [point["steps"] for point in trace.points] == [2, 4]
    moved = {name for name, tensor in model.state_dict().items() if (tensor != before[name]).any()}
    assert moved and all(name.endswith((".up", ".down")) for name in moved)
    assert not any(run.further for run in training.real_stage(real, range(2)))
    assert {run.method for run in training.real_stage(real, range(2))} > {"all", "matched"}


@pytest.mark.parametrize(
    "text", ["best", "uniform:keep=farthest", "uniform:learnable", "cluster_balanced:keep=middle"]
)
def test_methods_that_do_not_exist(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_method(text).selector()


def test_costs_are_those_of_what_is_read(start: Start, regime: Regime) -> None:
    pool, facts = start.pool(regime, 0), pool_facts(start, regime, 0)

    def choose(text: str, budget: str = "50%") -> Any:
        return choose_rows(parse_method(text), budget, pool, facts, regime, 0)

    assert choose("uniform").cost.tokens == 0
    passed = facts.costs["pass"].forward_tokens
    assert choose("cluster_balanced").cost.forward_tokens == passed
    learnable = choose("uniform:learnable=0.75")
    assert learnable.cost.trained_tokens == facts.costs["reference"].trained_tokens > 0
    reducible = facts.arrays["loss"] - facts.arrays["reference.loss"]
    kept = np.isin(pool.row_ids, learnable.course.rows.row_ids)
    assert reducible[kept].min() >= np.sort(reducible)[-48:].min()
    assert learnable.facts["rows"] == 32


def test_same_tokens_and_same_steps(start: Start, regime: Regime) -> None:
    pool, facts = start.pool(regime, 0), pool_facts(start, regime, 0)

    def choose(text: str, budget: str) -> Any:
        return choose_rows(parse_method(text), budget, pool, facts, regime, 0)

    longest = choose("length", "50%")
    same = choose("uniform:tokens=length", "50%")
    least = 8 * regime.max_length  # less than a step of the longest rows
    assert longest.facts["tokens"] - least < same.facts["tokens"] <= longest.facts["tokens"]
    stopped = choose("all_stopped", "50%").course
    assert stopped.num_steps == choose("uniform", "50%").course.num_steps
    assert len(stopped.rows) == len(pool)


def test_a_grid_goes_on_where_it_stopped(regime: Regime, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    runs = [
        training.Run(method, budget, seed, regime)
        for seed in (0, 1)
        for method, budget in (("all", "100%"), ("uniform", "50%"))
    ]
    training.perform_all(runs[:3], lines, processes=0)
    first = lines.read_text().splitlines()
    lines.write_text("\n".join([*first, first[0][:50]]))  # the last line is torn
    training.perform_all(runs, lines, processes=0)
    found = training.read_lines(lines)
    assert [line["key"] for line in found] == [run.key for run in runs]
    again = training.perform(runs[1])
    assert again["points"][-1]["plain"] == found[1]["points"][-1]["plain"]
    assert json.loads(json.dumps(again["selection"]))["rows"] == found[1]["selection"]["rows"] == 32
