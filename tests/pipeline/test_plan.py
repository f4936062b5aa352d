"""The corridor itself: reuse, and two runs of one key at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline import plan
from pipeline.config import ComputeConfig, Config
from pipeline.plan import run_stage, run_stages
from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.errors import ConfigurationError
from stages.contract.parts import Facts, Outcome, PartSpec, Receipt, Run, Spread, Worker, cut
from stages.contract.stage import Stage, work_through
from stages.contract.tables import Layout

PARTS = cut(6, 2)


@dataclass
class Counting:
    """A stage whose rows are its row ids; it can be met by another run half-way."""

    other_run_after: int = -1
    made: int = 0

    def stage(self) -> Stage:
        return Stage("count", 1, (), lambda settings: {"settings": settings}, self.run)

    def run(
        self, settings: Facts, inputs: Mapping[str, Artifact], draft: Draft, spread: Spread
    ) -> Run:
        def make() -> Worker:
            return lambda spec: self.write(draft, spec)

        yield from work_through(draft, PARTS, make, spread)
        return Outcome(PARTS, {"made": self.made})

    def write(self, draft: Draft, spec: PartSpec) -> Receipt:
        if spec.index == self.other_run_after:
            run_stage(Counting().stage(), {}, {}, draft.path.parent.parent, IN_PROCESS)
        self.made += 1
        ids = pa.array(range(spec.start, spec.stop), pa.int64())
        return draft.write_part(spec, pa.table({"row_id": ids}), layout=Layout())


IN_PROCESS = Config(compute=ComputeConfig(workers=0))


def test_a_finished_stage_is_reused(tmp_path: Path) -> None:
    counting = Counting()
    first = run_stage(counting.stage(), {}, {}, tmp_path, IN_PROCESS)
    again = run_stage(counting.stage(), {}, {}, tmp_path, IN_PROCESS)
    assert (first.reused, again.reused, counting.made) == (False, True, 3)
    assert first.artifact == again.artifact


def test_other_settings_are_another_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        one = run_stage(Counting().stage(), {"x": 1}, {}, tmp_path, IN_PROCESS)
        two = run_stage(Counting().stage(), {"x": 2}, {}, tmp_path, IN_PROCESS)
    assert one.artifact.key != two.artifact.key
    assert f"changed since {one.artifact.key}: settings.x" in caplog.text


@pytest.mark.parametrize("other_run_after", [0, 1, 2])
def test_a_run_that_is_overtaken_by_another_uses_its_result(
    tmp_path: Path, other_run_after: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        report = run_stage(Counting(other_run_after).stage(), {}, {}, tmp_path, IN_PROCESS)
    assert "another run has finished" in caplog.text
    assert report.artifact.array("row_id").tolist() == [0, 1, 2, 3, 4, 5]
    assert [path.name for path in (tmp_path / "count").iterdir()] == [report.artifact.key]


@pytest.fixture
def short_plan(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A plan of three stages that need no model, on a machine without a GPU; and their settings."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    settings = {"rows": 0, "tokens": 0, "embed": 0, "shards": 0}

    def stage(name: str, *reads: str) -> Stage:
        return Stage(name, 1, reads, lambda told: {"told": told}, Counting().run)

    stages = (stage("rows"), stage("tokens", "rows"), stage("embed", "tokens", "rows"))
    monkeypatch.setattr(plan, "PLAN", (*stages, stage("shards", "embed")))
    monkeypatch.setattr(plan, "stage_settings", lambda name, config: settings[name])
    return settings


def run_short(store: Path, *, gpus: float, last: str = "shards") -> dict[str, plan.StepReport]:
    compute = ComputeConfig(gpus_per_worker=gpus)
    config = Config(store=str(store), compute=compute)
    return run_stages(config, last=last, check=lambda config, artifact: None)


def test_too_few_gpus_are_told_before_any_stage(tmp_path: Path, short_plan: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=r"compute\.gpus_per_worker=1 must be <= 0"):
        run_short(tmp_path, gpus=1)
    assert list(tmp_path.iterdir()) == []
    assert set(run_short(tmp_path, gpus=0)) == {"rows", "tokens", "embed", "shards"}


def test_no_gpu_is_needed_for_a_dry_run_nor_where_the_pass_is_in_the_store(
    tmp_path: Path, short_plan: dict[str, int]
) -> None:
    assert set(run_short(tmp_path, gpus=1, last="tokens")) == {"rows", "tokens"}
    run_short(tmp_path, gpus=0)
    short_plan["shards"] = 1  # as a reshard does
    again = run_short(tmp_path, gpus=1)
    assert [step.reused for step in again.values()] == [True, True, True, False]
    short_plan["tokens"] = 1  # the pass would be made anew
    with pytest.raises(ConfigurationError, match="GPUs that this process sees"):
        run_short(tmp_path, gpus=1)
