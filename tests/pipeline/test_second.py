"""Selectors that read more than one pass, from the command line, with a tiny model."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.config import Config, check_paths, compose, settings_of
from pipeline.passes import check_scored, passes_read, passes_there
from stages.contract.artifact import Artifact
from stages.contract.errors import ConfigurationError, DataError
from tests.artifacts import blobs, embed_table, rows_table, save
from tests.pipeline.runs import Run, run
from tests.tiny import tiny_model

WARM = ("trajectory.steps=6", "trajectory.rows=16", "trajectory.batch_rows=4", "trajectory.rank=2")
HALF = ("allocate.budget=50%", "compute=local")

MISTAKES = [
    (
        ["allocate.selector=matched", "embed.also=[]"],
        ["reads head_sketch", "set embed.also=[head_sketch]"],
    ),
    (["allocate.selector=ifd"], ["answer_alone_loss", "set embed.answer_alone=true"]),
    (
        ["allocate.selector=head_grand", "allocate.selector.by=sketch", "embed.also=[]"],
        ["head_sketch", "set embed.also=[head_sketch]"],
    ),
    (["allocate.selector=svp"], ["reference.entropy", "set reference.path="]),
    (["allocate.selector=reducible_loss"], ["reference.loss", "set reference.path="]),
    (["allocate.selector=less_lite"], ["targets.target_row", "set targets.path="]),
    (["allocate.selector=rds_plus"], ["position_mean]", "targets.path="]),
    (["allocate.selector=s2l"], ["trajectory", "set trajectory.steps=60"]),
    (
        ["allocate.selector=less"],
        ["reads gradients and targets.gradients", "trajectory.gradient_dim=1024", "targets.path="],
    ),
    (
        ["allocate.selector=less", "trajectory.steps=6", "targets.path=rows.jsonl"],
        ["set trajectory.gradient_dim=1024"],
    ),
    (["trajectory.gradient_dim=8"], ["trajectory.gradient_dim=8 needs", "trajectory.steps=60"]),
    (
        ["allocate.selector=svp", "reference.path=warmup", "trajectory.steps=6"],
        ["reference.entropy", "gives only reference.loss"],
    ),
    (["reference.path=warmup"], ["reference.path=warmup", "set trajectory.steps=60"]),
    (["reference.path=/no/such/folder"], ["reference.path=/no/such/folder", "does not exist"]),
    (["reference.path=''"], ["reference.path is empty", "null"]),
    (["reference.dtype=bf16"], ["reference.dtype=bf16", "bfloat16"]),
    (["reference.path=smollm2", "reference.dtype=bf16"], ["reference.dtype=bf16", "bfloat16"]),
    (["reference.max_reject_fraction=2"], ["reference.max_reject_fraction=2", "[0, 1]"]),
    (["targets.dialect=alpacca"], ["targets.dialect=alpacca", "alpaca"]),
    (["trajectory.steps=2"], ["trajectory.steps=2", "trajectory.checkpoints=3"]),
    (
        ["allocate.order=balanced", "allocate.selector=uniform", "embed.also=[]"],
        ["allocate.order=balanced", "set embed.also=[head_sketch]"],
    ),
    (["cluster.feature=judge_sketch"], ["cluster.feature=judge_sketch", "target_row"]),
]


@pytest.mark.parametrize(("overrides", "words"), MISTAKES, ids=lambda v: " ".join(v))
def test_a_mistake_costs_no_pass(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        compose(overrides)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "model.path" not in str(caught.value) and "model.dtype" not in str(caught.value)


def test_target_rows_are_looked_for_before_any_work() -> None:
    with pytest.raises(ConfigurationError, match=r"targets\.path=no\.jsonl does not exist"):
        check_paths(compose(["targets.path=no.jsonl"]))


def read_by(overrides: Sequence[str]) -> set[str]:
    return set(passes_read(compose(overrides)))


def test_only_what_the_selector_reads_is_made(caplog: pytest.LogCaptureFixture) -> None:
    every = ["reference.path=smollm2", "targets.path=rows.jsonl", "trajectory.steps=9"]
    assert set(passes_there(compose(every))) == {"reference", "targets", "trajectory"}
    assert passes_there(Config()) == frozenset()
    caplog.set_level("INFO")
    assert read_by([*every, "allocate.selector=svp"]) == {"reference"}
    assert "targets.path is set and allocate.selector does not read it" in caplog.text
    assert "trajectory.steps is set and allocate.selector does not read it" in caplog.text
    assert read_by([*every, "allocate.selector=s2l"]) == {"trajectory"}
    assert read_by([*every, "allocate.selector=less_lite"]) == {"targets"}
    assert read_by(every) == set()
    caplog.clear()
    every.append("trajectory.gradient_dim=8")
    more = {"reference", "targets", "trajectory", "gradients", "target_gradients"}
    assert set(passes_there(compose(every))) == more
    less = read_by([*every, "allocate.selector=less"])
    assert less == {"trajectory", "gradients", "target_gradients"}
    assert "targets.path is set" not in caplog.text and "trajectory" not in caplog.text
    assert read_by([*every, "allocate.selector=s2l"]) == {"trajectory"}
    assert "trajectory.gradient_dim is set and allocate.selector does not read" in caplog.text
    alone = [*every, "allocate.selector=tagcos", "allocate.selector.feature=gradients"]
    assert read_by(alone) == {"trajectory", "gradients"}
    caplog.clear()
    warm = ["reference.path=warmup", "trajectory.steps=9", "allocate.selector=reducible_loss"]
    assert read_by(warm) == {"reference"}
    assert caplog.text == ""


def test_the_settings_of_further_passes_are_published() -> None:
    settings = settings_of(compose(["trajectory.steps=9"]))
    assert settings["trajectory"]["steps"] == 9
    assert settings["reference"]["path"] is None and settings["targets"]["path"] is None


def scored(store: Path, row_ids: list[int], parent: Artifact) -> Artifact:
    table = embed_table(row_ids, blobs([len(row_ids)]))
    return save(store, "embed", table, stop=200, parent=parent)


def test_more_than_a_hundredth_without_a_score_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = save(tmp_path, "rows", rows_table(200))
    embed = scored(tmp_path, list(range(200)), rows)
    check_scored("reference", embed, embed, most=0.0)
    assert caplog.text == ""
    two, three = ([i for i in range(200) if i not in out] for out in ((7, 9), (7, 9, 30)))
    check_scored("reference", embed, scored(tmp_path, two, rows), most=0.01)
    assert "reference: 2 of 200 rows (1.00%) have no score" in caplog.text
    with pytest.raises(DataError) as caught:
        check_scored("reference", embed, scored(tmp_path, three, rows), most=0.01)
    for words in ("3 of 200 rows (1.50%)", "[7, 9, 30]", "reference.max_reject_fraction=0.015"):
        assert words in str(caught.value)
    check_scored("reference", embed, scored(tmp_path, three, rows), most=0.015)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One store, so that only what differs is made anew."""
    folder = tmp_path_factory.mktemp("second")
    tiny_model(folder / "reference", seed=5, hidden=16)
    targets = [{"prompt": f"Add {i} and 2.", "completion": str(i + 2)} for i in range(6)]
    text = "".join(json.dumps(target) + "\n" for target in targets)
    (folder / "targets.jsonl").write_text(text)
    yield folder


def steps(done: Run) -> dict[str, str]:
    """What was said of each stage of a further pass."""
    pattern = r"^\S+ ((?:reference|targets|trajectory)[.\w]*)\s+(running|reused)\b"
    return dict(re.findall(pattern, done.log, re.MULTILINE))


def selector_of(done: Run) -> str:
    manifest = json.loads((done.out / "manifest.json").read_text())
    return str(manifest["settings"]["allocate"]["selector"]["class"])


def test_a_second_model_scores_the_same_rows(folder: Path, model_folder: Path) -> None:
    reference = f"reference.path={folder / 'reference'}"
    first = run(folder, model_folder, *HALF, "allocate.selector=svp", reference)
    assert first.status == 0, first.log
    # The tokenizer is the same, so the tokens are those of the main pass.
    assert steps(first) == {"reference.tokens": "reused", "reference.embed": "running"}
    assert selector_of(first) == "Svp"
    shards = first.shards()  # the next run writes into the same folder
    again = run(folder, model_folder, *HALF, "allocate.selector=reducible_loss", reference)
    assert again.status == 0, again.log
    assert set(steps(again).values()) == {"reused"}
    assert again.shards() != shards
    manifest = json.loads((again.out / "manifest.json").read_text())
    [allocated] = (folder / "store" / "allocate").glob(f"{manifest['keys']['allocate']}/*.json")
    assert "reference" in json.loads(allocated.read_text())["inputs"]
    assert set(manifest["keys"]) == {
        *("rows", "screen", "tokens", "embed", "cluster", "allocate", "shards")
    }


def test_the_model_itself_is_no_reference(folder: Path, model_folder: Path) -> None:
    same = f"reference.path={model_folder}"
    done = run(folder, model_folder, *HALF, "allocate.selector=svp", same)
    assert done.status == 2
    assert "has the weights of model.path" in done.log and "running" not in done.log


def test_rows_that_the_reference_cannot_score_are_told(folder: Path, model_folder: Path) -> None:
    """A second model that gives NaN for one token: a few rows have no score."""
    import torch
    from safetensors.torch import load_file, save_file

    broken = tiny_model(folder / "broken", seed=6, hidden=16, tie=False)
    weights = load_file(broken / "model.safetensors")
    tokens = next((folder / "store" / "tokens").glob("*/part-00000.parquet"))
    rows = pq.read_table(tokens, columns=["input_ids"])["input_ids"].to_pylist()
    # Not one of the first eight, by which every model is checked.
    known = set().union(*rows) - set(range(8))
    rare = min(sorted(known), key=lambda token: sum(token in row for row in rows))
    weights["model.embed_tokens.weight"][rare] = torch.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    asked = (*HALF, "allocate.selector=reducible_loss", f"reference.path={broken}")
    stopped = run(folder, model_folder, *asked)
    assert stopped.status == 2
    assert "which is more than reference.max_reject_fraction=0.01 allows" in stopped.log
    done = run(folder, model_folder, *asked, "reference.max_reject_fraction=0.9")
    assert done.status == 0, done.log
    rejects = pq.read_table(done.out / "rejects.parquet").to_pylist()
    assert {(reject["stage"], reject["reason"]) for reject in rejects} == {
        ("allocate", "no_reference_score")
    }
    assert f"reference: {len(rejects)} of " in done.log and "no_reference_score" in done.printed


@pytest.mark.parametrize(
    ("selector", "more"), [("less_lite", ()), ("rds_plus", ("embed.also=[position_mean]",))]
)
def test_target_rows_take_their_own_way(
    folder: Path, model_folder: Path, selector: str, more: tuple[str, ...]
) -> None:
    targets = f"targets.path={folder / 'targets.jsonl'}"
    done = run(folder, model_folder, *HALF, f"allocate.selector={selector}", targets, *more)
    assert done.status == 0, done.log
    assert list(steps(done)) == [f"targets.{s}" for s in ("rows", "screen", "tokens", "embed")]
    # Target rows are read before the model is loaded, and stand in no shard.
    assert done.log.index("targets.tokens") < done.log.index(" embed ")
    messages = [
        row["messages"][0]["content"]
        for file in done.out.glob("worker-*.parquet")
        for row in pq.read_table(file, columns=["messages"]).to_pylist()
    ]
    assert len(messages) == 48 and not any(text.endswith("and 2.") for text in messages)


def test_a_warm_up_gives_trajectories_and_a_reference(folder: Path, model_folder: Path) -> None:
    done = run(folder, model_folder, *HALF, "allocate.selector=s2l", *WARM)
    assert done.status == 0, done.log
    assert steps(done) == {"trajectory": "running"}
    inner = ("allocate.selector=learnable", "allocate.selector.inner=stratified")
    # Gradients that nothing reads are not made: the warm-up without them is found.
    more = ("reference.path=warmup", "trajectory.gradient_dim=8")
    again = run(folder, model_folder, *HALF, *inner, *WARM, *more)
    assert again.status == 0, again.log
    assert steps(again) == {"trajectory": "reused"}
    assert "rows are learnable" in again.log and selector_of(again) == "Learnable"


def test_less_takes_gradients_of_the_pool_and_of_the_targets(
    folder: Path, model_folder: Path
) -> None:
    targets = f"targets.path={folder / 'targets.jsonl'}"
    asked = (*HALF, *WARM, "trajectory.gradient_dim=64", targets)
    done = run(folder, model_folder, *asked, "allocate.selector=less")
    assert done.status == 0, done.log
    # The model makes no other pass over the target rows.
    before = dict.fromkeys(("targets.rows", "targets.screen", "targets.tokens"))
    assert list(steps(done)) == [*before, "trajectory", "targets.trajectory"]
    assert selector_of(done) == "Less"
