"""Which methods `compare` sets side by side, and the numbers of each: no disk, no Hydra."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from stages.allocate.budget import Asked, parse_budget
from stages.allocate.candidates import Candidates, Selector
from stages.allocate.choose import Selection, choose
from stages.allocate.figures import Figures, figures_of, random_figures
from stages.allocate.quality import ReadJudge, Weighted
from stages.allocate.schedule import build_schedule
from stages.allocate.selectors import selector_classes
from stages.allocate.selectors.cluster_balanced import ClusterBalanced
from stages.allocate.selectors.uniform import Uniform
from stages.allocate.stage import SCHEDULE_STREAM, AllocateConfig
from stages.contract.errors import ConfigurationError, DataError, require, require_at_least

# What the pass of a comparison makes, whatever else is asked of it.
EVERY_FEATURE = ("head_sketch", "hidden_mean", "position_mean", "target_row")
WHOLE_PASS = ("embed.judge=true", "embed.answer_alone=true")


@dataclass(kw_only=True)
class CompareConfig:
    """What is compared.

    Attributes
    ----------
    budgets : list of str
        Shares, as `allocate.budget` writes them: of the rows, and then of the tokens.
    seeds : int
        Selections of each method; `random` is always the mean of twenty draws.
    methods : list of str
        Names; all methods where none is named.
    """

    budgets: list[str] = field(default_factory=lambda: ["0.67", "0.5", "0.33", "0.1"])
    seeds: int = 5
    methods: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_at_least("compare.seeds", self.seeds, 1)
        require(bool(self.budgets), "compare.budgets must hold a budget, such as [0.5,0.1]")
        for budget in self.budgets:
            require(
                parse_budget(budget).kind == "share",
                f"compare.budgets: {budget} must be a share such as 0.5 or 50%, so that rows and "
                f"tokens can be compared at the same share",
            )
        known = [method.name for method in all_methods()]
        for name in self.methods:
            require(
                name in known,
                f"compare.methods: {name} must be one of {', '.join(known)}",
            )


@dataclass(frozen=True)
class Method:
    """A selector with its options, and the clustering that it is run on.

    Attributes
    ----------
    name : str
        As the table shows it.
    selector : Selector
        With its options.
    paper_clusters : bool
        Whether it chooses from the paper's clusters instead of those of the run.
    """

    name: str
    selector: Selector
    paper_clusters: bool = False


def all_methods() -> list[Method]:
    """List every selector by its file with its default options, and the paper's settings."""
    named = [
        Method("paper", ClusterBalanced(keep="farthest"), paper_clusters=True),
        Method("paper_random_inside", ClusterBalanced(keep="random"), paper_clusters=True),
    ]
    return [*named, *(Method(name, cls()) for name, cls in sorted(selector_classes().items()))]


@dataclass(frozen=True)
class Cell:
    """One method at one budget: the figures of each seed, or why there are none.

    Attributes
    ----------
    method, budget : str
        Names.
    by : str
        rows or tokens: of what the budget is a share.
    figures : list of Figures
        One per seed.
    reason : str
        Why the method was not run; empty where it was.
    """

    method: str
    budget: str
    by: str
    figures: list[Figures]
    reason: str = ""


@dataclass(frozen=True)
class Pool:
    """Candidates of one clustering, and the judge that all selections are held to."""

    candidates: Candidates
    read_judge: ReadJudge


def budgets_of(text: str, num_tokens: int) -> dict[str, Asked]:
    """Ask for a share of the rows, and for the same share of all tokens."""
    share, label = parse_budget(text).amount, f"compare.budgets={text}"
    tokens = int(share * num_tokens)  # may be 0: then no selection fits
    return {
        "rows": Asked("share", share, label),
        "tokens": Asked("tokens", Fraction(tokens), f"{label}, {tokens} tokens,"),
    }


def compare(
    pools: dict[bool, Pool],
    settings: AllocateConfig,
    config: CompareConfig,
    *,
    tell: Callable[[str], None],
) -> list[Cell]:
    """Run every method at every budget, by rows and by tokens, with every seed.

    Parameters
    ----------
    pools : dict of bool to Pool
        Whether they are of the paper's clusters, and the candidates.
    settings : AllocateConfig
        Workers, micro-batch and schedule; its selector and budget are not read.
    config : CompareConfig
        Budgets, seeds, methods.
    tell : callable
        Told a line of progress.
    """
    methods = [m for m in all_methods() if not config.methods or m.name in config.methods]
    cells = []
    num_tokens = int(pools[False].candidates.num_tokens.sum())
    for text in config.budgets:
        for by, asked in budgets_of(text, num_tokens).items():
            random = _random_cell(pools[False], settings, asked, (text, by))
            cells += [
                replace(random, method=method.name)  # nothing could be set beside it
                if random.reason
                else run_cell(method, pools, settings, asked, (text, by), config.seeds)
                for method in methods
            ]
            cells.append(random)
            tell(f"budget {text} of the {by}: {len(methods)} methods, {config.seeds} seeds")
    return cells


def run_cell(
    method: Method,
    pools: dict[bool, Pool],
    settings: AllocateConfig,
    asked: Asked,
    budget: tuple[str, str],
    seeds: int,
) -> Cell:
    """Select with each seed and take the figures; a method that cannot run says why."""
    pool = pools[method.paper_clusters]
    chosen, plans = [], []
    try:
        for seed in range(settings.seed, settings.seed + seeds):
            selection = choose(
                method.selector,
                asked,
                settings.step,
                pool.candidates,
                on_empty_quota=settings.on_empty_quota,
                seed=seed,
            )
            chosen.append(Weighted(selection.rows, selection.weights))
            plans.append(_plan(selection, pool.candidates, settings, seed))
    except (ConfigurationError, DataError) as error:
        return Cell(method.name, *budget, [], str(error))
    rng = np.random.default_rng([settings.seed, 0])
    return Cell(
        method.name,
        *budget,
        figures_of(pools[False].candidates, pool.read_judge, chosen, plans, rng),
    )


def _plan(selection: Selection, candidates: Candidates, settings: AllocateConfig, seed: int) -> Any:
    schedule = build_schedule(
        candidates.cluster[selection.rows],
        candidates.num_tokens[selection.rows],
        candidates.num_clusters,
        settings.step,
        kind="dealt",
        objective="sample",
        rng=np.random.default_rng([seed, SCHEDULE_STREAM]),
    )
    return schedule.plan


def _random_cell(
    pool: Pool, settings: AllocateConfig, asked: Asked, budget: tuple[str, str]
) -> Cell:
    """Draw the twenty random selections that the others are held against, or say why not."""
    own = (settings.step, pool.candidates)
    try:
        rows = choose(Uniform(), asked, *own, on_empty_quota="merge", seed=settings.seed).rows
    except (ConfigurationError, DataError) as error:
        return Cell("random", *budget, [], f"random rows do not fit: {error}")
    shape = (rows.size // settings.step.rows, settings.num_workers, settings.step.rows_per_worker)
    rng = np.random.default_rng([settings.seed, 1])
    drawn = random_figures(pool.candidates, pool.read_judge, shape, rng)
    return Cell("random", *budget, drawn)


def compare_overrides(overrides: Sequence[str]) -> list[str]:
    """Let one pass make what every method reads, and what a clustering may ask for."""
    return [*overrides, f"embed.also=[{','.join(EVERY_FEATURE)}]", *WHOLE_PASS]
