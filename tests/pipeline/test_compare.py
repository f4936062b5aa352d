"""The command `compare`: one pass, every method, random beside each; no number without a run."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import compare as compare_module
from pipeline.budgets import check_compared
from pipeline.compare import make_pools
from pipeline.comparison import Cell, CompareConfig, Pool, all_methods, compare
from pipeline.comparison_table import as_markdown, table
from pipeline.config import Config
from stages.allocate.figures import Figures
from stages.allocate.selectors import selector_classes
from stages.allocate.selectors.uniform import Uniform
from stages.allocate.stage import AllocateConfig
from stages.contract.errors import ConfigurationError, DataError
from tests.allocate.samples import candidates
from tests.artifacts import SEEDED
from tests.conftest import ROOT
from tests.pipeline.runs import SMALL, Run, run

FEW = ("compare.budgets=[0.5,0.25]", "compare.seeds=2", "cluster.num_clusters=4")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Run]:
    yield run(tmp_path_factory.mktemp("compare"), model_folder, *FEW, verb="compare")


@pytest.fixture(scope="module")
def result(compared: Run) -> dict[str, Any]:
    assert compared.status == 0, compared.log
    found: dict[str, Any] = json.loads((compared.out / "compare.json").read_text())
    return found


def test_every_method_is_there_with_figures_or_a_reason(result: dict[str, Any]) -> None:
    names = {row["method"] for row in result["table"]}
    assert names == {"random", *(method.name for method in all_methods())}
    assert set(selector_classes()) < names
    for row in result["table"]:
        assert ("reason" in row) != ("gradient_error" in row), row
        if "reason" in row:
            assert "needs" in row["reason"] or "needed" in row["reason"], row["reason"]
        else:
            assert np.isfinite([v for v in row.values() if isinstance(v, float)]).all()


def test_methods_that_need_what_one_pass_does_not_give_say_so(result: dict[str, Any]) -> None:
    refused = {row["method"] for row in result["table"] if "reason" in row}
    further = {"reducible_loss", "learnable", "svp", "s2l", "less", "less_lite", "rds_plus"}
    assert further == refused


def test_random_is_random_whichever_way_it_is_drawn(result: dict[str, Any]) -> None:
    for row in result["table"]:
        if row["method"] == "uniform":
            assert 0.6 < row["ratio"] < 1.6


def test_budgets_of_tokens_are_kept(result: dict[str, Any]) -> None:
    every = {r["budget"]: r["tokens"] for r in result["table"] if r["method"] == "random"}
    total = max(r["tokens"] / float(r["budget"]) for r in result["table"] if "tokens" in r)
    assert every and total > 0
    for row in result["table"]:
        if row["by"] == "tokens" and "tokens" in row and row["method"] != "random":
            assert row["tokens"] <= float(row["budget"]) * total


def test_the_tables_are_printed_and_written(compared: Run) -> None:
    text = (compared.out / "compare.md").read_text()
    for word in ("| matched |", "| random |", "0.25 of the rows", "beats random", "not run:"):
        assert word in text and (word in compared.printed)


def test_a_run_can_be_curated_into_the_folder_that_holds_a_comparison(
    compared: Run, model_folder: Path
) -> None:
    done = run(compared.out.parent, model_folder)
    assert done.status == 0, done.log
    assert (compared.out / "compare.json").exists() and (compared.out / "manifest.json").exists()


def test_a_method_that_does_not_beat_random_is_marked() -> None:
    random = [figures(0.2 + 0.01 * i) for i in range(-10, 11)]
    cells = [
        Cell("good", "0.5", "rows", [figures(0.1), figures(0.11)]),
        Cell("no_better", "0.5", "rows", [figures(0.2), figures(0.195)]),
        Cell("absent", "0.5", "rows", [], "it needs a second model"),
        Cell("random", "0.5", "rows", random),
    ]
    rows = {row["method"]: row for row in table(cells)}
    assert rows["good"]["beats_random"] and not rows["no_better"]["beats_random"]
    assert rows["good"]["ratio"] == pytest.approx(0.105 / 0.2)
    text = as_markdown(list(rows.values()), "0.5")
    lines = text.splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:5]] == [
        "good",
        "no_better",
        "random",
    ]
    assert lines[3].endswith("| no |") and "- absent: not run: it needs a second model" in text


@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
def test_random_rows_hardly_ever_beat_random_rows(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    verdicts = []
    for _ in range(400):
        drawn = [figures(error) for error in rng.normal(1.0, 0.1, 20 + seeds).tolist()]
        cells = [
            Cell("one", "0.5", "rows", drawn[20:]),
            Cell("random", "0.5", "rows", drawn[:20]),
        ]
        verdicts.append(next(row for row in table(cells) if row["method"] == "one")["beats_random"])
    assert np.mean(verdicts) < 0.13  # 38% where a single draw was taken to have no spread


NUM_ROWS = 100
ROWS = candidates([40, 30, 20, 10], duplicates=False)


def rows_of(
    budgets: list[str], *, workers: int = 4, tokens: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """Compare two methods on a hundred rows in memory."""
    own = ROWS if tokens is None else dataclasses.replace(ROWS, num_tokens=tokens)
    pool = Pool(own, lambda places: own.read_feature("judge", places))
    settings = AllocateConfig(selector=Uniform(), num_workers=workers)
    asked = CompareConfig(budgets=budgets, seeds=2, methods=["uniform", "length"])
    return table(compare({False: pool, True: pool}, settings, asked, tell=lambda line: None))


@pytest.mark.parametrize("budget", ["1.0", "100%"])
def test_beside_all_rows_every_method_is_the_same_as_random(budget: str) -> None:
    rows = rows_of([budget])
    for row in rows:
        assert np.isfinite(row["ratio"])
        if row["by"] == "rows":
            assert (row["ratio"], row["beats_random"]) == (1.0, False), row
    text = as_markdown(rows, budget)
    assert text.count("| 1.00 |") >= 3 and "| yes |" not in text


def figures(error: float) -> Figures:
    return Figures(error, [error], error, error, 1.0, 0.5, 0.7, 1.0, 0.1, 0.2, 30)


@pytest.mark.parametrize(
    ("own", "of_random", "ratio", "beats"),
    [
        (1e-17, 9e-16, 1.0, False),  # both are noise
        (9.7e-16, 9.08e-16, 1.0, False),
        (0.0, 0.0, 1.0, False),
        (0.1, 9e-16, 1e8, False),  # bad weights of all rows
        (0.1, 0.0, 1e8, False),
        (1e-16, 0.2, 5e-9, True),
        (0.1, 0.2, 0.5, True),
    ],
)
def test_rounding_beats_nobody_and_hides_nobody(
    own: float, of_random: float, ratio: float, beats: bool
) -> None:
    cells = [
        Cell("one", "1.0", "rows", [figures(own)] * 3),
        Cell("random", "1.0", "rows", [figures(of_random)] * 20),
    ]
    row = next(row for row in table(cells) if row["method"] == "one")
    assert row["ratio"] == pytest.approx(ratio)
    assert row["beats_random"] is beats


def test_a_budget_that_turns_out_too_small_is_a_reason_and_the_others_are_there() -> None:
    rows = rows_of(["0.5", "0.02", "0.0001"])
    by_budget = {
        budget: [r for r in rows if r["budget"] == budget] for budget in ("0.5", "0.02", "0.0001")
    }
    assert [len(own) for own in by_budget.values()] == [6, 6, 6]
    assert all("ratio" in row for row in by_budget["0.5"])
    for row in by_budget["0.02"]:
        if row["by"] == "rows":
            assert "compare.budgets=0.02 gives 2 rows, which must be >= the 4" in row["reason"]
    assert all("reason" in row for row in by_budget["0.0001"])
    assert "- random: not run: random rows do not fit" in as_markdown(rows, "0.02")


def test_tokens_that_no_random_step_fits_are_told_once_below_the_table() -> None:
    """Four rows of a hundred have one token; a random step has four of a thousand tokens each."""
    tokens = np.full(NUM_ROWS, 1000)
    tokens[:4] = 1
    rows = rows_of(["0.04"], tokens=tokens)
    by_tokens = [row for row in rows if row["by"] == "tokens"]
    assert len(by_tokens) == 3 and all(
        "compare.budgets=0.04, 3840" in r["reason"] for r in by_tokens
    )
    text = as_markdown(rows, "0.04")
    (line,) = [line for line in text.splitlines() if "not run with as many tokens" in line]
    assert set(line[2:].split(": ")[0].split(", ")) == {"uniform", "length", "random"}


@SEEDED
@given(
    share=st.decimals("0.001", "1", places=3),
    workers=st.integers(1, 8),
    lengths=st.lists(st.integers(1, 500), min_size=NUM_ROWS, max_size=NUM_ROWS),
)
def test_any_budget_gives_a_whole_table(share: Any, workers: int, lengths: list[int]) -> None:
    """Every cell has figures or a reason; by rows a reason just where not one step fits."""
    for row in rows_of([f"{share:f}"], workers=workers, tokens=np.array(lengths)):
        assert ("ratio" in row) != ("reason" in row)
        if row["by"] == "rows":
            assert ("reason" in row) == (int(share * NUM_ROWS) < workers)


@pytest.mark.parametrize(
    ("stage", "num_rows", "words"),
    [
        ("rows", 100, "compare.budgets: 0.02 of 100 rows is 2 rows, which must be >= the 4 rows"),
        ("tokens", 150, "compare.budgets: 0.02 of 150 rows is 3 rows.* ask for 0.0267 or more"),
        ("rows", 3, "allocate.num_workers=4 must be <= the 3 rows"),
        ("rows", 200, ""),
        ("tokens", 200, ""),
    ],
)
def test_budgets_are_checked_before_the_pass(stage: str, num_rows: int, words: str) -> None:
    config = Config(compare=CompareConfig(budgets=["0.5", "0.02"]))
    counted: Any = SimpleNamespace(stage=stage, num_rows=num_rows)
    if not words:
        check_compared(config, counted)
        return
    with pytest.raises(DataError, match=words):
        check_compared(config, counted)


def test_a_budget_too_small_stops_before_a_model_is_loaded(
    tmp_path: Path, model_folder: Path
) -> None:
    done = run(tmp_path, model_folder, "compare.budgets=[0.5,0.02]", verb="compare")
    assert done.status == 2 and "Traceback" not in done.log
    assert "compare.budgets: 0.02 of 96 rows is 1 rows" in done.log
    assert done.stages("running") == ["rows"]


def test_two_pools_hold_raw_features_and_the_judge_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a clustering prepared is read for each; the rest once, whichever pool asks."""
    reads: list[str] = []
    every = np.arange(ROWS.num_rows)

    def counted(name: str, places: np.ndarray) -> np.ndarray:
        if places.size > 1:
            reads.append(name)
        return ROWS.read_feature(name, places)

    def read(artifacts: dict[str, str]) -> tuple[Any, np.ndarray]:
        own = artifacts["cluster"]
        prepared = lambda places: counted(own, places)  # noqa: E731
        held = dataclasses.replace(ROWS, read_feature=counted, read_embeddings=prepared)
        return held, ROWS.row_ids

    monkeypatch.setattr(compare_module, "read_candidates", read)
    monkeypatch.setattr(compare_module, "judge_of", lambda *_: lambda p: counted("judge", p))
    pools = make_pools({"cluster": "run", "embed": "e"}, "paper")  # type: ignore[dict-item,arg-type]
    for _ in range(2):
        for own in pools.values():
            own.read_judge(every)
            own.candidates.read_feature("head_sketch", every)
            own.candidates.read_embeddings(every)
    assert sorted(reads) == ["head_sketch", "judge", "paper", "run"]
    assert not np.array_equal(
        pools[False].candidates.read_embeddings(every),
        pools[True].candidates.read_embeddings(every),
    )


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"budgets": ["100rows"]}, "must be a share"),
        ({"budgets": []}, "must hold a budget"),
        ({"seeds": 0}, "compare.seeds=0"),
        ({"methods": ["nothing"]}, "must be one of paper"),
    ],
)
def test_a_wrong_setting_names_the_key(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=r"compare\.") as raised:
        CompareConfig(**keys)
    assert words in str(raised.value)


@pytest.mark.slow
def test_a_new_selector_is_one_new_file(tmp_path: Path, model_folder: Path) -> None:
    """Copy the checkout, add a file, and find it on the command line and in the comparison."""
    copy = tmp_path / "checkout"
    for name in ("pipeline", "stages", "evenshard", "conf", "data/sample"):
        shutil.copytree(ROOT / name, copy / name)
    own = (copy / "stages/allocate/selectors/uniform.py").read_text()
    (copy / "stages/allocate/selectors/mine.py").write_text(own.replace("Uniform", "Mine"))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(copy)}
    for verb, keys in (
        ("curate", ["allocate.selector=mine", "allocate.budget=50%"]),
        ("compare", ["compare.methods=[mine,uniform]", "compare.seeds=1", "compare.budgets=[0.5]"]),
    ):
        done = subprocess.run(
            [
                sys.executable,
                *("-m", "pipeline", verb, *SMALL, f"model.path={model_folder}", *keys),
                *(f"store={tmp_path / 'store'}", f"out={tmp_path / 'out'}"),
            ],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    assert (
        json.loads((tmp_path / "out/manifest.json").read_text())["settings"]["allocate"][
            "selector"
        ]["class"]
        == "Mine"
    )
    assert "| mine |" in done.stdout
