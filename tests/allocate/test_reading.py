"""What selectors get from the artifacts of further passes, and which rows are no candidates."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stages.allocate.choose import choose
from stages.allocate.reading import check_varies, read_candidates, unscored
from stages.allocate.selectors.reducible_loss import ReducibleLoss
from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.artifact import Artifact
from stages.contract.errors import ConfigurationError, DataError
from stages.contract.schemas import REJECTS
from stages.contract.stage import Stage
from stages.trajectory.stage import trajectory_schema
from tests.allocate.test_stage import MISSING, clustered
from tests.artifacts import EMBED_LAYOUT, blobs, embed_table, run_stage, save

NUM_ROWS = 240
UNSCORED = [3, 77, 200]
PARAMS = {"embed": {"feature": "target_row"}}


def scores_of(
    store: Path, inputs: dict[str, Artifact], *, without: list[int], seed: int = 9
) -> Artifact:
    """Write the pass of a second model, of which some rows are missing."""
    kept = np.setdiff1d(inputs["embed"].array("row_id"), without)
    table = embed_table(kept.tolist(), blobs([kept.size]), seed=seed)
    return save(store, "embed", table, stop=NUM_ROWS, parent=inputs["tokens"], params=PARAMS)


def losses_of(store: Path, inputs: dict[str, Artifact], *, without: list[int]) -> Artifact:
    """Write a warm-up of three checkpoints: row i has the losses i, i + 0.25 and i + 0.5."""
    kept = np.setdiff1d(inputs["embed"].array("row_id"), without)
    losses = (kept[:, None] + np.array([0.0, 0.25, 0.5])).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(losses.reshape(-1)), 3)
    last = pa.array(np.ascontiguousarray(losses[:, 2]))
    table = pa.table([pa.array(kept), lists, last], schema=trajectory_schema(3))
    return save(store, "trajectory", table, stop=NUM_ROWS, parent=inputs["tokens"])


def test_signals_of_the_second_model_are_those_of_the_same_row(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    inputs["reference"] = scores_of(tmp_path, inputs, without=UNSCORED)
    rows, row_ids = read_candidates(inputs)
    assert set(row_ids) == set(range(NUM_ROWS)) - set(MISSING) - set(UNSCORED)
    for name in ("loss", "entropy"):
        other = dict(zip(*(inputs["reference"].array(c) for c in ("row_id", name)), strict=True))
        own = dict(zip(*(inputs["embed"].array(c) for c in ("row_id", name)), strict=True))
        assert rows.read_signal(f"reference.{name}").tolist() == [other[i] for i in row_ids]
        assert rows.read_signal(name).tolist() == [own[i] for i in row_ids]
    for column in ("multiplicity", "num_tokens", "cluster"):
        table = inputs[{"multiplicity": "screen", "num_tokens": "tokens"}.get(column, column)]
        expected = dict(zip(table.array("row_id"), table.array(column), strict=True))
        assert getattr(rows, column).tolist() == [expected[i] for i in row_ids]
    ids, vectors = (inputs["embed"].read([c])[c].to_pylist() for c in ("row_id", "embedding"))
    places = np.array([0, 1, 60, rows.num_rows - 1])
    expected = [vectors[ids.index(i)] for i in row_ids[places]]
    assert rows.read_feature("target_row", places).tolist() == expected


def test_unscored_rows_are_counted_and_written_as_rejects(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    inputs["reference"] = scores_of(tmp_path, inputs, without=UNSCORED)
    inputs["trajectory"] = losses_of(tmp_path, inputs, without=[9])
    reasons = dict.fromkeys(UNSCORED, "no_reference_score") | {9: "no_trajectory"}
    assert unscored(inputs) == reasons and list(unscored(inputs)) == [3, 9, 77, 200]
    settings = AllocateConfig(selector=ReducibleLoss(), budget="100%", num_workers=2)
    made = run_stage(reading_all(), settings, inputs, tmp_path)
    assert made.facts["unscored"] == {"no_reference_score": 3, "no_trajectory": 1}
    assert made.facts["candidates"] == NUM_ROWS - len(MISSING) - 4
    [rejects] = made.sides("rejects")
    assert rejects.schema.equals(REJECTS)
    assert dict(zip(rejects["row_id"].to_pylist(), rejects["reason"].to_pylist(), strict=True)) == (
        reasons
    )
    assert rejects["line"].to_pylist() == [4, 10, 78, 201]
    assert b"question 77" in rejects["raw"][2].as_py()
    assert not set(made.array("row_id")) & {3, 9, 77, 200}


def reading_all() -> Stage:
    """The stage, told to read what it may."""
    return Stage(
        name="allocate",
        version=ALLOCATE_STAGE.version,
        reads=(*ALLOCATE_STAGE.reads, "reference", "trajectory"),
        identity=ALLOCATE_STAGE.identity,
        run=ALLOCATE_STAGE.run,
    )


def test_nothing_is_said_of_scores_where_no_further_pass_was_read(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    made = run_stage(ALLOCATE_STAGE, AllocateConfig(num_workers=2), inputs, tmp_path)
    assert "unscored" not in made.facts
    assert list(made.sides("rejects")) == []


def test_a_stage_picks_what_it_may_read_only_where_it_is(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    assert list(ALLOCATE_STAGE.inputs_of(inputs)) == [*ALLOCATE_STAGE.reads]
    more = {**inputs, "targets": inputs["embed"], "other": inputs["embed"]}
    assert list(ALLOCATE_STAGE.inputs_of(more)) == [*ALLOCATE_STAGE.reads, "targets"]
    assert set(CLUSTER_STAGE.inputs_of(more)) == {*CLUSTER_STAGE.reads}


def test_trajectories_and_the_warm_up_as_a_reference(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    inputs["trajectory"] = losses_of(tmp_path, inputs, without=[])
    inputs["reference"] = inputs["trajectory"]
    rows, row_ids = read_candidates(inputs)
    places = np.array([2, 5, 100])
    expected = row_ids[places][:, None] + np.array([0.0, 0.25, 0.5])
    assert np.array_equal(rows.read_feature("trajectory", places), expected)
    assert np.array_equal(rows.read_signal("reference.loss"), row_ids + 0.5)
    for name in ("reference.entropy", "reference.trajectory", "embedding"):
        with pytest.raises(ConfigurationError, match=f"the signal {name} is needed"):
            rows.read_signal(name)


def test_targets_are_the_raw_features_of_their_own_pass(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    vectors = blobs([4, 3], seed=4)
    table = embed_table([1, 2, 3, 4, 6, 9, 10], vectors)
    inputs["targets"] = save(
        tmp_path, "embed", table, rows_per_part=3, parent=inputs["tokens"], params=PARAMS
    )
    rows, _ = read_candidates(inputs)
    assert np.array_equal(rows.read_targets("target_row"), vectors)
    with pytest.raises(ConfigurationError, match=r"embed\.also=\[head_sketch\]"):
        rows.read_targets("head_sketch")


def gradients_of(store: Path, inputs: dict[str, Artifact], row_ids: list[int]) -> Artifact:
    """Write a warm-up of one checkpoint whose rows have the gradient (row id / 256, 0.5)."""
    kept = np.array(row_ids, np.int64)
    loss = pa.array(kept.astype(np.float32))
    values = np.stack([kept / 256, np.full(kept.size, 0.5)], axis=1).astype(np.float16)
    columns = [
        pa.array(kept),
        pa.FixedSizeListArray.from_arrays(loss, 1),
        loss,
        pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 2),
    ]
    table = pa.table(columns, schema=trajectory_schema(1, 2))
    return save(store, "trajectory", table, stop=NUM_ROWS, parent=inputs["tokens"])


def test_gradients_are_those_of_the_warm_up_and_of_the_target_rows(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    every = inputs["embed"].array("row_id").tolist()
    inputs["trajectory"] = gradients_of(tmp_path, inputs, every)
    inputs["target_gradients"] = gradients_of(tmp_path, inputs, [1, 2, 6])
    rows, row_ids = read_candidates(inputs)
    places = np.array([0, 7, 100])
    found = rows.read_feature("gradients", places)
    assert found.dtype == np.float32
    assert found.tolist() == [[row_ids[place] / 256, 0.5] for place in places]
    targets = rows.read_targets("gradients")
    assert targets.dtype == np.float32
    assert targets.tolist() == [[1 / 256, 0.5], [2 / 256, 0.5], [6 / 256, 0.5]]


@pytest.mark.parametrize("plain", [False, True])
def test_gradients_that_no_warm_up_took_name_their_keys(tmp_path: Path, plain: bool) -> None:
    inputs = clustered(tmp_path)
    if plain:
        inputs["trajectory"] = losses_of(tmp_path, inputs, without=[])
        inputs["targets"] = inputs["embed"]
    rows, _ = read_candidates(inputs)
    words = r"set trajectory\.steps=60 and trajectory\.gradient_dim=1024"
    with pytest.raises(ConfigurationError, match=words):
        rows.read_feature("gradients", np.array([0]))
    with pytest.raises(ConfigurationError, match=words if plain else r"set targets\.path="):
        rows.read_targets("gradients")


def test_what_is_not_there_names_its_key(tmp_path: Path) -> None:
    rows, _ = read_candidates(clustered(tmp_path))
    with pytest.raises(ConfigurationError, match=r"set reference\.path="):
        rows.read_signal("reference.loss")
    with pytest.raises(ConfigurationError, match=r"set trajectory\.steps=60"):
        rows.read_feature("trajectory", np.array([0]))
    with pytest.raises(ConfigurationError, match=r"set targets\.path="):
        rows.read_targets("target_row")
    with pytest.raises(ConfigurationError, match=r"embed\.answer_alone=true"):
        rows.read_signal("answer_alone_loss")


@pytest.mark.parametrize(
    ("values", "stops"),
    [
        ([1.0] * 21, True),
        ([3.0] * 20 + [2.0], True),  # a default, and one that was scored
        ([3.0] * 20 + [2.0, 1.0], False),
        ([1.0] * 20, False),  # so few rows may be alike
    ],
)
def test_a_score_of_fewer_than_three_values_stops(values: list[float], stops: bool) -> None:
    column = np.array(values, np.float32)
    if not stops:
        check_varies("loss", column)
        return
    with pytest.raises(DataError, match=r"signal loss has [12] distinct values over 21 rows"):
        check_varies("loss", column)


def test_a_selection_by_a_score_that_stands_for_failures_stops(tmp_path: Path) -> None:
    inputs = clustered(tmp_path)
    column = inputs["embed"].read(["row_id"])["row_id"].to_pylist()
    table = embed_table(column, blobs([len(column)]))
    loss = pa.array(np.where(np.array(column) % 2, 3.0, 0.0).astype(np.float32))
    table = table.set_column(table.column_names.index("loss"), "loss", loss)
    inputs["embed"] = save(
        tmp_path,
        "embed",
        table,
        stop=NUM_ROWS,
        parent=inputs["tokens"],
        params=PARAMS,
        layout=EMBED_LAYOUT,
    )
    grouping = ClusterConfig(num_clusters=3, n_init=2, min_rows=0)
    inputs["cluster"] = run_stage(CLUSTER_STAGE, grouping, inputs, tmp_path)
    inputs["reference"] = scores_of(tmp_path, inputs, without=[])
    rows, _ = read_candidates(inputs)
    settings = AllocateConfig(selector=ReducibleLoss(), budget="50%")
    with pytest.raises(DataError, match="signal loss has 2 distinct values"):
        choose(
            settings.selector, settings.asked, settings.step, rows, on_empty_quota="merge", seed=0
        )
