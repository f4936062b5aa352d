"""The corridor itself: reuse, and two runs of one key at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.config import ComputeConfig, Config
from pipeline.plan import run_stage
from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
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
