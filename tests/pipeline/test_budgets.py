"""A budget that asks for every row is told in one line: nothing is selected by it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.budgets import check_selection
from pipeline.config import Config, compose
from stages.allocate.selectors import selector_classes
from tests.pipeline.runs import run

LENGTHS = np.arange(1, 41)  # 40 rows, 820 tokens
PAPER = "experiment=paper"


def warned(config: Config, caplog: pytest.LogCaptureFixture, stage: str = "tokens") -> int:
    """Count the lines that are told of forty rows."""
    counted: Any = SimpleNamespace(stage=stage, num_rows=LENGTHS.size, array=lambda name: LENGTHS)
    caplog.clear()
    with caplog.at_level("WARNING"):
        check_selection(config, counted)
    return len(caplog.records)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([PAPER, "allocate.selector=stratified"], "allocate.ratio=1.0 keeps all 40 rows"),
        ([PAPER, "allocate.selector=uniform", "allocate.ratio=0.5"], ""),
        ([PAPER], ""),  # a share of the smallest cluster
        ([PAPER, "allocate.budget=1.0"], "allocate.budget=1.0 keeps all 40 rows"),
        ([], ""),
        (["allocate.ratio=1"], "allocate.ratio=1.0 keeps all 40 rows"),
        (["allocate.ratio=1", "allocate.num_workers=3"], "allocate.ratio=1.0 keeps all 40 rows"),
        (["allocate.ratio=0.99"], ""),
        (["allocate.budget=100%"], "allocate.budget=100% keeps all 40 rows"),
        (["allocate.budget=40rows"], "allocate.budget=40rows keeps all 40 rows"),
        (["allocate.budget=39rows"], ""),
        (["allocate.budget=820tokens"], "allocate.budget=820tokens keeps all 40 rows"),
        (["allocate.budget=819tokens"], ""),
    ],
    ids=str,
)
def test_a_budget_of_every_row_is_told_once(
    overrides: list[str], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = compose(overrides)
    assert warned(config, caplog, "rows") == warned(config, caplog, "screen") == 0
    assert warned(config, caplog) == bool(told)
    assert told in caplog.text
    if told:
        assert "nothing is selected; set allocate.budget=50% (BUDGET=50% with make)" in caplog.text


def test_every_selector_whose_ratio_is_of_the_rows_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = compose(["allocate.ratio=1"])
    for selector in selector_classes().values():
        config.allocate.selector = selector()
        assert warned(config, caplog) == (selector.ratio_of == "candidates")


def test_curate_and_reshard_tell_it_and_go_on(tmp_path: Path, model_folder: Path) -> None:
    made = run(tmp_path, model_folder, "allocate.ratio=1", "compute=local")
    assert made.status == 0 and made.log.count("nothing is selected") == 1
    half = run(tmp_path, model_folder, "allocate.ratio=0.5", verb="reshard")
    assert half.status == 0 and "nothing is selected" not in half.log
    again = run(tmp_path, model_folder, "allocate.budget=100%", verb="reshard")
    assert again.status == 0 and again.log.count("nothing is selected") == 1
