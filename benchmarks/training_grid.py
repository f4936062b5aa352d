"""Which runs a grid is made of: methods, budgets, seeds."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.training_figures import CONTROL
from benchmarks.training_methods import ALL, STOPPED
from benchmarks.training_regime import Regime, digest
from benchmarks.training_report import FIRST_TUNING_SEED
from stages.allocate.selectors import selector_classes

PAPER = "cluster_balanced"
PAPER_LOSS = "cluster_balanced:objective=rank"
RATIOS = ("ratio=1.0", "ratio=0.75", "ratio=0.5")
TUNE_SEED = FIRST_TUNING_SEED  # a pool of its own
RATES = (0.5, 1.0, 2.0)  # of the regime's
FIRST_BUDGET, BUDGETS = "30%", ("50%", "30%", "10%")
# What is tried beside every selector as it is; those of files that are not there are left out.
VARIANTS = (
    "uniform:order=random",
    "uniform:learnable=0.7",
    CONTROL,
    f"uniform:tokens={PAPER}",
    "uniform:tokens=length",
    "cluster_balanced:keep=random",
    "stratified:learnable=0.7",
    "matched:learnable=0.7",
    "uniform:tokens=matched",
)
BEST = ("matched", "stratified", "importance", "length", "uniform:tokens=matched", CONTROL)


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes
    ----------
    method, budget : str
        As they were named.
    seed : int
        Of the pool, the selection and the order.
    regime : Regime
        All other settings.
    """

    method: str
    budget: str
    seed: int
    regime: Regime

    @property
    def key(self) -> str:
        """Name the run by all that decides its figures."""
        return digest([self.method, self.budget, self.seed, self.regime.facts])

    @property
    def further(self) -> tuple[str, ...]:
        """What the method could read beyond the first pass; of a real model there is no more."""
        if self.method in (ALL, STOPPED) or self.regime.model:
            return ()
        gradients = ("gradients",) if self.method.partition(":")[0] == "less" else ()
        return ("reference", "trajectory", *gradients)


def tuning(regime: Regime) -> list[Run]:
    """Give all rows of a pool of its own at other learning rates."""
    rates = [share * regime.learning_rate for share in RATES]
    return [
        Run(ALL, "100%", TUNE_SEED, dataclasses.replace(regime, learning_rate=rate))
        for rate in rates
    ]


def tuned(regime: Regime, lines: Sequence[dict[str, Any]]) -> Regime:
    """Give the regime with the learning rate whose tuning run ended lowest."""
    ends = {line["key"]: line["points"][-1]["plain"] for line in lines}
    runs = [run for run in tuning(regime) if run.key in ends]
    return min(runs, key=lambda run: ends[run.key]).regime if runs else regime


def saturation(regime: Regime) -> list[Run]:
    """Give all rows of the tuning's pool with half and twice the epochs."""
    epochs = (max(1, regime.epochs // 2), 2 * regime.epochs)
    return [Run(ALL, "100%", TUNE_SEED, dataclasses.replace(regime, epochs=n)) for n in epochs]


def first_stage(regime: Regime, seeds: Sequence[int] = (0, 1)) -> list[Run]:
    """Give every method at 30%."""
    found = selector_classes()
    names = [name for name in found if name not in ("uniform", PAPER)]
    variants = [text for text in VARIANTS if text.partition(":")[0] in found]
    methods = ["uniform", PAPER, *names, *variants]
    runs = [(ALL, "100%"), (STOPPED, FIRST_BUDGET)]
    runs += [(method, FIRST_BUDGET) for method in methods]
    runs += [(PAPER_LOSS, "ratio=0.5")]
    return [Run(method, budget, seed, regime) for seed in seeds for method, budget in runs]


def real_stage(regime: Regime, seeds: Sequence[int]) -> list[Run]:
    """Give the baselines, the paper and what led with the small model, budget by budget."""
    methods = [STOPPED, "uniform", "matched", PAPER]
    whole = [Run(ALL, "100%", seed, regime) for seed in seeds]
    return whole + [
        Run(method, budget, seed, regime)
        for budget in BUDGETS[:2]
        for seed in seeds
        for method in methods
    ]


def second_stage(regime: Regime, seeds: Sequence[int] = range(5)) -> list[Run]:
    """Give the baselines, the paper and the best at three budgets."""
    found = selector_classes()
    best = [text for text in BEST if text.partition(":")[0] in found]
    methods = [STOPPED, "uniform", *best, PAPER]
    runs = [(ALL, "100%")]
    runs += [(method, budget) for budget in BUDGETS for method in methods]
    runs += [(PAPER_LOSS, ratio) for ratio in RATIOS]
    return [Run(method, budget, seed, regime) for seed in seeds for method, budget in runs]
