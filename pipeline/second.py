"""Further passes, for selectors that read more than one: what they are told, and what they make.

A second model over the same rows (`reference`), the same model over the rows that the user wants
to do well on (`targets`), and a short warm-up with the losses along the way (`trajectory`).
"""

import re
from dataclasses import dataclass

from stages.allocate.needs import Offer
from stages.contract.errors import ConfigurationError, require, require_one_of, require_share
from stages.contract.schemas import JUDGE, SIGNALS
from stages.embed.checkpoint import EMBEDDED
from stages.embed.stage import EmbedConfig, ModelConfig
from stages.rows.dialects import DIALECTS
from stages.rows.source import find
from stages.trajectory.stage import TrajectoryConfig

WARMUP = "warmup"


@dataclass(kw_only=True)
class ReferenceConfig:
    """A second model over the same rows; its signals are `reference.loss` and so on.

    Attributes
    ----------
    path : str, optional
        As model.path; or `warmup`: the losses of the model itself after its warm-up, which give
        `reference.loss` and nothing else. No pass is made where it is null.
    dtype, attn_implementation : str
        As those of the model.
    max_reject_fraction : float
        Share of rows without a score above which the run stops; fewer are no candidates.
    """

    path: str | None = None
    dtype: str = "auto"
    attn_implementation: str = "sdpa"
    max_reject_fraction: float = 0.01

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_share("reference.max_reject_fraction", self.max_reject_fraction, zero_allowed=True)
        require(self.path != "", "reference.path is empty; give a model, or null for none")
        self._as_model(self.path if self.has_model else EMBEDDED)

    @property
    def has_model(self) -> bool:
        """Whether there is a second model to load."""
        return self.path not in (None, WARMUP)

    @property
    def model(self) -> ModelConfig:
        """The second model, as the main one is told.

        Raises
        ------
        ConfigurationError
            If it is not there; by the name of this section.
        """
        return self._as_model(self.path)

    def _as_model(self, path: str | None) -> ModelConfig:
        assert path is not None
        try:
            return ModelConfig(
                path=path, dtype=self.dtype, attn_implementation=self.attn_implementation
            )
        except ConfigurationError as error:
            raise ConfigurationError(_renamed(error, "model", "reference")) from None


@dataclass(kw_only=True)
class TargetsConfig:
    """Rows that the user wants to do well on.

    Attributes
    ----------
    path : str, optional
        As rows.path; null for none.
    dialect : str
        As rows.dialect.
    """

    path: str | None = None
    dialect: str = "auto"

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("targets.dialect", self.dialect, ["auto", *DIALECTS])


def offer_of(
    embed: EmbedConfig,
    reference: ReferenceConfig,
    targets: TargetsConfig,
    trajectory: TrajectoryConfig,
) -> Offer:
    """Say what the passes of a configuration make."""
    signals: dict[str | None, tuple[str, ...]] = {None: (), WARMUP: ("loss",)}
    return Offer(
        features=tuple(name for name in embed.features if name != JUDGE),
        answer_alone=embed.answer_alone,
        reference=signals.get(reference.path, SIGNALS),
        targets=targets.path is not None,
        trajectory=trajectory.steps > 0,
        gradients=trajectory.gradient_dim > 0,
    )


def check_targets(targets: TargetsConfig) -> None:
    """Check that the target rows are there, before any work.

    Raises
    ------
    ConfigurationError
        If not; by the name of this section.
    """
    if targets.path is None:
        return
    try:
        find(targets.path)
    except ConfigurationError as error:
        raise ConfigurationError(_renamed(error, "rows", "targets")) from None


def _renamed(error: Exception, section: str, by: str) -> str:
    """Tell an error of a setting, `section.key=...`, by the section that it stands in here."""
    return re.sub(rf"\b{section}\.(?=path|dtype|attn_implementation)", f"{by}.", str(error))
