"""The configuration's edge: Hydra composes and types it, then it is plain dataclasses.

Each section's dataclass lives in the stage that reads it; this file gathers them, checks what
concerns several of them. `pipeline/refusal.py` turns Hydra's errors into sentences.
"""

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from evenshard.shards import ShardError, read_manifest
from pipeline.comparison import CompareConfig
from pipeline.refusal import refusal, told
from pipeline.second import (
    WARMUP,
    ReferenceConfig,
    TargetsConfig,
    check_targets,
    offer_of,
)
from pipeline.tracking import TrackingConfig
from stages.allocate.needs import Offer, check_needs
from stages.allocate.selectors import selector_classes
from stages.allocate.stage import BALANCED, AllocateConfig
from stages.cluster.stage import ClusterConfig
from stages.contract.errors import ConfigurationError, require, require_at_least
from stages.contract.schemas import SKETCH
from stages.embed.stage import EmbedConfig, ModelConfig
from stages.rows.source import find
from stages.rows.stage import RowsConfig
from stages.screen.reading import find_benchmarks
from stages.screen.stage import ScreenConfig
from stages.shards.publish import check_out, is_published
from stages.tokens.stage import TokensConfig
from stages.trajectory.stage import TrajectoryConfig

CONF = Path(__file__).resolve().parent.parent / "conf"
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


@dataclass(kw_only=True)
class ComputeConfig:
    """How fast, never what.

    Attributes
    ----------
    workers : int
        Ray actors, one model each; 0 for this process, without Ray.
    gpus_per_worker : float
        GPUs of each; 0 for a CPU. Above 1, one model is laid over several.
    cpus_per_worker : float
        CPU slots of each in Ray's accounts; a worker computes with one thread.
    address : str
        Of a running Ray cluster; empty starts one on this machine.
    """

    workers: int = 0
    gpus_per_worker: float = 0.0
    cpus_per_worker: float = 1.0
    address: str = ""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_at_least("compute.workers", self.workers, 0)
        require_at_least("compute.gpus_per_worker", self.gpus_per_worker, 0)
        require_at_least("compute.cpus_per_worker", self.cpus_per_worker, 0)
        require(
            not (self.address and self.workers == 0),
            f"compute.address={self.address} needs compute.workers >= 1, it is 0; 0 works in "
            f"this process without Ray",
        )


@dataclass(kw_only=True)
class Config:
    """Everything a run is told.

    Attributes
    ----------
    name : str
        Of the run and of its folder.
    seed : int
        The only seed; sections take it from here.
    store, models, out : str
        Folders of artifacts, of converted models, and of the published set.
    report : bool
        Whether the set gets its page.
    """

    name: str = "sample"
    seed: int = 0
    store: str = "data/store"
    models: str = "data/models"
    out: str = "data/curated/sample"
    report: bool = True
    rows: RowsConfig = field(default_factory=RowsConfig)
    screen: ScreenConfig = field(default_factory=ScreenConfig)
    tokens: TokensConfig = field(default_factory=TokensConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    targets: TargetsConfig = field(default_factory=TargetsConfig)
    trajectory: TrajectoryConfig = field(default_factory=TrajectoryConfig)
    # Before `cluster`, which takes its number of workers: a wrong one is told by its own name.
    allocate: AllocateConfig = field(default_factory=AllocateConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        """Check what concerns several sections, and resolve what one takes from another."""
        require(
            bool(NAME.match(self.name)),
            f"name={self.name} must be letters, digits, '.', '_' or '-'; it names a folder",
        )
        for key, folder in (("out", self.out), ("models", self.models)):
            require(
                "://" not in folder,
                f"{key}={folder} must be a folder of a disk, or of one that all nodes share, and "
                f"no URL; only store can be one. Give {key}=<folder>, and copy it afterwards",
            )
        for key, seed in (
            ("seed", self.seed),
            ("rows.seed", self.rows.seed),
            ("screen.seed", self.screen.seed),
            ("embed.seed", self.embed.seed),
            ("trajectory.seed", self.trajectory.seed),
            ("cluster.seed", self.cluster.seed),
            ("allocate.seed", self.allocate.seed),
        ):
            require(0 <= seed < 2**32, f"{key}={seed} must lie in [0, 2**32), choose a smaller one")
        self._check_features()
        self._settle_clusters()
        self._check_pinned()

    @property
    def offer(self) -> Offer:
        """What the passes make that a selector can read."""
        return offer_of(self.embed, self.reference, self.targets, self.trajectory)

    @property
    def _pinned(self) -> bool:
        """Whether workers must hold their own clusters."""
        return self.allocate.schedule == "pinned" or self.allocate.objective == "rank"

    def _settle_clusters(self) -> None:
        """Give the clustering what it takes from other sections where nothing was said."""
        cluster, workers = self.cluster, self.allocate.num_workers
        # Equal quotas of many clusters keep little, and are the paper's: so are its clusters.
        as_the_paper = self.allocate.selector.ratio_of == "smallest_cluster"
        if cluster.num_clusters is None and (self._pinned or as_the_paper):
            cluster.num_clusters = workers
        by_sketch = self.embed.feature == "target_row" and SKETCH in self.offer.features
        if cluster.feature is None and by_sketch and not as_the_paper:
            cluster.feature = SKETCH
        if cluster.restore_count == "auto":
            cluster.restore_count = "yes" if cluster.num_clusters == workers else "no"

    def _check_pinned(self) -> None:
        """Check that the clusters can be dealt to workers that hold their own."""
        if not self._pinned:
            return
        clusters, workers = self.cluster.num_clusters, self.allocate.num_workers
        assert clusters is not None, "settled before"
        rank = self.allocate.objective == "rank"
        require(
            clusters % workers == 0,
            f"allocate.schedule=pinned (and allocate.objective=rank) needs "
            f"cluster.num_clusters={clusters} to be a multiple of "
            f"allocate.num_workers={workers}; use allocate.schedule=dealt",
        )
        require(
            not rank or clusters == workers or self.allocate.micro_batch == 1,
            f"allocate.objective=rank needs micro-batches of one cluster, so either "
            f"cluster.num_clusters={clusters} = allocate.num_workers={workers}, or "
            f"allocate.micro_batch={self.allocate.micro_batch} = 1",
        )
        require(
            not rank or self.allocate.schedule != "dealt",
            "allocate.objective=rank needs rows of one cluster on a worker, which "
            "allocate.schedule=dealt does not give; use allocate.schedule=pinned",
        )

    def _check_features(self) -> None:
        """Check that the passes make what the clustering and the selector read."""
        made = self.offer.features
        require(
            self.cluster.feature is None or self.cluster.feature in made,
            f"cluster.feature={self.cluster.feature} must be one of {', '.join(made)}, which the "
            f"pass makes; set embed.also=[{self.cluster.feature}]",
        )
        require(
            self.reference.path != WARMUP or self.trajectory.steps > 0,
            f"reference.path={WARMUP} needs a warm-up, and trajectory.steps=0 makes none; "
            f"set trajectory.steps=60",
        )
        require(
            self.allocate.order != "balanced" or BALANCED in made,
            f"allocate.order=balanced reads {BALANCED}, which the pass does not make; "
            f"set embed.also=[{BALANCED}], or allocate.order=random",
        )
        check_needs(self.allocate.selector, self.offer)


def check_paths(config: Config, overrides: Sequence[str] = ()) -> None:
    """Check that what is read is there and that the folder is ours, before any work."""
    check_inputs(config)
    check_folder(config, overrides)


def check_inputs(config: Config) -> None:
    """Check that rows, benchmarks and targets are there."""
    find(config.rows.path)
    find_benchmarks(config.screen.benchmarks)
    check_targets(config.targets)


def check_folder(config: Config, overrides: Sequence[str], *, written_here: bool = True) -> None:
    """Check that the result may go into its folder.

    Parameters
    ----------
    config : Config
        Of the run.
    overrides : sequence of str
        What the user has told, and nothing that was added.
    written_here : bool
        False where another machine will write it: only what lies there is looked at.

    Raises
    ------
    ConfigurationError
        If it cannot be written; if files lie there that are not ours; if the folder holds a set
        that cannot be read, such as one of another version; or one of other data, and its name
        was not asked for.
    """
    out = Path(config.out)
    check_out(out, written_here=written_here)
    if not is_published(out):
        return
    try:
        manifest = read_manifest(out)
        before = Path(manifest["settings"]["rows"]["path"])
    except (ShardError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"out={out} holds a set that cannot be read, and is not replaced: {error}; give this "
            f"run another name=... (NAME=... with make), or move the folder away"
        ) from error
    if any(override.startswith(("name=", "out=")) for override in overrides):
        return
    require(
        before.resolve() == Path(config.rows.path).resolve(),
        f"{out} holds the set of {before}, which that of rows.path={config.rows.path} would "
        f"replace; give this run another name=... (NAME=... with make), or name={config.name} "
        f"to replace it",
    )


def settings_of(config: Config) -> dict[str, Any]:
    """Turn the configuration into plain values, with the class of the selector."""
    settings = dataclasses.asdict(config)
    for name in ("compare", "report", "tracking"):  # they make nothing of what is published
        del settings[name]
    settings["allocate"]["selector"]["class"] = type(config.allocate.selector).__name__
    return settings


def compose(overrides: Sequence[str]) -> Config:
    """Compose conf/ and the overrides of the command line into a checked configuration.

    Raises
    ------
    ConfigurationError
        If a key is unknown, a value has the wrong type or range, or two settings disagree.
    """
    raw = compose_raw(overrides)
    try:
        config = OmegaConf.to_object(raw)
    except OmegaConfBaseException as error:
        cause = error.__cause__ or error
        if isinstance(cause, ConfigurationError):
            raise cause from None
        raise ConfigurationError(told(error, "", raw)) from error
    assert isinstance(config, Config)
    return config


def compose_raw(overrides: Sequence[str]) -> DictConfig:
    """Compose without the checks of ranges: what `--cfg` prints."""
    _register()
    overrides = [_as_group(override) for override in overrides]
    keys = {override.partition("=")[0] for override in overrides}
    if "allocate.budget" in keys and "allocate.ratio" not in keys:
        overrides.append("allocate.ratio=null")  # instead of the one of an experiment
    if "allocate.selector.keep" in keys and not keys & {"allocate/selector", "experiment"}:
        # The option of one selector means that one.
        overrides.insert(0, "allocate/selector=cluster_balanced")
    for override in overrides:
        _check_form(override)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            return hydra.compose("config", overrides=list(overrides))
        except (HydraException, OmegaConfBaseException) as error:
            sentence = refusal(error, overrides, CONF)
            if not sentence:
                raise
            raise ConfigurationError(sentence) from error


def _register() -> None:
    """Tell Hydra the schema, the selectors (by file), and two small functions."""
    store = ConfigStore.instance()
    schema = OmegaConf.structured(Config)
    schema.allocate.selector = MISSING  # a default of one class would refuse all others
    store.store(name="schema", node=schema)
    for name, selector in selector_classes().items():
        store.store(group="allocate/selector", name=name, node=selector)
    OmegaConf.register_new_resolver("stem", _stem, replace=True)
    OmegaConf.register_new_resolver("cores", lambda: len(os.sched_getaffinity(0)), replace=True)


def _stem(path: str) -> str:
    """Name a run by its data set: the last part of the path up to its first dot."""
    last = Path(path).name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", last).strip("-") or "run"


def _as_group(override: str) -> str:
    """Let `allocate.selector=uniform` choose from the group, as `allocate/selector=` does."""
    return re.sub(r"^allocate\.selector=", "allocate/selector=", override)


def _check_form(override: str) -> None:
    """Refuse what is not key=value, and keys that Hydra would add or delete unchecked."""
    key, equals, _ = override.partition("=")
    require(bool(equals), f"{override} must be key=value, such as rows.path=my.jsonl")
    require(
        not key.startswith(("+", "~")),
        f"{override}: keys cannot be added or deleted; set one of those that `--help` lists",
    )
