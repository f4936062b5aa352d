"""The command `compare`: one pass, every method, random beside each; no number without a run."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.comparison import CompareConfig, all_methods
from pipeline.comparison_table import as_markdown, table
from stages.allocate.selectors import selector_classes
from stages.contract.errors import ConfigurationError
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
    further = {"reducible_loss", "learnable", "svp", "s2l", "less_lite", "rds_plus"}
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
    from pipeline.comparison import Cell
    from stages.allocate.figures import Figures

    def figures(error: float) -> Figures:
        return Figures(error, [error], error, error, 1.0, 0.5, 0.7, 1.0, 0.1, 0.2, 30)

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
