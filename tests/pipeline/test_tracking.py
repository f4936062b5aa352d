"""Trackers: each is told the numbers of the manifest, its library is only then imported."""

import json
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline import tracking
from pipeline.plan import RunReport, StepReport
from pipeline.tracking import (
    LIBRARIES,
    TRACKERS,
    TrackingConfig,
    figures_of,
    require_tracker,
    track,
)
from stages.contract.artifact import Artifact
from stages.contract.errors import ConfigurationError
from stages.shards.card import Published
from tests.conftest import ROOT

FIGURES = {
    "rows/read": 10.0,
    "rows/kept": 6.0,
    "rows/rejected": 1.0,
    "steps_per_epoch": 3.0,
    "weights/largest": 1.5,
    "weights/effective_sample_size": 0.75,
    "schedule/imbalance": 1.25,
    "quality/gradient_error": 0.2,
    "quality/gradient_error_of_random": 0.4,
    "quality/ratio_to_random": 0.5,
    "seconds/rows": 2.5,
}
PARAMS = {"name": "mine", "rows.path": "my.jsonl", "keys.rows": "abc"}


@dataclass(frozen=True)
class Rows:
    num_rows: int = 10


def report(*, judged: bool = True) -> RunReport:
    manifest = {
        "name": "mine",
        "world_size": 2,
        "rows_per_worker": 3,
        "steps_per_epoch": 3,
        "rejects": {"rows": 1},
        "weights": {"max": 1.5, "effective_sample_size": 0.75},
        "schedule": {"imbalance": 1.25},
        "settings": {"name": "mine", "rows": {"path": "my.jsonl"}},
        "keys": {"rows": "abc"},
    }
    if judged:
        manifest["quality"] = {
            "selection": {"gradient_error": 0.2},
            "random": {"gradient_error": 0.4},
            "ratio_to_random": 0.5,
        }
    step = StepReport(cast(Artifact, Rows()), False, 0, 2.5)
    return RunReport({"rows": step}, cast(Published, manifest), Path("out"))


class Wandb(types.ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.told: dict[str, Any] = {"finished": 0}
        self.summary = cast(dict[str, float], self.told.setdefault("summary", {}))

    def init(self, **arguments: Any) -> "Wandb":
        self.told["init"] = arguments
        return self

    def finish(self) -> None:
        self.told["finished"] += 1


class Mlflow(types.ModuleType):
    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *words, **named: self.calls.append((name, *words, *named.values())) or self

    def __enter__(self) -> None:
        self.calls.append(("enter",))

    def __exit__(self, *_: object) -> None:
        self.calls.append(("exit",))


def test_figures_are_those_of_the_manifest() -> None:
    assert figures_of(report()) == FIGURES
    unjudged = {name: value for name, value in FIGURES.items() if "quality" not in name}
    assert figures_of(report(judged=False)) == unjudged


def test_wandb_gets_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    track(TrackingConfig(tracker="wandb", project="p", where="w"), report())
    assert fake.told == {
        "init": {"project": "p", "name": "mine", "config": PARAMS, "dir": "w"},
        "summary": FIGURES,
        "finished": 1,
    }


@pytest.mark.parametrize("where", ["", "http://127.0.0.1:5000"])
def test_mlflow_gets_one_run(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    fake = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    track(TrackingConfig(tracker="mlflow", where=where), report())
    assert fake.calls == [
        *([("set_tracking_uri", where)] if where else []),
        ("set_experiment", "evenshard"),
        ("start_run", "mine"),
        ("enter",),
        ("log_params", PARAMS),
        ("log_metrics", FIGURES),
        ("exit",),
    ]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    track(TrackingConfig(tracker="tensorboard", project="p", where=str(tmp_path)), report())
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "p" / "mine")).Reload()
    read = {key: events.Scalars(key)[0].value for key in events.Tags()["scalars"]}
    assert read == pytest.approx(FIGURES)
    [tag] = events.Tags()["tensors"]
    text = events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
    assert "    rows.path=my.jsonl" in text.splitlines()


def test_none_imports_nothing_and_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in LIBRARIES.values():
        monkeypatch.setitem(sys.modules, library, None)  # an import would raise
    require_tracker(TrackingConfig())
    track(TrackingConfig(), report())
    code = f"import sys, pipeline.tracking; sys.exit(bool({set(LIBRARIES)} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_library_that_is_missing_stops_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="tracking=mlflow needs the package mlflow"):
        require_tracker(TrackingConfig(tracker="mlflow"))


def test_a_tracker_that_fails_is_told_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setitem(TRACKERS, "wandb", fail)
    track(TrackingConfig(tracker="wandb"), report())
    [message] = caplog.messages
    assert "tracking=wandb failed (OSError: no network)" in message and "out" in message


@pytest.mark.parametrize("wrong", [{"tracker": "neptune"}, {"project": ""}])
def test_wrong_settings_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=f"tracking.{next(iter(wrong))}"):
        TrackingConfig(**wrong)


def test_no_text_of_a_row_is_among_what_is_sent() -> None:
    """Only numbers, and the settings of the manifest; both are listed in full above."""
    sent = json.dumps([figures_of(report()), tracking.flat(tracking._settings(report()))])
    assert json.loads(sent) == [FIGURES, PARAMS]


def test_each_tracker_has_its_file_of_the_group() -> None:
    names = {file.stem for file in (ROOT / "conf" / "tracking").glob("*.yaml")}
    assert names == {"none", *TRACKERS} == {"none", *LIBRARIES}
