"""The further passes of a run: which are read, what of them can be made early, and the rest."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.config import Config
from pipeline.second import WARMUP
from stages.allocate.needs import REFERENCE as REFERENCE_SIGNAL
from stages.allocate.needs import TARGETS as TARGET_FEATURE
from stages.allocate.needs import needs_of
from stages.allocate.reading import REFERENCE, TARGET_GRADIENTS, TARGETS, TRAJECTORY
from stages.contract.artifact import Artifact
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.folder import hash_cache_of
from stages.contract.stage import Stage
from stages.embed.checkpoint import check_max_length, resolve_model, weights_sha256
from stages.embed.stage import EMBED, EmbedConfig, EmbedSettings, ModelConfig
from stages.rows.stage import ROWS, RowsSettings
from stages.screen.stage import SCREEN, ScreenConfig, ScreenSettings
from stages.tokens.stage import TOKENS, TokensSettings
from stages.trajectory.stage import GRADIENTS, TrajectorySettings
from stages.trajectory.stage import TRAJECTORY as TRAJECTORY_STAGE

log = logging.getLogger(__name__)


class Step(Protocol):
    """What became of a stage, as the plan reports it."""

    @property
    def artifact(self) -> Artifact:
        """Its result."""


class Further(Protocol):
    """Finds or makes the result of one stage of a further pass, and tells it by that pass."""

    def __call__(self, stage: Stage, settings: Any, read: Mapping[str, Artifact], by: str) -> Any:
        """Run or reuse."""


def passes_there(config: Config) -> frozenset[str]:
    """Name the further passes that a configuration has."""
    found = {
        REFERENCE: config.reference.path is not None,
        TARGETS: config.targets.path is not None,
        TRAJECTORY: config.trajectory.steps > 0,
        GRADIENTS: config.trajectory.gradient_dim > 0,
    }
    found[TARGET_GRADIENTS] = found[TARGETS] and found[GRADIENTS]
    return frozenset(name for name, there in found.items() if there)


def passes_read(config: Config) -> frozenset[str]:
    """Name those of them that the selector reads; the others are told, and not made."""
    needs = needs_of(config.allocate.selector)
    made_for = {TRAJECTORY: (TRAJECTORY,), GRADIENTS: (TRAJECTORY, GRADIENTS)}
    made_for[f"{TARGET_FEATURE}{GRADIENTS}"] = (TARGET_GRADIENTS,)
    read: set[str] = set()
    for need in needs:
        if need in made_for:
            read |= {*made_for[need]}
        elif need.startswith(TARGET_FEATURE):
            read.add(TARGETS)
        elif need.startswith(REFERENCE_SIGNAL):
            read.add(REFERENCE)
    through = {TRAJECTORY} if REFERENCE in read and config.reference.path == WARMUP else set()
    through |= {TARGETS} if TARGET_GRADIENTS in read else set()
    keys = {TRAJECTORY: "trajectory.steps", GRADIENTS: "trajectory.gradient_dim"}
    for name in sorted(passes_there(config) - read - through - {TARGET_GRADIENTS}):
        log.info(
            "%s is set and allocate.selector does not read it; that pass is not made",
            keys.get(name, f"{name}.path"),
        )
    return frozenset(read)


def pass_settings(
    config: Config, model: ModelConfig, weights: Path, embed: EmbedConfig
) -> EmbedSettings:
    """Gather what an embed stage is told, on the devices of the run."""
    gpus = config.compute.gpus_per_worker
    return EmbedSettings(
        embed=embed,
        model=model,
        weights=weights,
        device="cuda" if gpus > 0 else "cpu",
        num_devices=max(1, int(gpus)),
        hash_cache=hash_cache_of(config.store, config.models),
    )


@dataclasses.dataclass(frozen=True)
class FurtherPasses:
    """The passes of one run beside the main one.

    Attributes
    ----------
    config : Config
        Of the run.
    names : frozenset of str
        Those that are made: reference, targets, trajectory, and of the last one gradients and
        target_gradients.
    further : callable
        Runs or reuses a stage; gives its report.
    prepared : dict of str to dict of str to Artifact
        What `prepare` has made: of targets and reference, what their passes read.
    """

    config: Config
    names: frozenset[str]
    further: Further
    prepared: dict[str, dict[str, Artifact]] = dataclasses.field(default_factory=dict)

    @property
    def second_model(self) -> bool:
        """Whether a second model is passed over the rows."""
        return REFERENCE in self.names and self.config.reference.has_model

    def check(self) -> None:
        """Check the second model against the first, before any work.

        Raises
        ------
        ConfigurationError
            If both have the same weights, or the second has too few positions.
        """
        if not self.second_model:
            return
        folder, reference = self._model_folder(), self._reference_folder()
        try:
            check_max_length(reference, self.config.tokens.max_length)
        except ConfigurationError as error:
            raise ConfigurationError(f"reference.path: {error}") from None
        hashes = hash_cache_of(self.config.store, self.config.models)
        both = [weights_sha256(each, hashes) for each in (folder, reference)]
        first, second = ({v for k, v in each.items() if k != "config.json"} for each in both)
        if first == second:
            raise ConfigurationError(
                f"reference.path={self.config.reference.path} has the weights of "
                f"model.path={self.config.model.path}, so it says nothing more; give another model"
            )

    def prepare(self, reports: Mapping[str, Step]) -> None:
        """Read and tokenise what the further passes need, before a model is loaded."""
        if {TARGETS, TARGET_GRADIENTS} & self.names:
            self.prepared[TARGETS] = self._target_tokens()
        if self.second_model:
            tokens = self._reference_tokens(reports)
            self.prepared[REFERENCE] = {"tokens": tokens, "rows": reports["rows"].artifact}
            if tokens.key != reports["tokens"].artifact.key:
                log.warning(
                    "reference.path has a tokenizer or template of its own: its losses are per "
                    "token of its own, and not of the same unit as those of the model"
                )

    def make(self, reports: Mapping[str, Step]) -> dict[str, Any]:
        """Make the passes, by the names under which `allocate` reads them.

        Raises
        ------
        DataError
            If more rows have no score than reference.max_reject_fraction allows.
        """
        found: dict[str, Any] = {}
        if TARGETS in self.names:
            found[TARGETS] = self._embed_targets()
        if TRAJECTORY in self.names or (REFERENCE in self.names and not self.second_model):
            found[TRAJECTORY] = self._warm_up(reports)
        if TARGET_GRADIENTS in self.names:
            found[TARGET_GRADIENTS] = self._target_gradients(found[TRAJECTORY].artifact)
        if self.second_model:
            found[REFERENCE] = self._embed_by_reference()
        elif REFERENCE in self.names:
            found[REFERENCE] = found[TRAJECTORY]
        for name in found.keys() - {TARGETS, TARGET_GRADIENTS}:
            check_scored(
                name,
                reports["embed"].artifact,
                found[name].artifact,
                most=self.config.reference.max_reject_fraction,
            )
        if TRAJECTORY not in self.names:
            found.pop(TRAJECTORY, None)
        return found

    def _model_folder(self) -> Path:
        return resolve_model(self.config.model.path, Path(self.config.models))

    def _reference_folder(self) -> Path:
        return resolve_model(self.config.reference.model.path, Path(self.config.models))

    def _reference_tokens(self, reports: Mapping[str, Step]) -> Artifact:
        settings = TokensSettings(tokens=self.config.tokens, tokenizer=self._reference_folder())
        read = {name: reports[name].artifact for name in ("rows", "screen")}
        found: Artifact = self.further(TOKENS, settings, read, REFERENCE).artifact
        return found

    def _embed_by_reference(self) -> Any:
        """Pass the second model over the same rows, for its signals."""
        signals = dataclasses.replace(
            self.config.embed,
            feature="hidden_mean",
            also=[],
            judge=False,
            answer_alone=False,
            max_reject_fraction=1.0,  # judged by reference.max_reject_fraction instead
        )
        settings = pass_settings(
            self.config, self.config.reference.model, self._reference_folder(), signals
        )
        return self.further(EMBED, settings, self.prepared[REFERENCE], REFERENCE)

    def _target_tokens(self) -> dict[str, Artifact]:
        """Read the target rows, each for itself, and tokenise them as the others."""
        config = self.config
        hashes = hash_cache_of(config.store, config.models)
        assert config.targets.path is not None
        rows = dataclasses.replace(
            config.rows, path=config.targets.path, dialect=config.targets.dialect, limit=0
        )
        screen = ScreenConfig(duplicates="keep", seed=config.screen.seed)
        steps: tuple[tuple[Stage, Any], ...] = (
            (ROWS, RowsSettings(rows=rows, hash_cache=hashes)),
            (SCREEN, ScreenSettings(screen=screen, hash_cache=hashes)),
            (TOKENS, TokensSettings(tokens=config.tokens, tokenizer=self._model_folder())),
        )
        read: dict[str, Artifact] = {}
        try:
            for stage, settings in steps:
                read[stage.name] = self.further(stage, settings, read, TARGETS).artifact
        except DataError as error:
            raise DataError(f"targets.path={config.targets.path}: {error}") from error
        return read

    def _embed_targets(self) -> Any:
        """Pass the model over the target rows, for the features of the main pass."""
        features = dataclasses.replace(self.config.embed, judge=False, answer_alone=False)
        settings = pass_settings(self.config, self.config.model, self._model_folder(), features)
        return self.further(EMBED, settings, self.prepared[TARGETS], TARGETS)

    def _warm_up(self, reports: Mapping[str, Step]) -> Any:
        read = {"tokens": reports["tokens"].artifact}
        return self.further(TRAJECTORY_STAGE, self._warm_up_settings(), read, TRAJECTORY)

    def _target_gradients(self, warmed: Artifact) -> Any:
        """Pass the target rows through the checkpoints that the warm-up left."""
        read = {"tokens": self.prepared[TARGETS]["tokens"], TRAJECTORY: warmed}
        return self.further(TRAJECTORY_STAGE, self._warm_up_settings(), read, TARGETS)

    def _warm_up_settings(self) -> TrajectorySettings:
        """Gather what the warm-up is told; without gradients where nothing reads them."""
        config = self.config
        warm_up = config.trajectory
        if GRADIENTS not in self.names:
            warm_up = dataclasses.replace(warm_up, gradient_dim=0)
        of_pass = pass_settings(config, config.model, self._model_folder(), config.embed)
        return TrajectorySettings(trajectory=warm_up, embed=of_pass)


def check_scored(name: str, embed: Artifact, scores: Artifact, *, most: float) -> None:
    """Stop if a further pass has no score for too many of the embedded rows.

    Raises
    ------
    DataError
        If it is more than `most` of them.
    """
    row_ids = embed.array("row_id")
    missing = np.setdiff1d(row_ids, scores.array("row_id"), assume_unique=True)
    if missing.size == 0:
        return
    share = missing.size / row_ids.size
    told = f"{name}: {missing.size} of {row_ids.size} rows ({share:.2%}) have no score"
    if share > most:
        raise DataError(
            f"{told}, which is more than reference.max_reject_fraction={most} allows. First "
            f"row_ids: {missing[:5].tolist()}. Choose another model, or lower "
            f"trajectory.learning_rate; or leave them out of the candidates by "
            f"reference.max_reject_fraction={np.ceil(share * 1000) / 1000:g}"
        )
    log.warning("%s and are no candidates, the first row_id %d", told, missing[0])
