"""Methods by name: `name:option=value,...`, from a pool to kept rows, weights, plan and cost.

Options that the benchmark reads itself; all others go to the selector.

    clusters=64  feature=head_sketch  normalize=1   what the pool is clustered by
    learnable=0.7   only rows of the largest reducible loss, that share of the pool, are candidates
    tokens=other    as many tokens as the method `other` keeps at this budget, in whole steps
    objective=rank  the paper's own loss, with clusters pinned to workers
    order=random    rows shuffled anew in every epoch, as plain trainers do, not by the plan
"""

import dataclasses
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.training_clusters import cluster_rows
from benchmarks.training_data import Rows
from benchmarks.training_features import Cost, PoolFacts
from benchmarks.training_loop import Course
from benchmarks.training_plan import plan_rows
from benchmarks.training_regime import Regime
from stages.allocate.budget import Asked, StepShape, exact, parse_budget
from stages.allocate.candidates import Candidates
from stages.allocate.choose import choose
from stages.allocate.selectors import selector_classes
from stages.contract.errors import ConfigurationError
from stages.embed.reading import prepare as prepare_embeddings

OWN_OPTIONS = ("clusters", "feature", "normalize", "learnable", "tokens", "objective", "order")
ALL, STOPPED = "all", "all_stopped"
# What a method is clustered by where nothing is said. One cluster needs no features.
CLUSTERS = {
    ALL: (1, "target_row"),
    STOPPED: (1, "target_row"),
    "uniform": (1, "target_row"),
    "length": (1, "target_row"),
    "cluster_balanced": (4, "target_row"),
}
OTHERS = (64, "head_sketch")
LARGEST_MICRO_BATCH = 16
# What has to be made for an array, by its name or the beginning of it; all others come from the
# pass.
KINDS = {
    "reference": "reference",
    "targets": "targets",
    "trajectory": "trajectory",
    "gradients": "gradients",
    "targets.gradients": "gradients",
    "answer_alone_loss": "alone",
    "num_tokens": "",
    "num_targets": "",
}


@dataclass(frozen=True)
class Method:
    """A method as it was named.

    Attributes
    ----------
    text : str
        The whole of it.
    name : str
        A selector's file, `all`, or `all_stopped`: all rows, stopped after as many steps as the
        budget buys.
    options : dict of str to str
        As they were written.
    """

    text: str
    name: str
    options: dict[str, str]

    @property
    def clusters(self) -> tuple[int, str]:
        """Number of clusters and the feature they are made of."""
        count, feature = CLUSTERS.get(self.name, OTHERS)
        return int(self.options.get("clusters", count)), self.options.get("feature", feature)

    def selector(self) -> Any:
        """Make the selector with its own options."""
        cls = selector_classes()["uniform" if self.name in (ALL, STOPPED) else self.name]
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        own = {k: v for k, v in self.options.items() if k in kinds}
        unknown = set(self.options) - set(own) - set(OWN_OPTIONS)
        if unknown:
            raise ConfigurationError(
                f"{self.text}: {', '.join(sorted(unknown))} is no option of {self.name}; it has "
                f"{', '.join([*kinds, *OWN_OPTIONS])}"
            )
        return cls(**{name: _typed(value) for name, value in own.items()})


def parse_method(text: str) -> Method:
    """Read `name:option=value,option=value`.

    Raises
    ------
    ConfigurationError
        If there is no such selector, or an option has no value.
    """
    name, _, rest = text.partition(":")
    known = {*selector_classes(), ALL, STOPPED}
    if name not in known:
        raise ConfigurationError(f"method {text} must begin with one of {', '.join(sorted(known))}")
    pairs = [pair.partition("=") for pair in rest.split(",") if pair]
    if any(not value for _, _, value in pairs):
        raise ConfigurationError(f"method {text} must be name:option=value,option=value")
    return Method(text, name, {key: value for key, _, value in pairs})


def parse_asked(text: str) -> Asked:
    """Read a budget: whatever `allocate.budget` takes, or `ratio=0.75`."""
    if text.startswith("ratio="):
        return Asked("ratio", exact(float(text.removeprefix("ratio="))), text)
    return parse_budget(text)


@dataclass(frozen=True)
class Chosen:
    """A selection, ready to be trained.

    Attributes
    ----------
    course : Course
        Rows, weights, plan and number of steps.
    cost : Cost
        Of the selection, with everything that it read.
    facts : dict of str to number
        Rows, tokens, gradient errors, effective sample size, micro-batch.
    """

    course: Course
    cost: Cost
    facts: dict[str, float]


def choose_rows(
    method: Method, budget: str, pool: Rows, facts: PoolFacts, regime: Regime, seed: int
) -> Chosen:
    """Select, schedule, and say what it costs.

    Steps have as many tokens as those of all rows, to the nearest whole micro-batch: methods that
    like long rows get fewer rows a step, and so other numbers of steps.
    """
    reader = Reader(facts)
    kept = _candidates(method, pool, reader, seed)
    asked = _asked(method, budget, pool, facts, regime, seed)
    candidates, clustering = _cluster(method, pool, kept, reader, seed)
    began = time.process_time()
    micro_batch = regime.micro_batch
    for _ in range(3):
        step = StepShape(regime.NUM_WORKERS, 1, micro_batch)
        selection = choose(
            method.selector(), asked, step, candidates, on_empty_quota="merge", seed=seed
        )
        wanted = pool.num_tokens.mean() / candidates.num_tokens[selection.rows].mean()
        fitting = int(np.clip(round(regime.micro_batch * wanted), 1, LARGEST_MICRO_BATCH))
        if fitting == micro_batch:
            break
        micro_batch = fitting
    seconds = time.process_time() - began
    places = kept[selection.rows]
    rows = pool.take(places)
    plan = plan_rows(
        rows,
        candidates.cluster[selection.rows],
        candidates.num_clusters,
        step,
        objective=method.options.get("objective", "sample"),
        seed=seed,
        weights=selection.weights,
    )
    num_steps = regime.epochs * plan.num_steps
    if method.name == STOPPED:
        share = float(parse_budget(budget).amount)
        num_steps = max(1, regime.epochs * int(share * len(pool) // step.rows))
    cost = reader.cost + Cost(0, 0, seconds + clustering)
    return Chosen(
        Course(rows, selection.weights, plan, num_steps, method.options.get("order") == "random"),
        cost,
        _facts(places, selection.weights, pool, facts, step),
    )


class Reader:
    """Hands out what was measured of a pool, and keeps account of what is read."""

    def __init__(self, facts: PoolFacts) -> None:
        self.facts = facts
        self.read: set[str] = set()

    def __call__(self, name: str) -> npt.NDArray[np.float32]:
        """Give an array by name.

        Raises
        ------
        ConfigurationError
            If the benchmark has none of that name.
        """
        if name not in self.facts.arrays or name == "judge_sketch":
            raise ConfigurationError(f"{name} is not measured by the training benchmark")
        kind = KINDS.get(name, KINDS.get(name.partition(".")[0], "pass"))
        if kind:
            self.read.add(kind)
        return self.facts.arrays[name]

    @property
    def cost(self) -> Cost:
        """Add up what had to be made for what was read."""
        return sum((self.facts.costs[name] for name in sorted(self.read)), Cost())


def _candidates(method: Method, pool: Rows, reader: Reader, seed: int) -> npt.NDArray[np.int64]:
    """Give the places of the pool that can be kept: all, or the most learnable."""
    names = {field.name for field in dataclasses.fields(type(method.selector()))}
    share = float(method.options.get("learnable", 1.0))
    if share == 1.0 or "learnable" in names:
        return np.arange(len(pool))
    reducible = reader("loss") - reader("reference.loss")
    count = round(share * len(pool))
    return np.sort(np.argsort(-reducible, kind="stable")[:count])


def _asked(
    method: Method, budget: str, pool: Rows, facts: PoolFacts, regime: Regime, seed: int
) -> Asked:
    """Turn the budget into rows of the whole pool, or into the tokens of another method."""
    if method.name in (ALL, STOPPED):
        return Asked("share", Fraction(1), method.name)
    if "tokens" in method.options:
        other = parse_method(method.options["tokens"])
        num_tokens = choose_rows(other, budget, pool, facts, regime, seed).facts["tokens"]
        return Asked("tokens", Fraction(int(num_tokens)), f"{budget} of {other.text}")
    asked = parse_asked(budget)
    if asked.kind == "share":
        return Asked("rows", Fraction(int(asked.amount * len(pool))), budget)
    return asked


def _cluster(
    method: Method, pool: Rows, kept: npt.NDArray[np.int64], reader: Reader, seed: int
) -> tuple[Candidates, float]:
    """Cluster the candidates as the cluster room does, and time it."""
    count, feature = method.clusters
    normalize = bool(int(method.options.get("normalize", "1")))
    if count == 1:
        embeddings = np.zeros((kept.size, 1), np.float32)
        labels, distances = np.zeros(kept.size, np.int32), np.zeros(kept.size, np.float32)
        centers, seconds = np.zeros((1, 1), np.float32), 0.0
    else:
        embeddings = prepare_embeddings(reader(feature)[kept], normalize=normalize, mean=None)
        found = cluster_rows(embeddings, count, seed)
        labels, distances, centers, seconds = (
            found.labels,
            found.distances,
            found.centers,
            found.seconds,
        )
    candidates = Candidates(
        row_ids=pool.row_ids[kept],
        cluster=labels,
        distance=distances,
        multiplicity=np.ones(kept.size, np.int64),
        num_tokens=pool.num_tokens[kept],
        source=pool.source[kept],
        centers=centers,
        read_signal=lambda signal: reader(signal)[kept],
        read_embeddings=lambda places: embeddings[places],
        read_feature=lambda one, places: reader(one)[kept][places],
        read_targets=lambda one: reader(f"targets.{one}"),
    )
    return candidates, seconds


def _facts(
    places: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    pool: Rows,
    facts: PoolFacts,
    step: StepShape,
) -> dict[str, float]:
    """Say what was kept, and how far its gradient is from that of the pool."""
    lengths = pool.num_tokens
    errors = {
        f"gradient_error_{name}": gradient_error(places, weights, facts.arrays[column])
        for name, column in (("own", "head_sketch"), ("judge", "judge_sketch"))
    }
    return {
        "rows": int(places.size),
        "tokens": int(lengths[places].sum()),
        "micro_batch": step.micro_batch,
        "mean_length": float(lengths[places].mean()),
        "effective_sample_size": float(weights.sum() ** 2 / (weights**2).sum() / weights.size),
        "largest_weight": float(weights.max()),
        **errors,
    }


def gradient_error(
    places: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    sketches: npt.NDArray[np.float32],
) -> float:
    """Give norm(weighted mean of the kept rows - mean of all) / norm(mean of all)."""
    whole = sketches.mean(axis=0, dtype=np.float64)
    kept = weights @ sketches[places] / places.size
    return float(np.linalg.norm(kept - whole) / np.linalg.norm(whole))


def _typed(value: str) -> Any:
    """Read an option's value as what it looks like."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(value, value)
