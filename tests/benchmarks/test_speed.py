"""The benchmark of speed, so small that only what is compared with what means something."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from benchmarks import results, speed, speed_cluster, speed_embed, speed_stages
from benchmarks.results import Figure
from benchmarks.speed_embed import Rows, plain_pass
from benchmarks.speed_figures import kept
from benchmarks.speed_timing import growth, interleaved, ratio, resident, watch_high_water
from stages.cluster.capacity import capped_labels
from tests.artifacts import here, run_stage
from tests.tiny import tiny_model


def test_a_section_that_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(data: str, small: bool) -> list[Figure]:
        raise RuntimeError("the disk is full")

    written = []
    monkeypatch.setattr(speed, "report", lambda name, command, figures: written.append(figures))
    found = [Figure("schedule, x", 1.0, None, "lower")]
    monkeypatch.setattr(speed, "SECTIONS", {"schedule": lambda data, small: found, "shards": fail})
    with pytest.raises(RuntimeError):
        speed.main(["schedule", "shards", "--data", "x"])
    assert found[0] in written[-1]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("speed")
    model = tiny_model(folder / "model")
    return [
        "rows.path=data/sample/sample.jsonl",
        "rows.limit=20",
        "tokens.max_length=64",
        "tokens.on_too_long=keep_answer",
        "model=hf",
        f"model.path={model}",
    ]


def test_turns_are_taken_round_after_round() -> None:
    calls: list[str] = []
    seconds = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert calls == ["a", "b"] * 3
    assert [len(times) for times in seconds.values()] == [3, 3]
    # Ratios 1, 3 and 2: the median of the ratios, not the ratio of the medians.
    assert ratio({"a": [1.0, 30.0, 4.0], "b": [1.0, 10.0, 2.0]}, "a", "b") == 2.0


def test_memory_that_a_call_holds_is_seen_though_it_is_free_afterwards() -> None:
    def hold() -> None:
        np.ones(50_000_000 // 8)

    assert 45e6 < growth(hold) < 80e6
    with watch_high_water() as peak:
        before = resident("VmRSS")
        hold()
    assert 45e6 < peak() - before < 80e6
    with pytest.raises(ValueError, match="has no field VmNothing"):
        resident("VmNothing")


def test_figures_of_other_sections_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    begin = {"a": ("alpha",), "b": ("beta", "gamma")}
    assert kept("speed", begin, ["a"]) == {}
    rows = [
        {"figure": f"{name} one", "value": 1.0, "target": None, "better": "lower", "met": None}
        for name in ("alpha", "beta", "gamma")
    ]
    (tmp_path / "speed.json").write_text(json.dumps({"rows": rows}))
    figures = [Figure(f"{name} one", 1.0, None, "lower") for name in ("beta", "gamma")]
    assert kept("speed", begin, ["a"]) == {"b": figures}


def test_every_section_knows_its_figures() -> None:
    assert speed.BEGINNINGS.keys() == speed.SECTIONS.keys()


def test_the_plain_way_gives_the_features_of_the_pass(settings: list[str], tmp_path: Path) -> None:
    told, tokens, rows = speed_embed.prepare([*settings, "embed.judge=false"], tmp_path)
    made = run_stage(speed_embed_stage(), told, {"tokens": tokens, "rows": rows}, tmp_path, here)
    model = transformers.AutoModelForCausalLM.from_pretrained(told.weights, dtype=torch.float32)
    plain = plain_pass(model.eval(), Rows(tokens, 256))
    own = np.stack(made.read(["embedding"])["embedding"].to_numpy())
    assert plain.shape == own.shape == (20, 32)
    np.testing.assert_allclose(plain, own, rtol=2e-3, atol=2e-5)


def speed_embed_stage() -> object:
    from stages.embed.stage import EMBED

    return EMBED


def test_the_pass_is_measured_in_every_way(settings: list[str]) -> None:
    figures = {figure.figure: figure for figure in speed_embed.measure(settings, 1)}
    assert all(figure.value > 0 for figure in figures.values())
    assert figures["embed: time of target_row over the bare forward"].target == 1.10
    assert figures["embed: memory of target_row over the plain way"].target == 0.4


def test_the_greedy_walk_and_the_cap_agree() -> None:
    rng = np.random.default_rng(0)
    distances = np.sort(rng.random((40, 3)).astype(np.float32), axis=1)
    candidates = np.stack([rng.permutation(3) for _ in range(40)]).astype(np.int32)
    plain = speed_cluster.greedy_labels(candidates, distances, 14, 3)
    assert np.bincount(plain, minlength=3).max() == 14
    assert plain.tolist() == capped_labels(candidates, distances, 14, 3)[0].tolist()
    same, moved, _ = speed_cluster.measure_cap(300, 4, 1)
    assert same.value == 1.0 and 0 < moved.value < 1


def test_the_stage_fits_about_as_well_as_all_starts() -> None:
    share = speed_cluster.measure_kmeans(500, 8, 3)[0]
    assert share.value == pytest.approx(1.0, abs=0.02)


def test_tokens_are_those_of_datasets_map(settings: list[str], tmp_path: Path) -> None:
    lines = Path("data/sample/sample.jsonl").read_text(encoding="utf-8").splitlines()[:12]
    copies = tmp_path / "copies.jsonl"
    copies.write_text("".join(f"{line}\n" for line in [*lines, *lines[:3]]), encoding="utf-8")
    rate, share = speed_stages.measure_tokens([*settings, f"rows.path={copies}"], 1)
    assert rate.value > 0 and share.value > 0 and share.target == 1.05


def test_shards_are_measured_beside_a_plain_writing(tmp_path: Path) -> None:
    figures = speed_stages.measure_shards(400, 60, tmp_path)
    assert [figure.target for figure in figures] == [3.0, None, None, None]
    assert figures[0].value > figures[1].value > 0
    assert not list(tmp_path.iterdir())


def test_schedules_by_hand() -> None:
    # Rows of cluster 0 have 10 tokens, those of cluster 1 have 30: pinned steps are 10 and 30.
    clusters = np.repeat(np.array([0, 1], np.int32), 16)
    num_tokens = np.repeat(np.array([10, 30]), 16)
    found = {
        figure.figure: figure for figure in speed_stages.measure_schedule(clusters, num_tokens, 2)
    }
    label = "schedule, W = 2, A*B = {}, {}: max / mean tokens"
    for rows_each in speed_stages.ROWS_PER_STEP:
        assert found[label.format(rows_each, "pinned")].value == pytest.approx(1.5)
        assert found[label.format(rows_each, "random order")].value >= 1.0
    assert found[label.format(2, "dealt")].value == pytest.approx(1.0)
    assert [name for name, figure in found.items() if figure.target] == [label.format(8, "dealt")]


def test_the_command_writes_one_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = tmp_path / "benchmarks.md"
    docs.write_text("<!-- speed: begin -->\n<!-- speed: end -->\n")
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "DOCS", docs)
    figure = Figure("schedule, made up", 1.0, 1.03, "lower")
    monkeypatch.setitem(speed.SECTIONS, "schedule", lambda data, small: [figure])
    speed.main(["schedule", "--small"])
    assert json.loads((tmp_path / "speed.json").read_text())["rows"][0]["met"] is True
    assert "| schedule, made up | 1 | 1.03 | yes |" in docs.read_text()
    with pytest.raises(SystemExit):
        speed.main(["nothing"])
