"""The closing figures of a run, sent to a tracker: to none unless `tracking=` names one.

One function per tracker, and its library is imported only there. Figures and settings are sent, no
text of any row.
"""

import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.contract.errors import ConfigurationError, require, require_one_of
from stages.contract.shown import flat

if TYPE_CHECKING:  # the plan reads the configuration, which reads this file
    from pipeline.plan import RunReport

log = logging.getLogger(__name__)

NONE = "none"
FOLDER = "data/tensorboard"  # of tensorboard, where none is given
LIBRARIES = {"wandb": "wandb", "mlflow": "mlflow", "tensorboard": "tensorboard"}

Figures = dict[str, float]


@dataclass(kw_only=True)
class TrackingConfig:
    """Where the closing figures go, beside the terminal and the manifest.

    Attributes
    ----------
    tracker : str
        none, wandb, mlflow or tensorboard.
    project : str
        Project of wandb, experiment of mlflow; the run has the run's name in it.
    where : str
        Folder of tensorboard and wandb, tracking URI of mlflow; empty for the tracker's own.
    """

    tracker: str = NONE
    project: str = "evenshard"
    where: str = ""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        require_one_of("tracking.tracker", self.tracker, (NONE, *LIBRARIES))
        require(bool(self.project), "tracking.project is empty; give a name such as evenshard")


def require_tracker(config: TrackingConfig) -> None:
    """Check that the tracker's library is installed, before any work; imports nothing.

    Raises
    ------
    ConfigurationError
        If it is not.
    """
    if config.tracker == NONE:
        return
    library = LIBRARIES[config.tracker]
    if importlib.util.find_spec(library) is None:
        raise ConfigurationError(
            f"tracking={config.tracker} needs the package {library}, which is not installed; "
            f"pip install {library}, or leave tracking=none"
        )


def figures_of(report: "RunReport") -> Figures:
    """Gather the numbers of the closing table, by names that sort into groups.

    Returns
    -------
    dict of str to float
        What a run of this kind has: `quality/*` only where it was judged.
    """
    manifest = report.manifest
    weights, schedule = manifest["weights"], manifest["schedule"]
    figures = {
        "rows/read": report.steps["rows"].artifact.num_rows,
        "rows/kept": manifest["world_size"] * manifest["rows_per_worker"],
        "rows/rejected": manifest["rejects"]["rows"],
        "steps_per_epoch": manifest["steps_per_epoch"],
        "weights/largest": weights["max"],
        "weights/effective_sample_size": weights["effective_sample_size"],
        "schedule/imbalance": schedule["imbalance"],
    }
    if "quality" in manifest:
        quality = manifest["quality"]
        figures["quality/gradient_error"] = quality["selection"]["gradient_error"]
        figures["quality/gradient_error_of_random"] = quality["random"]["gradient_error"]
        figures["quality/ratio_to_random"] = quality["ratio_to_random"]
    for name, step in report.steps.items():
        figures[f"seconds/{name}"] = step.seconds
    return {name: float(value) for name, value in figures.items()}


def track(config: TrackingConfig, report: "RunReport") -> None:
    """Send figures and settings to the tracker that was chosen.

    The set is published by now, so a tracker that fails is told and loses nothing.
    """
    if config.tracker == NONE:
        return
    name = report.manifest["name"]
    try:
        settings = {key: str(value) for key, value in flat(_settings(report)).items()}
        TRACKERS[config.tracker](config, name, figures_of(report), settings)
    except Exception as error:
        log.warning(
            "tracking=%s failed (%s: %s); the set and its figures are in %s",
            config.tracker,
            type(error).__name__,
            error,
            report.out,
        )


def to_wandb(config: TrackingConfig, name: str, figures: Figures, params: dict[str, str]) -> None:
    """Write one run of Weights & Biases: settings as its config, figures as its summary."""
    import wandb

    run = wandb.init(project=config.project, name=name, config=params, dir=config.where or None)
    run.summary.update(figures)
    run.finish()


def to_mlflow(config: TrackingConfig, name: str, figures: Figures, params: dict[str, str]) -> None:
    """Write one run of MLflow: settings as its parameters, figures as its metrics."""
    import mlflow

    if config.where:
        mlflow.set_tracking_uri(config.where)
    mlflow.set_experiment(config.project)
    with mlflow.start_run(run_name=name):
        mlflow.log_params(params)
        mlflow.log_metrics(figures)


def to_tensorboard(
    config: TrackingConfig, name: str, figures: Figures, params: dict[str, str]
) -> None:
    """Write one file of events: figures as scalars of step 0, settings as a text."""
    from torch.utils.tensorboard import SummaryWriter

    folder = Path(config.where or FOLDER) / config.project / name
    with SummaryWriter(str(folder)) as writer:
        for key, value in figures.items():
            writer.add_scalar(key, value, 0)
        # Four blanks in front make Markdown show a line as it is.
        writer.add_text("settings", "\n".join(f"    {k}={v}" for k, v in params.items()), 0)


Send = Callable[[TrackingConfig, str, Figures, dict[str, str]], None]
TRACKERS: dict[str, Send] = {
    "wandb": to_wandb,
    "mlflow": to_mlflow,
    "tensorboard": to_tensorboard,
}


def _settings(report: "RunReport") -> Mapping[str, Any]:
    """Take what decides the bytes, and the keys of the artifacts."""
    settings: Mapping[str, Any] = report.manifest["settings"]
    return {**settings, "keys": report.manifest["keys"]}
