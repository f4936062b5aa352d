"""Figures of training runs by hand, and the report that is made of them."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import results, training_report
from benchmarks.training_figures import (
    CONTROL,
    Mean,
    last_quarter,
    reached,
    share_of_gain,
    summarise,
    target_loss,
)
from benchmarks.training_plot import COLORS, HEIGHT, plot, ticks
from benchmarks.training_regime import TINY


def line(
    method: str, losses: list[float], *, seed: int = 0, budget: str = "30%", selection: int = 0
) -> dict[str, Any]:
    """A run of 100 steps of 10 tokens and 2 seconds each, that begins at a loss of 5."""
    shares = (0.5, 0.75, 1.0)
    return {
        "method": method,
        "budget": "100%" if method == "all" else budget,
        "seed": seed,
        "regime": TINY.facts,
        "selection": {
            "rows": 30,
            "tokens": 300,
            "gradient_error_judge": 0.5,
            "forward_tokens": 3 * selection,
            "trained_tokens": selection,
            "seconds": 20.0 * (selection > 0),
        },
        "pool_tokens": 1000,
        "start": {"plain": 5.0, "macro": 5.5},
        "steps": 100,
        "tokens": 1000,
        "seconds": 200.0,
        "points": [
            {
                "steps": 100 * share,
                "tokens": 1000 * share,
                "seconds": 200.0 * share,
                "plain": loss,
                "macro": loss + 0.5,
            }
            for share, loss in zip(shares, losses, strict=True)
        ],
    }


WHOLE = line("all", [4.2, 4.1, 4.0])


def test_targets_by_hand() -> None:
    assert target_loss(WHOLE, "gain95") == pytest.approx(4.05)
    assert target_loss(WHOLE, "loss101") == pytest.approx(4.04)
    # Half of the way from 4.1 at 750 tokens and 150 s to 4.0 at 1000 tokens and 200 s.
    assert reached(WHOLE, 4.05) == pytest.approx((875.0, 175.0))
    assert reached(WHOLE, 3.99) is None
    assert reached(WHOLE, 5.0) == (0.0, 0.0)  # there before the first step
    assert last_quarter(WHOLE) == pytest.approx(0.1)


def test_a_selection_is_paid_for_before_the_first_step() -> None:
    dear = line("matched", [4.0, 4.0, 4.0], selection=50)  # 50 trained and 150 forward tokens
    assert reached(dear, 4.5) == pytest.approx((100 + 250, 20 + 50))
    assert share_of_gain(dear, WHOLE) == pytest.approx(1.0)
    [_, summary] = summarise([WHOLE, dear])
    tokens, seconds, saved_tokens, saved_seconds = summary.to_target["gain95"] or (0.0,) * 4
    assert tokens == pytest.approx(100 + 0.95 * 500)
    assert seconds == pytest.approx(20 + 0.95 * 100)
    assert saved_tokens == pytest.approx(1 - 575 / 875)
    assert saved_seconds == pytest.approx(1 - 115 / 175)
    # The whole run: 1100 of 1000 tokens, 220 of 200 seconds.
    assert summary.saved == (pytest.approx(-0.1), pytest.approx(-0.1))


def test_whole_runs_that_end_as_low_as_all_rows_do() -> None:
    half = line("matched", [4.2, 4.1, 4.03], selection=5)
    half = {**half, "tokens": 500, "seconds": 100.0, "points": half["points"][:1]}
    half["points"][0] |= {"plain": 4.03}
    short = {**line("uniform", [4.5, 4.3, 4.05]), "tokens": 500}
    [_, found, other] = summarise([WHOLE, half, short])
    assert found.excess.value == pytest.approx(0.0075) and found.ends_like_all(0.01)
    assert other.excess.value == pytest.approx(0.0125) and not other.ends_like_all(0.01)
    # 10 tokens and 20 seconds of selection, 500 and 100 of training; all rows take 1000 and 200.
    assert found.saved == (pytest.approx(0.49), pytest.approx(0.4))
    told = training_report.headline([found, other])
    assert "`matched` at 30% saves 40% of the seconds (49% of the tokens)" in told
    assert "uniform" not in told and "69.6%" in told
    assert "there are none" in training_report.headline([other])


def test_means_are_paired_by_seed() -> None:
    ends = {"all": (4.0, 4.4), "uniform": (4.5, 4.7), "matched": (4.4, 4.5)}
    lines = [
        line(method, [5.0, 5.0, end], seed=seed)
        for method, both in ends.items()
        for seed, end in enumerate(both)
    ]
    lines.append(line("matched", [5.0, 5.0, 1.0], seed=7))  # no run of all rows beside it
    by_method = {one.method: one for one in summarise(lines)}
    matched = by_method["matched"]
    assert matched.loss.value == pytest.approx(4.45) and matched.loss.count == 2
    assert matched.beside_uniform is not None
    assert matched.beside_uniform.value == pytest.approx(-0.15)
    assert matched.beside_uniform.error == pytest.approx(0.05)
    assert matched.beside_uniform.beyond(2.0) == -1
    # Two pairs hold 95% of their means within 12.7 errors only.
    assert matched.beside_uniform.beyond(matched.beside_uniform.t95) == 0
    assert by_method["uniform"].beside_uniform is None
    # Gains of 0.6 of 1.0, and of 0.5 of 0.6.
    assert matched.share.value == pytest.approx((0.6 + 0.5 / 0.6) / 2)
    assert matched.to_target["gain95"] is None


def test_one_seed_proves_nothing() -> None:
    assert Mean.of([-1.0]).beyond(2.0) == Mean.of([-1.0]).beyond(Mean.of([-1.0]).t95) == 0
    assert Mean.of([-1.0, -1.1, -0.9]).beyond(2.0) == -1
    assert Mean.of([1.0, 1.1, 0.9]).beyond(2.0) == 1


@pytest.mark.parametrize(("count", "t95"), [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776)])
def test_few_seeds_need_more_errors(count: int, t95: float) -> None:
    assert Mean(0.0, 1.0, count).t95 == pytest.approx(t95, abs=1e-3)
    drawn = np.random.default_rng(count).normal(size=(4000, count))
    beyond = [mean.beyond(mean.t95) for mean in map(Mean.of, drawn.tolist())]
    assert 0.04 < np.mean(np.abs(beyond)) < 0.06  # of differences that are none


def test_a_slow_machine_changes_no_figure() -> None:
    lines = [
        line(method, [4.2, 4.1, end], seed=seed, selection=selection)
        for method, end, selection in (("all", 4.0, 0), ("matched", 4.01, 5), ("uniform", 4.3, 0))
        for seed in range(3)
    ]
    slow = [
        {
            **one,
            "seconds": 1.6 * one["seconds"],
            "points": [{**p, "seconds": 1.6 * p["seconds"]} for p in one["points"]],
            "selection": {**one["selection"], "seconds": 1.6 * one["selection"]["seconds"]},
        }
        if one["seed"] == 1
        else one
        for one in lines
    ]
    assert summarise(slow) == summarise(lines)


def test_lists_of_what_is_better_name_other_steps_and_the_control() -> None:
    ends = {
        "all": (4.0, 4.0, 4.0),
        "uniform": (4.5, 4.6, 4.7),
        CONTROL: (4.4, 4.5, 4.6),
        "matched": (4.3, 4.4, 4.5),
        "length": (4.43, 4.5, 4.63),
    }
    lines = [
        {
            **line(method, [5.0, 5.0, end], seed=seed),
            **({"steps": 132} if method == "length" else {}),
        }
        for method, both in ends.items()
        for seed, end in enumerate(both)
    ]
    for one in lines:
        for point, share in zip(one["points"], (0.5, 0.75, 1.0), strict=True):
            point["steps"] = share * one["steps"]
    beside_uniform, beside_control = (
        text for text in training_report.verdict(summarise(lines)) if "At 30%" in text
    )
    better, worse = beside_uniform.split("; ")
    assert f"`{CONTROL}`*, `matched`*, `length`* (132 steps against 100)" in better
    assert worse.endswith("none.")
    assert f"better than `{CONTROL}`: `matched`*;" in beside_control
    assert f"worse than `{CONTROL}`: `uniform`*" in beside_control


def test_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "benchmarks.md"
    docs.write_text("before\n<!-- training: begin -->\nold\n<!-- training: end -->\nafter\n")
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(results, "DOCS", docs)
    lines = [
        line(method, [4.6, 4.4, end + seed / 100], seed=seed)
        for method, end in (("all", 4.0), ("uniform", 4.3), ("matched", 4.1), ("length", 4.6))
        for seed in (0, 1)
    ]
    other = {**line("all", [4.0, 4.0, 3.0]), "regime": {**lines[0]["regime"], "epochs": 9}}
    tuning = line("all", [4.4, 4.2, 4.123], seed=training_report.FIRST_TUNING_SEED)
    training_report.write_report([*lines, other, tuning], TINY, "make bench-training", "training")
    text = docs.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    rows = [row for row in text.splitlines() if row.startswith("| `")]
    assert len({row.count("|") for row in text.splitlines() if row.startswith("|")}) == 1
    assert [row.split("`")[1] for row in rows] == ["all", "matched", "uniform", "length"]
    assert "better than `uniform`: `matched`*; worse than `uniform`: `length`*" in text
    assert "at 0.001: 4.1230" in text and "3.0000" not in text
    found = json.loads((tmp_path / "results" / "training.json").read_text())
    figures = {row["figure"]: row for row in found["rows"]}
    text = "matched at 30%: loss less that of uniform, against its 95% interval about 0"
    assert figures[text]["value"] == pytest.approx(-0.2) and figures[text]["met"]
    assert ElementTree.parse(tmp_path / "training.svg").getroot().tag.endswith("svg")


def test_no_two_methods_are_drawn_in_one_colour() -> None:
    ends = {f"selector{number}": 4.1 + number / 100 for number in range(40)}
    lines = [line(name, [4.6, 4.4, end]) for name, end in ends.items()]
    lines += [line("selector39", [4.6, 4.4, 4.9], budget="10%"), WHOLE]
    text = training_report.draw(lines, summarise(lines))
    legend = [
        (box.attrib["fill"], float(box.attrib["y"]) + float(box.attrib["height"]))
        for box in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}rect")
        if "y" in box.attrib  # the ground has none
    ]
    assert len({fill for fill, _ in legend}) == len(legend) == len(COLORS)
    assert max(bottom for _, bottom in legend) < HEIGHT
    assert "selector39" in text and "all rows" in text and "selector38" not in text


def test_plot_puts_points_where_they_belong() -> None:
    text = plot({"a": [(10.0, 1.0), (1000.0, 3.0)], "b": [(100.0, 2.0)]}, x_label="x", y_label="y")
    root = ElementTree.fromstring(text)
    dots = [
        (float(dot.attrib["cx"]), float(dot.attrib["cy"]))
        for dot in root.iter("{http://www.w3.org/2000/svg}circle")
    ]
    (x0, y0), (x1, y1), (x2, y2) = dots
    assert x0 < x2 < x1 and y1 < y2 < y0
    assert x2 == pytest.approx((x0 + x1) / 2, abs=0.1)
    assert y2 == pytest.approx((y0 + y1) / 2, abs=0.1)


def test_ticks_by_hand() -> None:
    assert ticks(4.03, 4.2) == pytest.approx([4.05, 4.1, 4.15, 4.2])
    assert ticks(0.0, 10.0) == pytest.approx([0, 2, 4, 6, 8, 10])
