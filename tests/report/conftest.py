"""One hostile run for all tests of the report."""

from pathlib import Path

import pytest

from stages.report.write import write_report
from tests.report.hostile import Evil, finished_run


@pytest.fixture(scope="session")
def evil(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Evil:
    return finished_run(tmp_path_factory.mktemp("evil"), model_folder)


@pytest.fixture(scope="session")
def page(evil: Evil) -> Path:
    return write_report(evil.out, evil.artifacts, evil.manifest, comparison())


def comparison() -> dict[str, object]:
    """A comparison of three methods at two budgets, as `compare` writes it."""
    rows = []
    for budget, error in (("0.5", 0.2), ("10%", 0.4)):
        for method, ratio in (("random", 1.0), ("good<b>", 0.5), ("bad", 1.5)):
            rows.append(
                {
                    "method": method,
                    "budget": budget,
                    "by": "rows",
                    "gradient_error": error * ratio,
                    "ratio": ratio,
                    "beats_random": ratio < 1,
                }
            )
        rows.append({"method": "never", "budget": budget, "by": "rows", "reason": "not run: x"})
        rows.append({**rows[0], "by": "tokens", "gradient_error": 9.0})
    return {"table": rows}
