"""The strip of the workers: its colours say below and above the mean, whatever the cells reach."""

import json
import re

import numpy as np
import pytest

from stages.report.charts import strip_chart
from stages.report.numbers import strip


@pytest.mark.parametrize(
    "tokens",
    [
        [[90, 110], [100, 100]],
        [[10, 190], [80, 120], [100, 100]],  # cells from 0.1 to 1.9
        [[999, 1001]],
        [[300, 100, 100, 100]],  # far above, a little below
        [[600, 100, 100, 100], [100, 130, 85, 85]],  # a little above, in a strip that reaches far
        [[100, 100, 100, 20]],
        [[100, 100], [100, 100]],
        [[7]],  # one worker is the mean
    ],
)
def test_blue_is_below_the_mean_and_orange_above(tokens: list[list[int]]) -> None:
    vl_convert = pytest.importorskip("vl_convert")
    cells = strip(np.array(tokens))
    drawn = json.loads(json.dumps({**strip_chart(cells, len(tokens[0]), "x"), "width": 300}))
    svg = vl_convert.vegalite_to_svg(json.dumps(drawn))
    (marks,) = re.findall(r'<g class="mark-rect role-mark marks"(.*?)</g>', svg, re.DOTALL)
    fills = re.findall(r'fill="rgb\((\d+), (\d+), (\d+)\)"', marks)
    assert len(fills) == len(cells)
    for cell, (red, _, blue) in zip(cells, fills, strict=True):
        warmth = int(red) - int(blue)
        if abs(cell["ratio"] - 1) < 1e-9:
            assert abs(warmth) < 12
        else:
            assert (warmth > 0) == (cell["ratio"] > 1), cell
