"""The room on a few rows: what it writes, whoever works on the parts, before and after a kill."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import ConfigurationError
from stages.contract.fingerprint import artifact_key
from stages.contract.parts import PartSpec, Receipt
from stages.embed.stage import EmbedConfig, EmbedSettings, ModelConfig
from stages.trajectory.stage import (
    ADAPTERS,
    TRAJECTORY,
    TrajectoryConfig,
    TrajectorySettings,
    load_worker,
    trajectory_schema,
)
from stages.trajectory.worker import load, read_states
from tests.artifacts import here, rows_table, run_stage, save, tokens_table

NUM_ROWS = 20
KEPT = [i for i in range(NUM_ROWS) if i not in (4, 19)]


def token_artifact(store: Path) -> dict[str, Artifact]:
    rows = save(store, "rows", rows_table(NUM_ROWS))
    lengths = np.random.default_rng(0).integers(4, 30, len(KEPT)).tolist()
    table = tokens_table(KEPT, lengths)
    return {"tokens": save(store, "tokens", table, stop=NUM_ROWS, rows_per_part=8, parent=rows)}


def settings_of(model: Path, store: Path, **keys: Any) -> TrajectorySettings:
    config = {"steps": 6, "rows": 8, "batch_rows": 4, "learning_rate": 0.02, "rank": 2, **keys}
    embed = EmbedConfig(rows_per_part=8, tokens_per_batch=64)
    of_pass = EmbedSettings(embed, ModelConfig(path=str(model)), model, "cpu", 1, store / "hashes")
    return TrajectorySettings(TrajectoryConfig(**config), of_pass)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return token_artifact(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path, inputs: dict[str, Artifact]
) -> Artifact:
    store = tmp_path_factory.mktemp("made")
    return run_stage(TRAJECTORY, settings_of(model_folder, store), inputs, store)


def test_every_row_has_a_loss_at_every_checkpoint(made: Artifact) -> None:
    table = made.read(["row_id", "trajectory", "loss"])
    assert table.schema.equals(trajectory_schema(3))
    assert table["row_id"].to_pylist() == KEPT
    losses = np.array(table["trajectory"].to_pylist())
    assert losses.shape == (len(KEPT), 3) and np.isfinite(losses).all()
    assert table["loss"].to_pylist() == losses[:, 2].tolist()
    assert (losses[:, 0] != losses[:, 2]).all()


def test_the_facts_say_what_it_cost(made: Artifact, inputs: dict[str, Artifact]) -> None:
    facts = made.facts
    lengths = dict(zip(KEPT, inputs["tokens"].array("num_tokens").tolist(), strict=True))
    trained = made.side("trained.parquet")["row_id"].to_pylist()
    assert trained == sorted(set(trained)) and set(trained) <= set(KEPT)
    assert facts["rows_trained"] == len(trained) == 8
    # Six steps of 4 are three epochs of 8 rows.
    assert facts["tokens_trained"] == 3 * sum(lengths[row] for row in trained)
    assert facts["tokens_passed"] == 3 * sum(lengths.values())
    assert (facts["kept"], facts["rejected"]) == (len(KEPT), 0)
    assert facts["seconds_trained"] > 0
    assert made.side("checkpoints.parquet")["step"].to_pylist() == [2, 4, 6]
    assert facts["losses"] == made.side("checkpoints.parquet")["loss"].to_pylist()


def test_the_last_loss_is_that_of_the_model_with_its_adapters(
    made: Artifact, model_folder: Path, inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    from stages.trajectory.adapters import set_state
    from stages.trajectory.train import Rows, row_losses

    model, adapters = load(settings_of(model_folder, tmp_path))
    states = read_states(made.file(ADAPTERS))
    assert len(states) == 3
    table = inputs["tokens"].read(["input_ids", "labels"])
    expected = np.array(made.read(["trajectory"])["trajectory"].to_pylist())
    for place, state in enumerate(states):
        set_state(adapters, state)
        for i, row in enumerate(table.to_pylist()[:3]):
            alone = Rows(
                [np.array(row["input_ids"], np.int32)], [np.array(row["labels"], np.int32)]
            )
            with torch.inference_mode():
                loss = float(row_losses(model, alone, 256)[0])
            assert loss == pytest.approx(expected[i, place], rel=1e-5)


def backwards(make: Any, parts: Sequence[PartSpec], *, uses_gpu: bool) -> Iterator[Receipt]:
    for part in reversed(parts):
        yield make()(part)


def parts_of(artifact: Artifact) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(artifact.path.glob("*.parquet"))}


def test_other_workers_write_the_same_bytes(
    made: Artifact, model_folder: Path, inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    settings = settings_of(model_folder, tmp_path)
    other = run_stage(TRAJECTORY, settings, inputs, tmp_path, backwards)
    assert other.key == made.key
    assert parts_of(other) == parts_of(made)


def test_a_killed_run_goes_on_without_training_again(
    made: Artifact, model_folder: Path, inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    settings = settings_of(model_folder, tmp_path)
    keys = {"tokens": inputs["tokens"].key}
    key = artifact_key("trajectory", TRAJECTORY.version, TRAJECTORY.identity(settings), keys)
    draft = Draft.create(tmp_path, "trajectory", key)
    steps = TRAJECTORY.run(settings, inputs, draft, here)
    assert [next(steps).rows for _ in range(2)] == [0, 7]  # the warm-up, and a part
    steps.close()
    asked: list[str] = []

    def spread(make: Any, parts: Sequence[PartSpec], *, uses_gpu: bool) -> Iterator[Receipt]:
        asked.extend(part.name for part in parts)
        return here(make, parts, uses_gpu=uses_gpu)

    again = run_stage(TRAJECTORY, settings, inputs, tmp_path, spread)
    assert asked == ["part-00001.parquet", "part-00002.parquet"]
    assert again.facts["seconds_trained"] is None
    assert parts_of(again) == parts_of(made)


def test_a_row_without_a_finite_loss_is_left_out_and_counted(
    made: Artifact, model_folder: Path, inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    import dataclasses

    settings = settings_of(model_folder, tmp_path)
    draft = Draft.create(tmp_path, "trajectory", "k")
    (draft.path / ADAPTERS).write_bytes((made.path / ADAPTERS).read_bytes())
    worker = load_worker(settings, inputs["tokens"], draft)
    first = inputs["tokens"].read(["input_ids"])["input_ids"][1].as_py()

    def trunk(input_ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = worker.model.trunk(input_ids).clone()
        hidden[(input_ids[:, 0] == first[0])] = float("nan")
        return hidden

    broken = dataclasses.replace(worker, model=dataclasses.replace(worker.model, trunk=trunk))
    receipt = broken(PartSpec(0, 0, 8, "part-00000.parquet"))
    assert (receipt.rows, receipt.stats["refused"]) == (6, 1)


def test_the_key_knows_what_decides_the_bytes(model_folder: Path, tmp_path: Path) -> None:
    def key(**keys: Any) -> Any:
        return TRAJECTORY.identity(settings_of(model_folder, tmp_path, **keys))

    assert key() == key()
    for change in ({"steps": 9}, {"rows": 9}, {"rank": 3}, {"seed": 1}, {"learning_rate": 0.1}):
        assert key() != key(**change)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"steps": -1}, "trajectory.steps=-1 must be >= 0"),
        ({"steps": 2}, "trajectory.steps=2 must be >= trajectory.checkpoints=3"),
        ({"rank": 0}, "trajectory.rank=0 must be >= 1"),
        ({"learning_rate": 0.0}, "trajectory.learning_rate=0.0 must be > 0"),
    ],
)
def test_options_are_checked(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TrajectoryConfig(**keys)
    assert words in str(caught.value)
