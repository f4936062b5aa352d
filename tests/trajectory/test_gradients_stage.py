"""The room where gradients are asked for: pool rows, target rows, other workers, a kill."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import ConfigurationError
from stages.contract.fingerprint import artifact_key
from stages.embed.reading import matrix
from stages.trajectory.adapters import set_state
from stages.trajectory.gradients import directions_of, folded_gradients, joined
from stages.trajectory.stage import (
    ADAPTERS,
    MOMENTS,
    TRAJECTORY,
    TrajectoryConfig,
    trajectory_schema,
)
from stages.trajectory.train import Rows
from stages.trajectory.worker import load, read_states
from tests.artifacts import here, rows_table, run_stage, save, tokens_table
from tests.trajectory.test_stage import (
    KEPT,
    backwards,
    parts_of,
    settings_of,
    token_artifact,
)

DIM = 32
ASKED: dict[str, Any] = {"gradient_dim": DIM}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return token_artifact(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path, inputs: dict[str, Artifact]
) -> Artifact:
    store = tmp_path_factory.mktemp("made")
    return run_stage(TRAJECTORY, settings_of(model_folder, store, **ASKED), inputs, store)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    store = tmp_path_factory.mktemp("targets")
    rows = save(store, "rows", rows_table(5))
    return save(store, "tokens", tokens_table(range(5), [9, 20, 6, 6, 11]), parent=rows)


def expected_of(
    source: Artifact, made: Artifact, model_folder: Path, store: Path, *, adam: bool
) -> np.ndarray:
    """Each row by itself, at every checkpoint."""
    settings = settings_of(model_folder, store, **ASKED)
    model, adapters = load(settings)
    moments = read_states(made.file(MOMENTS)) if adam else None
    asked = directions_of(settings.trajectory, adapters, moments)
    assert asked is not None
    found = []
    for row in source.read(["input_ids", "labels"]).to_pylist():
        alone = Rows([np.array(row["input_ids"], np.int32)], [np.array(row["labels"], np.int32)])
        found.append([])
        for state, means in zip(read_states(made.file(ADAPTERS)), asked.moments, strict=True):
            set_state(adapters, state)
            _, folded = folded_gradients(model, adapters, alone, 256, asked.folds, DIM, means)
            found[-1].append(folded[0].numpy())
    return joined(np.array(found))


def test_every_row_has_adams_direction_at_every_checkpoint(
    made: Artifact, model_folder: Path, inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    assert made.schema().equals(trajectory_schema(3, DIM))
    found = matrix(made.read(["gradients"]), "gradients")
    assert made.array("row_id").tolist() == KEPT and found.shape == (len(KEPT), 3 * DIM)
    lengths = np.linalg.norm(found.astype(np.float64).reshape(-1, 3, DIM), axis=2)
    assert np.allclose(lengths, 3**-0.5, rtol=1e-3)
    expected = expected_of(inputs["tokens"], made, model_folder, tmp_path, adam=True)
    assert np.allclose(found, expected, atol=2e-3)


def test_asking_for_gradients_changes_no_loss_and_no_adapter(
    made: Artifact, model_folder: Path, inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    plain = run_stage(TRAJECTORY, settings_of(model_folder, tmp_path), inputs, tmp_path)
    assert plain.key != made.key and not (plain.path / MOMENTS).exists()
    assert plain.schema().equals(trajectory_schema(3))
    assert np.allclose(plain.array("loss"), made.array("loss"), rtol=1e-5)
    assert (plain.path / ADAPTERS).read_bytes() == (made.path / ADAPTERS).read_bytes()
    assert plain.facts["losses"] == made.facts["losses"]


def test_target_rows_pass_the_checkpoints_of_the_pool_with_plain_gradients(
    made: Artifact, targets: Artifact, model_folder: Path, tmp_path: Path
) -> None:
    settings = settings_of(model_folder, tmp_path, **ASKED)
    read = {"tokens": targets, "trajectory": made}
    found = run_stage(TRAJECTORY, settings, read, tmp_path)
    assert found.array("row_id").tolist() == [0, 1, 2, 3, 4]
    assert [file.name for file in found.path.glob("*.parquet")] == ["part-00000.parquet"]
    assert (found.facts["kept"], found.facts["tokens_passed"]) == (5, 3 * 52)
    assert "rows_trained" not in found.facts
    gradients = matrix(found.read(["gradients"]), "gradients")
    expected = expected_of(targets, made, model_folder, tmp_path, adam=False)
    assert np.allclose(gradients, expected, atol=2e-3)


def test_other_workers_write_the_same_bytes(
    made: Artifact, model_folder: Path, inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    settings = settings_of(model_folder, tmp_path, **ASKED)
    other = run_stage(TRAJECTORY, settings, inputs, tmp_path, backwards)
    assert other.key == made.key and MOMENTS in parts_of(made)
    assert parts_of(other) == parts_of(made)


def test_a_killed_run_goes_on_where_it_was(
    made: Artifact, model_folder: Path, inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    settings = settings_of(model_folder, tmp_path, **ASKED)
    keys = {"tokens": inputs["tokens"].key}
    key = artifact_key("trajectory", TRAJECTORY.version, TRAJECTORY.identity(settings), keys)
    steps = TRAJECTORY.run(settings, inputs, Draft.create(tmp_path, "trajectory", key), here)
    assert [next(steps).rows for _ in range(2)] == [0, 7]  # the warm-up, and a part
    steps.close()
    again = run_stage(TRAJECTORY, settings, inputs, tmp_path)
    assert again.facts["seconds_trained"] is None
    assert parts_of(again) == parts_of(made)


def test_the_size_of_gradients_is_in_the_key_only_where_there_are_any(
    model_folder: Path, tmp_path: Path
) -> None:
    plain, *others = (
        TRAJECTORY.identity(settings_of(model_folder, tmp_path, gradient_dim=dim))
        for dim in (0, 32, 64)
    )
    assert plain["trajectory"].keys() == {
        *("class", "steps", "rows", "checkpoints", "rank", "batch_rows", "learning_rate", "seed")
    }
    assert [other["trajectory"]["gradient_dim"] for other in others] == [32, 64]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"steps": 6, "gradient_dim": -1}, "trajectory.gradient_dim=-1 must be >= 0"),
        ({"gradient_dim": 8}, "trajectory.gradient_dim=8 needs a warm-up, and trajectory.steps=0"),
    ],
)
def test_options_are_checked(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TrajectoryConfig(**keys)
    assert words in str(caught.value)
