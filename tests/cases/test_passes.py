"""Cases of the rooms behind the tokens: identical rows, killed runs, memory, scores, budgets."""

import dataclasses
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.allocate.budget import asked_rows, parse_budget
from stages.allocate.feasible import check_feasible
from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import DataError
from stages.contract.fingerprint import artifact_key
from stages.contract.parts import PartSpec, Receipt
from stages.embed.batching import token_batches
from stages.embed.model import load_model
from stages.screen.stage import SCREEN, ScreenConfig, ScreenSettings
from stages.tokens.stage import TOKENS, TokensConfig, TokensSettings
from tests.artifacts import EMBED_LAYOUT, embed_table, here, run_stage, save, store_inputs
from tests.cases.rooms import case, made, rows_of, through
from tests.fidelity.passes import embed
from tests.tokens.samples import tokenizer_folder


def allocated(
    store: Path, inputs: dict[str, Artifact], *, num_workers: int, **keys: Any
) -> Artifact:
    grouping = ClusterConfig(num_clusters=num_workers, n_init=2, min_rows=0, fit_rows=1000)
    inputs["cluster"] = run_stage(CLUSTER_STAGE, grouping, inputs, store)
    settings = AllocateConfig(num_workers=num_workers, **keys)
    return run_stage(ALLOCATE_STAGE, settings, inputs, store)


def embedded(store: Path, path: Path, duplicates: str) -> dict[str, Artifact]:
    """Take case 11 to its embeddings, which are one for one text."""
    inputs = {"rows": rows_of(store, path)}
    screen = ScreenSettings(ScreenConfig(duplicates=duplicates), store / "hashes")
    inputs["screen"] = run_stage(SCREEN, screen, inputs, store)
    settings = TokensSettings(TokensConfig(), tokenizer_folder())
    inputs["tokens"] = run_stage(TOKENS, settings, inputs, store)
    texts = [str(row) for row in inputs["rows"].read(["messages"])["messages"].to_pylist()]
    places = sorted(set(texts))
    vectors = np.random.default_rng(0).normal(size=(len(places), 8))
    ids = inputs["tokens"].array("row_id")
    inputs["embed"] = save(
        store,
        "embed",
        embed_table(ids.tolist(), vectors[[places.index(texts[i]) for i in ids]]),
        stop=inputs["rows"].num_rows,
        parent=inputs["tokens"],
        layout=EMBED_LAYOUT,
    )
    return inputs


def test_11_rows_are_keyed_by_their_place_and_ids_are_text(tmp_path: Path) -> None:
    path = case("11-duplicate-ids-and-identical-rows") / "data.jsonl"
    rows = rows_of(tmp_path, path)
    table = rows.read(["row_id", "source_line", "uid"])
    assert table["row_id"].to_pylist() == list(range(28))
    assert table["source_line"].to_pylist() == list(range(1, 29))
    uids = table["uid"].to_pylist()
    assert uids[:6] == ["dup", "dup", "dup", "7", "7", "7.0"]
    assert all(len(uid) == 16 for uid in uids[6:])
    assert len(set(uids[6:26])) == 1 and len(set(uids[26:])) == 2


def test_11_identical_rows_collapse_and_keep_their_mass(tmp_path: Path) -> None:
    path = case("11-duplicate-ids-and-identical-rows") / "data.jsonl"
    inputs = embedded(tmp_path, path, "collapse")
    assert inputs["screen"].array("multiplicity").tolist() == [1, 1, 1, 23, 1, 1]
    assert inputs["screen"].facts["duplicates"]["rows"] == 22
    listed = inputs["screen"].side("duplicates.parquet")
    assert listed.num_rows == 22
    plan = allocated(tmp_path, inputs, num_workers=2, budget="6")
    assert np.bincount(plan.array("worker")).tolist() == [3, 3]
    weights = dict(zip(plan.array("row_id").tolist(), plan.array("weight").tolist(), strict=True))
    # Every row is kept, so its weight is its share of the input's 28 rows.
    assert weights == pytest.approx({0: 6 / 28, 1: 6 / 28, 2: 6 / 28, 3: 23 * 6 / 28,
                                     26: 6 / 28, 27: 6 / 28})  # fmt: skip


def test_11_fewer_distinct_rows_than_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = case("11-duplicate-ids-and-identical-rows") / "data.jsonl"
    inputs = embedded(tmp_path, path, "keep")
    assert inputs["tokens"].num_rows == 28
    plan = allocated(tmp_path, inputs, num_workers=7, budget="28")
    assert "distinct" in caplog.text and "cluster.num_clusters" in caplog.text
    assert np.bincount(plan.array("worker")).tolist() == [4] * 7
    assert plan.array("weight").sum() == pytest.approx(28, rel=1e-6)


@pytest.fixture(scope="module")
def target(model_folder: Path) -> Any:
    torch.set_num_threads(1)
    return load_model(model_folder, dtype="float32", device="cpu", attn_implementation="sdpa")


ROWS = [
    ([5, 6, 7, 8], [-100, -100, 7, 8]),
    ([9, 6, 7], [-100, 6, 7]),
    ([3] * 40, [-100] + [3] * 39),
]


def test_15_a_row_that_cannot_be_scored_has_a_reason_and_no_number(
    tmp_path: Path, target: Any
) -> None:
    case("15-non-ascii-must-survive-and-scores-must-not-default")

    def trunk(input_ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = target.trunk(input_ids).clone()
        hidden[input_ids[:, 0] == 9] = math.nan
        return hidden

    got = embed(tmp_path, dataclasses.replace(target, trunk=trunk), ROWS)
    assert got.row_ids == [0, 2]
    assert [(reject["row_id"], reject["reason"]) for reject in got.rejects] == [(1, "not_finite")]
    assert all(np.isfinite(values).all() for values in got.signals.values())


def test_15_a_budget_is_a_share_of_the_rows_there_are() -> None:
    case("15-non-ascii-must-survive-and-scores-must-not-default")
    for text, rows in (("50%", 2), ("0.5", 2), ("1.0", 4), ("1", 1)):
        assert asked_rows(parse_budget(text), 4) == rows


def test_17_batches_are_formed_by_tokens(tmp_path: Path) -> None:
    path = made(case("17-one-very-long-row") / "make_input.py", tmp_path / "long.jsonl")
    rooms = through(tmp_path, path, max_length=2048)
    lengths = rooms.artifacts["tokens"].array("num_tokens").astype(np.int64)
    batches = list(token_batches(lengths, 4096))
    assert sorted(np.concatenate(batches).tolist()) == list(range(65))
    assert all(batch.size * lengths[batch].max() <= 4096 for batch in batches)


def test_17_a_row_that_does_not_fit_alone_is_rejected_and_no_other(
    tmp_path: Path, target: Any
) -> None:
    case("17-one-very-long-row")
    seen: list[int] = []

    def trunk(input_ids: torch.Tensor) -> torch.Tensor:
        seen.append(len(input_ids))
        if input_ids.shape[1] > 30:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        hidden: torch.Tensor = target.trunk(input_ids)
        return hidden

    got = embed(tmp_path, dataclasses.replace(target, trunk=trunk), ROWS)
    assert got.row_ids == [0, 1]
    (reject,) = got.rejects
    assert (reject["row_id"], reject["reason"]) == (2, "too_large_for_device")
    assert seen[0] == 3 and got.stats["halvings"] >= 1


def backwards(make: Any, parts: Sequence[PartSpec], *, uses_gpu: bool) -> Iterator[Receipt]:
    yield from map(make(), reversed(parts))


def drive(
    store: Path, inputs: dict[str, Artifact], settings: TokensSettings, spread: Any, most: int
) -> tuple[Draft, list[Receipt]]:
    """Run the tokens room until it has made some parts, as a run that is killed does."""
    keys = {name: inputs[name].key for name in TOKENS.reads}
    params = TOKENS.identity(settings)
    draft = Draft.create(store, "tokens", artifact_key("tokens", TOKENS.version, params, keys))
    steps = TOKENS.run(settings, inputs, draft, spread)
    return draft, [next(steps) for _ in range(most)]


def test_16_a_killed_run_goes_on_from_its_whole_blocks(tmp_path: Path) -> None:
    folder = case("16-run-killed-half-way")
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(f'{{"prompt": "Square {n}.", "completion": "{n * n}"}}\n' for n in range(64))
    )
    whole = through(tmp_path / "whole", path, rows={"rows_per_part": 8})
    inputs = {name: whole.artifacts[name] for name in ("rows", "screen")}
    settings = TokensSettings(TokensConfig(max_reject_fraction=1.0), tokenizer_folder())
    draft, made_parts = drive(tmp_path / "killed", inputs, settings, here, 4)
    assert len(made_parts) == 4
    # Blocks lie at fixed rows of the input, and none is there under its name before it is whole.
    assert all(part.stop - part.start == 8 for part in whole.artifacts["tokens"].parts)
    assert sorted(file.name for file in draft.path.glob("part-*.parquet")) == [
        f"part-{index:05d}.parquet" for index in range(4)
    ]
    torn = draft.path / "part-00003.parquet"
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    (draft.path / "_SUCCESS").touch()
    shutil.copy(folder / "block-00003.truncated.parquet", draft.path / "part-00004.parquet")
    shutil.copy(folder / "block-00003.parquet", draft.path / "part-00005.parquet")
    _, receipts = drive(tmp_path / "killed", inputs, settings, backwards, 8)
    assert [receipt.index for receipt in receipts] == [0, 1, 2, 7, 6, 5, 4, 3]
    assert [receipt.index for receipt in receipts if receipt.reused] == [0, 1, 2]
    again = run_stage(TOKENS, settings, inputs, tmp_path / "killed")
    first = whole.artifacts["tokens"]
    assert again.manifest == first.manifest
    for part in first.parts:
        assert (again.path / part.name).read_bytes() == (first.path / part.name).read_bytes()
    assert not [*again.path.glob("_*"), *again.path.rglob("*.lmdb"), *again.path.rglob("*.db")]


def test_16_another_setting_reuses_nothing(tmp_path: Path) -> None:
    case("16-run-killed-half-way")
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "Square 2.", "completion": "4"}\n')
    keys = {
        through(tmp_path / "a", path, **tokens).artifacts["tokens"].key
        for tokens in ({}, {"max_length": 99}, {"template": "alpaca"}, {"template": "plain"})
    }
    assert len(keys) == 4


@pytest.mark.parametrize("micro_batch", [1, 8])
@pytest.mark.parametrize(("budget", "asked"), [("1.0", 200), ("0.3", 60)])
def test_19_a_budget_is_met_whatever_the_smallest_cluster(
    tmp_path: Path, micro_batch: int, budget: str, asked: int
) -> None:
    vectors = np.load(case("19-one-tiny-cluster-eats-the-budget") / "embeddings.npy")
    inputs = with_vectors(tmp_path, vectors)
    grouping = ClusterConfig(num_clusters=4, normalize=False)
    inputs["cluster"] = run_stage(CLUSTER_STAGE, grouping, inputs, tmp_path)
    assert min(inputs["cluster"].facts["sizes"]) >= grouping.min_rows
    settings = AllocateConfig(budget=budget, num_workers=4, micro_batch=micro_batch)
    plan = run_stage(ALLOCATE_STAGE, settings, inputs, tmp_path)
    step = 4 * micro_batch
    assert plan.num_rows == plan.facts["rows"] == asked // step * step <= asked
    assert plan.facts["asked"] == f"allocate.budget={budget}"
    assert set(np.bincount(plan.array("worker"))) == {plan.num_rows // 4}


def test_19_what_cannot_be_met_says_the_sizes_and_what_can(tmp_path: Path) -> None:
    vectors = np.load(case("19-one-tiny-cluster-eats-the-budget") / "embeddings.npy")
    inputs = with_vectors(tmp_path, vectors)
    settings = AllocateConfig(budget="300", num_workers=4)
    with pytest.raises(DataError, match=r"allocate\.budget=300 .* budget that works is 200"):
        check_feasible(
            settings.asked,
            settings.step,
            num_rows=200,
            num_clusters=4,
            ratio_of=settings.selector.ratio_of,
            on_empty_quota=settings.on_empty_quota,
        )
    grouping = ClusterConfig(num_clusters=4, normalize=False, min_rows=0)
    inputs["cluster"] = run_stage(CLUSTER_STAGE, grouping, inputs, tmp_path)
    assert min(inputs["cluster"].facts["sizes"]) == 3
    with pytest.raises(DataError, match=r"sizes \[.*\b3\b.*allocate\.budget="):
        run_stage(ALLOCATE_STAGE, AllocateConfig(ratio=0.3), inputs, tmp_path)


def with_vectors(store: Path, vectors: np.ndarray) -> dict[str, Artifact]:
    lengths = np.random.default_rng(0).integers(4, 60, len(vectors)).tolist()
    return store_inputs(store, num_rows=len(vectors), embeddings=vectors, lengths=lengths)
