"""The figures that the comparison becomes."""

import pytest

from benchmarks.compare import figures_of


def row(method: str, by: str, error: float) -> dict[str, object]:
    return {
        "method": method,
        "budget": "0.5",
        "by": by,
        "gradient_error": error,
        "ratio": error / 0.2,
        "effective_sample_size": 0.8,
    }


def test_targets_and_order() -> None:
    errors = {"random": 0.2, "uniform": 0.19, "paper": 0.3, "paper_random_inside": 0.15}
    rows = [
        row(name, by, error)
        for by in ("rows", "tokens")
        for name, error in {**errors, "matched": 0.12}.items()
    ]
    rows.append({"method": "svp", "budget": "0.5", "by": "rows", "reason": "needs a model"})
    found = {figure.figure: figure for figure in figures_of(rows, "0.5")}
    assert found["50%: matched over random"].value == pytest.approx(0.6)
    assert found["50%: matched over random"].met is False
    assert found["50%: matched, effective size"].met is True
    assert found["50%: uniform over random"].met is True
    assert found["50%: paper over random"].met is False
    assert found["50%: paper over its first measurement"].value == pytest.approx(0.3 / 0.316)
    assert not any("svp" in name for name in found)
