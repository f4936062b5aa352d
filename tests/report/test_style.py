"""The colours of the page: told apart by eyes that miss a kind of cone, and legible."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from stages.report.charts import NUM_COLOURS
from stages.report.page import HERE

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB. The distances below are those
# of CIELAB (1976); about 2 can just be seen side by side.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def colours(scheme: str) -> dict[str, np.ndarray]:
    """Linear RGB of every colour of a scheme, by name."""
    text = Path(HERE / "style.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    found = {}
    for name, value in re.findall(
        r"--([\w-]+): #([0-9a-f]{6})", blocks[("light", "dark").index(scheme)]
    ):
        srgb = np.array([int(value[i : i + 2], 16) for i in (0, 2, 4)]) / 255
        found[name] = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return found


def lab(linear: np.ndarray) -> np.ndarray:
    ratio = TO_XYZ @ np.clip(linear, 0, 1) / WHITE
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    low, high = sorted(float(TO_XYZ[1] @ colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_of_the_map_stay_apart(scheme: str, kind: str) -> None:
    seen = {
        name: lab(np.asarray(BLINDNESS[kind]) @ colour)
        for name, colour in colours(scheme).items()
        if re.fullmatch(r"c\d|c-other", name)
    }
    assert len(seen) == NUM_COLOURS + 1
    least = 30 if kind == "none" else 15
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > least, (one, other)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_and_text_stand_out_from_the_paper(scheme: str) -> None:
    found = colours(scheme)
    for name in ("ink", "soft", "link", "good", "bad"):
        assert contrast(found[name], found["paper"]) >= 4.5, name
        assert contrast(found[name], found["raised"]) >= 4.5, name
    for name in found:
        if name.startswith("c"):
            assert contrast(found[name], found["paper"]) >= 3.0, name
